"""Turns the events of a chat into those of its recorded run, and adds up their numbers, in one pass.

They have numbers, names, ids and verdicts. Texts of tools are included only for runs whose texts are kept.
"""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, Final, Protocol, TypeAlias

import msgspec

from callgate.calls.outcome import Returned
from callgate.calls.states import BrokenCall, Call, ReadyCall
from callgate.conversation.events import (
    POSTPONED,
    Attempt,
    CallEnded,
    CallProgress,
    CallsHandedBack,
    CallStarted,
    ChatEnded,
    ChatEvent,
    ChatFailed,
    ContextChanged,
    GuardrailJudged,
    Responder,
    ToolsListed,
    TurnAccount,
    TurnEnded,
    TurnStarted,
)
from callgate.conversation.prices import NANO
from callgate.conversation.usage import COLUMNS, MOST_TOKENS, TokenCounts, Usage
from callgate.recorder.hours import HourNote
from callgate.recorder.stored_event import StoredEvent, StoredFacts, run_event
from callgate.recorder.turn_texts import MASKED_BEYOND
from callgate.records.ports import PriceOf
from callgate.records.row import NAME_CHARACTERS, RunEvent, RunRow

Mask: TypeAlias = Callable[[str], str]
"""Masks the secrets in a text."""
Happened: TypeAlias = tuple[float, int, ChatEvent]
"""The time of an event by the monotonic clock, the index of its choice, and the event."""

USAGE_NAMES: Final = 32
"""The most counts that are kept of a provider's usage in a turn."""
PREVIEW_CHARACTERS: Final = 200
"""The kept length of a tool's progress message."""
ANSWER_CHARACTERS: Final = 4_000
"""The kept length of what a person filled into a form."""


class RunContext(Protocol):
    """The properties of a run that its events depend on."""

    @property
    def mask(self) -> Mask: ...

    @property
    def price(self) -> PriceOf: ...

    @property
    def began(self) -> float: ...

    @property
    def has_texts(self) -> bool: ...


def run_events(run: RunContext, happened: Iterable[Happened]) -> list[RunEvent]:
    """Return the recorded form of events, in their order."""
    return [run_event(stored) for stored in read_events(run, RunRow("", 0.0), happened).events]


def read_events(run: RunContext, row: RunRow, happened: Iterable[Happened]) -> "EventReader":
    """Read events, and add them up beside the facts of a row."""
    reader = EventReader(_run=run, row=msgspec.structs.replace(row))
    began = run.began
    read = _READERS
    reader.events = [read[type(event)](reader, moment - began, choice, event) for moment, choice, event in happened]
    reader.finish()
    return reader


