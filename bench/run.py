"""What a request costs: `python bench/run.py`, two minutes. What `make bench` calls.

Callgate is served as its users serve it (a key, logs, metrics, diagnostics, the gate) against an upstream in this process,
and beside it the floor: two bare protocols that hand bytes on. What is measured is the CPU time of the server by request,
by chunk or by tool turn, which holds on a busy machine where seconds do not. To compare machines, and to say whether
something has become dearer, every figure is divided by what a fixed piece of work costs at that moment; that ratio is held
against `bench/baseline.json`, and one that is more than 15 % above it fails.

    python bench/run.py                 measure, compare, and run the other benches
    python bench/run.py --only turn     some of it, by a part of the name
    python bench/run.py --write         write the baseline anew
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httptools
import uvloop

HERE = Path(__file__).resolve().parent
BASELINE = HERE / "baseline.json"
OTHERS = ("arguments.py", "readers.py")
KEY = "cg-bench-0123456789abcdef"
ALLOWED = 1.15
ROUNDS = 3
SECONDS = 1.2
START_SECONDS = 30.0
PAUSE = 0.005
"""Between two chunks of a paced stream."""

CHUNK = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
USAGE = {"prompt_tokens": 12, "completion_tokens": 9, "total_tokens": 21}
TEXT = 'The quick brown fox said "jump" over the lazy dog;\nit costs 12.50 EUR. '


@dataclass(frozen=True)
class Work:
    """One kind of request, repeated by so many clients at once."""

    name: str
    body: dict[str, Any]
    at_once: int = 16
    chunks: int = 0
    """Chunks of text in each answer; the cost is then told by the chunk."""
    floor: bool = True
    """Whether the floor can do it."""
    expect: bytes = b"BENCH_OK"


def question(model: str, text: str = "hi", **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], **more}


def schema(number: int) -> dict[str, Any]:
    fields = {name: {"type": "string", "description": f"What to look for in {name}"} for name in ("a", "b", "c")}
    parameters = {"type": "object", "properties": {**fields, "limit": {"type": "integer", "minimum": 1}}}
    return {
        "type": "function",
        "function": {"name": f"tool_{number}", "description": "Looks up.", "parameters": parameters},
    }


def works() -> list[Work]:
    history = [{"role": "user" if n % 2 == 0 else "assistant", "content": TEXT * 70} for n in range(21)]
    return [
        Work("small, passed on", question("plain")),
        Work("small, read", question("tools"), floor=False),
        Work("100 KB, passed on", {"model": "plain", "messages": history}),
        Work("200 tools, passed on", question("plain", tools=[schema(n) for n in range(200)])),
        Work("paced chunk, passed on", question("plain", "paced", stream=True), 32, 50, expect=b"[DONE]"),
        Work("paced chunk, read", question("tools", "paced", stream=True), 32, 50, floor=False, expect=b"[DONE]"),
        Work("tool turn", question("tools", "call"), floor=False),
        Work("tool turn, streamed", question("tools", "call", stream=True), floor=False, expect=b"[DONE]"),
        Work("100 KB of arguments", question("tools", "write", stream=True), 1, floor=False, expect=b"[DONE]"),
    ]


# The upstream ---------------------------------------------------------------------------------------------------------


def whole(message: dict[str, Any], reason: str) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason}
    body = json.dumps(
        {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": USAGE}
    )
    return f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()


def event(delta: dict[str, Any], reason: str | None = None) -> bytes:
    return framed(
        b"data: "
        + json.dumps({**CHUNK, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}).encode()
        + b"\n\n"
    )


def framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def call(arguments: str, **more: Any) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, "function": {"arguments": arguments}, **more}]}


STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
FIRST = STREAM + event({"role": "assistant", "content": ""})
WORD = event({"content": "a word or two "})
LAST = event({}, "stop") + framed(b"data: " + json.dumps({**CHUNK, "choices": [], "usage": USAGE}).encode() + b"\n\n")
END = framed(b"data: [DONE]\n\n") + b"0\r\n\r\n"
OPENED = event(
    {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "echo", "arguments": ""}}]}
)
CALLED = {
    "content": None,
    "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "echo", "arguments": '{"text":"x"}'}}],
}
ANSWER, CALL = whole({"content": "BENCH_OK"}, "stop"), whole(CALLED, "tool_calls")
STREAMED_ANSWER = FIRST + WORD + LAST + END
STREAMED_CALL = FIRST + OPENED + event(call('{"text":')) + event(call('"x"}')) + event({}, "tool_calls") + END
LONG_CALL = [
    FIRST + OPENED,
    event(call('{"text":"')),
    *[event(call("0123456789abcdefghij"))] * 5000,
    event(call('"}')),
    event({}, "tool_calls") + END,
]


class Upstream(asyncio.Protocol):
    """A model that answers at once, by what the question says."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.parser = httptools.HttpRequestParser(self)
        self.body: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        self.body.append(data)

    def on_message_complete(self) -> None:
        body = b"".join(self.body)
        self.body.clear()
        streamed, answered = b'"stream":true' in body, b'"role":"tool"' in body
        if b'"paced"' in body or b'"content": "paced"' in body:
            self.pace([FIRST, *[WORD] * 50, LAST + END])
        elif not answered and b'"write"' in body:
            self.transport.writelines(LONG_CALL)
        elif not answered and b'"call"' in body:
            self.transport.write(STREAMED_CALL if streamed else CALL)
        else:
            self.transport.write(STREAMED_ANSWER if streamed else ANSWER)

    def pace(self, left: list[bytes], place: int = 0) -> None:
        if self.transport.is_closing():
            return
        self.transport.write(left[place])
        if place + 1 < len(left):
            asyncio.get_running_loop().call_later(PAUSE, self.pace, left, place + 1)


