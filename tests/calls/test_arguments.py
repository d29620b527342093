import gc
import itertools
import json
import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callgate.calls.arguments import (
    BLOCK,
    MAX_KEPT,
    MAX_LOOKS,
    MAX_QUOTE,
    MAX_REPEATS,
    Arguments,
    ArgumentsError,
    Fragments,
    _read_text,
    encode_arguments,
    read_arguments,
)
from callgate.calls.json_text import TOO_DEEP, canonical, same_json
from callgate.calls.states import Flaw, FlawDetail
from tests.chaos.scale import held_to, scaled

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=12)
OBJECTS = st.dictionaries(TEXTS, VALUES)
LAYOUTS = st.sampled_from([{"indent": None}, {"indent": 1}, {"separators": (",", ":")}, {"ensure_ascii": False}])


def flaw_of(*fragments: object) -> Flaw:
    return error_of(*fragments).flaw


def error_of(*fragments: object) -> ArgumentsError:
    with pytest.raises(ArgumentsError) as caught:
        read_arguments(fragments)
    return caught.value


def value_and_repair(*fragments: object) -> tuple[dict[str, object], bool]:
    arguments = read_arguments(fragments)
    return arguments.value, arguments.repaired


def cut(text: str, places: list[int]) -> list[str]:
    bounds = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(bounds)]


# What is whole


@pytest.mark.parametrize("nothing", [None, "", "  \n\t ", "null", " null\n"])
def test_nothing_is_an_empty_object(nothing):
    assert value_and_repair(nothing) == ({}, False)


def test_no_fragments_are_an_empty_object():
    assert value_and_repair() == ({}, False)


@settings(deadline=None)
@given(OBJECTS, LAYOUTS, st.lists(st.integers(0, 10_000), max_size=8))
def test_an_object_is_the_same_however_its_text_is_cut(value, layout, places):
    text = json.dumps(value, **layout)
    whole, in_pieces = read_arguments([text]), read_arguments(cut(text, places))
    assert same_json(whole.value, value)
    assert same_json(in_pieces.value, value)
    assert not whole.repaired
    assert not in_pieces.repaired


def test_white_space_around_the_object_is_no_slip():
    assert value_and_repair('\n {"a": 1}\r\n\t') == ({"a": 1}, False)


def test_fragments_beyond_the_block_size_are_joined_without_loss():
    text = json.dumps({"content": "x" * (3 * BLOCK)})
    assert value_and_repair(*text) == ({"content": "x" * (3 * BLOCK)}, False)


def test_a_character_cut_into_literal_halves_is_put_together():
    assert value_and_repair('{"q":"a \ud83d', '\ude80 b"}') == ({"q": "a \U0001f680 b"}, False)


# What is not whole


@settings(deadline=None)
@given(OBJECTS, LAYOUTS, st.data())
def test_every_proper_prefix_is_truncated_or_blank_and_never_an_object(value, layout, data):
    text = json.dumps(value, **layout)
    prefix = text[: data.draw(st.integers(0, len(text) - 1))]
    if not prefix.strip():
        assert value_and_repair(prefix) == ({}, False)
    else:
        assert flaw_of(prefix) is Flaw.TRUNCATED


@pytest.mark.parametrize(
    "text", ["-", "nu", "tr", '"abc', "[1,", '{"a":1.', '{"a":1e+', '{"a":"\\', '{"a":"\\ud8', "[" * 9999]
)
def test_a_prefix_of_any_json_is_truncated(text):
    assert flaw_of(text) is Flaw.TRUNCATED


@pytest.mark.parametrize("value", ["[1]", "42", '"words"', "true", [1], 42, True, 1.5, [], "[]", '"null"', '""', '"{"'])
def test_json_that_is_no_object_is_refused_as_such(value):
    assert flaw_of(value) is Flaw.NOT_AN_OBJECT


