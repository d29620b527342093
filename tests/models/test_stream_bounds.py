"""What litellm parses of a stream by itself is bounded event by event, wherever the stream is cut."""

import pytest

from callgate.models.litellm_lane.stream_bounds import EVENT, FrameBounds, LineBounds
from callgate.untrusted.doors import TooMuch
from tests.chaos.scale import dealt

SIZES = (1, 7, 8192, 1 << 30)
MANY = b"[" + b"{}," * EVENT.values + b"{}]"


def what_of(bounds: LineBounds | FrameBounds, data: bytes, size: int) -> str:
    """Return of what a stream has too much, when it comes in pieces of a size."""
    try:
        for start in range(0, len(data), size):
            bounds.feed(data[start : start + size])
    except TooMuch as error:
        return error.what
    return ""


def frame(payload: bytes) -> bytes:
    return (len(payload) + 4).to_bytes(4, "big") + payload


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("lines", "what"),
    [
        (b'{"a": [1, 2]}\n' * 20_000, ""),
        (b'{"a": "' + b"{[," * EVENT.values + b'"}\n', ""),
        (b"{}\n" + MANY + b"\n", "values"),
        (b"{}\n" + b"[" * 300, "levels"),
    ],
    ids=["small lines", "marks in a text", "values", "levels"],
)
def test_each_line_is_bounded(lines: bytes, what: str, size: int) -> None:
    assert what_of(LineBounds(), lines, size) == what


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("stream", "what"),
    [
        (frame(b'{"a": [1,\n 2]}') * 5_000, ""),
        (frame(b"{}") + frame(MANY), "values"),
        (frame(b"{}") + (EVENT.bytes + 5).to_bytes(4, "big"), "bytes"),
        (frame(b"{}") + bytes(4), "bytes"),
    ],
    ids=["small frames", "values", "a long frame", "a frame of no length"],
)
def test_each_frame_is_bounded(stream: bytes, what: str, size: int) -> None:
    assert what_of(FrameBounds(), stream, size) == what


LINES = {"data": b"data: " + b"x" * 1000, "comment": b": " + b"x" * 1000, "no field": b"{" + b"x" * 1000}
ENDS = {"LF": b"\n", "CR": b"\r", "CRLF": b"\r\n"}


@pytest.mark.parametrize(
    ("line", "end", "size"),
    [
        pytest.param(LINES[line], ENDS[end], size, id=f"{line}-{end}-{size}")
        for row, line in enumerate(LINES)
        for place, end in enumerate(ENDS)
        for size in dealt(SIZES[1:], 3, row + place)
    ],
)
def test_the_lines_of_one_event_are_bounded(line: bytes, end: bytes, size: int) -> None:
    many = (line + end) * 800
    assert what_of(LineBounds(is_events=True), many, size) == "bytes to join"
    assert what_of(LineBounds(is_events=True), ((line + end) * 200 + end) * 4, size) == ""
    assert what_of(LineBounds(), many, size) == ("" if line.startswith(b"{") else "bytes to join")


def test_a_line_without_an_end_is_bounded() -> None:
    assert what_of(LineBounds(), b"a" * (EVENT.bytes + 1), 65_536) == "bytes"
