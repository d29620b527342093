"""Finds the end of a JSON value in text that comes in pieces, in linear time.

Only keys and names are decoded; `callgate.calls.arguments` parses the text of the value. The scan finds whether the value is
open, closed or broken; whether it is `flawed`, with a correct structure but no strict JSON (a trailing comma, `NaN`, a bad
escape); and the positions of the members of objects that may be calls.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum, auto

from callgate.calls.json_text import ARGUMENTS, join_surrogates
from callgate.untrusted.doors import open_text
from callgate.untrusted.readers import read_leniently

_ESCAPE = r'\\["\\/bfnrt]|\\u[0-9a-fA-F]{4}'
_STRING_BODY = re.compile(rf'(?:[^"\\]++|{_ESCAPE})*+')
_STRING_LINE = re.compile(rf'(?:[^"\\\n]++|{_ESCAPE})*+')
_OPENING = re.compile(r"\[+")
_SPACE = re.compile(r"[ \t\r\n]+")
_WORD = re.compile(r"[A-Za-z0-9_.+-]+")
_SURROGATE = re.compile("[\ud800-\udfff]")

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_NUMBER_BEGUN = re.compile(r"-?(?:0|[1-9][0-9]*)?(?:(?<=[0-9])\.[0-9]*)?(?:(?<=[0-9])[eE][+-]?[0-9]*)?")
_WORD_STARTS = "-0123456789tfn"
_WORDS = ("true", "false", "null")

_ESCAPES = '"\\/bfnrtu'
_HEX = frozenset("0123456789abcdefABCDEF")
_CLOSER = {"{": "}", "[": "]"}


class State(Enum):
    OPEN = auto()
    CLOSED = auto()
    BROKEN = auto()
    """No JSON goes on like this; the offending character is left unread."""


class _Want(Enum):
    VALUE = auto()
    VALUE_OR_END = auto()
    KEY = auto()
    KEY_OR_END = auto()
    COLON = auto()
    COMMA_OR_END = auto()


@dataclass(slots=True)
class Member:
    """One key of an object that may be a call, and the position of its value."""

    key: str
    start: int = -1
    end: int = -1
    """-1 while the value is open."""
    text: str | None = None
    """The decoded value, if it is a closed string under one of the watched keys."""


@dataclass(slots=True)
class JsonEntry:
    """A possible call: the whole value, or one element if it is a list."""

    is_object: bool
    start: int
    end: int = -1
    flawed: bool = False
    members: list[Member] = field(default_factory=list)

    def member(self, key: str) -> Member | None:
        return next((member for member in self.members if member.key == key), None)

    def repeats_a_key(self) -> bool:
        return len({member.key for member in self.members}) < len(self.members)


class JsonScan:
    """The state of one value.

    `watch`: the keys whose string values are decoded (a call's name). With `wary`, a feed ends early after each key or
    watched value (`stirred`), and a line break in one breaks the value, because it is more likely prose with a brace.
    """

    def __init__(self, watch: Collection[str] = (), *, wary: bool = False) -> None:
        self.one_line = False
        """A line break in any string breaks the value."""
        self.stirred = False
        self.wary = wary
        self.state = State.OPEN
        self.flawed = False
        self.length = 0
        self.entries: list[JsonEntry] = []
        self.kind = ""
        """The first character of the value: `{`, `[`, `"`, or that of a number or word."""
        self._watch = watch
        self._stack: list[str] = []
        self._want = _Want.VALUE
        self.in_string = False
        self._escaped = False
        self._hex_left = 0
        self._word: list[str] | None = None
        self._label: list[str] | None = None
        self._base = 0

    def feed(self, text: str, start: int) -> int:
        """Scan `text` from `start`; return where the value ends in it."""
        self._base = self.length - start
        at = start
        end = len(text)
        self.stirred = False
        while at < end and self.state is State.OPEN and not (self.wary and self.stirred):
            if self.in_string:
                at = self._string(text, at)
            else:
                at = self._structure(text, at)
        self.length += at - start
        return at

    def finish(self) -> None:
        """End a number or word, because no more text of the value follows."""
        if self.state is State.OPEN and not self.in_string and not self._stack and self._word is not None:
            word = "".join(self._word)
            if _is_word(word):
                self._word = None
                self._value_ends(self.length)
                self.state = State.CLOSED

    def is_beginning(self) -> bool:
        """True if the text so far is a prefix of a strict JSON text, or a whole one."""
        if self._entry_is_open():
            flawed = self.entries[-1].flawed
        else:
            flawed = self.flawed
        if flawed or self._word is None:
            return not flawed
        word = "".join(self._word)
        return any(whole_word.startswith(word) for whole_word in _WORDS) or _NUMBER_BEGUN.fullmatch(word) is not None

    @property
    def entry(self) -> JsonEntry | None:
        """The entry being read, or the last one read."""
        if self.entries:
            return self.entries[-1]
        return None

    # Strings

    def _string(self, text: str, at: int) -> int:
        if self._escaped:
            self._escaped = False
            self._note(text[at])
            if text[at] not in _ESCAPES:
                self._blemish()
            elif text[at] == "u":
                self._hex_left = 4
            return at + 1
        if self._hex_left:
            if text[at] not in _HEX:
                self._hex_left = 0
                self._blemish()
                return at
            self._hex_left -= 1
            self._note(text[at])
            return at + 1
        one_line = self.one_line or (self.wary and self._label is not None)
        match = (_STRING_LINE if one_line else _STRING_BODY).match(text, at)
        assert match is not None, "the body of a string may be empty"
        end = match.end()
        if self._label is not None and end > at:
            self._label.append(text[at:end])
        if end == len(text):
            return end
        if text[end] == "\\":
            self._escaped = True
            self._note("\\")
            return end + 1
        if text[end] == "\n":
            return self._breaks(end)
        self.in_string = False
        self._string_ends(self._base + end + 1)
        return end + 1

    def _note(self, char: str) -> None:
        if self._label is not None:
            self._label.append(char)

    def _string_ends(self, end: int) -> None:
        text = self._take_label()
        if self._want is _Want.COLON:
            if text is not None:
                self.entries[-1].members.append(Member(text))
            return
        if text is not None:
            self.entries[-1].members[-1].text = text
        self._value_ends(end)

    def _take_label(self) -> str | None:
        if self._label is None:
            return None
        raw = "".join(self._label)
        self._label = None
        if "\\" not in raw and raw.isprintable():
            return raw
        try:
            # It accepts raw control characters.
            text = str(read_leniently(open_text(f'"{raw}"', ARGUMENTS), strict=False))
            if _SURROGATE.search(text):
                text = join_surrogates(text)
        except ValueError:
            text = raw
            self._blemish()
        if _SURROGATE.search(text):
            self._blemish()
        return text

    # Structure

    def _structure(self, text: str, at: int) -> int:
        char = text[at]
        if self._word is not None:
            match = _WORD.match(text, at)
            if match:
                self._word.append(match.group())
                return match.end()
            if not self._word_ends(char, self._base + at):
                return at
            if self.state is not State.OPEN:
                return at
        if char in " \t\r\n":
            space = _SPACE.match(text, at)
            assert space is not None
            return space.end()
        if char in ",:]}":
            return self._punctuation(char, at)
        if self._want in (_Want.VALUE, _Want.VALUE_OR_END):
            return self._value_begins(text, at)
        if char == '"' and self._want in (_Want.KEY, _Want.KEY_OR_END):
            self._want = _Want.COLON
            self.in_string = True
            if self._level == 1:
                self._label = []
            return at + 1
        return self._breaks(at)

    def _punctuation(self, char: str, at: int) -> int:
        want = self._want
        if char == ":" and want is _Want.COLON:
            self._want = _Want.VALUE
            return at + 1
        if char == "," and want is _Want.COMMA_OR_END:
            if self._stack[-1] == "{":
                self._want = _Want.KEY
            else:
                self._want = _Want.VALUE
            return at + 1
        if char in "]}" and self._stack and _CLOSER[self._stack[-1]] == char:
            return self._container_ends(at)
        return self._breaks(at)

    def _container_ends(self, at: int) -> int:
        want = self._want
        in_object = self._stack[-1] == "{"
        if want is _Want.COLON or (in_object and want is _Want.VALUE):
            return self._breaks(at)
        if want is _Want.KEY or want is _Want.VALUE:
            self._blemish()  # a comma before the end
        self._stack.pop()
        self._value_ends(self._base + at + 1)
        return at + 1

    def _value_begins(self, text: str, at: int) -> int:
        char = text[at]
        if char == "[" and len(self._stack) > 2 and self._level > 1:
            return self._open_lists_fast(text, at)
        # Inside a value any word is read, so that the text after it can be scanned; a value that begins with an unknown word
        # is no JSON.
        is_word = char in _WORD_STARTS or (bool(self._stack) and char.isascii() and char.isalnum())
        if not is_word and char not in '{["':
            return self._breaks(at)
        self._mark_start(char, self._base + at)
        if char == '"':
            self.in_string = True
            if self._level == 1 and self._entry_is_open() and self.entries[-1].members:
                member = self.entries[-1].members[-1]
                if member.end < 0 and member.key in self._watch:
                    self._label = []
        elif char in "{[":
            self._stack.append(char)
            if char == "{":
                self._want = _Want.KEY_OR_END
            else:
                self._want = _Want.VALUE_OR_END
        else:
            self._word = []
            return at
        return at + 1

    def _open_lists_fast(self, text: str, at: int) -> int:
        """Open a run of lists deep inside a member: equals opening each, of which nothing is noted there."""
        run = _OPENING.match(text, at)
        assert run is not None, "a list begins here"
        self._stack += run.group()
        self._want = _Want.VALUE_OR_END
        return run.end()

    def _mark_start(self, char: str, at: int) -> None:
        self.stirred = self.stirred or self._level < 2
        if not self.kind:
            self.kind = char
        if self._stack == ["["] or (not self._stack and char != "["):
            self.entries.append(JsonEntry(char == "{", at))
        elif self._level == 1 and self._stack[-1] == "{" and self.entries[-1].members:
            member = self.entries[-1].members[-1]
            if member.start < 0:
                member.start = at

    def _word_ends(self, char: str, end: int) -> bool:
        if char not in ",:]} \t\r\n" and self._stack:
            self.state = State.BROKEN
            return False
        word = "".join(self._word or ())
        if not _is_word(word):
            self._blemish()
        self._word = None
        self._value_ends(end)
        return True

    def _value_ends(self, end: int) -> None:
        depth = len(self._stack)
        self.stirred = self.stirred or self._level < 2
        self._want = _Want.COMMA_OR_END
        if depth == 0:
            self.state = State.CLOSED
            if self.kind != "[":
                self.entries[-1].end = end
        elif depth == 1 and self.kind == "[":
            self.entries[-1].end = end
        elif self._level == 1 and self.entries[-1].members:
            self.entries[-1].members[-1].end = end

    def _breaks(self, at: int) -> int:
        self.state = State.BROKEN
        return at

    def _blemish(self) -> None:
        self.flawed = self.stirred = True
        if self._entry_is_open():
            self.entries[-1].flawed = True

    def _entry_is_open(self) -> bool:
        return bool(self.entries) and self.entries[-1].end < 0

    @property
    def _level(self) -> int:
        """Return the depth of the current place in an entry that is an object: 1 among its members, 0 outside."""
        depth = len(self._stack)
        if self.kind == "[":
            if depth > 1 and self._stack[1] == "{":
                return depth - 1
            return 0
        if depth and self._stack[0] == "{":
            return depth
        return 0


def _is_word(word: str) -> bool:
    return word in _WORDS or _NUMBER.fullmatch(word) is not None
