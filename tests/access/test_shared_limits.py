"""What is counted elsewhere loses nothing while it cannot be reached."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from callgate.access.limits import Amount, Correction, MemoryLimiter, Reservation
from callgate.access.redis_limits import RedisLimiter
from callgate.access.shared_limits import JointLimiter
from callgate.access.sqlite_limits import LimitsFile, SqliteLimiter
from callgate.callers.allowance import Allowance, OverLimit
from tests.harness.needs import needs
from tests.harness.redis import redis_server

pytestmark = pytest.mark.anyio

BUDGET = Allowance(budget_per_day=1.0)


class Remembered(Counter[str]):
    """What keys have spent, as the ledger adds it up."""

    def add(self, key: str, period: str, nano: int) -> None:
        if period.count("-") == 2:
            self[key] += nano

    async def of_key(self, key: str, day: str, month: str) -> tuple[int, int] | None:
        return self[key], self[key]


class FarLimiter(JointLimiter):
    """Counts in an account of its own, which may be away or lost."""

    def __init__(self, remembered: Remembered) -> None:
        super().__init__(remembered.add, MemoryLimiter(remember=remembered.add), remembered.of_key)
        self.account = MemoryLimiter()
        self.is_away = False
        self.was_asked = asyncio.Event()
        self.corrected: list[int] = []
        self.raised: dict[str, tuple[int, int]] = {}

    async def count(
        self, key: str, allowance: Allowance, estimate: Amount, slot: str
    ) -> Reservation | OverLimit | None:
        if self.is_away:
            return None
        return await self.account.reserve(key, allowance, estimate)

    async def correct(self, reservation: Reservation, correction: Correction) -> bool | None:
        self.was_asked.set()
        if self.is_away:
            return None
        self.corrected.append(correction.nano)
        return True

    async def raise_to(self, key: str, spent: tuple[int, int]) -> bool | None:
        self.was_asked.set()
        if self.is_away:
            return None
        self.raised[key] = spent
        return True

    async def spent(self, key: str) -> tuple[int, int] | None:
        return await self.account.spent(key)


async def test_what_a_chat_has_spent_is_remembered_though_it_ended_while_it_could_not_be_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("callgate.access.shared_limits.LATE_SECONDS", 0.0)
    remembered = Remembered()
    limiter = FarLimiter(remembered)
    reservations = [await limiter.reserve("alice", BUDGET, Amount(nano=5)) for _ in range(3)]
    limiter.is_away = True
    for used, reservation in enumerate(reservations, 6):
        limiter.settle(reservation, Amount(nano=used))
    await limiter.settled()
    assert remembered == {"alice": 6 + 7 + 8}
    assert limiter.corrected == []

    for is_away in (True, False):
        limiter.is_away = is_away
        limiter.was_asked.clear()
        await limiter.was_asked.wait()
    while len(limiter.corrected) < 3:  # noqa: ASYNC110 - nobody waits for it but this test
        await asyncio.sleep(0)
    assert limiter.corrected == [1, 2, 3]
    assert remembered == {"alice": 6 + 7 + 8}
    await limiter.close()


async def test_what_waits_to_be_counted_holds_no_server_that_ends() -> None:
    limiter = FarLimiter(Remembered())
    reservation = await limiter.reserve("alice", BUDGET, Amount(nano=5))
    limiter.is_away = True
    limiter.settle(reservation, Amount(nano=6))
    await limiter.settled()
    await limiter.close()
    assert limiter.corrected == []


@needs("module:redis")
async def test_what_is_spent_while_redis_is_away_is_remembered() -> None:
    remembered = Remembered()
    limiter = RedisLimiter("redis://127.0.0.1:1", down="open", remember=remembered.add)
    limiter.settle(await limiter.reserve("alice", BUDGET, Amount(nano=5)), Amount(nano=7))
    await limiter.close()
    assert remembered == {"alice": 7}


async def test_what_was_spent_in_this_process_alone_is_counted_with_the_others_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("callgate.access.shared_limits.LATE_SECONDS", 0.0)
    limiter = FarLimiter(Remembered())
    before = await limiter.reserve("alice", BUDGET, Amount(nano=5))
    limiter.is_away = True
    limiter.settle(await limiter.reserve("alice", BUDGET, Amount(nano=5)), Amount(nano=7))
    limiter.settle(await limiter.reserve("bob", BUDGET, Amount(nano=5)), Amount(nano=8))
    await limiter.was_asked.wait()
    assert limiter.raised == {}
    limiter.is_away = False
    while len(limiter.raised) < 2:  # noqa: ASYNC110 - nobody waits for it but this test
        await asyncio.sleep(0)
    assert limiter.raised == {"alice": (5 + 7, 5 + 7), "bob": (8, 8)}
    limiter.settle(before, Amount(nano=5))
    await limiter.close()


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=needs("redis-server", "module:redis"))])
async def counting(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[JointLimiter]:
    async with contextlib.AsyncExitStack() as stack:
        limiter: JointLimiter
        if request.param == "sqlite":
            limiter = SqliteLimiter(LimitsFile(tmp_path), dict, Remembered().add)
        else:
            limiter = RedisLimiter(await stack.enter_async_context(redis_server(tmp_path)), down="closed")
        stack.push_async_callback(limiter.close)
        yield limiter


async def test_spending_is_raised_and_never_lowered(counting: JointLimiter) -> None:
    counting.settle(await counting.reserve("alice", BUDGET, Amount(nano=5)), Amount(nano=5))
    await counting.settled()
    assert await counting.raise_to("alice", (9, 3))
    assert await counting.spent("alice") == (9, 5)
