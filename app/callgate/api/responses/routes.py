"""`/v1/responses/{id}` and the routes below it: read, cancel and delete stored responses."""

import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from callgate.api.answers import ClientDisconnected
from callgate.api.errors import encode
from callgate.api.middleware import context_of
from callgate.api.request_schema import wrong
from callgate.api.responses.background import BackgroundRuns, check_after
from callgate.api.responses.stored import StoredResponses
from callgate.api.rights import StandingRights
from callgate.auth.keys import owner_name
from callgate.conversation.errors import ChatError
from callgate.runtime.manager import RuntimeManager

MOST_ITEMS: Final = 100
USUAL_ITEMS: Final = 20


def response_routes(
    path: str, kept: StoredResponses, background: BackgroundRuns, manager: RuntimeManager
) -> list[Route]:
    """Return the routes under a path."""
    one = _StoredResponseRoutes(kept, background, manager)
    by_id = path + "/{id}"
    return [
        Route(path + "/compact", _nothing_here, methods=["POST"]),
        Route(by_id, one.retrieve, methods=["GET"]),
        Route(by_id, one.delete, methods=["DELETE"]),
        Route(by_id + "/input_items", one.input_items, methods=["GET"]),
        Route(by_id + "/cancel", one.cancel, methods=["POST"]),
    ]


async def _nothing_here(request: Request) -> Response:
    """Answer 404 to an unsupported route, because some clients fail at the 405 that the framework would send."""
    raise ChatError(404, f"Unknown request URL: {request.method} {request.url.path}.", code="unknown_url")


class _StoredResponseRoutes:
    """The handlers for stored responses."""

    def __init__(self, kept: StoredResponses, background: BackgroundRuns, manager: RuntimeManager) -> None:
        self._kept, self._background, self._manager = kept, background, manager

    async def retrieve(self, request: Request) -> Response:
        owner, id = _asked(request)
        query = request.query_params
        if query.get("stream") == "true":
            rights = StandingRights(self._manager, request)
            stream = partial(self._background.stream_again, owner, id, check_after(query))
            return _Streamed(stream, lambda: rights.owner() == owner)
        if "starting_after" in query:
            raise wrong("starting_after", "'starting_after' is for a stream: 'stream=true'.")
        return _json(await self._background.found(owner, id))

    async def delete(self, request: Request) -> Response:
        owner, id = _asked(request)
        await self._kept.delete(owner, id)
        return _json({"id": id, "object": "response", "deleted": True})

    async def cancel(self, request: Request) -> Response:
        owner, id = _asked(request)
        return _json(await self._background.cancel(owner, id))

    async def input_items(self, request: Request) -> Response:
        owner, id = _asked(request)
        items = [msgspec.json.decode(item) for item in (await self._kept.get(owner, id)).input]
        query = request.query_params
        if query.get("order", "desc") != "asc":
            items.reverse()
        if (given := query.get("after")) is not None:
            ids = [item["id"] for item in items]
            if given not in ids:
                raise wrong("after", f"No item of this response is called '{given[:80]}'.")
            items = items[ids.index(given) + 1 :]
        limit = query.get("limit", str(USUAL_ITEMS))
        if not limit.isdecimal() or not 1 <= int(limit[:4]) <= MOST_ITEMS:
            raise wrong("limit", f"Invalid 'limit': expected a value between 1 and {MOST_ITEMS}.")
        shown = items[: int(limit)]
        ends = (
            {"first_id": shown[0]["id"], "last_id": shown[-1]["id"]} if shown else {"first_id": None, "last_id": None}
        )
        return _json({"object": "list", "data": shown, **ends, "has_more": len(items) > len(shown)})


class _Streamed(Response):
    """A Starlette response that is streamed by a function, as long as its client may have it."""

    def __init__(self, stream: Callable[[Receive, Send], Awaitable[None]], may_go_on: Callable[[], bool]) -> None:
        super().__init__()
        self._stream = stream
        self._may_go_on = may_go_on

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_if_allowed(message: Message) -> None:
            if not self._may_go_on():
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                raise ClientDisconnected
            await send(message)

        with contextlib.suppress(ClientDisconnected):
            await self._stream(receive, send_if_allowed)


def _asked(request: Request) -> tuple[str, str]:
    context = context_of(request.scope)
    context.route = "responses"
    assert context.caller is not None, "the middleware requires a caller here"
    return owner_name(context.caller), request.path_params["id"]


def _json(value: Any) -> Response:
    return Response(encode(value), media_type="application/json")
