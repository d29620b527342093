"""What a client did not see is put back in its place, whatever the client made of the rest."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.conversation.events import HiddenTurns
from callgate.conversation.hidden_history import (
    ReturnedMessage,
    decode_hidden,
    encode_hidden,
    handle_of,
    handles_in,
    names_called,
    put_back,
)
from callgate.conversation.ports import Message


def raw(message: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(message))


def decoded_messages(messages: Any) -> list[Any]:
    return [msgspec.json.decode(message) if isinstance(message, msgspec.Raw) else message for message in messages]


def call(id: str, name: str = "echo", arguments: str = "{}") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def assistant_message(*calls: dict[str, Any], content: str | None = None) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def answer(id: str, content: str = "own") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": content}


USER = {"role": "user", "content": "hi"}
OURS = {"role": "tool", "tool_call_id": "h", "content": "ours"}
MIXED = HiddenTurns(before=(), assistant=assistant_message(call("h", "clock"), call("c")), results={"h": OURS})


def restored(history: Sequence[Message], kept: dict[str, HiddenTurns]) -> tuple[Message, ...]:
    """With what was kept under these ids, wherever in the history they are."""
    places = range(len(history))
    return put_back(history, {handle_of(id, history, place): one for place in places for id, one in kept.items()})


def test_a_turn_is_made_whole_in_the_order_of_its_calls() -> None:
    history = [raw(USER), raw(assistant_message(call("c"))), raw(answer("c")), raw(USER)]
    whole = restored(history, {"c": MIXED})
    assert decoded_messages(whole) == [USER, MIXED.assistant, OURS, answer("c"), USER]
    assert whole[0] is history[0]
    assert whole[3] is history[2], "what is the client's own stays the bytes it was"


def test_turns_before_it_and_images_behind_it_have_their_places() -> None:
    before = (assistant_message(call("h0", "clock")), {"role": "tool", "tool_call_id": "h0", "content": "earlier"})
    shown = {"role": "user", "content": [{"type": "text", "text": "image"}]}
    hidden = HiddenTurns(before, MIXED.assistant, MIXED.results, after=(shown,))
    whole = restored([raw(USER), raw(assistant_message(call("c"))), raw(answer("c"))], {"c": hidden})
    assert decoded_messages(whole) == [USER, *before, MIXED.assistant, OURS, answer("c"), shown]


def test_a_history_without_kept_calls_is_the_same_objects() -> None:
    history = (raw(USER), raw(assistant_message(call("other"))), raw(answer("other")))
    assert restored(history, {"c": MIXED}) == history


def test_a_call_that_the_client_left_out_is_left_out_of_the_turn() -> None:
    hidden = HiddenTurns((), assistant_message(call("h", "clock"), call("c"), call("d")), {"h": OURS})
    whole = decoded_messages(
        restored([raw(assistant_message(call("d"))), raw(answer("d"))], {"c": hidden, "d": hidden})
    )
    assert [one["id"] for one in whole[0]["tool_calls"]] == ["h", "d"]
    assert [one["tool_call_id"] for one in whole[1:]] == ["h", "d"]


def test_an_answer_without_a_call_is_left_to_the_provider() -> None:
    whole = decoded_messages(
        restored([raw(assistant_message(call("c"))), raw(answer("c")), raw(answer("x"))], {"c": MIXED})
    )
    assert whole[-2:] == [answer("c"), answer("x")]


def test_a_call_without_an_answer_stays_without_one() -> None:
    whole = decoded_messages(restored([raw(assistant_message(call("c"))), raw(USER)], {"c": MIXED}))
    assert whole == [MIXED.assistant, OURS, USER]


def test_two_answers_to_one_call_are_both_left_standing() -> None:
    whole = decoded_messages(
        restored([raw(assistant_message(call("c"))), raw(answer("c", "1")), raw(answer("c", "2"))], {"c": MIXED})
    )
    assert whole[2:] == [answer("c", "1"), answer("c", "2")]


def test_ids_that_were_changed_for_the_client_are_the_models_again() -> None:
    hidden = HiddenTurns((), MIXED.assistant, MIXED.results, names={"fresh": "c"})
    whole = decoded_messages(
        restored([raw(assistant_message(call("fresh"))), raw({**answer("fresh"), "x": 1.5})], {"fresh": hidden})
    )
    assert whole == [MIXED.assistant, OURS, {**answer("c"), "x": 1.5}]


def test_another_call_under_the_same_id_is_not_the_one_that_was_kept() -> None:
    for other in (call("c", "other"), call("c", arguments='{"a": 1}')):
        history = (raw(assistant_message(other)), raw(answer("c")))
        assert restored(history, {"c": MIXED}) == history


def test_arguments_are_the_same_however_they_are_written() -> None:
    hidden = HiddenTurns((), assistant_message(call("c", arguments='{"a":1,"b":[]}')), {}, ran=())
    again = restored([raw(assistant_message(call("c", arguments='{ "b": [], "a": 1 }')))], {"c": hidden})
    assert decoded_messages(again) == [hidden.assistant]


def test_custom_calls_are_known_by_their_input() -> None:
    shell = {"id": "c", "type": "custom", "custom": {"name": "shell", "input": "ls"}}
    hidden = HiddenTurns((), assistant_message(call("h", "clock"), shell), {"h": OURS})
    assert decoded_messages(restored([raw(assistant_message(shell)), raw(answer("c"))], {"c": hidden})) == [
        hidden.assistant,
        OURS,
        answer("c"),
    ]
    other = {**shell, "custom": {"name": "shell", "input": "rm"}}
    assert decoded_messages(restored([raw(assistant_message(other))], {"c": hidden})) == [assistant_message(other)]


def test_ids_are_found_and_odd_messages_are_passed_over() -> None:
    odd = [
        msgspec.Raw(b'{"role":"assistant","tool_calls":7}'),
        msgspec.Raw(b'["tool_calls"]'),
        raw(assistant_message(call("c"))),
    ]
    history = [raw(USER), *odd, raw({"role": "user", "content": 'in words: "tool_calls"'})]
    assert handles_in(history) == [handle_of("c", [raw(USER)], 1)]


BY_CHANCE = ["call_0a1b2c3d4e5f", "call_Zx81kQ0pL2mN", "chatcmpl-tool-3f2a9c1d77", "toolu_01A09q90qw90lq917835lq9"]
COUNTED = [
    "call_0",
    "call_00000012",
    "1731956400123",
    "c",
    "functions.get_weather:0",
    "get_weather2",
    "0",
    "call_o2",
    "",
]


@pytest.mark.parametrize("id", BY_CHANCE)
def test_an_id_made_by_chance_is_known_anywhere(id: str) -> None:
    assert handle_of(id, [raw(USER)], 1) == handle_of(id, [], 0) == id


@pytest.mark.parametrize("id", COUNTED)
def test_a_counted_id_is_recognized_behind_a_user_message(id: str) -> None:
    other = raw({"role": "user", "content": "ho"})
    parts = raw({"content": [{"type": "text", "text": "hi"}], "role": "user"})
    again = raw({"content": [{"text": "hi", "type": "text"}], "role": "user", "name": "x"})
    assert len({handle_of(id, [raw(message)], 1) for message in (USER, {"role": "user", "content": "ho"})}) == 2
    assert handle_of(id, [raw(USER), raw(assistant_message(call("x"))), raw(answer("x"))], 3) == handle_of(
        id, [raw(USER)], 1
    )
    assert handle_of(id, [other, raw(USER)], 2) != handle_of(id, [raw(USER)], 1)
    assert handle_of(id, [parts], 1) == handle_of(id, [again], 1)
    assert handle_of(id, [raw(USER), other], 1) == handle_of(id, [raw(USER)], 1)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), _json, max_size=4))
def test_what_is_kept_comes_back_as_the_same_bytes(extras: dict[str, Any]) -> None:
    try:
        encoded = msgspec.json.encode(extras)
    except (UnicodeEncodeError, msgspec.MsgspecError):
        return
    hidden = HiddenTurns((extras,), {**assistant_message(call("c")), "extras": extras}, {"h": OURS})
    again = decode_hidden(encode_hidden(hidden))
    assert msgspec.json.encode(again.before[0]) == encoded
    assert encode_hidden(again) == encode_hidden(hidden)


def test_a_call_of_the_bridge_that_was_shown_under_its_own_name_is_not_repeated() -> None:
    bridged = call("h", "call_tool", '{"name": "clock", "arguments": {"zone": "UTC"}}')
    hidden = HiddenTurns((), assistant_message(bridged, call("c")), {"h": OURS})
    shown = [
        ReturnedMessage(assistant_message(call("mcp_1", "clock", '{"zone":"UTC"}'))),
        ReturnedMessage({"role": "tool", "tool_call_id": "mcp_1", "content": "ours"}),
    ]
    history: list[Message] = [raw(USER), *shown, raw(assistant_message(call("c"))), raw(answer("c"))]
    assert decoded_messages(restored(history, {"c": hidden})) == [USER, hidden.assistant, OURS, answer("c")]


def test_the_names_of_calls_inside_the_bridge_are_those_of_their_tools() -> None:
    inside = '{"name": "clock", "arguments": {}}'
    written = [call("a", "call_tool", inside), call("b", "callgate__call_tool", inside), call("c", "call_tool", "{}")]
    for message in (raw(assistant_message(*written)), assistant_message(*written)):
        assert list(names_called([message])) == ["clock", "clock", "call_tool"]
