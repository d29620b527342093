"""The heads of answers: an application's headers, checked, as the bytes that go out."""

import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Final

_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}

STATUS_LINES: Final = {status: f"HTTP/1.1 {status} {_PHRASES.get(status, '')}".encode() for status in range(200, 600)}
"""Every status that an answer can have. Here a line begins with the break before it, and a blank one ends the head."""

CONTROLS: Final = bytes(sorted({*range(0x20), 0x7F} - {0x09}))
"""What no value may hold: the line breaks among them would begin a header of somebody else's making."""
NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
MAX_LABELS: Final = 1024
"""Names that are remembered. An application has a few dozen; those of one that makes them up are checked each time."""

LENGTH: Final = b"\r\ncontent-length: "
CODING: Final = b"\r\ntransfer-encoding: "
CONNECTION: Final = b"\r\nconnection: "
SPECIAL: Final = {b"content-length": LENGTH, b"transfer-encoding": CODING, b"connection": CONNECTION}

_labels: dict[bytes, bytes] = {}


def header_lines(headers: Iterable[tuple[bytes, bytes]]) -> tuple[bytes, int, bool]:
    """Headers as lines, the length of the body that they announce (-1 if none), and whether they end the connection."""
    parts: list[bytes] = []
    length, ends = -1, False
    for name, value in headers:
        if (label := _labels.get(name)) is None:
            label = _label(name)
            if label is CODING:
                continue  # how the body is framed is not for the application to say
            if label is LENGTH:
                length = _length(value, length)
            elif label is CONNECTION:
                ends = ends or b"close" in value.lower()
        parts += (label, value)
    lines = b"".join(parts)
    # Each line has two parts and two control characters, those that it begins with.
    if len(lines) - len(lines.translate(None, CONTROLS)) != len(parts):
        raise RuntimeError("Invalid HTTP header value.")
    return lines, length, ends


def _label(name: bytes) -> bytes:
    """The name of a header as it begins a line; it is remembered unless the header says something to us."""
    if (special := SPECIAL.get(name)) is not None:
        return special
    if not NAME.fullmatch(name):
        raise RuntimeError("Invalid HTTP header name.")
    lower = name.lower()
    if lower in SPECIAL:
        return SPECIAL[lower]
    label = b"\r\n%b: " % lower
    if len(_labels) < MAX_LABELS:
        _labels[name] = label
    return label


def _length(value: bytes, before: int) -> int:
    length = int(value) if value.isdigit() else -1
    if length < 0 or (before >= 0 and before != length):
        raise RuntimeError("Invalid Content-Length.")
    return length
