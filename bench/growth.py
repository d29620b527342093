"""How cost and memory grow with what a request has, and with what is open: `python bench/growth.py`.

Callgate is served in a process of its own, as in `bench/compare.py`. Each thing is tried at once, ten and a hundred times its size: tools
on offer, messages, turns in a history, choices, turns with a call, open streams, idle connections. CPU time is the least of several
slices, and memory what the process holds more than before; the first hundred streams find room that the start has left, so that memory
is looked at from 500 streams on. The slope is the exponent from the second size to the third: 1 is linear, 2 would be quadratic, and a
cost that does not depend on the size has 0. More than 1.15 fails.

    python bench/growth.py                    all of it, in a minute or two
    python bench/growth.py --only streams     some of it, by a part of the name
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import math
import re
import resource
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "app"), str(HERE.parent)]

from bench import wire
from bench.served import KEY, ROOT, Served, folder, free_port, started
from bench.works import FIRST, USAGE, WORD, Work, answer, event, question

TIMES = (1, 10, 100)
OPEN = (25, 50, 100)
"""The same for what is open."""
STEEPEST = 1.15
SLICES = 5
SLICE = 0.2
"""Seconds of CPU that the requests of one slice take, about."""
SETTLE = 0.3
"""Seconds after which a server is done with what follows an answer."""
TOOLS = 10
"""On offer, at once the size."""
LETTERS = "abc"
"""The first letters of the tools on offer at each size."""

CONFIG = """
server: {{port: {port}, connections: 5000}}
keys: [{{name: bench, hash: "sha256:{hash}"}}]
tools: [{{kind: python, module: growth_tools}}]
logging: {{format: json}}
data_dir: {data}
loop: {{max_iterations: 100, max_repeats: 1000}}
limits: {{concurrent_requests: 5000}}
model_list:
  - model_name: plain
    litellm_params: &up {{model: openai/gpt-4o-mini, api_base: "http://127.0.0.1:{model}/v1", api_key: x}}
