"""MessagePack is counted by its first bytes: as a decoder finds it, whatever is cut off."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callgate.untrusted.messagepack import PackMarks

SIZES = (0, 1, 2, 4, 8, 16, 31, 32, 255, 256, 65_536)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(),
    st.sampled_from(SIZES).map(lambda size: "a" * size),
    st.sampled_from(SIZES).map(bytes),
    st.sampled_from(SIZES).map(lambda size: msgspec.msgpack.Ext(5, bytes(size))),
    st.just(datetime(2026, 11, 20, 1, 2, 3, 456_789, UTC)),
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=17) | st.dictionaries(st.text(max_size=17), inner, max_size=17)
)


def counted(data: bytes, share: int) -> tuple[int, int]:
    marks = PackMarks(data)
    while not marks.is_over:
        marks.count(share)
    return marks.values, marks.depth


def values_in(value: Any) -> int:
    if isinstance(value, list):
        return 1 + sum(map(values_in, value))
    if isinstance(value, dict):
        return 1 + sum(1 + values_in(inner) for inner in value.values())
    return 1


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        return depth_of(list(value.values()))
    if isinstance(value, list) and value:
        return 1 + max(map(depth_of, value))
    return 0


@settings(max_examples=40)
@given(value=VALUES, share=st.integers(1, 100))
def test_values_and_levels_are_those_that_a_decoder_finds(value: Any, share: int) -> None:
    assert counted(msgspec.msgpack.encode(value), share) == (values_in(value), depth_of(value))


@settings(max_examples=40)
@given(value=VALUES, end=st.integers(0, 500))
def test_what_is_cut_off_counts_no_less_than_what_is_there(value: Any, end: int) -> None:
    whole = msgspec.msgpack.encode(value)
    assert counted(whole[:end], 7)[0] <= values_in(value)


@given(st.binary(max_size=200))
def test_whatever_bytes_they_are_the_count_ends(data: bytes) -> None:
    values, depth = counted(data, 3)
    assert values >= 1
    assert depth <= len(data)


@pytest.mark.parametrize(
    ("data", "claimed"),
    [(b"\xdd\xff\xff\xff\xff", 1 << 32), (b"\xdf\xff\xff\xff\xff", (1 << 33) - 1), (b"\x91\xdc\xff\xff\xc0", 1 << 16)],
    ids=["a list", "an object", "a list in a list"],
)
def test_what_a_list_claims_to_hold_counts_though_it_is_not_there(data: bytes, claimed: int) -> None:
    assert counted(data, 10)[0] >= claimed


def test_a_long_text_is_one_value_and_one_step() -> None:
    marks = PackMarks(msgspec.msgpack.encode(["a" * 10_000_000]))
    marks.count(2)
    assert marks.is_over
    assert marks.values == 2