@pytest.mark.parametrize(
    "text",
    [
        "words",
        "{'a':1}",
        '{"a":True}',
        '{"a":1,}',
        '{"a":1}}',
        '{"a":1} done',
        '{"a":1}{"a":2}',
        '{"a":1}{"a":true}',
        '{"a":1}{"a":1.0}',
        '{}{"a":1}{"a":1}',
        '{}{}{"a":1}',
        '1 {"a":1}',
        'null{"a":1}',
        '[]{"a":1}',
        '{"a":1}```',
        '```\n{"a":1}abc',
        "```",
        "words```",
        '{"a":NaN}',
        '{"a":-Infinity}',
        '{"a":1e999}',
        '{"p":"C:\\Users"}',
        '{"a":1,\\n"b":2}',
        '{"a":1,"a":2}',
        '"{\\"a\\":1,\\"a\\":2}"',
        '{"a":"\\ud83d tail"}',
        "nul ",
        "01",
        "{a:1}",
        '{"a":1}// no',
        '{"a":"x\\\ny"}',
        '{"a":"x\ny"',
        '```json\n{"a":',
        '```json\n{"a":"x\ny"}\n```',
        '\ufeff{"a":1}',
        '{"a":\xa01}',
    ],
)
def test_text_that_is_no_json_is_refused_and_never_guessed_at(text):
    assert flaw_of(text) is Flaw.INVALID_JSON


@settings(deadline=None)
@given(st.text(alphabet='{}[]",:\\u019eE+-. tfnrulasd\n`jso', max_size=30) | st.text())
def test_any_text_is_read_or_refused_and_nothing_else(text):
    assert outcome(text) in OUTCOMES


OUTCOMES = {Flaw.TRUNCATED, Flaw.INVALID_JSON, Flaw.NOT_AN_OBJECT, "object"}


def outcome(*fragments: object) -> str:
    """Refused how, or read as what; asking on the way whether there is an object yet must change nothing."""
    written = Fragments()
    for fragment in fragments:
        written.add(fragment)
        written.object_so_far()
    written.text().encode("utf-8", "surrogatepass")
    try:
        return "object" if isinstance(written.read().value, dict) else "something else"
    except ArgumentsError as error:
        str(error).encode()
        return error.flaw


@settings(deadline=None)
@given(st.lists(VALUES | st.text(max_size=6) | st.floats() | st.characters(categories=["Cs"]), max_size=5))
def test_any_fragments_are_read_or_refused_and_nothing_else(fragments):
    assert outcome(*fragments) in OUTCOMES


@pytest.mark.parametrize(
    ("text", "flaw"),
    [
        ("[" * 50_000, Flaw.TRUNCATED),
        ("[" * 50_000 + "]" * 50_000, Flaw.INVALID_JSON),
        ('{"a":' * 10_000, Flaw.TRUNCATED),
        ('{"a":' * 20_000, Flaw.INVALID_JSON),
        ('{"a":' + "9" * 10_000 + "}", Flaw.INVALID_JSON),
        ('{"a":' + "9" * 10_000, Flaw.TRUNCATED),
    ],
    ids=["open lists", "closed lists", "open objects", "more of them", "digits", "cut digits"],
)
def test_bombs_are_refused_like_any_other_text(text, flaw):
    assert flaw_of(text) is flaw


# Repairs


@pytest.mark.parametrize(
    "text",
    [
        '"{\\"a\\": 1}"',
        '"\\"{\\\\\\"a\\\\\\": 1}\\""',
        '```json\n{"a": 1}\n```',
        '```\n{"a": 1}\n```\n',
        '```{"a": 1}```',
        '{}{"a": 1}',
        '{ } \n {"a": 1}\n',
        '{"a": 1}{"a":1}',
        '{"a": 1}\n{"a": 1}\n{"a": 1}',
    ],
)
def test_a_slip_with_one_meaning_is_repaired(text):
    assert value_and_repair(text) == ({"a": 1}, True)


def test_three_string_layers_are_one_too_many():
    text = json.dumps(json.dumps(json.dumps(json.dumps({"a": 1}))))
    assert flaw_of(text) is Flaw.NOT_AN_OBJECT


def test_raw_control_characters_in_strings_are_taken_as_they_are():
    controls = "".join(map(chr, range(32)))
    assert value_and_repair(f'{{"a":"{controls}"}}') == ({"a": controls}, True)
    assert value_and_repair('{"a":"one\ntwo\t\\"three\\"\x01",\n"b\r":"\\n"}') == (
        {"a": 'one\ntwo\t"three"\x01', "b\r": "\n"},
        True,
    )


