"""One run while it is under way. Each event of its chats is packed when it happens, which takes no longer than to keep it would: its
texts stay behind, and are only kept where texts are.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from time import monotonic
from typing import Annotated, Any, ClassVar, Final, Literal, Protocol, TypeAlias

import msgspec

from callgate.calls.outcome import Returned
from callgate.calls.states import Call, ReadyCall
from callgate.conversation.events import (
    Attempt,
    CallEnded,
    CallProgress,
    CallsHandedBack,
    CallStarted,
    ChatEnded,
    ChatFailed,
    Responder,
    TurnAccount,
    TurnEnded,
    TurnStarted,
)
from callgate.conversation.listeners import Handlers, Listener, handles
from callgate.conversation.ports import Message, TurnModel
from callgate.conversation.prices import MOST_TOKENS, Price
from callgate.http.trace_context import Trace
from callgate.recorder.model import MASKED_BEYOND, RecordedModel, part_of
from callgate.recorder.packed import (
    NAME_CHARACTERS,
    Packed,
    PackedCall,
    PackedCallEnd,
    PackedCallStart,
    PackedEnd,
    PackedEvent,
    PackedRun,
    PackedTurn,
    PackedTurnStart,
    summed_up,
)
from callgate.recorder.row import Kept, RunRow, wire_turn

Mask: TypeAlias = Callable[[str], str]
"""Masks the secrets in a text."""
PriceOf: TypeAlias = Callable[[Responder], Price | None]
"""What who answers costs, as far as it is known without asking anybody."""
RunTrace: TypeAlias = Trace
"""What is known of the trace of a run."""
RunsKept: TypeAlias = Literal["all", "eventful", "off"]
WireKept: TypeAlias = Literal["off", "on_error", "on"]

USAGE_NAMES: Final = 32
"""Of what a provider counts in a turn."""
PLAIN_EVENTS: Final = 64
"""Of a run that is summed up by whoever looks: a list of many of them has to be quick."""
PACKED_AT_ONCE: Final = 500
"""Events that the event loop packs at the end of a run, a third of a millisecond; the thread packs longer runs."""
PREVIEW_CHARACTERS: Final = 200
"""Of what a tool says while it runs: a word for a person, not a result."""


class RecordPolicy(msgspec.Struct, frozen=True):
    """The settings of recording."""

    runs: RunsKept = "all"
    passed: Literal["all", "errors"] = "errors"
    content_bytes: int | None = None
    """How much of each text is kept; None keeps none."""
    wire: WireKept = "off"
    """Whether the bodies of providers' answers are kept with the other texts."""
    keep_days: float = 14.0
    keep_bytes: int = 1024**3
    wire_days: float = 1.0
    slow_seconds: float = 30.0
    """What `eventful` takes for slow."""

    def keeps(self, run: PackedRun) -> bool:
        """Whether a run is kept."""
        if self.runs != "eventful":
            return self.runs == "all"
        row = run.whole_row
        slow = row.seconds is not None and row.seconds > self.slow_seconds
        return bool(row.is_odd or row.calls or row.findings or row.error or slow)


NOT_KEPT: Final = RecordPolicy(runs="off")


class Asked(Protocol):
    """A request."""

    @property
    def history(self) -> Sequence[Message]: ...


def no_price(by: Responder) -> Price | None:
    return None


