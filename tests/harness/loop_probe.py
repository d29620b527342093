"""How long one piece of work keeps the event loop, in time of the processor: a machine that is busy with others makes it
longer by what they take of its caches, not by what they compute. For `held_to`."""

import asyncio
import gc
import time
from types import TracebackType
from typing import Self

BEAT = 0.002


class LoopProbe:
    """Notes the most that this process computed between two turns of its loop, in whichever thread: one that holds the
    interpreter keeps the loop as well."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._last = 0.0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        gc.freeze()  # a collection in the middle would go through all that other tests left
        self._last = time.process_time()
        self._task = asyncio.create_task(self._beat())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT)
            now = time.process_time()
            self.longest, self._last = max(self.longest, now - self._last), now
