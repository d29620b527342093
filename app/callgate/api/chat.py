"""`POST /v1/chat/completions`: reading a chat request, routing it, answering it.

An ASGI callable and not a FastAPI function: a function's machinery costs more than all that is done here, and
it would not tell us when the client leaves.
"""

import time
from functools import partial

from starlette.types import Receive, Scope, Send

from callgate.api import recording
from callgate.api.answers import ClientLeft, EventStream, Pulse, StreamWriter, WholeAnswer
from callgate.api.conversation import Conversation, caller_key
from callgate.api.idempotency import WELL, BeforeTools, Ended, Idempotency
from callgate.api.middleware import RequestContext, context_of
from callgate.api.openai_writers import AnswerHead, ChoicesChunkWriter, ChoicesWriter, ChunkWriter, CompletionWriter
from callgate.api.requests import ChatRequest, check_body, read_body, read_chat_request
from callgate.api.trace import TraceWriter
from callgate.auth.keys import Caller
from callgate.conversation.errors import ChatError
from callgate.recorder.row import RunRow
from callgate.runtime.manager import RuntimeManager
from callgate.runtime.route import check_selectors
from callgate.runtime.runtime import Runtime
from callgate.telemetry.logs import masked


class ChatEndpoint:
    """Answers chat completions, whole or streamed."""

    def __init__(self, manager: RuntimeManager) -> None:
        self._manager = manager
        self._idempotency = Idempotency(manager.claims)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = context_of(scope)
        context.route = "chat"
        caller = context.caller
        assert caller is not None, "the middleware lets nobody in without a caller"
        config = self._manager.current.config
        limits = config.limits
        check_body(context.headers, limits.body_bytes)
        body = await read_body(receive, limits.body_bytes)
        request = read_chat_request(body, context.headers, limits.messages, limits.json_depth)

        key = context.headers.get("idempotency-key")
        if key is None:
            await self._answer(context, request, caller, None, receive, send)
            return
        begin, seconds = partial(self._answer, context, request, caller), config.store.answer_seconds
        try:
            await self._idempotency.answer(caller_key(caller), key, body, begin, seconds, receive, send)
        except ClientLeft:
            context.notes["ending"] = "client_left"

    async def _answer(
        self,
        context: RequestContext,
        request: ChatRequest,
        caller: Caller,
        before_tools: BeforeTools | None,
        receive: Receive,
        send: Send,
    ) -> Ended:
        with self._manager.lease() as runtime:
            route = runtime.choose(
                request.model,
                caller,
                wanted_tools=request.tool_filter,
                tool_choice=request.tool_choice,
                allowed=request.allowed,
            )
            if request.tool_events == "trace" and caller.see == "none" and not runtime.may_see_all(caller):
                raise ChatError(
                    403,
                    "This key may not trace runs (`see: own` or `see: all`).",
                    type="permission_error",
                    code="see_not_allowed",
                )
            check_selectors(route.entry, request.words)
            context.model = route.name
            notes = context.notes
            notes["model"], notes["stream"] = request.model, request.stream
            conversation = Conversation(
                runtime, route, self._manager.conversations, context, request, caller, before_tools
            )
            began = time.time()
            if route.is_recorded:
                conversation.recording = recording.begin(runtime, route, conversation, context, request, caller, began)
            error, state = None, "cut_off"
            try:
                error = await _answer_to(request, conversation, runtime, int(began)).send(receive, send)
                state = "" if error is None else "failed"
            except ClientLeft:
                notes["ending"] = state = "client_left"
                return Ended(wrote=context.wrote, left=True)
            finally:
                if error is not None:
                    runtime.metrics.model(route.name, caller.name).failed += 1
                    if conversation.recording is None and runtime.records_errors:
                        conversation.recording = recording.begin(
                            runtime, route, conversation, context, request, caller, began
                        )
                if conversation.recording is not None:
                    recording.end(conversation.recording, runtime, context, state, error)
            if error is not None:
                notes |= {"error": error.code or error.type, "detail": error.detail}
            elif not context.wrote:
                return WELL
            return Ended(error, context.wrote)


def _answer_to(
    request: ChatRequest, conversation: Conversation, runtime: Runtime, began: int
) -> EventStream | WholeAnswer:
    """The conversation, written in the shape that was asked for."""
    head = AnswerHead(conversation.run_id, began, request.model, request.tool_events, request.legacy)
    work, headers, n, seconds = conversation.work, conversation.headers, request.n, runtime.limits.request_seconds
    diagnoses = conversation.diagnoses if runtime.diagnostics else None
    diagnosis = diagnoses[0] if diagnoses else None
    if not request.stream:
        body = CompletionWriter(head, diagnosis) if n == 1 else ChoicesWriter(head, diagnoses, n)
        return WholeAnswer(work, body, headers, seconds)
    usage = request.include_usage
    stream: StreamWriter
    if n > 1:
        stream = ChoicesChunkWriter(head, diagnoses, usage, n)
    else:
        stream = chunks = ChunkWriter(head, diagnosis, usage)
        if request.tool_events == "trace":
            stream = TraceWriter(chunks, RunRow(conversation.run_id, time.time()), masked)
    server = runtime.config.server
    pulse = Pulse(first=server.first_chunk_seconds, heartbeat=server.heartbeat_seconds)
    return EventStream(work, stream, headers, pulse, seconds)
