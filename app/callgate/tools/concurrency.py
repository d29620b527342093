"""Limits how many calls run at once: of a tool, of a source, of all; and how long they do. Shared by all requests of a runtime."""

import asyncio
from collections import deque
from collections.abc import Container
from math import inf
from typing import Protocol

MAX_WAITING = 200
"""The longest queue of one limiter. Further calls are refused at once, because they would only time out."""


def times_cancelled() -> int:
    """Return how often the current task was cancelled. A `CancelledError` is meant for it only if this has increased, because
    libraries do not always call `uncancel`."""
    task = asyncio.current_task()
    if task:
        return task.cancelling()
    return 0


class QueueFull(Exception):
    """Raised where too many calls wait."""


class HeldPlace(Protocol):
    """A place that a call holds, counted for several processes."""

    def leave(self) -> None: ...


class PlacesElsewhere(Protocol):
    """Places that are counted for several processes."""

    async def enter(self, key: str, places: int, wait_seconds: float) -> "HeldPlace | bool":
        """Take a place; return True where this process should count alone."""
        ...


class ConcurrencyLimiter:
    """Lets a number of calls through at a time; the others wait in order."""

    def __init__(self, places: int, max_waiting: int = MAX_WAITING) -> None:
        self.places = places
        self._semaphore = asyncio.Semaphore(places)
        self._max_waiting = max_waiting
        self._waiting = 0
        self._retained = self._owed = 0

    @property
    def waiting(self) -> int:
        return self._waiting

    @property
    def is_free(self) -> bool:
        return not self._semaphore.locked()

    async def enter(self) -> None:
        if self._waiting >= self._max_waiting or self._retained >= self.places:
            raise QueueFull
        self._waiting += 1
        try:
            await self._semaphore.acquire()
        finally:
            self._waiting -= 1

    def leave(self) -> None:
        if self._owed:
            self._owed -= 1
        else:
            self._release()

    def retain(self) -> None:
        """Keep the place of a cancelled call while its work goes on, until `give_up`."""
        self._retained += 1
        self._owed += 1

    def give_up(self) -> None:
        self._retained -= 1
        self.leave()

    def _release(self) -> None:
        self._semaphore.release()


class SharedLimiter(ConcurrencyLimiter):
    """Lets a number of calls of all processes through at a time. Calls of this process wait in order."""

    def __init__(self, places: int, shared: PlacesElsewhere, key: str) -> None:
        super().__init__(places)
        self._shared = shared
        self._key = key
        self._held: list[HeldPlace] = []

    @property
    def is_free(self) -> bool:
        """Always false, because taking a place takes a request."""
        return False

    async def enter(self) -> None:
        await super().enter()
        try:
            place = await self._shared.enter(self._key, self.places, inf)
        except BaseException:
            super()._release()
            raise
        if not isinstance(place, bool):
            self._held.append(place)

    def _release(self) -> None:
        if self._held:
            self._held.pop().leave()
        super()._release()


class ConcurrencyLimits:
    """The limiters of a runtime. They are always entered in the same order, so that there are no deadlocks."""

    def __init__(self, max_running: int | None = None, shared: PlacesElsewhere | None = None) -> None:
        """`shared` counts the limits of tools and sources for several processes."""
        self.deadlines = CallDeadlines()
        self._shared = shared
        self._all = ConcurrencyLimiter(max_running) if max_running else None
        self._of_tools: dict[str, ConcurrencyLimiter] = {}
        self._of_sources: dict[str, ConcurrencyLimiter] = {}

    def limit_source(self, source: str, places: int | None, *, is_here: bool = False) -> None:
        """Limit the calls of a source. `is_here`: each process has its own instance of the source."""
        self._limit(self._of_sources, source, places, None if is_here else self._shared, f"source:{source}")

    def limit_tool(self, tool: str, places: int | None) -> None:
        self._limit(self._of_tools, tool, places, self._shared, f"tool:{tool}")

    def forget_tools_except(self, names: Container[str]) -> None:
        """Drop the limits of tools that are gone; running calls keep theirs to the end."""
        self._of_tools = {name: limiter for name, limiter in self._of_tools.items() if name in names}

    def handed_on(self) -> "ConcurrencyLimits":
        """Return the limits for the next runtime. Limiters with the same limit are kept, so that running calls count."""
        heir = ConcurrencyLimits(shared=self._shared)
        heir._all = self._all
        heir._of_tools = dict(self._of_tools)
        heir._of_sources = dict(self._of_sources)
        return heir

    def on_the_way_to(
        self, tool: str, source: str, executor: ConcurrencyLimiter | None = None
    ) -> list[ConcurrencyLimiter]:
        """Return the limiters for a call of this tool, the narrowest first."""
        if self._all is None and executor is None and not (self._of_tools or self._of_sources):
            return []
        limits = (self._of_tools.get(tool), self._of_sources.get(source), self._all, executor)
        return [limiter for limiter in limits if limiter is not None]

    @staticmethod
    def _limit(
        limits: dict[str, ConcurrencyLimiter],
        name: str,
        places: int | None,
        shared: PlacesElsewhere | None,
        key: str,
    ) -> None:
        if places is None:
            limits.pop(name, None)
        elif name not in limits or limits[name].places != places:
            limits[name] = ConcurrencyLimiter(places) if shared is None else SharedLimiter(places, shared, key)


