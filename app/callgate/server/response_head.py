"""Checks an application's response headers, and writes them as bytes."""

import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Final, NamedTuple

_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}

STATUS_LINES: Final = {status: f"HTTP/1.1 {status} {_PHRASES.get(status, '')}".encode() for status in range(200, 600)}
"""Every status that an answer can have. Here a line begins with the break before it, and a blank one ends the head."""

CONTROLS: Final = bytes(sorted({*range(0x20), 0x7F} - {0x09}))
"""What no value may hold: the line breaks among them would begin a header of somebody else's making."""
NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
MAX_SHAPES: Final = 256
"""Sequences of names that are remembered. An application has a few dozen; those of one that makes them up are checked each
time."""


class _Shape(NamedTuple):
    """Headers without their values. Answers of one route have the same names in the same order."""

    template: bytes
    """The lines, with a place for each value."""
    controls: int
    """How many control characters stand in the lines: the two that each begins with."""
    lengths: tuple[int, ...]
    connections: tuple[int, ...]
    """Which of the values announce the length of the body, and which may end the connection."""


_shapes: dict[tuple[bytes, ...], _Shape] = {}


def header_lines(headers: Iterable[tuple[bytes, bytes]]) -> tuple[bytes, int, bool]:
    """Headers as lines, the length of the body that they announce (-1 if none), and whether they end the connection."""
    columns = tuple(zip(*headers, strict=True))
    if not columns:
        return b"", -1, False
    names, values = columns
    template, controls, lengths, connections = _shapes.get(names) or _shape(names)
    lines = template % values
    if len(lines) - len(lines.translate(None, CONTROLS)) != controls:
        raise RuntimeError("Invalid HTTP header value.")
    length = -1
    for place in lengths:
        length = _length(values[place], length)
    ends = False
    for place in connections:
        ends = ends or b"close" in values[place].lower()
    return lines, length, ends


def _shape(names: tuple[bytes, ...]) -> _Shape:
    """The shape of headers; it is remembered unless there are too many."""
    template, controls = b"", 0
    lengths: list[int] = []
    connections: list[int] = []
    for place, name in enumerate(map(bytes.lower, names)):
        if not NAME.fullmatch(name):
            raise RuntimeError("Invalid HTTP header name.")
        if name == b"transfer-encoding":
            template += b"%.0b"  # how the body is framed is not for the application to say
            continue
        template += b"\r\n%b: %%b" % name.replace(b"%", b"%%")
        controls += 2
        if name == b"content-length":
            lengths.append(place)
        elif name == b"connection":
            connections.append(place)
    shape = _Shape(template, controls, tuple(lengths), tuple(connections))
    if len(_shapes) < MAX_SHAPES:
        _shapes[names] = shape
    return shape


def _length(value: bytes, before: int) -> int:
    length = int(value) if value.isdigit() else -1
    if length < 0 or (before >= 0 and before != length):
        raise RuntimeError("Invalid Content-Length.")
    return length
