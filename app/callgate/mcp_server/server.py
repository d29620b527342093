"""`POST /mcp`: reads one message, answers it, and keeps nothing of it. Clients of every revision are served, each request by itself."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
from starlette.types import Receive, Scope, Send

from callgate.api.answers import ClientDisconnected, send_whole
from callgate.api.bodies import check_body, read_counted
from callgate.api.errors import shutting_down
from callgate.api.middleware import RequestContext, context_of
from callgate.api.rights import Capability, caller_after_body
from callgate.callers.caller import NOBODY, Caller
from callgate.conversation.errors import ChatError
from callgate.mcp_server.parked_calls import ParkedCalls
from callgate.mcp_server.protocol import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    LEGACY,
    METHOD_NOT_FOUND,
    MODERN,
    NO_META,
    PARSE_ERROR,
    RESOURCE_NOT_FOUND,
    SERVER_INFO,
    STATUSES,
    UNSUPPORTED_VERSION,
    WHO,
    Envelope,
    Id,
    Meta,
    RpcFailure,
    answer,
    check_legacy,
    check_modern,
    encode,
    envelope_of,
    failure,
    is_modern,
    meta_of,
    one_of_each,
    refusal,
    text_of,
)
from callgate.mcp_server.reply import Reply, accept
from callgate.mcp_server.subscriptions import Subscriptions
from callgate.mcp_server.tool_calls import CallRequest, ToolCalls, principal_in
from callgate.mcp_server.tool_lists import FRESHNESS, EncodedList, ToolLists
from callgate.runtime.manager import RuntimeManager
from callgate.runtime.runtime import Runtime
from callgate.tools.read_more import ADDRESS
from callgate.untrusted.readers import READ_ERRORS, json_reader

EVENT_STREAM: Final = "text/event-stream"
JSON: Final = "application/json"
UNTIL_2025: Final = frozenset({PARSE_ERROR, INVALID_REQUEST, HEADER_MISMATCH, UNSUPPORTED_VERSION})
"""The errors that were a status of HTTP before requests stood alone."""
INSTRUCTIONS: Final = (
    "These are the tools of a Callgate server, as far as your key allows them. Calls are checked against their schemas before they run;"
    " some wait for a person's approval. A result that was cut names what reads on in it."
)
TEMPLATE: Final = {
    "uriTemplate": ADDRESS + "{id}",
    "name": "kept result",
    "description": "A result of a tool that was too long, whole, by the id that it names.",
}


class McpRequest(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """One request, with what its handler needs."""

    context: RequestContext
    caller: Caller
    envelope: Envelope
    meta: Meta
    modern: bool
    streams: bool
    """Its client takes event streams."""
    receive: Receive
    send: Send

    @property
    def id(self) -> Id:
        assert self.envelope.id is not None, "a message without an id is no request"
        return self.envelope.id


Handler = Callable[[McpRequest], Awaitable[bytes]]
"""Returns the encoded result."""


class _Listen(msgspec.Struct):
    tools_changed: bool = msgspec.field(default=False, name="toolsListChanged")


class McpEndpoint:
    """Answers MCP clients."""

    def __init__(self, manager: RuntimeManager) -> None:
        self._manager = manager
        self.parked = ParkedCalls(manager.shared.sealer)
        self.subscriptions = Subscriptions(manager.draining)
        self._lists: tuple[Runtime, ToolLists] | None = None
        self._calls = ToolCalls(manager, self._lists_of, self.parked, check_served)
        shared: dict[str, Handler] = {
            "tools/list": self._list_tools,
            "resources/list": self._list_resources,
            "resources/templates/list": self._list_templates,
            "resources/read": self._read_resource,
            "prompts/list": self._list_prompts,
        }
        self._modern: Mapping[str, Handler] = {**shared, "server/discover": self._discover}
        self._legacy: Mapping[str, Handler] = {**shared, "initialize": self._initialize, "ping": self._ping}

    async def close(self) -> None:
        await self.parked.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = context_of(scope)
        headers = context.headers
        caller = context.caller
        assert caller is not None, "the middleware requires a caller here"
        runtime = self._manager.current
        check_served(runtime, caller)
        accepted = headers.get("accept", "")
        _check_headers(headers, accepted)
        check_body(headers, runtime.limits.body_bytes)
        body = await read_counted(receive, runtime.limits.body_bytes, context.hold)
        caller = caller_after_body(self._manager, context)
        check_served(self._manager.current, caller)
        envelope = Envelope()
        modern = False
        try:
            envelope = envelope_of(body, runtime.limits.json_depth)
            context.notes["mcp"] = envelope.method[:64]
            one_of_each(scope["headers"])
            meta = meta_of(envelope.params)
            modern = is_modern(headers, meta)
            if envelope.id is None or not envelope.method:
                await _take(envelope, send, modern=modern)
                return
            if modern:
                check_modern(headers, envelope, meta)
            elif envelope.method != "initialize":
                check_legacy(headers)
            request = McpRequest(
                context=context,
                caller=caller,
                envelope=envelope,
                meta=meta or NO_META,
                modern=modern,
                streams=EVENT_STREAM in accepted,
                receive=receive,
                send=send,
            )
            await self._answer(request)
        except RpcFailure as error:
            context.notes["error"] = error.code
            status = STATUSES.get(error.code, 200) if modern or error.code in UNTIL_2025 else 200
            await send_whole(send, status, failure(envelope.id, error), {})

    async def _answer(self, request: McpRequest) -> None:
        method = request.envelope.method
        if method == "tools/call":
            await self._streamed(request, self._call)
        elif method == "subscriptions/listen" and request.modern:
            if not request.streams:
                raise ChatError(406, f"A subscription is an event stream: say so by `Accept: {EVENT_STREAM}`.")
            await self._streamed(request, self._listen)
        else:
            handler = (self._modern if request.modern else self._legacy).get(method)
            if handler is None:
                raise RpcFailure(METHOD_NOT_FOUND, "Method not found")
            await send_whole(request.send, 200, answer(request.id, await handler(request)), {})

    async def _streamed(self, request: McpRequest, handler: Callable[[McpRequest, Reply], Awaitable[bytes]]) -> None:
        """Answer what may take long."""
        reply = Reply(request.send, streams=request.streams, token=request.meta.progress_token, headers={})
        reply.begin()
        try:
            await reply.end(answer(request.id, await handler(request, reply)))
        except ClientDisconnected:
            request.context.notes["ending"] = "client_left"
        except RpcFailure as error:
            if not reply.has_begun:
                raise
            await reply.end(failure(request.id, error))
        except ChatError as error:
            request.context.notes["error"] = error.code or error.type
            told = request.context.aftermath.client_error(error)
            await reply.end(refusal(request.id, told), told.status, told)
        except asyncio.CancelledError:
            # Only the server cancels a whole request, at the end of the drain.
            if reply.has_begun:
                await reply.end(refusal(request.id, shutting_down()))
            raise
        finally:
            await reply.stop()

    # -- tools

    def _lists_of(self, runtime: Runtime) -> ToolLists:
        if self._lists is None or self._lists[0] is not runtime:
            self._lists = runtime, ToolLists(runtime)
        return self._lists[1]

    def _list_of(self, caller: Caller, request: McpRequest) -> EncodedList:
        runtime = self._manager.current
        principal = principal_in(runtime, caller, request.meta.user, request.context.headers)
        return self._lists_of(runtime).of(caller, principal)

    async def _list_tools(self, request: McpRequest) -> bytes:
        params = request.envelope.params
        cursor = text_of(params, "cursor") if "cursor" in params else None
        return self._list_of(request.caller, request).result(cursor, modern=request.modern)

    async def _call(self, request: McpRequest, reply: Reply) -> bytes:
        call = CallRequest.of(
            request.context, request.caller, request.envelope.params, request.meta, modern=request.modern
        )
        return await self._calls.answer(call, request.receive, reply)

    async def _listen(self, request: McpRequest, reply: Reply) -> bytes:
        try:
            filter = _read_listen(request.envelope.params["notifications"])
        except (KeyError, *READ_ERRORS):
            raise RpcFailure(INVALID_PARAMS, "`notifications` says what to listen for.") from None
        if request.context.place is not None:
            request.context.place.__exit__(None, None, None)  # it is no request that is worked on
        capability = Capability.of(self._manager, request.context, _served_caller)
        return await self.subscriptions.listen(
            capability,
            request.id,
            to_tools=filter.tools_changed,
            digest_of=lambda caller: self._list_of(caller, request).digest,
            receive=request.receive,
            reply=reply,
        )

    # -- resources: the results that were too long

    async def _read_resource(self, request: McpRequest) -> bytes:
        uri = text_of(request.envelope.params, "uri")
        store = self._manager.shared.kept_results
        runtime = self._manager.current
        principal = principal_in(runtime, request.caller, request.meta.user, request.context.headers)
        owner = request.caller.name if principal is NOBODY else principal.kept_for()
        result = None
        if uri.startswith(ADDRESS):
            id = uri.removeprefix(ADDRESS)
            await store.fetch(owner, [id])
            result = store.find(owner, id)
        if result is None:
            code = INVALID_PARAMS if request.modern else RESOURCE_NOT_FOUND
            raise RpcFailure(code, "No such resource, or it is not kept any more.", {"uri": uri[:1000]})
        if result.mime_type:
            content = {"uri": uri, "mimeType": result.mime_type, "blob": result.data.decode()}
        else:
            content = {"uri": uri, "mimeType": "text/plain", "text": result.data.decode("utf-8", "replace")}
        return _with_freshness(request, {"contents": [content]})

    async def _list_resources(self, request: McpRequest) -> bytes:
        return _with_freshness(request, {"resources": []})

    async def _list_templates(self, request: McpRequest) -> bytes:
        return _with_freshness(request, {"resourceTemplates": [TEMPLATE]})

    async def _list_prompts(self, request: McpRequest) -> bytes:
        return _with_freshness(request, {"prompts": []})

    # -- who this is

    async def _discover(self, request: McpRequest) -> bytes:
        return _with_freshness(
            request,
            {
                "supportedVersions": MODERN,
                "capabilities": {"tools": {"listChanged": True}, "resources": {}, "prompts": {}},
                "instructions": INSTRUCTIONS,
                "_meta": {SERVER_INFO: WHO},
            },
        )

    async def _initialize(self, request: McpRequest) -> bytes:
        revision = text_of(request.envelope.params, "protocolVersion")
        return encode(
            {
                "protocolVersion": revision if revision in LEGACY else LEGACY[0],
                "capabilities": {"tools": {}, "resources": {}, "prompts": {}},
                "serverInfo": WHO,
                "instructions": INSTRUCTIONS,
            }
        )

    async def _ping(self, request: McpRequest) -> bytes:
        return b"{}"


def check_served(runtime: Runtime, caller: Caller) -> None:
    """Raise `ChatError` where a caller is not served."""
    serve = runtime.config.mcp.serve
    if serve == "off":
        raise ChatError(404, "Unknown request URL: /mcp. It is switched off (`mcp: off`).", code="unknown_url")
    if serve == "auto" and caller.anonymous and not runtime.access.may_administer(caller):
        message = "Nobody may call tools here without a key: make one, or say `mcp: on` in the config."
        raise ChatError(403, message, type="permission_error", code="mcp_not_allowed")


def _served_caller(runtime: Runtime, caller: Caller) -> Caller:
    check_served(runtime, caller)
    return caller


_read_listen = json_reader(_Listen)


def _check_headers(headers: Mapping[str, str], accepted: str) -> None:
    """Refuse what no MCP client sends: above all the types of content that a web page may send anywhere without being asked."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON:
        raise ChatError(415, f"A message is sent as `Content-Type: {JSON}`.", code="unsupported_content_type")
    if accepted and not any(word in accepted for word in (JSON, "*/*", "application/*")):
        raise ChatError(406, f"An answer may be JSON: say so by `Accept: {JSON}, {EVENT_STREAM}`.")


async def _take(envelope: Envelope, send: Send, *, modern: bool) -> None:
    """Take a notification, or an answer that nobody here has asked for. Raises `RpcFailure`."""
    if modern and not envelope.method:
        raise RpcFailure(INVALID_REQUEST, "A message is a request or a notification.")
    await accept(send)


def _with_freshness(request: McpRequest, result: dict[str, Any]) -> bytes:
    if request.modern:
        return encode({**result, **FRESHNESS})
    return encode(result)