class Room:
    """Room for a number of requests at a time; the others wait in order. Where there is some, nothing is awaited, which takes a fifth
    of what a semaphore does."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take(self) -> bool:
        """Take a place, if one is free."""
        if self._free == 0:
            return False
        self._free -= 1
        return True

    async def wait(self) -> None:
        """Wait for a place, behind who waits already."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # its turn came in the same moment
                self.leave()
            raise

    def leave(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    async def __aenter__(self) -> None:
        if not self.take():
            await self.wait()

    async def __aexit__(self, *_: object) -> None:
        self.leave()


class CallDeadlines:
    """Wakes the calls whose time is up, by one timer for all: nearly every call ends long before, and a timer of its own would take
    as much time as all else that is done to wait for it."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._due: dict[asyncio.Future[None], float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._looks_at = inf
        """When the timer looks who is due: at the earliest deadline, or before it where that call has ended."""

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        """Return the running event loop. Kept, because `get_running_loop` makes a system call."""
        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.get_running_loop()
            self._due = {}
            self._looks_at = inf
        return self._loop

    def begin(self, seconds: float) -> "asyncio.Future[None]":
        """Return what is done after so many seconds, unless it is done before. It has to be ended."""
        loop = self._running_loop()
        waiter = loop.create_future()
        due = loop.time() + seconds
        self._due[waiter] = due
        if due < self._looks_at:
            self._look_at(loop, due)
        return waiter

    def end(self, waiter: "asyncio.Future[None]") -> None:
        self._due.pop(waiter, None)

    def _look_at(self, loop: asyncio.AbstractEventLoop, moment: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._looks_at = moment
        self._timer = loop.call_at(moment, self._look)

    def _look(self) -> None:
        loop = self._running_loop()
        now = loop.time()
        self._timer = None
        self._looks_at = inf
        for waiter, due in self._due.items():
            if due <= now and not waiter.done():
                waiter.set_result(None)
        later = [due for due in self._due.values() if due > now]
        if later:
            self._look_at(loop, min(later))


class Slots:
    """The places that one call holds. Released by the call, or when work that outlives it ends."""

    def __init__(self, limits: list[ConcurrencyLimiter]) -> None:
        self._limits = limits
        self._held: list[ConcurrencyLimiter] = []

    @property
    def are_needed(self) -> bool:
        return bool(self._limits)

    @property
    def are_free(self) -> bool:
        """True if taking them takes no time."""
        return all(limiter.is_free for limiter in self._limits)

    async def take(self) -> None:
        try:
            for limiter in self._limits:
                await limiter.enter()
                self._held.append(limiter)
        except BaseException:
            self.give_back()
            raise

    def give_back(self) -> None:
        while self._held:
            self._held.pop().leave()

    def hand_over(self) -> "Slots":
        """Move the held places to another object, which has to release them."""
        heir = Slots(self._limits)
        heir._held = self._held
        self._held = []
        return heir


NO_SLOTS = Slots([])
"""Those of every call that nothing limits."""
