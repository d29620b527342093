"""What holds for every limiter is written once and run against each; the rules and the window have tests of their own."""

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.access import redis_patience
from callgate.access.limits import (
    WINDOW,
    Amount,
    Limiter,
    MemoryLimiter,
    Reservation,
    Window,
    day_of,
    forget,
    month_of,
    nothing_spent,
    seconds_to_next_month,
)
from callgate.access.redis_limits import RedisLimiter
from callgate.access.shared_limits import JointLimiter
from callgate.access.sqlite_limits import LimitsFile, SqliteLimiter
from callgate.callers.allowance import Allowance, OverLimit
from callgate.conversation.errors import ChatError
from callgate.conversation.prices import NANO
from tests.harness.needs import needs
from tests.harness.redis import redis_server

NOTHING = Amount()
NOON = 1_795_003_200.0
"""2026-11-18 12:00 UTC."""


class Clock:
    def __init__(self, now: float = NOON) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


# Every limiter -----------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "sqlite", pytest.param("redis", marks=needs("redis-server", "module:redis"))])
async def limiter(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Limiter]:
    if request.param == "memory":
        yield MemoryLimiter()
        return
    if request.param == "sqlite":
        in_file = SqliteLimiter(LimitsFile(tmp_path), nothing_spent, forget)
        yield in_file
        await in_file.close()
        return
    async with redis_server(tmp_path) as url:
        opened = RedisLimiter(url, down="closed")
        yield opened
        await opened.close()


async def settled(limiter: Limiter, reservation: Reservation, used: Amount = NOTHING) -> None:
    limiter.settle(reservation, used)
    if isinstance(limiter, JointLimiter):
        await limiter.settled()


@pytest.mark.anyio
async def test_no_more_requests_than_allowed_and_a_retry_after(limiter: Limiter) -> None:
    allowance = Allowance(requests_per_minute=3)
    for left in (2, 1, 0):
        reservation = await limiter.reserve("alice", allowance, Amount())
        assert reservation.headers["x-ratelimit-limit-requests"] == "3"
        assert reservation.headers["x-ratelimit-remaining-requests"] == str(left)
        await settled(limiter, reservation)
    with pytest.raises(OverLimit) as refused:
        await limiter.reserve("alice", allowance, Amount())
    assert (refused.value.status, refused.value.code) == (429, "rate_limit_exceeded")
    assert refused.value.retry_after is not None
    assert 50 < refused.value.retry_after <= WINDOW + 1
    assert refused.value.headers["x-ratelimit-remaining-requests"] == "0"
    await limiter.reserve("bob", allowance, Amount())


@pytest.mark.anyio
async def test_a_request_for_several_answers_counts_as_so_many(limiter: Limiter) -> None:
    allowance = Allowance(requests_per_minute=10)
    first = await limiter.reserve("alice", allowance, Amount(requests=4))
    assert first.headers["x-ratelimit-remaining-requests"] == "6"
    await settled(limiter, first)
    with pytest.raises(OverLimit) as refused:
        await limiter.reserve("alice", allowance, Amount(requests=7))
    assert refused.value.retry_after is not None
    assert refused.value.retry_after > 50, "there are too few until the minute is over"
    await limiter.reserve("alice", allowance, Amount(requests=6))


@pytest.mark.anyio
@pytest.mark.parametrize("allowance", [Allowance(tokens_per_minute=100), Allowance(budget_per_day=100 / NANO)], ids=str)
async def test_only_a_single_answer_may_exceed_what_is_left(limiter: Limiter, allowance: Allowance) -> None:
    with pytest.raises(OverLimit):
        await limiter.reserve("alice", allowance, Amount(tokens=200, nano=200, requests=2))
    fits = await limiter.reserve("alice", allowance, Amount(tokens=90, nano=90, requests=2))
    await settled(limiter, fits)
    await limiter.reserve("alice", allowance, Amount(tokens=200, nano=200))


@pytest.mark.anyio
async def test_of_many_at_once_exactly_as_many_as_allowed_come_in(limiter: Limiter) -> None:
    allowance = Allowance(requests_per_minute=20)
    results = await asyncio.gather(
        *(limiter.reserve("alice", allowance, Amount()) for _ in range(60)), return_exceptions=True
    )
    assert sum(isinstance(result, Reservation) for result in results) == 20