# The floor ------------------------------------------------------------------------------------------------------------


async def floor(port: int, upstream: int) -> None:
    """Two protocols back to back: what no proxy in Python gets below."""
    loop = asyncio.get_running_loop()
    free: list[Any] = []

    class Up(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport: Any = transport

        def ask(self, down: Any, head: bytes) -> None:
            self.down, self.parser = down, httptools.HttpResponseParser(self)
            self.transport.write(head)

        def data_received(self, data: bytes) -> None:
            self.down.transport.write(data)
            self.parser.feed_data(data)

        def on_message_complete(self) -> None:
            free.append(self)

    class Down(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport: Any = transport
            self.parser = httptools.HttpRequestParser(self)
            self.parts: list[bytes] = []

        def data_received(self, data: bytes) -> None:
            self.parts.append(data)
            self.parser.feed_data(data)

        def on_message_complete(self) -> None:
            asked = b"".join(self.parts)
            self.parts.clear()
            if free:
                free.pop().ask(self, asked)
            else:
                self.dialling = loop.create_task(self.dial(asked))

        async def dial(self, asked: bytes) -> None:
            _, up = await loop.create_connection(Up, "127.0.0.1", upstream)
            up.ask(self, asked)

    server = await loop.create_server(Down, "127.0.0.1", port)
    await server.serve_forever()


# The clients ----------------------------------------------------------------------------------------------------------


class Client(asyncio.Protocol):
    """Asks the same again and again until the time is over."""

    def __init__(self, request: bytes, work: Work, until: float) -> None:
        self.request, self.work, self.until = request, work, until
        self.done = 0
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.ask()

    def ask(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.body: list[bytes] = []
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        self.body.append(data)

    def on_message_complete(self) -> None:
        body = b"".join(self.body)
        if self.parser.get_status_code() != 200 or self.work.expect not in body:
            self.over.set_exception(AssertionError(f"{self.work.name}: {body[:300]!r}"))
            return
        self.done += 1
        if time.monotonic() < self.until:
            self.ask()
        else:
            self.over.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.over.done():
            self.over.set_exception(error or ConnectionError("closed by the server"))


async def load(port: int, work: Work, seconds: float) -> int:
    """How many requests were answered."""
    body = json.dumps(work.body, separators=(",", ":")).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {KEY}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    loop = asyncio.get_running_loop()
    until = time.monotonic() + seconds
    clients = [Client(head.encode() + body, work, until) for _ in range(work.at_once)]
    for client in clients:
        await loop.create_connection(lambda client=client: client, "127.0.0.1", port)  # type: ignore[misc]
    await asyncio.gather(*(client.over for client in clients))
    for client in clients:
        client.transport.close()
    return sum(client.done for client in clients)


# Measuring ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Server:
    name: str
    port: int
    process: subprocess.Popen[bytes]

    def cpu(self) -> float:
        """Microseconds of all its threads."""
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1000


def unit() -> float:
    """Microseconds of a fixed piece of work like ours: small objects, dicts, JSON, bytes."""
    text = json.dumps({"messages": [{"role": "user", "content": TEXT}] * 8, "n": list(range(64))})
    costs = []
    for _ in range(5):
        began = time.process_time_ns()
        for _ in range(100):
            found = json.loads(text)
            {key: (str(value), hash(key)) for key, value in found.items()}
            b"".join(text[at : at + 64].encode() for at in range(0, len(text), 64))
        costs.append((time.process_time_ns() - began) / 100_000)
    return min(costs)


async def measured(server: Server, work: Work) -> float:
    before = server.cpu()
    done = await load(server.port, work, SECONDS)
    return (server.cpu() - before) / (done * max(1, work.chunks))


async def all_measured(servers: list[Server], chosen: list[Work]) -> dict[str, dict[str, tuple[float, float]]]:
    """By work and server: microseconds, and how many units that is. Medians of rounds in turn."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for round_ in range(ROUNDS + 1):
        for work in chosen:
            for server in servers:
                if server.name == "floor" and not work.floor:
                    continue
                cost, each = await measured(server, work), unit()
                if round_:  # the first warms up
                    found.setdefault(work.name, {}).setdefault(server.name, []).append((cost, cost / each))
    return {
        work: {
            name: (statistics.median(c for c, _ in costs), statistics.median(r for _, r in costs))
            for name, costs in by.items()
        }
        for work, by in found.items()
    }


CONFIG = """
keys: [{{name: bench, hash: "sha256:{hash}"}}]
model_list:
  - model_name: plain
    litellm_params: &up {{model: openai/gpt-4o-mini, api_base: "http://127.0.0.1:{port}/v1", api_key: x}}
  - model_name: tools
    litellm_params: *up
    tools: [echo]
tools: [{{kind: python, function: "echo_tool:echo"}}]
logging: {{format: json}}
data_dir: {data}
"""
TOOL = '''async def echo(text: str) -> str:
    """Says it again."""
    return f"echo:{text[:20]}"
'''


@contextlib.contextmanager
def served(upstream: int, directory: Path) -> Iterator[list[Server]]:
    (directory / "echo_tool.py").write_text(TOOL)
    config = directory / "config.yaml"
    config.write_text(
        CONFIG.format(hash=hashlib.sha256(KEY.encode()).hexdigest(), port=upstream, data=directory / "data")
    )
    ports = free_port(), free_port()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(directory)])}
    commands = {
        "callgate": [sys.executable, "-m", "app", "serve", "--config", str(config), "--port", str(ports[0])],
        "floor": [sys.executable, __file__, "--floor", str(ports[1]), str(upstream)],
    }
    servers = []
    with (directory / "server.log").open("wb") as log:
        try:
            for (name, command), port in zip(commands.items(), ports, strict=True):
                process = subprocess.Popen(command, env=environment, stderr=log, cwd=HERE.parent)
                _give_the_first_processor(process.pid)
                servers.append(Server(name, port, process))
                _wait_for(servers[-1])
            yield servers
        finally:
            for server in servers:
                server.process.terminate()
                server.process.wait(20)


def _give_the_first_processor(pid: int) -> None:
    """To the server alone; the upstream and the clients have the others."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(pid, {0})


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def _wait_for(server: Server) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and server.process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", server.port), 1):
            return
        time.sleep(0.02)
    raise SystemExit(f"{server.name} did not start")


# Telling --------------------------------------------------------------------------------------------------------------


def told(found: dict[str, dict[str, tuple[float, float]]], baseline: dict[str, float]) -> bool:
    """Prints the table. Whether nothing has become dearer than is allowed."""
    fine = True
    print(f"{'CPU time':28} {'callgate':>12} {'floor':>10} {'in units':>10} {'baseline':>10}")
    for work, by in found.items():
        cost, ratio = by["callgate"]
        floor_cost = f"{by['floor'][0]:8.1f} µs" if "floor" in by else ""
        before = baseline.get(work)
        worse = before is not None and ratio > before * ALLOWED
        fine = fine and not worse
        print(
            f"{work:28} {cost:9.1f} µs {floor_cost:>10} {ratio:10.2f} {before or 0:10.2f}{'  dearer' if worse else ''}"
        )
    return fine


async def main(only: str, *, write: bool) -> int:
    if hasattr(os, "sched_setaffinity") and len(os.sched_getaffinity(0)) > 1:
        os.sched_setaffinity(0, os.sched_getaffinity(0) - {0})
    loop = asyncio.get_running_loop()
    upstream = await loop.create_server(Upstream, "127.0.0.1", 0)
    chosen = [work for work in works() if re.search(only, work.name)]
    with (
        tempfile.TemporaryDirectory() as directory,
        served(upstream.sockets[0].getsockname()[1], Path(directory)) as servers,
    ):
        found = await all_measured(servers, chosen)
    upstream.close()
    baseline = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    fine = told(found, {} if write else baseline)
    if write:
        kept = {**baseline, **{work: round(by["callgate"][1], 3) for work, by in found.items()}}
        BASELINE.write_text(json.dumps(kept, indent=2) + "\n")
    return 0 if fine else 1


def others() -> int:
    worst = 0
    for script in OTHERS:
        print(f"\n{script}", flush=True)
        worst = max(worst, subprocess.run([sys.executable, str(HERE / script)], check=False).returncode)
    return worst


if __name__ == "__main__":
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("--only", default="", help="works whose name matches")
    reader.add_argument("--write", action="store_true", help="write the baseline anew")
    reader.add_argument("--floor", nargs=2, type=int, help=argparse.SUPPRESS)
    arguments = reader.parse_args()
    if arguments.floor:
        uvloop.run(floor(*arguments.floor))
    status = uvloop.run(main(arguments.only, write=arguments.write))
    sys.exit(max(status, 0 if arguments.only else others()))
