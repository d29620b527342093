"""Anthropic's Messages API: reads its requests, and chooses its writers."""

import asyncio
from collections.abc import Sequence
from functools import partial

import structlog

from callgate.api.answers import BodyWriter, StreamWriter, Work
from callgate.api.conversation import Conversation
from callgate.api.left_out import note_left_out
from callgate.api.messages.errors import error_shape
from callgate.api.messages.requests import MessagesRequest, read_messages_request, with_thinking
from callgate.api.messages.threads import Threads
from callgate.api.messages.writers import MessageHead, MessageStreamWriter, MessageWriter, event_of
from callgate.api.middleware import RequestContext
from callgate.api.requests import ChatRequest
from callgate.api.strict_json import LARGE_BODY
from callgate.auth.keys import owner_name
from callgate.config.schema import Config
from callgate.conversation.diagnosis import Diagnosis
from callgate.conversation.errors import ChatError
from callgate.conversation.events import ChatEnded, ChatEvent
from callgate.conversation.ports import Emit
from callgate.runtime.manager import RuntimeManager

log = structlog.get_logger("callgate.messages")


class MessagesFace:
    """`POST /v1/messages`."""

    route = "messages"

    def __init__(self, manager: RuntimeManager) -> None:
        self._manager = manager
        self._threads = Threads(manager.responses)

    async def read(self, body: bytes, context: RequestContext, config: Config) -> "MessagesExchange":
        limits = config.limits
        assert context.caller is not None, "the middleware requires a caller here"
        owner = owner_name(context.caller)
        earlier = await self._threads.earlier(owner, body, limits.body_bytes)
        reading = partial(
            read_messages_request,
            body,
            context.headers,
            limits.messages,
            limits.json_depth,
            earlier=earlier,
            reads_files=self._manager.current.reads_files,
        )
        is_large = len(body) + earlier.size > LARGE_BODY
        read = reading() if not is_large else await asyncio.to_thread(reading)
        return MessagesExchange(read, context.request_id, owner, self._threads)


class MessagesExchange:
    """A Messages request, and the writers of its answer."""

    __slots__ = ("_owner", "_read", "_request_id", "_threads", "request")

    def __init__(self, read: MessagesRequest, request_id: str, owner: str, threads: Threads) -> None:
        self._read, self._request_id, self._owner, self._threads = read, request_id, owner, threads
        self.request: ChatRequest = read.request

    def work(self, conversation: Conversation) -> Work:
        if (left_out := self._read.left_out) and not conversation.route.speaks_messages:
            note_left_out(conversation, left_out)
        if self._read.thinks:
            self.request.normalized = with_thinking(self.request.normalized, conversation.thinking)
        return conversation.work if self._read.thread is None else partial(self._in_thread, conversation)

    async def _in_thread(self, conversation: Conversation, emit: Emit) -> None:
        """Store the conversation before the client is sent its last message."""
        gathered = MessageWriter(self._head(conversation), None)

        async def emit_and_keep(event: ChatEvent) -> None:
            gathered.write(event)
            if isinstance(event, ChatEnded):
                request = self.request
                await self._threads.keep(self._owner, gathered.body(), request.fields, request.conversation)
            await emit(event)

        await conversation.work(emit_and_keep)

    def whole(self, conversation: Conversation, began: int, diagnoses: Sequence[Diagnosis] | None) -> BodyWriter:
        return MessageWriter(self._head(conversation), diagnoses[0] if diagnoses else None)

    def streamed(self, conversation: Conversation, began: int, diagnoses: Sequence[Diagnosis] | None) -> StreamWriter:
        return MessageStreamWriter(self._head(conversation), diagnoses[0] if diagnoses else None)

    def stream_end(self, error: ChatError, sent: bytes) -> bytes:
        return event_of(error_shape(error, self._request_id))

    def _head(self, conversation: Conversation) -> MessageHead:
        read = self._read
        return MessageHead(
            conversation.run_id,
            self._request_id,
            self.request.model,
            read.shows_thinking,
            read.shows_calls,
            self.request.usage_scope,
        )
