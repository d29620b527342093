"""What a client that watches has not read yet, bounded for each and for all of one key together.

Who reads too slowly is ended and told so: messages that were left out in silence would look as if nothing had happened.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

WAITING: Final = 1000
"""The most messages that wait for one watcher."""
WAITING_BYTES: Final = 8 * 1024 * 1024
"""The most bytes that wait for one watcher."""
WAITING_BYTES_OF_KEY: Final = 16 * 1024 * 1024
"""The most bytes that wait for all watchers of one key."""


class FellBehind(Exception):
    """Raised to a watcher that has read too slowly."""


class BacklogShare:
    """What waits for the watchers of one key."""

    __slots__ = ("backlogs", "bytes")

    def __init__(self) -> None:
        self.backlogs: list[Backlog] = []
        self.bytes = 0

    def end_largest(self) -> None:
        """End the watcher for whom most waits."""
        max(self.backlogs, key=lambda backlog: backlog.bytes).end_behind()


class Backlog:
    """The messages that wait for one watcher. Used on the event loop."""

    __slots__ = ("_earlier", "_has_fallen_behind", "_news", "_share", "_waiting", "bytes")

    def __init__(self, share: BacklogShare, earlier: Sequence[tuple[Any, int]] = ()) -> None:
        """`earlier`: the messages with which it begins, and their sizes, which count from `finish` on: until then somebody else
        holds them."""
        self._share = share
        self._earlier = deque(earlier)
        self._waiting: deque[tuple[Any, int]] = deque()
        self.bytes = 0
        self._news = asyncio.Event()
        self._has_fallen_behind = False
        share.backlogs.append(self)

    def put(self, message: Any, size: int) -> None:
        """Add a message. Where too much waits its watcher is ended instead."""
        if self._has_fallen_behind:
            return
        self._waiting.append((message, size))
        self._count(size)
        if len(self._waiting) > WAITING:
            self.end_behind()
        self._news.set()

    def finish(self, message: Any) -> None:
        """Add the last message. What it began with counts from now on."""
        if self._has_fallen_behind:
            return
        self._waiting.extendleft(reversed(self._earlier))
        earlier = sum(size for _, size in self._earlier)
        self._earlier.clear()
        self._waiting.append((message, 0))
        self._count(earlier)
        self._news.set()

    def end_behind(self) -> None:
        """Drop what waits: its watcher is told that it is behind, and nothing else."""
        self._has_fallen_behind = True
        self._waiting.clear()
        self._earlier.clear()
        self._share.bytes -= self.bytes
        self.bytes = 0
        self._news.set()

    async def get(self) -> Any:
        """Return the next message. Raises `FellBehind`."""
        while not (self._earlier or self._waiting or self._has_fallen_behind):
            self._news.clear()
            await self._news.wait()
        if self._has_fallen_behind:
            raise FellBehind
        if self._earlier:
            return self._earlier.popleft()[0]
        message, size = self._waiting.popleft()
        self.bytes -= size
        self._share.bytes -= size
        return message

    def close(self) -> None:
        self.end_behind()
        self._share.backlogs.remove(self)

    def _count(self, size: int) -> None:
        self.bytes += size
        self._share.bytes += size
        if self.bytes > WAITING_BYTES:
            self.end_behind()
        elif self._share.bytes > WAITING_BYTES_OF_KEY:
            self._share.end_largest()
