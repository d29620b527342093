"""Concurrency limits: of all requests, of a key, of a model. Beyond them a request waits a moment, and is then refused.

No I/O. A cancelled waiter leaves the queue, and a place that was given to it goes to the next.
"""

import asyncio
from collections import deque
from types import TracebackType
from typing import Final, Protocol, Self

from callgate.callers.caller import Person
from callgate.conversation.errors import ChatError

RETRY_SECONDS: Final = 1.0
"""The `retry-after` of a refusal: short, because places become free all the time."""


class CapacityLimiter:
    """A semaphore with a bounded queue."""

    __slots__ = ("_queue", "places", "running")

    def __init__(self, places: int) -> None:
        self.places = places
        self.running = 0
        self._queue: deque[asyncio.Future[bool]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def enter_now(self) -> bool:
        """Take a place if one is free and nothing waits for it; return whether it was."""
        if self.running >= self.places or self._queue:
            return False
        self.running += 1
        return True

    async def enter(self, wait_seconds: float) -> bool:
        """Wait for a place up to a number of seconds; return whether there was one. The queue is as long as there are places."""
        if self.enter_now():
            return True
        if wait_seconds <= 0 or len(self._queue) >= self.places:
            return False
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[bool] = loop.create_future()
        self._queue.append(turn)
        timer = loop.call_later(wait_seconds, self._give_up, turn)
        try:
            return await turn
        except asyncio.CancelledError:
            self._forget(turn)
            if turn.done() and not turn.cancelled() and turn.result():
                self.leave()  # a place was given at the same moment: pass it on
            raise
        finally:
            timer.cancel()

    def leave(self) -> None:
        self.running -= 1
        if self._queue:
            self._call_next()

    def resize(self, places: int) -> None:
        """Change the number of places. Those that are taken stay taken."""
        self.places = places
        self._call_next()

    def _call_next(self) -> None:
        while self._queue and self.running < self.places:
            turn = self._queue.popleft()
            if not turn.done():
                self.running += 1
                turn.set_result(True)

    def _give_up(self, turn: "asyncio.Future[bool]") -> None:
        self._forget(turn)
        if not turn.done():
            turn.set_result(False)

    def _forget(self, turn: "asyncio.Future[bool]") -> None:
        if turn in self._queue:
            self._queue.remove(turn)


class Held(Protocol):
    """A place that was taken."""

    def leave(self) -> None: ...


class SharedPlaces(Protocol):
    """The places of keys, counted for several processes."""

    async def enter(self, key: str, places: int, wait_seconds: float) -> "Held | bool":
        """Take a place; False where there was none in time; True where this process should count alone."""
        ...

    async def close(self) -> None: ...


class Place:
    """A place in several limiters, released at the end of the block."""

    __slots__ = ("_limiters",)

    def __init__(self, *limiters: Held) -> None:
        self._limiters = limiters

    def handed_on(self) -> "Place":
        """Return the place for something that outlives this block, which then does not release it."""
        limiters = self._limiters
        self._limiters = ()
        return Place(*limiters)

    def leave(self) -> None:
        with self:
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        limiters = self._limiters
        self._limiters = ()
        for limiter in limiters:
            limiter.leave()


class Admission:
    """The limiters of the process. They stay when the config changes, and get its numbers of places."""

    def __init__(
        self,
        places: int,
        wait_seconds: float,
        shared: SharedPlaces | None = None,
        of_models: SharedPlaces | None = None,
    ) -> None:
        """`shared` counts the running requests of each key for several processes, `of_models` those of each model."""
        self._wait_seconds = wait_seconds
        self._shared = shared
        self._of_models = of_models
        self.all = CapacityLimiter(places)
        self._keys: dict[str, CapacityLimiter] = {}
        self._models: dict[str, CapacityLimiter] = {}

    def change(self, places: int, wait_seconds: float) -> None:
        self._wait_seconds = wait_seconds
        self.all.resize(places)

    def place_now(self, parallel: int | None, person: Person | None) -> Place | None:
        """Take a place for a request without a limit of its own, if one is free; None where `request` has to wait or look."""
        if parallel is None and person is None and self.all.enter_now():
            return Place(self.all)
        return None

    async def request(self, key: str, parallel: int | None, person: Person | None = None) -> Place:
        """Take a place for a request of a key, or of a person. Raises `ChatError`: 429 when there are too many of the key's, of the
        person's or of his group's, 503 when the server has too many."""
        if person is not None:
            return await self._request_of(person, key, parallel)
        if parallel is None:
            if not self.all.enter_now() and not await self.all.enter(self._wait_seconds):
                raise _over_capacity()
            return Place(self.all)
        own = await self._of_key(key, parallel)
        if own is None:
            raise _too_many(parallel)
        try:
            inside = await self.all.enter(self._wait_seconds)
        except BaseException:
            own.leave()
            raise
        if not inside:
            own.leave()
            raise _over_capacity()
        return Place(own, self.all)

    async def _request_of(self, person: Person, name: str, parallel: int | None) -> Place:
        """`parallel`: of all who share his account."""
        place = await self.request(person.account, parallel)
        of_his_own = person.alone.parallel
        if of_his_own is None:
            return place
        try:
            alone = await self._of_key(name, of_his_own)
        except BaseException:
            place.leave()
            raise
        if alone is None:
            place.leave()
            raise _too_many(of_his_own)
        return Place(alone, place)

    async def _of_key(self, key: str, parallel: int) -> Held | None:
        place: Held | bool = True
        if self._shared is not None:
            place = await self._shared.enter(key, parallel, self._wait_seconds)
        if not isinstance(place, bool):
            return place
        if not place:
            return None
        alone = _sized(self._keys, key, parallel)
        if await alone.enter(self._wait_seconds):
            return alone
        return None

    async def close(self) -> None:
        if self._shared is not None:
            await self._shared.close()

    def at_model(self, name: str) -> int:
        """Return how many requests to a model have a place in this process."""
        limiter = self._models.get(name)
        if limiter is None:
            return 0
        return limiter.running

    async def model(self, name: str, places: int | None) -> Place:
        """Take a place for a chat with a model. Raises `ChatError` 503."""
        if places is None:
            return Place()
        place: Held | bool = True
        if self._of_models is not None:
            place = await self._of_models.enter(f"model:{name}", places, self._wait_seconds)
        if place is True:
            limiter = _sized(self._models, name, places)
            if await limiter.enter(self._wait_seconds):
                place = limiter
            else:
                place = False
        if isinstance(place, bool):
            raise ChatError(
                503,
                f"The model `{name}` is answering as many requests as it may. Try again in a moment.",
                type="server_error",
                code="model_over_capacity",
                retry_after=RETRY_SECONDS,
                retryable=True,
            )
        return Place(place)


def _sized(limiters: dict[str, CapacityLimiter], name: str, places: int) -> CapacityLimiter:
    limiter = limiters.get(name)
    if limiter is None:
        limiter = limiters[name] = CapacityLimiter(places)
    elif limiter.places != places:
        limiter.resize(places)
    return limiter


def _too_many(parallel: int) -> ChatError:
    return ChatError(
        429,
        f"This key may have {parallel} request(s) running at once. Wait for one of them to end.",
        type="rate_limit_error",
        code="too_many_parallel_requests",
        retry_after=RETRY_SECONDS,
    )


def _over_capacity() -> ChatError:
    return ChatError(
        503,
        "The server is answering as many requests as it can. Try again in a moment.",
        type="server_error",
        code="over_capacity",
        retry_after=RETRY_SECONDS,
    )
