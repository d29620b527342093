"""`/mcp`: the door to the MCP server, which is imported with the first request that comes to it."""

from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from callgate.api.answers import send_whole
from callgate.api.errors import encode
from callgate.api.mcp_errors import MCP_PATH
from callgate.api.middleware import context_of
from callgate.api.protected_resource import METADATA_PATHS, has_metadata, metadata_of
from callgate.conversation.errors import ChatError
from callgate.runtime.manager import RuntimeManager

if TYPE_CHECKING:  # imported with the first request
    from callgate.mcp_server.server import McpEndpoint

METHODS: Final = ("GET", "POST", "DELETE")


class McpDoor:
    """An ASGI application, open while the server runs."""

    def __init__(self, manager: RuntimeManager) -> None:
        self._manager = manager
        self.server: McpEndpoint | None = None

    def routes(self) -> list[Route]:
        describing = [Route(path, self._describe, methods=["GET"], name=path) for path in sorted(METADATA_PATHS)]
        return [Route(MCP_PATH, self, methods=METHODS, name="mcp"), *describing]

    async def _describe(self, request: Request) -> Response:
        """Say which issuer's tokens are taken."""
        config = self._manager.current.config
        context_of(request.scope).route = "mcp"
        if not has_metadata(config, request.url.path):
            raise ChatError(404, f"Unknown request URL: GET {request.url.path}.", code="unknown_url")
        return Response(
            encode(metadata_of(config, context_of(request.scope).headers, request.url.scheme)),
            media_type="application/json",
            headers={"cache-control": "max-age=300"},
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.server is not None:
            await self.server.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = context_of(scope)
        context.route = "mcp"
        if self._manager.current.config.mcp.serve == "off":
            raise ChatError(404, "Unknown request URL: /mcp. It is switched off (`mcp: off`).", code="unknown_url")
        if scope["method"] != "POST":
            error = ChatError(405, f"Not allowed to {scope['method']} /mcp.", code="method_not_supported")
            await send_whole(send, error.status, context.error_body(error), {"allow": "POST"}, error)
            return
        if self.server is None:
            from callgate.mcp_server.server import McpEndpoint

            self.server = McpEndpoint(self._manager)
        await self.server(scope, receive, send)


def mcp_operation(errors: dict[str, Any]) -> dict[str, Any]:
    """Describe the route for OpenAPI."""
    message = {"type": "object", "required": ["jsonrpc"], "properties": {"jsonrpc": {"const": "2.0"}}}
    return {
        "tags": ["tools"],
        "operationId": "mcp",
        "summary": "One message of an MCP client: the tools of this server, for what speaks the Model Context Protocol",
        "requestBody": {"required": True, "content": {"application/json": {"schema": message}}},
        "responses": {
            "200": {
                "description": "The answer, or a stream of notifications that ends with it.",
                "content": {
                    "application/json": {"schema": message},
                    "text/event-stream": {"schema": {"type": "string"}},
                },
            },
            "202": {"description": "A notification was taken."},
        }
        | errors,
    }
