"""The HTTP client on httptools and asyncio transports: a keep-alive pool, four deadlines, the environment's proxies.

HTTP/1.1 without redirects, compression and cookies, at a fifth of the cost of a general client. This module has the pool;
`connection` has one connection and its response.
"""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from types import TracebackType
from typing import Any, TypeAlias

import aiohappyeyeballs
import msgspec
import structlog

from callgate.http.connection import ClientConnection
from callgate.http.interface import ConnectFailed, Deadlines, TimedOut, reason
from callgate.http.proxies import Proxies, Proxy
from callgate.http.request_head import Origin, request_head, with_headers
from callgate.http.trace_context import TRACE
from callgate.http.tunnel import Tunnel, refused_by, tls_through

KEEP_ALIVE_SECONDS = 30.0
"""Less than the idle timeout of servers, so that a connection is not used while its server closes it."""
SECOND_ADDRESS_SECONDS = 0.25
"""How long one address of a host is tried before the next is tried beside it."""

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
    ) -> None:
        self._tls = tls
        self._resolve = resolve
        self._keep_alive = keep_alive
        self.proxies = proxies
        self._idle: dict[Origin, deque[ClientConnection]] = {}
        self._all: set[ClientConnection] = set()
        self._distrusted: set[Origin] = set()
        self._emptied = asyncio.Event()
        self._sweeping: asyncio.TimerHandle | None = None
        self._closed = False

    def post(self, url: str, headers: Mapping[str, str], body: bytes, deadlines: Deadlines) -> "HttpExchange":
        return HttpExchange(self, "POST", url, headers, body, deadlines)

    def get(self, url: str, headers: Mapping[str, str], deadlines: Deadlines) -> "HttpExchange":
        return HttpExchange(self, "GET", url, headers, b"", deadlines)

    def request(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, deadlines: Deadlines
    ) -> "HttpExchange":
        return HttpExchange(self, method, url, headers, body, deadlines)

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

    # -- for the exchange

    def take(self, origin: Origin) -> ClientConnection | None:
        """Take an idle connection to an origin, the one used last first, so that surplus connections stay idle and are closed."""
        idle = self._idle.get(origin)
        while idle:
            connection = idle.pop()
            if connection.is_open and connection.loop.time() - connection.idle_since < self._keep_alive:
                return connection
            connection.abort()
        return None

    async def connect(self, origin: Origin, deadlines: Deadlines) -> ClientConnection:
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


class HttpExchange(msgspec.Struct, eq=False):
    """The context manager of one request; leaving it before the end of the response, or being cancelled, closes the connection.

    A class, because a generator is slower and this is used in every turn.
    """

    _client: HttpClient
    _method: str
    _url: str
    _headers: Mapping[str, str]
    _body: bytes
    _deadlines: Deadlines
    _connection: ClientConnection | None = None

    async def __aenter__(self) -> ClientConnection:
        client = self._client
        origin, head, credentials = request_head(self._method, self._url, tuple(self._headers.items()), client.proxies)
        if (trace := TRACE.get()) is not None:
            head = with_headers(head, trace.headers)
        connection = client.take(origin)
        if connection is not None:
            began_at = connection.loop.time()  # the connection's loop: `get_running_loop` costs a system call
        else:
            began_at = asyncio.get_running_loop().time()
            connection = await client.connect(origin, self._deadlines)
        try:
            await connection.send(head, self._body, self._deadlines, began_at, credentials)
            if origin.proxy is not None and connection.status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
                raise ConnectFailed(refused_by(origin.proxy, connection.status))
        except BaseException:
            connection.abort()
            raise
        self._connection = connection
        return connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connection is not None:
            self._connection.leave()


def _where(origin: Origin) -> str:
    """Return the proxy as the beginning of an error message; empty without one."""
    proxy: Proxy | None = origin.proxy
    return "" if proxy is None else f"through {proxy}: "
