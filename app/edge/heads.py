"""The heads of answers: an application's headers, checked, as the bytes that go out."""

import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Final

_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}

STATUS_LINES: Final = {
    status: f"HTTP/1.1 {status} {_PHRASES.get(status, '')}\r\n".encode() for status in range(200, 600)
}
"""Every status that an answer can have."""

CONTROLS: Final = bytes(sorted({*range(0x20), 0x7F} - {0x09}))
"""What no value may hold: the line breaks among them would begin a header of somebody else's making."""
NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
MAX_LABELS: Final = 1024
"""Names that are remembered. An application has a few dozen; those of one that makes them up are checked each time."""

LENGTH: Final = b"content-length: "
CODING: Final = b"transfer-encoding: "
CONNECTION: Final = b"connection: "
SPECIAL: Final = frozenset({LENGTH, CODING, CONNECTION})

_labels: dict[bytes, bytes] = {}


def header_lines(headers: Iterable[tuple[bytes, bytes]]) -> tuple[bytes, int, bool]:
    """Headers as lines, the length of the body that they announce (-1 if none), and whether they end the connection."""
    parts: list[bytes] = []
    length, ends = -1, False
    for name, value in headers:
        label = _labels.get(name) or _label(name)
        if label in SPECIAL:
            if label is CODING:
                continue  # how the body is framed is not for the application to say
            if label is CONNECTION:
                ends = ends or b"close" in value.lower()
            else:
                length = _length(value, length)
        parts += (label, value, b"\r\n")
    lines = b"".join(parts)
    # Each line has two control characters, those that end it.
    if len(lines) - len(lines.translate(None, CONTROLS)) != len(parts) // 3 * 2:
        raise RuntimeError("Invalid HTTP header value.")
    return lines, length, ends


def _label(name: bytes) -> bytes:
    """A name as it begins a line."""
    if not NAME.fullmatch(name):
        raise RuntimeError("Invalid HTTP header name.")
    label = name.lower() + b": "
    label = next((special for special in SPECIAL if special == label), label)
    if len(_labels) < MAX_LABELS:
        _labels[name] = label
    return label


def _length(value: bytes, before: int) -> int:
    if not value.isdigit() or before not in (-1, int(value)):
        raise RuntimeError("Invalid Content-Length.")
    return int(value)
