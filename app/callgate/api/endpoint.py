"""The endpoint of all faces: reads a request, routes it and answers it.

An ASGI callable, because FastAPI's handling of a function costs more than all of this, and hides when the client disconnects.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.types import Receive, Scope, Send

from callgate.api import recording
from callgate.api.answers import BodyWriter, ClientDisconnected, EventStream, Pulse, WholeAnswer, Work
from callgate.api.conversation import BeforeTools, Conversation
from callgate.api.durable_runs import DurableRuns, RunRequest
from callgate.api.errors import encode
from callgate.api.faces import AnsweredElsewhere, Face, FaceExchange
from callgate.api.followed_run import WELL, Ended
from callgate.api.idempotency import Idempotency, not_durable
from callgate.api.middleware import RequestContext, context_of
from callgate.api.openai_writers import ForChoice
from callgate.api.operator_ids import check_ids
from callgate.api.reported_usage import usage_scope
from callgate.api.requests import check_body, read_body
from callgate.api.rights import seen_by
from callgate.auth.keys import Caller, owner_name
from callgate.conversation.events import ChatEnded
from callgate.runtime.durable_run import TAKEN_OVER, DurableRun, TakenOver
from callgate.runtime.manager import RuntimeManager
from callgate.runtime.route import check_selectors
from callgate.runtime.runtime import Runtime


class FaceEndpoint:
    """Answers the requests of one face, whole or streamed."""

    def __init__(self, manager: RuntimeManager, face: Face, runs: DurableRuns | None = None) -> None:
        """`runs`: the durable runs, if this face has them."""
        self._manager, self._face, self._runs = manager, face, runs
        self._idempotency = Idempotency(manager.claims)
        if runs is not None:
            runs.add(type(face).__name__, self)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = context_of(scope)
        context.route = self._face.route
        caller = context.caller
        assert caller is not None, "the middleware requires a caller here"
        config = self._manager.current.config
        if "content-encoding" in context.headers:  # its length was checked by the middleware
            check_body(context.headers, config.limits.body_bytes)
        body = await read_body(receive, config.limits.body_bytes, context.hold, counted=True)
        try:
            exchange = await self._face.read(body, context, config)
        except AnsweredElsewhere as elsewhere:
            try:
                await elsewhere.app(scope, receive, send)
            except ClientDisconnected:
                context.notes["ending"] = "client_left"
            return

        key = context.headers.get("idempotency-key")
        background, runs = exchange.request.background, self._runs
        if key is None and background is None and not exchange.request.in_background:
            await self._answer(context, exchange, caller, None, None, receive, send)
            return
        if runs is not None and (runs.is_on or background is not None):
            await self._answer_by_run(runs, context, exchange, caller, key, body, receive, send)
            return
        assert key is not None, "only a face that keeps runs takes requests for the background"

        async def begin(before_tools: BeforeTools, receive: Receive, send: Send) -> Ended:
            return await self._answer(context, exchange, caller, before_tools, None, receive, send)

        seconds = config.store.answer_seconds
        # Keys are separate for each face.
        owner = owner_name(caller)
        if self._face.route != "chat":
            owner = f"{owner}\0{self._face.route}\0{context.ids.get('replay_of', '')}"
        try:
            await self._idempotency.answer(owner, key, body, begin, seconds, receive, send, context.error_body)
        except ClientDisconnected:
            context.notes["ending"] = "client_left"

    async def resume(self, request: RunRequest, caller: Caller, run: DurableRun, receive: Receive, send: Send) -> Ended:
        """Answer a request whose run began in another process."""
        context = RequestContext(request.headers, request.path)
        context.caller, context.route = caller, self._face.route
        exchange = await self._face.read(request.body, context, self._manager.current.config)
        return await self._answer(context, exchange, caller, None, run, receive, send)

    async def _answer_by_run(
        self,
        runs: DurableRuns,
        context: RequestContext,
        exchange: FaceExchange,
        caller: Caller,
        key: str | None,
        body: bytes,
        receive: Receive,
        send: Send,
    ) -> None:
        async def begin(run: DurableRun, receive: Receive, send: Send) -> Ended:
            return await self._answer(context, exchange, caller, None, run, receive, send)

        request = exchange.request
        try:
            await runs.answer(
                owner_name(caller),
                type(self._face).__name__,
                RunRequest.of(context.path, context.headers, body),
                begin,
                receive,
                send,
                key=key,
                in_background=request.in_background or request.background is not None,
                error_body=context.error_body,
                stream_end=exchange.stream_end,
                accepted=None if request.stream else request.background,
                begun_before=request.begun_before,
            )
        except ClientDisconnected:
            context.notes["ending"] = "client_left"
        except asyncio.CancelledError:
            context.notes["error"] = TAKEN_OVER  # at the end of the drain: another process carries the run on
            raise

    async def _answer(  # noqa: PLR0912
        self,
        context: RequestContext,
        exchange: FaceExchange,
        caller: Caller,
        before_tools: BeforeTools | None,
        run: DurableRun | None,
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
                client_tools=request.client_tools,
            )
            if (
                before_tools is not None
                and route.server_tools is not None
                and route.server_tools.writes
                and not self._manager.claims.outlive_us
            ):
                raise not_durable()
            if request.tool_events is None:
                request.tool_events = caller.events or route.entry.events
            elif request.tool_events == "trace":
                seen_by(runtime, caller, "trace runs")
            request.usage_scope = usage_scope(context.headers, caller.usage, route.entry.usage)
            check_selectors(route.entry, request.normalized)
            if request.may_have_ids and not route.entry.provider_selectors:
                check_ids(request.fields, dotted=request.original is not None)
            context.model = route.name
            notes = context.notes
            notes["model"], notes["stream"] = request.model, request.stream
            conversation = Conversation(
                runtime, route, self._manager.conversations, context, request, caller, before_tools, run
            )
            began = time.time() if run is None else run.stored.created_at
            if runtime.tracer is not None or "traceparent" in context.headers:
                conversation.trace = runtime.begin_trace(context.headers, conversation.run_id)
            if route.is_recorded or conversation.trace is not None or "replay_of" in context.ids:
                recording.begin(runtime, route, conversation, context, request, caller, began)
            error, state = None, "cut_off"
            try:
                error = await _answer_to(exchange, conversation, context, runtime, int(began), run).send(receive, send)
                state = ""
            except ClientDisconnected:
                notes["ending"] = state = "client_left"
                return Ended(wrote=context.wrote, left=True)
            except (TakenOver, asyncio.CancelledError):
                state = recording.CARRIED_ON if run is not None else state
                raise
            finally:
                attempts = conversation.diagnoses[0].failed_attempts
                # Failed attempts make a request unusual; a fallback for a deployment that is cooling down does not.
                if error is not None or (attempts and any(each.reason or not each.instead_of for _, each in attempts)):
                    recording.keep_unusual(runtime, route, conversation, context, request, caller, began)
                if conversation.recording is not None:
                    recording.end(conversation.recording, runtime, context, state if error is None else "failed", error)
            if error is not None:
                runtime.metrics.model(route.name, caller.name).failed_request()
                notes |= {"error": error.code or error.type, "detail": error.detail}
            elif not context.wrote:
                return WELL
            return Ended(error, context.wrote)


def _answer_to(
    exchange: FaceExchange,
    conversation: Conversation,
    context: RequestContext,
    runtime: Runtime,
    began: int,
    run: DurableRun | None,
) -> EventStream | WholeAnswer:
    """Return the response of a conversation, streamed or whole as requested."""
    diagnoses = conversation.reported_diagnoses
    work, headers, seconds = exchange.work(conversation), conversation.headers, runtime.limits.request_seconds
    if not exchange.request.stream:
        body = exchange.whole(conversation, began, diagnoses)
        return WholeAnswer(work, body, headers, seconds, context.error_body, context.aftermath.client_error)
    if run is not None and context.route != "responses":
        work = _kept_before_its_end(work, run)
    if run is not None and context.route == "chat":
        work = _also_whole(work, exchange.whole(conversation, began, diagnoses), run)
    stream = exchange.streamed(conversation, began, diagnoses)
    server = runtime.config.server
    pulse = Pulse(first=server.first_chunk_seconds, heartbeat=server.heartbeat_seconds)
    handed_over = None if run is None else TakenOver()
    told = context.aftermath.client_error
    return EventStream(work, stream, headers, pulse, seconds, context.error_body, handed_over, told)


def _kept_before_its_end(work: Work, run: DurableRun) -> Work:
    """Wrap work, to store the last turn before the end of the answer is sent, so that a resumed run gives the same answer."""

    async def keep_and_emit(event: Any, choice: int, emit: Callable[[Any], Awaitable[None]]) -> None:
        await run.keep_turns(choice)
        await emit(event)

    async def kept(emit: Callable[[Any], Awaitable[None]]) -> None:
        def emit_kept(event: Any) -> Awaitable[None]:
            choice, chat_event = (event.choice, event.event) if type(event) is ForChoice else (0, event)
            return keep_and_emit(event, choice, emit) if type(chat_event) is ChatEnded else emit(event)

        await work(emit_kept)

    return kept


def _also_whole(work: Work, body: BodyWriter, run: DurableRun) -> Work:
    """Wrap the work of a stream, to store the whole answer as well."""

    async def both(emit: Callable[[Any], Awaitable[None]]) -> None:
        def emit_to_both(event: Any) -> Awaitable[None]:
            body.write(event)
            return emit(event)

        await work(emit_to_both)
        run.whole_body = encode(body.body())

    return both
