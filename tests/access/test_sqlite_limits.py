"""Limits that several workers of one machine count in one file."""

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from callgate.access.leased_places import LeasedSlot
from callgate.access.limits import Amount, day_of, forget, month_of, nothing_spent
from callgate.access.sqlite_limits import FILE, LimitsFile, SqliteLimiter, SqlitePlaces
from callgate.callers.admission import Admission
from callgate.callers.allowance import Allowance, OverLimit
from callgate.conversation.errors import ChatError
from callgate.conversation.prices import NANO

pytestmark = pytest.mark.anyio


def limiters(folder: Path, count: int = 2) -> list[SqliteLimiter]:
    return [SqliteLimiter(LimitsFile(folder), nothing_spent, forget) for _ in range(count)]


async def test_workers_grant_together_what_a_key_may_do_and_no_more(tmp_path: Path) -> None:
    workers = limiters(tmp_path, 4)
    allowance = Allowance(requests_per_minute=10)

    async def granted(limiter: SqliteLimiter) -> bool:
        try:
            await limiter.reserve("alice", allowance, Amount())
        except OverLimit:
            return False
        return True

    answers = await asyncio.gather(*(granted(workers[number % 4]) for number in range(24)))
    assert sum(answers) == 10
    for worker in workers:
        await worker.close()


async def test_what_one_worker_spends_the_other_has_not_and_the_ledger_is_told_of(tmp_path: Path) -> None:
    told: list[tuple[str, str, int]] = []
    one = SqliteLimiter(LimitsFile(tmp_path), nothing_spent, lambda *change: told.append(change))
    [other] = limiters(tmp_path, 1)
    budget = Allowance(budget_per_day=1.0)
    reservation = await one.reserve("alice", budget, Amount(nano=NANO // 2))
    one.settle(reservation, Amount(nano=NANO))
    await one.settled()
    with pytest.raises(OverLimit, match="budget"):
        await other.reserve("alice", budget, Amount())
    assert await other.spent("alice") == (NANO, NANO)
    day, month = day_of(reservation.made_at), month_of(reservation.made_at)
    assert sum(nano for _, period, nano in told if period == day) == NANO
    assert sum(nano for _, period, nano in told if period == month) == NANO
    for worker in (one, other):
        await worker.close()


async def test_spending_that_the_ledger_knows_counts_where_the_file_is_new(tmp_path: Path) -> None:
    [empty] = limiters(tmp_path / "other", 1)
    reservation = await empty.reserve("alice", Allowance(budget_per_day=1.0), Amount())
    await empty.close()
    spent = {("alice", day_of(reservation.made_at)): 2 * NANO}
    limiter = SqliteLimiter(LimitsFile(tmp_path), lambda: spent, forget)
    for _ in range(2):
        with pytest.raises(OverLimit, match="budget"):
            await limiter.reserve("alice", Allowance(budget_per_day=1.0), Amount())
    await limiter.close()


async def test_a_request_that_is_cancelled_while_it_is_counted_gives_back_what_it_took(tmp_path: Path) -> None:
    [limiter] = limiters(tmp_path, 1)
    allowance = Allowance(budget_per_day=1.0)
    asking = asyncio.create_task(limiter.reserve("alice", allowance, Amount(nano=NANO)))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait({asking})
    await limiter.settled()
    assert await limiter.spent("alice") == (0, 0)
    await limiter.close()


async def test_where_the_file_cannot_be_used_a_worker_counts_alone_and_says_so(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    [limiter] = limiters(tmp_path, 1)
    allowance = Allowance(requests_per_minute=1)
    with capture_logs() as logs:
        reservation = await limiter.reserve("alice", allowance, Amount())
        with pytest.raises(OverLimit):
            await limiter.reserve("alice", allowance, Amount())
        limiter.settle(reservation, Amount())
    assert [line["event"] for line in logs] == ["limits_file_unusable"], "not for every request"
    await limiter.close()


async def test_a_key_has_its_places_once_however_many_workers_serve_it(tmp_path: Path) -> None:
    places = [SqlitePlaces(LimitsFile(tmp_path)) for _ in range(2)]
    one, other = (Admission(100, 0.0, shared) for shared in places)
    with await one.request("alice", 2), await other.request("alice", 2):
        for admission in (one, other):
            with pytest.raises(ChatError) as refused:
                await admission.request("alice", 2)
            assert (refused.value.status, refused.value.code) == (429, "too_many_parallel_requests")
        with await one.request("bob", 1):
            pass
    for shared in places:
        if shared._work:
            await asyncio.wait(set(shared._work))
    assert isinstance(await places[1].enter("alice", 1, 0.0), LeasedSlot)
    for admission in (one, other):
        await admission.close()