def test_the_order_of_keys_does_not_distinguish_repeats():
    assert value_and_repair('{"a":1,"b":2}{"b":2,"a":1}') == ({"a": 1, "b": 2}, True)


def test_snapshots_are_taken_by_the_last():
    assert value_and_repair('{"q"', '{"q": "l', "", '{"q": "leave"', " ", '{"q": "leave"}') == ({"q": "leave"}, True)


def test_snapshots_that_never_became_whole_are_refused():
    assert flaw_of('{"q"', '{"q": "l', '{"q": "leave"') is Flaw.INVALID_JSON


@settings(deadline=None)
@given(OBJECTS, st.lists(st.integers(1, 10_000), min_size=1, max_size=6))
def test_snapshots_never_give_anything_but_the_whole(value, places):
    text = json.dumps(value)
    snapshots = [text[: place % len(text) or 1] for place in sorted(places, key=lambda place: place % len(text) or 1)]
    joined = "".join([*snapshots, text])
    if flaw_in(joined) is Flaw.TRUNCATED:
        assert flaw_of(*snapshots, text) is Flaw.TRUNCATED, "they may as well stand inside one another"
    else:
        assert same_json(read_arguments([*snapshots, text]).value, value)


def flaw_in(text: str) -> Flaw | None:
    try:
        read_arguments([text])
    except ArgumentsError as error:
        return error.flaw
    return None


def test_objects_that_begin_alike_and_stand_inside_one_another_are_no_snapshots():
    assert flaw_of('{"filter":', '{"filter":{}}') is Flaw.TRUNCATED
    assert flaw_of('{"filter":{"any":[', '{"filter":{"any":[]}}', " ") is Flaw.TRUNCATED
    assert value_and_repair('{"filter":', '{"filter":{}}', "}") == ({"filter": {"filter": {}}}, False)


def test_pieces_that_snapshots_follow_are_no_snapshots():
    assert flaw_of('{"a":', "1}", '{"b"', '{"b":2', '{"b":2}') is Flaw.INVALID_JSON
    assert flaw_of('{"a":1}', "\xa0") is Flaw.INVALID_JSON


def test_two_snapshots_are_enough():
    assert value_and_repair('{"q"', '{"q": 1}') == ({"q": 1}, True)


def test_a_snapshot_that_something_else_follows_is_no_object_any_more():
    written = Fragments()
    for snapshot in ('{"q"', '{"q": 1}'):
        written.add(snapshot)
    assert written.object_so_far() == Arguments({"q": 1}, repaired=True)
    written.add(' {"r"')
    assert written.object_so_far() is None


@pytest.mark.parametrize("snapshots", [('{"filter":', '{"filter":{}}'), ('{"q"', '{"q"}'), ('{"q"', '{"q": "l}')])
def test_snapshots_are_no_object_while_they_may_be_a_part_of_one(snapshots):
    written = Fragments()
    for snapshot in snapshots:
        written.add(snapshot)
        assert written.object_so_far() is None


def test_snapshots_that_hold_no_object_may_have_another_slip():
    assert value_and_repair('{"a":1}', '{"a":1}{"a":1}') == ({"a": 1}, True)


def test_an_object_may_be_repeated_only_so_often():
    assert value_and_repair('{"a":1}' * MAX_REPEATS) == ({"a": 1}, True)
    assert flaw_of('{"a":1}' * (MAX_REPEATS + 1)) is Flaw.INVALID_JSON
    assert value_and_repair("{}{}{}") == ({}, True)


def test_a_whole_object_sent_again_after_its_deltas_is_one_object():
    assert value_and_repair('{"city":', '"Vigo"}', '{"city":"Vigo"}') == ({"city": "Vigo"}, True)


# Objects in the place of text


@pytest.mark.parametrize(
    "fragments",
    [
        [{"a": 1}],
        [{}, {"a": 1}],
        [{}, {}, {"a": 1}],
        [{"a": 1}, {"a": 1}],
        ["", {"a": 1}, None],
        [{"a": 1}, " "],
        ["{}", {"a": 1}],
        ['{"a"', ":1}", {"a": 1}],
    ],
)
def test_objects_in_the_place_of_text_are_taken(fragments):
    assert value_and_repair(*fragments) == ({"a": 1}, True)


