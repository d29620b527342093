"""The log of a text's items, what reads it, and what is held of it, each with a list."""

import pytest

from callgate.text_calls.text_cursor import TextCursor
from callgate.text_calls.text_log import CALLS, REASONING, TEXT, Item, LeadHold, LineStart, ProseReader, TextLog
from tests.text_calls.reading import batched


def log_of(*sections):
    """A log of sections, by kind and text; those without a kind are dropped."""
    text = "".join(section for _, section in sections)
    log = TextLog(lambda start, end: text[start:end])
    at = 0
    for kind, section in sections:
        end = at + len(section)
        if kind == CALLS:
            log.add_calls(Item(CALLS, start=at, end=end))
        elif kind:
            log.add(kind, at, end)
        at = end
    return log


def test_what_is_passed_on_ends_before_calls_and_is_passed_on_once():
    log = log_of(
        (TEXT, "a"), ("", "<drop>"), (TEXT, "b"), (REASONING, "hm"), (TEXT, "c"), (CALLS, "<call>"), (TEXT, "d")
    )
    assert log.pass_on(None) == [(TEXT, "ab"), (REASONING, "hm"), (TEXT, "c")]
    assert log.pass_on(None) == []
    assert log.is_held
    assert [(item.kind, item.text) for item in log.rest()] == [(CALLS, "<call>"), (TEXT, "d")]


def test_nothing_is_passed_on_behind_a_limit():
    log = log_of((TEXT, "abc"), (REASONING, "defg"))
    assert log.pass_on(0) == []
    assert log.pass_on(5) == [(TEXT, "abc"), (REASONING, "de")]
    assert [(item.kind, item.text) for item in log.rest()] == [(REASONING, "fg")]
    assert log.pass_on(None) == [(REASONING, "fg")]
    assert log.rest() == []


def test_new_text_is_what_would_be_passed_on():
    log = log_of((TEXT, "ab"), (TEXT, "cd"))
    assert log.new_text() == ""  # the item was not passed on yet
    assert log.pass_on(3) == [(TEXT, "abc")]
    assert (log.new_text(), log.new_text()) == ("d", "")


def test_text_before_calls_that_were_thinking_stays_text_unless_it_was_held():
    for all_of_it, kind in ((True, REASONING), (False, TEXT)):
        log = log_of((TEXT, "a"), (CALLS, "<call>"), (TEXT, "b"))
        assert len(log.think(all_of_it=all_of_it)) == 1
        assert [item.kind for item in log.items] == [kind, REASONING, REASONING]
        assert not log.has_calls


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ([(CALLS, "<call>")], True),
        ([(CALLS, "<call>"), (TEXT, " \n")], True),
        ([(CALLS, "<call>"), (TEXT, " x")], False),
        ([(CALLS, "<call>"), (REASONING, " ")], False),
        ([(CALLS, "<call>"), (REASONING, " "), (TEXT, " ")], False),
        ([(TEXT, " ")], False),
        ([], False),
    ],
)
def test_blanks_stand_between_calls_and_their_end_mark(sections, expected):
    assert log_of(*sections).ends_with_calls() == expected


def test_calls_end_where_text_is_read_again():
    log = log_of((TEXT, "a"), (CALLS, "<call>"))
    log.cut(9)
    assert log.items[-1].end == 7
    log.cut(3)
    assert log.items[-1].end == 3


def test_a_reader_reads_prose_once_however_it_grows():
    text = "ab<call>cdef"
    log = TextLog(lambda start, end: text[start:end])
    reader = ProseReader(log)
    assert reader.read() == ""
    log.add(TEXT, 0, 1)
    assert (reader.read(), reader.read()) == ("a", "")
    log.add(TEXT, 1, 2)
    log.add_calls(Item(CALLS, start=2, end=8))
    log.add(TEXT, 8, 9)
    log.add(REASONING, 9, 10)
    assert reader.read() == "bc"
    log.add(TEXT, 10, 12)
    assert (reader.read(), reader.read()) == ("ef", "")


@batched(
    ("text", "indent", "is_silent"),
    [
        ("", 0, True),
        ("  ", 2, True),
        ("\t \t", 9, True),
        (" \n ", 1, True),
        ("a", -1, False),
        ("a\n", 0, False),
        ("a\n  b", -1, False),
        ("a \n \r", 2, False),
        ("\xa0", -1, True),
    ],
)
def test_what_stands_on_a_line(text, indent, is_silent):
    for at in range(len(text) + 1):
        log = TextLog(lambda start, end: text[start:end])
        line = LineStart(log)
        log.add(TEXT, 0, at)
        line.indent()
        log.add(TEXT, at, len(text))
        assert (line.indent(), line.is_silent()) == (indent, is_silent)
        line.begin_line()
        assert (line.indent(), line.is_silent()) == (0, is_silent)
        line.begin_text()
        assert line.is_silent()


@batched(
    ("text", "held"),
    [
        ("Now", ""),
        ("Now\n", ""),
        ("Now\n- ", "- "),
        ("Now\n  1. ", "  1. "),
        ("Now\n(a", "(a"),
        ("Now\nTe", ""),
        ("Now\n- a", "- a"),
        ("Now\n- ab", ""),
        ("- ", "- "),
        ("Now - ", ""),
        ("```", "```"),
        ("So:\n```json", "```json"),
        ("So:\n```json\n", "```json\n"),
        ("So:\n```json\n  ", "```json\n  "),
        ("So:\n```json\n- ", "```json\n- "),
        ("So:\n```json\nyes", ""),
        ("So: ```json\n", "```json\n"),
        ("So: ```the json\n", ""),
        ("So:\n1. ~~~~xml\n", "1. ~~~~xml\n"),
        ("So ~~~xml\n", ""),
        ("So `", "`"),
        ("So:\n``", "``"),
        ("So:\n```" + "j" * 61, ""),
        ("So:\n- " + " " * 30, ""),
    ],
)
def test_what_may_lead_to_a_call_is_held_however_it_comes(text, held):
    for step in (1, 2, 3, len(text)):
        lead = LeadHold()
        released = "".join(lead.pass_on(text[at : at + step]) for at in range(0, len(text), step))
        assert (released, lead.held) == (text[: len(text) - len(held)], held), step
        assert lead.release("x") == f"{held}x"
        assert lead.held == ""


def test_a_cursor_gives_any_part_of_what_it_was_fed_and_goes_back_to_it():
    cursor = TextCursor()
    for text in ("abc", "def", "ghi"):
        cursor.push(text)
        cursor.at += 2
        cursor.logged = cursor.offset
    assert (cursor.offset, cursor.text) == (6, "efghi"[1:] if cursor.text[0] == "f" else "efghi")
    assert cursor.between(0, 9) == "abcdefghi"
    assert cursor.between(7, 9) == "hi"
    cursor.rewind(1)
    assert (cursor.offset, cursor.logged, cursor.text[cursor.at :]) == (1, 1, "bcdefghi")
    cursor.push("j")
    assert cursor.between(0, 10) == "abcdefghij"
