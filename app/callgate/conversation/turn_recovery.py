"""Recovers turns with calls of both sides that are no longer stored: from a hint that the client sends back, and by running
calls again.

The hint lists our calls, and is a field of the first call that the client is sent. When the client returns and the stored
turn is gone, a few read-only calls are run again, and listeners get their events. Any other call gets an answer that its
result is lost, because its side effects must not happen twice. Hints come from clients and are not trusted: the calls pass
the same gate, and run only offered tools.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from callgate.calls.arguments import Fragments
from callgate.calls.gate import FoundCall, settle
from callgate.calls.outcome import Failed, Outcome
from callgate.calls.states import BrokenCall
from callgate.conversation import feedback
from callgate.conversation.events import BEFORE_ALL_TURNS, HiddenTurns
from callgate.conversation.hidden_history import calling_turns
from callgate.conversation.ports import Emit, Message, Toolbox
from callgate.conversation.turn_calls import run_calls
from callgate.untrusted.doors import Door, Untrusted
from callgate.untrusted.readers import read_shape, read_value

FIELD = "x_callgate"
MAX_HINT = 4096
"""Bytes, because clients store these objects. Larger arguments are left out, and the call cannot be run again."""
MAX_CALLS = 64
"""Calls restored for one turn, as many as a turn may hold; a client could send any number."""
MAX_RERUN = 8
"""Calls run again for one request, few because no model asked for them now; the results of the rest are reported lost."""


class ForgottenCall(msgspec.Struct, array_like=True):
    """One call of ours, in a hint."""

    place: int
    """Its position among the calls of its turn."""
    id: str
    name: str
    arguments: str | None = None


class Hint(msgspec.Struct):
    ran: list[ForgottenCall] = msgspec.field(name="house")
    """The calls of server-side tools, by the name that clients have kept for them."""


class ForgottenTurn(msgspec.Struct, frozen=True):
    """A turn of which the client's message has one part, and a hint the rest."""

    handles: tuple[str, ...]
    """The keys of the client's calls."""
    assistant: dict[str, Any]
    """Its message, as the client sent it back."""
    calls: tuple[ForgottenCall, ...]


def hint_of(hidden: HiddenTurns) -> dict[str, Any] | None:
    """Return the hint for the first call of the client; None when no call of ours ran in its turn."""
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


STORED_HINT: Final = Door(name="a stored hint", bytes=1024 * 1024)


def decode_hint(data: bytes) -> Hint:
    return read_shape(Untrusted(data, STORED_HINT).open(), Hint)


def take_hints(messages: Sequence[msgspec.Raw]) -> tuple[list[msgspec.Raw], dict[int, Hint]]:
    """Take the hints out of the messages; return the messages, and the hints by the positions of their messages."""
    without_hints: list[msgspec.Raw] = []
    hints: dict[int, Hint] = {}
    for place, message in enumerate(messages):
        without_hints.append(message if FIELD.encode() not in bytes(message) else _without_hints(message, place, hints))
    return without_hints, hints


def _without_hints(message: msgspec.Raw, place: int, hints: dict[int, Hint]) -> msgspec.Raw:
    decoded = read_value(message)
    calls = decoded.get("tool_calls") if isinstance(decoded, dict) else None
    for call in calls if isinstance(calls, list) else ():
        if not isinstance(call, dict) or FIELD not in call:
            continue
        hint = call.pop(FIELD)
        try:
            hints[place] = msgspec.convert(hint, Hint)
        except msgspec.ValidationError:
            continue  # no valid hint
    return msgspec.Raw(msgspec.json.encode(decoded))


def forgotten_turns(
    messages: Sequence[Message],
    hints: Mapping[int, Hint],
    hidden_turns: Mapping[str, HiddenTurns],
    remembered: Mapping[str, Hint] | None = None,
) -> Iterator[ForgottenTurn]:
    """Yield the turns for which there is only a hint: one that came with its message, or one in `remembered`."""
    for turn in calling_turns(messages):
        ours = (remembered[handle] for handle in turn.handles if remembered and handle in remembered)
        hint = next(ours, None) or hints.get(turn.place)
        if hint is not None and hidden_turns.keys().isdisjoint(turn.handles):
            assistant = read_shape(messages[turn.place], dict[str, Any])  # type: ignore[arg-type]
            yield ForgottenTurn(turn.handles, assistant, tuple(hint.ran[:MAX_CALLS]))


class Recovery:
    """Recovers the forgotten turns of one request. Together they run no more than `most` calls."""

    def __init__(self, toolbox: Toolbox, emit: Emit, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._toolbox = toolbox
        self._emit = emit
        self._clock = clock
        self._left = min(most, MAX_RERUN)

    async def make_again(self, turn: ForgottenTurn) -> HiddenTurns:
        """Return the turn with all its calls, and answers to ours."""
        calls = list(turn.assistant["tool_calls"])
        for call in sorted(turn.calls, key=lambda call: call.place):
            function = {"name": call.name, "arguments": call.arguments or "{}"}
            calls.insert(max(call.place, 0), {"id": call.id, "type": "function", "function": function})
        results = {}
        for call in turn.calls:
            outcome = await self._outcome(call)
            if isinstance(outcome, Failed) or outcome.text:
                text = outcome.text
            else:
                text = RESULT_LOST
            results[call.id] = {"role": "tool", "tool_call_id": call.id, "content": text}
        return HiddenTurns(before=(), assistant={**turn.assistant, "tool_calls": calls}, results=results)

    async def _outcome(self, forgotten: ForgottenCall) -> Outcome:
        box = self._toolbox
        if forgotten.arguments is None or forgotten.name not in box.offer or box.is_clients(forgotten.name):
            return Failed(RESULT_LOST)
        written = Fragments()
        written.add(forgotten.arguments)
        call_written = FoundCall(forgotten.id, forgotten.name, written)
        [call] = settle([call_written], box.offer, failure=None, at_length=False, new_id=lambda: forgotten.id)
        if isinstance(call, BrokenCall):
            return Failed(feedback.explain(call, box.offer))
        if box.is_clients(call.name) or box.writes(call) or not self._left:
            return Failed(RESULT_LOST)
        self._left -= 1
        outcomes = await run_calls([call], box, self._emit, BEFORE_ALL_TURNS, most=1, clock=self._clock)
        return outcomes[call.id]


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
