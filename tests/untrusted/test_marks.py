"""What a text holds is counted without decoding it, wherever the text is cut."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.untrusted.marks import Bounds, Marks

WORDS = st.text(alphabet='ab\\"{[]},:é', max_size=6)
VALUES = st.recursive(
    st.none() | st.integers() | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)


def counted(*pieces: bytes) -> tuple[int, int, int, int]:
    marks = Marks()
    for piece in pieces:
        marks.feed(piece)
    return marks.values, marks.keys, marks.depth, marks.escapes


def walked(value: Any) -> tuple[int, int, int]:
    """Return commas and opening brackets, keys, and depth."""
    if not isinstance(value, list | dict):
        return 0, 0, 0
    inner = [walked(item) for item in (value.values() if isinstance(value, dict) else value)]
    return (
        1 + max(0, len(value) - 1) + sum(values for values, _, _ in inner),
        (len(value) if isinstance(value, dict) else 0) + sum(keys for _, keys, _ in inner),
        1 + max((depth for _, _, depth in inner), default=0),
    )


@given(value=VALUES)
def test_values_keys_levels_and_escapes_of_any_text_are_counted(value: Any) -> None:
    text = json.dumps(value).encode()
    assert counted(text) == (*walked(value), text.count(b"\\"))


@given(value=VALUES)
def test_a_text_that_is_cut_anywhere_counts_as_it_does_whole(value: Any) -> None:
    text = json.dumps(value).encode()
    whole = counted(text)
    assert counted(*(text[at : at + 1] for at in range(len(text)))) == whole
    for at in range(len(text) + 1):
        assert counted(text[:at], text[at:]) == whole


@pytest.mark.parametrize(
    ("text", "depth"), [(b"[" * 5000, 5000), (b"[]" * 5000, 1), (b'"[[[[', 0), (b'{"a":"}[["}', 1)]
)
def test_a_text_that_is_no_json_is_counted_as_far_as_a_decoder_gets(text: bytes, depth: int) -> None:
    assert counted(text)[2] == depth


@given(value=VALUES)
def test_a_text_has_no_more_than_its_bounds(value: Any) -> None:
    text = json.dumps(value).encode()
    values, keys, depth, escapes = counted(text)
    whole = Bounds()
    whole.feed(text)
    in_parts = Bounds()
    for at in range(0, len(text), 3):
        in_parts.feed(text, at, at + 3)
    assert vars(in_parts) == vars(whole)
    assert values <= whole.values
    assert keys <= whole.colons
    assert depth <= whole.brackets
    assert escapes == whole.backslashes
