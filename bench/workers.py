"""What several workers of one server cost and how they share: requests for each CPU second of the server, with one, two and four.

The load comes from this process and competes for the same cores, so that requests a second of the clock say more of the
machine than of the server. What tells whether throughput grows with cores that are free is whether a request stays as dear:
where a worker more makes none dearer, as many cores more carry as many requests more. Processes that run at once make each other
dearer on any machine, by its caches and its clock; so each number of workers is compared with as many servers of one process,
which share nothing. CPU time is read from /proc for the parent and each worker; a worker's share is its part of it. Rounds alternate
between all of them, and the cheapest of each counts: a neighbour on the machine can only make them dearer.

    make bench ARGS="bench/workers.py --requests 4000 --rounds 3"
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "app")]

from tests.harness.configs import as_yaml, config_dict
from tests.harness.process import Child, serving_command
from tests.harness.redis import redis_server

COUNTS = (2, 4)
TICK = 1 / os.sysconf("SC_CLK_TCK")
BODY = json.dumps({"model": "demo", "messages": [{"role": "user", "content": "What is 2*21?"}]}).encode()


@dataclass
class Figures:
    """What so many processes came to, round by round."""

    servers: list[Child] = field(default_factory=list)
    per_cpu_second: list[float] = field(default_factory=list)
    per_second: list[float] = field(default_factory=list)
    shares: list[list[float]] = field(default_factory=list)

    @property
    def best(self) -> float:
        return max(self.per_cpu_second)


async def main() -> None:
    reading = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    reading.add_argument("--requests", type=int, default=4000, help="in each round")
    reading.add_argument("--rounds", type=int, default=3)
    reading.add_argument("--connections", type=int, default=32, help="at a time; each carries 25 requests")
    asked = reading.parse_args()
    found: dict[tuple[int, str], Figures] = {(1, "server"): Figures()}
    found |= {(count, kind): Figures() for count in COUNTS for kind in ("servers", "workers")}
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        redis = await stack.enter_async_context(redis_server(folder))
        for count, kind in found:
            servers, workers = (1, count) if kind == "workers" else (count, 1)
            config = _config(folder, redis, workers)
            found[count, kind].servers = [
                await stack.enter_async_context(serving_command(config)) for _ in range(servers)
            ]
            await _load(found[count, kind].servers, 50 * count, asked.connections)
        for _ in range(asked.rounds):
            for figures in found.values():
                await _measure(figures, asked.requests, asked.connections)
    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {asked.requests} requests a round with a tool turn each"
    )
    one = found[1, "server"].best
    for (count, kind), figures in found.items():
        ratio = f", to as many servers {figures.best / found[count, 'servers'].best:.2f}" if kind == "workers" else ""
        shares = [f"{share:.0%}" for share in map(statistics.mean, zip(*figures.shares, strict=True))]
        print(
            f"{count} {kind}: {figures.best:.0f} requests per CPU second ({1e6 / figures.best:.0f} µs);"
            f" ratio to one {figures.best / one:.2f}{ratio};"
            f" {max(figures.per_second):.0f} a second beside the load; shares {' '.join(shares)}"
        )


def _config(folder: Path, redis: str, count: int) -> Path:
    config = config_dict(
        "http://127.0.0.1:1",
        store={"redis_url": redis},
        server={"workers": count},
        logging={"level": "error"},
        record={"runs": "off"},
    )
    config["model_list"] = [{"model_name": "demo", "litellm_params": {"model": "demo/demo"}, "tools": ["*"]}]
    config["tools"] = [{"kind": "python", "module": "callgate.tools.builtin"}]
    file = folder / f"{count}.yaml"
    file.write_text(as_yaml(config), "utf-8")
    return file


async def _measure(figures: Figures, requests: int, connections: int) -> None:
    parents = [child.process.pid for child in figures.servers]
    working = [worker for parent in parents for worker in _workers_of(parent)] or parents
    processes = {*parents, *working}
    before, began = {each: _cpu_of(each) for each in processes}, time.perf_counter()
    await _load(figures.servers, requests, connections)
    seconds = time.perf_counter() - began
    used = {each: _cpu_of(each) - before[each] for each in processes}
    figures.per_cpu_second.append(requests / sum(used.values()))
    figures.per_second.append(requests / seconds)
    whole = sum(used[each] for each in working)
    figures.shares.append([used[each] / whole for each in working])


def _workers_of(pid: int) -> list[int]:
    return sorted(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()))


def _cpu_of(process: int) -> float:
    """Seconds, of the process and all its threads."""
    fields = Path(f"/proc/{process}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK


async def _load(servers: list[Child], requests: int, connections: int) -> None:
    """So many requests, on connections that are opened anew after each 25: a load balancer keeps some and opens others."""
    left = requests

    async def client(url: str) -> None:
        nonlocal left
        where = urlsplit(url)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {where.netloc}\r\ncontent-type: application/json\r\n"
        asking = f"{head}content-length: {len(BODY)}\r\n\r\n".encode() + BODY
        while left > 0:
            reader, writer = await asyncio.open_connection(where.hostname, where.port)
            for _ in range(25):
                if left <= 0:
                    break
                left -= 1
                writer.write(asking)
                answered = await reader.readuntil(b"\r\n\r\n")
                assert answered.startswith(b"HTTP/1.1 200"), answered
                fields = dict(line.split(b": ", 1) for line in answered.lower().split(b"\r\n")[1:-2])
                body = await reader.readexactly(int(fields[b"content-length"]))
                assert b"42" in body, body
            writer.close()

    await asyncio.gather(*(client(servers[place % len(servers)].url) for place in range(connections)))


if __name__ == "__main__":
    asyncio.run(main())
