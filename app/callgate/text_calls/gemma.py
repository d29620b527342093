"""Reads calls of Gemma: `<|tool_call>call:N{key:value,...}<tool_call|>`, a notation with strings between `<|"|>` marks.

FunctionGemma writes the same with other marks (`GemmaMarks`).
"""

import math
import re
from dataclasses import dataclass
from typing import Any, Final

from callgate.calls.states import Flaw
from callgate.conversation.events import CallWritten
from callgate.text_calls.event_sink import EventSink
from callgate.text_calls.json_calls import broken_at, cut_off
from callgate.text_calls.text_cursor import Finder, Steps, TextCursor, finder


@dataclass(frozen=True, slots=True)
class GemmaMarks:
    """The marks that a release of Gemma puts around a call and around a string."""

    open: str
    end: str
    quote: str

    def structure_finder(self) -> Finder:
        return finder(("{", "}", "[", "]", self.quote, self.end))


GEMMA4: Final = GemmaMarks("<|tool_call>", "<tool_call|>", '<|"|>')
FUNCTIONGEMMA: Final = GemmaMarks("<start_function_call>", "<end_function_call>", "<escape>")

MAX_DEPTH: Final = 64
"""The limit of nested objects and lists."""

_CALL: Final = "call:"
_NAME = re.compile(r"[^\s{}<>\[\],]*")
_NAME_LIMIT: Final = 256

_SPACE = re.compile(r"[ \t\r\n]*")
_KEY = re.compile(r"[^\s{}\[\],:<]+")
_WORD = re.compile(r"[A-Za-z0-9_.+-]+")
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORDS: Final[dict[str, bool | None]] = {"true": True, "false": False, "null": None}
_INTEGER_LIMIT: Final = 4000
"""Digits of an integer; Python refuses to parse much longer ones."""


def gemma_call(out: EventSink, marks: GemmaMarks) -> Steps[bool]:
    """Read the call that a mark opened."""
    out.add_call((yield from _call(out.cursor, marks)))
    return True


def _call(cursor: TextCursor, marks: GemmaMarks) -> Steps[CallWritten]:
    yield from cursor.space()
    if (yield from cursor.one_of((_CALL,))) is None:
        return (yield from _broken(cursor, None, marks))
    name = yield from cursor.run(_NAME, _NAME_LIMIT)
    yield from cursor.space()
    if name is None or (yield from cursor.peek()) != "{":
        return (yield from _broken(cursor, None, marks))
    text = yield from _braces(cursor, marks)
    if text is None:
        return cut_off(name)
    yield from cursor.space()
    if (yield from cursor.one_of((marks.end,))) is None and not cursor.ends_within(marks.end):
        return (yield from _broken(cursor, name, marks))
    try:
        arguments = Notation(text, marks.quote).arguments()
    except NotNotationError:
        return cut_off(name, flaw=Flaw.INVALID_MARKUP)
    return CallWritten(name, arguments, flaw=None if name else Flaw.MISSING_NAME, from_text=True)


def _broken(cursor: TextCursor, name: str | None, marks: GemmaMarks) -> Steps[CallWritten]:
    ended = yield from cursor.until(finder((marks.end,)))
    return broken_at(ended, name)


def _braces(cursor: TextCursor, marks: GemmaMarks) -> Steps[str | None]:
    """Read from a brace to the one that closes it; None if none does. Marks in strings are data."""
    pieces: list[str] = []
    depth = 0
    while True:
        mark = yield from cursor.until(marks.structure_finder(), pieces.append)
        if mark is None or mark == marks.end:
            return None
        pieces.append(mark)
        if mark == marks.quote:
            if (yield from cursor.until(finder((marks.quote,)), pieces.append)) is None:
                return None
            pieces.append(marks.quote)
            continue
        depth += 1 if mark in "{[" else -1
        if depth == 0:
            return "".join(pieces)


class NotNotationError(ValueError):
    """Raised for a text between braces that is not this notation."""


class Notation:
    """Reads the text of one whole object."""

    def __init__(self, text: str, quote: str) -> None:
        self._text = text
        self._quote = quote
        self._at = 0

    def arguments(self) -> dict[str, Any]:
        arguments = self._object(0)
        if self._at < len(self._text):
            raise NotNotationError
        return arguments

    def _value(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise NotNotationError
        char = self._text[self._at : self._at + 1]
        if char == "{":
            return self._object(depth)
        if char == "[":
            elements: list[Any] = []
            self._expect("[")
            while not self._next_is("]"):
                if elements:
                    self._expect(",")
                    self._skip_space()
                elements.append(self._value(depth + 1))
            self._at += 1
            return elements
        if self._text.startswith(self._quote, self._at):
            return self._string()
        word = self._match(_WORD)
        if word in _WORDS:
            return _WORDS[word]
        if not _NUMBER.fullmatch(word):
            raise NotNotationError
        if _INTEGER.fullmatch(word):
            if len(word) > _INTEGER_LIMIT:
                raise NotNotationError
            return int(word)
        number = float(word)
        if math.isinf(number):
            raise NotNotationError
        return number

    def _object(self, depth: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        self._expect("{")
        while not self._next_is("}"):
            if members:
                self._expect(",")
            self._skip_space()
            if self._text.startswith(self._quote, self._at):
                key = self._string()
            else:
                key = self._match(_KEY)
            self._skip_space()
            self._expect(":")
            self._skip_space()
            if key in members:
                raise NotNotationError
            members[key] = self._value(depth + 1)
        self._at += 1
        return members

    def _string(self) -> str:
        start = self._at + len(self._quote)
        end = self._text.find(self._quote, start)
        if end < 0:
            raise NotNotationError
        self._at = end + len(self._quote)
        return self._text[start:end]

    def _match(self, pattern: "re.Pattern[str]") -> str:
        match = pattern.match(self._text, self._at)
        if match is None:
            raise NotNotationError
        self._at = match.end()
        return match.group()

    def _expect(self, char: str) -> None:
        if not self._text.startswith(char, self._at):
            raise NotNotationError
        self._at += 1

    def _next_is(self, char: str) -> bool:
        self._skip_space()
        return self._text.startswith(char, self._at)

    def _skip_space(self) -> None:
        match = _SPACE.match(self._text, self._at)
        if match:
            self._at = match.end()
