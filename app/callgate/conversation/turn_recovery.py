"""Recovers turns with calls of both sides that are no longer stored: from the client's hint, and by running calls
again.

The calls of ours are written, as a hint, on the first call that the client is given. When the client returns and what
was kept is gone, a few of those that only read are run again, seen by every listener, and any other is answered with the word
that its result is lost: what it did to the world must not be done twice. A hint comes from a client, so it is trusted with nothing that
the model could not ask for: the calls pass the same gate, and run only tools that are on offer.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from callgate.calls.arguments import Fragments
from callgate.calls.gate import FoundCall, settle
from callgate.calls.outcome import Failed, Outcome
from callgate.calls.states import BrokenCall
from callgate.conversation import feedback
from callgate.conversation.events import BEFORE_ALL_TURNS, CallEnded, CallStarted, HiddenTurns
from callgate.conversation.hidden_history import calling_turns
from callgate.conversation.ports import Emit, Message, Toolbox, ignore_progress

FIELD = "x_callgate"
MAX_HINT = 4096
"""Bytes. Larger arguments are left out, and the call cannot be made again: clients store these objects."""
MAX_CALLS = 64
"""Calls put back for one turn, as many as a turn may hold; a client could write any number."""
MAX_RERUN = 8
"""Calls run again for one request. They run without a model having asked, so there are few; the rest are said to be lost."""


class ForgottenCall(msgspec.Struct, array_like=True):
    """One call of ours, in a hint."""

    place: int
    """Where it stood among the calls of its turn."""
    id: str
    name: str
    arguments: str | None = None


class Hint(msgspec.Struct):
    ran: list[ForgottenCall] = msgspec.field(name="house")
    """The calls of server-side tools, by the name that clients have kept for them."""


@dataclass(frozen=True, slots=True)
class ForgottenTurn:
    """A turn of which its client knows a part, and a hint the rest."""

    handles: tuple[str, ...]
    """What the calls that the client has are known by."""
    assistant: dict[str, Any]
    """Its message, as the client gave it back."""
    calls: tuple[ForgottenCall, ...]


def hint_of(hidden: HiddenTurns) -> dict[str, Any] | None:
    """Return the hint for the first call that is handed out; None when no call of ours ran beside it."""
    ran = [
        ForgottenCall(place, call["id"], call["function"]["name"], call["function"]["arguments"])
        for place, call in enumerate(hidden.assistant["tool_calls"])
        if call["id"] in hidden.ran
    ]
    if not ran:
        return None
    if len(msgspec.json.encode(ran)) > MAX_HINT:
        ran = [ForgottenCall(call.place, call.id, call.name) for call in ran]
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


def forgotten_turns(
    messages: Sequence[Message],
    hints: Mapping[int, Hint],
    kept: Mapping[str, HiddenTurns],
    remembered: Mapping[str, Hint] | None = None,
) -> Iterator[ForgottenTurn]:
    """The turns of which a hint is all there is: one that came with its message, or one that was remembered."""
    for turn in calling_turns(messages):
        ours = (remembered[handle] for handle in turn.handles if remembered and handle in remembered)
        hint = next(ours, None) or hints.get(turn.place)
        if hint is not None and kept.keys().isdisjoint(turn.handles):
            assistant = msgspec.json.decode(messages[turn.place], type=dict[str, Any])  # type: ignore[arg-type]
            yield ForgottenTurn(turn.handles, assistant, tuple(hint.ran[:MAX_CALLS]))


class Recovery:
    """Makes the forgotten turns of one request again. All of them together run no more than `most` calls."""

    def __init__(self, toolbox: Toolbox, emit: Emit, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._toolbox, self._emit, self._clock = toolbox, emit, clock
        self._left = min(most, MAX_RERUN)

    async def make_again(self, turn: ForgottenTurn) -> HiddenTurns:
        """The turn with all its calls, and answers to ours."""
        calls = list(turn.assistant["tool_calls"])
        for call in sorted(turn.calls, key=lambda call: call.place):
            function = {"name": call.name, "arguments": call.arguments or "{}"}
            calls.insert(max(call.place, 0), {"id": call.id, "type": "function", "function": function})
        results = {}
        for call in turn.calls:
            outcome = await self._outcome(call)
            text = outcome.text if isinstance(outcome, Failed) or outcome.text else RESULT_LOST
            results[call.id] = {"role": "tool", "tool_call_id": call.id, "content": text}
        return HiddenTurns(before=(), assistant={**turn.assistant, "tool_calls": calls}, results=results)

    async def _outcome(self, forgotten: ForgottenCall) -> Outcome:
        box = self._toolbox
        if forgotten.arguments is None or forgotten.name not in box.offer or box.is_clients(forgotten.name):
            return Failed(RESULT_LOST)
        written = Fragments()
        written.add(forgotten.arguments)
        found = FoundCall(forgotten.id, forgotten.name, written)
        [call] = settle([found], box.offer, failure=None, at_length=False, new_id=lambda: forgotten.id)
        if isinstance(call, BrokenCall):
            return Failed(feedback.explain(call, box.offer))
        if box.is_clients(call.name) or box.writes(call) or not self._left:
            return Failed(RESULT_LOST)
        self._left -= 1
        await self._emit(CallStarted(BEFORE_ALL_TURNS, call, writes=False))
        began = self._clock()
        outcome = await box.run(call, ignore_progress)
        await self._emit(CallEnded(BEFORE_ALL_TURNS, call, outcome, self._clock() - began))
        return outcome


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