@pytest.mark.anyio
async def test_tokens_are_held_back_as_estimated_and_settled_as_used(limiter: Limiter) -> None:
    allowance = Allowance(tokens_per_minute=1000)
    first = await limiter.reserve("alice", allowance, Amount(tokens=900))
    assert first.headers["x-ratelimit-remaining-tokens"] == "100"
    with pytest.raises(OverLimit):
        await limiter.reserve("alice", allowance, Amount(tokens=200))
    await settled(limiter, first, Amount(tokens=100))
    second = await limiter.reserve("alice", allowance, Amount(tokens=200))
    assert second.headers["x-ratelimit-remaining-tokens"] == "700"


@pytest.mark.anyio
async def test_one_question_larger_than_the_limit_may_come_alone(limiter: Limiter) -> None:
    allowance = Allowance(tokens_per_minute=100)
    await limiter.reserve("alice", allowance, Amount(tokens=5000))
    with pytest.raises(OverLimit):
        await limiter.reserve("alice", allowance, Amount(tokens=1))


@pytest.mark.anyio
async def test_what_is_refused_takes_nothing(limiter: Limiter) -> None:
    allowance = Allowance(requests_per_minute=2, tokens_per_minute=100)
    await limiter.reserve("alice", allowance, Amount(tokens=90))
    for _ in range(5):
        with pytest.raises(OverLimit):
            await limiter.reserve("alice", allowance, Amount(tokens=90))
    last = await limiter.reserve("alice", allowance, Amount(tokens=10))
    assert last.headers["x-ratelimit-remaining-requests"] == "0"
    assert last.headers["x-ratelimit-remaining-tokens"] == "0"


@pytest.mark.anyio
@pytest.mark.parametrize("period", ["budget_per_day", "budget_per_month"])
async def test_a_budget_is_overshot_by_one_chat_at_most(limiter: Limiter, period: str) -> None:
    allowance = Allowance(**{period: 1.0})  # type: ignore[arg-type]
    cents = [Amount(nano=each * NANO // 100) for each in range(200)]
    first = await limiter.reserve("alice", allowance, cents[60])
    with pytest.raises(OverLimit) as refused:
        await limiter.reserve("alice", allowance, cents[60])
    assert refused.value.code == "insufficient_quota"
    await settled(limiter, first, cents[90])
    last = await limiter.reserve("alice", allowance, cents[60])  # 10 cents are left, and nobody else is under way
    await settled(limiter, last, cents[60])
    with pytest.raises(OverLimit) as refused:
        await limiter.reserve("alice", allowance, cents[1])
    assert refused.value.retry_after is not None
    assert refused.value.retry_after > 5
    assert refused.value.headers["x-should-retry"] == "false"


@pytest.mark.anyio
async def test_money_held_back_for_a_chat_that_cost_nothing_comes_free(limiter: Limiter) -> None:
    allowance = Allowance(budget_per_day=1.0)
    for _ in range(3):
        reservation = await limiter.reserve("alice", allowance, Amount(nano=NANO))
        with pytest.raises(OverLimit):
            await limiter.reserve("alice", allowance, Amount(nano=NANO))
        await settled(limiter, reservation)


# In memory ---------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_the_requests_of_a_minute_ago_no_longer_count() -> None:
    clock = Clock()
    limiter = MemoryLimiter(monotonic=clock)
    allowance = Allowance(requests_per_minute=1)
    limiter.settle(await limiter.reserve("alice", allowance, Amount()), Amount())
    clock.now += WINDOW
    with pytest.raises(OverLimit) as refused:
        await limiter.reserve("alice", allowance, Amount())
    assert refused.value.retry_after is not None
    clock.now += refused.value.retry_after
    await limiter.reserve("alice", allowance, Amount())


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(1, 3)), max_size=200), st.integers(1, 10))
def test_no_minute_wherever_it_begins_holds_more_than_is_allowed(arrivals: list[tuple[float, int]], limit: int) -> None:
    clock = Clock()
    limiter = MemoryLimiter(monotonic=clock)
    granted: list[float] = []
    for pause, times in arrivals:
        clock.now += pause
        for _ in range(times):
            with contextlib.suppress(OverLimit):
                limiter.settle(limiter.reserve_now("alice", Allowance(requests_per_minute=limit), Amount()), Amount())
                granted.append(clock.now)
    for at in granted:
        assert sum(at <= other < at + WINDOW for other in granted) <= limit


