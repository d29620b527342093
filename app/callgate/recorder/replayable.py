"""Reads the parts of a recorded run that a replay needs: its request, its history up to a turn, and what its calls
returned."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from callgate.records.row import RECORDED_TEXT, UNDER_WAY, WITHOUT_MODEL, Kept, RecordedRun
from callgate.untrusted.doors import TooMuch, open_text
from callgate.untrusted.readers import read_value

WHY_NOT: Final[Mapping[Kept, str]] = {
    Kept.NOTHING: "nothing of what was said is kept (`record.content: on` keeps it, unless the request forbids it)",
    Kept.CUT: "some of what was said was longer than `record.content_bytes`, and is kept cut",
    Kept.AGED_OUT: "what was said has been removed to make room",
}


class NotReplayable(Exception):
    """The run cannot be replayed; the text gives the reason."""


class RecordedResult(NamedTuple):
    """The result of a call, as the model saw it."""

    text: str
    outcome: str
    """`returned`, or how it failed."""


def request_of(recording: RecordedRun) -> dict[str, Any]:
    """Return the request of a run. Raises `NotReplayable` unless all of the run is kept."""
    row = recording.row
    if row.state == UNDER_WAY:
        raise NotReplayable("it is still under way")
    if row.route in WITHOUT_MODEL:
        raise NotReplayable("it is a call of a tool without a model; call the tool again")
    if row.choices > 1:
        raise NotReplayable(f"it has {row.choices} choices, which are conversations of their own")
    if row.kept in WHY_NOT:
        raise NotReplayable(WHY_NOT[row.kept])
    request = read_json(recording.content.get("request", ""))
    if not isinstance(request, dict) or not isinstance(request.get("messages"), list):
        raise NotReplayable("its request is not kept")
    return request


def history_before(recording: RecordedRun, turn: int) -> Sequence[Any]:
    """Return the messages that were sent to the model in a turn."""
    turns = {event.turn for event in recording.events if event.kind == "turn_started"}
    if turn not in turns:
        raise NotReplayable(
            f"it has no turn {turn}, only 0 to {max((known_turn or 0 for known_turn in turns), default=0)}"
        )
    messages: Sequence[Any] = request_of(recording)["messages"]
    for at in range(turn + 1):
        history = recording.content.get(f"turn.{at}.history")
        added = recording.content.get(f"turn.{at}.asked")
        if history is not None:
            messages = read_json(history)
        elif added is not None:
            messages = [*messages, *read_json(added)]
        elif at:
            raise NotReplayable(f"the messages of turn {at} are not kept")
    return messages


def tools_of(recording: RecordedRun) -> Sequence[Any]:
    """Return the definitions of the offered tools."""
    tools = read_json(recording.content.get("tools", ""))
    if isinstance(tools, list):
        return tools
    return []


def results_of(recording: RecordedRun) -> Mapping[str, list[RecordedResult]]:
    """Return the results of the calls that ran, in their order, by `call_key`."""
    results: dict[str, list[RecordedResult]] = {}
    for event in recording.events:
        if event.kind == "call_ended":
            facts = event.facts
            arguments = read_json(recording.content.get(f"call.{facts['id']}.arguments", "") or "{}")
            result = RecordedResult(recording.content.get(f"call.{facts['id']}.result", ""), facts["outcome"])
            results.setdefault(call_key(facts["name"], arguments), []).append(result)
    return results


def call_key(name: str, arguments: Any) -> str:
    """Return a key that is equal for calls of one tool with equal arguments, however the JSON is formatted."""
    return json.dumps([name, arguments], sort_keys=True, separators=(",", ":"))


def read_json(text: str) -> Any:
    """Parse JSON; None if it is invalid."""
    try:
        return read_value(open_text(text, RECORDED_TEXT))
    except (TooMuch, msgspec.DecodeError):
        return None
