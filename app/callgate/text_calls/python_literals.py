"""Reads the keyword arguments of a call written in Python, with literals as values.

Nothing is evaluated. Invalid Python is refused, and values that JSON does not have (bytes, sets, complex numbers, infinities,
keys that are no strings).
"""

import math
import re
import unicodedata
from typing import Any, Final, NoReturn

MAX_DEPTH: Final = 64
"""The limit of nested lists, tuples and dicts."""

_SPACE = re.compile(r"[ \t\r\n]*")
_NAME = re.compile(r"[^\W\d]\w*")
_STRING_START = re.compile(r"([rRuU]?)('''|\"\"\"|'|\")")
_PLAIN = re.compile(r"[^'\"\\\r\n]+")
_SIGN = re.compile(r"[-+]")
_NUMBER = re.compile(r"0[xXoObB][0-9a-fA-F_]+|(?:[0-9][0-9_]*)?\.?(?:[0-9][0-9_]*)?(?:[eE][-+]?[0-9][0-9_]*)?")
_NUMBER_LIMIT: Final = 4000
"""Characters of a number; Python refuses to parse much longer integers."""

_CONSTANTS: Final[dict[str, bool | None]] = {
    "True": True, "False": False, "None": None, "true": True, "false": False, "null": None,
}  # fmt: skip
"""JSON's constants as well, because models mix them up."""
_ESCAPES: Final = {
    "\\": "\\", "'": "'", '"': '"', "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\n": "",
}  # fmt: skip
_HEX_DIGITS: Final = {"x": 2, "u": 4, "U": 8}
_HEX = re.compile(r"[0-9a-fA-F]+")
_OCTAL = re.compile(r"[0-7]{1,3}")
_UNICODE_NAME = re.compile(r"\{([A-Za-z0-9 -]{1,100})\}")


class NotLiteralError(ValueError):
    """Raised for an argument that is not a name with a literal."""


def read_keywords(text: str) -> tuple[dict[str, Any], bool]:
    """Read the arguments between the parentheses of a call; return also whether a string has line breaks that Python allows
    only in triple quotes. Raises `NotLiteralError`."""
    literals = _Literals(text)
    return literals.keywords(), literals.has_raw_breaks


class _Literals:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self.has_raw_breaks = False

    def keywords(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        while not self._at_end():
            if values:
                self._expect(",")
                if self._at_end():
                    break
            key = self._match(_NAME)
            self._space()
            self._expect("=")
            if key in values:
                self._refuse()
            values[key] = self._value(0)
        return values

    def _value(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            self._refuse()
        self._space()
        char = self._text[self._at : self._at + 1]
        if char == "[":
            return self._items("]", depth)[0]
        if char == "(":
            items, has_comma = self._items(")", depth)
            if len(items) == 1 and not has_comma:
                return items[0]
            return items
        if char == "{":
            return self._dict(depth)
        if _STRING_START.match(self._text, self._at):
            # String literals side by side are one.
            pieces: list[str] = []
            while start := _STRING_START.match(self._text, self._at):
                self._at = start.end()
                self._string(pieces, start.group(2), is_raw=start.group(1) in ("r", "R") and bool(start.group(1)))
                self._space()
            return "".join(pieces)
        if char in "0123456789.+-":
            return self._number()
        word = self._match(_NAME)
        if word in _CONSTANTS:
            return _CONSTANTS[word]
        return self._refuse()

    def _items(self, closer: str, depth: int) -> tuple[list[Any], bool]:
        self._at += 1
        elements: list[Any] = []
        has_comma = False
        while not self._next_is(closer):
            if elements:
                self._expect(",")
                has_comma = True
                if self._next_is(closer):
                    break
            elements.append(self._value(depth + 1))
        self._at += 1
        return elements, has_comma

    def _dict(self, depth: int) -> dict[str, Any]:
        self._at += 1
        members: dict[str, Any] = {}
        while not self._next_is("}"):
            if members:
                self._expect(",")
                if self._next_is("}"):
                    break
            key = self._value(depth + 1)
            self._space()
            self._expect(":")
            if not isinstance(key, str) or key in members:
                self._refuse()
            members[key] = self._value(depth + 1)
        self._at += 1
        return members

    def _number(self) -> int | float:
        sign = 1
        if _SIGN.match(self._text, self._at):
            sign = -1 if self._text[self._at] == "-" else 1
            self._at += 1
            self._space()
        word = self._match(_NUMBER)
        if not word or len(word) > _NUMBER_LIMIT:
            self._refuse()
        try:
            is_float = any(mark in word for mark in ".eE") and word[:2] not in ("0x", "0X")
            if not is_float:
                return sign * int(word, 0)
            number = float(word)
        except ValueError:
            self._refuse()
        if math.isfinite(number):
            return sign * number
        return self._refuse()

    def _string(self, pieces: list[str], quote: str, *, is_raw: bool) -> None:
        text = self._text
        while not text.startswith(quote, self._at):
            plain = _PLAIN.match(text, self._at)
            if plain:
                pieces.append(plain.group())
                self._at = plain.end()
                continue
            char = text[self._at : self._at + 1]
            if not char:
                self._refuse()
            self._at += 1
            self.has_raw_breaks = self.has_raw_breaks or (char in "\r\n" and len(quote) == 1)
            if char != "\\":
                pieces.append(char)
            elif is_raw:
                pieces.append(char + text[self._at : self._at + 1])
                self._at += 1
            else:
                pieces.append(self._escape())
        self._at += len(quote)

    def _escape(self) -> str:
        char = self._text[self._at : self._at + 1]
        octal = _OCTAL.match(self._text, self._at)
        if octal:
            self._at = octal.end()
            return chr(int(octal.group(), 8))
        self._at += 1
        if char in _HEX_DIGITS:
            count = _HEX_DIGITS[char]
            digits = self._text[self._at : self._at + count]
            if len(digits) < count or not _HEX.fullmatch(digits) or int(digits, 16) > 0x10FFFF:
                self._refuse()
            self._at += count
            return chr(int(digits, 16))
        if char == "N":
            name = _UNICODE_NAME.match(self._text, self._at)
            if name is None:
                self._refuse()
            self._at = name.end()
            try:
                return unicodedata.lookup(name.group(1))
            except KeyError:
                return self._refuse()
        return _ESCAPES.get(char, "\\" + char)

    def _match(self, pattern: "re.Pattern[str]") -> str:
        self._space()
        match = pattern.match(self._text, self._at)
        if match is None:
            self._refuse()
        self._at = match.end()
        return match.group()

    def _expect(self, char: str) -> None:
        self._space()
        if not self._text.startswith(char, self._at):
            self._refuse()
        self._at += 1

    def _next_is(self, char: str) -> bool:
        self._space()
        return self._text.startswith(char, self._at)

    def _at_end(self) -> bool:
        self._space()
        return self._at >= len(self._text)

    def _space(self) -> None:
        match = _SPACE.match(self._text, self._at)
        if match:
            self._at = match.end()

    def _refuse(self) -> NoReturn:
        raise NotLiteralError(f"at {self._at}")
