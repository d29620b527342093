"""A store in Redis, shared by all processes that name the same server and prefix. Redis itself lets things expire."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from callgate.stores.store import StoreError

PATIENCE = 2.0
"""Seconds for one command. A chat can go on without what is kept here, so it does not wait long for it."""


class RedisStore:
    """Connects when it is first asked, and again after a connection was lost."""

    def __init__(self, url: str, prefix: str = "callgate:") -> None:
        import redis.asyncio
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        self._prefix = prefix
        # One retry, because a pooled connection may have been closed by the server while it lay idle.
        self._client = redis.asyncio.Redis.from_url(
            url, socket_timeout=PATIENCE, socket_connect_timeout=PATIENCE, retry=Retry(NoBackoff(), 1)
        )

    async def get(self, key: str) -> bytes | None:
        async with _our_errors():
            found = await self._client.get(self._prefix + key)
        assert found is None or isinstance(found, bytes)
        return found

    async def get_all(self, keys: Sequence[str], *, renew: float) -> list[bytes | None]:
        if not keys:
            return []
        async with _our_errors(), self._client.pipeline(transaction=False) as exchange:
            for key in keys:
                # only taken down here: a pipeline sends all of them when it is executed
                exchange.getex(self._prefix + key, px=_milliseconds(renew))  # type: ignore[unused-awaitable]
            return list(await exchange.execute())

    async def put(self, key: str, value: bytes, seconds: float) -> None:
        async with _our_errors():
            await self._client.set(self._prefix + key, value, px=_milliseconds(seconds))

    async def add(self, key: str, value: bytes, seconds: float) -> bool:
        async with _our_errors():
            return bool(await self._client.set(self._prefix + key, value, px=_milliseconds(seconds), nx=True))

    async def delete(self, key: str) -> None:
        async with _our_errors():
            await self._client.delete(self._prefix + key)

    async def close(self) -> None:
        await self._client.aclose()


@asynccontextmanager
async def _our_errors() -> AsyncIterator[None]:
    import redis

    try:
        yield
    except (redis.RedisError, OSError) as error:
        raise StoreError(f"Redis: {type(error).__name__}: {error}"[:300]) from error


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))
