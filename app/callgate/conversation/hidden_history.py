"""Restores the turns of a chat that its client was not shown (server-side calls and results).

A client that is sent calls of its own tools is not sent what happened here before: earlier turns that ran our tools, our
calls in the same turn, the model's signatures. All of that is one `HiddenTurns`. It is stored under the ids of the
client's calls. When the client returns with these ids the history is restored: the model reads what it would have read
if all tools were of one side.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final

import msgspec

from callgate.calls.json_text import JsonFault, read_json
from callgate.calls.names import is_bridge
from callgate.conversation.events import HiddenTurns
from callgate.conversation.ports import Message
from callgate.untrusted.doors import OWN_BYTES, Door, Untrusted
from callgate.untrusted.readers import NULL, json_reader, read_value

_CALLS = b'"tool_calls"'
_ANSWERS = b'"tool_call_id"'
_USER = b'"user"'
_LAST_WORD = re.compile(r"[A-Za-z0-9]+\Z")


class _CallBody(msgspec.Struct):
    name: str | None = None
    arguments: Any = None
    input: Any = None


class HandedCall(msgspec.Struct):
    """A call in a history that came from a client."""

    id: str | None = None
    function: _CallBody | None = None
    custom: _CallBody | None = None


class _MessageHead(msgspec.Struct):
    role: str = ""
    tool_calls: list[HandedCall] | None = None
    tool_call_id: str | None = None
    content: msgspec.Raw = msgspec.Raw()


STORED_TURNS: Final = Door(name="stored turns of a conversation", bytes=OWN_BYTES)
_decoder = json_reader(HiddenTurns)
_head = json_reader(_MessageHead)
_fields = json_reader(dict[str, msgspec.Raw])


class ReturnedMessage(dict[str, Any]):
    """A message about calls of ours that the client was shown and sent back. It is dropped where the same calls are stored."""


def encode_hidden(hidden: HiddenTurns) -> bytes:
    return msgspec.json.encode(hidden)


def decode_hidden(data: bytes) -> HiddenTurns:
    return _decoder(Untrusted(data, STORED_TURNS).open())


class CallingTurn(msgspec.Struct, frozen=True):
    """A message with calls, in a history that came from a client."""

    place: int
    calls: Sequence[HandedCall]
    handles: tuple[str, ...]
    """The keys under which its calls are stored."""


def handle_of(id: str, messages: Sequence[Message], place: int) -> str:
    """Return the key of a call at a place of a history: the id alone if it is random. A numbered one (`call_0`) comes in
    every conversation, so that its key includes a digest of the user's messages before it."""
    return _UserTexts(messages).handle(id, place)


def handles_in(messages: Sequence[Message]) -> list[str]:
    """Return the handles of all calls in a history from a client. Cheap where there are none."""
    return [handle for turn in calling_turns(messages) for handle in turn.handles]


def has_calls(messages: Sequence[Message]) -> bool:
    """True if a history may hold calls that a client sent back."""
    for message in messages:  # noqa: SIM110 - of each request, and a generator costs as much again
        if isinstance(message, msgspec.Raw) and _CALLS in bytes(message):
            return True
    return False


def calling_turns(messages: Sequence[Message]) -> Iterator[CallingTurn]:
    speech = _UserTexts(messages)
    for place, message in enumerate(messages):
        head = _head_of(message, _CALLS)
        if head is not None and head.role == "assistant" and head.tool_calls:
            handles = tuple(speech.handle(call.id, place) for call in head.tool_calls if call.id)
            yield CallingTurn(place, head.tool_calls, handles)


def names_called(messages: Sequence[Message]) -> Iterator[str]:
    """Yield the names of the tools that a history has calls of."""
    for message in messages:
        if isinstance(message, msgspec.Raw):
            head = _head_of(message, _CALLS)
            for call in (head.tool_calls or ()) if head is not None else ():
                if call.function is not None and call.function.name:
                    yield out_of_bridge(call.function.name, call.function.arguments)[0]
        else:
            for written in message.get("tool_calls") or ():
                function = written.get("function") or {}
                yield out_of_bridge(function.get("name") or "", function.get("arguments"))[0]


def out_of_bridge(name: str, arguments: Any) -> tuple[str, Any]:
    """Return the name and the arguments of a call in a history; those of the call inside where it is one of the bridge."""
    if not is_bridge(name):
        return name, arguments
    inside = _meaning(arguments)
    if isinstance(inside, dict) and isinstance(inside.get("name"), str):
        return inside["name"], inside.get("arguments")
    return name, arguments


