"""Keeps what happened in a usual run as it is, and reads it when somebody looks at the run: most runs are never looked at."""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from callgate.calls.outcome import Returned
from callgate.calls.states import ReadyCall
from callgate.conversation.events import (
    CallEnded,
    CallStarted,
    ChatEnded,
    Ending,
    EndingKind,
    FinishReason,
    ProviderHead,
    Responder,
    TurnAccount,
    TurnEnded,
    TurnStarted,
)
from callgate.conversation.prices import Price
from callgate.conversation.usage import TokenCounts, Usage
from callgate.recorder.events import EventReader, Mask, RunContext, bounded_counts_fast, bytes_of
from callgate.recorder.hours import HourNote
from callgate.recorder.stored_event import StoredEvent
from callgate.records.ports import PriceOf
from callgate.records.row import RunRow
from callgate.untrusted.messagepack import pack_written_here
from callgate.untrusted.readers import msgpack_reader

# How an event is written: as an array that begins with its kind.

TURN_STARTED: Final = 0
TURN_ENDED: Final = 1
CALL_STARTED: Final = 2
CALL_ENDED: Final = 3
ENDING: Final = 4


class KeptTurnStarted(msgspec.Struct, array_like=True, tag=TURN_STARTED, gc=False):
    moment: float
    choice: int
    turn: int


class KeptAnswer(msgspec.Struct, array_like=True, gc=False):
    """What is kept of an answer: the values of `_ANSWER`."""

    reasons: tuple[Any, ...]
    usage: dict[str, Any]
    seconds: float
    first_seconds: float
    lane: str
    model: str
    deployment: str
    host: str
    head: tuple[Any, Any, Any, Any] | None
    counts: TokenCounts


class KeptTurnEnded(msgspec.Struct, array_like=True, tag=TURN_ENDED, gc=False):
    moment: float
    choice: int
    turn: int
    answer: KeptAnswer
    calls: Sequence[tuple[str, str]]
    """The ids and names of its calls."""
    price: Price | None
    """Of its deployment, when it answered."""


class KeptCallStarted(msgspec.Struct, array_like=True, tag=CALL_STARTED, gc=False):
    moment: float
    choice: int
    turn: int
    id: str
    name: str
    writes: bool


class KeptCallEnded(msgspec.Struct, array_like=True, tag=CALL_ENDED, gc=False):
    moment: float
    choice: int
    turn: int
    id: str
    name: str
    seconds: float
    bytes: int
    """The length of its result."""


class KeptEnding(msgspec.Struct, array_like=True, tag=ENDING, gc=False):
    moment: float
    choice: int
    kind: EndingKind
    finish_reason: FinishReason
    note: str


KeptEvent: TypeAlias = KeptTurnStarted | KeptTurnEnded | KeptCallStarted | KeptCallEnded | KeptEnding


class UsualRun(msgspec.Struct, array_like=True, gc=False):
    """A run as it is written, with nothing but answers that report their usage, and calls of ours that returned."""

    row: RunRow
    """Without the totals of the events."""
    began: float
    """By the monotonic clock, as the moments of its events."""
    events: list[KeptEvent]


_ANSWER: Final = (
    *("reasons", "usage.report", "seconds", "first_seconds", "lane", "by.model", "by.deployment", "by.host"),
    *("head", "counts"),
)
"""The places in an answer of the fields of `KeptAnswer`: read together they take a third of the time."""
_answer: Final[Callable[[TurnAccount], Any]] = attrgetter(*_ANSWER)
_call: Final[Callable[[ReadyCall], tuple[str, str]]] = attrgetter("id", "name")
_encode: Final = msgspec.msgpack.Encoder(enc_hook=str).encode
_decode: Final = msgpack_reader(UsualRun)


