"""The web page at `/`: static files of the package, with a content security policy that forbids other origins."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

FOLDER: Final = Path(__file__).resolve().parents[1] / "web"
TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
}
HEADERS: Final = {
    "content-security-policy": (
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


def page_routes() -> list[Route]:
    """Return a route for each file; no other path is served."""
    files = {f"/web/{file.relative_to(FOLDER)}": file for file in sorted(FOLDER.rglob("*")) if file.suffix in TYPES}
    files["/"] = files.pop("/web/index.html")
    return [Route(path, _served(file), methods=["GET"], name=f"page {path}") for path, file in files.items()]


def _served(file: Path) -> Callable[[Request], Awaitable[Response]]:
    content = file.read_bytes()
    kind = TYPES[file.suffix]

    async def serve(request: Request) -> Response:
        return Response(content, media_type=kind, headers=HEADERS)

    return serve
