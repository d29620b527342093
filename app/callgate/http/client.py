"""The HTTP client on httptools and asyncio transports: a keep-alive pool, four deadlines, the environment's proxies.

HTTP/1.1 without redirects, compression and cookies, at a fifth of the cost of a general client. This module has the pool;
`connection` has one connection and its response.
"""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from http import HTTPStatus
from types import TracebackType
from typing import Any, TypeAlias

import aiohappyeyeballs
import msgspec
import structlog

from callgate.http.connection import ClientConnection
from callgate.http.interface import ConnectFailed, Deadlines, TimedOut, reason
from callgate.http.proxies import Proxies, Proxy
from callgate.http.request_head import Headers, Origin, RequestHead, request_head, with_headers
from callgate.http.trace_context import TRACE
from callgate.http.tunnel import Tunnel, refused_by, tls_through

KEEP_ALIVE_SECONDS = 30.0
"""Less than the idle timeout of servers, so that a connection is not used while its server closes it."""
SECOND_ADDRESS_SECONDS = 0.25
"""How long one address of a host is tried before the next is tried beside it."""

MAX_HEADS = 512
MAX_HEAD_BYTES = 4096
"""The bounds of the cache of request heads, two megabytes. Longer heads are built for each request."""

HeadKey: TypeAlias = tuple[str, str, Headers]
"""The method, URL and headers of a request."""
AddressInfo: TypeAlias = tuple[int, int, int, str, Any]
"""An entry of `getaddrinfo`'s result."""
Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[AddressInfo]]]
"""Returns the addresses of a host, by name or literal, that may be connected to."""

log = structlog.get_logger("callgate.http")


async def resolved(host: str, port: int) -> Sequence[AddressInfo]:
    return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)


