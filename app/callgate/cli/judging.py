"""Checks an exported recording again: each answer in it goes through the current gate, and nothing is asked or run."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from callgate.calls.states import BrokenCall, Call, Flaw
from callgate.conversation.events import ModelEvent, StreamEnd
from callgate.conversation.turn import TurnBuilder
from callgate.models.direct.chunks import read_completion
from callgate.models.direct.model import StreamedBody
from callgate.recorder.recorded_tools import RecordedToolbox
from callgate.runtime.manager import new_call_id


class Verdict(NamedTuple):
    """The gate's verdict on a call."""

    name: str
    word: str
    """`ready`, or the flaw."""


class Difference(NamedTuple):
    """A turn whose verdicts have changed."""

    turn: int
    before: Sequence[Verdict]
    now: Sequence[Verdict]


class NoRecording(ValueError):
    """Raised for a file that is no recording."""


def differences(recording: Any) -> tuple[int, list[Difference]]:
    """Return the number of checked calls, and the turns whose verdicts have changed."""
    replies = _replies(recording)
    toolbox = _toolbox(recording)
    changed = []
    calls = 0
    for turn, reply in enumerate(replies):
        judged = _judged(reply, toolbox)
        calls += len(judged)
        now = Counter(Verdict(call.name or "", _word(call)) for call in judged)
        before = Counter(_recorded(reply, recording, judged))
        if now != before:
            changed.append(Difference(turn, sorted((before - now).elements()), sorted((now - before).elements())))
    return calls, changed


def _judged(reply: Mapping[str, Any], toolbox: RecordedToolbox) -> Sequence[Call]:
    builder = TurnBuilder(offer=toolbox.offer, ids=new_call_id)
    if not reply.get("chunks"):
        builder.feed(read_completion(reply["whole"]))
        return builder.finish(StreamEnd.DONE).calls
    body = StreamedBody()
    is_done = reply.get("end", "done") == "done"
    events: list[ModelEvent] = []
    for chunk in reply["chunks"]:
        events += body.feed(b"data: " + msgspec.json.encode(chunk) + b"\n\n")
    if is_done:
        end = StreamEnd.DONE
        events += body.feed(b"data: [DONE]\n\n")
    else:
        end = StreamEnd.EOF
        events += body.finish()
    builder.feed(events)
    return builder.finish(end).calls


def _recorded(reply: Mapping[str, Any], recording: Mapping[str, Any], judged: Sequence[Call]) -> Iterable[Verdict]:
    """Return the recorded verdicts of each turn, or in a handwritten recording of each call by id."""
    if "verdicts" in reply:
        return [Verdict(verdict["name"] or "", _without_text(verdict["verdict"])) for verdict in reply["verdicts"]]
    results = recording["expect"]["results"]
    flaws = {id: result["flaw"] for id, result in results.items() if isinstance(result, Mapping) and "flaw" in result}
    judged_ids = results.keys() | {call["id"] for call in recording["expect"]["tool_calls"]}
    return [
        Verdict(call.name or "", flaws.get(call.id, "ready") if call.id in judged_ids else _word(call))
        for call in judged
    ]


def _word(call: Call) -> str:
    if isinstance(call, BrokenCall):
        return str(call.flaw)
    return "ready"


def _without_text(word: str) -> str:
    """Return the verdict on a call without the text around it, which a recording does not have: `not_alone` is only said of
    calls that are ready otherwise."""
    if word == Flaw.NOT_ALONE:
        return "ready"
    return word


def _replies(recording: Any) -> list[Mapping[str, Any]]:
    if not isinstance(recording, dict) or not isinstance(recording.get("replies"), list) or "expect" not in recording:
        raise NoRecording("it is no recording, as `callgate runs export --as recording` writes them")
    last = recording.get("toolless")
    return [*recording["replies"], *([last] if last else [])]


def _toolbox(recording: Mapping[str, Any]) -> RecordedToolbox:
    tools = recording.get("tools")
    if tools is None:
        raise NoRecording("it does not say what tools were offered (`tools`)")
    clients = {tool["function"]["name"] for tool in recording["request"].get("tools", ()) if "function" in tool}
    return RecordedToolbox(tools, clients, {})
