"""A store in Redis, shared by all processes with the same server and prefix. Redis expires the entries."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from callgate.state.store import Share, StoreError

PATIENCE = 2.0
"""The timeout of one command in seconds, short because a chat can go on without the store."""

# A hash has the sizes of a share's entries, and their sum under the empty name; a sorted set has their order. Expired entries
# are removed from both by time, which is the same for all entries of a share, unless they were renewed meanwhile. Redis lets
# the two expire one after the other: sizes without their order are of entries that are gone.
_IN_SHARE: Final = """
local value, order, sizes = KEYS[1], KEYS[2], KEYS[3]
local member, bytes, milliseconds, seconds = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local function leave(key)
  redis.call('ZREM', order, key)
  local size = redis.call('HGET', sizes, key)
  if size then redis.call('HINCRBY', sizes, '', '-' .. size) end
  redis.call('HDEL', sizes, key)
end
if redis.call('EXISTS', order) == 0 then redis.call('DEL', sizes) end
if ARGV[8] == 'add' and redis.call('EXISTS', value) == 1 then return 0 end
leave(member)
if not ARGV[5] then
  redis.call('DEL', value)
  return 1
end
for _, key in ipairs(redis.call('ZRANGEBYSCORE', order, '-inf', now - seconds)) do
  if redis.call('EXISTS', ARGV[6] .. key) == 1 then redis.call('ZADD', order, now, key) else leave(key) end
end
redis.call('SET', value, ARGV[5], 'PX', milliseconds)
redis.call('ZADD', order, now, member)
local size = #member + #ARGV[5] + tonumber(ARGV[7])
redis.call('HSET', sizes, member, size)
local held = redis.call('HINCRBY', sizes, '', size)
while held > bytes do
  local oldest = redis.call('ZRANGE', order, 0, 0)[1]
  if not oldest then break end
  leave(oldest)
  redis.call('DEL', ARGV[6] .. oldest)
  held = tonumber(redis.call('HGET', sizes, ''))
end
redis.call('PEXPIRE', order, milliseconds)
redis.call('PEXPIRE', sizes, milliseconds)
return 1
"""


class RedisStore:
    """Connects with the first command, and again after a connection was lost."""

    def __init__(self, url: str, prefix: str = "callgate:") -> None:
        import redis.asyncio
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        self._prefix = prefix
        # One retry, because the server may have closed an idle pooled connection.
        self._client = redis.asyncio.Redis.from_url(
            url, socket_timeout=PATIENCE, socket_connect_timeout=PATIENCE, retry=Retry(NoBackoff(), 1)
        )
        self._script = self._client.register_script(_IN_SHARE)

    async def get(self, key: str) -> bytes | None:
        async with _our_errors():
            value = await self._client.get(self._prefix + key)
        assert value is None or isinstance(value, bytes)
        return value

    async def get_all(self, keys: Sequence[str], *, renew: float) -> list[bytes | None]:
        if not keys:
            return []
        async with _our_errors(), self._client.pipeline(transaction=False) as exchange:
            for key in keys:
                # only queued here; the pipeline sends all of them when it is executed
                exchange.getex(self._prefix + key, px=_milliseconds(renew))  # type: ignore[unused-awaitable]
            return list(await exchange.execute())

    async def put(self, key: str, value: bytes, seconds: float, share: Share | None = None) -> None:
        if share is not None:
            await self._put_in_share(share, key, value, seconds, "put")
            return
        async with _our_errors():
            await self._client.set(self._prefix + key, value, px=_milliseconds(seconds))

    async def add(self, key: str, value: bytes, seconds: float, share: Share | None = None) -> bool:
        if share is not None:
            return await self._put_in_share(share, key, value, seconds, "add")
        async with _our_errors():
            return bool(await self._client.set(self._prefix + key, value, px=_milliseconds(seconds), nx=True))

    async def delete(self, key: str, share: Share | None = None) -> None:
        if share is not None:
            await self._in_share(share, key, 0, 0)
            return
        async with _our_errors():
            await self._client.delete(self._prefix + key)

    async def close(self) -> None:
        await self._client.aclose()

    async def _put_in_share(self, share: Share, key: str, value: bytes, seconds: float, how: str) -> bool:
        times = (_milliseconds(seconds), seconds)
        return await self._in_share(share, key, *times, value, self._prefix, share.per_entry, how)

    async def _in_share(self, share: Share, key: str, *arguments: Any) -> bool:
        keys = [self._prefix + key, f"{self._prefix}share:{share.name}", f"{self._prefix}share_sizes:{share.name}"]
        async with _our_errors():
            return bool(await self._script(keys=keys, args=[key, share.bytes, *arguments]))


@asynccontextmanager
async def _our_errors() -> AsyncIterator[None]:
    import redis

    try:
        yield
    except (redis.RedisError, OSError) as error:
        raise StoreError(f"Redis: {type(error).__name__}: {error}"[:300]) from error


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))
