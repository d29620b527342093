"""Parses strict JSON, and reports the exact place of the first error.

Stricter than most parsers, because where two parsers differ over one text a tool can be made to run something other than
what was checked: a duplicate key, a number that no double holds, and half a surrogate pair are errors. The error says
whether the text was cut (more text could complete it) or is wrong.
`arguments` repairs some mistakes and accepts some other forms.
"""

import functools
import json
import re
from itertools import pairwise
from typing import Any, NoReturn

import msgspec

from callgate.untrusted.doors import Door, TooMuch, open_text
from callgate.untrusted.readers import json_reader, pairs_reader

MAX_DEPTH = 200
"""Objects and arrays inside one another. Real arguments stay below ten; encoders downstream stop at 254, and the schema
check ends the process when it is taken far too deep."""

MAX_VALUES = 200_000
"""Values in one text, of which no model writes a tenth. A decoder holds the interpreter until it has read all of them."""
LARGE = 64 * 1024
"""Characters from which a text is checked before it is decoded, and is processed in pieces or in a thread."""

ARGUMENTS = Door(name="arguments inside a text", bytes=64 * 1024 * 1024, values=MAX_VALUES, depth=MAX_DEPTH)

_decode = json_reader()


class JsonFault(Exception):
    """Why a text is not one strict JSON value."""

    def __init__(
        self, position: int, expected: str, *, cut: bool = False, grammatical: bool = False, inside: str = ""
    ) -> None:
        super().__init__(expected)
        self.position = position
        self.expected = expected
        self.cut = cut
        """The text is a prefix of a JSON text: nothing in it is wrong, the rest is missing."""
        self.grammatical = grammatical
        """It is JSON by the grammar, and refused for its content."""
        self.inside = inside
        """The innermost property that was being written, as it stands in the text."""


def read_json(text: str) -> Any:
    """Return the value of a strict JSON text. Raises `JsonFault`."""
    try:
        opened = open_text(text, ARGUMENTS)
        value = _decode(opened)
    except UnicodeEncodeError:
        joined = join_surrogates(text)
        if joined == text:
            raise _fault(text) from None
        return read_json(joined)
    except (TooMuch, msgspec.DecodeError, RecursionError):
        raise _fault(text) from None
    if text.count("{") + text.count("[") > MAX_DEPTH and is_too_deep(value):
        raise _fault(text)
    # The decoder keeps the last of two equal keys. Each key has a colon, so a flat object with as many keys as
    # colons has no duplicate; only the others are parsed again.
    if text.count(":") > (len(value) if type(value) is dict else 0):
        try:
            _read_pairs(opened)
        except _DuplicateKey as twice:
            key = json.dumps(twice.key, ensure_ascii=False)
            raise JsonFault(
                max(0, text.rfind(key)), f"each key once, but {key} is there twice", grammatical=True
            ) from None
    return value


def is_json(text: str) -> bool:
    """True if a text is one JSON value by the grammar alone, whatever `read_json` refuses it for."""
    try:
        _Walk(text, 0).whole()
    except JsonFault as fault:
        return fault.grammatical
    return True


def value_end(text: str, start: int = 0) -> int:
    """Return the end of the JSON value that begins at `start`. Raises `JsonFault` if none is whole there."""
    return _Walk(text, start).end()


def is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for parent in level
            if isinstance(parent, dict | list)
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True


def join_surrogates(text: str) -> str:
    """Join the halves of surrogate pairs that stand side by side into one character."""
    if len(text) > LARGE:
        ends = range(LARGE, len(text), LARGE)
        places = [0, *(end + ("\ud800" <= text[end - 1] <= "\udbff") for end in ends), len(text)]
        return "".join(_joined(text[start:end]) for start, end in pairwise(places))
    return _joined(text)


def _joined(text: str) -> str:
    return _PAIR.sub(lambda pair: pair[0].encode("utf-16-le", "surrogatepass").decode("utf-16-le"), text)


