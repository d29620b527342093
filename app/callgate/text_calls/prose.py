"""Reads the prose of an answer up to the marks of a grammar, and the channels of reasoning in it."""

import re
from collections.abc import Collection
from typing import Final

from callgate.text_calls import quoting
from callgate.text_calls.call_marks import PAIRS
from callgate.text_calls.event_sink import THINK_TAGS, EventSink
from callgate.text_calls.text_cursor import Steps, TextCursor, finder

ASIDE: Final = ""
"""What `Prose.step` returns for a mark that it has handled: of reasoning, or a dropped token."""

_SPOKEN = frozenset({quoting.TABLE, quoting.QUOTATION})
"""Kinds of quoting inside which special tokens at the end of an answer are still dropped."""
_BEFORE_CALL = frozenset({"<|python_tag|>"})
"""Tokens that count as the beginning of a line for a call after them."""
_MENTION_LIMIT = 120
_LINE_REST = re.compile(r"[^<{\[\n]*")
_SENTENCE_ENDS = re.compile(r"[\"'”’»).,;:!?]+(?:\s|$)")
_WORDS_BEHIND = re.compile(r"[ \t]+([^\W\d_]+)(?:[ \t]+[^\W_]|[.,;:!?](?:\s|$)|[ \t]*$)")


class Prose:
    """Reads prose up to one of a grammar's marks."""

    def __init__(self, out: EventSink, *marks: str) -> None:
        self._out = out
        self._marks = frozenset(marks) - {"\n"}
        self._mentionable = {mark for mark in out.openings if mark[-1] != "["} if out.is_judging else ()
        self._asides = (*out.channels, *out.dropped)
        self._lone_ends = frozenset(out.channels.values()) - set(self._asides)
        self._ends = frozenset((*out.dropped, *marks)) - frozenset(out.openings)
        """Marks that may follow a call."""
        self._stray_ends = self._lone_ends - frozenset(THINK_TAGS.values())
        """The tokens of the format, without think tags, which a model may write about."""
        self._finder = finder((*marks, *self._asides, *sorted(self._stray_ends)))
        self._first_finder = finder((*marks, *self._asides, *sorted(self._lone_ends)))

    def step(self) -> Steps[str | None]:
        """Emit text up to the next mark, read and return it. `ASIDE`: it was no mark of the grammar and is handled. None: the
        text has ended."""
        out = self._out
        out.end_quoted()
        current = self._first_finder if out.may_end_alone else self._finder
        mark = yield from out.cursor.until(current, out.add_prose)
        if mark is None or mark == "\n":
            return mark
        reason = out.quoted()
        if mark in self._ends and reason and out.log.ends_with_calls():
            out.forget()
            return ASIDE
        if mark in out.dropped and (not reason or reason in _SPOKEN):
            out.forget()
            if mark in _BEFORE_CALL:
                out.line.begin_line()
            return ASIDE
        if (
            mark in self._mentionable
            and out.line.indent() < 0
            and (yield from _is_mention(out.cursor, out.tools, mark))
        ):
            out.add_prose(mark)
            return ASIDE
        if reason and mark not in out.openings and not (mark in self._marks and reason in _SPOKEN):
            out.add_prose(mark)
            return ASIDE
        if mark in self._marks:
            if reason and mark in out.openings:
                out.begin_quoted()
            return mark
        if mark not in out.channels or not _passes_channels(out, mark):
            yield from self._aside(out, mark)
        return ASIDE

    def _aside(self, out: EventSink, mark: str) -> Steps[None]:
        """Handle a mark that opens no call."""
        if mark in out.channels:
            yield from read_channel(out, (out.channels[mark],), mark)
        elif mark in self._lone_ends and out.may_end_alone:
            out.forget()
            out.end_alone()
        elif mark in self._stray_ends:
            out.forget()
        else:
            out.add_prose(mark)


def _passes_channels(out: EventSink, mark: str) -> bool:
    """Read the reasoning channel after its mark, if it is complete, and those that follow at once."""
    cursor = out.cursor
    text = cursor.text
    end = out.channels[mark]
    place = text.find(end, cursor.at)
    if place < 0:
        return False
    out.drop(mark)
    out.begin_channel()
    while True:
        if place > cursor.at:
            start = cursor.at
            cursor.at = place
            out.add_reasoning(text[start:place])
        cursor.at = place + len(end)
        out.drop(end)
        if mark in out.openings or not text.startswith(mark, cursor.at):
            return True
        place = text.find(end, cursor.at + len(mark))
        if place < 0:
            return True
        cursor.at += len(mark)
        out.drop(mark)


def _is_mention(cursor: TextCursor, tools: Collection[str], mark: str) -> Steps[bool]:
    """Find out whether a mark within a line is only mentioned: a sentence continues after it, or a quotation closes."""
    while True:
        end = min(cursor.at + _MENTION_LIMIT, len(cursor.text))
        match = _LINE_REST.match(cursor.text, cursor.at, end)
        assert match is not None, "it matches nothing as well"
        if match.end() < end or end < len(cursor.text) or not (yield from cursor.more()):
            break
    line = match.group()
    char = cursor.text[match.end() : match.end() + 1]
    if not line:
        return False
    if _SENTENCE_ENDS.match(line):
        return True
    if char in ("{", "["):
        return False
    if char == "<" and (yield from cursor.peek(len(line) + 1)) != "/":
        for place, expected in enumerate(PAIRS.get(mark, "</")):
            if (yield from cursor.peek(len(line) + place)) != expected:
                return False
    words = _WORDS_BEHIND.match(line)
    return words is not None and words[1] not in tools


def read_channel(out: EventSink, ends: tuple[str, ...], mark: str = "") -> Steps[None]:
    """Read reasoning up to one of `ends`. It is held from a line that begins like a call, where it may have ended if it is
    never closed."""
    cursor = out.cursor
    out.drop(mark)
    out.begin_channel()
    begin = cursor.offset
    openings = (opening for opening in out.openings if not any(opening in end for end in ends))
    marks = finder((*ends, *openings))
    line = "\n"

    def sink(text: str) -> None:
        nonlocal line
        if "\n" in text:
            line = text[text.rfind("\n") :]
        else:
            line = (line + text)[-64:]
        out.add_reasoning(text)

    while (mark_found := (yield from cursor.until(marks, sink))) not in ends:
        if mark_found is None:
            return
        if out.unclosed is None and ((line[0] == "\n" and not line.strip()) or mark_found in out.ends_thinking):
            out.hold_reasoning(begin)
        sink(mark_found)
    out.drop(mark_found)
    out.end_channel()