def put_back(messages: Sequence[Message], hidden_turns: Mapping[str, HiddenTurns]) -> tuple[Message, ...]:
    """Return the history with its hidden turns in their places. `hidden_turns` is by the handles of the calls."""
    hidden_at = _hidden_at(messages, hidden_turns)
    repeated = _repeated(messages, {place: hidden for place, (_, hidden) in hidden_at.items()})
    whole: list[Message] = []
    place = 0
    while place < len(messages):
        message = messages[place]
        if place in hidden_at:
            turn, hidden = hidden_at[place]
            answers, place = _answers(messages, place + 1)
            whole += _whole_turn(hidden, turn.calls, answers)
        elif place in repeated and isinstance(message, ReturnedMessage):
            count = len(message["tool_calls"])
            whole += _without(messages[place : place + 1 + count], repeated[place])
            place += 1 + count
        else:
            whole.append(message)
            place += 1
    return tuple(whole)


def _hidden_at(
    messages: Sequence[Message], hidden_turns: Mapping[str, HiddenTurns]
) -> dict[int, tuple[CallingTurn, HiddenTurns]]:
    """Return the turns with hidden ones, by their places."""
    hidden_at: dict[int, tuple[CallingTurn, HiddenTurns]] = {}
    used: set[int] = set()
    for turn in calling_turns(messages):
        hidden = next((hidden_turns[handle] for handle in turn.handles if handle in hidden_turns), None)
        # A client may write parallel calls as one message each; the hidden turns belong to the first of them.
        if hidden is not None and id(hidden) not in used and _is_of(hidden, turn.calls):
            used.add(id(hidden))
            hidden_at[turn.place] = turn, hidden
    return hidden_at


def _repeated(messages: Sequence[Message], restored: Mapping[int, HiddenTurns]) -> dict[int, set[int]]:
    """Return the calls that were shown and are restored as well: their numbers, by the places of their messages. The same call may
    be in several turns: the nearest before the restored one is meant, else the next behind it, up to a message of the user's."""
    repeated: dict[int, set[int]] = {}
    for place, hidden in restored.items():
        missing = Counter(_accounts((*hidden.before, hidden.assistant, *hidden.results.values())))
        for near in _around(messages, place):
            message = messages[near]
            if not isinstance(message, ReturnedMessage) or message["role"] != "assistant":
                continue
            results = [
                result
                for result in messages[near + 1 : near + 1 + len(message["tool_calls"])]
                if isinstance(result, dict)
            ]
            for number, account in reversed([*enumerate(_accounts((message, *results)))]):
                if missing[account] > 0 and number not in repeated.get(near, ()):
                    missing[account] -= 1
                    repeated.setdefault(near, set()).add(number)
    return repeated


def _around(messages: Sequence[Message], place: int) -> Iterator[int]:
    """Yield the places before one, the nearest first, and then those behind it, up to messages of the user's."""
    for places in (range(place - 1, -1, -1), range(place + 1, len(messages))):
        yield from takewhile(lambda near: not _is_users(messages[near]), places)


def _is_users(message: Message) -> bool:
    if isinstance(message, msgspec.Raw):
        head = _head_of(message, _USER)
        return head is not None and head.role == "user"
    return bool(message["role"] == "user")


def _without(round_: Sequence[Message], numbers: Collection[int]) -> Iterator[Message]:
    """Yield a message with calls and its results, without some of the calls."""
    message, *results = round_
    assert isinstance(message, ReturnedMessage), "only these are left out"
    calls = [call for number, call in enumerate(message["tool_calls"]) if number not in numbers]
    if calls:
        yield {**message, "tool_calls": calls}
        yield from (result for number, result in enumerate(results) if number not in numbers)


def _accounts(messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str, str]]:
    """Yield name, arguments and answer of each call."""
    for place, message in enumerate(messages):
        following = takewhile(lambda result: result["role"] == "tool", messages[place + 1 :])
        answers = {result["tool_call_id"]: result["content"] for result in following}
        for call in message.get("tool_calls") or ():
            function = call.get("function") or {}
            name, written = out_of_bridge(function.get("name", ""), function.get("arguments"))
            arguments = msgspec.json.encode(_meaning(written), order="sorted").decode()
            yield name, arguments, str(answers.get(call["id"], ""))


def without_repeats(messages: Sequence[Message], shown: frozenset[str]) -> tuple[Message, ...]:
    """Return the history without rounds of calls that the client sent back and that were restored as well. `shown`: the ids
    of the calls that clients were shown."""
    ours = {call["id"] for message in messages if isinstance(message, dict) for call in message.get("tool_calls") or ()}
    repeated = ours & shown
    if not repeated:
        return tuple(messages)
    history: list[Message] = []
    for message in messages:
        head = _head_of(message, _CALLS) or _head_of(message, _ANSWERS)
        calls = () if head is None else head.tool_calls or ()
        are_all_repeated = bool(calls) and all(call.id in repeated for call in calls)
        if head is None or not (head.tool_call_id in repeated or are_all_repeated):
            history.append(message)
    return tuple(history)


