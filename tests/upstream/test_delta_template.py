"""Taking a string out of a known frame says what reading all of it says, whatever comes and however it is cut."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callgate.conversation.events import CallDelta, ReasoningDelta, TextDelta
from callgate.http.event_stream import EventStreamReader
from callgate.upstream import direct_model
from callgate.upstream.chunks import ChunkReader
from callgate.upstream.delta_template import FIRST_LESSON, MOST_LESSONS, WORTH_A_LESSON, Frame
from tests.upstream.wire import chunk


def read_all(body):
    """The plain reading: every event parsed."""
    reader, chunks = EventStreamReader(), ChunkReader()
    events: list[Any] = []
    for payload in [*reader.feed(body), *reader.finish()]:
        if payload == b"[DONE]":
            break
        events += chunks.read(direct_model.read_json(payload))
    return [*events, *chunks.finish()]


def read_framed(pieces):
    body = direct_model.StreamedBody()
    events: list[Any] = []
    for piece in pieces:
        events += body.feed(piece)
    assert body.fault is None
    return [*events, *(() if body.done else body.finish())]


def alone(payload):
    """What one chunk says in the middle of a stream."""
    chunks = ChunkReader()
    chunks.read(chunk())
    return chunks.read(direct_model.read_json(payload))


def learned(payload):
    frame = Frame()
    for _ in range(FIRST_LESSON):
        frame.learn(payload, alone(payload), alone)
    return frame


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
    frame = learned(spelled("first"))
    assert frame.payload_in(spelled(value)) == alone(spelled(value))
    assert frame.read_in(b"data: " + spelled(value) + b"\n\n") == alone(spelled(value))


def test_what_kind_of_string_it_was_is_kept():
    assert learned(text("a")).payload_in(text("b")) == [TextDelta("b")]
    assert learned(thinking("a")).payload_in(thinking("b")) == [ReasoningDelta("b", "reasoning")]
    assert learned(arguments("a", 3)).payload_in(arguments("b", 3)) == [CallDelta(3, arguments="b")]
    assert learned(arguments("a", id="c")).payload_in(arguments("b", id="c")) == [CallDelta(0, "c", arguments="b")]


def test_several_events_of_one_read_are_taken_out_together():
    frame = learned(arguments("first"))
    read = b"".join(b"data: " + arguments(value) + b"\n\n" for value in STRINGS)
    assert frame.read_in(read) == [CallDelta(0, arguments=value) for value in STRINGS]


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
    frame = learned(text("first"))
    first = b"data: " + text("a") + b"\n\n"
    assert frame.payload_in(payload) is None
    assert frame.read_in(b"data: " + payload + b"\n\n") is None
    assert frame.read_in(first + b"data: " + payload + b"\n\n" + first) is None


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
    assert learned(text("first")).read_in(read) is None


@pytest.mark.parametrize("delta", [{"content": "x", "reasoning": "y"}, {"tool_calls": [{"index": 0, "id": "c"}]}, {}])
def test_nothing_is_learned_from_a_chunk_that_says_more_than_one_string_or_none(delta):
    payload = spelled_alone(delta)
    assert learned(payload).payload_in(payload) is None


def test_a_string_that_is_not_the_one_said_is_never_taken_for_it():
    payload = b'{"choices":[{"note":{"content":"other"},"index":0,"delta":{"content":"text"}}]}'
    assert learned(payload).payload_in(payload.replace(b"other", b"more")) is None


def test_a_frame_that_goes_over_several_lines_is_not_learned():
    payload = text("x").replace(b", ", b",\n", 1)
    assert learned(payload).payload_in(payload) is None


def test_a_short_stream_is_read_without_learning():
    frame = Frame()
    for _ in range(FIRST_LESSON - 1):
        frame.learn(text("a"), alone(text("a")), alone)
    assert frame.payload_in(text("a")) is None


def test_frames_that_always_change_are_not_learned_for_ever():
    frame, lessons = Frame(), 0

    def never_the_same(payload):
        nonlocal lessons
        lessons += 1
        return []

    for number in range(FIRST_LESSON + MOST_LESSONS + 5):
        frame.learn(arguments("a", number), alone(arguments("a", number)), never_the_same)
    assert lessons == MOST_LESSONS


def test_frames_that_pay_for_themselves_are():
    frame = learned(arguments("a"))
    for number in range(MOST_LESSONS + 5):
        frame.learn(arguments("a", number), alone(arguments("a", number)), alone)
        for _ in range(WORTH_A_LESSON):
            assert frame.payload_in(arguments("b", number)) == [CallDelta(number, arguments="b")]


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


@settings(max_examples=500, deadline=None)
@given(
    st.lists(st.tuples(deltas, st.sampled_from([None, None, None, "stop"]), st.booleans()), max_size=16),
    st.integers(0, 29),
    st.data(),
)
def test_however_a_stream_is_written_and_cut_it_says_the_same(found, spacing, data):
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
        patch.setattr("callgate.upstream.delta_template.FIRST_LESSON", data.draw(st.sampled_from([1, FIRST_LESSON])))
        assert read_framed([piece for piece in pieces if piece]) == read_all(body)