def test_objects_that_differ_are_counted():
    problem = FlawDetail(expected="one object", got="2 objects that differ, in one call")
    assert error_of({"a": 1}, {"a": 2}).problem == problem


def test_an_object_in_the_place_of_text_is_the_very_object():
    value = {"a": [1]}
    assert read_arguments([value]).value is value


@pytest.mark.parametrize(
    "fragments",
    [
        [{"a": 1}, {"a": 2}],
        [{"a": 1}, {"a": True}],
        [{"a": 1}, {}],
        [{"a": 1}, "words"],
        [{"a": float("nan")}],
        [{"a": "\ud83d"}],
    ],
)
def test_objects_that_differ_or_are_no_json_are_refused(fragments):
    assert flaw_of(*fragments) is Flaw.INVALID_JSON


def test_halves_of_a_character_in_an_object_are_put_together():
    assert value_and_repair({"a": "\ud83d\ude80"}) == ({"a": "\U0001f680"}, True)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"a": "\ud83d"}, FlawDetail(expected="both halves of each surrogate pair", got='{"a": "\ufffd"}')),
        (
            {"a": float("nan")},
            FlawDetail(expected="one JSON object", got="Out of range float values are not JSON compliant"),
        ),
        ([1, "ö"], FlawDetail(expected="one JSON object", got='[1, "ö"]')),
    ],
)
def test_an_object_that_is_refused_is_shown(value, problem):
    assert error_of(value).problem == problem


def test_what_came_for_text_is_kept_as_json_whatever_it_is():
    written = Fragments()
    for fragment in ({"a": "ö"}, {"b": 2 + 1j}):
        written.add(fragment)
    assert written.text() == '{"a": "ö"}{"b": "(2+1j)"}'
    assert encode_arguments({"a": "ö"}) == '{"a": "ö"}'


def test_an_object_nested_without_end_is_refused():
    deep: dict[str, object] = {}
    for _ in range(50_000):
        deep = {"a": deep}
    assert error_of(deep).problem == FlawDetail(expected="one JSON object", got=TOO_DEEP)
    written = Fragments()
    written.add(deep)
    assert "too deep" in written.text()
    while deep:  # let go of it level by level: the interpreter recurses where the garbage collector would not
        deep = deep.pop("a")  # type: ignore[assignment]


# What the model is sent


def test_a_truncated_text_says_where_it_ends_and_what_was_due():
    problem = error_of('{"path":"a.md","content":"## Goals\\n1. Sh').problem
    assert problem.note == 'the text ends at character 41, in "content"'
    assert problem.expected == "the rest of a string"
    assert problem.got.endswith("1. Sh")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("{'a':1}", "double quotes"),
        ('{"a":None}', "true, false and null"),
        ('{"a":NaN}', "no NaN"),
        ('{"a":1,}', "no comma"),
        ('{"a":1}{"b":2}', "a call of its own"),
        ('{"a":1}]', "something follows"),
        ('{"a":1, // x\n"b":2}', "no comments"),
    ],
)
def test_a_known_slip_is_called_by_its_name(text, hint):
    assert hint in error_of(text).problem.note


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("nul ", "at character 0"),
        ('\n{"a":x}', 'at character 6, in line 2, in "a"'),
        ('{"a":x\n}', 'at character 5, in "a"'),
        ('{"a":[1,}', 'at character 8, in "a": no comma may stand before "}"'),
        ('{"a":1,"a":2}', "at character 7"),
        ('{"a":[1,]}', 'at character 8, in "a": no comma may stand before "]"'),
        ('{"a":[1, x]}', 'at character 9, in "a"'),
        ('{"a":}', 'at character 5, in "a"'),
        ('{"a":-Infinity}', 'at character 5, in "a": JSON has no NaN and no Infinity'),
        ("{\n", "the text ends at character 2, in line 2"),
    ],
)
def test_a_problem_says_where_it_is(text, note):
    assert error_of(text).problem.note == note


