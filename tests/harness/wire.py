"""Raw HTTP from a test: what exactly came back, byte by byte, and how it ended."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

PATIENCE = 30.0
Ended = Literal["complete", "eof", "reset"]


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """One answer. `body` has the transfer coding taken off as far as it came; `parts` are its chunks."""

    raw: bytes
    status: int
    headers: Mapping[str, str]
    parts: tuple[bytes, ...]
    ended: Ended

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)

    @property
    def data(self) -> list[str]:
        """The payloads of the `data:` lines, whichever way lines end."""
        lines = self.body.decode("utf-8", errors="replace").splitlines()
        return [line[5:].removeprefix(" ") for line in lines if line.startswith("data:")]

    @property
    def chunks(self) -> list[dict[str, Any]]:
        """The payloads that are JSON objects."""
        return [json.loads(text) for text in self.data if text.startswith("{")]


@dataclass(slots=True)
class RawConnection:
    """A connection to a loopback server, for one request after another."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    received: bytearray = field(default_factory=bytearray)

    async def post(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> None:
        """Sends a request; what is received from here on belongs to its answer."""
        self.received.clear()
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"POST {path} HTTP/1.1", "host: 127.0.0.1", "content-type: application/json"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        head = "\r\n".join([*lines, f"content-length: {len(content)}"])
        await self.send(head.encode("latin-1") + b"\r\n\r\n" + content)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> RawAnswer:
        """Reads the answer to its end, or as much of it as there is."""
        async with asyncio.timeout(PATIENCE):
            ended = await self._read_to_end()
        head, _, rest = bytes(self.received).partition(b"\r\n\r\n")
        status, headers = _head(head)
        parts = tuple(_dechunked(rest)) if _is_chunked(headers) else ((rest,) if rest else ())
        return RawAnswer(bytes(self.received), status, headers, parts, ended)

    async def until(self, mark: bytes, times: int = 1) -> bytes:
        """Reads until the mark came so often."""
        async with asyncio.timeout(PATIENCE):
            while self.received.count(mark) < times:
                self.received += await self._some()
        return bytes(self.received)

    async def _read_to_end(self) -> Ended:
        try:
            while not _complete(bytes(self.received)):
                self.received += await self._some()
        except EOFError:
            return "eof"
        except ConnectionError:
            return "reset"
        return "complete"

    async def _some(self) -> bytes:
        data = await self.reader.read(65536)
        if not data:
            raise EOFError
        return data


@contextlib.asynccontextmanager
async def raw_connection(url: str) -> AsyncIterator[RawConnection]:
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    try:
        yield RawConnection(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            # a reset is one of the ends a test is after
            await writer.wait_closed()


async def raw_post(
    url: str, body: Any, path: str = "/v1/chat/completions", headers: Mapping[str, str] | None = None
) -> RawAnswer:
    """One request on a connection of its own."""
    async with raw_connection(url) as connection:
        await connection.post(path, body, headers)
        return await connection.answer()


def _head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return (int(words[1]) if len(words) > 1 else 0), headers


def _is_chunked(headers: Mapping[str, str]) -> bool:
    return headers.get("transfer-encoding", "").lower() == "chunked"


def _complete(received: bytes) -> bool:
    head, gap, rest = received.partition(b"\r\n\r\n")
    if not gap:
        return False
    _, headers = _head(head)
    if _is_chunked(headers):
        return rest == b"0\r\n\r\n" or rest.endswith(b"\r\n0\r\n\r\n")
    return "content-length" in headers and len(rest) >= int(headers["content-length"])


def _dechunked(rest: bytes) -> list[bytes]:
    """The chunks as far as they came, the last one perhaps cut; garbled framing ends the list."""
    parts = []
    while rest:
        size, gap, rest = rest.partition(b"\r\n")
        try:
            length = int(size, 16) if gap else 0
        except ValueError:
            break
        if not length:
            break
        parts.append(rest[:length])
        rest = rest[length + 2 :]
    return parts
