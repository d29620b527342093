"""What a call of a tool costs that runs on a worker: time, processor time of each process, transactions and commands.

Starts a Redis, a Postgres and a worker of its own, and calls from an event loop like the server's: one call after the other, and
then sixteen at once. `--fsync` has Postgres wait for its disk, `--profile` shows where the proxy's time goes, `--json` prints the
figures alone.
"""

import argparse
import asyncio
import contextlib
import cProfile
import json
import os
import pstats
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "app"), str(ROOT)]

import uvloop
from redis.asyncio import Redis

from tests.harness.fleet import Proxy, Stores, placed, proxying, stores, working
from tests.harness.postgres import PostgresServer, postgres_server
from tests.harness.redis import redis_server

AT_ONCE = 16
WARM_CALLS = 50
TICKS = os.sysconf("SC_CLK_TCK")
STATISTICS_SECONDS = 1.5
"""Postgres says once a second what it has done."""


async def measured(
    postgres: PostgresServer, folder: Path, calls: int, concurrency: int, profile: cProfile.Profile | None
) -> dict[str, Any]:
    async with redis_server(folder) as redis:
        made = await stores(folder, redis, postgres.url, "fleet_bench", [placed("add")], dead_after=5.0)
        return await figures(made, calls, concurrency, profile)


async def figures(made: Stores, calls: int, concurrency: int, profile: cProfile.Profile | None) -> dict[str, Any]:
    async with (
        working(made, concurrency=concurrency) as worker,
        proxying(made) as proxy,
        Redis.from_url(made.redis) as redis,
    ):
        for _ in range(WARM_CALLS):
            await proxy.call("add", a=1, b=2)
        used = Used(proxy, redis, worker.process.pid, (await redis.info("server"))["process_id"])
        seconds: list[float] = []
        before = await used.so_far()
        with profile or contextlib.nullcontext():
            for _ in range(calls):
                began = time.perf_counter()
                await proxy.call("add", a=1, b=2)
                seconds.append(time.perf_counter() - began)
        alone = await used.since(before, calls)

        async def several() -> None:
            for _ in range(calls // AT_ONCE):
                await proxy.call("add", a=1, b=2)

        before = await used.so_far()
        began = time.perf_counter()
        await asyncio.gather(*(several() for _ in range(AT_ONCE)))
        took = time.perf_counter() - began
        together = await used.since(before, calls // AT_ONCE * AT_ONCE)
    each = statistics.quantiles(seconds, n=100)
    return {
        "p50_ms": round(each[49] * 1e3, 2),
        "p99_ms": round(each[98] * 1e3, 2),
        "at_16_per_second": round(calls // AT_ONCE * AT_ONCE / took),
        "alone": alone,
        "at_16": together,
    }


class Used:
    """What the calls have used: processor time in microseconds, transactions of Postgres, commands of Redis."""

    def __init__(self, proxy: Proxy, redis: Any, worker: int, redis_server: int) -> None:
        self._proxy, self._redis, self._worker, self._redis_server = proxy, redis, worker, redis_server

    async def so_far(self) -> dict[str, float]:
        commands = await self._redis.info("commandstats")
        [[backend, transactions]] = await self._proxy.database.fetch(
            "SELECT pg_backend_pid(), xact_commit::float8 FROM pg_stat_database WHERE datname = current_database()"
        )
        return {
            "proxy_us": time.process_time() * 1e6,
            "workers_first_process_us": own_time(self._worker),
            "workers_other_processes_us": sum(map(time_of_all, children_of(self._worker))),
            "postgres_us": time_of_all(parent_of(backend)),
            "redis_us": own_time(self._redis_server),
            "transactions": transactions,
            "commands": float(sum(each["calls"] for each in commands.values())),
        }

    async def since(self, before: dict[str, float], calls: int) -> dict[str, float]:
        """For each call."""
        proxy = time.process_time() * 1e6
        await asyncio.sleep(STATISTICS_SECONDS)
        after = {**await self.so_far(), "proxy_us": proxy}
        return {name: round((after[name] - before[name]) / calls, 2) for name in after}


def time_of_all(pid: int) -> float:
    """Of a process and of all that it has begun."""
    return own_time(pid, with_ended=True) + sum(map(time_of_all, children_of(pid)))


def own_time(pid: int, *, with_ended: bool = False) -> float:
    return sum(map(int, fields_of(pid)[11 : 15 if with_ended else 13])) / TICKS * 1e6


def parent_of(pid: int) -> int:
    return int(fields_of(pid)[1])


def fields_of(pid: int) -> Sequence[str]:
    """From its state on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, default=2, help="processes of the worker")
    parser.add_argument("--fsync", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    profile = cProfile.Profile(time.process_time) if asked.profile else None
    with tempfile.TemporaryDirectory() as folder, postgres_server() as postgres:
        if asked.fsync:
            postgres.stop()
            postgres.start("max_connections=200")
        found = uvloop.run(measured(postgres, Path(folder), asked.calls, asked.concurrency, profile))
    if asked.json:
        print(json.dumps(found))
        return
    print(f"p50 {found['p50_ms']} ms, p99 {found['p99_ms']} ms; {AT_ONCE} at once: {found['at_16_per_second']} calls/s")
    for name in found["alone"]:
        print(f"{name:26} {found['alone'][name]:8.2f} a call {found['at_16'][name]:8.2f} at {AT_ONCE} at once")
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)


if __name__ == "__main__":
    main()