def keep_usual_fast(
    run: RunContext, row: RunRow, happened: Sequence[tuple[float, int, Any]]
) -> tuple[bytes, Sequence[HourNote]] | None:
    """Return a run that `read_usual` reads as `read_events` does, with the notes for the totals of its hour; None for a run that is not
    usual. This takes half of the time, and most runs are usual ones. `row` is told how it ended."""
    events: list[tuple[Any, ...]] = []
    notes: list[HourNote] = []
    began = run.began
    deployment = row.deployment
    is_first = True
    for moment, choice, event in happened:
        kind = type(event)
        if kind is TurnStarted:
            events.append((TURN_STARTED, moment, choice, event.index))
        elif kind is TurnEnded:
            answer = event.answer
            if not _is_usual(answer):
                return None
            by = answer.by
            calls = tuple(map(_call, answer.run))
            events.append((TURN_ENDED, moment, choice, event.turn, _answer(answer), calls, run.price(by)))
            seconds = answer.seconds
            first_seconds = answer.first_seconds
            if is_first:
                is_first = False
                row.first_seconds = max(moment - began - seconds, 0.0) + first_seconds
            deployment = by.deployment
            notes.append(("answer", deployment, "", "", seconds, first_seconds))
        elif kind is CallStarted:
            call = event.call
            events.append((CALL_STARTED, moment, choice, event.turn, call.id, call.name, event.writes))
        elif kind is CallEnded:
            outcome = event.outcome
            if type(outcome) is not Returned or outcome.cut_bytes or outcome.facts is not None:
                return None
            call = event.call
            name = call.name
            seconds = event.seconds
            size = bytes_of(outcome.text)
            events.append((CALL_ENDED, moment, choice, event.turn, call.id, name, seconds, size))
            notes.append(("call", deployment, name, "", seconds, 0.0))
        elif kind is ChatEnded:
            ending = event.ending
            events.append((ENDING, moment, choice, ending.kind, ending.finish_reason, ending.note))
            row.state = str(ending.kind)
        else:
            return None
    return _encode((row, began, events)), notes


def _is_usual(answer: TurnAccount) -> bool:
    """Return whether nothing is odd about an answer, and all of its calls are ours."""
    if answer.findings or answer.broken or answer.handed_back or answer.postponed:
        return False
    if answer.attempts != 1 or not answer.reason_is_raw or answer.usage is None or answer.counts is None:
        return False
    for call in answer.run:
        if call.findings:
            return False
    report = answer.usage.report
    return bounded_counts_fast(report) == report


def read_usual(pack: bytes) -> EventReader:
    """Read a run that is kept as what happened."""
    usual = _decode(pack_written_here(pack))
    prices = iter([event.price for event in usual.events if type(event) is KeptTurnEnded])
    reader = EventReader(_run=_ReadAgain(lambda by: next(prices), usual.began), row=usual.row)
    reader.events = [_READERS[type(event)](reader, event.moment - usual.began, event) for event in usual.events]
    reader.finish()
    return reader


class _ReadAgain(NamedTuple):
    """How the events of a run that is kept as what happened are read."""

    price: PriceOf
    began: float
    mask: Mask = str
    has_texts: bool = False


def _turn_started(reader: EventReader, at: float, event: KeptTurnStarted) -> StoredEvent:
    return reader.turn_started(at, event.choice, TurnStarted(event.turn))


def _turn_ended(reader: EventReader, at: float, event: KeptTurnEnded) -> StoredEvent:
    kept_answer = event.answer
    answer = TurnAccount(
        reasons=kept_answer.reasons,
        findings=(),
        run=tuple(ReadyCall(id, name, {}, "") for id, name in event.calls),
        handed_back=(),
        broken=(),
        usage=Usage(kept_answer.usage),
        seconds=kept_answer.seconds,
        lane=kept_answer.lane,
        by=Responder(kept_answer.model, kept_answer.deployment, kept_answer.host),
        first_seconds=kept_answer.first_seconds,
        head=None if kept_answer.head is None else ProviderHead(*kept_answer.head),
        counts=kept_answer.counts,
    )
    return reader.turn_ended(at, event.choice, TurnEnded(event.turn, answer))


def _call_started(reader: EventReader, at: float, event: KeptCallStarted) -> StoredEvent:
    call = ReadyCall(event.id, event.name, {}, "")
    return reader.call_started(at, event.choice, CallStarted(event.turn, call, event.writes))


def _call_ended(reader: EventReader, at: float, event: KeptCallEnded) -> StoredEvent:
    call = ReadyCall(event.id, event.name, {}, "")
    return reader.call_returned(at, event.choice, event.turn, call, event.seconds, event.bytes)


def _ended(reader: EventReader, at: float, event: KeptEnding) -> StoredEvent:
    ending = Ending(event.kind, event.finish_reason, event.note)
    return reader.chat_ended(at, event.choice, ChatEnded(ending, None))


_READERS: Final[dict[type, Callable[[EventReader, float, Any], StoredEvent]]] = {
    KeptTurnStarted: _turn_started,
    KeptTurnEnded: _turn_ended,
    KeptCallStarted: _call_started,
    KeptCallEnded: _call_ended,
    KeptEnding: _ended,
}
