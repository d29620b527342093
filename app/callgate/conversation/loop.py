"""The conversation loop: asks the model, settles its calls, runs ours, and asks again, until it answers.

`converse` is a plain coroutine that emits events and takes every decision between turns; listeners turn the events into a
stream, a whole answer or a log line. When its caller is cancelled, the model's answer is closed and the tools are stopped,
because all of it runs inside this coroutine.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from callgate.calls.outcome import Failed, FailureKind, Outcome
from callgate.calls.states import BrokenCall, Call, Finding, Flaw, ReadyCall
from callgate.conversation import feedback, raw_json
from callgate.conversation.attempts import Attempts
from callgate.conversation.context import COMPACTION, SUMMARIZED, Compact, ContextKeeper
from callgate.conversation.errors import BrokenOff, ChatError
from callgate.conversation.events import (
    CallsHandedBack,
    CallsNotAlone,
    CallWritten,
    ChatEnded,
    ContextChanged,
    Ending,
    EndingKind,
    Logprobs,
    ModelEvent,
    ModelOutput,
    Passed,
    StreamEnd,
    TextDelta,
    TurnAccount,
    TurnEnded,
    TurnStarted,
    is_for_listeners,
)
from callgate.conversation.finish_words import FinishClass
from callgate.conversation.listeners import NOTHING
from callgate.conversation.model_requests import as_model_request
from callgate.conversation.ports import Emit, ModelRequest, Passthrough, Plan, Toolbox, TurnModel, TurnTexts
from callgate.conversation.preloaded_model import PreloadedAnswer
from callgate.conversation.response_items import ITEMS, run_by_provider, thoughts_in
from callgate.conversation.transcript import Transcript
from callgate.conversation.turn import PassedTurn, Turn, TurnBuilder, TurnJudge
from callgate.conversation.turn_calls import run_calls
from callgate.conversation.usage import Usage, add_usage
from callgate.conversation.whole_turn import whole_turn_fast

JSON_FORMATS = ("json_object", "json_schema")
FORMAT_IS_DUE = "format"
"""The reason for a last turn without tools, where the model takes no `response_format` beside tools."""
NO_PLAN = Plan(ours=(), theirs=(), broken=())
UNKNOWN_REASON = "unknown_finish_reason"
"""The note of a chat that ends because nobody knows how its last turn ended, and calls were left out."""
CUT = frozenset({FinishClass.LENGTH, FinishClass.CONTENT_FILTER})
MOST_NOT_ALONE = 3
"""Consecutive turns whose text goes on behind its calls. The last of them is the answer, as it was written."""


_PASSED_ENDINGS = {
    None: Ending(EndingKind.ANSWERED, "stop"),
    FinishClass.STOP: Ending(EndingKind.ANSWERED, "stop"),
    FinishClass.LENGTH: Ending(EndingKind.ANSWERED, "length"),
    FinishClass.TOOL_CALLS: Ending(EndingKind.HANDED_BACK, "tool_calls"),
    FinishClass.CONTENT_FILTER: Ending(EndingKind.GAVE_UP, "content_filter", "content_filter"),
    FinishClass.ERROR: Ending(EndingKind.GAVE_UP, "stop", "upstream_error"),
}
"""The endings of a passed-through answer; its client was sent the provider's own finish reason. One that is not known says
nothing of a failure."""


class Rules(msgspec.Struct, frozen=True, gc=False):
    """The limits of a chat."""

    max_iterations: int = 10
    """Turns that run tools."""
    max_failed_turns: int = 3
    """Consecutive turns in which every call was broken or failed."""
    max_repeats: int = 3
    """Consecutive turns with the same call and the same result."""
    max_parallel_calls: int = 8
    """Calls of one turn that run at the same time."""
    one_call_per_turn: bool = False
    """Only the first call of a turn is done, ours or the client's; the others are answered without being run."""
    max_calls_per_turn: int = 64
    max_calls: int | None = None
    """Calls of all turns together, where the request sets it."""
    argument_bytes: int = 10_000_000
    """The limit of one call's arguments. A larger call is broken, and its arguments are dropped."""
    max_tokens: int | None = None
    """Tokens of all turns together, as providers report them; after that the model answers without tools."""
    emit_fragments: bool = False
    """Whether fragments of calls are emitted too, for writers that stream calls."""


USUAL_RULES = Rules()


