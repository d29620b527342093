"""Gemma 4: `<|tool_call>call:N{key:value,...}<tool_call|>`, a notation of its own with strings between `<|"|>` marks."""

import math
import re
from typing import Any, Final

from callgate.calls.states import Flaw
from callgate.conversation.events import CallWritten
from callgate.text_calls.event_sink import EventSink
from callgate.text_calls.json_calls import cut_off
from callgate.text_calls.text_cursor import Steps, TextCursor, finder

OPEN: Final = "<|tool_call>"
END: Final = "<tool_call|>"
QUOTE: Final = '<|"|>'

MAX_DEPTH: Final = 64
"""Objects and lists inside one another; real arguments stay below ten."""

_CALL: Final = "call:"
_NAME = re.compile(r"[^\s{}<>\[\],]*")
_NAME_LIMIT: Final = 256
_STRUCTURE: Final = finder(("{", "}", "[", "]", QUOTE, END))
_STRING: Final = finder((QUOTE,))

_SPACE = re.compile(r"[ \t\r\n]*")
_KEY = re.compile(r"[^\s{}\[\],:<]+")
_WORD = re.compile(r"[A-Za-z0-9_.+-]+")
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORDS: Final[dict[str, bool | None]] = {"true": True, "false": False, "null": None}
_INTEGER_LIMIT: Final = 4000
"""Digits; Python refuses to read much longer ones."""


def gemma_call(out: EventSink) -> Steps[bool]:
    """Read the call that a mark opened."""
    out.add_call((yield from _call(out.cursor)))
    return True


def _call(cursor: TextCursor) -> Steps[CallWritten]:
    yield from cursor.space()
    if (yield from cursor.one_of((_CALL,))) is None:
        return (yield from _broken(cursor, None))
    name = yield from cursor.run(_NAME, _NAME_LIMIT)
    yield from cursor.space()
    if name is None or (yield from cursor.peek()) != "{":
        return (yield from _broken(cursor, None))
    text = yield from _braces(cursor)
    if text is None:
        return cut_off(name)
    yield from cursor.space()
    if (yield from cursor.one_of((END,))) is None and not cursor.ends_within(END):
        return (yield from _broken(cursor, name))
    try:
        return CallWritten(name, Notation(text).arguments(), flaw=None if name else Flaw.MISSING_NAME, from_text=True)
    except NotNotationError:
        return cut_off(name, flaw=Flaw.INVALID_MARKUP)


def _broken(cursor: TextCursor, name: str | None) -> Steps[CallWritten]:
    ended = yield from cursor.until(finder((END,)))
    return cut_off(name, flaw=Flaw.INVALID_MARKUP if ended else Flaw.TRUNCATED)


def _braces(cursor: TextCursor) -> Steps[str | None]:
    """The text from a brace to the one that closes it; None if none does. Marks in strings are data."""
    pieces: list[str] = []
    depth = 0
    while True:
        mark = yield from cursor.until(_STRUCTURE, pieces.append)
        if mark is None or mark == END:
            return None
        pieces.append(mark)
        if mark == QUOTE:
            if (yield from cursor.until(_STRING, pieces.append)) is None:
                return None
            pieces.append(QUOTE)
            continue
        depth += 1 if mark in "{[" else -1
        if depth == 0:
            return "".join(pieces)


class NotNotationError(ValueError):
    """A text between braces that is not this notation."""


class Notation:
    """Reads the text of one whole object."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def arguments(self) -> dict[str, Any]:
        found = self._object(0)
        if self._at < len(self._text):
            raise NotNotationError
        return found

    def _value(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise NotNotationError
        char = self._text[self._at : self._at + 1]
        if char == "{":
            return self._object(depth)
        if char == "[":
            return self._list(depth)
        if self._text.startswith(QUOTE, self._at):
            return self._string()
        return self._word()

    def _object(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        self._expect("{")
        while not self._next_is("}"):
            if found:
                self._expect(",")
            self._skip_space()
            key = self._string() if self._text.startswith(QUOTE, self._at) else self._match(_KEY)
            self._skip_space()
            self._expect(":")
            self._skip_space()
            if key in found:
                raise NotNotationError
            found[key] = self._value(depth + 1)
        self._at += 1
        return found

    def _list(self, depth: int) -> list[Any]:
        found: list[Any] = []
        self._expect("[")
        while not self._next_is("]"):
            if found:
                self._expect(",")
                self._skip_space()
            found.append(self._value(depth + 1))
        self._at += 1
        return found

    def _string(self) -> str:
        start = self._at + len(QUOTE)
        end = self._text.find(QUOTE, start)
        if end < 0:
            raise NotNotationError
        self._at = end + len(QUOTE)
        return self._text[start:end]

    def _word(self) -> Any:
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

    def _match(self, pattern: "re.Pattern[str]") -> str:
        found = pattern.match(self._text, self._at)
        if found is None:
            raise NotNotationError
        self._at = found.end()
        return found.group()

    def _expect(self, char: str) -> None:
        if not self._text.startswith(char, self._at):
            raise NotNotationError
        self._at += 1

    def _next_is(self, char: str) -> bool:
        self._skip_space()
        return self._text.startswith(char, self._at)

    def _skip_space(self) -> None:
        found = _SPACE.match(self._text, self._at)
        if found:
            self._at = found.end()
