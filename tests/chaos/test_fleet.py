"""A fleet under kill -9: nothing runs twice, every call has an end in time, and the ledger says what the marks say."""

import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from math import inf
from pathlib import Path
from typing import Self

import pytest

from callgate.calls.outcome import Failed, FailureKind, Outcome, Returned
from tests.chaos.scale import LONG, SEED, counted, report, scaled
from tests.harness.fleet import Proxy, Stores, placed, proxying, stores, working
from tests.harness.needs import needs
from tests.harness.ports import free_port
from tests.harness.postgres import PostgresServer, postgres_server
from tests.harness.process import ROOT, Child, child
from tests.harness.redis import redis_server

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    needs("postgres", "redis-server", "module:asyncpg", "module:celery"),
]

CALLS = counted(30, 1000)
KILLS = counted(1, 50)
AT_ONCE = 8
DEAD_AFTER = 5.0
TOLD_WITHIN = DEAD_AFTER + scaled(60.0, 1.0)
"""After a worker was killed, until whoever called knows."""
AWAY_SECONDS = (1.0, 3.0, 7.0, 15.0, 31.0)
BACK_WITHIN = 2.0
CALLS_TIMED = scaled(50, 2000)
TOOLS = [placed("nap", timeout=120), placed("add")]


async def load(
    proxy: Proxy, marks: Path, numbers: Iterator[int], ends: dict[int, Outcome], enough: asyncio.Event
) -> None:
    """Calls, one after the other, until there were enough of them and of faults."""
    while not enough.is_set() or len(ends) < CALLS:
        number = next(numbers)
        ends[number] = await proxy.call("nap", seconds=0.05, marks=str(marks), label=str(number))


