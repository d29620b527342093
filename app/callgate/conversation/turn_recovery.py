"""A turn of both sides of which nothing was kept: what its client brings back of it, and how the rest is made again.

The calls of ours are written, as a hint, on the first call that the client is given. When the client returns and what
was kept is gone, those of tools that only read are run again, and any other is answered with the word that its result
is lost: what it did to the world must not be done twice. A hint comes from a client, so it is trusted with nothing that
the model could not ask for: the calls pass the same gate, and run only tools that are on offer.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from callgate.calls.arguments import Fragments
from callgate.calls.gate import FoundCall, settle
from callgate.calls.outcome import Failed, Outcome
from callgate.calls.states import BrokenCall
from callgate.conversation import feedback
from callgate.conversation.events import HiddenTurns
from callgate.conversation.hidden_history import calling_turns
from callgate.conversation.ports import Message, Toolbox

FIELD = "x_callgate"
MAX_HINT = 4096
"""Bytes. Larger arguments are left out, and the call cannot be made again: clients store these objects."""
MAX_CALLS = 64
"""Calls made again for one turn, as many as a turn may hold; a client could write any number."""


class LostCall(msgspec.Struct, array_like=True):
    """One call of ours, in a hint."""

    place: int
    """Where it stood among the calls of its turn."""
    id: str
    name: str
    arguments: str | None = None


class Hint(msgspec.Struct):
    house: list[LostCall]


@dataclass(frozen=True, slots=True)
class LostTurn:
    handles: tuple[str, ...]
    """What the calls that the client has are known by."""
    assistant: dict[str, Any]
    """Its message, as the client gave it back."""
    calls: tuple[LostCall, ...]


def hint_of(hidden: HiddenTurns) -> dict[str, Any] | None:
    """What goes on the first call that is handed out; None when no call of ours ran beside it."""
    ran = [
        LostCall(place, call["id"], call["function"]["name"], call["function"]["arguments"])
        for place, call in enumerate(hidden.assistant["tool_calls"])
        if call["id"] in hidden.ran
    ]
    if not ran:
        return None
    if len(msgspec.json.encode(ran)) > MAX_HINT:
        ran = [LostCall(call.place, call.id, call.name) for call in ran]
    return {"house": msgspec.to_builtins(ran)}


def encode_hint(hint: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(hint)


def decode_hint(data: bytes) -> Hint:
    return msgspec.json.decode(data, type=Hint)


def take_hints(messages: Sequence[msgspec.Raw]) -> tuple[list[msgspec.Raw], dict[int, Hint]]:
    """The messages without the hints in them, which are nothing to a provider, and the hints by their messages."""
    rest: list[msgspec.Raw] = []
    hints: dict[int, Hint] = {}
    for place, message in enumerate(messages):
        rest.append(message if FIELD.encode() not in bytes(message) else _without_hints(message, place, hints))
    return rest, hints


def _without_hints(message: msgspec.Raw, place: int, hints: dict[int, Hint]) -> msgspec.Raw:
    said = msgspec.json.decode(message)
    calls = said.get("tool_calls") if isinstance(said, dict) else None
    for call in calls if isinstance(calls, list) else ():
        if not isinstance(call, dict) or FIELD not in call:
            continue
        given = call.pop(FIELD)
        try:
            hints[place] = msgspec.convert(given, Hint)
        except msgspec.ValidationError:
            continue  # not one of ours, or no longer
    return msgspec.Raw(msgspec.json.encode(said))


def lost_turns(
    messages: Sequence[Message],
    hints: Mapping[int, Hint],
    kept: Mapping[str, HiddenTurns],
    remembered: Mapping[str, Hint] | None = None,
) -> Iterator[LostTurn]:
    """The turns of which a hint is all there is: one that came with its message, or one that was remembered."""
    for turn in calling_turns(messages):
        ours = (remembered[handle] for handle in turn.handles if remembered and handle in remembered)
        hint = next(ours, None) or hints.get(turn.place)
        if hint is not None and kept.keys().isdisjoint(turn.handles):
            assistant = msgspec.json.decode(messages[turn.place], type=dict[str, Any])  # type: ignore[arg-type]
            yield LostTurn(turn.handles, assistant, tuple(hint.house[:MAX_CALLS]))


async def made_again(turn: LostTurn, toolbox: Toolbox) -> HiddenTurns:
    """The turn with all its calls, and answers to ours."""
    calls = list(turn.assistant["tool_calls"])
    for call in sorted(turn.calls, key=lambda call: call.place):
        function = {"name": call.name, "arguments": call.arguments or "{}"}
        calls.insert(max(call.place, 0), {"id": call.id, "type": "function", "function": function})
    results = {call.id: await _result(call, toolbox) for call in turn.calls}
    return HiddenTurns(before=(), assistant={**turn.assistant, "tool_calls": calls}, results=results)


async def _result(lost: LostCall, toolbox: Toolbox) -> dict[str, Any]:
    outcome = await _outcome(lost, toolbox)
    text = outcome.text if isinstance(outcome, Failed) or outcome.text else RESULT_LOST
    return {"role": "tool", "tool_call_id": lost.id, "content": text}


async def _outcome(lost: LostCall, toolbox: Toolbox) -> Outcome:
    if lost.arguments is None or lost.name not in toolbox.offer or toolbox.is_clients(lost.name):
        return Failed(RESULT_LOST)
    found = FoundCall(lost.id, lost.name, Fragments())
    assert isinstance(found.arguments, Fragments)
    found.arguments.add(lost.arguments)
    [call] = settle([found], toolbox.offer, failure=None, at_length=False, new_id=lambda: lost.id)
    if isinstance(call, BrokenCall):
        return Failed(feedback.explain(call, toolbox.offer))
    if toolbox.is_clients(call.name) or toolbox.writes(call):
        return Failed(RESULT_LOST)
    return await toolbox.run(call, _nobody_hears)


async def _nobody_hears(message: str, fraction: float | None = None) -> None:
    """The client has not been answered yet, and did not ask for this call."""


RESULT_LOST = json.dumps(
    {
        "error": {
            "code": "result_lost",
            "message": "This call was run earlier, but its result is no longer known. It was not run again, because "
            "that might do twice what should be done once. Go on without it, or ask the user.",
        }
    },
    separators=(",", ":"),
)
