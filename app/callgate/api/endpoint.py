"""A request of any face: reading it, routing it, answering it.

An ASGI callable and not a FastAPI function: a function's machinery costs more than all that is done here, and
it would not tell us when the client leaves.
"""

import time
from functools import partial

from starlette.types import Receive, Scope, Send

from callgate.api import recording
from callgate.api.answers import ClientLeft, EventStream, Pulse, WholeAnswer
from callgate.api.conversation import Conversation, caller_key
from callgate.api.faces import Exchange, Face
from callgate.api.idempotency import WELL, BeforeTools, Ended, Idempotency, not_durable
from callgate.api.middleware import RequestContext, context_of
from callgate.api.requests import check_body, read_body
from callgate.api.rights import seen_by
from callgate.auth.keys import Caller
from callgate.runtime.manager import RuntimeManager
from callgate.runtime.route import check_selectors
from callgate.runtime.runtime import Runtime


class FaceEndpoint:
    """Answers the requests of one face, whole or streamed."""

    def __init__(self, manager: RuntimeManager, face: Face) -> None:
        self._manager, self._face = manager, face
        self._idempotency = Idempotency(manager.claims)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = context_of(scope)
        context.route = self._face.route
        caller = context.caller
        assert caller is not None, "the middleware lets nobody in without a caller"
        config = self._manager.current.config
        check_body(context.headers, config.limits.body_bytes)
        body = await read_body(receive, config.limits.body_bytes)
        exchange = await self._face.read(body, context, config)

        key = context.headers.get("idempotency-key")
        if key is None:
            await self._answer(context, exchange, caller, None, receive, send)
            return
        begin, seconds = partial(self._answer, context, exchange, caller), config.store.answer_seconds
        # An answer of one face is none in another.
        owner = caller_key(caller)
        if self._face.route != "chat":
            owner = f"{owner}\0{self._face.route}\0{context.ids.get('replay_of', '')}"
        try:
            await self._idempotency.answer(owner, key, body, begin, seconds, receive, send, context.error_body)
        except ClientLeft:
            context.notes["ending"] = "client_left"

    async def _answer(
        self,
        context: RequestContext,
        exchange: Exchange,
        caller: Caller,
        before_tools: BeforeTools | None,
        receive: Receive,
        send: Send,
    ) -> Ended:
        request = exchange.request
        with self._manager.lease() as runtime:
            route = runtime.choose(
                request.model,
                caller,
                wanted_tools=request.tool_filter,
                tool_choice=request.tool_choice,
                allowed=request.allowed,
            )
            tools, claims = route.server_tools, self._manager.claims
            if before_tools is not None and tools is not None and tools.writes and not claims.outlive_us:
                raise not_durable()
            if request.tool_events is None:
                request.tool_events = caller.events or route.entry.events
            elif request.tool_events == "trace":
                seen_by(runtime, caller, "trace runs")
            check_selectors(route.entry, request.words)
            context.model = route.name
            notes = context.notes
            notes["model"], notes["stream"] = request.model, request.stream
            conversation = Conversation(
                runtime, route, self._manager.conversations, context, request, caller, before_tools
            )
            began = time.time()
            if route.is_recorded or "replay_of" in context.ids:
                conversation.recording = recording.begin(runtime, route, conversation, context, request, caller, began)
            error, state = None, "cut_off"
            try:
                error = await _answer_to(exchange, conversation, context, runtime, int(began)).send(receive, send)
                state = "" if error is None else "failed"
            except ClientLeft:
                notes["ending"] = state = "client_left"
                return Ended(wrote=context.wrote, left=True)
            finally:
                if error is not None:
                    runtime.metrics.model(route.name, caller.name).failed_request()
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
    exchange: Exchange, conversation: Conversation, context: RequestContext, runtime: Runtime, began: int
) -> EventStream | WholeAnswer:
    """The conversation, written in the shape that was asked for."""
    diagnoses = conversation.diagnoses if runtime.diagnostics else None
    work, headers, seconds = exchange.work(conversation), conversation.headers, runtime.limits.request_seconds
    if not exchange.request.stream:
        body = exchange.whole(conversation, began, diagnoses)
        return WholeAnswer(work, body, headers, seconds, context.error_body)
    stream = exchange.streamed(conversation, began, diagnoses)
    server = runtime.config.server
    pulse = Pulse(first=server.first_chunk_seconds, heartbeat=server.heartbeat_seconds)
    return EventStream(work, stream, headers, pulse, seconds, context.error_body)
