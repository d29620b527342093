"""Two proxies that share one Postgres and one Redis, all of which fail: every run ends, no call runs twice, and the ledger is true."""

import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

import pytest

from callgate.runs.durable_runs import decode_answer
from tests.chaos import tools
from tests.chaos.load import chat_body, shoot
from tests.chaos.scale import LONG, SEED, counted, report, scaled
from tests.harness.configs import as_yaml, config_dict
from tests.harness.needs import needs
from tests.harness.postgres import PostgresServer, postgres_server
from tests.harness.process import Child, child, serving_command
from tests.harness.redis import redis_server
from tests.scripted_upstream import Call, Reply, Upstream
from tests.scripted_upstream.records import RequestRecord

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    needs("postgres", "module:asyncpg", "redis-server", "module:redis"),
]

KILLS = counted(2, 50)
RUNS = counted(10, 300)
AT_ONCE = scaled(4, 12)
DEAD_AFTER = scaled(1.0, 5.0)
TOLD_WITHIN = DEAD_AFTER + scaled(inf, 1.0)
TURNS = 2


def answers(record: RequestRecord) -> Reply:
    """Two turns of calls, each call with a label of its own, then an answer."""
    label = _label(record)
    if record.turn >= TURNS:
        return Reply(text=f"done {label}")
    calls = [
        Call(name, {"label": f"{label}/{record.turn}/{name}"}, id=f"{label}/{record.turn}/{name}")
        for name in ("count", "count_in_thread", "count_slowly")
    ]
    return Reply(calls=calls)


def _label(record: RequestRecord) -> str:
    return next(str(message["content"]) for message in record.messages if message["role"] == "user")


@dataclass
class Workers:
    """Two workers, one of which is now and then killed, with all its processes, and begun anew."""

    config: Path
    marks: Path
    stack: contextlib.AsyncExitStack
    children: list[Child] = field(default_factory=list)

    async def begin(self) -> None:
        options = ["worker", "--config", str(self.config), "--pool", "gpu", "--concurrency", "4"]
        begun = child(options, environment={tools.MARKS: str(self.marks)})
        self.children.append(await self.stack.enter_async_context(begun))

    async def kill(self, place: int) -> None:
        victim = self.children.pop(place)
        os.killpg(victim.process.pid, signal.SIGKILL)
        await victim.ended()


@dataclass
class Pair:
    """Two proxies, one of which is now and then killed and begun anew."""

    config: Path
    marks: Path
    stack: contextlib.AsyncExitStack
    children: list[Child] = field(default_factory=list)
    waiting: dict[str, int] = field(default_factory=dict)
    """Where the clients wait for their answers, by their labels."""

    async def until_busy(self, place: int, upstream: Upstream) -> None:
        """Wait until one has a run whose last turn is still to come, so that it is taken over from who fails now."""
        while True:
            turns = Counter(_label(record) for record in upstream.requests)
            if any(at == place and 0 < turns[label] <= TURNS for label, at in self.waiting.items()):
                return
            await asyncio.sleep(0.005)

    async def begin(self, place: int | None = None) -> None:
        context = serving_command(self.config, environment={tools.MARKS: str(self.marks)})
        child = await self.stack.enter_async_context(context)
        if place is None:
            self.children.append(child)
        else:
            self.children[place] = child

    async def kill(self, place: int) -> float:
        self.children[place].signal(signal.SIGKILL)
        await self.children[place].ended()
        return time.time()


