"""Counts what is read, so that what one turn of the event loop reads can be compared with what it may."""

import threading
from typing import Final

TURN_TEXTS: Final = 500
"""Texts, as events and messages are, that are read between two turns of the event loop."""
TURN_BYTES: Final = 1024 * 1024
"""The bytes of them. The last one may be larger."""


class Work(threading.local):
    """What the current thread has read since it began. It only grows: who compares takes it twice."""

    def __init__(self) -> None:
        self.texts = 0
        self.bytes = 0


WORK: Final = Work()


class TurnShare:
    """What a reader of many small texts may still read before the event loop goes on."""

    __slots__ = ("_bytes", "_texts")

    def __init__(self) -> None:
        self._texts = TURN_TEXTS
        self._bytes = TURN_BYTES

    @property
    def is_left(self) -> bool:
        return self._texts > 0 and self._bytes > 0

    def take(self, size: int) -> None:
        """Count one text."""
        self._texts -= 1
        self._bytes -= size
