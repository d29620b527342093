"""Replaces base64 files in a tool's text by short descriptions, because models cannot read them and they cost tokens."""

import re

from callgate.tools.results import PLAIN_LETTERS, described

MIN_LETTERS = PLAIN_LETTERS + 1
"""Shorter ones, such as icons and keys, are kept."""
_KINDS = {
    "iVBORw0KGgo": "image/png",
    "/9j/": "image/jpeg",
    "R0lGOD": "image/gif",
    "UklGR": "image/webp",
    "JVBERi0": "application/pdf",
    "UEsDB": "application/zip",
    "H4sI": "application/gzip",
    "T2dnUw": "audio/ogg",
    "SUQz": "audio/mpeg",
}
"""The beginnings of base64 files by kind. Other base64, hex and keys are kept."""
_DATA_URI = re.compile(
    r"data:(?P<type>[\w.+-]{1,60}/[\w.+-]{1,60})?(?:;[\w.=+-]{1,60}){0,4};base64,"
    r"(?P<data>(?:[A-Za-z0-9_+=/-]++|\\/)++)"
)
_BARE = re.compile(
    rf"(?<![A-Za-z0-9+/])(?P<start>{'|'.join(map(re.escape, _KINDS))})(?P<data>(?:[A-Za-z0-9+/]++|\\/)++)={{0,2}}"
)
"""Possessive, so that it takes a few milliseconds per megabyte for any text."""


def without_files(text: str) -> str:
    """Replace base64 files in a text by descriptions: `[image/png, 20480 bytes, not shown]`."""
    if len(text) < MIN_LETTERS:
        return text
    if ";base64," in text:
        text = _DATA_URI.sub(_described_uri, text)
    return _BARE.sub(_described_bare, text)


def _described_uri(match: re.Match[str]) -> str:
    if len(match["data"]) < MIN_LETTERS:
        return match[0]
    return described(match["type"] or "text/plain", _size(match["data"]))


def _described_bare(match: re.Match[str]) -> str:
    if len(match["data"]) < MIN_LETTERS:
        return match[0]
    return described(_KINDS[match["start"]], _size(match[0]))


def _size(data: str) -> int:
    letters = len(data) - data.count("\\") - data.count("=")
    return letters * 3 // 4
