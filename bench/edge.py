"""What our own edge costs beside uvicorn's protocol: processor time of the server, in microseconds.

.venv/bin/python bench/edge.py            small requests without sockets, then requests and streams over 16 connections
.venv/bin/python bench/edge.py --no-wire  the first alone
"""

import asyncio
import statistics
import sys
import time
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "app"), str(Path(__file__).parents[1])]

import httptools
import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from callgate.server import ProtocolFactory

BODY = b'{"model": "m", "messages": [{"role": "user", "content": "hello"}]}'
HEADERS = {
    "host": "localhost:8000",
    "accept": "application/json",
    "accept-encoding": "gzip, deflate",
    "connection": "keep-alive",
    "authorization": "Bearer cg-0123456789012345678901234567890123456789012",
    "content-type": "application/json",
    "user-agent": "OpenAI/Python 2.54.0",
    "x-stainless-lang": "python",
    "x-stainless-os": "Linux",
    "content-length": str(len(BODY)),
}
ROUNDS = 5_000
REPEATS = 9
CONNECTIONS = 16
WIRE_SECONDS = 1.0
CHUNKS = 200
CHUNK = b'data: {"choices": [{"index": 0, "delta": {"content": "word "}}]}\n\n'
START = {"type": "http.response.start", "status": 200}


def request(path: str) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items())
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + BODY


def uvicorns() -> Any:
    return HttpToolsProtocol


def ours() -> Any:
    return ProtocolFactory().protocol


MAKERS = {"uvicorn's": uvicorns, "ours": ours}


async def app(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    if scope["path"] == "/stream":
        await send({**START, "headers": [(b"content-type", b"text/event-stream")]})
        for _ in range(CHUNKS):
            await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
        await send({"type": "http.response.body"})
        return
    body = b"%d" % time.process_time_ns() if scope["path"] == "/spent" else b"ok"
    await send({**START, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


def config(protocol: Any) -> uvicorn.Config:
    options: dict[str, Any] = {"http": protocol, "ws": "none", "loop": "uvloop", "lifespan": "off", "log_config": None}
    return uvicorn.Config(app, **options, access_log=False, server_header=False, proxy_headers=False)


# Without sockets ----------------------------------------------------------------------------------


class Nowhere(asyncio.Transport):
    """A connection to nobody."""

    def write(self, data: Any) -> None: ...

    def close(self) -> None: ...

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


async def in_process(protocol: Any) -> float:
    loaded = config(protocol)
    loaded.load()
    state = ServerState()
    connection = protocol(config=loaded, server_state=state, app_state={}, _loop=asyncio.get_running_loop())
    connection.connection_made(Nowhere())
    asked = request("/")
    began = time.process_time()
    for _ in range(ROUNDS):
        connection.data_received(asked)
        for _ in range(2):  # the task begins, and ends
            await asyncio.sleep(0)
    spent = time.process_time() - began
    assert state.total_requests == ROUNDS
    connection.connection_lost(None)
    return spent / ROUNDS * 1e6


# Over sockets -------------------------------------------------------------------------------------


class Asker(asyncio.Protocol):
    """Asks again as soon as it is answered, until there is no time left."""

    def __init__(self, asked: bytes, until: float, done: asyncio.Future[None]) -> None:
        self._asked, self._until, self.done = asked, until, done
        self.answers = 0
        self.body = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._parser = httptools.HttpResponseParser(self)
        transport.write(self._asked)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self.body = b""

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.answers += 1
        if time.monotonic() < self._until:
            self.transport.write(self._asked)
        elif not self.done.done():
            self.done.set_result(None)


async def ask(port: int, path: str, count: int, seconds: float) -> list[Asker]:
    loop, askers = asyncio.get_running_loop(), []
    until = time.monotonic() + seconds
    for _ in range(count):
        make = partial(Asker, request(path), until, loop.create_future())
        _, asker = await loop.create_connection(make, "127.0.0.1", port)
        askers.append(asker)
    for asker in askers:
        await asker.done
        asker.transport.close()
    return askers


async def over_sockets(port: int, path: str) -> float:
    async def spent() -> int:
        return int((await ask(port, "/spent", 1, 0))[0].body)

    before = await spent()
    askers = await ask(port, path, CONNECTIONS, WIRE_SECONDS)
    return (await spent() - before) / sum(asker.answers for asker in askers) / 1e3


def serve(maker: str, pipe: Any) -> None:
    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            pipe.send(self.servers[0].sockets[0].getsockname()[1])

    given = config(MAKERS[maker]())
    given.port = 0
    Server(given).run()


def wire() -> None:
    spawn = get_context("spawn")
    servers = {}
    for name in MAKERS:
        here, there = spawn.Pipe()
        process = spawn.Process(target=serve, args=(name, there), daemon=True)
        process.start()
        servers[name] = (process, here.recv())
    for what, path in {"a request": "/", f"a stream of {CHUNKS}": "/stream"}.items():
        found: dict[str, list[float]] = {name: [] for name in servers}
        for _ in range(3):
            for name, (_, port) in servers.items():
                found[name].append(uvloop.run(over_sockets(port, path)))
        for name, values in found.items():
            print(f"{name:<10} {min(values):6.1f} µs {what} at {CONNECTIONS}")
    for process, _ in servers.values():
        process.terminate()


def main() -> None:
    found: dict[str, list[float]] = {name: [] for name in MAKERS}
    for _ in range(REPEATS):  # in turns, so that a slow moment of the machine is everybody's
        for name, make in MAKERS.items():
            found[name].append(uvloop.run(in_process(make())))
    for name, values in found.items():
        print(f"{name:<10} {min(values):6.2f} µs a request in process, median {statistics.median(values):.2f}")
    if "--no-wire" not in sys.argv:
        wire()


if __name__ == "__main__":
    main()
