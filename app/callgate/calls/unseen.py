"""Characters that a reader does not see, or that change the order of what follows: one table for descriptions, terminals and the page."""

import re
import unicodedata
from collections.abc import Sequence
from typing import Final

UNSEEN: Final[Sequence[tuple[int, int]]] = (
    (0x0000, 0x001F), (0x007F, 0x009F), (0x00AD, 0x00AD), (0x034F, 0x034F), (0x0600, 0x0605), (0x061C, 0x061C),
    (0x06DD, 0x06DD), (0x070F, 0x070F), (0x0890, 0x0891), (0x08E2, 0x08E2), (0x115F, 0x1160), (0x17B4, 0x17B5),
    (0x180B, 0x180F), (0x200B, 0x200F), (0x2028, 0x202E), (0x2060, 0x206F), (0x2800, 0x2800), (0x3164, 0x3164),
    (0xD800, 0xF8FF), (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF), (0xFFA0, 0xFFA0), (0xFFF0, 0xFFFB), (0x110BD, 0x110BD),
    (0x110CD, 0x110CD), (0x13430, 0x1343F), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF),
    (0xF0000, 0x10FFFF),
)  # fmt: skip
"""Controls, bidi marks, tags, variation selectors, fillers, private use, and letters that fonts leave blank. What Unicode has not
assigned is unseen too, and stands in no table."""

SPACES: Final[Sequence[tuple[int, int]]] = (
    (0x00A0, 0x00A0), (0x1680, 0x1680), (0x2000, 0x200A), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000),
)  # fmt: skip
"""Spaces that look like the usual one, and are others."""


def _class_of(ranges: Sequence[tuple[int, int]]) -> str:
    return "".join(f"{re.escape(chr(first))}-{re.escape(chr(last))}" for first, last in ranges)


_UNSEEN: Final = re.compile(f"[{_class_of(UNSEEN)}]")
_OTHER_SPACES: Final = re.compile(f"[{_class_of(SPACES)}]")


def is_unseen(character: str) -> bool:
    """True for a character that is not seen; also for a line break."""
    if _UNSEEN.match(character) is not None:
        return True
    return unicodedata.category(character) == "Cn"


def visible(text: str) -> str:
    """Return a text without its unseen characters; line breaks and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(character for character in text if character in "\n\t" or not is_unseen(character))


def escaped(text: str, keep: str = "", *, spaces: bool = False) -> str:
    """Return a text with its unseen characters written as JSON escapes them, but for those in `keep`. `spaces`: also other spaces
    than the usual one, where each character counts."""
    if text.isprintable() and _UNSEEN.search(text) is None:
        return text
    return "".join(
        _escape_of(character)
        if character not in keep and (is_unseen(character) or (spaces and _OTHER_SPACES.match(character)))
        else character
        for character in text
    )


def _escape_of(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
