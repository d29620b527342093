"""The face of Anthropic's Messages API."""

from collections.abc import Sequence

from callgate.api.answers import BodyWriter, StreamWriter, Work
from callgate.api.conversation import Conversation
from callgate.api.messages.requests import MessagesRequest, asked_to_think, read_messages_request
from callgate.api.messages.writers import MessageHead, MessageStreamWriter, MessageWriter
from callgate.api.middleware import RequestContext
from callgate.api.requests import ChatRequest
from callgate.config.schema import Config
from callgate.conversation.diagnosis import Diagnosis
from callgate.conversation.errors import ChatError

NO_THREADS = "thread: conversations are not kept here; send all messages with each request"


class MessagesFace:
    """`POST /v1/messages`."""

    route = "messages"

    async def read(self, body: bytes, context: RequestContext, config: Config) -> "MessagesExchange":
        limits = config.limits
        read = read_messages_request(body, context.headers, limits.messages, limits.json_depth)
        if read.thread is not None:
            raise ChatError(400, NO_THREADS, param="thread", code="thread_unsupported_request")
        return MessagesExchange(read, context.request_id)


class MessagesExchange:
    """A Messages request, and the writers of its answer."""

    __slots__ = ("_read", "_request_id", "request")

    def __init__(self, read: MessagesRequest, request_id: str) -> None:
        self._read, self._request_id = read, request_id
        self.request: ChatRequest = read.request

    def work(self, conversation: Conversation) -> Work:
        if self._read.thinks:
            self.request.words = asked_to_think(self.request.words, conversation.thinking)
        return conversation.work

    def whole(self, conversation: Conversation, began: int, diagnoses: Sequence[Diagnosis] | None) -> BodyWriter:
        return MessageWriter(self._head(conversation), diagnoses[0] if diagnoses else None)

    def streamed(self, conversation: Conversation, began: int, diagnoses: Sequence[Diagnosis] | None) -> StreamWriter:
        return MessageStreamWriter(self._head(conversation), diagnoses[0] if diagnoses else None)

    def _head(self, conversation: Conversation) -> MessageHead:
        read = self._read
        return MessageHead(
            conversation.run_id, self._request_id, self.request.model, read.shows_thinking, read.shows_calls
        )
