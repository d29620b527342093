"""What a client did not see is put back in its place, whatever the client made of the rest."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from app.chat.events import Unseen
from app.chat.unseen import decode_unseen, encode_unseen, handed_ids, put_back


def raw(message: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(message))


def plain(messages: Any) -> list[Any]:
    return [msgspec.json.decode(message) if isinstance(message, msgspec.Raw) else message for message in messages]


def call(id: str, name: str = "echo", arguments: str = "{}") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def said(*calls: dict[str, Any], content: str | None = None) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def answer(id: str, content: str = "own") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": content}


USER = {"role": "user", "content": "hi"}
HOUSE = {"role": "tool", "tool_call_id": "h", "content": "ours"}
MIXED = Unseen(before=(), assistant=said(call("h", "clock"), call("c")), results={"h": HOUSE})


def test_a_turn_is_made_whole_in_the_order_of_its_calls() -> None:
    history = [raw(USER), raw(said(call("c"))), raw(answer("c")), raw(USER)]
    whole = put_back(history, {"c": MIXED})
    assert plain(whole) == [USER, MIXED.assistant, HOUSE, answer("c"), USER]
    assert whole[0] is history[0]
    assert whole[3] is history[2], "what is the client's own stays the bytes it was"


def test_turns_before_it_and_images_behind_it_have_their_places() -> None:
    before = (said(call("h0", "clock")), {"role": "tool", "tool_call_id": "h0", "content": "earlier"})
    shown = {"role": "user", "content": [{"type": "text", "text": "image"}]}
    unseen = Unseen(before, MIXED.assistant, MIXED.results, after=(shown,))
    whole = put_back([raw(USER), raw(said(call("c"))), raw(answer("c"))], {"c": unseen})
    assert plain(whole) == [USER, *before, MIXED.assistant, HOUSE, answer("c"), shown]


def test_a_history_without_kept_calls_is_the_same_objects() -> None:
    history = (raw(USER), raw(said(call("other"))), raw(answer("other")))
    assert put_back(history, {"c": MIXED}) == history


def test_a_call_that_the_client_left_out_is_left_out_of_the_turn() -> None:
    unseen = Unseen((), said(call("h", "clock"), call("c"), call("d")), {"h": HOUSE})
    whole = plain(put_back([raw(said(call("d"))), raw(answer("d"))], {"c": unseen, "d": unseen}))
    assert [one["id"] for one in whole[0]["tool_calls"]] == ["h", "d"]
    assert [one["tool_call_id"] for one in whole[1:]] == ["h", "d"]


def test_an_answer_that_nobody_asked_for_is_left_to_the_provider() -> None:
    whole = plain(put_back([raw(said(call("c"))), raw(answer("c")), raw(answer("x"))], {"c": MIXED}))
    assert whole[-2:] == [answer("c"), answer("x")]


def test_a_call_without_an_answer_stays_without_one() -> None:
    whole = plain(put_back([raw(said(call("c"))), raw(USER)], {"c": MIXED}))
    assert whole == [MIXED.assistant, HOUSE, USER]


def test_two_answers_to_one_call_are_both_left_standing() -> None:
    whole = plain(put_back([raw(said(call("c"))), raw(answer("c", "1")), raw(answer("c", "2"))], {"c": MIXED}))
    assert whole[2:] == [answer("c", "1"), answer("c", "2")]


def test_ids_that_the_client_knows_otherwise_are_the_models_again() -> None:
    unseen = Unseen((), MIXED.assistant, MIXED.results, names={"fresh": "c"})
    whole = plain(put_back([raw(said(call("fresh"))), raw({**answer("fresh"), "x": 1.5})], {"fresh": unseen}))
    assert whole == [MIXED.assistant, HOUSE, {**answer("c"), "x": 1.5}]


def test_another_call_under_the_same_id_is_not_the_one_that_was_kept() -> None:
    for other in (call("c", "other"), call("c", arguments='{"a": 1}')):
        history = (raw(said(other)), raw(answer("c")))
        assert put_back(history, {"c": MIXED}) == history


def test_arguments_are_the_same_however_they_are_written() -> None:
    unseen = Unseen((), said(call("c", arguments='{"a":1,"b":[]}')), {}, ran=())
    again = put_back([raw(said(call("c", arguments='{ "b": [], "a": 1 }')))], {"c": unseen})
    assert plain(again) == [unseen.assistant]


def test_custom_calls_are_known_by_their_input() -> None:
    shell = {"id": "c", "type": "custom", "custom": {"name": "shell", "input": "ls"}}
    unseen = Unseen((), said(call("h", "clock"), shell), {"h": HOUSE})
    assert plain(put_back([raw(said(shell)), raw(answer("c"))], {"c": unseen})) == [
        unseen.assistant,
        HOUSE,
        answer("c"),
    ]
    other = {**shell, "custom": {"name": "shell", "input": "rm"}}
    assert plain(put_back([raw(said(other))], {"c": unseen})) == [said(other)]


def test_ids_are_found_and_odd_messages_are_passed_over() -> None:
    odd = [msgspec.Raw(b'{"role":"assistant","tool_calls":7}'), msgspec.Raw(b'["tool_calls"]'), raw(said(call("c")))]
    assert handed_ids([raw(USER), *odd, raw({"role": "user", "content": 'in words: "tool_calls"'})]) == ["c"]


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
    unseen = Unseen((extras,), {**said(call("c")), "extras": extras}, {"h": HOUSE})
    again = decode_unseen(encode_unseen(unseen))
    assert msgspec.json.encode(again.before[0]) == encoded
    assert encode_unseen(again) == encode_unseen(unseen)
