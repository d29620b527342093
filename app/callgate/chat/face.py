"""The Chat Completions API: reads its requests, and chooses its writers."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from starlette.types import Receive, Send

from callgate.api.answers import BodyWriter, StreamWriter, send_whole
from callgate.api.chat_outline import ChatOutline
from callgate.api.chat_request import ChatRequest
from callgate.api.conversation import Conversation
from callgate.api.errors import encode, openai_stream_end
from callgate.api.faces import Detached, FaceExchange
from callgate.api.middleware import RequestContext
from callgate.api.run_ports import LiveAnswer, follow
from callgate.api.strict_json import LARGE_BODY
from callgate.chat.citing import CitingBody, CitingStream
from callgate.chat.declared import SWITCH, with_stand_ins
from callgate.chat.progress import SHOWS_NOTHING, progress_in
from callgate.chat.request_schema import PlainOutline, are_functions
from callgate.chat.requests import read_chat_request
from callgate.chat.writers import (
    AnswerHead,
    ChoicesChunkWriter,
    ChoicesWriter,
    ChunkWriter,
    CompletionWriter,
    completion_id,
)
from callgate.config.schema.whole import Config
from callgate.conversation.diagnosis import Diagnosis
from callgate.conversation.errors import ChatError
from callgate.runtime.manager import RuntimeManager
from callgate.runtime.stand_ins import stand_ins_of
from callgate.state.runs import StoredRun
from callgate.untrusted.doors import Opened

YES = frozenset({"true", "on", "1"})


class ChatFace:
    """`POST /v1/chat/completions`."""

    route = "chat"
    adapts_requests = False
    keeps_answers = False
    stores_whole_stream = True

    def __init__(self, manager: RuntimeManager) -> None:
        self._manager = manager

    async def read(self, body: Opened, context: RequestContext, config: Config) -> "ChatExchange":
        limits = config.limits
        assert context.caller is not None, "the middleware requires a caller here"
        client_mcp = context.caller.client_mcp
        arguments = (body, context.headers, limits.messages, limits.json_depth, self._labels, client_mcp)
        if len(body) <= LARGE_BODY:
            request = read_chat_request(*arguments)
        else:
            request = await asyncio.to_thread(read_chat_request, *arguments)
        if SWITCH in request.fields or _has_others(request.outline):
            request = self._with_stand_ins(request, context)
        if "x-callgate-background" in context.headers and context.headers["x-callgate-background"] in YES:
            if request.delivery.stream:
                deliver = follow
            else:
                deliver = partial(_send_accepted, request.model)
            return ChatExchange(request, Detached(deliver, needs_ledger=True))
        return ChatExchange(request)

    def _with_stand_ins(self, request: ChatRequest, context: RequestContext) -> ChatRequest:
        caller = context.caller
        assert caller is not None, "the middleware requires a caller here"
        runtime = self._manager.current
        entry = runtime.check_model(request.model, caller)
        return with_stand_ins(
            request, partial(stand_ins_of, runtime.config, runtime.offered, entry, caller, may_pass=True)
        )

    def _labels(self) -> frozenset[str]:
        return self._manager.current.labels()


@dataclass(eq=False)
class ChatExchange(FaceExchange):
    """One chat, answered as a chat.completion or its chunks."""

    request: ChatRequest
    detached: Detached | None = None

    def whole(self, conversation: Conversation, began: int, diagnoses: Sequence[Diagnosis] | None) -> BodyWriter:
        head = _head(conversation, began)
        choices = self.request.n
        writer: ChoicesWriter | CompletionWriter
        if choices > 1:
            writer = ChoicesWriter(head, diagnoses, choices)
        else:
            writer = CompletionWriter(_head=head, _diagnosis=_first(diagnoses))
        if (hosted := self.request.tools.hosted) is not None:
            return CitingBody(writer, hosted.by_name)
        return writer

    def streamed(self, conversation: Conversation, began: int, diagnoses: Sequence[Diagnosis] | None) -> StreamWriter:
        head = _head(conversation, began)
        choices = self.request.n
        include_usage = self.request.delivery.include_usage
        hosted = self.request.tools.hosted
        if choices > 1:
            writer = ChoicesChunkWriter(head, diagnoses, include_usage, choices)
            return writer if hosted is None else CitingStream(writer, hosted.by_name)
        chunks = ChunkWriter(head, _first(diagnoses), include_usage)
        if hosted is not None and conversation.delivery.tool_events != "trace":
            return CitingStream(chunks, hosted.by_name)
        if conversation.delivery.tool_events == "trace":
            return conversation.runtime.recorder.traced(
                chunks, conversation.run_id, conversation.runtime.prices.of_responder
            )
        return chunks

    def stream_end(self, error: ChatError, written: bytes) -> bytes:
        return openai_stream_end(error)


def _has_others(outline: ChatOutline) -> bool:
    """True if there are tools that are no functions of the client's."""
    if outline.tools is None:
        return False
    if isinstance(outline, PlainOutline):
        return not outline.has_functions_only
    return not are_functions(outline.tools)


def _head(conversation: Conversation, began: int) -> AnswerHead:
    delivery = conversation.delivery
    progress = None
    if delivery.tool_events is not None and delivery.tool_events not in SHOWS_NOTHING:
        progress = progress_in(delivery.tool_events, conversation.run_id)
    return AnswerHead(
        conversation.run_id,
        began,
        conversation.request.model,
        progress,
        delivery.rename_calls is not None,
        delivery.usage_scope,
    )


def _first(diagnoses: Sequence[Diagnosis] | None) -> Diagnosis | None:
    if not diagnoses:
        return None
    return diagnoses[0]


async def _send_accepted(model: str, run: LiveAnswer, receive: Receive, send: Send) -> None:
    """Answer that the run goes on in the background; where it was refused, with that."""
    row = await run.wait_for_row()
    if row is None:
        await run.follow(receive, send)
        return
    headers = {"x-callgate-run": row.id, "retry-after": "1"}
    await send_whole(send, 202, in_progress(model, row), headers)


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
