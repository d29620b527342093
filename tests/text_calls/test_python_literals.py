"""Literals mean what Python says they mean; what Python or JSON would refuse is refused."""

import ast
import json
import math
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callgate.text_calls.python_literals import NotLiteralError, read_keywords
from tests.chaos.scale import examples
from tests.text_calls.reading import batched

TEXT = st.text(st.characters(codec="utf-8"))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=examples(300), deadline=None)
@given(st.dictionaries(st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True), VALUES, max_size=4))
def test_what_python_writes_is_read_back(arguments):
    text = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    assert read_keywords(text) == (arguments, False)


@settings(max_examples=examples(500), deadline=None)
@given(st.text(alphabet="'\"\\nxu0aA41rRb[](){},: .eE+-_1TrueNone", max_size=14))
def test_whatever_is_read_is_what_python_reads(text):
    try:
        arguments, has_raw_breaks = read_keywords(f"a={text}")
        value = arguments["a"]
    except (NotLiteralError, KeyError):
        return
    if has_raw_breaks:
        return  # Python takes them between three quotes only
    with warnings.catch_warnings(action="ignore"):  # about escapes that Python means to forbid some day
        call = ast.parse(f"f(a={text}\n)", mode="eval").body
    assert isinstance(call, ast.Call)
    expected = ast.literal_eval(call.keywords[0].value)
    assert _plain(expected) == value


def _plain(value):
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


@batched(
    ("text", "value"),
    [
        ("a='it\\'s'", "it's"),
        ('a="""two\nlines"""', "two\nlines"),
        ("a=r'\\d'", "\\d"),
        ("a='\\d'", "\\d"),
        ("a='a' 'b'", "ab"),
        ("a='\\N{BULLET}'", "•"),
        ("a='\\101\\x41\\u0041'", "AAA"),
        ("a=(1)", 1),
        ("a=(1,)", [1]),
        ("a=()", []),
        ("a=-0x1F", -31),
        ("a=1_000", 1000),
        ("a=1e-05", 1e-05),
        ("a=" + "9" * 400, int("9" * 400)),
        ("a=5.", 5.0),
        ("a=.5e-1", 0.05),
    ],
)
def test_the_notations_of_python(text, value):
    assert read_keywords(text) == ({"a": value}, False)


@batched(("text", "value"), [("a=true", True), ("a=false", False), ("a=null", None)])
def test_the_literals_of_json_mean_what_they_mean_in_json(text, value):
    assert read_keywords(text) == ({"a": value}, False)


def test_a_line_break_between_single_quotes_is_accepted_and_noted():
    assert read_keywords("a='two\nlines'") == ({"a": "two\nlines"}, True)


@batched(
    "text",
    [
        *(
            "'x'",
            "a",
            "a=",
            "a=b",
            "a=b'x'",
            "a=f'x'",
            "a={1, 2}",
            "a={1: 2}",
            "a={'b': 1, 'b': 2}",
            "a=1, a=2",
            "a=1e999",
        ),
        *(
            "a=1j",
            "a=007",
            "a=1 b=2",
            "a=1,,",
            "a='x",
            "a='\\x4'",
            "a='\\N{NO SUCH}'",
            "a=TRUE",
            "a=1+1",
        ),
        *("a=[1", "a=1]", "**a", "a=lambda: 1", "a=--1", "a=" + "9" * 5000, "a='\\U00110000'"),
    ],
)
def test_anything_else_is_refused(text):
    with pytest.raises(NotLiteralError):
        read_keywords(text)


@settings(max_examples=examples(300), deadline=None)
@given(st.dictionaries(st.just("a"), VALUES, max_size=1))
def test_what_is_read_can_be_written_as_json(arguments):
    text = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    assert math.isfinite(len(json.dumps(read_keywords(text), allow_nan=False)))
