"""The upstream HTTP client on httptools and bare transports: a keep-alive pool, four deadlines, nothing followed,
nothing inflated, nothing kept. It costs a fifth of what a general client costs, because it can do one thing.

It speaks HTTP/1.1 and knows no proxies; where one is needed, `aiohttp_client` stands in.
"""

import asyncio
import base64
import socket
import ssl
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import TypeAlias, cast
from urllib.parse import quote, unquote, urlsplit

import aiohappyeyeballs
import httptools

from app.upstream.client import Broken, ConnectFailed, Deadlines, TimedOut, TooLarge, TransportError, Which

KEEP_ALIVE_SECONDS = 30.0
"""Less than what servers allow a silent connection: one that they are about to close must not be asked again."""
HEAD_BYTES = 65_536
"""Some gateways send long policy headers; no honest head comes near this."""
HELD_BYTES = 256 * 1024
"""Of a body that nobody reads. Beyond it the server is made to wait."""
DRAIN_SECONDS = 0.5
DRAIN_BYTES = 65_536
"""After the end mark a server owes us no more than a chunk terminator; one that lingers loses its connection."""
SECOND_ADDRESS_SECONDS = 0.25
"""How long one address of a host is tried before the next is tried beside it."""
JOINED_BYTES = 16_384
"""Up to here one write of head and body together is cheaper than two."""
SAFE_IN_TARGET = "/%:@!$&'()*+,;=~-._?"

Where: TypeAlias = tuple[str, int, bool]
"""Host, port and whether TLS is spoken."""


