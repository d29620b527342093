"""A tool server over HTTP, written without the SDK, on a port of its own in the test's event loop.

It can answer in JSON or in events, forget sessions, hang up in the middle, and keep what it was sent.
"""

import asyncio
import base64
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from tests.tools.servers.raw_mcp import CITY, FLOOD_BYTES

ANY = {"type": "object"}


@dataclass(slots=True)
class Asked:
    """One request that came."""

    method: str
    path: str
    headers: dict[str, str]
    message: dict[str, Any]


async def _at_once(asked: Asked) -> None: ...


@dataclass(slots=True)
class HttpMcp:
    """The server. What a tool does is a function in `tools`; the usual ones are there."""

    events: bool = False
    """Answer calls as events."""
    url: str = ""
    tools: dict[str, tuple[dict[str, Any], str]] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    sessions: set[str] = field(default_factory=set)
    instead: Callable[[Asked], bytes | None] = lambda asked: None
    """What is sent instead of the usual, head and all; None for the usual."""
    refusing: Callable[[Asked], Awaitable[None]] = _at_once
    """Awaited before a call with an unknown session is refused."""
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    replied: asyncio.Event = field(default_factory=asyncio.Event)
    connections: set[asyncio.StreamWriter] = field(default_factory=set)
    streams: set[asyncio.StreamWriter] = field(default_factory=set)
    _server: asyncio.Server | None = None

    @contextlib.asynccontextmanager
    async def running(self, port: int = 0) -> AsyncIterator["HttpMcp"]:
        await self.start(port)
        try:
            yield self
        finally:
            await self.stop()

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/mcp"

    async def stop(self) -> None:
        """Die, with all connections."""
        assert self._server is not None
        self._server.close()
        for writer in list(self.connections):
            writer.transport.abort()
        while self.connections:  # noqa: ASYNC110 - each ends by itself, in a task nobody holds
            await asyncio.sleep(0.001)
        await self._server.wait_closed()

    def calls(self) -> list[Asked]:
        return [asked for asked in self.asked if asked.message.get("method") == "tools/call"]

    def said(self, method: str) -> list[Asked]:
        return [asked for asked in self.asked if asked.message.get("method") == method]

    async def notify(self, message: dict[str, Any]) -> None:
        """Send a notification on the streams that are open for them."""
        for writer in self.streams:
            writer.write(event(message))
            await writer.drain()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.add(writer)
        try:
            while (asked := await _request(reader)) is not None:
                self.asked.append(asked)
                if not await self._answer(asked, reader, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.connections.discard(writer)
            self.streams.discard(writer)
            self.stopped.set()
            writer.close()

    async def _answer(self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """False where the connection is not to be used again."""
        if (other := self.instead(asked)) is not None:
            writer.write(other)
            await writer.drain()
            return False
        session = asked.headers.get("mcp-session-id", "")
        method = asked.message.get("method")
        if asked.method == "DELETE":
            self.sessions.discard(session)
            return await _send(writer, b"")
        if method == "server/discover":
            return await _send(writer, _error(asked, -32601, "Method not found"), "400 Bad Request")
        if method == "initialize":
            return await self._greet(asked, writer)
        if session not in self.sessions:
            await self.refusing(asked)
            return await _send(writer, _error(asked, -32600, "Session not found"), "404 Not Found")
        if asked.method == "GET":
            writer.write(STREAM)
            self.streams.add(writer)
            await writer.drain()
            await reader.read()
            return False
        if method == "tools/list":
            return await _send(writer, _result(asked, {"tools": self._listed()}))
        if method == "tools/call":
            return await self._call(asked, reader, writer)
        if method is None:
            self.replied.set()
        return await _send(writer, b"", "202 Accepted")

    async def _greet(self, asked: Asked, writer: asyncio.StreamWriter) -> bool:
        session = uuid.uuid4().hex
        self.sessions.add(session)
        greeting = {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": {"name": "http", "version": "1"},
        }
        return await _send(writer, _result(asked, greeting), more=f"Mcp-Session-Id: {session}\r\n")

    def _listed(self) -> list[dict[str, Any]]:
        usual: dict[str, tuple[dict[str, Any], str]] = {
            name: (CITY, f"It {name}.") for name in ("answers", "raises", "hangs", "floods", "binary")
        }
        usual |= {name: (ANY, f"It {name}.") for name in ("progresses", "asks", "resumes", "echo")}
        return [
            {"name": name, "description": words, "inputSchema": schema}
            for name, (schema, words) in {**usual, **self.tools}.items()
        ]

    async def _call(self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        params = asked.message["params"]
        token = params["_meta"]["progressToken"]
        match params["name"]:
            case "answers":
                return await self._notify(
                    asked, writer, {"content": [], "structuredContent": {"city": "Oslo", "degrees": 21}}
                )
            case "raises":
                said = {"content": [{"type": "text", "text": "the thermometer fell off"}], "isError": True}
                return await self._notify(asked, writer, said)
            case "binary":
                blob = {
                    "uri": "",
                    "blob": base64.b64encode(bytes(16384)).decode(),
                    "mimeType": "application/octet-stream",
                }
                return await self._notify(asked, writer, {"content": [{"type": "resource", "resource": blob}]})
            case "hangs":
                self.begun.set()
                await reader.read()
                return False
            case "floods":
                return await self._flood(asked, writer)
            case "progresses":
                writer.write(STREAM)
                for step in (1, 2):
                    update = {"progressToken": token, "progress": step, "total": 2, "message": f"step {step}"}
                    writer.write(event({"jsonrpc": "2.0", "method": "notifications/progress", "params": update}))
                writer.write(b": a comment\n\nevent: message\n" + event(_message(asked, {"content": [text("done")]})))
                await writer.drain()
                return False
            case "asks":
                writer.write(
                    STREAM + event({"jsonrpc": "2.0", "id": 9, "method": "sampling/createMessage", "params": {}})
                )
                await writer.drain()
                await self.replied.wait()
                writer.write(event(_message(asked, {"content": [text("never mind")]})))
                await writer.drain()
                return False
            case "resumes" if asked.method == "POST":
                writer.write(STREAM + b"id: place-1\nretry: 10\ndata:\n\n")
                await writer.drain()
                return False
            case _:
                return await self._notify(asked, writer, {"content": [text(json.dumps(params["arguments"]))]})

    async def _notify(self, asked: Asked, writer: asyncio.StreamWriter, result: dict[str, Any]) -> bool:
        if self.events:
            writer.write(STREAM + event(_message(asked, result)))
            await writer.drain()
            return False
        return await _send(writer, _result(asked, result))

    async def _flood(self, asked: Asked, writer: asyncio.StreamWriter) -> bool:
        kind = b"text/event-stream" if self.events else b"application/json"
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: " + kind + b"\r\n\r\n" + (b"data: " if self.events else b""))
        id = json.dumps(asked.message["id"]).encode()
        writer.write(b'{"jsonrpc":"2.0","id":' + id + b',"result":{"content":[{"type":"text","text":"')
        for _ in range(FLOOD_BYTES // 65536):
            writer.write(b"x" * 65536)
            await writer.drain()
        writer.write(b'"}]}}\n\n')
        await writer.drain()
        return False


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


def event(message: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(message).encode() + b"\n\n"


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def _message(asked: Asked, result: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": asked.message["id"], "result": result}


def _result(asked: Asked, result: dict[str, Any]) -> bytes:
    return json.dumps(_message(asked, result)).encode()


def _error(asked: Asked, code: int, words: str) -> bytes:
    error = {"code": code, "message": words}
    return json.dumps({"jsonrpc": "2.0", "id": asked.message.get("id"), "error": error}).encode()


async def _request(reader: asyncio.StreamReader) -> Asked | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    method, path, _ = first.split()
    return Asked(method, path, headers, json.loads(body) if body else {})


async def _send(writer: asyncio.StreamWriter, body: bytes, status: str = "200 OK", more: str = "") -> bool:
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    return True