def test_a_problem_quotes_little_of_a_long_text():
    problem = error_of('{"a":"' + "x" * 10_000 + '" oops' + "y" * 10_000).problem
    assert len(problem.got) < 200
    at_most, more = "y" * MAX_QUOTE, "y" * (MAX_QUOTE + 1)
    assert error_of(at_most).problem.got == at_most
    assert error_of(more).problem.got == f"{at_most}…"
    assert error_of(f'"{at_most}\\x').problem.got == f"…{at_most}\\x"
    assert error_of(f'"{at_most[1:]}\\x').problem.got == f'"{at_most[1:]}\\x'
    assert str(error_of("words")) == "invalid_json: expected a value"


# While the text is coming


@settings(deadline=None)
@given(OBJECTS, st.lists(st.integers(0, 10_000), max_size=6))
def test_an_object_is_seen_when_its_text_is_whole_and_not_before(value, places):
    text = json.dumps(value)
    written = Fragments()
    written.object_so_far()
    so_far = ""
    for piece in cut(text, places):
        written.add(piece)
        so_far += piece
        seen = written.object_so_far()
        assert (seen is not None) == (so_far == text)
    assert seen is not None
    assert canonical(seen.value) == canonical(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a":"\\"}","b":"\\\\"}', {"a": '"}', "b": "\\"}),
        ('{"a":"{\\\\\\"[","b":[{}]}', {"a": '{\\"[', "b": [{}]}),
        ('"{\\"a\\":\\"}\\"}"', {"a": "}"}),
    ],
    ids=["a quote and a backslash", "brackets in a string", "encoded as a string"],
)
def test_an_object_with_escapes_is_seen_wherever_its_text_is_cut(text: str, value: dict[str, object]):
    halves = [[text[:at], "", text[at:]] for at in range(1, len(text))]
    for pieces in (*halves, list(text), [piece for char in text for piece in (char, "")]):
        written = Fragments()
        so_far = ""
        for piece in pieces:
            assert (written.object_so_far() is None) == (so_far != text)
            written.add(piece)
            so_far += piece
        seen = written.object_so_far()
        assert seen is not None, pieces
        assert seen.value == value


def test_text_that_looks_closed_is_parsed_only_so_often(monkeypatch: pytest.MonkeyPatch):
    parsed: list[str] = []

    def count(text: str, last_snapshot: str | None = None) -> Arguments:
        parsed.append(text)
        return _read_text(text, last_snapshot)

    monkeypatch.setattr("callgate.calls.arguments._read_text", count)
    written = Fragments()
    written.add("{} ")
    for _ in range(3 * MAX_LOOKS):
        written.add("x{}")
        assert written.object_so_far() is None
    assert len(parsed) == MAX_LOOKS


def test_an_object_seen_in_text_is_not_that_of_an_object_that_follows():
    written = Fragments()
    written.add("{}")
    assert written.object_so_far() == Arguments({})
    written.add({"a": 1})
    assert written.object_so_far() == Arguments({"a": 1}, repaired=True)


def test_no_object_is_seen_in_arguments_that_became_too_large():
    written = Fragments(limit=20)
    written.add('{"a":1}')
    assert written.object_so_far() is not None
    written.add(" " * 20)
    assert written.object_so_far() is None


def test_an_object_in_the_place_of_text_is_seen_at_once():
    written = Fragments()
    written.add({"a": 1})
    seen = written.object_so_far()
    assert seen is not None
    assert seen.value == {"a": 1}


def test_an_object_is_seen_however_often_it_was_looked_for_in_vain():
    written = Fragments()
    for char in '{"a": [1, 2, 3], "b": "some more"':
        written.add(char)
        assert written.object_so_far() is None
    written.add("}")
    assert written.object_so_far() == Arguments({"a": [1, 2, 3], "b": "some more"})


def test_a_snapshot_that_another_object_follows_is_no_object_any_more():
    written = Fragments()
    for fragment in ('{"q"', '{"q": 1}', {"q": 2}):
        written.add(fragment)
    assert written.object_so_far() is None


