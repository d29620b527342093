"""Runs the conversation of a request: one chat, or one for each choice, with all listeners."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any, ClassVar, TypeAlias

import msgspec
from msgspec.structs import replace

from callgate.api import legacy
from callgate.api.answers import NOTHING, Work
from callgate.api.choices import chat_side_by_side, for_choice, preloaded
from callgate.api.client_names import under_own_names
from callgate.api.middleware import RequestContext
from callgate.api.openai_writers import function_body
from callgate.api.requests import ChatRequest, passed_through
from callgate.auth.keys import ANONYMOUS, Caller, owner_name
from callgate.auth.meter import Meter
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
    TurnEnded,
    TurnStarted,
)
from callgate.conversation.hidden_history import has_calls, without_repeats
from callgate.conversation.ids import new_id, new_run_id
from callgate.conversation.listeners import Handlers, Listener, handlers_of, handles
from callgate.conversation.loop import Rules, converse
from callgate.conversation.ports import Emit, ModelRequest, Toolbox, TurnModel, emit_nothing
from callgate.conversation.turn_recovery import Recovery
from callgate.recorder.recording import NOTED, RunRecording, RunTrace, TextsListener
from callgate.runtime.chat_setup import clients_toolbox
from callgate.runtime.durable_run import DurableRun
from callgate.runtime.route import EMPTY_TOOLS_LIST, Route
from callgate.runtime.runtime import Runtime
from callgate.stores.conversations import Conversations

UNLIMITED = ANONYMOUS.allowance
"""The allowance of most keys, for a quick comparison."""
BeforeTools: TypeAlias = Callable[[str], Awaitable[None]]
"""Awaited with the id of the run before a tool starts. Where it raises, the tool is not started."""
Keep: TypeAlias = Callable[[CallsHandedBack], Awaitable[CallsHandedBack]]
EmitAny: TypeAlias = Callable[[Any], Awaitable[None]]
"""Takes the events that the writer of the answer handles."""

new_call_id: Callable[[], str] = partial(new_id, "call")
Also: TypeAlias = tuple[tuple[type[ChatEvent], bool], ...]
USUAL: Also = ((TurnStarted, False), (TurnEnded, False), (CallsHandedBack, True))
"""Events that do not go straight to the writer even where no listener handles them, and whether the writer gets them at all;
most writers ignore turns."""
EVERYTHING: Also = ((CallsHandedBack, True),)
NOTED_TOO: Sequence[Also] = [
    (*((kind, True) for kind in NOTED if kind not in dict(also)), *also) for also in (USUAL, EVERYTHING)
]
"""The same where they are recorded."""


class Conversation(msgspec.Struct, eq=False):
    """Answers one request, within the limits of its key and its model.

    Where none of our tools is offered the request may be passed through, with all choices in one chat; otherwise each choice
    has a chat of its own.
    """

    _runtime: Runtime
    _route: Route
    _conversations: Conversations
    _context: RequestContext
    _request: ChatRequest
    _caller: Caller
    _before_tools: BeforeTools | None = None
    """Awaited before a tool is started."""
    _durable: DurableRun | None = None
    """What keeps the run, where it outlives its process."""
    _warnings: tuple[str, ...] = ()
    _meter: Meter | None = None
    _is_replay: bool = False
    _recorded_tools: Toolbox | None = None
    recording: RunRecording | None = None
    trace: RunTrace | None = None
    run_id: str = ""
    diagnoses: list[Diagnosis] = []

    def __post_init__(self) -> None:
        run_id = new_run_id() if self._durable is None else self._durable.id
        self.run_id = self._context.ids["run_id"] = run_id
        self._warnings = warnings = self._route.warnings
        runtime, n = self._runtime, self._request.n
        if self._request.asking:
            self._route = self._route.asking_for(self._request.asking)
        sees, price = partial(runtime.may_see, self._caller), runtime.prices.of_responder
        scope = self._request.usage_scope
        is_usage_only = not runtime.diagnostics
        self.diagnoses.append(Diagnosis(run_id, warnings, sees, price, scope, is_usage_only))
        if n > 1:
            self.diagnoses += [Diagnosis(run_id, warnings, sees, price, scope, is_usage_only) for _ in range(n - 1)]

    def replay(self, tools: Toolbox | None) -> None:
        """Replay a recorded run: with the tools of the recording, or, without `tools`, with ours, which need an approval unless
        they are read-only."""
        self._is_replay, self._recorded_tools = True, tools
        if tools is None:
            self._route = self._route.asking_first()

    @property
    def durable(self) -> DurableRun | None:
        """What keeps the run, where it outlives its process."""
        return self._durable

    @property
    def thinking(self) -> str:
        """How its model takes `thinking` parameters."""
        return self._route.thinking

    @property
    def work(self) -> Work:
        """Return the work that answers the request. Events of several choices are emitted as `ForChoice`."""
        work = self._answer if self._request.n == 1 else self._answer_choices
        if (allowance := self._caller.allowance) is not UNLIMITED and allowance.is_metered:
            work = partial(self._metered, work)
        return work if self._route.places is None else partial(self._placed, work)

    @property
    def reported_diagnoses(self) -> Sequence[Diagnosis] | None:
        """Return what the answer reports, if it does: where diagnostics are off only the sum of the usage, where that is not in
        the answer itself."""
        if self._runtime.diagnostics or self._request.usage_scope != "sum":
            return self.diagnoses
        return None

    @property
    def wrote(self) -> bool:
        """True if a tool with side effects was started."""
        return self._context.wrote

    def source_of(self, tool: str) -> str | None:
        """Return the MCP server of one of our tools; empty for a tool of the config, None for an unknown name."""
        origin = self._route.origin_of(tool)
        return None if origin is None else origin.source

    @property
    def route(self) -> Route:
        return self._route

    @property
    def tools_shown(self) -> str:
        """How the response shows calls of our tools, where its API has a form for them."""
        return self._runtime.tools_shown(self._route, self._caller)

    def warn(self, warning: str) -> None:
        """Add a warning to the response; plain ASCII."""
        self._warnings += (warning,)
        for diagnosis in self.diagnoses:
            diagnosis.warn(warning)

    def headers(self, error: ChatError | None = None) -> Mapping[str, str]:
        """Return the headers of the response that are known by now."""
        headers = {"x-callgate-run": self.run_id}
        if self._meter is not None:
            headers |= self._meter.headers
        if self._warnings:
            headers["x-callgate-warning"] = "; ".join(self._warnings)
        if self._context.wrote:
            # Clients retry failed requests by themselves, which would repeat a tool's side effects.
            headers["x-should-retry"] = "false"
        return headers

    async def _placed(self, work: Work, emit: EmitAny) -> None:
        with await self._runtime.place_at(self._request.model):
            await work(emit)

    async def _metered(self, work: Work, emit: EmitAny) -> None:
        """Do the work within the key's allowance."""
        request = self._request
        longest = _longest_answer(request.params)
        self._meter = self._runtime.meter(self._caller, request.model, request.size, longest, request.n)
        async with self._meter:
            await work(emit)

    def _answer(self, emit: EmitAny) -> Awaitable[None]:
        route = self._route
        return self._chat(0, route.model, emit, may_pass_through=not route.server_tools and self._may_pass)

    @property
    def _may_pass(self) -> bool:
        """True if the request may be passed through. Not a stream that is also stored in one piece, nor where the answer has to say
        that our tools were held back."""
        if EMPTY_TOOLS_LIST in self._route.warnings:
            return False
        return self._request.may_pass and not (self._durable is not None and self._request.stream)

    async def _answer_choices(self, emit: EmitAny) -> None:
        request, route = self._request, self._route
        models: Sequence[TurnModel] = [route.model] * request.n
        if not route.server_tools and self._may_pass:
            try:
                await self._chat(0, route.model, for_choice(0, emit), may_pass_through=True)
            except SeparateChoices as separate:
                if separate.answers:
                    models = preloaded(route.name, separate.answers)
                if self._meter is not None:
                    self._meter.begin_again()
            else:
                return
        await chat_side_by_side(models, lambda choice, model: self._chat(choice, model, for_choice(choice, emit)))

    async def _chat(self, choice: int, model: TurnModel, emit: Emit, *, may_pass_through: bool = False) -> None:
        """Run one chat with all its listeners."""
        request, runtime = self._request, self._runtime
        if request.client_names:
            emit = under_own_names(emit, request.client_names)
        if choice and self.trace is not None:
            self.trace.use(choice)
        listeners = [self.diagnoses[choice], *runtime.listeners(self._route.name, self.run_id, self._caller)]
        if (recording := self.recording) is not None and recording.has_texts:
            listeners.append(TextsListener(recording, choice))
            model = recording.wrap_model(model, choice, request)
        if self._meter is not None:
            listeners.append(self._meter.tally(request.n if may_pass_through else 1))
        rules = runtime.rules
        if request.outline.parallel_tool_calls is False:
            rules = replace(rules, one_call_per_turn=True)
        if request.tool_events == "trace":
            rules = replace(rules, emit_fragments=True)
        if request.max_calls is not None:
            rules = replace(rules, max_calls=request.max_calls)
        try:
            if may_pass_through:
                ending = await converse(
                    passed_through(request),
                    model,
                    clients_toolbox(lambda: request.tools),
                    emit_to_listeners(listeners, emit, recording, choice),
                    new_id=new_call_id,
                    rules=rules,
                )
            else:
                ending = await self._with_tools(choice, model, listeners, emit, rules)
        except SeparateChoices:
            raise  # nothing has happened yet
        except BaseException as failure:
            reason = failure.code or failure.type if isinstance(failure, ChatError) else "server_error"
            failed = ChatFailed(CANCELLED if isinstance(failure, asyncio.CancelledError) else reason)
            await emit_to_listeners(listeners, emit_nothing, recording, choice)(failed)
            raise
        self._context.notes["ending"] = str(ending.kind)
        if ending.note:
            self._context.notes["note"] = ending.note

    async def _with_tools(
        self, choice: int, model: TurnModel, listeners: list[Listener], emit: Emit, rules: Rules
    ) -> Ending:
        request, route = self._request, self._route
        durable = None if self._durable is None else self._durable.choice(choice)
        setup = self._runtime.toolboxes.engage(
            route,
            self._caller,
            self.run_id,
            request.tools,
            request.allowed,
            None if durable is None else durable.ledger,
        )
        messages, has_tools = request.history, route.server_tools is not None
        tool_choice, keep = request.tool_choice, None
        toolbox = self._recorded_tools or setup.toolbox
        if durable is not None:
            model, toolbox = durable.chat(model, toolbox)
        if has_tools and self._recorded_tools is None:
            aftermath = self._context.aftermath
            aftermath.run_id = self.run_id
            aftermath.sees = partial(self._runtime.may_see, self._caller)
            if self._before_tools is None:
                listeners.append(WriteNote(self._context, choice))
            else:
                emit = _awaiting(self._before_tools, self.run_id, WriteNote(self._context, choice), emit)
        emitting = partial(emit_to_listeners, listeners, recording=self.recording, choice=choice)
        if has_tools or request.keeps_hidden:
            keep = self._keep
            if not self._is_replay and (request.hints or has_calls(messages)):  # a replay has its whole history
                messages = await self._conversations.with_hidden_turns(
                    owner_of(self._caller, request),
                    messages,
                    request.hints,
                    Recovery(toolbox, emitting(emit_nothing), rules.max_calls_per_turn),
                    self._runtime.limits.body_bytes,
                )
            if request.shown:
                messages = without_repeats(messages, request.shown)
            await setup.recall(messages)
        if (approvals := request.approvals) is not None:
            toolbox = ClientApprovalToolbox(toolbox, lambda name: approvals.asks(self._route.origin_of(name)))
            await approvals.claim(self.run_id)
            messages = await run_approved(
                messages, approvals.approved, toolbox, emitting(emit), most=rules.max_parallel_calls
            )
        if has_tools and request.mode is not None:
            tool_choice = request.mode  # the tools are narrowed to the allowed ones already
        takes_calls = request.takes_calls
        return await converse(
            ModelRequest(messages, (), tool_choice, request.params, request.stream, request.original, takes_calls),
            model,
            toolbox,
            emitting(emit, keep=keep, everything=request.every_event),
            new_id=new_call_id,
            rules=rules,
            sees_images=setup.sees_images,
            format_with_tools=setup.format_with_tools,
        )

    async def _keep(self, handed: CallsHandedBack) -> CallsHandedBack:
        """Store the hidden turns before the client is sent its calls, because it may return at once."""
        if self._request.legacy:
            # A legacy call has no id; it gets the one that will be derived when the client returns.
            call = handed.calls[0]
            function = function_body(call)
            id = legacy.call_id(self._request.messages, function["name"], function["arguments"])
            hidden = handed.hidden and replace(handed.hidden, names={id: call.id})
            handed = CallsHandedBack((replace(call, id=id),), hidden)
        return await self._conversations.keep(
            owner_of(self._caller, self._request),
            handed,
            self._request.history,
            with_hint=self._runtime.diagnostics and not self._request.legacy,
        )


