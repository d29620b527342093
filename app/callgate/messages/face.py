"""Anthropic's Messages API: reads its requests, and chooses its writers."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import structlog
from msgspec.structs import replace

from callgate.api.answers import AnswerKeeper, BodyWriter, StreamWriter
from callgate.api.anthropic_errors import error_shape
from callgate.api.chat_request import ChatRequest
from callgate.api.conversation import Conversation
from callgate.api.faces import FaceExchange
from callgate.api.left_out import note_left_out, note_unplaced
from callgate.api.middleware import RequestContext
from callgate.api.strict_json import LARGE_BODY
from callgate.callers.caller import owner_name
from callgate.calls.selection import OF_REQUESTS
from callgate.config.schema.whole import Config
from callgate.conversation.diagnosis import Diagnosis
from callgate.conversation.errors import ChatError
from callgate.conversation.events import ChatEnded
from callgate.hosted.declared import by_name_in
from callgate.messages.context_edits import MANAGEMENT
from callgate.messages.declared import stand_ins_of
from callgate.messages.history import OUR_SERVER
from callgate.messages.requests import (
    MessagesRequest,
    read_messages_request,
    thinking_unheard,
    with_context,
    with_thinking,
)
from callgate.messages.threads import Threads
from callgate.messages.writers import MessageHead, MessageStreamWriter, MessageWriter, event_of
from callgate.runtime.manager import RuntimeManager
from callgate.runtime.route import Route
from callgate.untrusted.doors import Opened

log = structlog.get_logger("callgate.messages")


class MessagesFace:
    """`POST /v1/messages`."""

    route = "messages"
    adapts_requests = True
    keeps_answers = True
    stores_whole_stream = False

    def __init__(self, manager: RuntimeManager) -> None:
        self._manager = manager
        self._threads = Threads(manager.responses)

    async def read(self, body: Opened, context: RequestContext, config: Config) -> "MessagesExchange":
        limits = config.limits
        assert context.caller is not None, "the middleware requires a caller here"
        owner = owner_name(context.caller)
        runtime = self._manager.current
        earlier = await self._threads.earlier(owner, body, limits.body_bytes)
        reading = partial(
            read_messages_request,
            body,
            context.headers,
            limits.messages,
            limits.json_depth,
            earlier=earlier,
            reads_files=runtime.toolboxes.reads_files,
            speaks_messages=runtime.toolboxes.speaks_messages,
            stand_ins=partial(stand_ins_of, runtime, context.caller),
            labels=runtime.labels,
            client=context.caller.client_mcp,
        )
        is_large = len(body) + earlier.size > LARGE_BODY
        if not is_large:
            parsed = reading()
        else:
            parsed = await asyncio.to_thread(reading)
        return MessagesExchange(parsed, context.request_id, owner, self._threads)


class MessagesExchange(FaceExchange):
    """A Messages request, and the writers of its answer."""

    def __init__(self, parsed: MessagesRequest, request_id: str, owner: str, threads: Threads) -> None:
        self.request = parsed.request
        self._read = parsed
        self._request_id = request_id
        self._owner = owner
        self._threads = threads

    def request_for(self, route: Route, warn: Callable[[str], None]) -> ChatRequest:
        if self._read.left_out and not route.speaks_messages():
            note_left_out(warn, self._read.left_out)
        if self._read.unheard:
            note_unplaced(warn, self._read.unheard)
        request = self.request
        if self._read.asks_of_context and not route.speaks_messages():
            request = self.request = with_context(request, route.entry)
        if not self._read.thinks:
            return request
        way = route.thinking()
        if not route.speaks_messages() and (unheard := thinking_unheard(request.normalized, way)):
            note_unplaced(warn, unheard)
        return replace(request, normalized=with_thinking(request.normalized, way))

    def keeper(self, conversation: Conversation) -> AnswerKeeper | None:
        if self._read.thread is None:
            return None
        return _ThreadKeeper(self._threads, self._owner, self.request, MessageWriter(self._head(conversation), None))

    def whole(self, conversation: Conversation, began: int, diagnoses: Sequence[Diagnosis] | None) -> BodyWriter:
        return MessageWriter(self._head(conversation), diagnoses[0] if diagnoses else None)

    def streamed(self, conversation: Conversation, began: int, diagnoses: Sequence[Diagnosis] | None) -> StreamWriter:
        return MessageStreamWriter(self._head(conversation), diagnoses[0] if diagnoses else None)

    def stream_end(self, error: ChatError, written: bytes) -> bytes:
        return event_of(error_shape(error, self._request_id))

    def _shown_as(self, conversation: Conversation) -> Callable[[str], tuple[str, str]] | None:
        servers = self.request.tools.servers
        if servers is None or not servers.clients:
            return None
        return partial(_shown_as, conversation)

    def _head(self, conversation: Conversation) -> MessageHead:
        parsed = self._read
        hosted = self.request.tools.hosted
        if conversation.context.headers.get("x-callgate-events") == "off":
            hosted = None
        return MessageHead(
            conversation.run_id,
            self._request_id,
            self.request.model,
            parsed.shows_thinking,
            parsed.shows_calls,
            conversation.delivery.usage_scope,
            hosted=by_name_in(hosted),
            shown_as=self._shown_as(conversation),
            tells_lists=parsed.takes_lists,
            says_edits=self.request.context is not None and MANAGEMENT in self.request.fields,
        )


def _shown_as(conversation: Conversation, tool: str) -> tuple[str, str]:
    """Return the server and the name by which the client knows a tool of ours."""
    route = conversation.route
    source = route.source_of(tool) or ""
    if not source.startswith(OF_REQUESTS):
        return OUR_SERVER, tool
    return source.removeprefix(OF_REQUESTS), route.clients_name_of(tool)


class _ThreadKeeper:
    """Stores a conversation under its last message."""

    def __init__(self, threads: Threads, owner: str, request: ChatRequest, copy: MessageWriter) -> None:
        self._threads = threads
        self._owner = owner
        self._request = request
        self.copy = copy

    async def store(self, choice: int, ended: ChatEnded) -> None:
        request = self._request
        await self._threads.keep(self._owner, self.copy.body(), request.fields, request.origin.conversation)
