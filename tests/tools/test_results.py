import base64
import dataclasses
import datetime as dt
import decimal
import enum
import json
import uuid

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from callgate.calls.outcome import Failed, FailureKind, Image, Returned
from callgate.tools.results import (
    MAX_IMAGE_BYTES,
    MAX_IMAGES,
    Unwritable,
    bounded,
    cut,
    decoded,
    returned,
    size_of,
)


class Colour(enum.Enum):
    RED = "red"


class Point(BaseModel):
    x: int
    note: str | None = None


@dataclasses.dataclass
class Pair:
    left: Point
    right: bytes


class Row(msgspec.Struct):
    name: str


@pytest.mark.parametrize(
    "value, text",
    [
        ("as it is\n", "as it is\n"),
        ("", ""),
        (None, "null"),
        (True, "true"),
        (3.5, "3.5"),
        ({"a": [1, 2], "ü": None}, '{"a":[1,2],"ü":null}'),
        ([Point(x=1)], '[{"x":1,"note":null}]'),
        (
            Pair(Point(x=1), b"\xff"),
            '{"left":{"x":1,"note":null},"right":"[application/octet-stream, 1 bytes, not shown]"}',
        ),
        (Row("a"), '{"name":"a"}'),
        ({1: "one"}, '{"1":"one"}'),
        ({"b", "a"}, '["a","b"]'),
        (dt.date(2026, 1, 2), '"2026-01-02"'),
        (decimal.Decimal("1.10"), '"1.10"'),
        (uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (Colour.RED, '"red"'),
        (2**80, "1208925819614629174706176"),
        ([float("nan"), float("-inf")], "[null,null]"),
        (
            {"a": [{(1, 2): dt.time(1, 2)}], Colour.RED: {None: b"x"}},
            '{"a":[{"[1,2]":"01:02:00"}],"red":{"null":"[application/octet-stream, 1 bytes, not shown]"}}',
        ),
        ({"seen": [Image(b"png", "image/png")]}, '{"seen":["[image/png, 3 bytes, not shown]"]}'),
        (b"\x00\x01", "[application/octet-stream, 2 bytes, not shown]"),
    ],
)
def test_what_a_function_returns_is_written_as_text_or_compact_json(value, text):
    assert returned(value, 1000) == Returned(text)


def test_bytes_never_become_base64_text():
    secret = b"\x00\xffsecret bytes" * 100
    text = returned({"file": secret, "list": [bytearray(secret)]}, 100_000).text
    assert base64.b64encode(secret).decode()[:20] not in text
    assert "not shown" in text


def test_what_cannot_be_written_is_named():
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(Unwritable, match="list"):
        returned(loop, 1000)


def test_images_and_text_may_be_mixed():
    picture = Image(b"png", "image/png")
    assert returned(picture, 10) == Returned("", (picture,))
    assert returned(["a chart:", picture, {"n": 1}], 10) == Returned('a chart:\n{"n":1}', (picture,))
    assert json.loads(returned({"chart": picture}, 10).text) == {"chart": "[image/png, 3 bytes, not shown]"}


@given(st.text(st.characters(exclude_categories=[]), max_size=400), st.integers(0, 300))
def test_a_cut_text_fits_and_says_exactly_how_much_is_missing(text, size):
    short, missing = cut(text, size)
    whole = text.encode("utf-8", "replace")
    assert size_of(text) == len(whole)
    assert size_of(short) <= size
    if missing == 0:
        assert short == text
    elif f"{missing} bytes left out" in short:
        head, _, tail = short.partition(f"\n[... {missing} bytes left out ...]\n")
        assert whole.startswith(head.encode("utf-8", "replace"))
        assert whole.endswith(tail.encode("utf-8", "replace"))
        assert size_of(head) + size_of(tail) + missing == len(whole)
    else:
        assert size_of(short) + missing == len(whole)


def test_head_and_tail_are_kept():
    short, missing = cut("A" * 5000 + "Z" * 5000, 1000)
    assert short.startswith("A" * 700)
    assert short.endswith("Z" * 200)
    assert missing > 8900


@given(st.text(max_size=400), st.integers(60, 300), st.integers(1, 10_000))
def test_the_end_of_what_was_read_is_not_shown_as_the_end_of_the_answer(text, size, unread):
    short, missing = cut(text, size, already_missing=unread)
    assert size_of(short) <= size
    assert f"at least {missing} bytes left out" in short
    assert missing >= unread
    assert text.startswith(short.partition("\n[... at least")[0])


def test_a_failure_is_bounded_too():
    outcome = bounded(Failed("x" * 1000, FailureKind.TIMEOUT), 100)
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.TIMEOUT
    assert len(outcome.text) <= 100


def test_lone_surrogates_do_not_get_out():
    assert bounded(Returned("a\ud800b"), 100).text == "a?b"


def test_images_that_a_provider_would_refuse_are_described():
    good = Image(b"x", "image/png")
    large = Image("A" * (MAX_IMAGE_BYTES * 4 // 3 + 100), "image/png")
    odd = Image(b"x", "image/x-icon")
    outcome = bounded(Returned("look", (large, odd, *([good] * (MAX_IMAGES + 1)))), 1000)
    assert isinstance(outcome, Returned)
    assert outcome.images == (good,) * MAX_IMAGES
    assert outcome.text.startswith("look\n[image/png, ")
    assert outcome.text.count("not shown") == 3


@pytest.mark.parametrize(
    "data, charset, text",
    [
        ("ü".encode(), None, "ü"),
        (b"\xef\xbb\xbfa", None, "a"),
        ("ü".encode("latin-1"), None, None),
        ("ü".encode("latin-1"), "latin-1", "ü"),
        ("日本".encode("shift_jis"), "Shift_JIS", "日本"),
        (b"a\x00b", None, None),
        (b"a\x00b", "latin-1", None),
        (b"abc", "zip", "abc"),
        (b"abc", "no-such-charset", "abc"),
        (b"\xff", "utf-8", "\ufffd"),
    ],
)
def test_bytes_are_read_as_text_only_where_they_are(data, charset, text):
    assert decoded(data, charset) == text
