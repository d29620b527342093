"""CORS: the headers that allow the scripts of configured web pages to read our answers."""

from collections.abc import Collection, Mapping

METHODS = "GET, HEAD, POST, DELETE, OPTIONS"
EXPOSED = (
    "x-request-id, x-callgate-run, retry-after, retry-after-ms, x-should-retry, "
    "x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests, "
    "x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens"
)
REMEMBERED_SECONDS = 600


def allowed_origin(origin: str, origins: Collection[str]) -> str | None:
    """Return the value of `Access-Control-Allow-Origin` for this page, or None for no header."""
    if "*" in origins:
        return "*"
    normalized = origin.strip().lower()
    if any(normalized == allowed_origin.strip().rstrip("/").lower() for allowed_origin in origins):
        return origin
    return None


def cors_headers(headers: Mapping[str, str], origins: Collection[str]) -> dict[str, str]:
    """Return the CORS headers of a response; none where the page may not read it."""
    allowed = allowed_origin(headers.get("origin", ""), origins)
    if allowed is None:
        return {}
    return {"access-control-allow-origin": allowed, "access-control-expose-headers": EXPOSED, "vary": "Origin"}


def preflight_headers(headers: Mapping[str, str], origins: Collection[str]) -> dict[str, str] | None:
    """Return the further headers of the response to a preflight; None when the page may not call."""
    if allowed_origin(headers.get("origin", ""), origins) is None:
        return None
    return {
        "access-control-allow-methods": METHODS,
        # An allowed page may send any header, because SDKs have a dozen of their own.
        "access-control-allow-headers": headers.get("access-control-request-headers", "*"),
        "access-control-max-age": str(REMEMBERED_SECONDS),
    }