def test_an_object_that_a_blank_of_no_json_follows_is_no_object_any_more():
    written = Fragments()
    written.add("{}{}")
    assert written.object_so_far() is not None
    written.add("\n")
    assert written.object_so_far() is not None
    written.add("\u2028")
    assert written.object_so_far() is None
    with pytest.raises(ArgumentsError):
        written.read()


def test_an_object_that_goes_on_is_no_object_any_more():
    written = Fragments()
    written.add("{}")
    assert written.object_so_far() is not None
    written.add('{"a"')
    assert written.object_so_far() is None
    written.add(":1}")
    seen = written.object_so_far()
    assert seen is not None
    assert seen.value == {"a": 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda size: json.dumps({"a": "x" * size}),
        lambda size: json.dumps({"a": "x" * size})[:-1],
        lambda size: "{}" * (size // 2),
        lambda size: '{"a":"' + "\n" * size + '"}',
        lambda size: '{"a":[' + "[]," * (size // 3),
        lambda size: "[" * size,
        lambda size: '"' + "\\n" * (size // 2),
    ],
    ids=["string", "cut string", "many objects", "controls", "cut list", "depth", "escapes"],
)
def test_ten_times_the_text_takes_about_ten_times_as_long(make):
    """Far from a bar on speed: quadratic reading would take a hundred times as long."""

    def cost(size: int) -> float:
        text = make(size)
        pieces = [text[at : at + 16] for at in range(0, len(text), 16)]
        gc.disable()  # many lists would have it look through all that other tests have left
        try:
            began = time.process_time()
            assert outcome(*pieces) in OUTCOMES
            return time.process_time() - began
        finally:
            gc.enable()

    tries = scaled(1, 3)
    less = max(min(cost(60_000) for _ in range(tries)), 0.002)
    held_to(40 * less, "ten times the text is read, of the processor", min(cost(600_000) for _ in range(tries)))


# More than anybody can use --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 5000])
def test_arguments_beyond_the_limit_are_dropped_and_reported_as_too_large(size):
    text = json.dumps({"text": "x" * 5000})
    written = Fragments(limit=1024)
    for at in range(0, len(text), size):
        written.add(text[at : at + size])
    with pytest.raises(ArgumentsError) as refused:
        written.read()
    assert refused.value.flaw is Flaw.ARGUMENTS_TOO_LARGE
    assert refused.value.problem == FlawDetail(expected="at most 1024 bytes of arguments", got="more than that")
    assert len(written.text()) <= MAX_KEPT + 1
    assert written.object_so_far() is None


def test_the_limit_is_in_bytes_and_what_fits_is_read():
    text = '{"a": "' + "é" * 10 + '"}'
    for limit, fits in ((len(text.encode()), True), (len(text.encode()) - 1, False)):
        written = Fragments(limit=limit)
        for char in text:
            written.add(char)
        assert written.too_large is not fits
    assert len(text) < len(text.encode()) - 1


def test_an_object_in_the_place_of_text_has_the_same_limit():
    written = Fragments(limit=1024)
    written.add({"text": "x" * 2000})
    assert written.too_large
    assert written.text() == f'{{"text": "{"x" * (MAX_KEPT - 10)}…'
    with pytest.raises(ArgumentsError):
        written.read()


def test_of_too_large_arguments_the_beginning_is_kept():
    for size in (7, 600, 5000):
        written = Fragments(limit=2000)
        text = "".join(f"{number} " for number in range(2000))
        for at in range(0, len(text), size):
            written.add(text[at : at + size])
        assert written.text() == text[:MAX_KEPT] + "…"
    written = Fragments(limit=20)
    written.add({"a": 1})
    written.add("x" * 20)
    assert written.text() == '{"a": 1}' + "x" * 20 + "…"


def test_what_is_left_of_too_large_arguments_cannot_be_read_as_whole():
    written = Fragments(limit=1024)
    written.add('{"a": 1}')
    written.add(" " * 2000)
    with pytest.raises(ArgumentsError):
        read_arguments([written.text()])


def test_memory_stays_bounded_however_much_comes():
    written = Fragments(limit=100_000)
    tracemalloc.start()
    try:
        for number in range(20_000):
            written.add(f"{number}" + "y" * 1000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000