def _whole_turn(hidden: HiddenTurns, calls: Sequence[HandedCall], answers: dict[str, Message]) -> Iterator[Message]:
    """Yield the turns before it, its message with all its calls, and the answers in the order of the calls."""
    shown = {hidden.names.get(call.id, call.id): call.id for call in calls if call.id}
    # Providers refuse a history with an unanswered call: a call that the client left out is dropped.
    known_calls = [
        call for call in hidden.assistant["tool_calls"] if call["id"] in hidden.results or call["id"] in shown
    ]
    yield from hidden.before
    yield {**hidden.assistant, "tool_calls": known_calls}
    for call in known_calls:
        model_id = call["id"]
        if model_id in hidden.results:
            yield hidden.results[model_id]
        elif (answer := answers.pop(shown[model_id], None)) is not None:
            yield answer if shown[model_id] == model_id else _under(model_id, answer)
    yield from answers.values()  # answers to calls that do not exist: the provider reports them
    yield from hidden.after


def _is_of(hidden: HiddenTurns, calls: Sequence[HandedCall]) -> bool:
    """True if the hidden turns are about these calls: some providers number their ids from 0 in every chat."""
    own_calls = {call["id"]: call for call in hidden.assistant["tool_calls"]}
    named = [(call, own_calls.get(hidden.names.get(call.id or "", call.id or ""))) for call in calls]
    return all(own_call is None or _is_same(call, own_call) for call, own_call in named)


def _is_same(call: HandedCall, own_call: Mapping[str, Any]) -> bool:
    mine = call.custom or call.function
    theirs = own_call.get("custom") or own_call.get("function") or {}
    if mine is None or mine.name != theirs.get("name"):
        return False
    return bool(mine.input == theirs.get("input") and _meaning(mine.arguments) == _meaning(theirs.get("arguments")))


def _meaning(arguments: Any) -> Any:
    """Parse arguments where they are JSON, because some clients reformat them."""
    if not isinstance(arguments, str):
        return arguments or {}
    try:
        if arguments.strip():
            return read_json(arguments)
        return {}
    except JsonFault:
        return arguments


def _answers(messages: Sequence[Message], place: int) -> tuple[dict[str, Message], int]:
    """Return the tool messages from a place on, by the ids of their calls, and the place behind them."""
    answers: dict[str, Message] = {}
    while place < len(messages):
        head = _head_of(messages[place], _ANSWERS)
        if head is None or head.role != "tool" or not head.tool_call_id or head.tool_call_id in answers:
            break
        answers[head.tool_call_id] = messages[place]
        place += 1
    return answers, place


def _is_random(id: str) -> bool:
    """True if an id is random. Digits alone are a counter or a time."""
    last = _LAST_WORD.search(id)
    digits = sum(map(str.isdigit, last.group())) if last else 0
    return last is not None and len(last.group()) >= 8 and 2 <= digits < len(last.group())


class _UserTexts:
    """Digests of the user's messages before each place of a history. In ascending order of places the history is read once."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages
        self._known = (0, "")

    def handle(self, id: str, place: int) -> str:
        if _is_random(id):
            return id
        return f"{id}\0{self._said_before(place)}"

    def _said_before(self, place: int) -> str:
        start, digest = self._known
        for message in self._messages[start:place]:
            head = _head_of(message, _USER)
            if head is not None and head.role == "user":
                body = read_value(head.content if bytes(head.content) else NULL)
                text = digest.encode() + msgspec.json.encode(body, order="deterministic")
                digest = hashlib.sha256(text).hexdigest()
        self._known = (place, digest)
        return digest


def _head_of(message: Message, mark: bytes) -> _MessageHead | None:
    if not isinstance(message, msgspec.Raw) or mark not in bytes(message):
        return None
    try:
        return _head(message)
    except msgspec.DecodeError:
        return None  # sent on unchanged; the provider reports what is wrong with it


def _under(model_id: str, answer: Message) -> Message:
    if isinstance(answer, msgspec.Raw):
        fields = _fields(answer)
    else:
        fields = answer
    # Encoded as a whole: later code expects no undecoded parts inside a message.
    return msgspec.Raw(msgspec.json.encode({**fields, "tool_call_id": model_id}))