class EventReader(msgspec.Struct, eq=False, gc=False, kw_only=True):
    """Reads the events of a run: how they are stored, and their totals: turns, tokens, cost, calls and findings in its row, how the
    calls of each tool ended, and what the totals of its hour need."""

    row: RunRow
    events: list[StoredEvent] = []
    outcomes: dict[str, dict[str, int]] = {}
    """See `RunRow.outcomes`."""
    hour_notes: list[HourNote] = []
    tells_texts: bool = False
    """True once an event tells more to whoever may see the texts."""
    _run: RunContext
    _tokens: Sequence[int] | None = None
    _nano: int = 0
    _tool_nano: int = 0
    """What calls of tools cost."""
    _is_priced: bool = True
    """False once the price of any tokens is unknown."""
    _findings: dict[str, None] = {}
    _tools: dict[str, None] = {}
    _was_retried: bool = False

    def finish(self) -> None:
        """Set what is known only after the last of the events."""
        row = self.row
        if self._was_retried:
            row.attempts = _attempts(self.events)
        tokens = self._tokens
        if tokens is not None:
            row.cost = None
            if self._is_priced:
                row.cost = self._nano / NANO
            for column, place in _COLUMNS:
                if tokens[place]:
                    setattr(row, column, tokens[place])
        if self._tool_nano and (tokens is None or self._is_priced):
            row.cost = (row.cost or 0.0) + self._tool_nano / NANO
        if self._findings:
            row.findings = list(self._findings)
        if self._tools:
            row.tools = list(self._tools)
        row.outcomes = self.outcomes

    # -- one kind of events each

    def turn_started(self, at: float, choice: int, event: TurnStarted) -> StoredEvent:
        return "turn_started", at, choice, event.index, ()

    def turn_ended(self, at: float, choice: int, event: TurnEnded) -> StoredEvent:
        answer = event.answer
        by = answer.by
        seconds = answer.seconds
        first_seconds = answer.first_seconds
        row = self.row
        if not row.turns:
            row.first_seconds = max(at - seconds, 0.0) + first_seconds
        row.turns += 1
        row.attempts += answer.attempts
        row.deployment = by.deployment
        self.hour_notes.append(("answer", by.deployment, "", "", seconds, first_seconds))
        findings: list[str] = []
        if answer.findings:
            findings = [str(finding) for finding in answer.findings]
            self._findings |= dict.fromkeys(findings)
        calls: list[StoredFacts] = []
        if answer.run or answer.handed_back or answer.broken or answer.postponed:
            calls = self._calls(answer)
        usage = None
        counts = answer.counts
        if answer.usage is not None:
            usage = bounded_counts_fast(answer.usage.report)
            if usage is None:
                usage = _bounded_counts(answer.usage.report)
                counts = Usage(usage).counts()
        cost = None
        if counts is not None:
            cost = self._cost(by, counts)
        id = None
        model = None
        if answer.head is not None:
            id = answer.head.id
            model = answer.head.model
        facts: tuple[Any, ...] = (
            seconds,
            answer.reasons,
            findings,
            calls,
            usage,
            answer.lane,
            answer.attempts,
            first_seconds,
            by.model,
            by.deployment,
            by.host,
            id,
            model,
            cost,
        )
        if not answer.reason_is_raw:
            facts = (*facts, True)
        return "turn_ended", at, choice, event.turn, facts

    def _cost(self, by: Responder, counts: TokenCounts) -> float | None:
        """Add the tokens of a turn, and return their cost; None if no price is known."""
        if self._tokens is None:
            self._tokens = counts
        else:
            self._tokens = tuple(map(operator.add, self._tokens, counts))
        price = self._run.price(by)
        if price is None:
            if counts.prompt or counts.completion:
                self._is_priced = False
            return None
        nano = price.of(counts)
        self._nano += nano
        return nano / NANO

    def _calls(self, answer: TurnAccount) -> list[StoredFacts]:
        calls = [self._call(call, "server") for call in answer.run]
        if answer.handed_back:
            calls += [self._call(call, "client") for call in answer.handed_back]
        if answer.broken:
            calls += [self._call(call, None) for call in answer.broken]
        for call in answer.postponed:
            self._count_call(call.name)
            self._add_outcome(call.name, "not_run")
            facts = {"id": call.id, "name": call.name, "owner": "server", "verdict": "ready"}
            calls.append(facts | {"outcome": "not_run", "reason": POSTPONED})
        return calls

    def _count_call(self, name: str | None) -> None:
        self.row.calls += 1
        if name:
            self._tools[name[:NAME_CHARACTERS]] = None

    def _call(self, call: Call, owner: str | None) -> StoredFacts:
        if isinstance(call, ReadyCall):
            self._count_call(call.name)
            if owner == "client":
                self._add_outcome(call.name, "handed_back")
            if call.findings:
                repairs = [str(finding) for finding in call.findings]
                return {"id": call.id, "name": call.name, "owner": owner, "verdict": "ready", "repairs": repairs}
            return call.id, call.name, owner, "ready"
        return self._broken_call(call, owner)

    def _broken_call(self, call: BrokenCall, owner: str | None) -> StoredFacts:
        # A name that a model invented may be a long text.
        name = call.name
        if name is not None:
            name = name[:NAME_CHARACTERS]
        flaw = str(call.flaw)
        if owner is None:
            self.tells_texts = True
            self.row.broken_calls += 1
        else:
            self.row.calls += 1
        if name:
            self._tools[name] = None
        if owner == "client":
            self._add_outcome(name, "handed_back")
        else:
            self._add_outcome(name, flaw)
        self.hour_notes.append(("broken_call", self.row.deployment, name or "", flaw, 0.0, 0.0))
        facts: dict[str, Any] = {"id": call.id, "name": name, "owner": owner, "verdict": "broken", "flaw": flaw}
        if (problem := call.problem) is not None:
            # If no texts are kept, only the expected value: the other fields repeat or name what the model wrote.
            if self._run.has_texts:
                shown = msgspec.structs.asdict(problem) | {"rule": ""}
                facts["problem"] = {name: self._run.mask(text) for name, text in shown.items() if text}
            elif problem.rule:
                facts["problem"] = {"rule": problem.rule}
            else:
                facts["problem"] = {"expected": problem.expected}
        return facts

    def call_started(self, at: float, choice: int, event: CallStarted) -> StoredEvent:
        call = event.call
        return "call_started", at, choice, event.turn, (call.id, call.name, event.writes)

    def call_progress(self, at: float, choice: int, event: CallProgress) -> StoredEvent:
        run = self._run
        self.tells_texts = True
        facts: dict[str, Any] = {"id": event.call.id, "fraction": event.fraction}
        if event.waits_for:
            facts["approval"] = event.waits_for
        elif event.approved:
            facts["approved"] = True
            self._add_decision(facts, event.decided_by, event.reason)
        elif event.asks:
            facts["input"] = event.asks
        elif event.decided_by:
            facts["decision"] = event.message
            self._add_decision(facts, event.decided_by, "")
            if run.has_texts and event.answer:
                facts["answer"] = run.mask(event.answer[:MASKED_BEYOND])[:ANSWER_CHARACTERS]
        elif run.has_texts and event.answer:
            facts["for_user"] = run.mask(event.answer[:MASKED_BEYOND])[:ANSWER_CHARACTERS]
        elif run.has_texts:  # a progress message is text of a tool
            facts["message"] = run.mask(event.message[:MASKED_BEYOND])[:PREVIEW_CHARACTERS]
        return "call_progress", at, choice, event.turn, facts

    def call_ended(self, at: float, choice: int, event: CallEnded) -> StoredEvent:
        outcome = event.outcome
        call = event.call
        seconds = event.seconds
        size = bytes_of(outcome.text)
        if isinstance(outcome, Returned):
            shown = {}
            if outcome.facts is not None:
                shown = outcome.facts.shown()
            if not shown:
                return self.call_returned(at, choice, event.turn, call, seconds, size, outcome.cut_bytes)
            return "call_ended", at, choice, event.turn, self._call_with_facts(event, outcome, size) | shown
        self.hour_notes.append(("failed_call", self.row.deployment, call.name, "", 0.0, 0.0))
        self.hour_notes.append(("call", self.row.deployment, call.name, "", seconds, 0.0))
        self.row.failed_calls += 1
        kind = str(outcome.kind)
        if outcome.decision:
            self._add_outcome(call.name, outcome.decision)
            denied = {"id": call.id, "name": call.name, "seconds": seconds, "outcome": kind, "bytes": size}
            denied["decision"] = outcome.decision
            self._add_decision(denied, outcome.decided_by, outcome.reason)
            return "call_ended", at, choice, event.turn, denied
        self._add_outcome(call.name, kind)
        return "call_ended", at, choice, event.turn, (call.id, call.name, seconds, kind, size)

    def call_returned(
        self, at: float, choice: int, turn: int, call: ReadyCall, seconds: float, size: int, cut_bytes: int = 0
    ) -> StoredEvent:
        """Read the end of a call that returned, with nothing else to say of its result."""
        self.hour_notes.append(("call", self.row.deployment, call.name, "", seconds, 0.0))
        self._add_outcome(call.name, "returned")
        facts: tuple[Any, ...] = (call.id, call.name, seconds, "returned", size)
        if cut_bytes:
            facts = (*facts, cut_bytes)
        return "call_ended", at, choice, turn, facts

    def _call_with_facts(self, event: CallEnded, outcome: Returned, size: int) -> dict[str, Any]:
        facts = outcome.facts
        assert facts is not None, "it has facts"
        name = event.call.name
        self.hour_notes.append(("call", self.row.deployment, name, "", event.seconds, 0.0))
        self._add_outcome(name, "returned")
        self._findings |= dict.fromkeys(facts.findings)
        if facts.nano:
            self._tool_nano += facts.nano
            self.hour_notes.append(("priced_call", "", name, "", facts.nano, 0.0))
        returned = {"id": event.call.id, "name": name, "seconds": event.seconds, "outcome": "returned", "bytes": size}
        if outcome.cut_bytes:
            returned["cut_bytes"] = outcome.cut_bytes
        return returned

    def _add_decision(self, facts: dict[str, Any], by: str, reason: str) -> None:
        """Add who decided about a call, and why."""
        if by:
            facts["by"] = by
        if reason:
            facts["reason"] = self._run.mask(reason)

    def _add_outcome(self, name: str | None, outcome: str) -> None:
        tool = (name or "")[:NAME_CHARACTERS]
        counts = self.outcomes.get(tool)
        if counts is None:
            self.outcomes[tool] = {outcome: 1}
        else:
            counts[outcome] = counts.get(outcome, 0) + 1

    def attempt(self, at: float, choice: int, event: Attempt) -> StoredEvent:
        self._was_retried = True
        facts: dict[str, Any] = {
            "number": event.number,
            "model": event.by.model,
            "deployment": event.by.deployment,
            "host": event.by.host,
            "seconds": event.seconds,
            "status": event.status,
        }
        if event.wait:
            facts["wait"] = event.wait
        if event.reason:
            facts |= {"reason": event.reason, "detail": self._run.mask(event.detail)}
            self.hour_notes.append(("failed_attempt", event.by.deployment, "", "", 0.0, 0.0))
        if event.anyway:
            facts["anyway"] = True
        if event.instead_of:
            facts["instead_of"] = event.instead_of
        return "attempt", at, choice, event.turn, facts

    def context_changed(self, at: float, choice: int, event: ContextChanged) -> StoredEvent:
        facts: dict[str, Any] = {"rule": event.kind}
        if event.failure:
            facts["failure"] = event.failure
        else:
            facts |= {"count": event.count, "tokens": event.tokens}
        if event.is_cut:
            facts["cut"] = True
        return "context_changed", at, choice, event.turn, facts

    def guardrail_judged(self, at: float, choice: int, event: GuardrailJudged) -> StoredEvent:
        facts: dict[str, Any] = {"hook": event.hook, "point": event.point, "verdict": event.verdict}
        if event.tool:
            facts["name"] = event.tool
        if event.call_id:
            facts["id"] = event.call_id
        if event.kinds:
            facts["kinds"] = list(event.kinds)
        if event.reason:
            facts["reason"] = self._run.mask(event.reason[:MASKED_BEYOND])[:PREVIEW_CHARACTERS]
        return "guardrail_judged", at, choice, event.turn, facts

    def tools_listed(self, at: float, choice: int, event: ToolsListed) -> StoredEvent:
        facts: dict[str, Any] = {"server": event.server, "tools": len(event.tools)}
        if event.error:
            facts["error"] = self._run.mask(event.error)
        return "tools_listed", at, choice, None, facts

    def handed_back(self, at: float, choice: int, event: CallsHandedBack) -> StoredEvent:
        calls = [{"id": call.id, "name": call.name} for call in event.calls]
        return "calls_handed_back", at, choice, None, {"calls": calls}

    def chat_ended(self, at: float, choice: int, event: ChatEnded) -> StoredEvent:
        ending = event.ending
        kind = str(ending.kind)
        self.row.state = kind
        self.row.finish_reason = ending.finish_reason
        self.row.note = ending.note
        return "ended", at, choice, None, (kind, ending.finish_reason, ending.note)

    def chat_failed(self, at: float, choice: int, event: ChatFailed) -> StoredEvent:
        return "failed", at, choice, None, {"reason": event.reason}


