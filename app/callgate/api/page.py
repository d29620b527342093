"""The web page at `/`: static files of the package, with a content security policy that forbids other origins but that of the
company's issuer, where people sign in."""

from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import urlsplit

from msgspec.structs import asdict
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from callgate.api.errors import encode
from callgate.runtime.manager import RuntimeManager

FOLDER: Final = Path(__file__).resolve().parents[1] / "web"
TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
}
POLICY: Final = "content-security-policy"
OWN_ORIGIN: Final = "connect-src 'self'"
HEADERS: Final = {
    POLICY: (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
        "trusted-types lit-html"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}


def page_routes(manager: RuntimeManager) -> list[Route]:
    """Return a route for each file, and for what the page needs to sign somebody in; no other path is served."""
    return [
        Route("/", _served_index(manager), methods=["GET"], name="page /"),
        *(
            Route(path, _served(path), methods=["GET"], name=f"page {path}")
            for path in _files()
            if path != "/web/index.html"
        ),
        Route("/web/sign-in", _told_where(manager), methods=["GET"], name="page /web/sign-in"),
    ]


@cache
def _files() -> Mapping[str, bytes]:
    """The files of the page by their paths, read once: they belong together, whatever is installed while a server runs."""
    files = sorted(FOLDER.rglob("*"))
    return {f"/web/{file.relative_to(FOLDER)}": file.read_bytes() for file in files if file.suffix in TYPES}


def _served_index(manager: RuntimeManager) -> Callable[[Request], Awaitable[Response]]:
    """The page itself may ask its own origin alone, and where people sign in, the address that gives tokens."""
    content = _files()["/web/index.html"]

    async def serve(request: Request) -> Response:
        headers = HEADERS
        if manager.current.config.auth.oidc is not None:
            sign_in = await manager.shared.control.sign_in(manager.current.config)
            if sign_in is not None:
                policy = HEADERS[POLICY].replace(OWN_ORIGIN, f"{OWN_ORIGIN} {origin_of(sign_in.token)}")
                headers = {**HEADERS, POLICY: policy}
        return Response(content, media_type=TYPES[".html"], headers=headers)

    return serve


def _told_where(manager: RuntimeManager) -> Callable[[Request], Awaitable[Response]]:
    async def tell(request: Request) -> Response:
        sign_in = await manager.shared.control.sign_in(manager.current.config)
        told = None if sign_in is None else asdict(sign_in)
        return Response(encode(told), media_type="application/json", headers={**HEADERS, "cache-control": "no-store"})

    return tell


def origin_of(address: str) -> str:
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _served(path: str) -> Callable[[Request], Awaitable[Response]]:
    content = _files()[path]
    kind = TYPES[PurePosixPath(path).suffix]

    async def serve(request: Request) -> Response:
        return Response(content, media_type=kind, headers=HEADERS)

    return serve
