"""Runs the conversation of a request: one chat, or one for each choice, with all listeners."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import msgspec
from msgspec.structs import replace

from callgate.api.answers import AnswerHeaders, EmitAny, Work
from callgate.api.chat_request import ONLY_CHAT, SAYS_NOTHING, ChatRequest, Delivery
from callgate.api.choices import chat_side_by_side, for_choice, preloaded
from callgate.api.client_names import under_own_names
from callgate.api.judged_request import JudgedRequest
from callgate.api.middleware import RequestContext
from callgate.api.rights import Capability, RightfulModel, rights_of_chat
from callgate.api.run_ports import KeptChoice, KeptRun
from callgate.callers.caller import ANONYMOUS, Caller, Principal, account_of, owner_name
from callgate.callers.metering import RequestMeter
from callgate.conversation.approved_calls import ClientApprovalToolbox, run_approved
from callgate.conversation.diagnosis import Diagnosis
from callgate.conversation.errors import ChatError, SeparateChoices
from callgate.conversation.events import (
    CANCELLED,
    Attempt,
    CallProgress,
    CallsHandedBack,
    CallStarted,
    ChatEvent,
    ChatFailed,
    Ending,
    ToolsListed,
    TurnStarted,
)
from callgate.conversation.hidden_history import has_calls, without_repeats
from callgate.conversation.ids import new_id
from callgate.conversation.listeners import WITH_TURNS, WITHOUT_TURNS, Handlers, Listener, emit_to_listeners, handles
from callgate.conversation.loop import Rules, converse
from callgate.conversation.only_turn import AnswerRead, BegunModel, BegunTurn, passed_answer_fast, read_answer_fast
from callgate.conversation.ports import Emit, Message, ModelRequest, Toolbox, TurnModel, TurnTexts, emit_nothing
from callgate.conversation.turn_recovery import Recovery
from callgate.policy.judge import names_hosted
from callgate.records.ports import Recording, RunTrace
from callgate.runtime.chat_setup import ChatSetup, RightsNow, ToolsNow, clients_toolbox
from callgate.runtime.manager import RuntimeManager
from callgate.runtime.route import EMPTY_TOOLS_LIST, Route
from callgate.runtime.runtime import Runtime

if TYPE_CHECKING:
    from callgate.runtime.chat_setup import ChatGuard, RequestGuard

UNLIMITED = ANONYMOUS.allowance
"""The allowance of most keys, for a quick comparison."""

new_call_id: Callable[[], str] = partial(new_id, "call")


class Replay(msgspec.Struct, frozen=True):
    """How a recorded run is replayed."""

    tools: Toolbox | None
    """The tools of the recording; None for ours, which need an approval unless they are read-only."""
    wrap: Callable[["Conversation", Work], Work]
    """Wraps the work, to stop at a call that is not in the recording."""


class Conversation(msgspec.Struct, eq=False):
    """Answers one request, within the limits of its key and its model.

    Where none of our tools is offered the request may be passed through, with all choices in one chat; otherwise each choice
    has a chat of its own.
    """

    run_id: str
    runtime: Runtime
    route: Route
    manager: RuntimeManager
    context: RequestContext
    request: ChatRequest
    judged: JudgedRequest
    """The same, of which the loop and the model are given what they need."""
    delivery: Delivery
    """How its answer is sent: as the request, its key and its model say."""
    caller: Caller
    principal: Principal
    """On whose behalf its tools are called."""
    headers: AnswerHeaders
    diagnoses: Sequence[Diagnosis]
    """One for each choice."""
    durable: KeptRun | None
    """What keeps the run, where it outlives its process."""
    replay: Replay | None
    guard: "RequestGuard | None"
    """The guardrails that look at it, where there are any."""
    adds_servers: Callable[["Conversation", Work, EmitAny], Awaitable[None]] | None
    """Does the work with the tools of the servers that the request names; None where it names none."""
    recording: Recording | None = None
    trace: RunTrace | None = None
    meter: RequestMeter | None = None
    lists: Sequence[ToolsListed] = ()
    """The tools of servers that the request names, for its client."""

    def answer(self, emit: EmitAny) -> Awaitable[None]:
        """Answer the request. Events of several choices are emitted as `ForChoice`."""
        if self._is_plain():
            if self.recording is None and self.request.origin.original is None and self._may_pass():
                return self._pass_fast(emit)
            if self._is_plainly_read():
                return self._read_fast(emit)
        if self.replay is not None:
            return self.replay.wrap(self, self._answer_limited)(emit)
        return self._answer_limited(emit)

    def _is_plain(self) -> bool:
        """Return whether the request is a chat for one whole answer, which nothing limits, and of which nobody hears but the recorder and
        the usual listeners, who ask for nothing before its end."""
        request = self.request
        return (
            request.n == 1
            and not self.delivery.stream
            and self.route.places is None
            and not self._is_metered()
            and self.guard is None
            and self.durable is None
            and self.replay is None
            and self.adds_servers is None
            and (request.tools is SAYS_NOTHING or (not request.tools.own_names and request.tools.hosted is None))
        )

    def _is_plainly_read(self) -> bool:
        """Return whether a plain request is offered tools that need no looking at its history, and is not about them."""
        request = self.request
        return (
            self.route.is_plainly_read
            and self.manager.current is self.runtime  # else its rights are asked first
            and (request.tools is SAYS_NOTHING or request.tools == SAYS_NOTHING)
            and (request.origin is ONLY_CHAT or not request.origin.has_past_calls())
            and not self.lists
            and request.context is None
            and request.outline.stream_options is None
            and (self.route.entry.format_with_tools or "response_format" not in request.normalized)
            and self.delivery.tool_events != "trace"
        )

    def _is_metered(self) -> bool:
        caller = self.caller
        return caller.allowance is not UNLIMITED and (caller.allowance.is_metered or caller.person is not None)

    def _answer_limited(self, emit: EmitAny) -> Awaitable[None]:
        """Answer within the limits of the key and the model."""
        work: Work = self._answer if self.request.n == 1 else self._answer_choices
        if self.adds_servers is not None:
            work = partial(self.adds_servers, self, work)
        if self._is_metered():
            work = partial(self._metered, work)
        if self.route.places is not None:
            work = partial(self._placed, work)
        return work(emit)

    async def _placed(self, work: Work, emit: EmitAny) -> None:
        with await self.runtime.place_at(self.request.model):
            self._rights().ask()  # the key may have ended while it was waited for
            await work(emit)

    async def _metered(self, work: Work, emit: EmitAny) -> None:
        """Do the work within the key's allowance."""
        request = self.request
        longest = request.longest_answer()
        answers = max(request.n, request.answers_to_choose_from())
        named = request.named()
        # On Responses a provider shows each use, and is told of no tool that it would not run.
        hosted = "input" not in named.fields and names_hosted(named)
        meter = self.runtime.meter(self.caller, request.model, request.prompt_bytes(), longest, answers, hosted=hosted)
        self.meter = meter
        self.headers.meter = meter
        async with meter:
            await work(emit)

    def _answer(self, emit: EmitAny) -> Awaitable[None]:
        return self._chat(0, self.route.model, emit, passes_through=self._may_pass())

    async def _pass_fast(self, emit: Emit) -> None:
        """Answer with a provider's own bytes. Equals `_chat` for every plain request, or lets it do the work with the answer that has
        begun."""
        try:
            passed = await passed_answer_fast(
                self.judged.passed_through(), self.route.model, partial(self._emit_seldom, emit)
            )
        except BaseException as failure:
            await self._tell_of_failure(failure, partial(self._emit_seldom, emit_nothing))
            raise
        if isinstance(passed, BegunModel):
            await self._chat(0, passed, emit, passes_through=True)
            return
        self.diagnoses[0].keep_passed(passed)
        self.runtime.only_answers.tell_passed(passed, self.route.name, account_of(self.caller), self.run_id)
        self._note_ending(passed.ending)
        await emit(passed)

    async def _read_fast(self, emit: Emit) -> None:
        """Answer with what the model says in its first turn, without what only calls need. Equals `_chat` for every request that is plainly
        read and an answer of text, or lets it do the work with the answer that has begun."""
        request = self.request
        history = request.read_history()
        server_tools = self.route.server_tools
        assert server_tools is not None, "the request is plainly read"
        if has_calls(history):
            await self._chat(0, self.route.model, emit)
            return
        self._prepare_aftermath()
        texts: TurnTexts | None = None
        if self.delivery.every_event:
            await emit(TurnStarted(0))
        if self.recording is not None:
            self.recording.note(0, TurnStarted(0))
            if self.recording.policy.content_bytes is not None:
                texts = self.recording.turn_texts(0, history)
        asked = ModelRequest(
            history,
            server_tools.definitions,
            None,
            self.judged.params(),
            stream=False,
            original=self.judged.original,
            leave_out=self.judged.leave_out,
        )
        answer: AnswerRead | BegunModel
        try:
            answer = await read_answer_fast(asked, self.route.model, partial(self._emit_seldom, emit), texts)
            if type(answer) is AnswerRead:
                await self._tell_read(answer, emit)
        except BaseException as failure:
            await self._tell_of_failure(failure, partial(self._emit_seldom, emit_nothing))
            raise
        if isinstance(answer, BegunModel):
            await self._chat(0, answer, emit, begun=BegunTurn(asked, texts, answer))

    async def _tell_read(self, answer: AnswerRead, emit: Emit) -> None:
        turn_ended = answer.turn_ended
        chat_ended = answer.chat_ended
        if self.recording is not None:
            self.recording.note(0, turn_ended)
            self.recording.note(0, chat_ended)
        diagnosis = self.diagnoses[0]
        diagnosis.keep(turn_ended)
        diagnosis.keep(chat_ended)
        ending = chat_ended.ending
        self.runtime.only_answers.tell_read(turn_ended.answer, ending, self.route.name, account_of(self.caller))
        await emit(answer.output)
        if self.delivery.every_event:
            await emit(turn_ended)
        await emit(chat_ended)
        self._note_ending(ending)

    async def _tell_of_failure(
        self, failure: BaseException, tell: Emit, choice: int = 0, begun: BegunTurn | None = None
    ) -> None:
        """Tell that a chat has failed, unless it had ended: what fails behind that, such as storing its answer, does not end it again."""
        if begun is not None and (turn_ended := await begun.abandoned()) is not None:
            await tell(turn_ended)
        if not self.diagnoses[choice].has_ended():
            await tell(ChatFailed(_reason(failure)))

    def _emit_seldom(self, emit: Emit, event: ChatEvent) -> Awaitable[None]:
        """Emit one of the few events beside the usual ones, to listeners that are made for it."""
        listeners = self._listeners(0, 1)
        if self.route.server_tools is not None:
            listeners.append(WriteNote(_context=self.context, _choice=0))
        return emit_to_listeners(listeners, emit)(event)

    def _note_ending(self, ending: Ending) -> None:
        """Note how the chat ended, for the request's line in the log."""
        notes = self.context.notes
        notes["ending"] = str(ending.kind)
        if ending.note:
            notes["note"] = ending.note

    def _may_pass(self) -> bool:
        """Return whether the request may be passed through. Not a stream that is also stored in one piece, nor where the answer has
        to say that our tools were held back."""
        if self.guard is not None and self.guard.hooks.looks_behind_requests:
            return False  # a hook looks at the answer, which is read for it
        if self.recording is not None and self.context.headers.get("x-callgate-record") == "own":
            return False  # who looks at it afterwards looks for its text, which is read where it does not pass through
        if (
            self.route.server_tools
            or not self.request.may_pass
            or self.request.context is not None
            or EMPTY_TOOLS_LIST in self.route.warnings
        ):
            return False
        return self.durable is None or not self.durable.outlives_process or not self.delivery.stream

    async def _answer_choices(self, emit: EmitAny) -> None:
        model = self.route.model
        models: Sequence[TurnModel] = [model] * self.request.n
        if self._may_pass():
            try:
                await self._chat(0, model, for_choice(0, emit), passes_through=True)
            except SeparateChoices as separate:
                if separate.answers:
                    models = preloaded(self.route.name, separate.answers)
                if self.meter is not None:
                    self.meter.begin_again()
            else:
                return
        await chat_side_by_side(models, lambda choice, model: self._chat(choice, model, for_choice(choice, emit)))

    async def _chat(
        self,
        choice: int,
        model: TurnModel,
        emit: Emit,
        *,
        passes_through: bool = False,
        begun: BegunTurn | None = None,
    ) -> None:
        """Run one chat with all its listeners. `begun`: its first turn, of which the model has begun the answer."""
        request = self.request
        if request.tools.own_names:
            emit = under_own_names(emit, request.tools.own_names)
        if choice and self.trace is not None:
            self.trace.use(choice)
        history, texts = self._kept_texts(choice, begun)
        rules = self._rules()
        listeners = self._listeners(choice, request.n if passes_through else 1)
        if request.context is not None:
            model = self.runtime.models.with_summaries(model)
        guard: ChatGuard | None = None
        if self.guard is not None:
            guard = self.guard.chat(listeners, emit)
            model = guard.model(model)
        for listed in self.lists:
            await emit_to_listeners(listeners, emit)(listed)
        try:
            if guard is not None:
                await self._tell_of_request(choice, guard)
            if passes_through:
                ending = await converse(
                    self.judged.passed_through(),
                    model,
                    clients_toolbox(request.read_tools),
                    emit_to_listeners(listeners, emit),
                    new_id=new_call_id,
                    rules=rules,
                    texts=texts,
                    say=emit,
                )
            else:
                ending = await self._with_tools(choice, model, history, texts, listeners, emit, rules, guard, begun)
        except SeparateChoices:
            raise  # nothing has happened yet
        except BaseException as failure:
            await self._tell_of_failure(failure, emit_to_listeners(listeners, emit_nothing), choice, begun)
            raise
        notes = self.context.notes
        notes["ending"] = str(ending.kind)
        if ending.note:
            notes["note"] = ending.note

    def _kept_texts(self, choice: int, begun: BegunTurn | None) -> tuple[Sequence[Message] | None, TurnTexts | None]:
        """Return what keeps the texts of a choice, where they are kept, and the history where it was read: to part a long one takes as
        long as all else that is done with it."""
        if begun is not None:
            return begun.request.messages, begun.texts
        recording = self.recording
        if recording is None or recording.policy.content_bytes is None:
            return None, None
        history = self.request.read_history()
        return history, recording.turn_texts(choice, history)

    async def _tell_of_request(self, choice: int, guard: "ChatGuard") -> None:
        """Tell once what hooks said of the request, and raise where they blocked it."""
        if choice == 0:
            await guard.hear(self.context.judged)
        if self.context.blocked is not None:
            raise self.context.blocked

    def _listeners(self, choice: int, answers: int) -> list[Listener]:
        """`answers`: how many the chat makes."""
        listeners: list[Listener] = []
        recording = self.recording
        if recording is not None:
            listeners.append(recording.events_listener(choice))
        listeners.append(self.diagnoses[choice])
        listeners += self.runtime.listeners(self.route.name, self.run_id, self.caller)
        if self.meter is not None:
            listeners.append(self.meter.tally(answers))
        return listeners

    def _rules(self) -> Rules:
        request = self.request
        rules = self.runtime.rules
        if request.outline.parallel_tool_calls is False:
            rules = replace(rules, one_call_per_turn=True)
        if self.delivery.tool_events == "trace":
            rules = replace(rules, emit_fragments=self.guard is None or not self.guard.hooks.arguments)
        if request.tools.max_calls is not None:
            rules = replace(rules, max_calls=request.tools.max_calls)
        return rules

    async def _with_tools(
        self,
        choice: int,
        model: TurnModel,
        history: Sequence[Message] | None,
        texts: TurnTexts | None,
        listeners: list[Listener],
        emit: Emit,
        rules: Rules,
        guard: "ChatGuard | None" = None,
        begun: BegunTurn | None = None,
    ) -> Ending:
        request = self.request
        client_tools = request.read_tools()
        if history is None:
            history = request.read_history()
        setup, model = await self._set_up(choice, model, client_tools, guard, was_asked=begun is not None)
        toolbox = setup.toolbox if guard is None else guard.toolbox(setup.toolbox)
        has_tools = self.route.server_tools is not None
        if has_tools and (self.replay is None or self.replay.tools is None):
            self._note_writes(choice, listeners)
        keep = None
        messages = history
        if request.origin.hosted_calls:
            await self._recall_hosted(request)
        if has_tools or request.origin.keeps_hidden:
            keep = partial(self._keep, history)
            if begun is None:  # one that was begun has no calls in its history
                messages = await self._restored(messages, toolbox, listeners)
            await setup.recall(messages)
        toolbox = setup.toolbox
        if request.tools.hosted is not None:
            keep_call = partial(self.manager.conversations.keep_call, owner_of(self.caller, request), self.run_id)
            toolbox = request.tools.limited(toolbox, keep_call)
        if setup.taint is not None:
            toolbox = setup.taint.watch(toolbox, messages)
        if (approvals := request.tools.approvals) is not None:
            toolbox = ClientApprovalToolbox(toolbox, lambda name: approvals.asks(self.route.origin_of(name)))
        if guard is not None:
            toolbox = guard.toolbox(toolbox)
        if approvals is not None:
            await approvals.claim(self.run_id)
            emit_calls = emit_to_listeners(listeners, emit)
            messages = await run_approved(
                messages, approvals.approved, toolbox, emit_calls, most=rules.max_parallel_calls
            )
        context = None
        limit = self.route.entry.clear_results_above
        if request.context is not None or limit is not None:
            prompt = self.runtime.config.compaction.prompt
            context = setup.context(request.context, limit, prompt=prompt, needs_summary=self.durable is not None)
        return await converse(
            self._first_request(messages, setup) if begun is None else begun.request,
            model,
            toolbox,
            emit_to_listeners(listeners, emit, WITH_TURNS if self.delivery.every_event else WITHOUT_TURNS, keep),
            new_id=new_call_id,
            rules=rules,
            sees_images=setup.sees_images,
            format_with_tools=setup.format_with_tools,
            context=context,
            judge=None if guard is None else guard.judge,
            texts=texts,
            say=emit,
            has_begun=begun is not None,
        )

    def _first_request(self, messages: Sequence[Message], setup: ChatSetup) -> ModelRequest:
        """Return the request by which the conversation begins."""
        request = self.request
        options = request.outline.stream_options
        if options is not None and options.include_obfuscation:
            self.judged.leave_out("stream_options.include_obfuscation")  # chunks that are made here are not padded
        tool_choice = request.tools.choice
        if self.route.server_tools is not None and request.tools.choice_among_allowed is not None:
            tool_choice = request.tools.choice_among_allowed  # the tools are narrowed to the allowed ones already
        return ModelRequest(
            messages,
            (),
            tool_choice,
            self.judged.params(),
            self.delivery.stream,
            self.judged.original,
            request.tools.takes_calls,
            leave_out=self.judged.leave_out,
            deferred=setup.deferred,
        )

    def _rights(self, *, was_asked: bool = False) -> Capability[ToolsNow | None]:
        """Return what the chat asks while it runs."""
        return rights_of_chat(
            self.manager,
            self.context,
            self.runtime,
            self.request.model,
            by_name=self.durable is not None,
            was_asked=was_asked,
        )

    async def _set_up(
        self,
        choice: int,
        model: TurnModel,
        client_tools: Sequence[msgspec.Raw],
        guard: "ChatGuard | None" = None,
        *,
        was_asked: bool = False,
    ) -> tuple[ChatSetup, TurnModel]:
        """Return the toolbox of a chat, and the model; both wrapped where its run outlives its process."""
        durable: KeptChoice | None = None
        if self.durable is not None:
            durable = await self.durable.choice(choice)
        request = self.request
        rights: RightsNow | None = None
        if self.route.server_tools is not None:
            capability = self._rights(was_asked=was_asked)
            model = RightfulModel(_model=model, _capability=capability)
            rights = capability.ask
        setup = self.runtime.toolboxes.engage(
            self.route,
            self.caller,
            self.run_id,
            client_tools,
            request.tools.allowed,
            None if durable is None else durable.calls,
            rights,
            None if self.meter is None else self.meter.charge,
            self.principal,
            guard,
        )
        if self.replay is not None and self.replay.tools is not None:
            setup = replace(setup, toolbox=self.replay.tools)
        if durable is not None:
            model, toolbox = durable.chat(model, setup.toolbox)
            setup = replace(setup, toolbox=toolbox)
        return setup, model

    def _note_writes(self, choice: int, listeners: list[Listener]) -> None:
        """Note the tools with side effects that are started, for the error of a failure after them."""
        self._prepare_aftermath()
        listeners.append(WriteNote(_context=self.context, _choice=choice))

    def _prepare_aftermath(self) -> None:
        """Note what an error of this run says, where tools are on offer."""
        aftermath = self.context.aftermath
        aftermath.run_id = self.run_id
        aftermath.sees = self.diagnoses[0].sees

    async def _recall_hosted(self, request: ChatRequest) -> None:
        """Put into the calls of declared tools that came back what is kept of them."""
        calls = request.origin.hosted_calls
        for call in calls:
            call.rename(request.tools.hosted)
        owner = owner_of(self.caller, request)
        await self.manager.conversations.fill(owner, calls, self.runtime.limits.body_bytes)

    async def _restored(
        self, messages: Sequence[Message], toolbox: Toolbox, listeners: Sequence[Listener]
    ) -> Sequence[Message]:
        """Return the history with the turns in it that were hidden from the client. A replay has its whole history."""
        origin = self.request.origin
        if self.replay is None and (origin.hints or has_calls(messages)):
            emit = emit_to_listeners(listeners, emit_nothing)
            recovery = Recovery(toolbox, emit, self.runtime.rules.max_calls_per_turn)
            messages = await self.manager.conversations.with_hidden_turns(
                owner_of(self.caller, self.request),
                messages,
                origin.hints,
                recovery,
                self.runtime.limits.body_bytes,
            )
        if origin.shown_calls:
            messages = without_repeats(messages, origin.shown_calls)
        return messages

    async def _keep(self, history: Sequence[Message], handed: CallsHandedBack) -> CallsHandedBack:
        """Store the hidden turns before the client is sent its calls, because it may return at once."""
        rename = self.delivery.rename_calls
        if rename is not None:
            handed = rename(history, handed)
        return await self.manager.conversations.keep(
            owner_of(self.caller, self.request),
            handed,
            history,
            with_hint=self.runtime.diagnostics and rename is None,
        )


