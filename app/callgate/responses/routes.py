"""`/v1/responses/{id}` and the routes below it: read, cancel and delete stored responses."""

import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from callgate.api.answers import ClientDisconnected
from callgate.api.errors import encode
from callgate.api.field_errors import wrong
from callgate.api.middleware import context_of
from callgate.api.rights import Capability, anything, send_while_allowed
from callgate.callers.caller import owner_name
from callgate.responses.background import BackgroundResponses, check_after
from callgate.responses.listing import page_of
from callgate.responses.output import stream_end
from callgate.responses.stored import StoredResponses, ids_of
from callgate.runtime.manager import RuntimeManager


def response_routes(
    path: str, responses: StoredResponses, background: BackgroundResponses, manager: RuntimeManager
) -> list[Route]:
    """Return the routes under a path."""
    routes = _StoredResponseRoutes(responses, background, manager)
    by_id = path + "/{id}"
    return [
        Route(by_id, routes.retrieve, methods=["GET"]),
        Route(by_id, routes.delete, methods=["DELETE"]),
        Route(by_id + "/input_items", routes.input_items, methods=["GET"]),
        Route(by_id + "/cancel", routes.cancel, methods=["POST"]),
    ]


class _StoredResponseRoutes:
    """The handlers for stored responses."""

    def __init__(self, responses: StoredResponses, background: BackgroundResponses, manager: RuntimeManager) -> None:
        self._kept = responses
        self._background = background
        self._manager = manager

    async def retrieve(self, request: Request) -> Response:
        owner, id = _identify(request)
        query = request.query_params
        if query.get("stream") == "true":
            stream = partial(self._background.stream_again, owner, id, check_after(query))
            return _Streamed(stream, Capability.of(self._manager, context_of(request.scope), anything))
        if "starting_after" in query:
            raise wrong("starting_after", "'starting_after' is for a stream: 'stream=true'.")
        return _json(await self._background.find(owner, id))

    async def delete(self, request: Request) -> Response:
        owner, id = _identify(request)
        await self._kept.delete(owner, id)
        return _json({"id": id, "object": "response", "deleted": True})

    async def cancel(self, request: Request) -> Response:
        owner, id = _identify(request)
        return _json(await self._background.cancel(owner, id))

    async def input_items(self, request: Request) -> Response:
        owner, id = _identify(request)
        items = (await self._kept.get(owner, id)).input
        return _json(page_of(items, ids_of(items), request.query_params, "response"))


class _Streamed(Response):
    """A Starlette response that is streamed by a function, as long as its client may have it."""

    def __init__(self, stream: Callable[[Receive, Send], Awaitable[None]], capability: Capability[None]) -> None:
        super().__init__()
        self._stream = stream
        self._capability = capability

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(ClientDisconnected):
            await send_while_allowed(partial(self._stream, receive), send, self._capability, stream_end)


def _identify(request: Request) -> tuple[str, str]:
    context = context_of(request.scope)
    context.route = "responses"
    assert context.caller is not None, "the middleware requires a caller here"
    return owner_name(context.caller), request.path_params["id"]


def _json(value: Any) -> Response:
    return Response(encode(value), media_type="application/json")
