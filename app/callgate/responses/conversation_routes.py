"""`/v1/conversations` and the routes below it: conversations and their items."""

from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from callgate.api.bodies import check_body, read_counted
from callgate.api.errors import encode
from callgate.api.guarded_bodies import check_not_blocked, judged_body
from callgate.api.json_body import read_json_body
from callgate.api.middleware import context_of
from callgate.api.rights import caller_after_body
from callgate.api.strict_json import check_text
from callgate.callers.caller import owner_name
from callgate.responses.conversations import ResponseConversations, shown
from callgate.responses.listing import list_of, page_of
from callgate.runtime.manager import RuntimeManager
from callgate.untrusted.doors import Opened, written_here

PATHS: Final = ("/v1/conversations", "/conversations")
NO_BODY: Final = written_here(b"{}")


class _Created(msgspec.Struct):
    items: list[Any] | None = None
    metadata: dict[str, Any] | None = None


class _Updated(msgspec.Struct):
    metadata: dict[str, Any] | None


class _Added(msgspec.Struct):
    items: list[Any]


def conversation_routes(manager: RuntimeManager, conversations: ResponseConversations) -> list[Route]:
    """Return the routes of conversations."""
    routes = _ConversationRoutes(manager, conversations)
    all_routes: list[Route] = []
    for path in PATHS:
        by_id = path + "/{id}"
        items = by_id + "/items"
        item = items + "/{item_id}"
        all_routes += [
            Route(path, routes.create, methods=["POST"]),
            Route(by_id, routes.retrieve, methods=["GET"]),
            Route(by_id, routes.update, methods=["POST"]),
            Route(by_id, routes.delete, methods=["DELETE"]),
            Route(items, routes.add_items, methods=["POST"]),
            Route(items, routes.list_items, methods=["GET"]),
            Route(item, routes.retrieve_item, methods=["GET"]),
            Route(item, routes.delete_item, methods=["DELETE"]),
        ]
    return all_routes


class _ConversationRoutes:
    def __init__(self, manager: RuntimeManager, conversations: ResponseConversations) -> None:
        self._manager = manager
        self._conversations = conversations

    async def create(self, request: Request) -> Response:
        owner = _owner_of(request)
        body = read_json_body(await self._body(request), _Created, '{"items": […], "metadata": {…}}')
        return _json(await self._conversations.create(owner, body.items or (), body.metadata or {}))

    async def retrieve(self, request: Request) -> Response:
        id = request.path_params["id"]
        return _json(shown(id, await self._conversations.get(_owner_of(request), id)))

    async def update(self, request: Request) -> Response:
        owner = _owner_of(request)
        body = read_json_body(await self._body(request), _Updated, '{"metadata": {…}}')
        return _json(await self._conversations.update(owner, request.path_params["id"], body.metadata or {}))

    async def delete(self, request: Request) -> Response:
        id = request.path_params["id"]
        await self._conversations.delete(_owner_of(request), id)
        return _json({"id": id, "object": "conversation.deleted", "deleted": True})

    async def add_items(self, request: Request) -> Response:
        owner = _owner_of(request)
        body = read_json_body(await self._body(request), _Added, '{"items": […]}')
        return _json(list_of(await self._conversations.add(owner, request.path_params["id"], body.items)))

    async def list_items(self, request: Request) -> Response:
        conversation = await self._conversations.get(_owner_of(request), request.path_params["id"])
        return _json(page_of(conversation.items, conversation.ids, request.query_params, "conversation"))

    async def retrieve_item(self, request: Request) -> Response:
        params = request.path_params
        return _json(await self._conversations.item(_owner_of(request), params["id"], params["item_id"]))

    async def delete_item(self, request: Request) -> Response:
        params = request.path_params
        return _json(await self._conversations.remove(_owner_of(request), params["id"], params["item_id"]))

    async def _body(self, request: Request) -> Opened:
        context = context_of(request.scope)
        limits = self._manager.current.config.limits
        check_body(context.headers, limits.body_bytes)
        body = await read_counted(request.receive, limits.body_bytes, context.hold)
        caller = caller_after_body(self._manager, context)
        if not len(body):
            return NO_BODY
        if (runtime := self._manager.current).guarding is not None:
            body = await judged_body(runtime, context, caller, body)
            check_not_blocked(runtime, context)
        check_text(body, limits.json_depth)
        return body


def _owner_of(request: Request) -> str:
    context = context_of(request.scope)
    context.route = "conversations"
    assert context.caller is not None, "the middleware requires a caller here"
    return owner_name(context.caller)


def _json(value: Any) -> Response:
    return Response(encode(value), media_type="application/json")
