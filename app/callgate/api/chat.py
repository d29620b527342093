"""The Chat Completions API: reads its requests, and chooses its writers."""

import asyncio
import time
from collections.abc import Sequence
from functools import partial

import msgspec

from callgate.api.answers import BodyWriter, StreamWriter, Work
from callgate.api.conversation import Conversation
from callgate.api.errors import encode
from callgate.api.middleware import RequestContext
from callgate.api.openai_writers import (
    AnswerHead,
    ChoicesChunkWriter,
    ChoicesWriter,
    ChunkWriter,
    CompletionWriter,
    completion_id,
    stream_end,
)
from callgate.api.requests import ChatRequest, read_chat_request
from callgate.api.strict_json import LARGE_BODY
from callgate.api.trace import TraceWriter
from callgate.config.schema import Config
from callgate.conversation.diagnosis import Diagnosis
from callgate.conversation.errors import ChatError
from callgate.ledger.runs import StoredRun
from callgate.recorder.row import RunRow
from callgate.runtime.manager import RuntimeManager
from callgate.telemetry.logs import masked

YES = frozenset({"true", "on", "1"})


class ChatFace:
    """`POST /v1/chat/completions`."""

    route = "chat"

    def __init__(self, manager: RuntimeManager) -> None:
        self._manager = manager

    async def read(self, body: bytes, context: RequestContext, config: Config) -> "ChatExchange":
        limits = config.limits
        given = (body, context.headers, limits.messages, limits.json_depth, self._labels)
        if len(body) <= LARGE_BODY:
            request = read_chat_request(*given)
        else:
            request = await asyncio.to_thread(read_chat_request, *given)
        if "x-callgate-background" in context.headers and context.headers["x-callgate-background"] in YES:
            request.background = partial(in_progress, request.model)
        return ChatExchange(request)

    def _labels(self) -> frozenset[str]:
        return self._manager.current.labels()


class ChatExchange(msgspec.Struct, eq=False):
    """One chat, answered as a chat.completion or its chunks."""

    request: ChatRequest

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

    def stream_end(self, error: ChatError, sent: bytes) -> bytes:
        return stream_end(error)

    def _head(self, conversation: Conversation, began: int) -> AnswerHead:
        request = self.request
        return AnswerHead(
            conversation.run_id,
            began,
            request.model,
            request.tool_events or "off",
            request.legacy,
            request.usage_scope,
        )


def in_progress(model: str, run: StoredRun) -> bytes:
    """Return the chat.completion object of an unfinished run."""
    return encode(
        {
            "id": completion_id(run.id),
            "object": "chat.completion",
            "created": int(run.created_at),
            "model": model,
            "choices": [],
            "x_callgate": {"run": run.id, "state": run.state},
        }
    )
