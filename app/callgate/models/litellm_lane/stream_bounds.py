"""Bounds what litellm parses of a stream by itself, before it is given any of it."""

from typing import Final

from callgate.untrusted.doors import Door, TooMuch
from callgate.untrusted.marks import Marks

EVENT: Final = Door(
    name="event that litellm parses", bytes=4 * 1024 * 1024, values=20_000, keys=20_000, depth=200, uncounted=0
)
"""litellm makes a chunk of each in Python, from what the decoder made of it."""
JOINED_BYTES: Final = 256 * 1024 * 1024
"""Bytes that libraries copy to join the lines of one event: for each line all before it."""
_FIELDS: Final = (b"d", b"e", b"i", b"r", b":")
"""What the lines of a server-sent event begin with, comments included, and no JSON does."""
_PRELUDE: Final = 4
"""Bytes at the beginning of a frame that say how long it is."""


class LineBounds:
    """Counts a stream whose events are lines, or of lines."""

    def __init__(self, *, is_events: bool = False) -> None:
        """`is_events`: all lines are of server-sent events. Else those that begin like one are, and others are events each."""
        self._is_events = is_events
        self._size = 0
        self._marks = Marks()
        self._event_size = self._joined = 0
        """Of the lines since the last empty one."""
        self._after_cr = False

    def feed(self, piece: bytes) -> None:
        """Count the next piece. Raises `TooMuch`."""
        if self._after_cr or b"\r" in piece:
            piece = self._with_newlines(piece)
        start = 0
        while (end := piece.find(b"\n", start)) >= 0:
            self.count(piece[start:end])
            if not self._size:
                self._event_size = self._joined = 0
            self.begin()
            start = end + 1
        self.count(piece[start:])

    def begin(self) -> None:
        """Begin the next line, or frame."""
        self._size = 0
        self._marks = Marks()

    def count(self, part: bytes) -> None:
        """Count a part of a line, or of a frame. Raises `TooMuch`."""
        if not self._size and (self._is_events or part.startswith(_FIELDS)):
            self._joined += self._event_size
            if self._joined > JOINED_BYTES:
                raise TooMuch(EVENT.name, "bytes to join", JOINED_BYTES)
        self._size += len(part)
        self._event_size += len(part) + 1
        self._marks.feed(part)
        if self._size > EVENT.bytes:
            raise TooMuch(EVENT.name, "bytes", EVENT.bytes)
        EVENT.check(self._marks)

    def _with_newlines(self, piece: bytes) -> bytes:
        if self._after_cr:
            piece = piece.removeprefix(b"\n")  # the CR ended the line already
        self._after_cr = piece.endswith(b"\r")
        return piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


class FrameBounds:
    """Counts a stream of binary frames, each of which begins with its length."""

    def __init__(self) -> None:
        self._inside = LineBounds()
        self._prelude = b""
        self._left = 0

    def feed(self, piece: bytes) -> None:
        """Count the next piece. Raises `TooMuch`."""
        while piece:
            if not self._left:
                taken = _PRELUDE - len(self._prelude)
                self._prelude += piece[:taken]
                piece = piece[taken:]
                if len(self._prelude) < _PRELUDE:
                    return
                self._left = int.from_bytes(self._prelude, "big") - _PRELUDE
                self._prelude = b""
                self._inside = LineBounds()
                if not 0 < self._left <= EVENT.bytes:
                    raise TooMuch(EVENT.name, "bytes", EVENT.bytes)
            part = piece[: self._left]
            self._inside.count(part)
            self._left -= len(part)
            piece = piece[len(part) :]
