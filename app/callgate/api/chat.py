"""The face of Chat Completions."""

import time
from collections.abc import Sequence

from callgate.api.answers import BodyWriter, StreamWriter, Work
from callgate.api.conversation import Conversation
from callgate.api.middleware import RequestContext
from callgate.api.openai_writers import AnswerHead, ChoicesChunkWriter, ChoicesWriter, ChunkWriter, CompletionWriter
from callgate.api.requests import ChatRequest, read_chat_request
from callgate.api.trace import TraceWriter
from callgate.config.schema import Config
from callgate.conversation.diagnosis import Diagnosis
from callgate.recorder.row import RunRow
from callgate.telemetry.logs import masked


class ChatFace:
    """`POST /v1/chat/completions`."""

    route = "chat"

    async def read(self, body: bytes, context: RequestContext, config: Config) -> "ChatExchange":
        limits = config.limits
        return ChatExchange(read_chat_request(body, context.headers, limits.messages, limits.json_depth))


class ChatExchange:
    """One chat, answered as a chat.completion or in its chunks."""

    __slots__ = ("request",)

    def __init__(self, request: ChatRequest) -> None:
        self.request = request

    def work(self, conversation: Conversation) -> Work:
        return conversation.work

    def whole(self, conversation: Conversation, began: int, diagnoses: Sequence[Diagnosis] | None) -> BodyWriter:
        head, n = self._head(conversation, began), self.request.n
        return (
            CompletionWriter(head, diagnoses[0] if diagnoses else None) if n == 1 else ChoicesWriter(head, diagnoses, n)
        )

    def streamed(self, conversation: Conversation, began: int, diagnoses: Sequence[Diagnosis] | None) -> StreamWriter:
        request, head = self.request, self._head(conversation, began)
        if request.n > 1:
            return ChoicesChunkWriter(head, diagnoses, request.include_usage, request.n)
        chunks = ChunkWriter(head, diagnoses[0] if diagnoses else None, request.include_usage)
        if request.tool_events == "trace":
            return TraceWriter(chunks, RunRow(conversation.run_id, time.time()), masked)
        return chunks

    def _head(self, conversation: Conversation, began: int) -> AnswerHead:
        request = self.request
        return AnswerHead(conversation.run_id, began, request.model, request.tool_events or "off", request.legacy)