def join_halves(text: str) -> str:
    """The same as `join_surrogates`, at little cost for text without surrogates."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return join_surrogates(text)
    return text


def sound_text(text: str) -> str:
    """Return text that can be encoded: surrogate pairs joined, lone surrogates replaced."""
    if text.isascii():
        return text
    joined = join_halves(text)
    return "".join(_LONE.sub("\ufffd", joined[at : at + LARGE]) for at in range(0, len(joined), LARGE))


_PAIR = re.compile(r"[\ud800-\udbff][\udc00-\udfff]")
_LONE = re.compile(r"[\ud800-\udfff]")


def same_json(value: Any, other: Any) -> bool:
    """Equal as JSON: `1`, `1.0` and `true` differ, the order of keys does not matter."""
    return canonical(value) == canonical(other)


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


# What the decoder does not report --------------------------------------------------------------------------------


class _DuplicateKey(Exception):
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def _object_of(pairs: list[tuple[str, Any]]) -> None:
    """Raise if a key stands in an object twice. Nothing is kept of the objects."""
    keys = set()
    for key, _ in pairs:
        if key in keys:
            raise _DuplicateKey(key)
        keys.add(key)


_read_pairs = pairs_reader(_object_of)


def _fault(text: str) -> JsonFault:
    """Find out why the decoder refused this text."""
    walk = _Walk(text, 0)
    try:
        walk.whole()
    except JsonFault as fault:
        return fault
    if walk.depth > MAX_DEPTH:
        return JsonFault(0, TOO_DEEP, grammatical=True)
    lone = _lone_surrogate(text)
    if lone is not None:
        return JsonFault(lone, "both halves of a surrogate pair", grammatical=True)
    return JsonFault(0, "numbers that a program can hold", grammatical=True)


_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)|([\ud800-\udfff])", re.DOTALL)


def _lone_surrogate(text: str) -> int | None:
    """Return the place of the first lone surrogate in a text that is JSON by the grammar."""
    high: re.Match[str] | None = None
    for escape in _ESCAPE.finditer(text):
        if high is not None and escape.start() != high.end():
            return high.start()
        if escape[1]:
            code = int(escape[1], 16)
        elif escape[2]:
            code = ord(escape[2])
        else:
            code = 0
        if 0xDC00 <= code <= 0xDFFF:
            if high is None:
                return escape.start()
            high = None
        elif high is not None:
            return high.start()
        elif 0xD800 <= code <= 0xDBFF:
            high = escape
    if high is not None:
        return high.start()
    return None


# The grammar ---------------------------------------------------------------------------------------------------

_PLAIN = r'[^"\\\x00-\x1f]*+'
_ESCAPED = r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})'
_CHARS = rf"{_PLAIN}(?:{_ESCAPED}{_PLAIN}){{0,200}}+"
"""Bounded, because a match holds the interpreter until it ends. Longer strings are not matched as simple values."""
_INTEGER = r"-?(?:0|[1-9][0-9]*+)"
_NUMBER = rf"{_INTEGER}(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?"
_WS = r"[ \t\n\r]*+"
_SIMPLE = rf'(?:"{_CHARS}"|{_NUMBER}|true|false|null|\[{_WS}\]|\{{{_WS}\}})'

_space = re.compile(_WS)
_chars = re.compile(rf"{_PLAIN}(?:{_ESCAPED}{_PLAIN}){{0,20000}}+")
_number = re.compile(_NUMBER)
_cut_number = re.compile(rf"(?:-|{_INTEGER}\.|{_INTEGER}(?:\.[0-9]++)?[eE][+-]?)\Z")
_cut_escape = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_ITEM = rf"{_SIMPLE}{_WS},{_WS}"
_MEMBER = rf'"{_CHARS}"{_WS}:{_WS}{_ITEM}'
RUN = 500
"""Simple items or members that are stepped over at once: a match holds the interpreter until it ends."""
_STEPS = {"]": _ITEM, "}": _MEMBER}
"""By what closes them."""
TOO_DEEP = f"at most {MAX_DEPTH} objects and arrays inside one another"
TOO_MANY = f"at most {MAX_VALUES:,} values"
_WORDS = ("true", "false", "null")
_KEY = "a key in double quotes"
_FIRST = {"}": f'{_KEY} or "}}"', "]": 'a value or "]"'}
NOTHING_MORE = "nothing after the value"


@functools.cache
def _runs(closer: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return the pattern of a run, and of what is counted in it. Made for the first one: that takes a millisecond of a start."""
    step = _STEPS[closer]
    return re.compile(rf"(?:{step}){{1,{RUN}}}+"), re.compile(step)