"""
MODEL = """  - {{model_name: tools_{times}, litellm_params: *up, tools: ["{letter}_*"]}}
"""
TOOL = '''
@tool(safety="read_only")
async def {name}(text: str, limit: int = 10, language: str = "en") -> str:
    """Looks for {name} in what is known of it, and says what it found."""
    return f"echo:{{text[:20]}}"
'''


class Model(wire.Peer):
    """Answers with as many choices or turns with a call as the question says; holds streams until it is told to end them."""

    held: ClassVar[list[asyncio.Transport]] = []
    awaited: ClassVar[int] = 0
    """How many streams are to be held."""
    are_held: ClassVar[asyncio.Event] = asyncio.Event()

    def came(self, message: bytes) -> None:
        if b'"stream":true' in message:
            self.transport.write(FIRST + WORD)
            self.held.append(self.transport)
            if len(self.held) == self.awaited:
                self.are_held.set()
            return
        rounds = re.search(rb'"content":"(\d+) turns"', message)
        choices = re.search(rb'"n":(\d+)', message)
        turn = message.count(b'"role":"tool"')
        if rounds and turn < int(rounds[1]):
            called = {"name": "a_0", "arguments": json.dumps({"text": f"x{turn}"})}
            call = {"id": f"call_{turn}", "type": "function", "function": called}
            self.transport.write(completion([({"content": None, "tool_calls": [call]}, "tool_calls")]))
        else:
            self.transport.write(completion([({"content": "BENCH_OK"}, "stop")] * int(choices[1] if choices else 1)))


def completion(answers: Sequence[tuple[dict[str, Any], str]]) -> bytes:
    choices = [
        {"index": index, "message": {"role": "assistant", **message}, "finish_reason": reason}
        for index, (message, reason) in enumerate(answers)
    ]
    body = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": choices, "usage": USAGE}
    return answer(json.dumps(body).encode())


END = event({}, "stop") + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


@contextlib.contextmanager
def serving(model: int) -> Iterator[Served]:
    with folder() as directory:
        sizes = zip(TIMES, LETTERS, strict=True)
        names = [f"{letter}_{number}" for times, letter in sizes for number in range(TOOLS * times)]
        source = "from callgate import tool\n" + "".join(TOOL.format(name=name) for name in names)
        (directory / "growth_tools.py").write_text(source)
        port = free_port()
        hashed = hashlib.sha256(KEY.encode()).hexdigest()
        text = CONFIG.format(port=port, hash=hashed, model=model, data=directory / "data")
        text += "".join(MODEL.format(times=times, letter=letter) for times, letter in zip(TIMES, LETTERS, strict=True))
        config = directory / "config.yaml"
        config.write_text(text)
        command = [sys.executable, "-m", "callgate", "serve", "--config", str(config)]
        with started(command, port, directory, source_root=ROOT / "app", bytecode=directory / "bytecode") as server:
            yield server


# What grows -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """What one size of something takes."""

    cost: float
    unit: str


Measure = Callable[[Served, int], Awaitable[Measured]]


@dataclass(frozen=True)
class Growth:
    """Something that may be large, and what it costs at so many times its smallest size."""

    name: str
    smallest: str
    measure: Measure
    times: Sequence[int] = TIMES


def requests(body: Callable[[int], dict[str, Any]]) -> Measure:
    """Measure the CPU time of one request."""

    async def measure(server: Served, times: int) -> Measured:
        clients = await wire.connected(server.port, KEY, Work("growth", body(times)), 1)
        repeats = 1
        while (taken := await cpu_seconds(server, clients, repeats)) < SLICE / 4 and repeats < 1000:
            repeats *= 2
        repeats = max(1, round(repeats * SLICE / max(taken, 0.001)))
        slices = [await cpu_seconds(server, clients, repeats) for _ in range(SLICES)]
        clients.leave()
        return Measured(min(slices) / repeats * 1e6, "µs")

    return measure


async def cpu_seconds(server: Served, clients: wire.Clients, repeats: int) -> float:
    before = server.cpu_clock()
    await clients.ask(repeats)
    return server.cpu_clock() - before


async def streams(server: Served, times: int) -> Measured:
    """Measure the memory of open streams."""
    work = Work("growth", question("tools_1", "hold", stream=True), expect=b"[DONE]")
    Model.held.clear()
    Model.awaited = 20 * times
    Model.are_held.clear()
    before = server.megabytes()
    clients = await wire.connected(server.port, KEY, work, 20 * times)
    asked = asyncio.ensure_future(clients.ask(1))
    await asyncio.wait([asked, asyncio.ensure_future(Model.are_held.wait())], return_when=asyncio.FIRST_COMPLETED)
    await asyncio.sleep(SETTLE)
    held = server.megabytes() - before
    for transport in Model.held:
        transport.write(END)
    await asked
    clients.leave()
    return Measured(held * 1024, "KB")


async def connections(server: Served, times: int) -> Measured:
    """Measure the memory of idle connections, each of which had a request."""
    work = Work("growth", question("plain"))
    before = server.megabytes()
    connected = [await wire.connected(server.port, KEY, work, 10) for _ in range(times)]
    for clients in connected:
        await clients.ask(1)
    await asyncio.sleep(SETTLE)
    held = server.megabytes() - before
    for clients in connected:
        clients.leave()
    return Measured(held * 1024, "KB")


def history(turns: int) -> list[dict[str, Any]]:
    """Turns of a question, a call, its result and an answer."""
    messages: list[dict[str, Any]] = []
    for turn in range(turns):
        function = {"name": "a_0", "arguments": '{"text":"x"}'}
        call = {"id": f"call_{turn}", "type": "function", "function": function}
        messages += [
            {"role": "user", "content": "What is known of it?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": "echo:x"},
            {"role": "assistant", "content": "Nothing."},
        ]
    return [*messages, {"role": "user", "content": "hi"}]


GROWTHS = (
    Growth("tools on offer", "10 tools", requests(lambda times: question(f"tools_{times}"))),
    Growth("a long message, passed on", "10 KB", requests(lambda times: question("plain", "word " * 2000 * times))),
    Growth("a long message, read", "10 KB", requests(lambda times: question("tools_1", "word " * 2000 * times))),
    Growth(
        "turns in the history", "2 turns", requests(lambda times: {"model": "tools_1", "messages": history(2 * times)})
    ),
    Growth("choices, passed on", "1 choice", requests(lambda times: question("plain", n=times))),
    Growth("choices, read", "1 choice", requests(lambda times: question("tools_1", n=times))),
    Growth("turns with a call", "1 turn", requests(lambda times: question("tools_1", f"{times} turns"))),
    Growth("open streams", "20 streams", streams, OPEN),
    Growth("idle connections", "10 connections", connections, OPEN),
)


async def measured(growth: Growth, model: int) -> list[Measured]:
    """Measure each size. What is open has a server of its own each time: the next would find the room that the last one left."""
    sizes = [growth.times]
    if growth.times == OPEN:
        sizes = [(times,) for times in OPEN]
    costs: list[Measured] = []
    for times_of_server in sizes:
        with contextlib.ExitStack() as stack:
            server = await asyncio.to_thread(stack.enter_context, serving(model))
            await requests(lambda times: question("tools_1"))(server, 1)
            costs += [await growth.measure(server, times) for times in times_of_server]
    return costs


def slope(growth: Growth, costs: Sequence[Measured]) -> float:
    """Return the exponent with which the cost grows from the second size to the third. Where memory is measured it is that of what comes
    beyond the first size: what of it finds room in what was free before is not seen."""
    first, second, third = (measured.cost for measured in costs)
    size, larger, largest = growth.times
    if growth.times == OPEN:
        return math.log((third - first) / max(second - first, 1.0)) / math.log((largest - size) / (larger - size))
    return math.log(third / second) / math.log(largest / larger)


async def main(only: str) -> int:
    """Zero where nothing grows faster than its size."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    print(f"{'':27} {'at once':>15} {'times':>13} {'one more':>54} {'slope':>6}", flush=True)
    too_steep = 0
    for growth in GROWTHS:
        if not re.search(only, growth.name):
            continue
        async with wire.listening(Model) as model:
            costs = await measured(growth, model)
        exponent = slope(growth, costs)
        count = int(growth.smallest.split()[0]) * (growth.times[-1] - growth.times[-2])
        more = (costs[-1].cost - costs[-2].cost) / count
        row = f"{growth.name:27} {growth.smallest:>15} {', '.join(map(str, growth.times)):>13}"
        row += "".join(f"{cost.cost:11,.0f} {cost.unit}" for cost in costs)
        row += f" {more:9,.2f} {costs[-1].unit} {exponent:6.2f}"
        if exponent > STEEPEST:
            row += "  steep"
            too_steep += 1
        print(row, flush=True)
    return 1 if too_steep else 0


if __name__ == "__main__":
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("--only", default="", help="what is measured, by a part of its name")
    sys.exit(asyncio.run(main(reader.parse_args().only)))
