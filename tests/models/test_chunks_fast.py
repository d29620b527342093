"""The fast twin of the reader of chunks equals it for every stream, or leaves a chunk to it."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callgate.conversation.events import CallDelta, ReasoningDelta, TextDelta
from callgate.http.event_stream import EventStreamReader
from callgate.models.direct import model as direct_model
from callgate.models.direct.chunks import ChunkReader
from callgate.models.direct.chunks_fast import EARLIEST, MOST_TEMPLATES, PAYS_AFTER, DeltaTemplate
from tests.chaos.scale import examples
from tests.models.wire import chunk


def read_all(body):
    """The plain reading: every event parsed."""
    reader, chunks = EventStreamReader(), ChunkReader()
    events: list[Any] = []
    for payload in [*reader.feed(body), *reader.finish()]:
        if payload.data == b"[DONE]":
            break
        events += chunks.read(direct_model.read_json(payload.data))
    return [*events, *chunks.finish()]


def read_by_template(pieces):
    body = direct_model.StreamedBody()
    events: list[Any] = []
    for piece in pieces:
        events += body.feed(piece)
    assert body.fault is None
    return [*events, *(() if body.is_done else body.finish())]


def alone(payload):
    """What one chunk says in the middle of a stream."""
    chunks = ChunkReader()
    chunks.read(chunk())
    return chunks.read(direct_model.read_json(payload))


def template_of(payload):
    template = DeltaTemplate()
    template.make_from(payload, alone(payload), alone)
    return template


def spelled_alone(delta):
    return json.dumps(chunk(delta), ensure_ascii=False).encode()


def text(value):
    return spelled_alone({"content": value})


def thinking(value):
    return spelled_alone({"reasoning": value})


def arguments(value, index=0, **more):
    return spelled_alone({"tool_calls": [{"index": index, **more, "function": {"arguments": value}}]})


STRINGS = ["b", " two words", "caf\u00e9 \u4f60", 'say "hi"\n', "\\", "/", "\U0001f600", '{"a": "', "\x7f"]


@pytest.mark.parametrize("spelled", [text, thinking, arguments])
@pytest.mark.parametrize("value", STRINGS)
def test_the_string_of_another_chunk_is_taken_out(spelled, value):
    template = template_of(spelled("first"))
    assert template.payload_in(spelled(value)) == alone(spelled(value))
    assert template.read_in(b"data: " + spelled(value) + b"\n\n") == alone(spelled(value))


def test_what_kind_of_string_it_was_is_kept():
    assert template_of(text("a")).payload_in(text("b")) == [TextDelta("b")]
    assert template_of(thinking("a")).payload_in(thinking("b")) == [ReasoningDelta("b", "reasoning")]
    assert template_of(arguments("a", 3)).payload_in(arguments("b", 3)) == [CallDelta(3, arguments="b")]
    assert template_of(arguments("a", id="c")).payload_in(arguments("b", id="c")) == [CallDelta(0, "c", arguments="b")]


def test_several_events_of_one_read_are_taken_out_together():
    template = template_of(arguments("first"))
    read = b"".join(b"data: " + arguments(value) + b"\n\n" for value in STRINGS)
    assert template.read_in(read) == [CallDelta(0, arguments=value) for value in STRINGS]


@pytest.mark.parametrize(
    "payload",
    [
        b"[DONE]",
        b"",
        text("")[:-1],
        text(""),
        json.dumps(chunk({"content": "x"}, "stop")).encode(),
        json.dumps(chunk({"role": "assistant", "content": "x"})).encode(),
        text("x").replace(b'"x"', b'"x","tool_calls":[{"index":0}],"y":"z"'),
        text("x").replace(b'"x"', b'"\\ud83d"'),
        text("x").replace(b'"x"', b'"a\nb"'),
        text("x").replace(b'"x"', b'"\xff"'),
        text("x").replace(b'"x"', b"null"),
    ],
)
def test_everything_else_is_left_to_be_read(payload):
    template = template_of(text("first"))
    first = b"data: " + text("a") + b"\n\n"
    assert template.payload_in(payload) is None
    assert template.read_in(b"data: " + payload + b"\n\n") is None
    assert template.read_in(first + b"data: " + payload + b"\n\n" + first) is None


@pytest.mark.parametrize(
    "read",
    [
        b"data: " + text("x") + b"\n",
        b"data: " + text("x"),
        b"data:" + text("x") + b"\n\n",
        b"data: " + text("x") + b"\r\n\r\n",
        b"data: " + text("x") + b"\n\n\n",
        b": ping\n\ndata: " + text("x") + b"\n\n",
        b"data: " + text("x") + b"\n\n: ping\n\ndata: " + text("x") + b"\n\n",
        b"data: " + text("x") + b"\ndata: " + text("x") + b"\n\n",
    ],
)
def test_a_read_that_is_more_or_less_than_whole_events_is_taken_apart_first(read):
    assert template_of(text("first")).read_in(read) is None


@pytest.mark.parametrize("delta", [{"content": "x", "reasoning": "y"}, {"tool_calls": [{"index": 0, "id": "c"}]}, {}])
def test_no_template_is_made_of_a_chunk_that_says_more_than_one_string_or_none(delta):
    payload = spelled_alone(delta)
    assert template_of(payload).payload_in(payload) is None


def test_another_string_is_never_taken_for_the_content():
    payload = b'{"choices":[{"note":{"content":"other"},"index":0,"delta":{"content":"text"}}]}'
    assert template_of(payload).payload_in(payload.replace(b"other", b"more")) is None


def test_a_chunk_over_several_lines_makes_no_template():
    payload = text("x").replace(b", ", b",\n", 1)
    assert template_of(payload).payload_in(payload) is None


def test_a_short_stream_is_parsed(monkeypatch):
    made: list[bytes] = []
    monkeypatch.setattr(DeltaTemplate, "make_from", lambda template, payload, events, read: made.append(payload))
    read_by_template([b"data: " + text("a") + b"\n\n"] * (EARLIEST - 1))
    assert made == []
    read_by_template([b"data: " + text("a") + b"\n\n"] * EARLIEST)
    assert made == [text("a")]


def test_chunks_that_always_change_do_not_make_templates_for_ever():
    template, made = DeltaTemplate(), 0

    def never_the_same(payload):
        nonlocal made
        made += 1
        return []

    for number in range(MOST_TEMPLATES + 5):
        template.make_from(arguments("a", number), alone(arguments("a", number)), never_the_same)
    assert made == MOST_TEMPLATES


def test_templates_that_pay_for_themselves_are_made_again():
    template = template_of(arguments("a"))
    for number in range(MOST_TEMPLATES + 5):
        template.make_from(arguments("a", number), alone(arguments("a", number)), alone)
        for _ in range(PAYS_AFTER):
            assert template.payload_in(arguments("b", number)) == [CallDelta(number, arguments="b")]


def spelled(delta, finish, spacing, more):
    whole = {**more, **chunk(delta, finish)} if spacing % 2 else {**chunk(delta, finish), **more}
    separators = [(",", ":"), (", ", ": "), (" , ", " : ")][spacing % 3]
    return json.dumps(whole, separators=separators, ensure_ascii=spacing % 5 == 0)


def called(index, arguments):
    return {"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}


texts = st.one_of(
    st.text(max_size=8),
    st.sampled_from(
        ['"', "\\", "\n", "\\n", '","x":"', "\ud83d", "\ude00", "data: [DONE]", "\u2028", "}", '"content":"']
    ),
)
deltas: st.SearchStrategy[Any] = st.one_of(
    st.fixed_dictionaries({"content": texts}),
    st.fixed_dictionaries({"content": texts}),
    st.fixed_dictionaries({"content": texts, "reasoning_content": texts}),
    st.fixed_dictionaries({"reasoning": texts}),
    st.builds(called, st.sampled_from([0, 0, 0, 1]), texts),
    st.builds(called, st.sampled_from([0, 0, 0, 1]), texts),
    st.just({"content": None, "tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{"}}]}),
    st.just({}),
)


@settings(max_examples=examples(250), deadline=None)
@given(
    st.lists(st.tuples(deltas, st.sampled_from([None, None, None, "stop"]), st.booleans()), max_size=16),
    st.integers(0, 29),
    st.data(),
)
def test_a_stream_is_read_the_same_however_it_is_formatted_and_cut(found, spacing, data):
    lines: list[bytes] = []
    for delta, finish, odd in found:
        more = {"content": "decoy", "obfuscation": "x" * len(lines)} if odd else {}
        text = spelled(delta, finish, spacing, more)
        lines.append(f"data: {text}\n\n".encode("utf-8", "surrogatepass"))
    body = b"".join(lines) + b"data: [DONE]\n\n"
    if b"\xed\xa0" in body or b"\xed\xb8" in body:
        body = body.replace(b"\xed\xa0\xbd", b"\\ud83d").replace(b"\xed\xb8\x80", b"\\ude00")
    ends = [at + 2 for at in range(len(body)) if body.startswith(b"\n\n", at)]
    cuts = sorted(data.draw(st.lists(st.one_of(st.integers(0, len(body)), st.sampled_from(ends)), max_size=8)))
    pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("callgate.models.direct.model.EARLIEST", data.draw(st.sampled_from([1, EARLIEST])))
        assert read_by_template([piece for piece in pieces if piece]) == read_all(body)
