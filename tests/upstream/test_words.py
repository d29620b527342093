"""What is told to be nothing but words has nothing in it that would have to be looked at."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callgate.upstream.words import MOST_LESSONS, Words
from tests.upstream.wire import chunk


def event(value, **more):
    return b"data: " + json.dumps(chunk({"content": value}, **more), ensure_ascii=False).encode() + b"\n\n"


def after(*events):
    words = Words()
    for each in events:
        words.learn(each)
    return words


def test_more_words_are_told_one_by_one_and_many_at_once():
    words = after(event("first"))
    assert words.are_all_of(event("second"))
    assert words.are_all_of(event("a") + event("") + event("caf\u00e9 [DONE] error"))


@pytest.mark.parametrize(
    "other",
    [
        b"data: [DONE]\n\n",
        b": ping\n\n",
        event("x", finish="stop"),
        event("x", usage={"total_tokens": 1}),
        event("x", error={"message": "y"}),
        event('say "error"'),
        event("x").replace(b'"x"', b'"x", "error": "y"'),
        event("x")[:-1],
        event("x").replace(b'"x"', b'"x\n"'),
    ],
)
def test_anything_else_is_looked_at(other):
    words = after(event("first"))
    assert not words.are_all_of(other)
    assert not words.are_all_of(event("a") + other + event("b"))
    assert not words.are_all_of(event("a") + other)


def test_nothing_is_told_before_there_were_words():
    assert not Words().are_all_of(event("a"))
    assert not after(event("")).are_all_of(event(""))


def test_what_stands_around_them_may_change_a_few_times():
    def numbered(number):
        return event("a", number=number)

    words = Words()
    for number in range(MOST_LESSONS):
        words.learn(numbered(number))
        assert words.are_all_of(numbered(number))
    words.learn(numbered(MOST_LESSONS))
    assert not words.are_all_of(numbered(MOST_LESSONS))


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.one_of(st.text(max_size=5), st.sampled_from(['"', "\\", "[DONE]", '"error"', "\n\ndata: "])),
            st.sampled_from([None, None, None, "stop"]),
            st.booleans(),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_what_is_told_to_be_words_says_nothing_else(found):
    words = after(event("first"))
    events = [event(text, finish=finish, **({"error": text} if odd else {})) for text, finish, odd in found]
    if words.are_all_of(b"".join(events)):
        assert all(finish is None and not odd for _, finish, odd in found)
