"""A pool of connections to one Postgres server.

asyncpg's own pool uses a queue, a shield and a proxy for each acquisition, which costs twice as much as a small statement.
Here a connection is acquired for one statement.
"""

import asyncio
import contextlib
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import asyncpg

IDLE_SECONDS: Final = 300.0
"""How long an idle connection is reused; a firewall may drop it later."""
CLOSE_SECONDS: Final = 5.0


def was_lost(error: Exception) -> bool:
    """True if a connection is of no use after an error, and another one may be."""
    import asyncpg

    if isinstance(error, asyncpg.PostgresError):
        ended = asyncpg.AdminShutdownError | asyncpg.CrashShutdownError | asyncpg.IdleSessionTimeoutError
        return isinstance(error, asyncpg.PostgresConnectionError | ended)
    return not isinstance(error, TimeoutError)


class ConnectionPool:
    """Up to `most` connections, opened when needed. The one that was used last is used first."""

    def __init__(self, most: int, url: str, **options: Any) -> None:
        self._most = most
        self._url = url
        self._options = options
        self._places = asyncio.Semaphore(most)
        self._free: list[tuple[float, asyncpg.Connection[Any]]] = []
        self._closing: set[asyncio.Task[None]] = set()

    async def fetch(self, text: str, *values: Any) -> "list[asyncpg.Record]":
        """Execute a statement. Raises asyncpg's errors."""
        import asyncpg

        async with self._places:
            connection = None
            while self._free and connection is None:
                used_at, free_connection = self._free.pop()
                if not free_connection.is_closed() and monotonic() - used_at < IDLE_SECONDS:
                    connection = free_connection
                else:
                    self._close(free_connection)
            if connection is None:
                connection = await asyncpg.connect(self._url, **self._options)
            try:
                rows = await connection.fetch(text, *values)
            except asyncpg.PostgresError as error:
                # After a failover another connection may lead to the server that takes writes now.
                if was_lost(error) or isinstance(error, asyncpg.ReadOnlySQLTransactionError):
                    self._close(connection)
                else:
                    self._free.append((monotonic(), connection))
                raise
            except BaseException:
                self._close(connection)  # the server may still be executing the statement
                raise
            self._free.append((monotonic(), connection))
            return rows

    def forget(self) -> None:
        """Close all idle connections."""
        self._free = [(-inf, connection) for _, connection in self._free]

    async def close(self) -> None:
        with contextlib.suppress(TimeoutError):  # connections that take longer are aborted
            async with asyncio.timeout(CLOSE_SECONDS):
                for _ in range(self._most):
                    await self._places.acquire()
        while self._free:
            self._close(self._free.pop()[1])
        if self._closing:
            await asyncio.wait(self._closing)

    def _close(self, connection: "asyncpg.Connection[Any]") -> None:
        """Close a connection in the background, because its statement is first cancelled at the server."""
        import asyncpg

        async def closed() -> None:
            # A lost connection cannot be closed in order, and is aborted.
            with contextlib.suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError):
                await connection.close(timeout=CLOSE_SECONDS)

        task = asyncio.create_task(closed(), name="closing a connection to Postgres")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
