"""Packs the events of a run: numbers, names, ids and verdicts. Texts are included only for runs whose texts are kept.

Several ended runs are packed together: loading this code into the processor's caches takes longer than packing a run.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, Final, Protocol, TypeAlias

import msgspec

from callgate.calls.outcome import Returned
from callgate.calls.states import Call, ReadyCall
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
    Responder,
    TurnAccount,
    TurnEnded,
    TurnStarted,
)
from callgate.conversation.prices import MOST_TOKENS, Price
from callgate.recorder.model import MASKED_BEYOND
from callgate.recorder.packed import (
    NAME_CHARACTERS,
    Packed,
    PackedCall,
    PackedCallEnd,
    PackedCallStart,
    PackedEnd,
    PackedEvent,
    PackedTurn,
    PackedTurnStart,
)

Mask: TypeAlias = Callable[[str], str]
"""Masks the secrets in a text."""
PriceOf: TypeAlias = Callable[[Responder], Price | None]
"""Returns the price of a deployment, if it is known without a request to another server."""
Happened: TypeAlias = tuple[float, int, ChatEvent]
"""The time of an event by the monotonic clock, the index of its choice, and the event."""

USAGE_NAMES: Final = 32
"""The most counts that are kept of a provider's usage in a turn."""
PREVIEW_CHARACTERS: Final = 200
"""The kept length of a tool's progress message."""


class PackingContext(Protocol):
    """The properties of a run that its packed events depend on."""

    is_plain: bool
    """Set to False by a broken or failed call, and by a retry."""

    @property
    def mask(self) -> Mask: ...

    @property
    def price(self) -> PriceOf: ...

    @property
    def began(self) -> float: ...

    @property
    def has_texts(self) -> bool: ...


def packed(run: PackingContext, happened: Sequence[tuple[float, int, Any]]) -> list[Packed]:
    """Pack events in order. The usual ones are packed here and not in a function each: calls would take a third of the time."""
    found: list[Packed] = []
    began, price = run.began, run.price
    for moment, choice, event in happened:
        at = moment - began
        kind = type(event)
        if kind is TurnEnded:
            answer = event.answer
            by, usage = answer.by, answer.usage
            found.append(
                PackedTurn(
                    at,
                    choice,
                    event.turn,
                    answer.seconds,
                    answer.first_seconds,
                    answer.attempts,
                    answer.lane,
                    by.model,
                    by.deployment,
                    by.host,
                    answer.reasons,
                    _calls(run, answer) if answer.run or answer.handed_back or answer.broken else (),
                    _counts(usage) if usage else None,
                    price(by) if usage else None,
                    answer.findings,
                    answer.head,
                    answer.reason_is_raw,
                )
            )
        elif kind is TurnStarted:
            found.append(PackedTurnStart(at, choice, event.index))
        elif kind is CallStarted:
            call = event.call
            found.append(PackedCallStart(at, choice, event.turn, call.id, call.name, event.writes))
        elif kind is CallEnded:
            call, outcome = event.call, event.outcome
            text = outcome.text
            size = len(text) if text.isascii() else len(text.encode(errors="replace"))
            if isinstance(outcome, Returned):
                word, cut = "returned", outcome.cut_bytes
            else:
                run.is_plain, word, cut = False, outcome.kind, 0
            found.append(PackedCallEnd(at, choice, event.turn, call.id, call.name, event.seconds, word, size, cut))
        elif kind is ChatEnded:
            ending = event.ending
            found.append(PackedEnd(at, choice, ending.kind, ending.finish_reason, ending.note))
        else:
            found.append(_RARE[kind](run, at, choice, event))
    return found


def _calls(run: PackingContext, answer: TurnAccount) -> list[PackedCall]:
    calls: list[PackedCall] = []
    for call in answer.run:
        calls.append(_call(run, call, "server") if call.findings else PackedCall(call.id, call.name, "server"))
    if answer.handed_back:
        calls += [_call(run, call, "client") for call in answer.handed_back]
    if answer.broken:
        run.is_plain = False
        calls += [_call(run, call, None) for call in answer.broken]
    if answer.postponed:
        facts = {"verdict": "ready", "outcome": "not_run", "reason": POSTPONED}
        calls += [PackedCall(call.id, call.name, "server", facts) for call in answer.postponed]
    return calls


def _call(run: PackingContext, call: Call, owner: str | None) -> PackedCall:
    if isinstance(call, ReadyCall):
        if not call.findings:
            return PackedCall(call.id, call.name, owner)
        repairs = [str(finding) for finding in call.findings]
        return PackedCall(call.id, call.name, owner, {"verdict": "ready", "repairs": repairs})
    facts: dict[str, Any] = {"verdict": "broken", "flaw": str(call.flaw)}
    if (problem := call.problem) is not None:
        # If no texts are kept, only the expected value: the other fields repeat or name what the model wrote.
        if run.has_texts:
            shown = msgspec.structs.asdict(problem) | {"rule": ""}
            facts["problem"] = {name: run.mask(text) for name, text in shown.items() if text}
        else:
            facts["problem"] = {"rule": problem.rule} if problem.rule else {"expected": problem.expected}
    # A name that a model invented may be a long text.
    return PackedCall(call.id, call.name and call.name[:NAME_CHARACTERS], owner, facts)


def _call_progress(run: PackingContext, at: float, choice: int, event: CallProgress) -> Packed:
    facts: dict[str, Any] = {"id": event.call.id, "fraction": event.fraction}
    if event.waits_for:
        facts["approval"] = event.waits_for
    elif event.approved:
        facts["approved"] = True
    elif run.has_texts:  # a progress message is text of a tool
        facts["message"] = run.mask(event.message[:MASKED_BEYOND])[:PREVIEW_CHARACTERS]
    return PackedEvent(at, choice, "call_progress", event.turn, facts)


def _attempt(run: PackingContext, at: float, choice: int, event: Attempt) -> Packed:
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
        facts |= {"reason": event.reason, "detail": run.mask(event.detail)}
    if event.anyway:
        facts["anyway"] = True
    if event.instead_of:
        facts["instead_of"] = event.instead_of
    run.is_plain = False
    return PackedEvent(at, choice, "attempt", event.turn, facts)


def _handed_back(run: PackingContext, at: float, choice: int, event: CallsHandedBack) -> Packed:
    calls = [{"id": call.id, "name": call.name} for call in event.calls]
    return PackedEvent(at, choice, "calls_handed_back", None, {"calls": calls})


def _failed(run: PackingContext, at: float, choice: int, event: ChatFailed) -> Packed:
    return PackedEvent(at, choice, "failed", None, {"reason": event.reason})


_RARE: Final[dict[type, Callable[[PackingContext, float, int, Any], Packed]]] = {
    CallProgress: _call_progress,
    Attempt: _attempt,
    CallsHandedBack: _handed_back,
    ChatFailed: _failed,
}


_CountName: TypeAlias = Annotated[str, msgspec.Meta(max_length=NAME_CHARACTERS)]
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)] | float | bool | None
_Parts: TypeAlias = Annotated[dict[_CountName, _Count], msgspec.Meta(max_length=USAGE_NAMES)]


class _Counted(msgspec.Struct, array_like=True):
    """The usual form of usage, checked by msgspec: checking each value in Python takes five times as long."""

    counts: Annotated[dict[_CountName, _Count | _Parts], msgspec.Meta(max_length=USAGE_NAMES)]


def _counts(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of a provider's usage, and those one level below. Other fields are dropped: they may be of any size."""
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
