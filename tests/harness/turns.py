"""What is read between two turns of the event loop, in counts."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from callgate.untrusted.work import WORK


class Turns:
    """The most texts and bytes that went through doors between two turns."""

    def __init__(self) -> None:
        self.texts = self.bytes = 0
        self._texts, self._bytes = WORK.texts, WORK.bytes

    def turn(self) -> None:
        self.texts = max(self.texts, WORK.texts - self._texts)
        self.bytes = max(self.bytes, WORK.bytes - self._bytes)
        self._texts, self._bytes = WORK.texts, WORK.bytes


@contextlib.asynccontextmanager
async def turns_counted() -> AsyncIterator[Turns]:
    """Counts in the event loop of the test, where what is tested has to run."""
    turns = Turns()

    async def count() -> None:
        while True:
            turns.turn()
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    try:
        yield turns
    finally:
        turns.turn()
        counting.cancel()
