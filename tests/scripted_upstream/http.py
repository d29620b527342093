"""HTTP/1.1 by hand over asyncio streams: just enough to answer, and to stop answering at an exact byte.

A framework would repair what must be broken here. Nothing in this module knows what is being served.
"""

import asyncio
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import parse_qs, unquote, urlsplit

MAX_HEAD = 256 * 1024
STREAM_LIMIT = 64 * 1024 * 1024
"""Large request bodies must not pause the reading by which a disconnect is noticed."""


class ClientDisconnected(Exception):
    """The client closed its side before the answer was over."""


class BadHttp(Exception):
    """What came was no HTTP request that we read."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    method: str
    path: str
    query: Mapping[str, list[str]]
    headers: dict[str, str]
    body: bytes

    @property
    def keep_alive(self) -> bool:
        return self.headers.get("connection", "").lower() != "close"


class Connection:
    """One connection: reads requests, writes answers, and knows when the client has gone."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gone: asyncio.Event) -> None:
        self._reader = reader
        self._writer = writer
        self.gone = gone
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def request(self) -> HttpRequest | None:
        """The next request, or None when the client has no more."""
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as broken:
            if broken.partial:
                raise BadHttp("the head was never finished") from broken
            return None
        if len(head) > MAX_HEAD:
            raise BadHttp("the head is too large")
        first, *lines = head.decode("latin-1").split("\r\n")
        try:
            method, target, _version = first.split(" ", 2)
        except ValueError:
            raise BadHttp(f"no request line: {first!r}") from None
        headers = {name.strip().lower(): value.strip() for name, _, value in (ln.partition(":") for ln in lines if ln)}
        if headers.get("expect", "").lower() == "100-continue":
            await self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        url = urlsplit(target)
        return HttpRequest(method, unquote(url.path), parse_qs(url.query), headers, await self._body(headers))

    async def _body(self, headers: Mapping[str, str]) -> bytes:
        chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        if chunked and "content-length" in headers:
            raise BadHttp("both content-length and transfer-encoding")
        try:
            if not chunked:
                return await self._reader.readexactly(int(headers.get("content-length") or 0))
            parts = []
            while size := int((await self._reader.readline()).split(b";")[0], 16):
                parts.append(await self._reader.readexactly(size))
                await self._reader.readexactly(2)
            await self._reader.readline()
            return b"".join(parts)
        except asyncio.IncompleteReadError as broken:
            raise ClientDisconnected("inside its own request") from broken
        except ValueError as broken:
            raise BadHttp(str(broken)) from broken

    async def head(self, status: int, headers: Mapping[str, str]) -> None:
        await self.write(_head(status, headers))

    async def answer(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        await self.write(_head(status, {**headers, "content-length": str(len(body))}) + body)

    async def write(self, data: bytes) -> None:
        if self.gone.is_set():
            raise ClientDisconnected
        self._writer.write(data)
        try:
            await self._writer.drain()
        except ConnectionError as broken:
            raise ClientDisconnected from broken

    async def chunk(self, data: bytes) -> None:
        """One chunk of a chunked body; an empty one would end it, so it is not written."""
        if data:
            await self.write(b"%x\r\n%b\r\n" % (len(data), data))

    async def last_chunk(self) -> None:
        await self.write(b"0\r\n\r\n")

    async def wait(self, event: asyncio.Event | None = None, seconds: float | None = None) -> None:
        """Waits for the event or the seconds, for ever without either. A client that leaves ends it."""
        waits = [asyncio.ensure_future(e.wait()) for e in (self.gone, event) if e is not None]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        if self.gone.is_set() and not (event is not None and event.is_set()):
            raise ClientDisconnected

    def close(self) -> None:
        """FIN, after what was written."""
        self._writer.close()

    def reset(self) -> None:
        """RST: with a linger of zero the kernel throws away what is unsent and tells the client so."""
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def wait_closed(self) -> None:
        try:
            await self._writer.wait_closed()
        except ConnectionError:
            # the client was faster; closed is closed
            return


class WatchedProtocol(asyncio.StreamReaderProtocol):
    """Streams that say when the peer has gone, without reading bytes that belong to its next request."""

    def __init__(self, opened: Callable[[Connection], None]) -> None:
        self._gone = asyncio.Event()
        loop = asyncio.get_running_loop()

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            opened(Connection(reader, writer, self._gone))

        super().__init__(asyncio.StreamReader(limit=STREAM_LIMIT, loop=loop), connected, loop=loop)

    def eof_received(self) -> bool | None:
        self._gone.set()
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone.set()
        super().connection_lost(exc)


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Scripted"
    lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