class RunRecording(msgspec.Struct, eq=False):
    """One run while it is under way."""

    row: RunRow
    """As far as the request knows it; `row_now` adds what its events say."""
    policy: RecordPolicy
    mask: Mask
    price: PriceOf = no_price
    trace: Trace | None = None
    """Where it is exported: what is known of its trace."""
    is_plain: bool = False
    """Whether nothing but its numbers is kept of it, no call of it was broken or failed, and nobody had to be asked again."""
    is_listed: bool = True
    """Whether it is a run for those who look; not where it is recorded for the sake of its spans alone."""
    began: float = msgspec.field(default_factory=monotonic)
    events: list[Packed] = []
    said: dict[str, str] = {}
    weight: int = 0
    """Of the texts; where it waits to be packed, of all of it."""
    watchers: "list[asyncio.Queue[Packed | None]]" = []
    is_kept: bool = True
    """False when the thread has packed it and found nothing worth keeping."""
    is_deleted: bool = False
    """While it waited."""

    @property
    def id(self) -> str:
        return self.row.id

    def listener(self, choice: int) -> "RunListener":
        return RunListener(self, choice, self.began, self.events, self.watchers, self.policy.content_bytes is not None)

    def around(self, model: TurnModel, choice: int, asked: Asked) -> TurnModel:
        """The model that is asked in one choice, where texts are kept; what is said is recorded."""
        policy = self.policy
        assert policy.content_bytes is not None, "nothing of what is said is kept"
        return RecordedModel(model, self, choice, asked.history, policy.content_bytes, wire=policy.wire != "off")

    def say(self, part: str, text: str) -> None:
        """A text that is to be kept, where texts are."""
        if self.policy.content_bytes is not None and text:
            self.said[part] = text
            self.weight += len(text)

    def row_now(self) -> RunRow:
        """Its row, without looking at a text: a list of runs may be a list of many long ones."""
        row = summed_up(self.row, list(self.events))
        if self.policy.content_bytes is not None:
            row.kept = Kept.CONTENT
        return row

    def to_write(self) -> "PackedRun | RunRecording | None":
        """What waits to be written when it has ended: itself where packing it takes long, and None where nothing is kept of it."""
        events = self.events
        if self.is_plain and events and type(ended := events[-1]) is PackedEnd and len(events) <= PLAIN_EVENTS:
            row = self.row
            row.state, row.finish_reason = str(ended.ending), ended.finish_reason
            return PackedRun.plain(row, events)
        if self.policy.content_bytes is not None or self.trace is not None or len(events) > PACKED_AT_ONCE:
            self.weight += 1024 * len(events)
            return self
        run = self.packed()
        return run if self.policy.keeps(run) else None

    def packed(self) -> PackedRun:
        """All of it, its texts masked and cut."""
        events = list(self.events)  # a copy: of a run under way there may be more while it is read
        row = summed_up(self.row, events)
        most = self.policy.content_bytes
        if most is None:
            return PackedRun.of(row, events)
        content, cut = kept_texts(dict(self.said), most, self.mask)
        row.kept = Kept.CUT if any(wire_turn(part) is None for part in cut) else Kept.CONTENT
        if cut:
            events.append(PackedEvent(events[-1].at if events else 0.0, 0, "content_cut", None, {"parts": cut}))
        if self.policy.wire == "on_error" and not row.is_odd:
            content = {part: text for part, text in content.items() if wire_turn(part) is None}
        return PackedRun.of(row, events, content)


def kept_texts(said: Mapping[str, str], most: int, mask: Mask) -> tuple[dict[str, str], list[str]]:
    """Texts as they are kept: masked, and so many bytes of each; and those that were longer."""
    content: dict[str, str] = {}
    cut: list[str] = []
    for part, text in said.items():
        # Masked before it is cut, or the beginning of a secret would stay; and not all of what will be cut anyway.
        encoded = mask(text[: most + MASKED_BEYOND]).encode(errors="replace")
        if len(text) > most + MASKED_BEYOND or len(encoded) > most:
            cut.append(part)
        content[part] = encoded[:most].decode(errors="ignore")
    return content, cut


