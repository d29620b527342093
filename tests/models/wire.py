"""A server of a few lines for tests that need exact bytes: it reads a request, hands it over, and says when the peer left."""

import asyncio
import json
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from callgate.conversation.ports import ModelRequest
from callgate.http.interface import Deadlines
from callgate.policy.litellm_settings import without_settings

QUICK = Deadlines(connect=30, first_byte=30, idle=30, total=60)
"""Quick beside those of a model that thinks. No test waits for them to pass, and a busy machine keeps them."""
SSE = "text/event-stream"


@dataclass
class Request:
    target: str
    headers: dict[str, str]
    raw: bytes
    method: str = "POST"

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


@dataclass
class Wire:
    """One connection, seen from the server."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes | str) -> None:
        self.writer.write(data.encode() if isinstance(data, str) else data)
        await self.writer.drain()

    async def head(self, status: int = 200, content_type: str = SSE, *more: str) -> None:
        """Headers of an answer that ends when the connection is closed."""
        lines = [f"HTTP/1.1 {status} Status", f"Content-Type: {content_type}", "Connection: close", *more, "", ""]
        await self.send("\r\n".join(lines))

    async def whole(
        self, body: bytes | str | dict[str, Any], status: int = 200, *more: str, kind: str = "application/json"
    ) -> None:
        """A whole answer on a connection that is kept."""
        data = json.dumps(body).encode() if isinstance(body, dict) else body.encode() if isinstance(body, str) else body
        lines = [f"HTTP/1.1 {status} Status", f"Content-Type: {kind}", f"Content-Length: {len(data)}", *more, "", ""]
        await self.send("\r\n".join(lines).encode() + data)

    async def event(self, value: Any) -> None:
        await self.send(f"data: {value if isinstance(value, str) else json.dumps(value)}\n\n")

    def reset(self) -> None:
        sock: socket.socket = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def peer_left(self) -> None:
        """Wait until the client has closed its side."""
        try:
            while await self.reader.read(65536):
                pass
        except ConnectionError:
            pass


Serve = Callable[[Request, Wire], Awaitable[None]]


@dataclass
class Server:
    url: str
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    open_tasks: set["asyncio.Task[None]"] = field(default_factory=set)

    async def nobody_connected(self) -> None:
        """Wait until the server has closed every connection, and the client has had a turn to see it."""
        while self.open_tasks:
            await asyncio.wait(self.open_tasks)
        for _ in range(3):
            await asyncio.sleep(0.01)


@asynccontextmanager
async def raw_provider(*serves: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    """Serve the n-th request with the n-th function, and all later ones with the last."""
    tasks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        server.connections += 1
        try:
            while (request := await _read_request(reader)) is not None:
                server.requests.append(request)
                serve = serves[min(len(server.requests), len(serves)) - 1]
                wire = Wire(reader, writer)
                await serve(request, wire)
                if writer.is_closing() or serve.__dict__.get("closes"):
                    break
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            tasks.discard(task)

    listener = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls)
    port = listener.sockets[0].getsockname()[1]
    server = Server(f"{'https' if tls else 'http'}://127.0.0.1:{port}", open_tasks=tasks)
    try:
        yield server
    finally:
        listener.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def closing(serve: Serve) -> Serve:
    """The connection is closed when the function returns."""

    async def serve_and_close(request: Request, wire: Wire) -> None:
        await serve(request, wire)

    serve_and_close.__dict__["closes"] = True
    return serve_and_close


async def _read_request(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.split("\r\n")[:-2]
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    method, target, _ = first.split()
    return Request(target, headers, body, method)


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "delta": delta or {}, "finish_reason": finish}],
        **more,
    }


def completion(text: str = "Hello", finish: str | None = "stop", **message: Any) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": text, **message}, "finish_reason": finish}
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }


def asking(
    text: str = "hi",
    *,
    stream: bool = True,
    tools: Sequence[Any] = (),
    tool_choice: Any = None,
    params: Mapping[str, Any] | None = None,
    **more: Any,
) -> ModelRequest:
    raw = [msgspec.Raw(msgspec.json.encode(each)) for each in tools]
    return ModelRequest(
        [{"role": "user", "content": text}], raw, tool_choice, without_settings({**(params or {}), **more}), stream
    )


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}
