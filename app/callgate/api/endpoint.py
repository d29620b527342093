"""The endpoint of all faces: reads a request, routes it and answers it.

An ASGI callable, because FastAPI's handling of a function costs more than all of this, and hides when the client disconnects.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec
from starlette.types import Receive, Scope, Send

from callgate.api import recording
from callgate.api.answer_keepers import LastTurnKeeper, WholeStreamKeeper
from callgate.api.answers import AnswerHeaders, AnswerKeeper, ClientDisconnected, EventStream, Pulse, WholeAnswer
from callgate.api.bodies import check_body, counted_fast, opened, read_counted
from callgate.api.chat_request import SAYS_NOTHING, ChatRequest
from callgate.api.conversation import Conversation
from callgate.api.delivery import delivery_of
from callgate.api.errors import TAKEN_OVER
from callgate.api.faces import ATTACHED, Face, FaceExchange
from callgate.api.guarded_bodies import check_not_blocked, judged_body
from callgate.api.judged_request import judged_request
from callgate.api.left_out import FieldsLeftOut, note_hosted
from callgate.api.middleware import RequestContext
from callgate.api.rights import Capability, anything, let_in_again, send_while_allowed
from callgate.api.run_ports import (
    LOST_KEY,
    WELL,
    Ended,
    KeptRun,
    RunRequest,
    Runs,
    RunStart,
    TakenOver,
    no_background,
    not_durable,
)
from callgate.callers.admission import Place
from callgate.callers.caller import NOBODY, Caller, Principal, account_of, owner_name
from callgate.callers.principals import principal_of
from callgate.conversation.diagnosis import Diagnosis
from callgate.conversation.events import Attempt
from callgate.conversation.ids import new_run_id
from callgate.runtime.manager import RuntimeManager
from callgate.runtime.route import Route
from callgate.runtime.runtime import Runtime
from callgate.untrusted.doors import Opened

NONE_DECLARED: Final[frozenset[str]] = frozenset()


class FaceEndpoint:
    """Answers the requests of one face, whole or streamed."""

    def __init__(
        self, manager: RuntimeManager, face: Face, runs: Runs, model_in: Callable[[str], str] | None = None
    ) -> None:
        """`model_in` returns the model that a path names, where not the body does."""
        self._manager = manager
        self._model_in = model_in
        self._face = face
        self._runs = runs
        runs.add(type(face).__name__, self)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context: RequestContext = scope["context"]
        context.route = self._face.route
        manager = self._manager
        config = manager.current.config
        if "content-encoding" in context.headers:  # its length was checked by the middleware
            check_body(context.headers, config.limits.body_bytes)
        body = counted_fast(receive, config.limits.body_bytes)
        if body is None:
            body = await read_counted(receive, config.limits.body_bytes, context.hold)
        caller = context.caller
        if caller is None or not context.is_current(manager.current):
            caller = let_in_again(manager, context)
        if manager.current.guarding is not None:
            model = None if self._model_in is None else self._model_in(context.path)
            body = await judged_body(manager.current, context, caller, body, model)
            if not context.is_current(manager.current):  # a hook may have taken its time
                caller = let_in_again(manager, context)
        exchange = await self._face.read(body, context, config)
        servers = exchange.request.tools.servers
        if servers is None and exchange.detached is None and "idempotency-key" not in context.headers:
            await self._answer(context, exchange, caller, None, receive, send)
            return
        if servers is None or not servers.clients:
            await self._answer_or_begin_run(context, exchange, caller, body, receive, send)
            return
        from callgate.api.request_servers import with_secrets  # few requests name any

        if (listening := scope.get("server")) is not None:
            context.own_ports = (listening[1],)
        with with_secrets(servers):
            await self._answer_or_begin_run(context, exchange, caller, body, receive, send)

    async def _answer_or_begin_run(
        self,
        context: RequestContext,
        exchange: FaceExchange,
        caller: Caller,
        body: Opened,
        receive: Receive,
        send: Send,
    ) -> None:
        key = context.headers.get("idempotency-key")
        if key is None and exchange.detached is None:
            await self._answer(context, exchange, caller, None, receive, send)
            return
        servers = exchange.request.tools.servers
        if servers is not None and servers.has_credentials:
            from callgate.api.request_servers import credentials_not_kept

            raise credentials_not_kept()
        await self._answer_by_run(context, exchange, caller, key, body, receive, send)

    async def resume(self, request: RunRequest, caller: Caller, run: KeptRun, receive: Receive, send: Send) -> Ended:
        """Answer a request whose run began in another process."""
        context = RequestContext(request.headers, request.path)
        context.admit(caller, self._manager.current)
        context.route = self._face.route
        exchange = await self._face.read(await opened(request.body), context, self._manager.current.config)
        return await self._answer(context, exchange, caller, run, receive, send)

    async def _answer_by_run(
        self,
        context: RequestContext,
        exchange: FaceExchange,
        caller: Caller,
        key: str | None,
        body: Opened,
        receive: Receive,
        send: Send,
    ) -> None:
        detached = exchange.detached or ATTACHED
        check_not_blocked(self._manager.current, context)
        is_lost_key = key is not None and not self._runs.are_kept
        if detached.needs_ledger and not self._runs.are_kept:
            raise no_background()

        async def answer(run: KeptRun | None, receive: Receive, send: Send) -> Ended:
            return await self._answer(context, exchange, caller, run, receive, send, is_lost_key=is_lost_key)

        start = RunStart(
            owner_name(caller),
            type(self._face).__name__,
            RunRequest.of(context.path, context.headers, detached.run_body or body),
            answer,
            key=key,
            key_scope=context.ids.get("replay_of", ""),
            in_background=exchange.detached is not None,
            hold_place=Place if context.place is None else context.place.handed_on,
            error_body=context.error_body,
            stream_end=exchange.stream_end,
        )
        try:
            run = await self._runs.start(start)

            async def deliver(send: Send) -> None:
                await detached.deliver(run, receive, send)

            # It may be the answer of an earlier request with this key, or go on long after it.
            await send_while_allowed(
                deliver, send, Capability.of(self._manager, context, anything), exchange.stream_end
            )
        except ClientDisconnected:
            context.notes["ending"] = "client_left"
        except asyncio.CancelledError:
            if self._runs.are_kept:
                context.notes["error"] = TAKEN_OVER  # at the end of the drain: another process carries the run on
            raise

    async def _answer(
        self,
        context: RequestContext,
        exchange: FaceExchange,
        caller: Caller,
        run: KeptRun | None,
        receive: Receive,
        send: Send,
        *,
        is_lost_key: bool = False,
    ) -> Ended:
        """`is_lost_key`: its `Idempotency-Key` is forgotten with this process."""
        with self._manager.leased as runtime:
            conversation = self._begin(runtime, context, exchange, caller, run, is_lost_key=is_lost_key)
            route = conversation.route
            request = conversation.request
            began = time.time() if run is None else run.created_at
            if runtime.traces.tracer is not None or "traceparent" in context.headers:
                conversation.trace = runtime.traces.begin(context.headers, conversation.run_id)
            is_wanted = route.is_recorded or conversation.trace is not None or "replay_of" in context.ids
            if is_wanted or "x-callgate-record" in context.headers:
                recording.begin(runtime, route, conversation, context, request, caller, began)
            error = None
            state = "cut_off"
            try:
                answer = self._answer_of(exchange, conversation, int(began))
                if run is not None:
                    await run.begin_work()
                error = await answer.send(receive, send)
                state = "" if error is None else "failed"
            except ClientDisconnected:
                state = "client_left"
                context.notes["ending"] = state
                return Ended(wrote=bool(context.aftermath.started), abandoned=True)
            except (TakenOver, asyncio.CancelledError):
                if run is not None:
                    state = recording.CARRIED_ON
                raise
            finally:
                attempts = conversation.diagnoses[0].failed_attempts
                if error is not None or (attempts and is_unusual(attempts)):
                    recording.keep_unusual(runtime, route, conversation, context, request, caller, began)
                if conversation.recording is not None:
                    recording.end(conversation.recording, runtime, context, state, error)
            wrote = bool(context.aftermath.started)
            if error is not None:
                runtime.metrics.model(route.name, account_of(caller)).failed_request()
                context.notes |= {"error": error.code or error.type, "detail": error.detail}
            elif not wrote:
                return WELL
            return Ended(error, wrote)

    def _begin(
        self,
        runtime: Runtime,
        context: RequestContext,
        exchange: FaceExchange,
        caller: Caller,
        run: KeptRun | None,
        *,
        is_lost_key: bool,
    ) -> Conversation:
        """Return the conversation that answers a request. Raises `ChatError` where the request may not be answered."""
        request = exchange.request
        principal = NOBODY
        if runtime.knows_identities:
            principal = principal_of(caller, request.user(), context.headers)
        route = route_of(runtime, request, caller, principal)
        servers = request.tools.servers
        adds_servers = None
        names_servers = False
        if servers is not None:
            from callgate.api.request_servers import answer_with_servers  # few requests name any

            adds_servers = partial(answer_with_servers, servers)
            names_servers = bool(servers.clients)
        if is_lost_key and (names_servers or (route.server_tools is not None and route.server_tools.writes)):
            raise not_durable()
        if names_servers:
            route = msgspec.structs.replace(route, is_recorded=runtime.recording.records(with_tools=True))
        delivery = delivery_of(request, runtime, route, context, caller)
        context.model = route.name
        notes = context.notes
        notes["model"] = request.model
        notes["stream"] = delivery.stream
        context.aftermath.shows_reasons = runtime.is_for_one_person and bool(caller.anonymous)
        run_id = new_run_id() if run is None else run.id
        context.ids["run_id"] = run_id
        warnings = [*route.warnings, *((LOST_KEY,) if is_lost_key else ())]
        if self._face.adapts_requests:
            request = exchange.request_for(route, warnings.append)
        tools = request.tools
        if tools is not SAYS_NOTHING:
            if tools.choice is not None and not names_servers:
                request.check_choice(route.offers)
            if tools.hosted is not None:
                note_hosted(warnings.append, tools.hosted, route.offers, takes_calls=tools.takes_calls)
            if tools.approval_policies:
                route = route.asking_for(tools.approval_policies)
        judged = judged_request(
            request,
            caller,
            may_select=route.entry.provider_selectors,
            leave_out=FieldsLeftOut(_warnings=warnings).add,
        )
        diagnosis = Diagnosis(
            run_id,
            warnings,
            partial(runtime.access.may_see, caller),
            runtime.prices.of_responder,
            delivery.usage_scope,
            not runtime.diagnostics,
            route.searched,
        )
        diagnoses = [diagnosis]
        if request.n > 1:
            diagnoses += [diagnosis.another() for _ in range(1, request.n)]
        if exchange.replay is not None and exchange.replay.tools is None:
            route = route.asking_first()
        guard = None
        if runtime.guarding is not None:
            guard = runtime.guarding.request(request.model, caller, run_id)
        return Conversation(
            run_id,
            runtime,
            route,
            self._manager,
            context,
            request,
            judged,
            delivery,
            caller,
            principal,
            AnswerHeaders(run_id, context.aftermath, warnings),
            diagnoses,
            run,
            exchange.replay,
            guard,
            adds_servers,
        )

    def _answer_of(self, exchange: FaceExchange, conversation: Conversation, began: int) -> EventStream | WholeAnswer:
        """Return the response of a conversation, streamed or whole as requested."""
        runtime = conversation.runtime
        context = conversation.context
        run = conversation.durable
        is_streamed = conversation.delivery.stream
        diagnoses: Sequence[Diagnosis] | None = None
        # Where diagnostics are off only the sum of the usage is reported, where that is not in the answer itself.
        if runtime.diagnostics or conversation.delivery.usage_scope != "sum":
            diagnoses = conversation.diagnoses
        seconds = runtime.limits.request_seconds
        client_error = context.aftermath.client_error
        if not is_streamed:
            answer = WholeAnswer(
                conversation.answer,
                partial(exchange.whole, conversation, began, diagnoses),
                conversation.headers,
                seconds,
                context.error_body,
                client_error,
            )
            if run is not None or self._face.keeps_answers:
                answer.make_writer()
                answer.keepers = self._keepers(exchange, conversation, None)
            return answer
        whole = None
        if run is not None and run.outlives_process and self._face.stores_whole_stream:
            whole = WholeStreamKeeper(run, exchange.whole(conversation, began, diagnoses), conversation.request.n)
        stream = exchange.streamed(conversation, began, diagnoses)
        server = runtime.config.server
        pulse = Pulse(first=server.first_chunk_seconds, heartbeat=server.heartbeat_seconds)
        handed_over = None
        if run is not None and run.outlives_process:
            handed_over = TakenOver()
        keepers: Sequence[AnswerKeeper] = ()
        if run is not None or self._face.keeps_answers:
            keepers = self._keepers(exchange, conversation, whole)
        return EventStream(
            conversation.answer,
            stream,
            conversation.headers,
            pulse,
            seconds,
            context.error_body,
            handed_over,
            client_error,
            keepers,
        )

    def _keepers(
        self, exchange: FaceExchange, conversation: Conversation, whole: WholeStreamKeeper | None
    ) -> Sequence[AnswerKeeper]:
        """Return what stores something of the answer before its end is sent."""
        run = conversation.durable
        if self._face.keeps_answers:
            of_face = exchange.keeper(conversation)
        else:
            of_face = None
        if run is None and of_face is None:
            return ()
        keepers: list[AnswerKeeper] = []
        if run is not None and (conversation.delivery.stream or of_face is not None):
            keepers.append(LastTurnKeeper(run))  # what others store of the answer has to be what a resumed run says
        if of_face is not None:
            keepers.append(of_face)
        if whole is not None:
            keepers.append(whole)
        return keepers


def route_of(runtime: Runtime, request: ChatRequest, caller: Caller, principal: Principal = NOBODY) -> Route:
    """Return the route of a request, by what its key and the request itself allow, and what servers list for who asks."""
    tools = request.tools
    if principal is NOBODY and tools is SAYS_NOTHING:
        return runtime.choose_plain(request.model, caller)
    return runtime.choose(
        request.model,
        caller,
        wanted_tools=tools.filter,
        tool_choice=tools.choice,
        allowed=tools.allowed,
        client_tools=tools.client_list,
        declared=NONE_DECLARED if tools.hosted is None else tools.hosted.tool_names(),
        unlisted=runtime.unlisted(principal),
    )


def is_unusual(failed_attempts: Sequence[tuple[float, Attempt]]) -> bool:
    """Return whether an attempt failed. A fallback for a deployment that is cooling down is usual."""
    return any(attempt.reason or not attempt.instead_of for _, attempt in failed_attempts)