class WriteNote(Listener, msgspec.Struct, eq=False):
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


def _awaiting(before_tools: BeforeTools, run_id: str, note: WriteNote, emit: Emit) -> Emit:
    async def emit_start(event: ChatEvent) -> None:
        await before_tools(run_id)
        note.handle(event)  # after `before_tools`, because the tool has not started before
        await emit(event)

    def emit_awaiting(event: ChatEvent) -> Awaitable[None]:
        if isinstance(event, CallStarted):
            return emit_start(event)
        note.handle(event)
        return emit(event)

    return emit_awaiting


def owner_of(caller: Caller, request: ChatRequest) -> str:
    """Return the owner of stored things: the key, and the end user that the request names."""
    return f"{owner_name(caller)}\0{request.end_user}" if request.end_user else owner_name(caller)


def emit_to_listeners(
    listeners: Sequence[Listener],
    emit: Emit,
    recording: RunRecording | None = None,
    choice: int = 0,
    *,
    keep: Keep | None = None,
    everything: bool = False,
) -> Emit:
    """Emit to the recording and the listeners, then to the writer. The model's words go to the writer alone: there are thousands of
    them.

    `keep` gets calls that go back to the client before any listener does, and returns the event that is emitted. `everything`:
    the writer writes every event.
    """
    also = (EVERYTHING if everything else USUAL) if recording is None else NOTED_TOO[everything]
    handled = handlers_of(listeners, also).get

    # No coroutine, because every chunk of every answer goes through here; the caller waits for the writer itself.
    def emit_to_all(event: ChatEvent) -> Awaitable[None]:
        if (entry := handled(type(event))) is None:
            return emit(event)  # as with all that a model says
        if keep is not None and type(event) is CallsHandedBack:
            return _keep_and_emit(event, keep, listeners, emit, recording, choice)
        if recording is not None:  # `RunRecording.note`, without a call of a function
            recording.happened.append((monotonic(), choice, event))
            if recording.watchers:
                recording.notify_watchers()
        handlers, is_written = entry
        for place, handle in handlers:
            handle(listeners[place], event)
        return emit(event) if is_written else NOTHING

    return emit_to_all


async def _keep_and_emit(
    handed: CallsHandedBack,
    keep: Keep,
    listeners: Sequence[Listener],
    emit: Emit,
    recording: RunRecording | None,
    choice: int,
) -> None:
    handed = await keep(handed)
    if recording is not None:
        recording.note(choice, handed)
    for listener in listeners:
        listener.handle(handed)
    await emit(handed)


def _longest_answer(params: Mapping[str, Any]) -> int | None:
    """Return the limit of answer tokens that the request sets, if any."""
    for name in ("max_completion_tokens", "max_tokens"):
        given_limit = params.get(name)
        value = msgspec.json.decode(given_limit) if isinstance(given_limit, msgspec.Raw) else given_limit
        if isinstance(value, int) and value > 0:
            return value
    return None