class RunListener(Listener, msgspec.Struct, eq=False):
    """Packs the events of one chat, for the recording of its run."""

    _recording: RunRecording
    _choice: int
    _began: float
    _events: list[Packed]
    _watchers: "list[asyncio.Queue[Packed | None]]"
    _has_texts: bool

    handlers: ClassVar[Handlers] = {}

    def _show(self) -> None:
        """Show the last event to whoever follows the run."""
        for watcher in self._watchers:
            watcher.put_nowait(self._events[-1])

    def _note_rare(self, kind: str, turn: int | None, facts: Mapping[str, Any]) -> None:
        self._events.append(PackedEvent(monotonic() - self._began, self._choice, kind, turn, facts))
        self._show()

    @handles(handlers, TurnStarted)
    def _turn_started(self, event: TurnStarted) -> None:
        self._events.append(PackedTurnStart(monotonic() - self._began, self._choice, event.index))
        if self._watchers:
            self._show()

    @handles(handlers, TurnEnded)
    def _turn_ended(self, event: TurnEnded) -> None:
        answer = event.answer
        by, usage = answer.by, answer.usage
        self._events.append(
            PackedTurn(
                monotonic() - self._began,
                self._choice,
                event.turn,
                answer.seconds,
                answer.first_seconds,
                answer.attempts,
                answer.lane,
                by.model,
                by.deployment,
                by.host,
                answer.reasons,
                self._calls(answer) if answer.run or answer.handed_back or answer.broken else (),
                _counts(usage) if usage else None,
                self._recording.price(by) if usage else None,
                answer.findings,
                answer.head,
                answer.reason_is_raw,
            )
        )
        if self._watchers:
            self._show()

    def _calls(self, answer: TurnAccount) -> list[PackedCall]:
        calls = list(map(self._call, answer.run))
        if answer.handed_back:
            calls += [self._call(call, "client") for call in answer.handed_back]
        if answer.broken:
            self._recording.is_plain = False
            calls += [self._call(call, None) for call in answer.broken]
        return calls

    def _call(self, call: Call, owner: str | None = "server") -> PackedCall:
        if has_texts := self._has_texts:
            self._recording.say(part_of(self._choice, f"call.{call.id}.arguments"), call.text)
        if isinstance(call, ReadyCall):
            if not call.findings:
                return PackedCall(call.id, call.name, owner)
            if has_texts:
                text = msgspec.json.encode(call.arguments).decode()
                self._recording.say(part_of(self._choice, f"call.{call.id}.read"), text)
            repairs = [str(finding) for finding in call.findings]
            return PackedCall(call.id, call.name, owner, {"verdict": "ready", "repairs": repairs})
        facts: dict[str, Any] = {"verdict": "broken", "flaw": str(call.flaw)}
        if (problem := call.problem) is not None:
            # What was wrong. Without texts only what was expected: all else repeats what the model wrote, or names it.
            if has_texts:
                said = msgspec.structs.asdict(problem) | {"rule": ""}
                facts["problem"] = {name: self._recording.mask(text) for name, text in said.items() if text}
            else:
                facts["problem"] = {"rule": problem.rule} if problem.rule else {"expected": problem.expected}
        # What a model made up for a name may be a whole text.
        return PackedCall(call.id, call.name and call.name[:NAME_CHARACTERS], owner, facts)

    @handles(handlers, CallStarted)
    def _call_started(self, event: CallStarted) -> None:
        call = event.call
        at = monotonic() - self._began
        self._events.append(PackedCallStart(at, self._choice, event.turn, call.id, call.name, event.writes))
        if self._watchers:
            self._show()

    @handles(handlers, CallProgress)
    def _call_progress(self, event: CallProgress) -> None:
        facts: dict[str, Any] = {"id": event.call.id, "fraction": event.fraction}
        if event.waits_for:
            facts["approval"] = event.waits_for
        elif event.approved:
            facts["approved"] = True
        elif self._has_texts:  # what a tool says is content
            facts["message"] = self._recording.mask(event.message[:MASKED_BEYOND])[:PREVIEW_CHARACTERS]
        self._note_rare("call_progress", event.turn, facts)

    @handles(handlers, CallEnded)
    def _call_ended(self, event: CallEnded) -> None:
        call, outcome = event.call, event.outcome
        text = outcome.text
        size = len(text) if text.isascii() else len(text.encode(errors="replace"))
        if self._has_texts:
            self._recording.say(part_of(self._choice, f"call.{call.id}.result"), text)
        if isinstance(outcome, Returned):
            word, cut = "returned", outcome.cut_bytes
        else:
            self._recording.is_plain, word, cut = False, outcome.kind, 0
        at = monotonic() - self._began
        self._events.append(
            PackedCallEnd(at, self._choice, event.turn, call.id, call.name, event.seconds, word, size, cut)
        )
        if self._watchers:
            self._show()

    @handles(handlers, Attempt)
    def _attempt(self, event: Attempt) -> None:
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
            facts |= {"reason": event.reason, "detail": self._recording.mask(event.detail)}
        if event.anyway:
            facts["anyway"] = True
        if event.instead_of:
            facts["instead_of"] = event.instead_of
        self._recording.is_plain = False
        self._note_rare("attempt", event.turn, facts)

    @handles(handlers, CallsHandedBack)
    def _handed_back(self, event: CallsHandedBack) -> None:
        self._note_rare(
            "calls_handed_back", None, {"calls": [{"id": call.id, "name": call.name} for call in event.calls]}
        )

    @handles(handlers, ChatEnded)
    def _chat_ended(self, event: ChatEnded) -> None:
        ending = event.ending
        self._events.append(
            PackedEnd(monotonic() - self._began, self._choice, ending.kind, ending.finish_reason, ending.note)
        )
        if self._watchers:
            self._show()

    @handles(handlers, ChatFailed)
    def _chat_failed(self, event: ChatFailed) -> None:
        self._note_rare("failed", None, {"reason": event.reason})


_CountName: TypeAlias = Annotated[str, msgspec.Meta(max_length=NAME_CHARACTERS)]
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)] | float | bool | None
_Parts: TypeAlias = Annotated[dict[_CountName, _Count], msgspec.Meta(max_length=USAGE_NAMES)]


class _Counted(msgspec.Struct, array_like=True):
    """Counts as nearly every provider has them: to look at each here takes five times as long."""

    counts: Annotated[dict[_CountName, _Count | _Parts], msgspec.Meta(max_length=USAGE_NAMES)]


def _counts(usage: Mapping[str, Any]) -> dict[str, Any]:
    """What a provider counted: numbers, and those of its parts. What else it says of a turn may be of any size."""
    try:
        return msgspec.convert((usage,), _Counted).counts
    except msgspec.ValidationError:
        return _bounded_counts(usage)


def _bounded_counts(usage: Mapping[str, Any], depth: int = 1) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if len(usage) > USAGE_NAMES:
        usage = dict(islice(usage.items(), USAGE_NAMES))
    for name, value in usage.items():
        kind = type(value)
        if kind is int:
            found[name] = value if 0 <= value <= MOST_TOKENS else max(min(value, MOST_TOKENS), -MOST_TOKENS)
        elif kind is float or kind is bool:
            found[name] = value
        elif depth and isinstance(value, Mapping):
            found[name] = _bounded_counts(value, depth - 1)
    if len("".join(found)) > NAME_CHARACTERS * USAGE_NAMES:
        return {name[:NAME_CHARACTERS]: value for name, value in found.items()}
    return found