class HttpClient:
    """A client with its pool of connections: one per runtime for the models, one for each tool server."""

    def __init__(
        self,
        *,
        tls: ssl.SSLContext | None = None,
        resolve: Resolve = resolved,
        keep_alive: float = KEEP_ALIVE_SECONDS,
        proxies: Proxies | None = None,
        in_bodies: Sequence[bytes] = (),
    ) -> None:
        """`in_bodies`: secrets that the bodies of its requests may have."""
        self._tls = tls
        self._resolve = resolve
        self._keep_alive = keep_alive
        self.proxies = proxies
        self._in_bodies = in_bodies
        self._idle: dict[Origin, deque[ClientConnection]] = {}
        self._all: set[ClientConnection] = set()
        self._distrusted: set[Origin] = set()
        self._heads: dict[HeadKey, RequestHead] = {}
        self._emptied = asyncio.Event()
        self._sweeping: asyncio.TimerHandle | None = None
        self._closed = False

    def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, deadlines: Deadlines
    ) -> Coroutine[Any, Any, ClientConnection]:
        """Send a request and return its response once its head has come. The caller ends the exchange with `leave`."""
        key = (method, url, tuple(headers.items()))
        return self.exchange(self._heads.get(key) or self._new_head(key), body, deadlines)

    def head_of(self, method: str, url: str, headers: Mapping[str, str]) -> RequestHead:
        """Return the head of a request, for `exchange`."""
        key = (method, url, tuple(headers.items()))
        return self._heads.get(key) or self._new_head(key)

    async def exchange(self, request: RequestHead, body: bytes, deadlines: Deadlines) -> ClientConnection:
        """Send a request whose head is made already. Returns what `send` returns."""
        origin = request.origin
        head = request.head
        if (trace := TRACE.get()) is not None:
            head = with_headers(head, trace.headers)
        connection = self._take(origin)
        if connection is not None:
            began_at = connection.loop.time()  # the connection's loop: `get_running_loop` costs a system call
        else:
            began_at = asyncio.get_running_loop().time()
            connection = await self._connect(origin, deadlines)
        try:
            connection.begin(head, body, deadlines, began_at, request.needles)
            while connection.awaits_head():
                await connection.change()
            if origin.proxy is not None and connection.status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
                raise ConnectFailed(refused_by(origin.proxy, connection.status))
        except BaseException:
            connection.abort()
            raise
        return connection

    def post(self, url: str, headers: Mapping[str, str], body: bytes, deadlines: Deadlines) -> "HttpExchange":
        return self.request("POST", url, headers, body, deadlines)

    def get(self, url: str, headers: Mapping[str, str], deadlines: Deadlines) -> "HttpExchange":
        return self.request("GET", url, headers, b"", deadlines)

    def request(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, deadlines: Deadlines
    ) -> "HttpExchange":
        """Return the context manager of one exchange."""
        return HttpExchange(client=self, method=method, url=url, headers=headers, body=body, deadlines=deadlines)

    async def close(self) -> None:
        self._closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        self._idle.clear()
        for connection in list(self._all):
            connection.abort()
        while self._all:
            self._emptied.clear()
            await self._emptied.wait()

    def _new_head(self, key: HeadKey) -> RequestHead:
        """Build the head of a request, and cache it unless it is long: clients' text is part of some heads."""
        method, url, headers = key
        head = request_head(method, url, headers, self.proxies, self._in_bodies)
        if len(head.head) <= MAX_HEAD_BYTES:
            if len(self._heads) >= MAX_HEADS:
                self._heads.clear()
            self._heads[key] = head
        return head

    # -- connections

    def _take(self, origin: Origin) -> ClientConnection | None:
        """Take an idle connection to an origin, the one used last first, so that surplus connections stay idle and are closed."""
        idle = self._idle.get(origin)
        while idle:
            connection = idle.pop()
            if connection.is_open and connection.loop.time() - connection.idle_since < self._keep_alive:
                return connection
            connection.abort()
        return None

    async def _connect(self, origin: Origin, deadlines: Deadlines) -> ClientConnection:
        if self._closed:
            raise ConnectFailed("the client was closed")
        limit = min(deadlines.connect, deadlines.first_byte, deadlines.total)
        waiting = asyncio.timeout(limit)
        try:
            async with waiting:
                connection = await self._connected(origin)
        except TimeoutError as error:
            if not waiting.expired():
                raise ConnectFailed(_where(origin) + reason(error)) from error
            raise TimedOut("connect" if limit == deadlines.connect else "first_byte", limit) from None
        except (OSError, UnicodeError) as error:  # TLS and name lookup fail with kinds of OSError
            raise ConnectFailed(_where(origin) + reason(error)) from error
        self._all.add(connection)
        if not connection.is_open:
            self.discard(connection)
            raise ConnectFailed("the connection was closed as soon as it was made")
        return connection

    async def _connected(self, origin: Origin) -> ClientConnection:
        loop = asyncio.get_running_loop()
        connection = ClientConnection(self, origin, loop)
        proxy = origin.proxy
        if proxy is None:
            await self._dial(connection, origin.host, origin.port, secure=origin.secure)
        elif not origin.secure:
            await self._dial(connection, proxy.host, proxy.port, secure=proxy.secure)
        else:
            tunnel = Tunnel(origin, proxy)
            transport = await self._dial(tunnel, proxy.host, proxy.port, secure=proxy.secure)
            try:
                await tls_through(await tunnel.open(), connection, self._context(), origin.host)
            except BaseException:
                transport.abort()
                raise
        return connection

    async def _dial(self, protocol: asyncio.Protocol, host: str, port: int, *, secure: bool) -> asyncio.Transport:
        loop = asyncio.get_running_loop()
        addresses = await self._resolve(host, port)
        delay = SECOND_ADDRESS_SECONDS if len(addresses) > 1 else None
        sock = await aiohappyeyeballs.start_connection(addresses, happy_eyeballs_delay=delay, loop=loop)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            transport, _ = await loop.create_connection(
                lambda: protocol,
                sock=sock,
                ssl=self._context() if secure else None,
                server_hostname=host if secure else None,
            )
        except BaseException:
            sock.close()
            raise
        return transport

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    # -- for its connections

    def release(self, connection: ClientConnection) -> None:
        if self._closed or (self._distrusted and connection.origin in self._distrusted):
            connection.abort()
            return
        connection.idle_since = connection.loop.time()
        idle = self._idle.get(connection.origin)
        if idle is None:
            idle = self._idle[connection.origin] = deque()
        idle.append(connection)
        if self._sweeping is None:
            self._sweeping = connection.loop.call_later(self._keep_alive, self._sweep, connection.loop)

    def discard(self, connection: ClientConnection) -> None:
        self._all.discard(connection)
        if not self._all:
            self._emptied.set()
        idle = self._idle.get(connection.origin)
        if idle and connection in idle:
            idle.remove(connection)

    def distrust(self, origin: Origin) -> None:
        """Do not reuse connections to an origin: unsolicited bytes could be taken for the response to another request."""
        if origin not in self._distrusted:
            self._distrusted.add(origin)
            log.warning("upstream_distrusted", host=str(origin), why="it sent bytes that belong to no request")
        for connection in self._idle.pop(origin, ()):
            connection.abort()

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close connections that were idle for too long."""
        oldest = loop.time() - self._keep_alive
        for idle in self._idle.values():
            while idle and idle[0].idle_since <= oldest:
                idle.popleft().abort()
        self._sweeping = None
        if any(self._idle.values()):
            self._sweeping = loop.call_later(self._keep_alive / 2, self._sweep, loop)


class HttpExchange(msgspec.Struct, eq=False, kw_only=True):
    """The context manager of one request; leaving it before the end of the response, or being cancelled, closes the connection."""

    client: HttpClient
    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes
    deadlines: Deadlines
    response: ClientConnection | None = None

    async def __aenter__(self) -> ClientConnection:
        self.response = await self.client.send(self.method, self.url, self.headers, self.body, self.deadlines)
        return self.response

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.response is not None:
            self.response.leave()


def _where(origin: Origin) -> str:
    """Return the proxy as the beginning of an error message; empty without one."""
    proxy: Proxy | None = origin.proxy
    if proxy is None:
        return ""
    return f"through {proxy}: "