class _Walk:
    """Reads a text token by token, without recursion or backtracking. Runs of simple items and members are skipped at
    once, so that megabytes of rows do not take a minute."""

    def __init__(self, text: str, start: int) -> None:
        self.text = text
        self.at = start
        self.values = self.depth = 0
        self._open: list[str] = []
        """What closes each object or array we are in."""
        self._keys: list[str] = []
        """The latest key of each."""
        self._fresh = False
        """The innermost of them was just opened: it may close at once, and no comma may come yet."""

    def whole(self) -> None:
        """Read one value, and raise if anything follows it."""
        self.end()
        self._skip_space()
        if self.at < len(self.text):
            self._wrong(NOTHING_MORE)

    def end(self) -> int:
        self._value()
        while self._open:
            # One more item or member, or the close.
            closer = self._open[-1]
            fresh = self._fresh
            self._fresh = False
            expected = _FIRST[closer] if fresh else f'"," or "{closer}"'
            char = self._next(expected)
            if char == closer:
                self.at += 1
                self._open.pop()
                self._keys.pop()
            else:
                if not fresh:
                    if char != ",":
                        self._wrong(expected)
                    self.at += 1
                    self._skip_space()
                run, entry = _runs(closer)
                while (entries := run.match(self.text, self.at)) is not None:
                    self.at = entries.end()
                    self._count(len(entry.findall(entries[0])))
                if closer == "}":
                    if self._next(_KEY) != '"':
                        self._wrong(_KEY)
                    start = self.at + 1
                    self._string()
                    self._keys[-1] = self.text[start : self.at - 1]
                    if self._next('":"') != ":":
                        self._wrong('":"')
                    self.at += 1
                self._value()
        return self.at

    def _value(self) -> None:
        """Read a simple value, or the opening bracket of one that `_step` reads."""
        self._count(1)
        char = self._next("a value")
        if char in "{[":
            self.at += 1
            self._open.append("}" if char == "{" else "]")
            self._keys.append("")
            self._fresh = True
            self.depth = max(self.depth, len(self._open))
            if self.depth > MAX_DEPTH and len(self.text) > LARGE:
                raise JsonFault(self.at, TOO_DEEP, grammatical=True)
        elif char == '"':
            self._string()
        elif char == "-" or "0" <= char <= "9":
            self._number()
        else:
            self._word()

    def _count(self, values: int) -> None:
        self.values += values
        if self.values > MAX_VALUES:
            raise JsonFault(self.at, TOO_MANY, grammatical=True)

    def _string(self) -> None:
        self.at += 1
        while (chars := _chars.match(self.text, self.at)) is not None and chars.end() > self.at:
            self.at = chars.end()
        following = self.text[self.at : self.at + 6]
        if following.startswith('"'):
            self.at += 1
        elif not following:
            self._cut("the rest of a string")
        elif following.startswith("\\") and self.at + len(following) == len(self.text) and _cut_escape.match(following):
            self._cut("the rest of an escape")
        elif following.startswith("\\"):
            self._wrong('an escape that JSON has; a backslash itself is written "\\\\"')
        else:
            self._wrong('control characters in strings to be escaped, such as "\\n"')

    def _number(self) -> None:
        if _cut_number.match(self.text, self.at):
            self._cut("the rest of a number")
        number = _number.match(self.text, self.at)
        if number is None:
            self._wrong("a number")
        self.at = number.end()

    def _word(self) -> None:
        following = self.text[self.at : self.at + 5]
        for word in _WORDS:
            if following.startswith(word):
                self.at += len(word)
                return
            if word.startswith(following) and self.at + len(following) == len(self.text):
                self._cut(f"the rest of {word}")
        self._wrong("a value")

    def _skip_space(self) -> None:
        space = _space.match(self.text, self.at)
        assert space is not None
        self.at = space.end()

    def _next(self, expected: str) -> str:
        """Return the next character that is no space; the text must not end before it."""
        self._skip_space()
        if self.at == len(self.text):
            self._cut(expected)
        return self.text[self.at]

    def _cut(self, expected: str) -> NoReturn:
        raise JsonFault(len(self.text), expected, cut=True, inside=self._inside())

    def _wrong(self, expected: str) -> NoReturn:
        raise JsonFault(self.at, expected, inside=self._inside())

    def _inside(self) -> str:
        return next((key for key in reversed(self._keys) if key), "")