class LeanClient:
    """One per runtime: connections are shared by all models."""

    def __init__(self, *, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._free: dict[Where, deque[_Connection]] = {}
        self._all: set[_Connection] = set()
        self._gone = asyncio.Event()
        self._sweeping: asyncio.TimerHandle | None = None
        self._closed = False

    def post(self, url: str, headers: Mapping[str, str], body: bytes, deadlines: Deadlines) -> "_Exchange":
        return _Exchange(self, url, headers, body, deadlines)

    async def close(self) -> None:
        self._closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        self._free.clear()
        for connection in list(self._all):
            connection.abort()
        while self._all:
            self._gone.clear()
            await self._gone.wait()

    def take(self, where: Where) -> "_Connection | None":
        """A free connection to there. The one used last comes first, so that those of a rush may grow old and go."""
        free = self._free.get(where)
        while free:
            connection = free.pop()
            if connection.is_open and connection.loop.time() - connection.free_since < KEEP_ALIVE_SECONDS:
                return connection
            connection.abort()
        return None

    async def connect(self, where: Where, deadlines: Deadlines) -> "_Connection":
        limit = min(deadlines.connect, deadlines.first_byte, deadlines.total)
        waiting = asyncio.timeout(limit)
        try:
            async with waiting:
                return await self._connected(where)
        except TimeoutError as error:
            if not waiting.expired():
                raise ConnectFailed(_reason(error)) from error
            raise TimedOut("connect" if limit == deadlines.connect else "first_byte", limit) from None
        except (OSError, UnicodeError) as error:  # TLS and name lookup fail with kinds of OSError
            raise ConnectFailed(_reason(error)) from error

    def give_back(self, connection: "_Connection") -> None:
        if self._closed:
            connection.abort()
            return
        connection.free_since = connection.loop.time()
        self._free.setdefault(connection.where, deque()).append(connection)
        if self._sweeping is None:
            self._sweeping = connection.loop.call_later(KEEP_ALIVE_SECONDS, self._sweep, connection.loop)

    def lost(self, connection: "_Connection") -> None:
        self._all.discard(connection)
        if not self._all:
            self._gone.set()
        free = self._free.get(connection.where)
        if free and connection in free:
            free.remove(connection)

    async def _connected(self, where: Where) -> "_Connection":
        host, port, secure = where
        loop = asyncio.get_running_loop()
        addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        delay = SECOND_ADDRESS_SECONDS if len(addresses) > 1 else None
        sock = await aiohappyeyeballs.start_connection(addresses, happy_eyeballs_delay=delay, loop=loop)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _, connection = await loop.create_connection(
                lambda: _Connection(self, where, loop),
                sock=sock,
                ssl=self._context() if secure else None,
                server_hostname=host if secure else None,
            )
        except BaseException:
            sock.close()
            raise
        self._all.add(connection)
        if not connection.is_open:
            self.lost(connection)
            raise ConnectionResetError("closed as soon as it was made")
        return connection

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close what has been free for too long."""
        oldest = loop.time() - KEEP_ALIVE_SECONDS
        for free in self._free.values():
            while free and free[0].free_since <= oldest:
                free.popleft().abort()
        self._sweeping = None
        if any(self._free.values()):
            self._sweeping = loop.call_later(KEEP_ALIVE_SECONDS / 2, self._sweep, loop)


class _Exchange:
    """The context of one request. A class and not a generator: this is entered for every turn of every chat."""

    __slots__ = ("_body", "_client", "_connection", "_deadlines", "_headers", "_url")

    def __init__(
        self, client: LeanClient, url: str, headers: Mapping[str, str], body: bytes, deadlines: Deadlines
    ) -> None:
        self._client = client
        self._url = url
        self._headers = headers
        self._body = body
        self._deadlines = deadlines
        self._connection: _Connection | None = None

    async def __aenter__(self) -> "_Connection":
        where, head = _prepared(self._url, tuple(self._headers.items()))
        asked_at = asyncio.get_running_loop().time()
        connection = self._client.take(where)
        if connection is None:
            connection = await self._client.connect(where, self._deadlines)
        self._connection = connection
        try:
            await connection.ask(head, self._body, self._deadlines, asked_at)
        except BaseException:
            connection.abort()
            raise
        return connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._connection is not None
        self._connection.leave()


class _Connection(asyncio.Protocol):
    """One connection, and the response that is coming over it; to whoever asked it is that response."""

    __slots__ = (
        "_client",
        "_deadlines",
        "_draining",
        "_due",
        "_end",
        "_fault",
        "_head_bytes",
        "_held",
        "_keep",
        "_named",
        "_parser",
        "_parts",
        "_paused",
        "_quiet",
        "_raw_headers",
        "_settled",
        "_sized",
        "_state",
        "_strange",
        "_timer",
        "_timer_at",
        "_transport",
        "_waiter",
        "free_since",
        "is_open",
        "loop",
        "status",
        "where",
    )

    def __init__(self, client: LeanClient, where: Where, loop: asyncio.AbstractEventLoop) -> None:
        self._client = client
        self.where = where
        self.loop = loop
        self.is_open = False
        self.free_since = 0.0
        self.status = 0
        self._state = _FREE
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._draining: asyncio.TimerHandle | None = None
        self._parts: list[bytes] = []
        self._held = 0
        self._paused = False
        self._fault: TransportError | None = None
        self._settled = False
        self._raw_headers: list[tuple[bytes, bytes]] = []
        self._named: dict[str, str] | None = None
        self._head_bytes = 0
        self._keep = self._strange = self._sized = False
        self._deadlines = Deadlines()
        self._end = self._due = 0.0
        self._quiet: Which = "first_byte"

    # -- for the exchange

    async def ask(self, head: bytes, body: bytes, deadlines: Deadlines, asked_at: float) -> None:
        """Send a request and wait for the head of its answer."""
        self._begin(deadlines, asked_at)
        start = head + b"%d\r\n\r\n" % len(body)
        if len(body) <= JOINED_BYTES:
            self._transport.write(start + body)
        else:
            self._transport.writelines((start, body))
        while self._state < _BODY:
            if self._fault is not None:
                raise self._fault
            await self._wait()
        if self._fault is not None and not self._parts:
            raise self._fault

    def leave(self) -> None:
        """The exchange is over. What was not read to its end is cut off, unless it is only the little after an end mark."""
        if self._state == _WHOLE and self._keep and self._fault is None:
            self._release()
        elif self._settled and self._state == _BODY and self._fault is None and self.is_open:
            self._drain()
        else:
            self.abort()

    def abort(self) -> None:
        self._state = _FREE
        self._fail(Broken("the connection was given up"))

    # -- as a response

    @property
    def headers(self) -> Mapping[str, str]:
        if self._named is None:
            self._named = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in self._raw_headers}
        return self._named

    def chunks(self) -> "_Reads":
        if self._strange:
            raise Broken("the body is compressed although that was not asked for")
        return _Reads(self)

    async def read(self, limit: int) -> bytes:
        parts: list[bytes] = []
        size = 0
        async for part in self.chunks():
            size += len(part)
            if size > limit:
                raise TooLarge(limit)
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def settle(self) -> None:
        self._settled = True

    async def read_some(self) -> bytes:
        """What has come of the body; nothing when it is at its end."""
        while not self._parts:
            if self._fault is not None:
                raise self._fault
            if self._state == _WHOLE:
                return b""
            await self._wait()
        parts = self._parts
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        self._held = 0
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        return data

    # -- the protocol's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass of it
        self._parser = httptools.HttpResponseParser(self)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        if self._state == _FREE:
            self.abort()  # nobody asked for it
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if self._state != _WHOLE:
                self._fail(Broken(_reason(error)))
            self._keep = False
        if self._state < _BODY:
            self._count_head(len(data))  # of a header that is not whole yet, nothing was counted yet
        self._wake()

    def eof_received(self) -> None:
        """The transport closes itself, and `connection_lost` says how the answer ended."""

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        self._stop_timers()
        if self._state == _BODY and error is None and not self._sized:
            self._state = _WHOLE
            self._keep = False
        elif self._state in (_ASKED, _BODY) and self._fault is None:
            self._fault = Broken(
                "the connection was closed in the middle of the answer" if error is None else _reason(error)
            )
        self._client.lost(self)
        self._wake()

    def on_message_begin(self) -> None:
        if self._state == _WHOLE:
            self._keep = False  # a second answer to one question

    def on_header(self, name: bytes, value: bytes) -> None:
        self._raw_headers.append((name, value))
        self._count_head(len(name) + len(value))
        size = len(name)
        if size == _CONTENT_ENCODING and name.lower() == b"content-encoding":
            self._strange = value.strip().lower() not in (b"", b"identity")
        elif size == _CONTENT_LENGTH and name.lower() == b"content-length":
            self._sized = True
        elif size == _TRANSFER_ENCODING and name.lower() == b"transfer-encoding":
            self._sized = True
            self._strange = self._strange or value.strip().lower() != b"chunked"

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= _FINAL_STATUS and self._state == _ASKED:
            self.status = status
            self._state = _BODY

    def on_body(self, data: bytes) -> None:
        if self._state != _BODY or self._fault is not None:
            return
        if self._draining is not None:
            self._held += len(data)
            if self._held > DRAIN_BYTES:
                self.abort()
            return
        self._parts.append(data)
        self._held += len(data)
        if self._held > HELD_BYTES and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if self._state == _BODY:
            self._state = _WHOLE
            self._keep = self._keep and self._parser.should_keep_alive()
            if self._draining is not None:
                self._release()
        elif self._state == _ASKED:
            self._raw_headers.clear()  # an interim answer (100, 103); the real one follows

    # -- between the two

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > HEAD_BYTES:
            self._fail(Broken(f"the headers are longer than {HEAD_BYTES} bytes"))

    def _begin(self, deadlines: Deadlines, asked_at: float) -> None:
        self._state = _ASKED
        self._keep = True
        self._strange = self._sized = self._settled = False
        self._raw_headers = []
        self._named = None
        self._head_bytes = 0
        self._deadlines = deadlines
        self._end = asked_at + deadlines.total
        self._due = min(self._end, asked_at + deadlines.first_byte)
        self._quiet = "first_byte"

    async def _wait(self) -> None:
        """Wait until something has come. The wait counts from here: the time our own side takes is not the upstream's."""
        if self._quiet == "idle":
            self._due = min(self._end, self.loop.time() + self._deadlines.idle)
        if self._timer is None or self._timer_at > self._due:
            self._watch()
        self._waiter = waiter = self.loop.create_future()
        try:
            await waiter
        finally:
            self._waiter = None
        if self._parts:
            self._quiet = "idle"

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # One timer a connection, moved only when it fires or when something is due before it: a request costs none at all
    # as long as an earlier one left its own behind.

    def _watch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = self._due
        self._timer = self.loop.call_at(self._due, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._state in (_FREE, _WHOLE):
            return
        now = self.loop.time()
        if now >= self._end:
            self._fail(TimedOut("total", self._deadlines.total))
        elif self._waiter is None:
            self._due = min(self._end, now + self._deadlines.idle)
            self._watch()
        elif now >= self._due:
            seconds = self._deadlines.idle if self._quiet == "idle" else self._deadlines.first_byte
            self._fail(TimedOut(self._quiet, seconds))
        else:
            self._watch()

    def _fail(self, fault: TransportError) -> None:
        if self._fault is None:
            self._fault = fault
        self.is_open = False
        self._stop_timers()
        self._transport.abort()
        self._wake()

    def _drain(self) -> None:
        self._parts.clear()
        self._held = 0
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        self._draining = self.loop.call_later(DRAIN_SECONDS, self.abort)

    def _release(self) -> None:
        if self._draining is not None:
            self._draining.cancel()
            self._draining = None
        self._parts.clear()
        self._held = 0
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        if not self._keep or not self.is_open or self._transport.get_write_buffer_size():
            self.abort()
            return
        self._state = _FREE
        self._client.give_back(self)

    def _stop_timers(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._draining is not None:
            self._draining.cancel()
            self._draining = None


_FREE, _ASKED, _BODY, _WHOLE = range(4)
"""Where a connection stands: with nobody; asked; answering; its answer whole."""
_FINAL_STATUS = 200
_CONTENT_ENCODING, _CONTENT_LENGTH, _TRANSFER_ENCODING = map(
    len, ("content-encoding", "content-length", "transfer-encoding")
)


class _Reads:
    """A plain iterator and not a generator: one that is left half-way leaves nothing suspended behind."""

    __slots__ = ("_connection",)

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection

    def __aiter__(self) -> "_Reads":
        return self

    async def __anext__(self) -> bytes:
        data = await self._connection.read_some()
        if not data:
            raise StopAsyncIteration
        return data


@dataclass(frozen=True, slots=True)
class _Address:
    where: Where
    target: str
    host: str
    authorization: str | None


@lru_cache(maxsize=1024)
def _prepared(url: str, headers: tuple[tuple[str, str], ...]) -> tuple[Where, bytes]:
    """Where a request goes and its head up to the length of the body; the same for every request of a model."""
    address = _address(url)
    lines = [f"POST {address.target} HTTP/1.1", *_lines(address, headers), "Content-Length: "]
    for line in lines:
        if "\r" in line or "\n" in line or "\0" in line:
            raise ConnectFailed("a header holds a line break")
    try:
        return address.where, "\r\n".join(lines).encode("latin-1")
    except UnicodeEncodeError:
        raise ConnectFailed("a header holds a character that no header can hold") from None


def _lines(address: _Address, headers: tuple[tuple[str, str], ...]) -> Iterator[str]:
    given = {name.lower() for name, _ in headers}
    if "host" not in given:
        yield f"Host: {address.host}"
    if "user-agent" not in given:
        yield "User-Agent: callgate"
    if "accept" not in given:
        yield "Accept: */*"
    if "accept-encoding" not in given:
        yield "Accept-Encoding: identity"
    if address.authorization is not None and "authorization" not in given:
        yield f"Authorization: {address.authorization}"
    for name, value in headers:
        if name.lower() not in ("content-length", "transfer-encoding", "connection"):
            yield f"{name}: {value}"


def _address(url: str) -> _Address:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConnectFailed(f"not an address: {error}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ConnectFailed("not an http address")
    secure = parts.scheme == "https"
    if not host.isascii():
        try:
            host = host.encode("idna").decode()
        except UnicodeError:
            raise ConnectFailed("not the name of a host") from None
    usual = 443 if secure else 80
    shown = f"[{host}]" if ":" in host else host
    authorization = None
    if parts.username is not None:
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = f"Basic {base64.b64encode(user.encode()).decode()}"
    target = quote(parts.path or "/", safe=SAFE_IN_TARGET) + (
        f"?{quote(parts.query, safe=SAFE_IN_TARGET)}" if parts.query else ""
    )
    return _Address(
        (host, port or usual, secure), target, shown if port in (None, usual) else f"{shown}:{port}", authorization
    )


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:300]
