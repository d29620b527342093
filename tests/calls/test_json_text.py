import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callgate.calls.json_text import MAX_DEPTH, JsonFault, read_json, same_json, sound_text, value_end

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=12)
LAYOUTS = st.sampled_from([{"indent": None}, {"indent": 2}, {"separators": (",", ":")}, {"ensure_ascii": False}])


def fault_of(text: str) -> JsonFault:
    with pytest.raises(JsonFault) as caught:
        read_json(text)
    return caught.value


@settings(deadline=None)
@given(VALUES, LAYOUTS)
def test_what_an_encoder_wrote_is_read_back(value, layout):
    assert same_json(read_json(json.dumps(value, **layout)), value)


@settings(deadline=None)
@given(st.dictionaries(TEXTS, VALUES) | st.lists(VALUES) | TEXTS, LAYOUTS, st.data())
def test_every_proper_prefix_of_a_bracketed_value_is_cut(value, layout, data):
    text = json.dumps(value, **layout)
    prefix = text[: data.draw(st.integers(0, len(text) - 1))]
    fault = fault_of(prefix)
    assert fault.cut
    assert fault.position == len(prefix)


@settings(deadline=None)
@given(st.text(alphabet='{}[]",:\\u0019eE+-. tfnrulasd\n\t\x00dDcC8é\ud83d\ude00', max_size=24))
def test_it_agrees_with_the_grammar_on_any_text(text):
    """The walk and the decoder were written by different people; where one reads, so does the other."""
    try:
        read_json(text)
    except JsonFault as fault:
        if not fault.grammatical:
            with pytest.raises(ValueError):
                json.loads(text, parse_constant=_refuse)
    else:
        json.loads(text, parse_constant=_refuse)


def _refuse(name: str) -> None:
    raise ValueError(name)


@settings(deadline=None)
@given(st.text(alphabet='{}[]",:\\u0019eE+-. tfnrulasd\n\t', max_size=16))
def test_a_text_is_cut_exactly_when_something_could_follow(text):
    """A cut text has a longer one that goes on being cut or becomes whole; a wrong text has none."""
    fault = None
    try:
        read_json(text)
    except JsonFault as raised:
        fault = raised
    if fault is None or fault.grammatical:
        return
    goes_on = any(_is_cut_or_whole(text + more) for more in _CONTINUATIONS)
    assert fault.cut == goes_on


_CONTINUATIONS = [*'{}[]",:\\u019eE+-. tfnrulasd', ' "', "00"]


def _is_cut_or_whole(text: str) -> bool:
    try:
        read_json(text)
    except JsonFault as fault:
        return fault.cut or fault.grammatical
    return True


@pytest.mark.parametrize(
    "text",
    [
        '{"a":1,"a":2}',
        '{"a":{"b":[{"c":1,"\\u0063":2}]}}',
        '[{"x":"a:b","x":1}]',
        '{"a":1e999}',
        f'{{"a":{"9" * 5000}}}',
        '{"a":"\\ud83d"}',
        '{"a":"\\ude80\\ud83d"}',
        '{"a":"\ud83d"}',
        '{"\\ud83d":1}',
        "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
        "[" * 100_000 + "]" * 100_000,
        '{"a":' * 5000 + "1" + "}" * 5000,
    ],
    ids=lambda text: text[:24].encode("utf-8", "replace").decode(),
)
def test_json_that_two_readers_could_take_differently_is_refused(text):
    fault = fault_of(text)
    assert fault.grammatical
    assert not fault.cut


def test_equal_keys_of_different_objects_are_no_double_keys():
    assert read_json('{"a":{"a":[{"a":1},{"a":2}]}}') == {"a": {"a": [{"a": 1}, {"a": 2}]}}


def test_depth_up_to_the_limit_is_read():
    text = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert json.dumps(read_json(text)) == text


def test_long_whole_numbers_keep_every_digit():
    assert read_json("9" * 4000) == int("9" * 4000)


def test_literal_halves_of_a_pair_are_joined():
    assert read_json('"rocket \ud83d\ude80"') == "rocket \U0001f680"


@pytest.mark.parametrize(
    ("text", "position", "expected"),
    [
        ("{'a':1}", 1, "a key in double quotes"),
        ('{"a":True}', 5, "a value"),
        ('{"a":1,}', 7, "a key in double quotes"),
        ('{"a" 1}', 5, '":"'),
        ('{"a":1 "b":2}', 7, '"," or "}"'),
        ("[1 2]", 3, '"," or "]"'),
        ('{"a":1} tail', 8, "nothing after the value"),
        ('{"rows":[{"id":1},{"id":2},{"id":x}]}', 33, "a value"),
    ],
)
def test_the_error_has_the_position_and_what_was_expected(text, position, expected):
    fault = fault_of(text)
    assert (fault.position, fault.expected[: len(expected)], fault.cut) == (position, expected, False)


def test_the_error_names_the_property_in_which_a_text_is_invalid():
    assert fault_of('{"path":"a","content":"one\\ntw').inside == "content"
    assert fault_of('{"a":{"b":1},"c":tru').inside == "c"


def test_the_end_of_the_first_value_is_found_among_others():
    assert value_end('  {"a":"}"} {"b":2}', 0) == 11


@settings(deadline=None)
@given(st.text())
def test_sound_text_can_always_be_encoded(text):
    assert sound_text(text).encode().decode() == sound_text(text)
