"""What is quick for small texts does what the plain way does, or leaves it to that one."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.calls.json_text import ARGUMENTS
from callgate.untrusted.doors import SMALL, TooMuch, Untrusted, open_fast
from callgate.untrusted.readers import json_reader, read_string_fast, read_strings_fast

BETWEEN = b"\n\n"
INSIDES = st.text(alphabet='ab\\"u0é\n', max_size=8).map(str.encode) | st.binary(max_size=3)
_read = json_reader(str)


def plain(inside: bytes) -> str | None:
    """Return the text of one string, read the plain way; None where it is none."""
    try:
        return _read(Untrusted(b'"' + inside + b'"', ARGUMENTS).open())
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


@given(text=st.text(alphabet=",[{}]", max_size=8).map(str.encode), missing=st.integers(-4, 4) | st.just(SMALL))
def test_bytes_are_opened_as_the_plain_way_opens_them_or_left_to_it(text: bytes, missing: int) -> None:
    data = text.ljust(SMALL - missing)
    opened = open_fast(data, ARGUMENTS)
    if opened is None:
        assert len(data) > ARGUMENTS.uncounted
    else:
        assert opened == Untrusted(data, ARGUMENTS).open()


def test_what_is_left_to_the_plain_way_is_counted_there() -> None:
    deep = b"[" * (SMALL + 1)
    assert open_fast(deep, ARGUMENTS) is None
    with pytest.raises(TooMuch):
        Untrusted(deep, ARGUMENTS).open()


@given(inside=INSIDES)
def test_a_string_is_read_as_the_plain_way_reads_it_or_left_to_it(inside: bytes) -> None:
    text = read_string_fast(inside)
    if text is None:
        assert plain(inside) in (None, "")
    else:
        assert text == plain(inside)


@given(insides=st.lists(INSIDES, min_size=1, max_size=4))
def test_strings_are_read_as_the_plain_way_reads_each_or_left_to_it(insides: list[bytes]) -> None:
    data = BETWEEN.join(insides)
    texts = read_strings_fast(data, BETWEEN, str)
    apart = [plain(inside) for inside in data.split(BETWEEN)]
    if texts is None:
        assert not all(apart)
    else:
        assert texts == apart


@pytest.mark.parametrize("size", [SMALL, SMALL + 1])
def test_long_strings_are_left_to_the_plain_way(size: int) -> None:
    inside = json.dumps("a" * size)[1:-1].encode()
    read = (size <= SMALL, size <= SMALL)
    assert (read_string_fast(inside) is not None, read_strings_fast(inside, BETWEEN, str) is not None) == read