ALL = ("kill", "postgres", "redis", "sleep")
ON_WORKERS = frozenset({"count_in_thread", "count_slowly"})
"""What runs on workers where there are some."""


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(ALL, id="all"),
        pytest.param(("kill",), id="kill", marks=pytest.mark.skipif(not LONG, reason="part of all of them")),
        pytest.param(
            ("worker", *ALL),
            id="with_workers",
            marks=[needs("module:celery"), pytest.mark.skipif(not LONG, reason="long")],
        ),
    ],
)
async def test_every_run_ends_and_no_call_runs_twice_whatever_fails(
    schema: str, tmp_path: Path, upstream: Upstream, faults: tuple[str, ...]
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        postgres = stack.enter_context(postgres_server())
        redis = await stack.enter_async_context(redis_server(tmp_path))
        await _play(postgres, redis, schema, tmp_path, upstream, faults)


async def _play(
    postgres: PostgresServer, redis_url: str, schema: str, tmp_path: Path, upstream: Upstream, faults: tuple[str, ...]
) -> None:
    from redis.asyncio import Redis

    from callgate.state.cluster.postgres import PostgresDatabase, migrate

    await migrate(postgres.url, schema)
    upstream.script("m", answers)
    marks = tmp_path / "marks"
    marks.touch()
    with_workers = "worker" in faults
    listed: list[dict[str, Any]] = [
        {"kind": "python", "function": f"{tools.__name__}:{name}", "safety": "write"}
        | ({"run_on": "gpu"} if with_workers and name in ON_WORKERS else {})
        for name in ("count", "count_in_thread", "count_slowly")
    ]
    config = tmp_path / "config.yaml"
    config.write_text(
        as_yaml(
            config_dict(
                upstream.url,
                tools=listed,
                ledger={"url": postgres.url, "namespace": schema},
                store={"redis_url": redis_url},
                runs={"dead_after_seconds": DEAD_AFTER},
                pools={"gpu": {}} if with_workers else {},
                logging={"level": "error"},
            )
        )
    )
    chance = random.Random(SEED)
    numbers = itertools.count()
    first_answers: dict[str, bytes] = {}
    failed_at: list[tuple[str, float]] = []
    away = [0.0]
    """Seconds in which nobody could be heard or told."""
    over = asyncio.Event()
    async with contextlib.AsyncExitStack() as stack:
        pair = Pair(config, marks, stack)
        await asyncio.gather(pair.begin(), pair.begin())
        workers = Workers(config, marks, stack)
        if with_workers:
            await asyncio.gather(workers.begin(), workers.begin())

        async def client() -> None:
            while not over.is_set():
                label = f"r{next(numbers)}"
                first_answers[label] = await _until_answered(pair, chance, label)

        clients = [asyncio.create_task(client()) for _ in range(AT_ONCE)]
        for number in range(KILLS if len(faults) == 1 else max(KILLS, len(faults))):
            await asyncio.sleep(chance.uniform(0.5, 1.5))
            place, fault = chance.randrange(2), faults[number % len(faults)]
            if fault in {"kill", "sleep"}:
                await pair.until_busy(place, upstream)
            failed_at.append((fault, time.time()))
            match fault:
                case "kill":
                    await pair.kill(place)
                    await pair.begin(place)
                case "worker":
                    await workers.kill(place)
                    await workers.begin()
                case "postgres":
                    began = time.monotonic()
                    await asyncio.to_thread(postgres.stop)
                    await asyncio.sleep(0.5)
                    await asyncio.to_thread(postgres.start, "fsync=off", "max_connections=200")
                    away.append(time.monotonic() - began)
                case "redis":
                    async with Redis.from_url(redis_url) as admin:
                        await admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                        await admin.flushall()
                case _:
                    pair.children[place].signal(signal.SIGSTOP)
                    await asyncio.sleep(DEAD_AFTER + 1)
                    pair.children[place].signal(signal.SIGCONT)
        while len(first_answers) < RUNS:  # noqa: ASYNC110 - runs end when they end
            await asyncio.sleep(0.05)
        over.set()
        await asyncio.gather(*clients)
        places = asyncio.Semaphore(50)

        async def again(child: Child, label: str) -> bytes | None:
            async with places:
                return await _ask(child.url, label)

        repeated = await asyncio.gather(*(again(child, label) for label in first_answers for child in pair.children))
        database = PostgresDatabase(postgres.url, schema)
        await database.open()
        calls = await database.fetch("SELECT call_id, state, ended_at, note FROM calls")
        runs = await database.fetch("SELECT state, epoch, answer FROM runs")
        apart = await database.fetch(
            "SELECT call_id, state, note FROM calls WHERE pool IS NOT NULL AND"
            " ((state = 'withdrawn' AND worker IS NOT NULL) OR (state = 'done' AND worker_outcome IS NULL))"
        )
        await database.close()
    ran = Counter(marks.read_text().splitlines())
    states = {call: state for call, state, *_ in calls}
    odds = [
        call
        for call, state in states.items()
        if (state == "done" and call not in ran) or (state == "withdrawn" and call in ran)
    ]
    odds += [label for label in ran if states.get(label) not in {"done", "unknown"}]
    told = [
        min(
            (ended_at - at for fault, at in failed_at if fault in {"kill", "sleep", "worker"} and ended_at >= at - 0.5),
            default=0.0,
        )
        for _, state, ended_at, _ in calls
        if state == "unknown"
    ]
    twice = [label for label, times in ran.items() if times > 1]
    asked = Counter((_label(record), record.turn) for record in upstream.requests)
    carried = {json.loads(decode_answer(answer).body)["choices"][0]["message"]["content"]: at for _, at, answer in runs}
    too_often = [(label, turn) for (label, turn), times in asked.items() if times > carried[f"done {label}"]]
    other_bytes = [
        each
        for label, each in zip((label for label in first_answers for _ in pair.children), repeated, strict=True)
        if each != first_answers[label]
    ]
    report(
        f"two proxies, one Postgres, one Redis: {', '.join(faults)}",
        faults=dict(Counter(fault for fault, _ in failed_at)),
        runs=len(runs),
        taken_over=sum(epoch - 1 for _, epoch, _ in runs),
        turns_asked=sum(asked.values()),
        turns_asked_too_often=len(too_often),
        calls=len(calls),
        executed_twice=len(twice),
        rows_at_odds=len(odds) + len(apart),
        states=dict(Counter(states.values())),
        postgres_away_seconds=round(max(away), 2),
        slowest_told_seconds=round(max(told, default=0.0), 2),
        answers_of_other_bytes=len(other_bytes),
    )
    assert twice == []
    assert odds == []
    assert apart == []
    assert {state for state, *_ in runs} == {"done"}, "all of them have ended"
    assert len(runs) >= RUNS
    assert too_often == [], "no turn is asked more often than there were processes to ask it"
    assert len(calls) == len(states), "no call stands in it twice"
    assert max(told, default=0.0) <= TOLD_WITHIN + 0.5 + max(away)
    assert other_bytes == []
    assert sum(epoch - 1 for _, epoch, _ in runs), "some were taken over"


async def _until_answered(pair: Pair, chance: random.Random, label: str) -> bytes:
    """Asked under a key of the label's own, at any of the proxies, until it is answered."""
    async with asyncio.timeout(120):
        while True:
            place = chance.randrange(len(pair.children))
            pair.waiting[label] = place
            answer = await _ask(pair.children[place].url, label)
            del pair.waiting[label]
            if answer is not None:
                return answer
            await asyncio.sleep(0.05)


async def _ask(url: str, label: str) -> bytes | None:
    shot = await shoot(url, chat_body(label), headers={"idempotency-key": f"key-{label}"})
    if not shot.status or shot.status == 503:
        return None
    assert shot.status == 200, shot.body
    try:
        json.loads(shot.body)
    except ValueError:
        return None  # cut off
    return shot.body
