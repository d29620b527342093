"""The HTTP client on httptools and bare transports: a keep-alive pool, four deadlines, nothing followed,
nothing inflated, nothing kept. It costs a fifth of what a general client costs, because it can do one thing.

It speaks HTTP/1.1 and knows no proxies; where one is needed, `aiohttp_client` stands in. What is here are the
connections there are; what happens over one of them is in `lean_connection`.
"""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeAlias

import aiohappyeyeballs

from callgate.http.connection import Connection
from callgate.http.interface import KEEP_ALIVE_SECONDS, ConnectFailed, Deadlines, TimedOut, reason
from callgate.http.request_head import Where, prepared

SECOND_ADDRESS_SECONDS = 0.25
"""How long one address of a host is tried before the next is tried beside it."""


AddressInfo: TypeAlias = tuple[int, int, int, str, Any]
"""A line of `getaddrinfo`."""
Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[AddressInfo]]]
"""The addresses of a host, by name or literal, that may be dialled. What else it raises than `OSError` goes through."""


async def resolved(host: str, port: int) -> Sequence[AddressInfo]:
    return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)


class HttpClient:
    """All that is asked through one shares its connections: one per runtime for the models, one for each tool server."""

    def __init__(
        self,
        *,
        tls: ssl.SSLContext | None = None,
        resolve: Resolve = resolved,
        keep_alive: float = KEEP_ALIVE_SECONDS,
    ) -> None:
        self._tls = tls
        self._resolve = resolve
        self._keep_alive = keep_alive
        self._free: dict[Where, deque[Connection]] = {}
        self._all: set[Connection] = set()
        self._gone = asyncio.Event()
        self._sweeping: asyncio.TimerHandle | None = None
        self._closed = False

    def post(self, url: str, headers: Mapping[str, str], body: bytes, deadlines: Deadlines) -> "_Exchange":
        return _Exchange(self, "POST", url, headers, body, deadlines)

    def get(self, url: str, headers: Mapping[str, str], deadlines: Deadlines) -> "_Exchange":
        return _Exchange(self, "GET", url, headers, b"", deadlines)

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

    # -- for the exchange

    def take(self, where: Where) -> Connection | None:
        """A free connection to there. The one used last comes first, so that those of a rush may grow old and go."""
        free = self._free.get(where)
        while free:
            connection = free.pop()
            if connection.is_open and connection.loop.time() - connection.free_since < self._keep_alive:
                return connection
            connection.abort()
        return None

    async def connect(self, where: Where, deadlines: Deadlines) -> Connection:
        if self._closed:
            raise ConnectFailed("the client was closed")
        limit = min(deadlines.connect, deadlines.first_byte, deadlines.total)
        waiting = asyncio.timeout(limit)
        try:
            async with waiting:
                return await self._connected(where)
        except TimeoutError as error:
            if not waiting.expired():
                raise ConnectFailed(reason(error)) from error
            raise TimedOut("connect" if limit == deadlines.connect else "first_byte", limit) from None
        except (OSError, UnicodeError) as error:  # TLS and name lookup fail with kinds of OSError
            raise ConnectFailed(reason(error)) from error

    async def _connected(self, where: Where) -> Connection:
        host, port, secure = where
        loop = asyncio.get_running_loop()
        addresses = await self._resolve(host, port)
        delay = SECOND_ADDRESS_SECONDS if len(addresses) > 1 else None
        sock = await aiohappyeyeballs.start_connection(addresses, happy_eyeballs_delay=delay, loop=loop)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _, connection = await loop.create_connection(
                lambda: Connection(self, where, loop),
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

    # -- for its connections

    def give_back(self, connection: Connection) -> None:
        if self._closed:
            connection.abort()
            return
        connection.free_since = connection.loop.time()
        free = self._free.get(connection.where)
        if free is None:
            free = self._free[connection.where] = deque()
        free.append(connection)
        if self._sweeping is None:
            self._sweeping = connection.loop.call_later(self._keep_alive, self._sweep, connection.loop)

    def lost(self, connection: Connection) -> None:
        self._all.discard(connection)
        if not self._all:
            self._gone.set()
        free = self._free.get(connection.where)
        if free and connection in free:
            free.remove(connection)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close what has been free for too long."""
        oldest = loop.time() - self._keep_alive
        for free in self._free.values():
            while free and free[0].free_since <= oldest:
                free.popleft().abort()
        self._sweeping = None
        if any(self._free.values()):
            self._sweeping = loop.call_later(self._keep_alive / 2, self._sweep, loop)


class _Exchange:
    """The context of one request. A class and not a generator: this is entered for every turn of every chat."""

    __slots__ = ("_body", "_client", "_connection", "_deadlines", "_headers", "_method", "_url")

    def __init__(
        self,
        client: HttpClient,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes,
        deadlines: Deadlines,
    ) -> None:
        self._client = client
        self._method = method
        self._url = url
        self._headers = headers
        self._body = body
        self._deadlines = deadlines

    async def __aenter__(self) -> Connection:
        where, head = prepared(self._method, self._url, tuple(self._headers.items()))
        connection = self._client.take(where)
        if connection is not None:
            asked_at = connection.loop.time()  # its own loop: to ask which one runs is a system call
        else:
            asked_at = asyncio.get_running_loop().time()
            connection = await self._client.connect(where, self._deadlines)
        try:
            await connection.ask(head, self._body, self._deadlines, asked_at)
        except BaseException:
            connection.abort()
            raise
        self._connection = connection
        return connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.leave()
