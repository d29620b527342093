"""A small WebSocket client: what it sends can be wrong on purpose."""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import urlsplit

TEXT, CLOSE, PING, PONG = 0x1, 0x8, 0x9, 0xA
ENDS = ("response.completed", "response.incomplete", "response.failed", "error")


def client_frame(kind: int, data: bytes, *, final: bool = True, masked: bool = True) -> bytes:
    mask = os.urandom(4)
    size = len(data)
    head = bytes([(0x80 if final else 0) | kind])
    bit = 0x80 if masked else 0
    if size < 126:
        head += bytes([bit | size])
    else:
        head += bytes([bit | 127]) + size.to_bytes(8, "big")
    if not masked:
        return head + data
    return head + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))


class Socket:
    """One open connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer

    async def send(self, message: Any) -> None:
        await self.send_raw(client_frame(TEXT, json.dumps(message).encode()))

    async def send_raw(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def frame(self) -> tuple[int, bytes]:
        first, second = await self._reader.readexactly(2)
        size = second & 0x7F
        if size >= 126:
            size = int.from_bytes(await self._reader.readexactly(2 if size == 126 else 8), "big")
        return first & 0x0F, await self._reader.readexactly(size)

    async def message(self) -> dict[str, Any]:
        kind, data = await self.frame()
        assert kind == TEXT, (kind, data)
        read: dict[str, Any] = json.loads(data)
        return read

    async def turn(self, message: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The events of one response."""
        await self.send({"type": "response.create", **message})
        events = [await self.message()]
        while events[-1]["type"] not in ENDS or (events[-1]["type"] == "error" and "status" not in events[-1]):
            events.append(await self.message())
        return events

    async def closing_code(self) -> int:
        kind, data = await self.frame()
        assert kind == CLOSE, (kind, data)
        assert await self._reader.read() == b""
        return int.from_bytes(data[:2], "big")


@contextlib.asynccontextmanager
async def websocket(url: str, path: str = "/v1/responses", **headers: str) -> AsyncIterator[Socket]:
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    try:
        fields = {
            "host": where.netloc,
            "upgrade": "websocket",
            "connection": "Upgrade",
            "sec-websocket-version": "13",
            "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        writer.write(f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 "), head
        assert b"\r\nsec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in head
        yield Socket(reader, writer)
    finally:
        writer.close()