_COLUMNS: Final = tuple(COLUMNS.items())
_READERS: Final[dict[type, Callable[[EventReader, float, int, Any], StoredEvent]]] = {
    TurnStarted: EventReader.turn_started,
    TurnEnded: EventReader.turn_ended,
    CallStarted: EventReader.call_started,
    CallProgress: EventReader.call_progress,
    CallEnded: EventReader.call_ended,
    Attempt: EventReader.attempt,
    ContextChanged: EventReader.context_changed,
    GuardrailJudged: EventReader.guardrail_judged,
    ToolsListed: EventReader.tools_listed,
    CallsHandedBack: EventReader.handed_back,
    ChatEnded: EventReader.chat_ended,
    ChatFailed: EventReader.chat_failed,
}
RECORDED: Final = tuple(_READERS)
"""The events that are recorded."""


def bytes_of(text: str) -> int:
    """Return the length of a result."""
    if text.isascii():
        return len(text)
    return len(text.encode(errors="replace"))


def _attempts(events: Iterable[StoredEvent]) -> int:
    """Return the number of attempts, including those in turns that did not end."""
    most: dict[tuple[int, int | None], int] = {}
    for event in map(run_event, events):
        number = 0
        if event.kind == "turn_ended":
            number = event.facts["attempts"]
        elif event.kind == "attempt":
            number = event.facts["number"]
        place = (event.choice, event.turn)
        if number > most.get(place, 0):
            most[place] = number
    return sum(most.values())


