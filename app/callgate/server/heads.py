"""Heads: of requests that a client sends again and again, and of responses, whose headers are checked and encoded."""

import re
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from callgate.api.middleware import CALLER_MEMORY, TEXT_HEADERS
from callgate.callers.rights import CallerMemory

_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}

STATUS_LINES: Final = {status: f"HTTP/1.1 {status} {_PHRASES.get(status, '')}".encode() for status in range(200, 600)}
"""The status lines. In this module each further line begins with its line break, and a blank line ends the head."""

CONTROLS: Final = bytes(sorted({*range(0x20), 0x7F} - {0x09}))
"""Characters that are forbidden in values: a line break would begin an injected header."""
NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
MAX_SHAPES: Final = 256
"""Sequences of names that are cached. An application has a few dozen."""

LENGTH: Final = b"content-length"
LENGTH_TEXT: Final = "content-length"
LENGTH_LINE: Final = b"\r\ncontent-length:"
END: Final = b"\r\n\r\n"
MAX_HEAD: Final = 4096
"""Bytes of a head that is learned."""
MAX_DIGITS: Final = 9
"""Digits of a length that is read here."""
MAX_LEARNED: Final = 3
"""How many heads a connection learns one after the other: some clients give every request an id of its own."""


class RepeatedHead:
    """The head that a connection is expected to be sent next: one that the parser has read and the connection has checked, taken apart
    around the value of its Content-Length."""

    __slots__ = ("_after", "_before", "_headers", "_place", "_scope", "_text_headers", "_to_learn", "target")

    def __init__(self) -> None:
        self._before: bytes | None = None
        """All up to that value; None while no head is known."""
        self._after = b""
        """All behind it, with the blank line, the first of the head."""
        self._scope: dict[str, Any] = {}
        """The ASGI scope of its requests, but for what each has of its own."""
        self._headers: list[tuple[bytes, bytes]] = []
        self._text_headers: dict[str, str] = {}
        self._place = 0
        """The index of Content-Length among the headers."""
        self._to_learn = MAX_LEARNED
        self.target = b""
        """The target of its request line."""

    def request_fast(self, data: bytes) -> tuple[dict[str, Any], bytes] | None:
        """Return the scope and the body of the request in `data`. Equals what the parser reads, or returns None: where that is not one
        whole request with this head. It takes a tenth of the instructions."""
        before = self._before
        if before is None or not data.startswith(before):
            return None
        begin = len(before)
        end = data.find(b"\r", begin, begin + MAX_DIGITS + 1)
        after = self._after
        if end < 0 or not data.startswith(after, end):
            return None
        length = data[begin:end]
        begin_of_body = end + len(after)
        if not length.isdigit() or len(data) - begin_of_body != int(length):
            return None  # before the body is copied
        scope = self._scope.copy()
        scope["headers"] = headers = self._headers.copy()
        headers[self._place] = (LENGTH, length)
        scope[TEXT_HEADERS] = text_headers = self._text_headers.copy()
        text_headers[LENGTH_TEXT] = length.decode()
        return scope, data[begin_of_body:]

    def learn(self, data: bytes, scope: dict[str, Any], target: bytes, size: int) -> None:
        """Take the head of the request that the parser has read from `data`, if its next one may be read without the parser: the request
        is all of `data`, with a body of `size` that is counted."""
        if not self._to_learn:
            return
        self._to_learn -= 1
        head = data[: max(data.find(END), 0)]
        headers = scope["headers"]
        names = [name for name, _ in headers]
        if len(data) - len(head) - len(END) != size or len(head) > MAX_HEAD or names.count(LENGTH) != 1:
            return
        if b"transfer-encoding" in names:
            return
        place = names.index(LENGTH)
        length = headers[place][1]
        line = head.lower().index(LENGTH_LINE)
        begin = head.index(length, line + len(LENGTH_LINE))
        self._before = head[:begin]
        self._after = head[begin + len(length) :] + END
        self._scope = {**scope, CALLER_MEMORY: CallerMemory()}
        self._headers = [*headers]
        self._text_headers = {**scope[TEXT_HEADERS]}
        self._place = place
        self.target = target


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
