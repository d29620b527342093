"""Stores the answers of running requests in Redis Streams, for clients that follow them in other processes.

A stream may be incomplete or missing; the ledger has the whole answer at the end.
"""

from typing import Any, Final

from callgate.state.store import StoreError

PATIENCE: Final = 2.0
KEPT_SECONDS: Final = 3600
MOST_BYTES: Final = 4 * 1024 * 1024
"""The limit of one answer; followers get the rest at its end."""
MOST_READ: Final = 100


class RunStreams:
    """One stream for each epoch of a run."""

    def __init__(self, url: str, prefix: str) -> None:
        import redis.asyncio

        self._prefix = prefix
        self._client = redis.asyncio.Redis.from_url(url, socket_timeout=2 * PATIENCE, socket_connect_timeout=PATIENCE)

    async def add(self, id: str, epoch: int, data: bytes) -> None:
        """Add data to a stream. Raises `StoreError`."""
        import redis

        name = self._name(id, epoch)
        try:
            async with self._client.pipeline(transaction=False) as exchange:
                exchange.xadd(name, {"d": data})  # type: ignore[unused-awaitable]  # sent with the rest
                exchange.expire(name, KEPT_SECONDS)  # type: ignore[unused-awaitable]
                await exchange.execute()
        except (redis.RedisError, OSError) as error:
            raise StoreError(f"Redis: {type(error).__name__}") from error

    async def read(self, id: str, epoch: int, after: str, wait: float) -> tuple[str, list[bytes]]:
        """Read the entries after one, with a timeout for the first; return also the id of the last. Raises `StoreError`."""
        import redis

        try:
            streams: Any = await self._client.xread(
                {self._name(id, epoch): after}, count=MOST_READ, block=max(1, int(wait * 1000))
            )
        except (redis.RedisError, OSError) as error:
            raise StoreError(f"Redis: {type(error).__name__}") from error
        if not streams:
            return after, []
        entries = streams[0][1]
        return bytes(entries[-1][0]).decode(), [bytes(fields[b"d"]) for _, fields in entries]

    async def close(self) -> None:
        await self._client.aclose()

    def _name(self, id: str, epoch: int) -> str:
        return f"{self._prefix}stream:{id}:{epoch}"