class WriteNote(Listener, msgspec.Struct, eq=False, kw_only=True):
    """Notes the tools with side effects that were started, after their approval if they need one, and the last attempt at a turn."""

    _context: RequestContext
    _choice: int = 0
    _waiting: set[tuple[int, int, str]] = set()

    handlers: ClassVar[Handlers] = {}

    @handles(handlers, CallStarted)
    def _call_started(self, event: CallStarted) -> None:
        if event.writes:
            self._context.aftermath.started[self._choice, event.turn, event.call.id] = event.call.name

    @handles(handlers, CallProgress)
    def _call_progress(self, event: CallProgress) -> None:
        call = (self._choice, event.turn, event.call.id)
        started = self._context.aftermath.started
        if event.waits_for and call in started:
            del started[call]
            self._waiting.add(call)
        elif event.approved and call in self._waiting:
            self._waiting.discard(call)
            started[call] = event.call.name

    @handles(handlers, Attempt)
    def _attempt(self, event: Attempt) -> None:
        self._context.aftermath.last_attempt = event


def owner_of(caller: Caller, request: ChatRequest) -> str:
    """Return the owner of stored things: the key, and the end user that the request names."""
    owner = owner_name(caller)
    end_user = request.end_user()
    if end_user:
        return f"{owner}\0{end_user}"
    return owner


def _reason(failure: BaseException) -> str:
    if isinstance(failure, asyncio.CancelledError):
        return CANCELLED
    if isinstance(failure, ChatError):
        return failure.code or failure.type
    return "server_error"
