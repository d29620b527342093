"""The fast twin of the reader of whole answers equals it for every answer, or leaves it to it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.conversation.events import CallWritten, Finished, ProviderHead, TextDelta
from callgate.conversation.usage import Usage
from callgate.models.direct.completion_fast import read_completion_fast
from callgate.models.direct.model import WholeBody, completion_events_fast
from callgate.untrusted.doors import SMALL, written_here

USAGE = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}


class PlainBody(WholeBody):
    """A subclass is read the plain way."""


def completion(message, **fields):
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"id": "c", "object": "chat.completion", "model": "m", "choices": [choice], "usage": USAGE, **fields}


def read_by(body, text):
    """The events, and how the body ended."""
    body.feed(text)
    events = list(body.finish())
    return events, body.is_done, body.fault


def call(**fields):
    return {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}, **fields}


texts = st.sampled_from(["", "hi", "ä\ud83d\ude00", "\ud800", "{}", "stop", "tool_calls"]) | st.text(max_size=4)
odd: st.SearchStrategy[Any] = st.sampled_from(
    [None, "", "x", 0, 1, -1, 0.0, 1.5, True, [], [1], {}, {"a": 1}, [[]], [None]]
)
values = texts | odd
functions = st.fixed_dictionaries({}, optional={"name": values, "arguments": values, "more": values}) | odd
calls = (
    st.fixed_dictionaries(
        {"function": functions},
        optional={"id": values, "type": values, "index": values, "custom": functions, "extra_content": values},
    )
    | odd
)
MESSAGE_FIELDS = [
    "content",
    "role",
    "refusal",
    "annotations",
    "audio",
    "reasoning",
    "reasoning_content",
    "function_call",
]
messages = (
    st.fixed_dictionaries(
        {}, optional={"tool_calls": st.lists(calls, max_size=3), **dict.fromkeys(MESSAGE_FIELDS, values)}
    )
    | odd
)
choices = (
    st.fixed_dictionaries(
        {"message": messages},
        optional={
            **dict.fromkeys(["finish_reason", "index", "logprobs", "native_finish_reason", "delta", "error"], values),
        },
    )
    | odd
)
usages = st.fixed_dictionaries({}, optional=dict.fromkeys(USAGE, values)) | odd
bodies = (
    st.fixed_dictionaries(
        {"choices": st.lists(choices, max_size=2) | odd},
        optional={
            "object": st.sampled_from(["chat.completion", "error"]) | values,
            "usage": usages,
            **dict.fromkeys(
                ["id", "model", "created", "system_fingerprint", "service_tier", "error", "detail"], values
            ),
        },
    )
    | odd
)
usual_messages = st.fixed_dictionaries(
    {"content": st.none() | texts},
    optional={
        "role": st.just("assistant"),
        "tool_calls": st.lists(st.just(call()) | calls, max_size=2),
        "refusal": st.none(),
    },
)
usual_bodies = st.builds(completion, usual_messages, usage=usages)


@given(body=bodies | usual_bodies, with_names=st.booleans(), escaped=st.booleans())
def test_every_answer_is_read_as_the_plain_way_reads_it(body: Any, with_names: bool, escaped: bool) -> None:
    text = json.dumps(body, ensure_ascii=escaped).encode("utf-8", "surrogatepass")
    if with_names:  # a field twice, of which the plain way takes the last, or breaks the answer off
        text = text.replace(b'"content":', b'"content": "first", "content":').replace(
            b'"arguments":', b'"arguments": "{}", "arguments":'
        )
    assert read_by(WholeBody(), text) == read_by(PlainBody(), text)


@given(cut=st.integers(0, 200), body=usual_bodies)
def test_a_cut_answer_is_read_as_the_plain_way_reads_it(cut: int, body: Any) -> None:
    text = json.dumps(body).encode()[:cut]
    assert read_by(WholeBody(), text) == read_by(PlainBody(), text)


@pytest.mark.parametrize(
    ("message", "event"),
    [
        ({"role": "assistant", "content": "hi", "refusal": None, "annotations": []}, TextDelta("hi")),
        ({"role": "assistant", "content": None, "tool_calls": [call()]}, CallWritten("f", "{}", "call_1")),
    ],
)
def test_the_answers_of_most_models_are_read_the_fast_way(message: Any, event: Any) -> None:
    events = read_completion_fast(written_here(json.dumps(completion(message, created=1)).encode()))
    assert events == [ProviderHead("c", "m"), event, Finished("stop"), Usage(USAGE)]


@pytest.mark.parametrize("field", ["reasoning", "provider_specific_fields"])
def test_answers_with_more_are_left_to_the_plain_way(field: str) -> None:
    answer = completion({"role": "assistant", "content": "hi", field: "thinking"})
    assert read_completion_fast(written_here(json.dumps(answer).encode())) is None


def test_long_answers_are_counted_before_they_are_read() -> None:
    text = json.dumps(completion({"role": "assistant", "content": "a" * SMALL})).encode()
    assert read_by(WholeBody(), text) == read_by(PlainBody(), text)
    assert completion_events_fast(text, "") is None


def test_a_field_of_the_providers_own_is_left_to_the_plain_way() -> None:
    text = json.dumps(completion({"role": "assistant", "content": "hi"})).encode()
    assert read_by(WholeBody("content"), text) == read_by(PlainBody("content"), text)
