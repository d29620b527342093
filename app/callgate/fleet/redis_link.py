"""The Redis connections of a fleet: one for commands, one for calls, and one for a subscription.

redis-py opens the connections, because it handles addresses, passwords and TLS; commands and replies bypass it. Its client
takes a connection out of a pool for each command, and its parser awaits each line of a reply, which costs several times
what Redis does.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any, Final

PATIENCE: Final = 2.0
"""Seconds for one command, and for a connection."""
MAX_REPLY: Final = 1024 * 1024
"""Bytes of one reply: what workers publish is shorter, and what is longer stands in the ledger."""
MAX_DEPTH: Final = 4
"""Lists in lists; a message of a subscription is one list."""


class RedisLink:
    """Connections that are opened when they are needed, and again where they were lost."""

    def __init__(self, url: str) -> None:
        import redis.asyncio

        pool: Any = redis.asyncio.ConnectionPool
        # `read_reply` reads version 2 of the protocol.
        self._connections = pool.from_url(
            url, protocol=2, socket_timeout=None, socket_connect_timeout=PATIENCE, socket_keepalive=True
        )
        self._making = asyncio.Lock()
        self._wire: _Wire | None = None
        self._unanswered: _Wire | None = None

    async def send(self, *arguments: str | bytes) -> "asyncio.Future[None]":
        """Send a command without a reply, which would wake the event loop. Raises `RedisError` and `OSError` where there is no
        connection. The future is done once the connection is lost, in which case the command may not have arrived."""
        wire = self._unanswered
        if wire is None or wire.lost.done():
            async with asyncio.timeout(PATIENCE), self._making:
                wire = self._unanswered
                if wire is None or wire.lost.done():
                    await self.renew()
                    wire = self._unanswered = await self._connected()
                    wire.on_reply = lambda _: None  # a server that forbids CLIENT REPLY OFF replies anyway
                    wire.send(("CLIENT", "REPLY", "OFF"))
        wire.send(arguments)
        return wire.lost

    async def renew(self) -> None:
        """Open another connection for `send`."""
        wire = self._unanswered
        self._unanswered = None
        if wire is not None:
            await wire.close()

    async def command(self, *arguments: str | bytes) -> Any:
        """Return the reply to a command, which must be idempotent: it is repeated where the connection was lost. Raises
        `RedisError` and `OSError`."""
        try:
            async with asyncio.timeout(PATIENCE):
                if self._wire is not None and not self._wire.lost.done():
                    with contextlib.suppress(ConnectionError):  # repeat it, over a new connection
                        return await self._wire.command(arguments)
                async with self._making:
                    if self._wire is None or self._wire.lost.done():
                        if self._wire is not None:
                            await self._wire.close()
                        self._wire = await self._connected()
                    answer = self._wire.command(arguments)
                return await answer
        except TimeoutError:
            await self.close()  # later replies on it would be as late
            raise

    async def listen(
        self, channel: str, on_message: Callable[[bytes], None], on_listening: Callable[[], None] = lambda: None
    ) -> None:
        """Subscribe to a channel and handle its messages, until `RedisError` or `OSError` is raised. `on_listening` is called once
        Redis has said that it is subscribed."""
        async with asyncio.timeout(PATIENCE):
            wire = await self._connected()

        def take(reply: Any) -> None:
            if isinstance(reply, Exception):
                wire.connection_lost(reply)
            elif reply[0] == b"message":
                on_message(reply[2])
            elif reply[0] == b"subscribe":
                on_listening()

        wire.on_reply = take
        wire.send(("SUBSCRIBE", channel))
        try:
            await wire.lost
        finally:
            await wire.close()

    async def close(self) -> None:
        await self.renew()
        if self._wire is not None:
            await self._wire.close()
            self._wire = None

    async def _connected(self) -> "_Wire":
        connection = self._connections.make_connection()
        await connection.connect()
        return _Wire(connection)


class _Wire(asyncio.Protocol):
    """One connection: commands are pipelined, and replies come in their order."""

    def __init__(self, connection: Any) -> None:
        """Take over the transport of an idle redis-py connection."""
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.lost.add_done_callback(lambda lost: lost.cancelled() or lost.exception())  # marks it as retrieved
        self.on_reply: Callable[[Any], None] = self._answer
        self._connection = connection
        self._asked: deque[asyncio.Future[Any]] = deque()
        self._data = b""
        self._transport: asyncio.Transport = connection._writer.transport  # noqa: SLF001 - not public
        self._transport.set_protocol(self)

    def command(self, arguments: tuple[str | bytes, ...]) -> "asyncio.Future[Any]":
        answer: asyncio.Future[Any] = self.lost.get_loop().create_future()
        self._asked.append(answer)
        self.send(arguments)
        return answer

    def send(self, arguments: tuple[str | bytes, ...]) -> None:
        parts = [b"*%d\r\n" % len(arguments)]
        for argument in arguments:
            if isinstance(argument, str):
                data = argument.encode()
            else:
                data = argument
            parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
        self._transport.write(b"".join(parts))

    def data_received(self, data: bytes) -> None:
        try:
            self._read(data)
        except ValueError as error:
            self._data = b""
            self.connection_lost(error)
            self._transport.abort()

    def _read(self, data: bytes) -> None:
        self._data += data
        at = 0
        while (parsed := read_reply(self._data, at)) is not None:
            reply, at = parsed
            self.on_reply(reply)
        self._data = self._data[at:]
        if len(self._data) > 2 * MAX_REPLY:
            raise ValueError(f"Redis sent a reply of more than {2 * MAX_REPLY} bytes")

    def _answer(self, reply: Any) -> None:
        answer = self._asked.popleft()
        if answer.done():
            return  # its caller was cancelled
        if isinstance(reply, Exception):
            answer.set_exception(reply)
        else:
            answer.set_result(reply)

    def connection_lost(self, error: Exception | None) -> None:
        import redis

        if isinstance(error, (redis.RedisError, OSError)):
            lost = error
        else:
            lost = ConnectionError(error or "closed by Redis")
        for waiting in (*self._asked, self.lost):
            if not waiting.done():
                waiting.set_exception(lost)

    async def close(self) -> None:
        await self._connection.disconnect(nowait=True)
        self._transport.abort()


def read_reply(data: bytes, at: int, depth: int = MAX_DEPTH) -> tuple[Any, int] | None:
    """Return the reply that begins at a place, and its end; None where it is incomplete. Raises `ValueError`, also for what would be
    too long or too deep."""
    end = data.find(b"\r\n", at)
    if end < 0:
        return None
    kind = data[at : at + 1]
    line = data[at + 1 : end]
    at = end + 2
    if kind == b"$":
        size = int(line)
        if size < 0:
            return None, at
        if size > MAX_REPLY:
            raise ValueError(f"Redis sent a reply of {size} bytes")
        if len(data) >= at + size + 2:
            return (data[at : at + size], at + size + 2)
        return None
    if kind == b"*":
        if not depth:
            raise ValueError("Redis sent a reply that nests too deeply")
        items: list[Any] = []
        for _ in range(int(line)):
            if (reply := read_reply(data, at, depth - 1)) is None:
                return None
            item, at = reply
            items.append(item)
        return items, at
    if kind == b":":
        return int(line), at
    if kind == b"+":
        return line, at
    if kind == b"-":
        import redis

        return redis.ResponseError(line.decode(errors="replace")), at
    raise ValueError(f"Redis sent a reply that begins with {kind!r}")
