"""Chunks of the usual form are read fast, and as the plain reader reads them, or left to it."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callgate.conversation.events import CallDelta, Finished, ProviderHead, TextDelta
from callgate.conversation.usage import Usage
from callgate.models.direct.chunks import ChunkReader
from callgate.models.direct.chunks_fast import has_surely_once, usual_chunk_fast
from callgate.models.direct.model import (
    StreamedBody,
    _may_have_duplicates,
    _read_alone,
    _read_alone_fast,
    has_duplicate_names,
    read_json,
)
from callgate.untrusted.doors import SMALL, written_here
from tests.chaos.scale import examples

USAGE = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
NAMES = ["content", "role", "refusal", "reasoning", "reasoning_content", "function_call", "annotations", "thoughts"]


class PlainBody(StreamedBody):
    """Reads each chunk the plain way."""

    def _read_usual_fast(self, text):
        return None


def chunk(delta, **fields):
    choice = {"index": 0, "delta": delta, "finish_reason": None}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice], **fields}


def fragment(**fields):
    return {"tool_calls": [{"index": 0, **fields}]}


def read_by(body, texts):
    """The events of a stream, and how its body ended."""
    events = [list(body.feed(b"data: " + text + b"\n\n")) for text in texts]
    if not body.is_done:
        events.append(list(body.finish()))
    return events, body.is_done, body.has_ended, body.fault


texts = st.sampled_from(["", "hi", "a: b", "\\u003a", "ä\ud83d\ude00", "\ud83d", "\ude00", "{}", "stop", "tool_calls"])
odd: st.SearchStrategy[Any] = st.sampled_from(
    [None, "", "x", 0, 1, -1, 0.0, 1.5, True, 1 << 70, [], [1], {}, {"a": 1}, [[]], [None]]
)
values = texts | odd
functions = st.fixed_dictionaries({}, optional={"name": values, "arguments": values, "more": values}) | odd
usual_functions = st.fixed_dictionaries({}, optional={"name": texts, "arguments": texts})
calls = (
    st.fixed_dictionaries(
        {"function": usual_functions | functions},
        optional={"id": values, "type": values, "index": values, "custom": functions, "extra_content": values},
    )
    | odd
)
usual_calls = st.fixed_dictionaries(
    {"index": st.integers(0, 2), "function": usual_functions}, optional={"id": texts | st.none(), "type": texts}
)
deltas = (
    st.fixed_dictionaries(
        {}, optional={"tool_calls": st.lists(calls, max_size=2) | odd, **dict.fromkeys(NAMES, values)}
    )
    | odd
)
usual_deltas = st.fixed_dictionaries({}, optional={"content": texts, "role": texts, "refusal": st.none()}) | st.builds(
    lambda call, **more: {"tool_calls": [call], **more}, usual_calls
)
choices = (
    st.fixed_dictionaries(
        {"delta": usual_deltas | deltas},
        optional=dict.fromkeys(["finish_reason", "index", "logprobs", "native_finish_reason", "message"], values),
    )
    | odd
)
usual_choices = st.fixed_dictionaries(
    {"index": st.just(0), "delta": usual_deltas}, optional={"finish_reason": texts | st.none(), "logprobs": st.none()}
)
usages = st.fixed_dictionaries({}, optional=dict.fromkeys(USAGE, values)) | odd
chunks = (
    st.fixed_dictionaries(
        {"choices": st.lists(usual_choices | choices, max_size=2) | odd},
        optional={
            "object": st.sampled_from(["chat.completion.chunk", "error"]) | values,
            "usage": usages,
            **dict.fromkeys(
                ["id", "model", "created", "system_fingerprint", "service_tier", "error", "detail"], values
            ),
        },
    )
    | odd
)
usual_chunks = st.builds(
    lambda choices, more: {**chunk({}), **more, "choices": choices},
    st.lists(usual_choices, max_size=1),
    st.fixed_dictionaries({}, optional={"usage": usages, "id": values, "model": texts, "service_tier": texts}),
)
TWICE = [
    (b'"content":', b'"content": "first", "content":'),
    (b'"content":', b'"content"\n:"first", "content":'),
    (b'"arguments":', b'"arguments": "{}", "arguments":'),
    (b'"arguments":', b'"arguments" :"{}", "arguments":'),
    (b'"function":', b'"function": null, "function":'),
    (b'"tool_calls":', b'"tool_calls": [], "tool_calls":'),
    (b'"delta":', b'"delta": {}, "delta":'),
    (b'"choices":', b'"choices": [], "choices":'),
    (b'"finish_reason":', b'"finish_reason": "stop", "finish_reason":'),
    (b'"finish_reason":', b'"finish_reason": "stop", "\\u0066inish_reason":'),
    (b'"model":', b'"model": "n", "model":'),
    (b'"id":', b'"id": "n", "id":'),
]
"""Names that are there twice, of which a decoder takes the last."""


@settings(max_examples=examples(250), deadline=None)
@given(
    st.lists(usual_chunks | chunks, max_size=5),
    st.sampled_from([(",", ":"), (", ", ": "), (" , ", " :\t")]),
    st.booleans(),
    st.none() | st.sampled_from(TWICE),
    st.booleans(),
)
def test_every_chunk_is_read_as_the_plain_way_reads_it(found, separators, escaped, twice, with_end) -> None:
    lines = [
        json.dumps(said, ensure_ascii=escaped, separators=separators).encode("utf-8", "surrogatepass") for said in found
    ]
    if twice is not None:
        lines = [line.replace(twice[0], twice[1], 1) for line in lines]
    lines = [line for line in lines if b"\n" not in line]
    if with_end:
        lines.append(b"[DONE]")
    assert read_by(StreamedBody(), lines) == read_by(PlainBody(), lines)


@settings(max_examples=examples(250), deadline=None)
@given(usual_chunks | chunks, st.none() | st.sampled_from(TWICE))
def test_a_chunk_by_itself_is_read_as_the_plain_way_reads_it(said, twice) -> None:
    text = json.dumps(said).encode()
    if twice is not None:
        text = text.replace(twice[0], twice[1], 1)
    events = [event for event in ChunkReader().read(read_json(text)) if not isinstance(event, ProviderHead)]
    assert _read_alone(text) == events
    assert _read_alone_fast(text) in (None, events)


def spelled(said):
    return json.dumps(said).encode()


OPENED = chunk(fragment(id="call_1", type="function", function={"name": "f", "arguments": ""}))
USUAL = [
    (chunk({"role": "assistant", "content": "", "refusal": None}), []),
    (chunk({"content": "ä: b"}, system_fingerprint="x", service_tier=None, obfuscation="a:b"), [TextDelta("ä: b")]),
    (OPENED, [CallDelta(0, "call_1", "f", "")]),
    (chunk(fragment(function={"arguments": '{"a": 1}'})), [CallDelta(0, arguments='{"a": 1}')]),
    ({**chunk({}), "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}, [Finished("stop")]),
    ({**chunk({}, usage=USAGE), "choices": []}, [Usage(USAGE)]),
]


@pytest.mark.parametrize(("said", "events"), USUAL, ids=["role", "text", "call", "arguments", "finish", "usage"])
def test_the_chunks_of_most_models_are_read_the_fast_way(said, events, monkeypatch) -> None:
    monkeypatch.setattr(StreamedBody, "_read_any", None)
    assert _read_alone_fast(spelled(said)) == events
    assert StreamedBody().feed(b"data: " + spelled(said) + b"\n\n") == [ProviderHead("c", "m", *_more(said)), *events]


def _more(said):
    return [said.get("system_fingerprint"), said.get("service_tier")]


@pytest.mark.parametrize(("said", "events"), USUAL, ids=["role", "text", "call", "arguments", "finish", "usage"])
def test_a_name_that_is_there_twice_is_one_more_colon(said, events) -> None:
    text = spelled(said)
    read = usual_chunk_fast(written_here(text), _may_have_duplicates)
    assert read is not None
    has_other_colons = b"a:b" in text  # then it is looked for by another way
    assert has_surely_once(read, text) is not has_other_colons
    for name in said["choices"][0]["delta"] if said["choices"] else ["model"]:
        twice = text.replace(b'"%b":' % name.encode(), b'"%b": null, "%b":' % (name.encode(), name.encode()))
        assert has_duplicate_names(twice)
        assert not has_surely_once(read, twice)


def test_a_colon_that_is_escaped_hides_no_name_that_is_there_twice() -> None:
    text = spelled(OPENED).replace(b'"arguments": ""', b'"arguments": "{}", "arguments": "\\u003a"')
    read = usual_chunk_fast(written_here(text), lambda text: False)
    assert read is not None
    assert not has_surely_once(read, text)
    body = StreamedBody()
    assert body.feed(b"data: " + text + b"\n\n") == []
    assert body.fault == "a call names a field twice"


def ended(reason):
    return {**chunk({}), "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}


@pytest.mark.parametrize(
    "stream",
    [
        [chunk({"content": "\ud83d"}), chunk({"content": "\ude00"})],
        [chunk({"content": "\ud83d"}), chunk({"content": "a"}), ended("stop")],
        [chunk({"content": "hi"}), ended("stop")],
        [chunk({"content": "hi"}), ended("weird")],
        [chunk({"content": "hi"}), ended(None)],
        [ended("stop"), ended("-"), ended("")],
        [ended("-"), OPENED],
        [OPENED, ended("tool_calls")],
        [ended("tool_calls"), OPENED],
        [ended("tool_calls"), OPENED, ended("tool_calls")],
        [OPENED, chunk({"tool_calls": ["odd"]})],
        [{**chunk({"content": "hi"}), "id": "", "model": ""}, chunk({"content": "hi"})],
    ],
)
def test_what_a_chunk_means_for_the_next_ones_is_the_same(stream) -> None:
    lines = [json.dumps(said).encode() for said in stream]
    assert read_by(StreamedBody(), lines) == read_by(PlainBody(), lines)


@pytest.mark.parametrize(
    "said",
    [
        chunk({"content": "hi", **fragment(function={"arguments": "{"})}),
        chunk({"reasoning": "hm"}),
        chunk({"content": "hi"}, error="late"),
        chunk({"tool_calls": [{"index": 0, "function": {}}, {"index": 1, "function": {}}]}),
        chunk(fragment(function={"name": "f"}, extra_content={"signature": "s"})),
        {**chunk({}), "choices": [{"index": 1, "delta": {"content": "hi"}, "finish_reason": None}]},
    ],
    ids=["text and call", "reasoning", "error", "two calls", "signature", "another choice"],
)
def test_chunks_with_more_are_left_to_the_plain_way(said) -> None:
    assert StreamedBody()._read_usual_fast(written_here(spelled(said))) is None
    assert read_by(StreamedBody(), [spelled(said)]) == read_by(PlainBody(), [spelled(said)])
    assert _read_alone_fast(spelled(said)) is None


def test_long_chunks_are_counted_before_they_are_read(monkeypatch) -> None:
    monkeypatch.setattr(StreamedBody, "_read_usual_fast", None)
    said = chunk({"content": "a" * SMALL})
    assert read_by(StreamedBody(), [spelled(said)]) == read_by(PlainBody(), [spelled(said)])
