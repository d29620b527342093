"""The events of a run as they stand in the file: short arrays, which take half the time and the space of objects with names."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from callgate.records.row import RunEvent
from callgate.untrusted.readers import msgpack_reader

StoredFacts: TypeAlias = Sequence[Any] | Mapping[str, Any]
"""The facts of an event or of a call: their values in the order of `FACTS`, or an object with their names."""
StoredEvent: TypeAlias = tuple[str, float, int, int | None, StoredFacts]
"""The kind of an event, its seconds since the run began, its choice and turn, and its facts."""

CALL: Final = ("id", "name", "owner", "verdict")
"""The facts of a call in a turn."""
FACTS: Final[Mapping[str, Sequence[str]]] = {
    "turn_started": (),
    "turn_ended": (
        *("seconds", "finish_reasons", "findings", "calls", "usage", "lane", "attempts", "first_seconds"),
        *("model", "deployment", "host", "response_id", "response_model", "cost", "finish_reason_rewritten"),
    ),
    "call_started": ("id", "name", "writes"),
    "call_ended": ("id", "name", "seconds", "outcome", "bytes", "cut_bytes"),
    "ended": ("ending", "finish_reason", "note"),
}
"""The names of the facts of frequent events, in the order of their values. The last ones may be missing."""
NOT_NULL: Final = frozenset({"response_id", "response_model", "cost"})
"""Facts that are left out where they are not known."""

decode_events: Final = msgpack_reader(list[tuple[str, float, int, int | None, list[Any] | dict[str, Any]]])


def run_event(stored: StoredEvent) -> RunEvent:
    """Return an event with the names of its facts."""
    kind, at, choice, turn, values = stored
    if isinstance(values, Mapping):
        return RunEvent(at, kind, choice, turn, values)
    names = FACTS.get(kind, ())
    if len(values) > len(names):
        raise msgspec.ValidationError(f"an event `{kind[:20]}` with unknown facts")
    named = zip(names, values, strict=False)
    facts = {name: value for name, value in named if value is not None or name not in NOT_NULL}
    if kind == "turn_ended":
        facts["calls"] = [_call(call) for call in _list(facts.get("calls"))]
    return RunEvent(at, kind, choice, turn, facts)


def _call(stored: StoredFacts) -> Mapping[str, Any]:
    if isinstance(stored, Mapping):
        return stored
    values = _list(stored)
    if len(values) != len(CALL):
        raise msgspec.ValidationError("a call with other facts")
    return dict(zip(CALL, values, strict=True))


def _list(value: Any) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise msgspec.ValidationError("a fact that is no list")
    return value