@pytest.mark.anyio
@pytest.mark.parametrize("step", [-345_600.0, -1.0, 345_600.0])
async def test_a_corrected_clock_locks_no_key_out_and_forgets_no_spending(step: float) -> None:
    clock, monotonic = Clock(), Clock(5.0)
    limiter = MemoryLimiter(clock=clock, monotonic=monotonic)
    allowance = Allowance(requests_per_minute=1, budget_per_day=1)
    limiter.settle(await limiter.reserve("alice", allowance, Amount()), Amount(nano=NANO))
    clock.now += step
    with pytest.raises(OverLimit, match="per minute") as refused:
        await limiter.reserve("alice", allowance, Amount())
    assert refused.value.retry_after is not None
    assert refused.value.retry_after <= WINDOW + 1
    monotonic.now += refused.value.retry_after
    if abs(step) > 86_400:
        limiter.settle(await limiter.reserve("alice", allowance, Amount()), Amount(nano=1))
    clock.now -= step
    monotonic.now += WINDOW + 1
    with pytest.raises(OverLimit, match="today"):
        await limiter.reserve("alice", allowance, Amount())


def test_under_constant_pressure_nearly_all_that_is_allowed_is_granted() -> None:
    clock = Clock()
    limiter = MemoryLimiter(monotonic=clock)
    granted = 0
    for _ in range(60 * 100):
        clock.now += 0.1
        with contextlib.suppress(OverLimit):
            limiter.settle(limiter.reserve_now("alice", Allowance(requests_per_minute=60), Amount()), Amount())
            granted += 1
    assert 0.95 * 600 <= granted <= 600 + 60


def test_after_the_retry_after_a_request_is_allowed() -> None:
    window = Window()
    for second in range(10):
        window.add(int(NOON) + second, 1)
    wait = window.free_in(NOON + 10, 3, 10)
    window.move_to(int(NOON + 10 + wait))
    assert window.total + 3 <= 10
    assert Window().free_in(NOON, 5, 1) == 0.0


@pytest.mark.anyio
async def test_a_new_day_brings_a_new_budget_and_the_month_goes_on() -> None:
    clock = Clock()
    remembered: Counter[tuple[str, str]] = Counter()
    limiter = MemoryLimiter(clock=clock, remember=lambda key, period, nano: remembered.update({(key, period): nano}))
    allowance = Allowance(budget_per_day=1, budget_per_month=1.5)
    limiter.settle(await limiter.reserve("alice", allowance, Amount(nano=NANO)), Amount(nano=NANO))
    with pytest.raises(OverLimit, match="today"):
        await limiter.reserve("alice", allowance, Amount(nano=1))
    clock.now += 86_400
    limiter.settle(await limiter.reserve("alice", allowance, Amount(nano=NANO)), Amount(nano=NANO))
    assert remembered == {("alice", "2026-11-18"): NANO, ("alice", "2026-11-19"): NANO, ("alice", "2026-11"): 2 * NANO}
    with pytest.raises(OverLimit):
        await limiter.reserve("alice", allowance, Amount(nano=1))
    clock.now += seconds_to_next_month(clock.now)
    await limiter.reserve("alice", allowance, Amount(nano=1))


@pytest.mark.anyio
async def test_what_was_spent_before_a_restart_still_counts() -> None:
    spent = {("alice", day_of(NOON)): NANO, ("alice", month_of(NOON)): NANO}
    limiter = MemoryLimiter(lambda: spent, clock=Clock())
    with pytest.raises(OverLimit):
        await limiter.reserve("alice", Allowance(budget_per_day=1.0), Amount())


def test_an_allowance_without_limits_needs_no_counting() -> None:
    assert not Allowance().is_metered
    assert not Allowance(parallel=3).is_metered
    assert Allowance(budget_per_month=0.0).is_metered


# In Redis ----------------------------------------------------------------------------------------


