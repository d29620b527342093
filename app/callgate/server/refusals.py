"""Error responses of the server itself, in the format that clients of the path expect, for requests that do not reach the
application."""

from callgate.api.errors import SERVER_ERROR, error_body, error_headers, is_anthropics, status_at
from callgate.conversation.errors import ChatError
from callgate.conversation.ids import new_request_id
from callgate.server.heads import STATUS_LINES


class RequestRefused(Exception):
    """Raised to send an error and close the connection; inside the parser's callbacks, which wrap it."""

    def __init__(self, status: int, message: str, code: str | None, retry_after: float | None = None) -> None:
        super().__init__(message)
        kind = "invalid_request_error"
        if status >= 500:
            kind = "server_error"
        elif status == 429:
            kind = "rate_limit_error"
        self.error = ChatError(status, message, type=kind, code=code, retry_after=retry_after)


def refusal(refused: RequestRefused, method: str = "", target: bytes = b"") -> bytes:
    """Return the whole response, the last one on its connection. `target`: the request target, as far as it has come."""
    path = target.decode("latin-1")
    request_id = new_request_id()
    body = error_body(refused.error, path, request_id)
    headers = {
        **({"request-id": request_id} if is_anthropics(path) else {}),
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
        **error_headers(refused.error),
    }
    lines = "".join(f"\r\n{name}: {value}" for name, value in headers.items())
    head = b"%b%b\r\n\r\n" % (STATUS_LINES[status_at(path, refused.error.status)], lines.encode("latin-1"))
    if method == "HEAD":
        return head
    return head + body


def not_http() -> RequestRefused:
    return RequestRefused(400, "Invalid HTTP request received.", "invalid_http_request")


def too_much_framing() -> RequestRefused:
    return RequestRefused(400, "The request's chunks hold more framing than body.", "invalid_http_request")


def no_host() -> RequestRefused:
    return RequestRefused(400, "The request has no Host header, which HTTP/1.1 asks for.", "invalid_http_request")


def other_host() -> RequestRefused:
    return RequestRefused(400, "The request's target and its Host header name different hosts.", "invalid_http_request")


def unknown_version(version: str) -> RequestRefused:
    return RequestRefused(505, f"HTTP/{version} is not spoken here; HTTP/1.1 is.", "invalid_http_request")


def no_tunnel() -> RequestRefused:
    return RequestRefused(405, "CONNECT asks for a tunnel, which this server does not open.", "method_not_allowed")


def repeated_header(name: str) -> RequestRefused:
    return RequestRefused(400, f"The request has the header {name} more than once.", "invalid_http_request")


def too_many_pipelined() -> RequestRefused:
    return RequestRefused(400, "Too many requests were sent ahead of their answers.", "too_many_pipelined")


def head_too_large(limit: int) -> RequestRefused:
    return RequestRefused(431, f"The request's headers are larger than {limit} bytes.", "headers_too_large")


def head_timeout() -> RequestRefused:
    return RequestRefused(408, "The request's headers did not come in time.", "request_timeout")


def body_timeout() -> RequestRefused:
    return RequestRefused(408, "The request's body did not come in time.", "request_timeout")


def too_many_connections() -> RequestRefused:
    return RequestRefused(503, "Too many connections. Try again in a moment.", "over_capacity", retry_after=1)


def too_many_of_one_key(share: int) -> RequestRefused:
    message = f"This key may have {share} connections open at once. Close some, or use them again."
    return RequestRefused(429, message, "too_many_connections", retry_after=1)


def closing() -> RequestRefused:
    return RequestRefused(503, "The server is shutting down. Try again in a moment.", "shutting_down", retry_after=1)


def failed() -> RequestRefused:
    """Return the error for an application that failed before it began its response."""
    return RequestRefused(500, SERVER_ERROR, None)