def converse(
    request: ModelRequest | Passthrough,
    model: TurnModel,
    toolbox: Toolbox,
    emit: Emit,
    *,
    new_id: Callable[[], str],
    rules: Rules = USUAL_RULES,
    sees_images: bool = False,
    format_with_tools: bool = True,
    context: ContextKeeper | None = None,
    judge: TurnJudge | None = None,
    texts: TurnTexts | None = None,
    say: Emit | None = None,
    has_begun: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> Coroutine[Any, Any, Ending]:
    """Run a chat from the client's request to its ending, and emit its events.

    `format_with_tools`: whether the model takes a `response_format` beside tools. If not, its text in turns with tools is
    not the answer, which is requested in one more turn without tools. `context`: edits the history before each turn. `judge`:
    judges the calls of each. `texts`: keeps what the model is sent and says. `say`: takes what a model says while it says it, in the
    place of `emit`, where no listener hears of it. `has_begun`: the first turn was told of, and the model gives the answer to this very
    request.
    """
    messages = () if type(request) is Passthrough else request.messages
    transcript = Transcript(messages, sees_images)
    conversation = _Conversation(request, model, toolbox, emit, say or emit, new_id, rules, clock, transcript)
    if not format_with_tools and isinstance(request, ModelRequest):
        conversation.format_kept_back = "response_format" in request.params
    if context is not None:
        conversation.context = context
    if judge is not None:
        conversation.judge = judge
    if texts is not None:
        conversation.texts = texts
    if has_begun:
        conversation.has_begun = True
    return conversation.run()


class _TurnReading(msgspec.Struct, eq=False, kw_only=True):
    """One answer of the model while it is read, and once it has been."""

    _conversation: "_Conversation"
    _may_pass: bool
    _is_emitted: bool
    _has_begun: bool = False
    building: TurnBuilder | None = None
    passed: PassedTurn | None = None
    turn: Turn | None = None
    """The turn of an answer in the usual form that came at once."""
    _whole: Sequence[ModelEvent] = ()
    """The events of that, where its texts are kept."""
    end: StreamEnd = StreamEnd.DONE
    lane: str = ""
    first_seconds: float = 0.0
    """Seconds from the beginning of the turn until the first content, failed attempts and waits included."""
    reason_is_raw: bool = True

    def said(self) -> tuple[str, str]:
        """Return the text and the reasoning that were read; of an answer that is passed on there is none."""
        if self.building is not None:
            return self.building.said()
        return "".join(event.text for event in self._whole if type(event) is TextDelta), ""

    def take_whole(self, events: Sequence[ModelEvent]) -> Awaitable[None]:
        """Take all of an answer at once, and emit it; the caller awaits that."""
        conversation = self._conversation
        turn = whole_turn_fast(events, conversation.toolbox.offer, conversation.rules.argument_bytes)
        if turn is None:
            return self.take(events)
        self.turn = turn
        if conversation.texts is not None:
            self._whole = events
        if not self._is_emitted:
            return NOTHING
        if conversation.held_text is not None:
            events = conversation.hold_text(events)
        return conversation.say(ModelOutput(conversation.index, events))

    def take(self, events: Sequence[ModelEvent]) -> Awaitable[None]:
        """Take a batch, and emit it; the caller awaits that. No coroutine, because every chunk goes through here."""
        conversation = self._conversation
        if self._may_pass and type(piece := events[0]) is Passed:
            if self.passed is None:
                self.passed = PassedTurn()
            if piece.reasons or piece.usage is not None or len(events) > 1:
                self.passed.feed(piece, events)
            return conversation.say(piece)
        building = self.building
        if building is None:
            self.building = building = conversation.builder()
        building.feed(events)
        if conversation.held_text is None and building.as_written is None:
            shown = events
        else:
            shown = conversation.held_back(events, building)
        if self._is_emitted and (not self._has_begun or is_for_listeners(shown) or conversation.rules.emit_fragments):
            self._has_begun = True
            return conversation.say(ModelOutput(conversation.index, shown))
        return NOTHING


class _Conversation(msgspec.Struct):
    """One running chat: its fixed parts, and what changes from turn to turn."""

    request: ModelRequest | Passthrough
    model: TurnModel
    toolbox: Toolbox
    emit: Emit
    say: Emit
    new_id: Callable[[], str]
    rules: Rules
    clock: Callable[[], float]
    transcript: Transcript

    index: int = 0
    has_begun: bool = False
    """The beginning of the first turn was told already, and the model asked."""
    ran: int = 0
    called: int = 0
    failed_turns: int = 0
    not_alone: int = 0
    """Turns running whose text goes on behind its calls."""
    was_cut: bool = False
    is_cut: bool = False
    """Something of the last turn is missing."""
    is_unended: bool = False
    """The last turn came without a finish reason, from a deployment that sends them."""
    limit: str = ""
    """Why tools are withheld from now on; empty while they are offered."""
    format_kept_back: bool = False
    """The `response_format` is withheld because tools are offered."""
    context: ContextKeeper | None = None
    judge: TurnJudge | None = None
    texts: TurnTexts | None = None
    summaries: int = 0
    """Turns that summarized the conversation."""
    summary_usages: frozenset[int] = frozenset()
    """Which of the usages below are theirs."""
    repeats: dict[tuple[str, str, str], int] = msgspec.field(default_factory=dict)
    usage: Usage | None = None
    """Of all turns so far."""
    turn_usages: tuple[Usage, ...] = ()
    """Of each turn that reported it."""
    held_text: list[ModelEvent] | None = None
    """The text of this turn, where it is emitted only after the turn has ended."""
    held_behind_calls: list[ModelEvent] = []
    """The events of this turn that came when it was known that its text goes on behind its calls."""

    async def run(self) -> Ending:
        while True:
            if self.context is not None and await self._fit(self.context):
                return await self._end(Ending(EndingKind.ANSWERED, "stop", SUMMARIZED), None)
            turn, plan = await self._take_turn()
            if self.context is not None:
                self.context.turn_was_taken()
            if turn.passed:
                ending: Ending | None = passed_ending(
                    turn.winner, turn.unknown_reasons, takes_calls=self.request.takes_calls
                )
            else:
                ending = await self._ending(turn, plan)
            if ending is not None:
                if self.held_text:
                    await self._emit_held(plan)
                return await self._end(ending, turn)
            if not turn.calls:
                continue  # ask again, without this turn in the history
            answers = await self._answer(plan)
            if type(self.request) is Passthrough:
                self.request = as_model_request(self.request)
                self.transcript = replace(self.transcript, messages=self.request.messages)
            self.transcript = self.transcript.after(turn, answers)
            self._update_limits(turn.calls, answers)
            self.index += 1

    async def _end(self, ending: Ending, last: Turn | None) -> Ending:
        history = self.transcript.messages
        await self.emit(ChatEnded(ending, self.usage, history, last, self.turn_usages, self.summary_usages))
        return ending

    # -- the context

    async def _fit(self, context: ContextKeeper) -> bool:
        """Make the history smaller before a turn, where that is wanted. Returns whether the chat ends with that."""
        context.measure(self.transcript.messages, self.toolbox.definitions())
        messages, changes = context.edited(self.transcript.messages, self.index)
        if changes:
            self.transcript = self.transcript.edited(messages)
            await context.save()
            for change in changes:
                await self.emit(change)
        compact = context.due()
        if compact is None:
            return False
        return await self._summarize(context, compact)

    async def _summarize(self, context: ContextKeeper, compact: Compact) -> bool:
        """Replace the history by a summary of it. Returns whether the chat ends with that."""
        assert isinstance(self.request, ModelRequest), "a request that is passed through has no context"
        asking = context.summary_messages(self.transcript.messages, compact)
        if not asking:
            if compact.is_last and compact.above is None:
                raise ChatError(400, "There is nothing to summarize.", param="input", code="nothing_to_summarize")
            return False
        request = ModelRequest(
            asking,
            stream=False,
            takes_calls=False,
            record_body=self.request.record_body,
            leave_out=self.request.leave_out,
            withheld=self.toolbox.definitions(),
            is_summary=True,
        )
        index = self.index
        summary = ""
        try:
            turn, _ = await self._take(request, is_emitted=False, is_summary=True)
            summary = turn.text.strip()
            failure = _why_no_summary(turn)
        except ChatError as error:
            if context.must_not_fail(compact):
                raise
            failure = error.code or error.type
        self.index += 1
        self.summaries += 1
        if failure:
            if context.must_not_fail(compact):
                raise _no_summary(failure)
            await self.emit(ContextChanged(index, COMPACTION, failure=failure))
            return False
        messages, change = context.compacted(self.transcript.messages, summary, compact, index)
        self.transcript = self.transcript.summarized(messages)
        await self.emit(replace(change, is_cut=turn.winner in CUT))
        return compact.is_last

    # -- one turn

    def _take_turn(self) -> Coroutine[Any, Any, tuple[Turn, Plan]]:
        """Request one turn of the model, and plan its calls."""
        first = self.request
        if type(first) is Passthrough:
            return self._take(first, is_emitted=True)  # no tools of ours are offered, so that there is only this turn
        request = first if self.has_begun else self._next_request(first)
        is_emitted = not (self.format_kept_back and request.tools)
        return self._take(request, is_emitted=is_emitted, holds_text=self._holds_text(request))

    async def _take(
        self,
        request: ModelRequest | Passthrough,
        *,
        is_emitted: bool,
        holds_text: bool = False,
        is_summary: bool = False,
    ) -> tuple[Turn, Plan]:
        """Request one turn. It is requested again while its answers break off before any of them was sent to the client."""
        await self._tell_of_beginning()
        attempts = Attempts(self.index, self.emit, began=self.clock())
        attempt_began = attempts.began
        while True:
            self.held_text = [] if holds_text else None
            failure: ChatError | None = None
            answer = await self._read_answer(request, attempts, is_emitted=is_emitted)
            builder = answer.turn or answer.passed or answer.building or self.builder()
            if type(builder) is Turn:
                turn = builder
            elif (
                type(builder) is TurnBuilder and builder.is_large()
            ):  # parsing its arguments would block the event loop
                turn = await asyncio.to_thread(builder.finish, answer.end)
            else:
                turn = builder.finish(answer.end)
            self._count(turn, is_summary=is_summary)
            if is_summary:
                turn = turn.without_forbidden_calls()
                self.held_behind_calls = []
            elif turn.calls or self.not_alone or self.held_behind_calls:
                turn = await self._alone_or_shown(turn)
            if not turn.broke_off:
                self.is_unended = attempts.succeeded(gave_reason=bool(turn.reasons))
                break
            failure = _broke_off(turn)
            await attempts.broke_off(failure, self.clock() - attempt_began)
            is_shown = is_emitted and request.stream and self._was_shown(turn)
            if is_shown or not await attempts.go_on(failure):
                break
            attempt_began = self.clock()
        if self.judge is not None:
            turn = await self.judge.settled(turn, self.toolbox.offer)
        self.is_cut = self._is_cut(turn)
        plan = self._plan(turn) if turn.calls else NO_PLAN
        counts = None
        if turn.usage is not None:
            counts = turn.usage.counts()
        account = TurnAccount(
            turn.reasons,
            turn.findings,
            plan.ours,
            plan.theirs,
            plan.broken,
            turn.usage,
            self.clock() - attempts.began,
            answer.reason_is_raw,
            turn.prompted,
            turn.not_run,
            answer.lane,
            attempts.by,
            plan.postponed,
            attempts.number,
            answer.first_seconds,
            turn.head,
            turn.unknown_reasons,
            turn.calls,
            self.is_cut,
            counts,
            is_summary,
        )
        if self.context is not None and counts is not None and not is_summary:
            self.context.count(counts.prompt)
        await self.emit(TurnEnded(self.index, account))
        if failure is not None:
            raise _broke_off(turn)  # a new one: an exception keeps the frame alive that it was raised in
        return turn, plan

    def _tell_of_beginning(self) -> Awaitable[None]:
        """Emit that a turn begins, unless that was done."""
        if self.has_begun:
            return NOTHING
        return self.emit(TurnStarted(self.index))

    async def _read_answer(
        self, request: ModelRequest | Passthrough, attempts: Attempts, *, is_emitted: bool
    ) -> _TurnReading:
        """Read one answer of the model, and emit it while it comes."""
        reading = _TurnReading(_conversation=self, _may_pass=type(request) is Passthrough, _is_emitted=is_emitted)
        texts = self.texts
        if texts is not None and not self.has_begun:
            request = texts.begin(request)
        self.has_begun = False
        try:
            async with self.model.send(request, attempts) as answer:
                reading.lane = answer.lane
                reading.first_seconds = self.clock() - attempts.began
                if type(answer) is PreloadedAnswer:
                    events = answer.events
                    answer.events = ()
                    if events:
                        await reading.take_whole(events)
                else:
                    if request.stream:
                        answer.hand_to(reading.take)
                    async for events in answer:
                        await reading.take(events)
                if not answer.reason_is_raw:
                    reading.reason_is_raw = False
        except BrokenOff as broke:
            if broke.transport_error:
                reading.end = StreamEnd.ERROR
            else:
                reading.end = StreamEnd.EOF
        finally:
            if texts is not None:
                texts.end(*reading.said())
        return reading

    def _count(self, turn: Turn, *, is_summary: bool) -> None:
        """Add the usage of a turn. A passed-through answer has that of all its choices."""
        usage = turn.usage
        if usage is None:
            return
        if turn.passed:
            self.usage = usage
            return
        self.usage = add_usage((self.usage, usage))
        if is_summary:
            self.summary_usages |= {len(self.turn_usages)}
        self.turn_usages += (usage,)

    def _was_shown(self, turn: Turn) -> bool:
        """True if the client was sent anything of a turn, so that the model cannot be asked again for it."""
        text = self.held_text is None and (turn.text or turn.logprobs)
        fields = turn.extra_fields
        if ITEMS in fields and not (thoughts_in(fields[ITEMS]) or run_by_provider(fields[ITEMS])):
            fields = {name: value for name, value in fields.items() if name != ITEMS}
        return bool(text or turn.reasoning or fields or turn.passed)

    def _holds_text(self, request: ModelRequest) -> bool:
        """True if text is held until its turn ends: it is not part of an answer in JSON if the turn calls a tool of ours."""
        response_format = request.params.get("response_format")
        if not request.tools or not response_format:
            return False
        form = raw_json.read(response_format)
        if not isinstance(form, dict) or form.get("type") not in JSON_FORMATS:
            return False
        return not all(map(self.toolbox.is_clients, self.toolbox.offer))

    def held_back(self, events: Sequence[ModelEvent], building: TurnBuilder) -> Sequence[ModelEvent]:
        """Hold text that may not be part of the answer, and all that comes with calls that are not alone."""
        if building.as_written is None:
            return self.hold_text(events)
        self.held_behind_calls += events
        return ()

    async def _alone_or_shown(self, turn: Turn) -> Turn:
        """Count the turns running whose text goes on behind its calls. Emit what was held of such a turn; the last of them is
        the answer, with its calls as text. Where calls are forbidden a turn has none."""
        if turn.calls and (not self.request.takes_calls or self._only_imitates(turn)):
            turn = turn.without_forbidden_calls()
        is_answer = False
        if turn.failure is None:
            self.not_alone = self.not_alone + 1 if _goes_on(turn) else 0
            is_answer = self.not_alone >= MOST_NOT_ALONE
        if is_answer:
            turn = turn.without_calls()
        if self.held_behind_calls:
            shown = [*_settled(self.held_behind_calls, is_answer=is_answer)]
            self.held_behind_calls = []
            await self.emit(ModelOutput(self.index, shown if self.held_text is None else self.hold_text(shown)))
        return turn

    def _only_imitates(self, turn: Turn) -> bool:
        """True if a model that calls in text wrote calls like those of its history, where no tool is offered."""
        return turn.prompted is not None and not self.toolbox.offer

    def hold_text(self, events: Sequence[ModelEvent]) -> Sequence[ModelEvent]:
        """Hold text; return what is left."""
        assert self.held_text is not None
        self.held_text += [event for event in events if isinstance(event, TextDelta | Logprobs)]
        return [event for event in events if not isinstance(event, TextDelta | Logprobs)]

    async def _emit_held(self, plan: Plan) -> None:
        """Emit the text that was held, now that the turn is known to be the last."""
        text = self.held_text
        self.held_text = None
        if text and not plan.ours:
            await self.emit(ModelOutput(self.index, text))

    def _plan(self, turn: Turn) -> Plan:
        plan = self.toolbox.plan(turn.calls)
        if turn.as_written:
            plan = _without_broken(plan)
        if self.rules.one_call_per_turn:
            return first_call_of(plan, turn.calls)
        return plan

    def builder(self) -> TurnBuilder:
        return TurnBuilder(offer=self.toolbox.offer, ids=self.new_id, argument_bytes=self.rules.argument_bytes)

    def _next_request(self, first: ModelRequest) -> ModelRequest:
        request = ModelRequest(
            self.transcript.messages,
            self.toolbox.definitions(),
            first.tool_choice,
            first.params,
            first.stream,
            first.original,
            leave_out=first.leave_out,
            deferred=first.deferred,
        )
        if self.limit:
            params = {key: value for key, value in request.params.items() if key != "parallel_tool_calls"}
            return replace(request, tools=(), tool_choice=None, params=params, withheld=request.tools)
        if self.format_kept_back:
            params = {key: value for key, value in request.params.items() if key != "response_format"}
            request = replace(request, params=params)
        if self.index > self.summaries and request.tool_choice not in (None, "none"):
            # A forced choice applies to the first turn: forced again, the model could never answer.
            return replace(request, tool_choice="auto")
        return request

    # -- where a turn leads

    async def _ending(self, turn: Turn, plan: Plan) -> Ending | None:
        """Return the ending of the chat if this turn is the last, or None when its calls are answered and the model is asked
        again."""
        if turn.calls and Finding.END_NOT_SEEN in turn.findings:
            return Ending(EndingKind.GAVE_UP, "length", "end_not_seen")
        if turn.failure is Flaw.CONTENT_FILTER:
            return Ending(EndingKind.GAVE_UP, "content_filter", "content_filter")
        cut = self.is_cut
        if self.limit and self.limit != FORMAT_IS_DUE:
            return Ending(EndingKind.TURN_LIMIT, "length" if cut else "stop", self.limit)
        if turn.unknown_reasons and turn.calls:
            return Ending(EndingKind.GAVE_UP, "length", UNKNOWN_REASON)
        if self.limit or (not turn.calls and not self.format_kept_back):
            return Ending(EndingKind.ANSWERED, "length" if cut else "stop")
        if not turn.calls:
            self.limit = FORMAT_IS_DUE
            self.index += 1
            return None
        if plan.theirs:
            # Ours run first: when the client returns with its answers, all others have to be there.
            answers = await self._answer(plan)
            await self._emit_held(plan)
            await self.emit(CallsHandedBack(plan.theirs, self.transcript.hidden(turn, answers)))
            half = cut and any(isinstance(call, BrokenCall) for call in plan.theirs)
            return Ending(EndingKind.HANDED_BACK, "length" if half else "tool_calls")
        if cut and not plan.ours and not self.not_alone:
            if self.was_cut:
                theirs = tuple(call for call in plan.broken if self.toolbox.is_clients(call.name))
                if theirs:
                    await self._emit_held(plan)
                    await self.emit(CallsHandedBack(theirs))
                return Ending(EndingKind.GAVE_UP, "length", "cut_off_twice")
            self.was_cut = True
        return None

    def _is_cut(self, turn: Turn) -> bool:
        """True if something of the turn is missing: it was cut off at its length or by a filter, its calls were left out, or its
        text ended without the finish reason that this deployment always sends."""
        if turn.unknown_reasons:
            return bool(turn.calls)
        return turn.winner in CUT or (self.is_unended and not turn.calls)

    async def _answer(self, plan: Plan) -> dict[str, Outcome]:
        """Return an answer for every call of the turn: results for ours, explanations for broken ones."""
        answers: dict[str, Outcome] = {}
        for call in plan.broken:
            answers[call.id] = Failed(feedback.explain(call, self.toolbox.offer), FailureKind.NOT_RUN)
        if plan.postponed:
            answers |= _refuse(plan.postponed, feedback.ONE_AT_A_TIME)
        if not plan.ours:
            return answers
        if self.ran >= self.rules.max_iterations:
            self.limit = "max_iterations"
            return answers | _refuse(plan.ours, feedback.LIMIT_REACHED)
        now = plan.ours
        most = self.rules.max_calls_per_turn
        if len(now) > most:
            answers |= _refuse(now[most:], feedback.TOO_MANY_CALLS)
            now = now[:most]
        if self.rules.max_calls is not None:
            remaining = self.rules.max_calls - self.called
            answers |= _refuse(now[remaining:], feedback.ENOUGH_CALLS)
            now = now[:remaining]
            if not now:
                return answers
        self.called += len(now)
        self.ran += 1
        most_at_once = self.rules.max_parallel_calls
        outcomes = await run_calls(now, self.toolbox, self.emit, self.index, most=most_at_once, clock=self.clock)
        return answers | outcomes

    # -- when to stop offering tools

    def _update_limits(self, calls: Iterable[Call], answers: Mapping[str, Outcome]) -> None:
        """Count turns in which every call failed, and repeated calls with the same result."""
        if not self.not_alone:
            self.failed_turns += 1
            for outcome in answers.values():
                if type(outcome) is not Failed:
                    self.failed_turns = 0
            before = self.repeats
            self.repeats = {}
            for call in calls:
                if type(call) is ReadyCall:
                    same = (call.name, call.text, answers[call.id].text)
                    self.repeats[same] = before.get(same, 0) + 1
        if self.limit:
            return
        if self.failed_turns >= self.rules.max_failed_turns:
            self.limit = "failed_turns"
        elif max(self.repeats.values(), default=0) >= self.rules.max_repeats:
            self.limit = "repeated_call"
        elif self.rules.max_tokens is not None and self._spent() >= self.rules.max_tokens:
            self.limit = "tokens"

    def _spent(self) -> int:
        """Return the tokens used so far, by the total or the sum of its parts."""
        if self.usage is None:
            return 0
        return self.usage.total()


def passed_ending(winner: FinishClass | None, unknown: tuple[str, ...], *, takes_calls: bool) -> Ending:
    """Return the ending of a passed-through answer, by the class of its finish reasons and those of them that nobody knows."""
    if unknown:
        return _PASSED_ENDINGS[None]
    if winner is FinishClass.TOOL_CALLS and not takes_calls:
        return _PASSED_ENDINGS[FinishClass.STOP]
    return _PASSED_ENDINGS[winner]


def first_call_of(plan: Plan, calls: Sequence[Call]) -> Plan:
    """Return the plan with only the first of the calls that can be done, ours or the client's; the others are postponed."""
    to_do = {call.id for call in (*plan.ours, *plan.theirs)}
    first = next((call for call in calls if call.id in to_do), None)
    if first is None:
        return plan
    return Plan(
        ours=tuple(call for call in plan.ours if call.id == first.id),
        theirs=tuple(call for call in plan.theirs if call.id == first.id),
        broken=plan.broken,
        postponed=tuple(call for call in calls if call.id in to_do and call.id != first.id),
    )


def _without_broken(plan: Plan) -> Plan:
    """Return the plan of a turn whose text goes on behind its calls: a broken one of the client's is not handed out."""
    broken = tuple(call for call in plan.theirs if isinstance(call, BrokenCall))
    ready = tuple(call for call in plan.theirs if not isinstance(call, BrokenCall))
    return Plan(plan.ours, ready, (*plan.broken, *broken), plan.postponed)


def _goes_on(turn: Turn) -> bool:
    """True if the text of a turn goes on behind a whole call."""
    for call in turn.calls:  # noqa: SIM110 - a generator would cost more than all of it
        if type(call) is BrokenCall and call.flaw is Flaw.NOT_ALONE:
            return True
    return False


def _settled(events: Iterable[ModelEvent], *, is_answer: bool) -> Iterable[ModelEvent]:
    """Yield the last events of a turn that goes on behind its calls: of the answer their text as it was written."""
    for event in events:
        if isinstance(event, CallsNotAlone):
            if is_answer:
                yield TextDelta(event.text)
        elif not (is_answer and isinstance(event, TextDelta | CallWritten)):
            yield event


def _refuse(calls: Iterable[Call], why: str) -> dict[str, Outcome]:
    return {call.id: Failed(why, FailureKind.NOT_RUN) for call in calls}


def _why_no_summary(turn: Turn) -> str:
    """Return why an answer is no summary; empty where it is one. A summary that was cut at its length is one: nothing else would
    make room."""
    if turn.failure is Flaw.CONTENT_FILTER:
        return "content_filter"
    if not turn.text.strip():
        return "empty_summary"
    return ""


def _no_summary(why: str) -> ChatError:
    return ChatError(
        502,
        f"The conversation could not be summarized: the model's answer is no summary ({why}).",
        type="server_error",
        code="compaction_failed",
        retryable=True,
    )


def _broke_off(turn: Turn) -> ChatError:
    if turn.error is None:
        message = "The model's answer broke off before it was finished"
        code = "upstream_broke_off"
        detail = None
    else:
        message = "The model's provider reported an error in the middle of its answer"
        code = "upstream_error"
        detail = turn.error.message
    return ChatError(
        502, f"{message}; nothing of it was run.", type="server_error", code=code, detail=detail, retryable=True
    )
