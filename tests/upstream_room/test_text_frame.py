"""Taking text out of a known frame says what reading all of it says, whatever comes and however it is cut."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.chat.events import TextDelta
from app.upstream import direct_model
from app.upstream.chunks import ChunkReader
from app.upstream.sse import SseReader
from app.upstream.text_frame import MOST_LESSONS, TextFrame
from tests.upstream_room.wire import chunk


def read_all(body):
    """The plain reading: every event parsed."""
    reader, chunks = SseReader(), ChunkReader()
    events: list[Any] = []
    for payload in [*reader.feed(body), *reader.finish()]:
        if payload == b"[DONE]":
            break
        events += chunks.read(direct_model.read_json(payload))
    return [*events, *chunks.finish()]


def read_framed(pieces):
    body = direct_model._StreamedBody()
    events: list[Any] = []
    for piece in pieces:
        events += body.feed(piece)
    assert body.fault is None
    return [*events, *(() if body.done else body.finish())]


def learned(payload):
    frame, chunks = TextFrame(), ChunkReader()
    chunks.read(json.loads(payload))
    frame.learn(payload, chunks.read(json.loads(payload)), lambda other: chunks.read(json.loads(other)))
    return frame


def framed(text):
    return json.dumps(chunk({"content": text}), ensure_ascii=False).encode()


@pytest.mark.parametrize("text", ["b", " two words", "caf\u00e9 \u4f60", 'say "hi"\n', "\\", "/", "\U0001f600"])
def test_the_text_of_another_chunk_is_taken_out(text):
    assert learned(framed("first")).text_in(framed(text)) == text


@pytest.mark.parametrize(
    "payload",
    [
        b"[DONE]",
        b"",
        framed("")[:-1],
        framed(""),
        json.dumps(chunk({"content": "x"}, "stop")).encode(),
        json.dumps(chunk({"role": "assistant", "content": "x"})).encode(),
        framed("x").replace(b'"x"', b'"x","tool_calls":[{"index":0}],"y":"z"'),
        framed("x").replace(b'"x"', b'"\\ud83d"'),
        framed("x").replace(b'"x"', b'"a\nb"'),
        framed("x").replace(b'"x"', b'"\xff"'),
        framed("x").replace(b'"x"', b"null"),
    ],
)
def test_everything_else_is_left_to_be_read(payload):
    assert learned(framed("first")).text_in(payload) is None


def test_a_string_that_is_not_the_text_is_never_taken_for_it():
    payload = b'{"choices":[{"note":{"content":"other"},"index":0,"delta":{"content":"text"}}]}'
    assert learned(payload).text_in(payload.replace(b"other", b"more")) is None


def test_frames_that_always_change_are_not_learned_for_ever():
    frame = TextFrame()
    for number in range(MOST_LESSONS + 5):
        frame.learn(framed(f"{number}"), [TextDelta(f"{number}")], lambda _: [])
    assert frame._lessons == MOST_LESSONS


def spelled(delta, finish, spacing, more):
    whole = {**more, **chunk(delta, finish)} if spacing % 2 else {**chunk(delta, finish), **more}
    separators = [(",", ":"), (", ", ": "), (" , ", " : ")][spacing % 3]
    return json.dumps(whole, separators=separators, ensure_ascii=spacing % 5 == 0)


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
    st.just({"content": None, "tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{"}}]}),
    st.just({}),
)


@settings(max_examples=500, deadline=None)
@given(
    st.lists(st.tuples(deltas, st.sampled_from([None, None, None, "stop"]), st.booleans()), max_size=10),
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
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=8)))
    pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    assert read_framed([piece for piece in pieces if piece]) == read_all(body)