def processes_with(marks: Path) -> set[int]:
    """The processes that have begun a call."""
    return {int(line.split()[-1]) for line in marks.read_text().splitlines() if line.startswith("begin")}


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def children_of(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


class Fleet:
    """Two workers, replaced whenever one is killed."""

    def __init__(self, made: Stores, marks: Path) -> None:
        self._made, self.marks = made, marks
        self.alive: list[Child] = []
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        await asyncio.gather(self.more(), self.more())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def more(self) -> None:
        self.alive.append(await self._stack.enter_async_context(working(self._made, concurrency=2)))

    async def kill_worker(self, chance: random.Random) -> None:
        victim = self.alive.pop(chance.randrange(len(self.alive)))
        os.killpg(victim.process.pid, signal.SIGKILL)
        await self.more()

    async def kill_parent(self, chance: random.Random) -> None:
        victim = self.alive.pop(chance.randrange(len(self.alive)))
        victim.signal(signal.SIGKILL)
        await self.more()

    async def kill_child(self, chance: random.Random) -> None:
        if children := children_of(chance.choice(self.alive).process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(children), signal.SIGKILL)


Fault = Callable[[Fleet, random.Random], Awaitable[None]]


@pytest.mark.parametrize(
    "fault", [Fleet.kill_child, Fleet.kill_parent, Fleet.kill_worker], ids=["child", "parent", "worker"]
)
async def test_no_call_runs_twice_and_each_has_an_outcome_in_time_however_often_workers_are_killed(
    postgres: PostgresServer, schema: str, tmp_path: Path, fault: Fault
) -> None:
    async with redis_server(tmp_path) as redis:
        made = await stores(tmp_path, redis, postgres.url, schema, TOOLS, dead_after=DEAD_AFTER)
        await under(fault, made, tmp_path, fault.__name__)


@pytest.mark.skipif(not LONG, reason="the short form is in tests/fleet/worker")
@pytest.mark.parametrize("which", ["redis", "postgres"])
async def test_no_call_runs_twice_however_often_a_store_is_killed(schema: str, tmp_path: Path, which: str) -> None:
    port = free_port()
    with postgres_server() as server:
        held = contextlib.AsyncExitStack()
        url = await held.enter_async_context(redis_server(tmp_path, port))
        made = await stores(tmp_path, url, server.url, schema, TOOLS, dead_after=DEAD_AFTER)

        async def kill(fleet: Fleet, chance: random.Random) -> None:
            nonlocal held
            if which == "postgres":
                await asyncio.to_thread(server.stop)
                await asyncio.to_thread(server.start, "fsync=off")
            else:
                await held.aclose()
                held = contextlib.AsyncExitStack()
                await held.enter_async_context(redis_server(tmp_path, port))

        try:
            await under(kill, made, tmp_path, f"kill_{which}")
        finally:
            await held.aclose()


async def under(fault: Fault, made: Stores, folder: Path, name: str) -> None:
    """The load, with a fault again and again, and what must hold afterwards."""
    marks, chance = folder / "marks", random.Random(SEED)
    marks.touch()
    numbers, enough = itertools.count(), asyncio.Event()
    ends: dict[int, Outcome] = {}

    async with proxying(made) as first, proxying(made) as second, Fleet(made, marks) as fleet:
        began = time.monotonic()
        working_on = [
            asyncio.create_task(load(proxy, marks, numbers, ends, enough))
            for proxy in (first, second)
            for _ in range(AT_ONCE // 2)
        ]
        for _ in range(KILLS):
            done_before = len(ends)
            await fault(fleet, chance)
            while len(ends) < done_before + CALLS // (2 * KILLS):  # noqa: ASYNC110 - calls end when they end
                await asyncio.sleep(0.02)
        enough.set()
        await asyncio.gather(*working_on)
        states = await first.database.fetch("SELECT id, state, note FROM calls WHERE pool IS NOT NULL")
        async with asyncio.timeout(TOLD_WITHIN):  # ends that nobody waits for are written soon
            while await first.database.fetch("SELECT id FROM calls WHERE ended_at IS NULL"):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        at_odds = await first.database.fetch(
            "SELECT id, state, note FROM calls WHERE pool IS NOT NULL AND"
            " ((state = 'withdrawn' AND worker IS NOT NULL) OR (state = 'done' AND worker_outcome IS NULL))"
        )
        slowest = await first.database.fetch(
            "SELECT coalesce(max(ended_at - began_at), 0) FROM calls WHERE state = 'unknown'"
        )
        took = time.monotonic() - began
    begun = Counter(line.split()[1] for line in marks.read_text().splitlines() if line.startswith("begin"))
    finished = {line.split()[1] for line in marks.read_text().splitlines() if line.startswith("end")}
    twice = [label for label, count in begun.items() if count > 1]
    counted = Counter(state for _, state, _ in states)
    report(
        name,
        calls=len(ends),
        kills=KILLS,
        twice=len(twice),
        at_odds=len(at_odds),
        slowest_unknown=round(slowest[0][0], 2),
        seconds=round(took, 1),
        **counted,
    )
    assert len(ends) >= CALLS
    assert len(states) <= len(ends)  # what could not be written down was refused
    assert twice == []
    assert at_odds == []
    assert counted.keys() <= {"done", "unknown", "withdrawn"}
    for number, outcome in ends.items():
        if not isinstance(outcome, Failed):
            assert str(number) in finished
        elif outcome.kind is FailureKind.REFUSED:
            assert str(number) not in begun
    assert slowest[0][0] <= TOLD_WITHIN
    async with asyncio.timeout(60):
        for pid in processes_with(marks):
            while is_there(pid):  # noqa: ASYNC110 - a process says nothing when it ends
                await asyncio.sleep(0.05)


@pytest.mark.skipif(not LONG, reason="the intervals are counted in tests/fleet/worker")
async def test_the_first_call_after_redis_was_away_does_not_wait_for_the_worker_to_reach_it_again(
    postgres: PostgresServer, schema: str, tmp_path: Path
) -> None:
    port = free_port()
    seconds: dict[float, float] = {}
    async with redis_server(tmp_path, port) as url:
        made = await stores(tmp_path, url, postgres.url, schema, TOOLS, dead_after=DEAD_AFTER)
    async with contextlib.AsyncExitStack() as held:
        life = await held.enter_async_context(contextlib.AsyncExitStack())
        await life.enter_async_context(redis_server(tmp_path, port))
        await held.enter_async_context(working(made))
        proxy = await held.enter_async_context(proxying(made))
        for away in AWAY_SECONDS:
            assert isinstance(await proxy.call("add", a=1, b=1), Returned)
            await life.aclose()
            await asyncio.sleep(away)
            await life.enter_async_context(redis_server(tmp_path, port))
            back = time.monotonic()
            assert isinstance(await proxy.call("add", a=1, b=1), Returned)
            seconds[away] = round(time.monotonic() - back, 2)
    report("first call after redis was away", seconds_by_outage=seconds)
    assert max(seconds.values()) <= BACK_WITHIN


async def test_what_a_call_on_a_worker_costs() -> None:
    command = (sys.executable, str(ROOT / "bench" / "fleet.py"))
    async with child(["--json", "--calls", str(CALLS_TIMED)], command=command) as bench:
        figures = json.loads((await bench.line(r"^\{.*", within=600.0)).group())
    report("fleet call", **figures)
    assert figures["p50_ms"] <= scaled(inf, 3.0)
    assert figures["alone"]["proxy_us"] <= scaled(inf, 500)
    assert figures["at_16_per_second"] >= scaled(0, 500)