@needs("redis-server", "module:redis")
@pytest.mark.anyio
async def test_limiters_that_share_a_redis_grant_together_exactly_what_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_patience, "PATIENCE", 10.0)  # on a busy machine Redis counts as away, and none is let in
    cases = {
        "requests": (Allowance(requests_per_minute=30), Amount(), 30),
        "answers": (Allowance(requests_per_minute=30), Amount(requests=4), 7),
        "tokens": (Allowance(tokens_per_minute=1000), Amount(tokens=90), 11),
        "day": (Allowance(budget_per_day=1.0), Amount(nano=NANO // 7), 7),
        "month": (Allowance(tokens_per_minute=10**6, budget_per_month=0.5), Amount(tokens=9, nano=NANO // 50), 25),
    }
    async with redis_server(tmp_path) as url:
        limiters = [RedisLimiter(url, down="closed") for _ in range(4)]
        for key, (allowance, estimate, granted) in cases.items():
            asked = [limiter.reserve(key, allowance, estimate) for limiter in limiters for _ in range(20)]
            results = await asyncio.gather(*asked, return_exceptions=True)
            assert Counter(map(type, results)) == {Reservation: granted, OverLimit: 80 - granted}, key
        for limiter in limiters:
            await limiter.close()


@needs("redis-server", "module:redis")
@pytest.mark.anyio
async def test_every_limiter_says_the_same_of_the_same_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_patience, "PATIENCE", 10.0)
    chance = random.Random(3)
    allowances = [
        Allowance(requests_per_minute=25),
        Allowance(tokens_per_minute=2000),
        Allowance(requests_per_minute=60, tokens_per_minute=9000, budget_per_day=4e-6),
        Allowance(budget_per_day=1.0, budget_per_month=4e-6),
    ]
    async with redis_server(tmp_path) as url:
        file = LimitsFile(tmp_path)
        limiters: list[Limiter] = [
            MemoryLimiter(),
            SqliteLimiter(file, nothing_spent, forget),
            RedisLimiter(url, down="closed"),
        ]
        running: list[list[Reservation]] = []
        outcomes: set[str] = set()
        for _ in range(150):
            number = chance.randrange(4)
            estimate = Amount(chance.randrange(400), chance.randrange(900), chance.choice([1, 1, 1, 2, 5]))
            answers = await asyncio.gather(
                *(limiter.reserve(f"key{number}", allowances[number], estimate) for limiter in limiters),
                return_exceptions=True,
            )
            told = [_told(answer) for answer in answers]
            assert told == [told[0]] * 3
            outcomes.add(told[0][0])
            if reservations := [answer for answer in answers if isinstance(answer, Reservation)]:
                running.append(reservations)
            if running and chance.random() < 0.6:
                used = Amount(chance.randrange(500), chance.randrange(900))
                ended = running.pop(chance.randrange(len(running)))
                for limiter, reservation in zip(limiters, ended, strict=True):
                    await settled(limiter, reservation, used)
        assert {outcome.replace(" This one counts as 2, one for each answer.", "") for outcome in outcomes} >= {
            "granted",
            "Rate limit reached: 25 request(s) per minute. later",
            "Rate limit reached: 2000 tokens per minute. later",
            "The budget of this key for today is used up. soon",
            "The budget of this key for today is used up. later",
            "The budget of this key for this month is used up. later",
        }
        for limiter in limiters:
            await limiter.close()


def _told(answer: Reservation | BaseException) -> tuple[str, dict[str, str]]:
    """The outcome, without what depends on the second in which it was."""
    if isinstance(answer, Reservation):
        outcome, headers = "granted", answer.headers
    else:
        assert isinstance(answer, OverLimit), answer
        assert answer.retry_after is not None
        if answer.retry_after <= 5:
            when = "soon"
        else:
            when = "later"
        outcome, headers = f"{answer.message} {when}", answer.headers
    return outcome, {name: value for name, value in headers.items() if "-reset-" not in name}


def _counting_commands(limiter: RedisLimiter) -> list[str]:
    """The commands that a limiter sends to Redis from now on."""
    commands: list[str] = []
    send = limiter._client.execute_command

    def execute_command(*arguments: Any, **options: Any) -> Any:
        commands.append(str(arguments[0]))
        return send(*arguments, **options)

    limiter._client.execute_command = execute_command  # type: ignore[method-assign]
    return commands


@needs("redis-server", "module:redis")
@pytest.mark.anyio
async def test_a_request_costs_one_question_to_redis_and_its_end_another(tmp_path: Path) -> None:
    async with redis_server(tmp_path) as url:
        limiter, other = (RedisLimiter(url, down="closed") for _ in range(2))
        allowance = Allowance(
            requests_per_minute=30, tokens_per_minute=10_000, budget_per_day=1.0, budget_per_month=9.0
        )
        for process in (limiter, other):  # Redis learns its scripts
            await settled(process, await process.reserve("alice", allowance, Amount(10, 10)), Amount(9, 9))
        commands = _counting_commands(limiter)
        for number in range(10):
            reservation = await limiter.reserve("alice", allowance, Amount(10, 10))
            assert len(commands) == 2 * number + 1
            await settled(limiter, reservation, Amount(9, 9))
            await settled(other, await other.reserve("alice", allowance, Amount(10, 10)), Amount(9, 9))
        assert commands == ["EVALSHA"] * 20
        for process in (limiter, other):
            await process.close()


@needs("redis-server", "module:redis")
@pytest.mark.anyio
async def test_the_day_is_that_of_redis_clock_and_what_is_older_is_dropped(tmp_path: Path) -> None:
    import redis.asyncio

    day = int(time.time() // 86_400)
    name = "callgate:limits:{alice}"
    async with redis_server(tmp_path) as url, redis.asyncio.Redis.from_url(url, decode_responses=True) as client:
        await client.hset(name, mapping={f"d:{day - 1}": 1, f"d:{day - 2}": 2, "m:2020-01": 3, "r:99": 4, "t:99": 5})
        for wrong in (-200 * 86_400, 3 * 86_400):
            limiter = RedisLimiter(url, down="closed", clock=lambda wrong=wrong: time.time() + wrong)  # type: ignore[misc]
            await limiter.spent("alice")
            commands = _counting_commands(limiter)
            reservation = await limiter.reserve("alice", Allowance(budget_per_day=1.0), Amount(nano=7))
            assert commands.count("EVALSHA") - commands.count("SCRIPT LOAD") == 2, "once with the wrong day"
            await settled(limiter, reservation, Amount(nano=5))
            await limiter.reserve("alice", Allowance(budget_per_day=1.0), Amount())
            assert await limiter.spent("alice") is not None
            assert commands.count("HMGET") == 1
            await limiter.close()
        fields: dict[Any, Any] = await client.hgetall(name)
    spent = {field: amount for field, amount in fields.items() if not field.startswith(("r:", "t:"))}
    assert spent == {f"d:{day - 1}": "1", f"d:{day}": "10", f"m:{month_of(time.time())}": "10"}
    assert "r:99" not in fields
    assert "t:99" not in fields


@needs("redis-server", "module:redis")
@pytest.mark.anyio
async def test_redis_counts_days_and_months_as_the_calendar_does(tmp_path: Path) -> None:
    import redis.asyncio

    async with redis_server(tmp_path) as url:
        limiter = RedisLimiter(url, down="closed")
        reservation = await limiter.reserve("alice", Allowance(budget_per_day=1.0), Amount(nano=7))
        await settled(limiter, reservation, Amount(nano=5))
        async with redis.asyncio.Redis.from_url(url, decode_responses=True) as client:
            fields = await client.hgetall("callgate:limits:{alice}")
            assert not await client.zcard("callgate:running:{alice}")
        now = time.time()
        assert fields[f"m:{month_of(now)}"] == fields[f"d:{int(now // 86_400)}"] == "5"
        await limiter.close()


@needs("redis-server", "module:redis")
@pytest.mark.anyio
async def test_what_was_reserved_for_one_who_left_while_asking_is_given_back(tmp_path: Path) -> None:
    import redis.asyncio

    async with redis_server(tmp_path) as url:
        limiter = RedisLimiter(url, down="closed")
        for turns in range(1, 30):
            asking = asyncio.create_task(limiter.reserve("alice", Allowance(budget_per_day=1.0), Amount(nano=7)))
            for _ in range(turns):
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait([asking])
            if not asking.cancelled():
                limiter.settle(asking.result(), Amount())
        await limiter.settled()
        async with redis.asyncio.Redis.from_url(url) as client:
            assert not await client.zcard("callgate:running:{alice}")
        await limiter.close()


@pytest.mark.anyio
@needs("module:redis")
async def test_without_redis_metered_requests_are_refused_at_once_when_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callgate.access.redis_patience.AWAY_SECONDS", 600.0)
    asked = 0

    async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        writer.close()

    async with await asyncio.start_server(leave, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        limiter = RedisLimiter(f"redis://127.0.0.1:{port}", down="closed")
        for _ in range(50):
            with pytest.raises(ChatError) as refused:
                await limiter.reserve("alice", Allowance(requests_per_minute=1), Amount())
            assert (refused.value.status, refused.value.code) == (503, "limits_unavailable")
        await limiter.close()
    assert 1 <= asked <= 2, "after a failure Redis is left alone for a while"


@pytest.mark.anyio
@needs("module:redis")
async def test_without_redis_each_process_counts_by_itself_when_open() -> None:
    limiter = RedisLimiter("redis://127.0.0.1:1", down="open")
    allowance = Allowance(requests_per_minute=2)
    for _ in range(2):
        limiter.settle(await limiter.reserve("alice", allowance, Amount()), Amount())
    with pytest.raises(OverLimit):
        await limiter.reserve("alice", allowance, Amount())
    await limiter.close()


@needs("redis-server", "module:redis")
@pytest.mark.anyio
async def test_when_redis_is_back_it_counts_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callgate.access.redis_patience.AWAY_SECONDS", 0.0)
    allowance = Allowance(requests_per_minute=100)
    async with redis_server(tmp_path) as url:
        limiter = RedisLimiter(url, down="closed")
        await limiter.reserve("alice", allowance, Amount())
    with pytest.raises(ChatError):
        await limiter.reserve("alice", allowance, Amount())
    async with redis_server(tmp_path, port=int(url.rpartition(":")[2])):
        reservation = await limiter.reserve("alice", allowance, Amount())
        assert reservation.headers["x-ratelimit-remaining-requests"] == "99"
        await limiter.close()


@pytest.mark.anyio
async def test_what_a_key_has_spent_of_its_budgets_can_be_asked(limiter: Limiter) -> None:
    allowance = Allowance(budget_per_day=1.0)
    before = await limiter.spent("alice")
    await settled(limiter, await limiter.reserve("alice", allowance, Amount(nano=5)), Amount(nano=7))

    assert (before, await limiter.spent("alice"), await limiter.spent("bob")) == ((0, 0), (7, 7), (0, 0))


@needs("redis-server", "module:redis")
@pytest.mark.anyio
async def test_a_budget_that_redis_has_lost_is_recalled_from_where_it_was_remembered(tmp_path: Path) -> None:
    remembered: Counter[tuple[str, str]] = Counter()

    def remember(key: str, period: str, nano: int) -> None:
        remembered[key, period] += nano

    async def recall(key: str, day: str, month: str) -> tuple[int, int] | None:
        return remembered[key, day], remembered[key, month]

    async def away(key: str, day: str, month: str) -> None:
        return None

    allowance = Allowance(budget_per_day=1.0)
    for _ in range(2):  # the second Redis knows nothing of the first
        async with redis_server(tmp_path) as url:
            limiter = RedisLimiter(url, down="closed", remember=remember, recall=recall)
            reservation = await limiter.reserve("alice", allowance, Amount(nano=NANO // 2))
            await settled(limiter, reservation, Amount(nano=NANO // 2))
            unknowing = RedisLimiter(url, down="closed", remember=remember, recall=away)
            with pytest.raises(ChatError) as refused:
                await unknowing.reserve("bob", allowance, NOTHING)
            assert refused.value.code == "limits_unavailable"
            await limiter.close()
            await unknowing.close()
    async with redis_server(tmp_path) as url:
        limiter = RedisLimiter(url, down="closed", remember=remember, recall=recall)
        with pytest.raises(OverLimit):
            await limiter.reserve("alice", allowance, NOTHING)
        await limiter.close()
    assert set(remembered.values()) == {NANO}
