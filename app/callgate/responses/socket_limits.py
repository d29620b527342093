"""Limits of WebSockets: the number of connections, and the bytes of incomplete messages, in all and for each key."""

from typing import Final

import msgspec

from callgate.conversation.errors import ChatError

OF_ALL: Final = 2
"""WebSockets may be one connection in so many."""
OF_ONE: Final = 4
"""WebSockets of one key may be one connection in so many."""
MESSAGES_OF_ALL: Final = 32
"""The limit of incomplete messages, in messages of the largest size."""
MESSAGES_OF_ONE: Final = 8


class _Usage(msgspec.Struct):
    connections: int = 0
    held_bytes: int = 0


class SocketLimits:
    """Counts the WebSockets of one process."""

    def __init__(self) -> None:
        self._all = _Usage()
        self._of: dict[str, _Usage] = {}

    def enter(self, owner: str, connections: int) -> None:
        """Count a connection, until `leave`. `connections`: the server's limit."""
        mine = self._of.get(owner, _Usage())
        if mine.connections >= max(connections // OF_ONE, 1):
            message = "This key has too many WebSockets open. Close some, or use one for several responses."
            raise ChatError(429, message, type="rate_limit_error", code="too_many_sockets", retry_after=5)
        if self._all.connections >= max(connections // OF_ALL, 1):
            message = "Too many WebSockets are open. Use POST, or try again later."
            raise ChatError(503, message, type="server_error", code="too_many_sockets", retry_after=5)
        self._of[owner] = mine
        mine.connections += 1
        self._all.connections += 1

    def leave(self, owner: str) -> None:
        mine = self._of[owner]
        mine.connections -= 1
        self._all.connections -= 1
        if not mine.connections:
            del self._of[owner]

    def hold(self, owner: str, size: int, largest: int) -> bool:
        """Count more bytes, or fewer with a negative number; return false where that is too much. `largest`: the limit of a
        message."""
        mine = self._of[owner]
        mine.held_bytes += size
        self._all.held_bytes += size
        return size <= 0 or (
            mine.held_bytes <= MESSAGES_OF_ONE * largest and self._all.held_bytes <= MESSAGES_OF_ALL * largest
        )
