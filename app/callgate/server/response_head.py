"""Checks an application's response headers, and encodes them."""

import re
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Final, NamedTuple

_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}

STATUS_LINES: Final = {status: f"HTTP/1.1 {status} {_PHRASES.get(status, '')}".encode() for status in range(200, 600)}
"""The status lines. In this module each further line begins with its line break, and a blank line ends the head."""

CONTROLS: Final = bytes(sorted({*range(0x20), 0x7F} - {0x09}))
"""Characters that are forbidden in values: a line break would begin an injected header."""
NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
MAX_SHAPES: Final = 256
"""Sequences of names that are cached. An application has a few dozen."""


class _Shape(NamedTuple):
    """Headers without their values. Responses of one route have the same names in the same order."""

    template: bytes
    """The lines, with a placeholder for each value."""
    controls: int
    """The number of control characters in the lines: the two with which each begins."""
    lengths: tuple[int, ...]
    connections: tuple[int, ...]
    """The indexes of the values of Content-Length, and of Connection."""


_shapes: dict[tuple[bytes, ...], _Shape] = {}


class StandingLines:
    """The header lines of every response of a server, such as the date."""

    def __init__(self) -> None:
        self._headers: Sequence[tuple[bytes, bytes]] = ()
        self._lines = b""

    def of(self, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
        """Return the lines of these headers. uvicorn makes a new list every second."""
        if headers is not self._headers:
            self._headers = headers
            self._lines = b"".join(b"\r\n%b: %b" % header for header in headers)
        return self._lines


def header_lines(headers: Iterable[tuple[bytes, bytes]]) -> tuple[bytes, int, bool]:
    """Return the header lines, the content length (-1 if none), and whether the connection is to be closed."""
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
    """Return the shape of headers, cached unless there are too many."""
    template = b""
    controls = 0
    lengths: list[int] = []
    connections: list[int] = []
    for place, name in enumerate(map(bytes.lower, names)):
        if not NAME.fullmatch(name):
            raise RuntimeError("Invalid HTTP header name.")
        if name == b"transfer-encoding":
            template += b"%.0b"  # left out: the server frames the body
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
