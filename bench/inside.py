"""Measures Callgate from inside its process, and prints what it found as JSON: `python bench/inside.py WORK...`.

Callgate serves as it always does, and its clients, the model and the MCP server live on the same event loop: one thread,
in which everything happens in one order however busy the machine is. Requests are counted instruction by instruction, or
(`--timed`) their CPU time is taken in slices of some milliseconds, less the cost of clients and model alone.
"""

import argparse
import asyncio
import json
import socket
import statistics
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "app"), str(ROOT)]

from bench import wire
from bench.served import KEY, configured, folder, free_port
from bench.works import UNKEPT, WORKS, Work
from callgate.config.load import load
from callgate.server import serve as server

SLICE = 0.006
"""Seconds of CPU that a slice takes, about."""
SLICES = 40
COUNTED = 24
"""Requests of which each is counted; the least is the figure, because what runs once a second may fall into one of them."""


class Measured(server.DrainingServer):
    """The server as it is, which looks at itself when it has started, and then ends."""

    look: Callable[[], Awaitable[None]]
    beside: dict[type[asyncio.Protocol], socket.socket]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        for protocol, listening in self.beside.items():
            await loop.create_server(protocol, sock=listening)
        await super().startup(sockets=sockets)
        self.looking = loop.create_task(self.look_and_end())

    async def look_and_end(self) -> None:
        try:
            await type(self).look()
        except Exception:  # noqa: BLE001 - nobody awaits this task; the missing figures are an error
            traceback.print_exc()
        finally:
            self.should_exit = True


@dataclass(frozen=True)
class Ports:
    callgate: int
    model: int
    floor: int


def main(chosen: list[Work], slices: int, *, timed: bool) -> int:
    found: dict[str, dict[str, float]] = {}
    Measured.beside = {
        made: socket.create_server(("127.0.0.1", 0)) for made in (wire.Model, wire.McpSource, wire.Floor)
    }
    model, mcp, floor = (listening.getsockname()[1] for listening in Measured.beside.values())
    wire.Model.pace, wire.Floor.free, wire.Floor.port = wire.Pace(), [], model
    with folder() as directory:
        sys.path.insert(0, str(directory))
        loaded = load(configured(directory, free_port(), model, mcp))
        ports = Ports(loaded.config.server.port, model, floor)

        async def look() -> None:
            for work in chosen:
                if timed:
                    found[work.name] = await measured(work, ports, slices)
                else:
                    found[work.name] = {"instructions": await instructions(work, ports.callgate)}

        Measured.look = staticmethod(look)
        server.DrainingServer = Measured  # type: ignore[misc]
        status = server.serve(loaded)
    if len(found) < len(chosen):
        return status or 1
    print(json.dumps(found))
    return status


async def measured(work: Work, ports: Ports, slices: int) -> dict[str, float]:
    """The microseconds that one request takes, and where the floor can do it, those of the floor."""
    ours = await wire.connected(ports.callgate, KEY, work, work.at_once)
    direct = await wire.connected(ports.model, KEY, replace(work, expect=b""), work.at_once)
    floor = await wire.connected(ports.floor, KEY, work, work.at_once) if work.floor else None
    for clients in (ours, direct, floor):
        if clients:
            await cpu(clients, 2)
    times = max(1, round(SLICE / (await cpu(ours, 3) / 3)))
    each = times * work.at_once * work.per
    found: dict[str, list[float]] = {"microseconds": [], "floor": []}
    for _ in range(slices):
        took, least = await cpu(ours, times), await cpu(direct, times)
        found["microseconds"].append((took - least) / each * 1e6)
        if floor:
            found["floor"].append((await cpu(floor, times) - least) / each * 1e6)
    for clients in (ours, direct, floor):
        if clients:
            clients.leave()
    return {name: statistics.median(values) for name, values in found.items() if values}


async def cpu(clients: wire.Clients, times: int) -> float:
    began = time.process_time()
    await clients.ask(times)
    return time.process_time() - began


async def instructions(work: Work, port: int) -> int:
    """Bytecode instructions of one request, in Callgate and the libraries it is written with."""
    counter = Counter()
    clients = await wire.connected(port, KEY, work, 1)
    counts = []
    for _ in range(COUNTED):
        counter.count = 0
        sys.settrace(counter.enter)
        try:
            await clients.ask(1)
            for _ in range(20):  # what is done when the answer is out
                await asyncio.sleep(0)
        finally:
            sys.settrace(None)
        counts.append(counter.count)
    clients.leave()
    return min(counts)


class Counter:
    def __init__(self) -> None:
        self.count = 0
        self.ours = str(Path(__file__).parent)

    def enter(self, frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code.co_filename.startswith(self.ours):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return self.step

    def step(self, frame: FrameType, event: str, arg: Any) -> Any:
        self.count += event == "opcode"
        return self.step


if __name__ == "__main__":
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("works", nargs="*")
    reader.add_argument("--slices", type=int, default=SLICES)
    reader.add_argument("--timed", action="store_true", help="take CPU time instead of counting instructions")
    given = reader.parse_args()
    works = [work for work in (*WORKS, *UNKEPT) if work.name in given.works] or list(WORKS)
    sys.exit(main(works, given.slices, timed=given.timed))
