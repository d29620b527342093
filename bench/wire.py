"""The others on the wire, in as few instructions as may be: clients, a model, an MCP server, and the floor.

All of them live on one event loop with whatever is measured, so that the order of things does not depend on how busy the
machine is. They read only what we write ourselves, and fail aloud on anything else.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from bench.works import Work, answer, said_to

TURNS = 8
"""Rounds of the event loop between two chunks of a stream: more than a chunk needs to get through."""


class Peer(asyncio.Protocol):
    """One end of a connection: gathers a message, and hands it on when it is whole."""

    transport: asyncio.Transport
    got = b""
    ends_at = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # uvloop's is no asyncio.Transport

    def data_received(self, data: bytes) -> None:
        self.got += data
        if not self.ends_at:
            head = self.got.find(b"\r\n\r\n")
            if head < 0:
                return
            self.ends_at = head + 4 + _length(self.got, head)
        if len(self.got) >= self.ends_at:
            message, self.got, self.ends_at = self.got, b"", 0
            self.came(message)

    def came(self, message: bytes) -> None:
        raise NotImplementedError


def _length(text: bytes, head: int) -> int:
    at = text.lower().find(b"content-length:", 0, head)
    return int(text[at + 15 : text.find(b"\r\n", at)]) if at >= 0 else 0


class Model(Peer):
    """Answers at once, by what the question says."""

    pace: "Pace"

    def came(self, message: bytes) -> None:
        said = said_to(message)
        if isinstance(said, tuple):
            self.pace.add(self.transport, said)
        else:
            self.transport.write(said)


class Pace:
    """Sends streams chunk by chunk, each when the one before has had the time to get through."""

    def __init__(self) -> None:
        self.streams: list[tuple[asyncio.Transport, tuple[bytes, ...], list[int]]] = []

    def add(self, transport: asyncio.Transport, pieces: tuple[bytes, ...]) -> None:
        self.streams.append((transport, pieces, [0]))
        if len(self.streams) == 1:
            self.later(TURNS)

    def later(self, turns: int) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(self.later, turns - 1)
            return
        for transport, pieces, place in self.streams:
            transport.write(pieces[place[0]])
            place[0] += 1
        self.streams = [stream for stream in self.streams if stream[2][0] < len(stream[1])]
        if self.streams:
            self.later(TURNS)


RESULTS: dict[str, dict[str, Any]] = {
    "initialize": {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "bench", "version": "1"},
    },
    "tools/list": {
        "tools": [
            {
                "name": "echo",
                "description": "Says it again.",
                "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}},
            }
        ]
    },
    "tools/call": {"content": [{"type": "text", "text": "echo:x"}], "isError": False},
}


class McpSource(Peer):
    """One tool, over streamable HTTP without streams."""

    def came(self, message: bytes) -> None:
        head, body = message.split(b"\r\n\r\n", 1)
        if not head.startswith(b"POST"):
            self.transport.write(b"HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\n\r\n")
            return
        asked = json.loads(body)
        if "id" not in asked:
            self.transport.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")
            return
        result = RESULTS.get(asked["method"])
        said = {"error": {"code": -32601, "message": "no such method"}} if result is None else {"result": result}
        self.transport.write(answer(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **said}).encode()))


class Floor(Peer):
    """Hands on what came, and what is said to it: what no proxy in Python gets below."""

    free: list["FloorBehind"]
    port: int

    def came(self, message: bytes) -> None:
        if self.free:
            self.free.pop().ask(self, message)
        else:
            self.dialling = asyncio.get_running_loop().create_task(self.dial(message))

    async def dial(self, message: bytes) -> None:
        loop = asyncio.get_running_loop()
        _, behind = await loop.create_connection(FloorBehind, "127.0.0.1", self.port)
        behind.ask(self, message)


class FloorBehind(Peer):
    """A connection of the floor to the model. Which answers end with their length, or with an empty chunk."""

    def ask(self, front: Floor, message: bytes) -> None:
        self.front, self.left = front, -1
        self.transport.write(message)

    def data_received(self, data: bytes) -> None:
        self.front.transport.write(data)
        if self.left < 0:
            head = data.find(b"\r\n\r\n")
            self.left = (head + 4 + _length(data, head)) if b"content-length:" in data[:head] else 0
        if self.left:
            self.left -= len(data)
            over = not self.left
        else:
            over = data.endswith(b"0\r\n\r\n")
        if over:
            self.front.free.append(self)


class Client(Peer):
    """Sends the same request as often as it is asked to."""

    def __init__(self, request: bytes, work: Work) -> None:
        self.request, self.work = request, work
        self.left = 0
        self.over: asyncio.Future[None]

    def ask(self, times: int) -> "asyncio.Future[None]":
        self.left = times
        self.over = asyncio.get_running_loop().create_future()
        self.transport.write(self.request)
        return self.over

    def data_received(self, data: bytes) -> None:
        if not self.work.streamed:
            super().data_received(data)
            return
        self.got += data
        if data.endswith(b"0\r\n\r\n"):
            message, self.got = self.got, b""
            self.came(message)

    def came(self, message: bytes) -> None:
        if not message.startswith(b"HTTP/1.1 200") or self.work.expect not in message:
            self.over.set_exception(AssertionError(f"{self.work.name}: {message[:600]!r}"))
            return
        self.left -= 1
        if self.left:
            self.transport.write(self.request)
        else:
            self.over.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if self.left:
            self.over.set_exception(error or ConnectionError(f"{self.work.name}: closed by the server"))


class Clients:
    """So many clients of one server, connected once."""

    def __init__(self, clients: list[Client]) -> None:
        self.clients = clients

    async def ask(self, times: int) -> None:
        await asyncio.gather(*(client.ask(times) for client in self.clients))

    def leave(self) -> None:
        for client in self.clients:
            client.transport.close()


async def connected(port: int, key: str, work: Work, at_once: int) -> Clients:
    body = work.bytes
    head = (
        f"POST {work.path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    loop = asyncio.get_running_loop()
    clients = [Client(head.encode() + body, work) for _ in range(at_once)]
    for client in clients:
        await loop.create_connection(lambda client=client: client, "127.0.0.1", port)  # type: ignore[misc]
    return Clients(clients)


@contextlib.asynccontextmanager
async def listening(make: Callable[[], asyncio.Protocol]) -> AsyncIterator[int]:
    """The port of a server that is one of the above, and ends with this."""
    async with await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0) as server:
        port: int = server.sockets[0].getsockname()[1]
        yield port
