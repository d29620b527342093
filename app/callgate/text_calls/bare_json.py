"""Reads calls without marks: JSON objects on lines of their own, bare or in a code fence (rules B2 to B5).

A line that begins with a brace, a bracket or a fence is held as long as it can be a call of an offered tool: with an unknown
name, a key that calls do not have, or text after the object it is prose. JSON that is no call is prose up to its end, so that
a line inside it is not taken for a call.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from callgate.calls.arguments import ArgumentsError, read_arguments
from callgate.calls.json_text import is_json
from callgate.calls.names import is_parallel, resolve_name
from callgate.calls.states import Flaw
from callgate.conversation.events import CallWritten
from callgate.text_calls.event_sink import EventSink
from callgate.text_calls.json_calls import ARGUMENT_KEYS, CallObjects, Ends, ends_line
from callgate.text_calls.json_scan import JsonEntry, JsonScan, State
from callgate.text_calls.prose import Prose
from callgate.text_calls.quoting import MARKER
from callgate.text_calls.text_cursor import Sink, Steps, TextCursor

_MARKER = re.compile(rf"(?:{MARKER}[ \t]+)+")
_MARKER_BEGINS = re.compile(rf"(?:{MARKER}[ \t]+){{0,4}}(?:{MARKER}|\(?\w{{0,4}})[ \t]{{0,8}}")
"""What may become markers of list items."""

CALLS: Final = CallObjects()

BARE_OPENINGS: Final = ("{", "[")
JSON_MARKS: Final = {"<tool_call>": Ends(("</tool_call>",)), "[TOOL_CALLS]": Ends(loose=True)}
"""The marks around JSON calls of other formats."""


def read_bare_json(out: EventSink) -> Steps[None]:
    """Read prose, calls on lines of their own, and fences around them."""
    reading = _Bare(out)
    yield from reading.read()


def read_bare_or_marked_json(out: EventSink) -> Steps[None]:
    """Read the same, and calls between the marks of other formats anywhere."""
    reading = _Bare(out, marks=tuple(JSON_MARKS))
    yield from reading.read()


@dataclass(slots=True)
class _HeldText:
    """Text that may be calls, and the calls found in it so far."""

    pieces: list[str] = field(default_factory=list)
    calls: list[CallWritten] = field(default_factory=list)

    def add(self, text: str) -> None:
        self.pieces.append(text)

    def release(self, out: EventSink) -> None:
        out.add_text("".join(self.pieces))
        self.pieces.clear()
        self.calls.clear()

    def settle(self, out: EventSink) -> None:
        for call in self.calls:
            out.add_call(call)
        self.pieces.clear()
        self.calls.clear()


class _Bare:
    def __init__(self, out: EventSink, marks: tuple[str, ...] = ()) -> None:
        self._out = out
        self._cursor = out.cursor
        self._marks = marks
        self._lines = Prose(out, "\n", *marks)

    def read(self) -> Steps[None]:
        begins_line = True
        while True:
            yield from self._cursor.space(self._out.add_text, same_line=True)
            if begins_line and (yield from self._line_start()):
                begins_line = self._out.line.indent() >= 0
            elif not (yield from self._pass_line()):
                return
            else:
                begins_line = True

    def _line_start(self) -> Steps[bool]:
        """Read a possible call at the start of a line. False: it is prose."""
        char = yield from self._cursor.peek()
        if char not in BARE_OPENINGS and not self._begins_word(char):
            yield from self._marker()
            char = yield from self._cursor.peek()
        if char in BARE_OPENINGS:
            if char == "[" and self._marks and (mark := (yield from self._cursor.one_of(self._marks))) is not None:
                self._cursor.back(mark)
                return False
            yield from self._objects()
            return True
        return False

    def _begins_word(self, char: str) -> bool:
        """True if a line begins with a word that is no marker of a list item, as nearly all do."""
        behind = self._cursor.text[self._cursor.at + 1 : self._cursor.at + 2]
        return char.isalpha() and behind.isalpha() and behind not in "ivxIVX"

    def _marker(self) -> Steps[None]:
        """Read the marker of a list item, if a value follows it."""
        cursor = self._cursor
        size = 0
        while (char := (yield from cursor.peek(size))) not in BARE_OPENINGS:
            size += 1
            if not char or not _MARKER_BEGINS.fullmatch(cursor.text, cursor.at, cursor.at + size):
                return
        if marker := _MARKER.fullmatch(cursor.text, cursor.at, cursor.at + size):
            cursor.at = marker.end()
            self._out.add_prose(marker.group())

    def _pass_line(self) -> Steps[bool]:
        """Emit text up to the end of the line, or to a dropped token that ends it. False: the text has ended."""
        while True:
            mark = yield from self._lines.step()
            if mark is None:
                return False
            if mark == "\n":
                self._out.add_prose(mark)
                return True
            if mark:
                yield from CALLS.read(self._out, JSON_MARKS[mark])
            if self._out.line.indent() >= 0:
                return True

    # Objects on lines of their own

    def _objects(self) -> Steps[None]:
        objects = _HeldText()
        while True:
            if not (yield from self._value(objects)):
                return
            yield from self._cursor.space(objects.add, same_line=True)
            char = yield from self._cursor.peek()
            if (yield from ends_line(self._cursor)) or (yield from self._is_dropped()):
                objects.settle(self._out)
                return
            if char == ";":
                self._cursor.at += 1
                objects.add(";")
                yield from self._cursor.space(objects.add)
            if char != ";" or (yield from self._cursor.peek()) != "{":
                objects.release(self._out)
                return
            objects.settle(self._out)

    def _is_dropped(self) -> Steps[bool]:
        """Read a dropped token, which ends a line like a line break."""
        mark = yield from self._cursor.one_of(self._out.dropped)
        if mark is None:
            return False
        self._cursor.back(mark)
        return True

    # Values

    def _value(self, value_text: _HeldText) -> Steps[bool]:
        """Read one value into `held`. False: it is no call, or the last one of the text, and nothing is held any more."""
        candidate = Candidate(self._out.tools)
        yield from candidate.read(self._cursor)
        calls = candidate.calls()
        if calls is not None:
            value_text.calls += calls
            value_text.add(candidate.text())
            return True
        if candidate.scan.state is State.OPEN and self._cursor.dry:
            calls, prose_behind = candidate.calls_of_cut_text()
            value_text.calls += calls
            if value_text.calls:
                value_text.settle(self._out)
                self._out.add_text(prose_behind)
                return False
        value_text.add(candidate.text())
        value_text.release(self._out)
        yield from candidate.pass_rest(self._cursor, self._out.add_text)
        self._out.is_spoilt = self._out.is_spoilt or candidate.broke_in_string()
        return False


class Candidate:
    """One JSON value that may be a call, or a list of calls, while its text comes."""

    def __init__(self, tools: Collection[str]) -> None:
        self.scan = JsonScan(CALLS.watch, wary=True)
        self._tools = tools
        self._pieces: list[str] = []
        self._is_hopeless = False

    def text(self) -> str:
        return "".join(self._pieces)

    def read(self, cursor: TextCursor) -> Steps[None]:
        """Read while this may be a call."""
        while not self._is_hopeless:
            self._pieces.append(self._feed(cursor))
            if self.scan.state is not State.OPEN:
                return
            if self.scan.stirred:
                self._is_hopeless = not self._may_be_call()
            elif not (yield from cursor.more()):
                return

    def pass_rest(self, cursor: TextCursor, sink: Sink) -> Steps[None]:
        """Read the rest of a value that is no call, up to its end or error."""
        self.scan.wary = False
        self.scan.one_line = True
        while True:
            text = self._feed(cursor)
            if text:
                sink(text)
            if self.scan.state is not State.OPEN or not (yield from cursor.more()):
                return

    def broke_in_string(self) -> bool:
        """True if a call of an offered tool broke at a string, so that the end of its text is unknown."""
        scan = self.scan
        entry = self.scan.entry
        if scan.state is not State.BROKEN or entry is None or not _has_keys_of_call(entry):
            return False
        name = entry.member(CALLS.name_key)
        is_offered = name is not None and name.text is not None and self._is_offered(name.text)
        return is_offered and (scan.in_string or scan.flawed or self.text().rstrip().endswith('"'))

    def calls(self) -> list[CallWritten] | None:
        """Return the calls; None if the value is something else, or incomplete."""
        scan = self.scan
        text = self.text()
        if scan.state is not State.CLOSED or self._is_hopeless or not scan.entries:
            return None
        if not all(self._is_whole_call(entry, text) for entry in scan.entries):
            return None
        return [CALLS.one_written(entry, text, None) for entry in scan.entries]

    def calls_of_cut_text(self) -> tuple[list[CallWritten], str]:
        """Return the calls of a value in which the text ended, and the prose in it. A call with a name counts."""
        scan = self.scan
        text = self.text()
        if self._is_hopeless or scan.state is not State.OPEN or not scan.is_beginning():
            return [], text
        closed = [entry for entry in scan.entries if entry.end >= 0]
        if not all(self._is_whole_call(entry, text) for entry in closed):
            return [], text
        calls = [CALLS.one_written(entry, text, None) for entry in closed]
        prose_behind = ""
        if len(closed) < len(scan.entries):
            last = scan.entries[-1]
            name = last.member(CALLS.name_key)
            if name is not None and name.text is not None:
                calls.append(CALLS.one_written(last, text, Flaw.TRUNCATED))
            else:
                prose_behind = text[last.start :]
        if calls:
            return (calls, prose_behind)
        return ([], text)

    def _feed(self, cursor: TextCursor) -> str:
        start = cursor.at
        cursor.at = self.scan.feed(cursor.text, start)
        return cursor.text[start : cursor.at]

    def _may_be_call(self) -> bool:
        scan = self.scan
        if scan.flawed or not all(entry.is_object for entry in scan.entries[-1:]):
            return False
        last = scan.entry
        if last is None:
            return True
        if last.end >= 0:
            return _has_keys_of_call(last)
        member = last.members[-1] if last.members else None
        if member is None or member.key != CALLS.name_key or member.start < 0:
            return True
        if member.end < 0:
            return scan.in_string
        return member.text is not None and self._is_offered(member.text)

    def _is_offered(self, name: str) -> bool:
        return resolve_name(name, self._tools) is not None or is_parallel(name, self._tools)

    def _is_whole_call(self, entry: JsonEntry, text: str) -> bool:
        """True for JSON with the keys of a call; broken JSON is prose without marks. JSON that the gate refuses, such as a
        duplicate key, is a call, so that the model is sent an error."""
        written = CALLS.one_written(entry, text, None)
        if written.flaw is not None or not _has_keys_of_call(entry):
            return False
        try:
            read_arguments([written.arguments])
        except ArgumentsError as error:
            return error.flaw is Flaw.NOT_AN_OBJECT or is_json(written.arguments)
        return True


def _has_keys_of_call(entry: JsonEntry) -> bool:
    keys = {member.key for member in entry.members}
    return CALLS.name_key in keys and not keys.isdisjoint(ARGUMENT_KEYS)
