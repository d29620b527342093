"""What limiters that count for several processes have in common: each change is made elsewhere, while a request waits or behind it."""

import asyncio
import secrets
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from callgate.access.limits import (
    Amount,
    Correction,
    MemoryLimiter,
    Remember,
    Reservation,
    correction_of,
    limits_unavailable,
    periods_of,
)
from callgate.callers.allowance import Allowance, OverLimit

CLOSING_SECONDS: Final = 3.0
"""How long is waited at the end until chats are settled: longer than any of the places where it is counted is waited for."""
LATE_SECONDS: Final = 1.0
"""How long is waited before what could not be corrected is tried again."""
MOST_LATE: Final = 10_000
"""Corrections that wait. Of chats beyond that the estimates stay counted, where several processes count them."""
T = TypeVar("T")

Recall = Callable[[str, str, str], Awaitable[tuple[int, int] | None]]
"""Returns the spending of a key in a day and a month, in nanodollars; None where it is unknown at the moment."""


class JointLimiter(ABC):
    """Counts where several processes can; while that is away in this process, or refuses requests with limits."""

    def __init__(self, remember: Remember, alone: MemoryLimiter | None, recall: Recall | None = None) -> None:
        """`remember` is called with each change of spending, and `recall` returns the sum of all that was remembered; `alone` counts in this
        process while the others cannot be reached."""
        self._remember = remember
        self._alone = alone
        self.recall = recall
        self._spent_alone: dict[str, None] = {}
        """The keys of chats that were counted in this process."""
        self._work: set[asyncio.Task[Any]] = set()
        self._late: deque[tuple[Reservation, Correction]] = deque(maxlen=MOST_LATE)
        """Of chats that ended while they could not be settled, the oldest first."""
        self._catching_up: asyncio.Task[None] | None = None

    @abstractmethod
    async def count(
        self, key: str, allowance: Allowance, estimate: Amount, slot: str
    ) -> Reservation | OverLimit | None:
        """Count a request under the id `slot`, unless it is over a limit; None where that cannot be found out now."""

    @abstractmethod
    async def correct(self, reservation: Reservation, correction: Correction) -> bool | None:
        """Correct what was counted for a chat that has ended; return whether it was, None where that cannot be done now."""

    @abstractmethod
    async def raise_to(self, key: str, spent: tuple[int, int]) -> bool | None:
        """Count at least so much spending of today and of this month; return None where that cannot be done now."""

    @abstractmethod
    async def spent(self, key: str) -> tuple[int, int] | None: ...

    async def reserve(self, key: str, allowance: Allowance, estimate: Amount) -> Reservation:
        counting = self._begin(self.count(key, allowance, estimate, secrets.token_hex(8)))
        try:
            reservation = await asyncio.shield(counting)
        except asyncio.CancelledError:
            # It may be counted already: that is taken back, because the request was cancelled.
            _ = self._begin(self._give_back(counting))
            raise
        if isinstance(reservation, OverLimit):
            raise reservation
        if reservation is None:
            if self._alone is None:
                raise limits_unavailable()
            local = self._alone.reserve_now(key, allowance, estimate)
            return Reservation(key, estimate, local.second, local.headers, local=local)
        self._remember_spending(key, periods_of(reservation.made_at), estimate.nano)
        return reservation

    def settle(self, reservation: Reservation, used: Amount) -> None:
        """Settle in the background, so that the response does not wait."""
        if reservation.local is None:
            _ = self._begin(self._settle(reservation, used))
        else:
            assert self._alone is not None, "it made the reservation"
            self._alone.settle(reservation.local, used)
            if self.recall is not None and used.nano:
                self._spent_alone[reservation.key] = None
                self._begin_to_catch_up()

    async def settled(self) -> None:
        """Wait until all that was begun in the background is done."""
        while self._work:
            await asyncio.wait(set(self._work))

    async def close(self) -> None:
        if self._catching_up is not None:
            self._catching_up.cancel()
            await asyncio.wait({self._catching_up})
        if self._work:
            await asyncio.wait(self._work, timeout=CLOSING_SECONDS)

    async def _give_back(self, counting: "asyncio.Task[Reservation | OverLimit | None]") -> None:
        reservation = await counting
        if isinstance(reservation, Reservation):
            self._remember_spending(reservation.key, periods_of(reservation.made_at), reservation.amount.nano)
            await self._settle(reservation, Amount())

    async def _settle(self, reservation: Reservation, used: Amount) -> None:
        correction = correction_of(reservation, used)
        # Whatever becomes of the counts: they are made again of what is remembered where they were lost.
        self._remember_spending(reservation.key, correction.periods, correction.nano)
        if await self.correct(reservation, correction) is None:
            self._late.append((reservation, correction))
            self._begin_to_catch_up()

    def _begin_to_catch_up(self) -> None:
        if self._catching_up is None or self._catching_up.done():
            self._catching_up = asyncio.get_running_loop().create_task(self._catch_up(), name="counting late")

    async def _catch_up(self) -> None:
        """Correct what is late, and count what was spent alone, once that can be done again."""
        while self._late or self._spent_alone:
            await asyncio.sleep(LATE_SECONDS)
            while self._late and await self.correct(*self._late[0]) is not None:
                self._late.popleft()
            while self._spent_alone and await self._count_spent_alone(next(iter(self._spent_alone))):
                pass

    async def _count_spent_alone(self, key: str) -> bool:
        """Count what is remembered of a key, of which others count less; return whether that could be done."""
        assert self.recall is not None, "keys are noted only with it"
        del self._spent_alone[key]  # what is spent from here on is noted again
        spent = await self.recall(key, *periods_of(time.time()))
        if spent is None or await self.raise_to(key, spent) is None:
            self._spent_alone[key] = None
            return False
        return True

    def _remember_spending(self, key: str, periods: tuple[str, str], nano: int) -> None:
        if nano:
            for period in periods:
                self._remember(key, period, nano)

    def _begin(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = asyncio.get_running_loop().create_task(work, name="counting a limit")
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        return task
