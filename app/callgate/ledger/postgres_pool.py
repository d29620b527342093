"""Connections to one Postgres server.

asyncpg's own pool guards each loan with a queue, a shield and a proxy, which costs twice what a small statement does. Here
each loan is one statement.
"""

import asyncio
import contextlib
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import asyncpg

IDLE_SECONDS: Final = 300.0
"""After which a connection is not trusted any more: something on the way may have forgotten it."""
CLOSE_SECONDS: Final = 5.0


class ConnectionPool:
    """So many connections at most, each made when it is wanted. The one that was used last is used first."""

    def __init__(self, most: int, url: str, **options: Any) -> None:
        self._most, self._url, self._options = most, url, options
        self._places = asyncio.Semaphore(most)
        self._free: list[tuple[float, asyncpg.Connection[Any]]] = []
        self._closing: set[asyncio.Task[None]] = set()

    async def fetch(self, text: str, *values: Any) -> "list[asyncpg.Record]":
        """Raises whatever asyncpg raises."""
        import asyncpg

        async with self._places:
            connection = None
            while self._free and connection is None:
                used_at, found = self._free.pop()
                if not found.is_closed() and monotonic() - used_at < IDLE_SECONDS:
                    connection = found
                else:
                    self._close(found)
            if connection is None:
                connection = await asyncpg.connect(self._url, **self._options)
            try:
                rows = await connection.fetch(text, *values)
            except asyncpg.ReadOnlySQLTransactionError:
                self._close(connection)  # after a failover: another one may lead to the server that writes now
                raise
            except asyncpg.PostgresError:
                self._free.append((monotonic(), connection))
                raise
            except BaseException:
                self._close(connection)  # the server may be at the statement still
                raise
            self._free.append((monotonic(), connection))
            return rows

    def forget(self) -> None:
        """Use none of the connections again that are free."""
        self._free = [(-inf, connection) for _, connection in self._free]

    async def close(self) -> None:
        with contextlib.suppress(TimeoutError):  # what takes longer ends with its connection
            async with asyncio.timeout(CLOSE_SECONDS):
                for _ in range(self._most):
                    await self._places.acquire()
        while self._free:
            self._close(self._free.pop()[1])
        if self._closing:
            await asyncio.wait(self._closing)

    def _close(self, connection: "asyncpg.Connection[Any]") -> None:
        """In the background: a statement that was given up is first cancelled at the server."""
        import asyncpg

        async def closed() -> None:
            # One that was lost cannot be closed in order, and is aborted.
            with contextlib.suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError):
                await connection.close(timeout=CLOSE_SECONDS)

        task = asyncio.create_task(closed(), name="closing a connection to Postgres")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
