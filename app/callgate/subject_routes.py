"""The subjects around chat: durable runs, Responses, keys, recorded runs. Their routes, and their OpenAPI descriptions."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Final

from fastapi import FastAPI
from starlette.routing import Route
from starlette.types import ASGIApp

from callgate.access.routes import admin_routes
from callgate.api.endpoint import FaceEndpoint
from callgate.api.mcp_errors import MCP_PATH
from callgate.config.schema.whole import Config
from callgate.mcp_server.routes import McpDoor, mcp_operation
from callgate.recorder.routes.replay import PATH as REPLAY_PATH
from callgate.recorder.routes.replay import replay_endpoint, replay_operation
from callgate.recorder.routes.runs import run_routes
from callgate.recorder.routes.usage import usage_routes
from callgate.responses.background import BackgroundResponses, ResponsesResumer
from callgate.responses.compact import CompactFace
from callgate.responses.conversation_routes import conversation_routes
from callgate.responses.conversations import ResponseConversations
from callgate.responses.described import response_operation
from callgate.responses.face import ResponsesFace
from callgate.responses.input_tokens import InputTokens
from callgate.responses.routes import response_routes
from callgate.responses.stored import StoredResponses
from callgate.responses.websocket import ResponsesSocket
from callgate.routes import error_answers
from callgate.runs.durable_runs import DurableRuns
from callgate.runs.routes import durable_routes
from callgate.runtime.manager import RuntimeManager
from callgate.state.local.memory_runs import MemoryRunLedger
from callgate.state.response_conversations import ConversationStore

RESPONSES_PATHS: Final = ("/v1/responses", "/responses")


class AllSubjects:
    """Serves all that there is beside chat."""

    def __init__(self, config: Config, manager: RuntimeManager) -> None:
        self.runs = DurableRuns(manager, MemoryRunLedger(config.store.entries, config.store.bytes))
        self._mcp = McpDoor(manager)
        self._manager = manager

    def opened(self) -> AbstractAsyncContextManager[object]:
        return self._opened()

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.runs)
            await stack.enter_async_context(self._mcp)
            yield

    def add_routes(self, app: FastAPI) -> Mapping[tuple[str, str], ASGIApp]:
        """Add the routes; return those that the middleware calls directly."""
        manager = self._manager
        runs = self.runs
        routes_fast = self._add_responses(app)
        app.include_router(durable_routes(manager, runs))
        app.include_router(admin_routes(manager))
        app.include_router(run_routes(manager))
        app.router.routes.append(
            Route(REPLAY_PATH, replay_endpoint(manager, runs), methods=["POST"], name="replay_run")
        )
        app.include_router(usage_routes(manager))
        app.router.routes.extend(self._mcp.routes())
        _describe(app)
        return {**routes_fast, ("POST", MCP_PATH): self._mcp}

    def _add_responses(self, app: FastAPI) -> Mapping[tuple[str, str], ASGIApp]:
        manager = self._manager
        runs = self.runs
        responses_store = StoredResponses(manager.responses)
        background = BackgroundResponses(responses_store, runs, manager)
        conversations = ResponseConversations(ConversationStore(manager.responses))
        face = ResponsesFace(manager, responses_store, conversations, background)
        responses = FaceEndpoint(manager, face, runs)
        runs.add(ResponsesFace.__name__, ResponsesResumer(responses, responses_store))
        compact = FaceEndpoint(manager, CompactFace(face), runs)
        input_tokens = InputTokens(manager, face)
        socket = ResponsesSocket(manager)
        for path in RESPONSES_PATHS:
            app.router.routes.append(Route(path, socket, methods=["GET"], name="responses_socket"))
            app.router.routes.append(Route(path, responses, methods=["POST"], name="create_response"))
            app.router.routes.append(
                Route(path + "/input_tokens", input_tokens, methods=["POST"], name="count_input_tokens")
            )
            app.router.routes.append(Route(path + "/compact", compact, methods=["POST"], name="compact_response"))
            app.router.routes.extend(response_routes(path, responses_store, background, manager))
        app.router.routes.extend(conversation_routes(manager, conversations))
        return {("POST", path): responses for path in RESPONSES_PATHS}


def _describe(app: FastAPI) -> None:
    """Add the routes that are plain ASGI callables to the OpenAPI document."""
    described = app.openapi

    def openapi() -> dict[str, Any]:
        is_new = app.openapi_schema is None
        document = described()
        if is_new:
            document["paths"][REPLAY_PATH] = {"post": replay_operation(error_answers())}
            document["paths"][MCP_PATH] = {"post": mcp_operation(error_answers())}
            document["paths"]["/v1/responses"] = {"post": response_operation(error_answers())}
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's own documented way
