"""The scan finds where JSON closes exactly as a JSON decoder does, and can be cut anywhere."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from callgate.text_calls.json_scan import JsonScan, State
from tests.chaos.scale import examples
from tests.text_calls.reading import batched

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=15,
)
CALLISH = st.text(alphabet='{}[]",:\\ \n0123456789.eE+-truefalsn"uxN', max_size=30)


def scanned(pieces, **options):
    scan = JsonScan(**options)
    taken = 0
    for piece in pieces:
        at = 0
        while at < len(piece) and scan.state is State.OPEN:
            at = scan.feed(piece, at)
        taken += at
    return scan, taken


def account(scan):
    entries = [
        (e.is_object, e.start, e.end, e.flawed, [(m.key, m.start, m.end, m.text) for m in e.members])
        for e in scan.entries
    ]
    return scan.state, scan.flawed, scan.is_beginning(), scan.length, entries


@settings(max_examples=examples(300), deadline=None)
@given(VALUES, st.booleans(), st.sampled_from([None, 2]), st.sampled_from(["", " ", "]", "} x", "\n{"]))
def test_a_value_closes_where_the_decoder_says(value, ascii_only, indent, rest):
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    if isinstance(value, int | float | bool | None) and not rest:
        rest = " "  # a number is over only when something else comes
    scan, taken = scanned([text + rest])
    assert (scan.state, scan.flawed) == (State.CLOSED, False)
    assert taken == len(text)


@settings(max_examples=examples(300), deadline=None)
@given(st.dictionaries(st.text(), VALUES, min_size=1, max_size=4), st.data())
def test_every_proper_prefix_is_open_and_a_beginning(value, data):
    text = json.dumps(value)
    scan, taken = scanned([text[: data.draw(st.integers(0, len(text) - 1))]])
    assert scan.state is State.OPEN
    assert scan.is_beginning()
    assert taken == scan.length


@settings(max_examples=examples(500), deadline=None)
@given(CALLISH, st.booleans())
def test_what_the_scan_calls_sound_is_what_the_decoder_reads(text, wary):
    scan, taken = scanned([text], wary=wary)
    scan.finish()
    if scan.state is State.CLOSED:
        try:
            json.loads(text[:taken], strict=False, parse_constant=_refuse)
        except ValueError:
            assert scan.flawed
        else:
            assert not scan.flawed


def _refuse(word):
    raise ValueError(word)


@settings(max_examples=examples(500), deadline=None)
@given(CALLISH | st.builds(json.dumps, VALUES), st.booleans())
def test_no_cut_changes_the_account(text, wary):
    whole, taken = scanned([text], watch=("name",), wary=wary)
    split, taken_in_pieces = scanned(list(text), watch=("name",), wary=wary)
    assert account(split) == account(whole)
    assert taken_in_pieces == taken


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(["name", "arguments", "x"]), VALUES, max_size=3), max_size=3))
def test_the_members_of_each_element_lie_where_the_scan_says(value):
    text = json.dumps(value)
    scan, _ = scanned([text], watch=("name",))
    assert [json.loads(text[entry.start : entry.end]) for entry in scan.entries] == value
    for entry, element in zip(scan.entries, value, strict=True):
        assert {m.key: json.loads(text[m.start : m.end]) for m in entry.members} == element
        for member in entry.members:
            given_name = element[member.key] if member.key == "name" else None
            assert member.text == (given_name if isinstance(given_name, str) else None)


@batched(
    "text",
    [
        '{"a": NaN}',
        '{"a": 01}',
        '{"a": 1,}',
        "[1,]",
        '{"a": "\\x"}',
        '{"a": "\\u12g4"}',
        '{"a": True}',
    ],
)
def test_a_slip_that_leaves_the_structure_whole_is_a_flaw(text):
    scan, _ = scanned([text])
    assert scan.flawed or scan.state is State.BROKEN


@batched(("text", "at"), [("{'a': 1}", 1), ('{"a" 1}', 5), ('{"a": 1]', 7), ("[1 2]", 3), ("{1: 2}", 1)])
def test_what_no_json_continues_with_is_left_unread(text, at):
    scan, taken = scanned([text])
    assert scan.state is State.BROKEN
    assert taken == at


def test_a_line_break_in_a_key_breaks_a_wary_scan_only():
    text = '{"a\nb": 1}'
    assert scanned([text])[0].state is State.CLOSED
    assert scanned([text], wary=True)[0].state is State.BROKEN