_CountName: TypeAlias = Annotated[str, msgspec.Meta(max_length=NAME_CHARACTERS)]
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)] | float | bool | None
_Parts: TypeAlias = Annotated[dict[_CountName, _Count], msgspec.Meta(max_length=USAGE_NAMES)]


class _CountedUsage(msgspec.Struct, array_like=True):
    counts: Annotated[dict[_CountName, _Count | _Parts], msgspec.Meta(max_length=USAGE_NAMES)]


def bounded_counts_fast(usage: Mapping[str, Any]) -> dict[str, Any] | None:
    """Equals `_bounded_counts` for every input, or returns None. msgspec checks the usual form in a fifth of the time."""
    try:
        return msgspec.convert((usage,), _CountedUsage).counts
    except msgspec.ValidationError:
        return None


def _bounded_counts(usage: Mapping[str, Any], depth: int = 1) -> dict[str, Any]:
    """Return the numbers of a provider's usage, and those one level below. Other fields are dropped: they may be of any size."""
    counts: dict[str, Any] = {}
    for name, value in islice(usage.items(), USAGE_NAMES):
        if type(value) is int:
            counts[name] = max(min(value, MOST_TOKENS), -MOST_TOKENS)
        elif value is None or type(value) in (float, bool):
            counts[name] = value
        elif depth and isinstance(value, Mapping):
            counts[name] = _bounded_counts(value, depth - 1)
    if len("".join(counts)) > NAME_CHARACTERS * USAGE_NAMES:
        return {name[:NAME_CHARACTERS]: value for name, value in counts.items()}
    return counts
