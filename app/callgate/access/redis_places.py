"""Concurrency limits counted in Redis, for several processes that serve as one."""

from typing import Final, Literal

from callgate.access.leased_places import LeasedPlaces
from callgate.access.redis_patience import LimitsRedis

TAKE: Final = """
local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if redis.call('ZSCORE', KEYS[1], ARGV[2]) then return 1 end
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[1]) then return 0 end
redis.call('ZADD', KEYS[1], now + tonumber(ARGV[3]), ARGV[2])
redis.call('PEXPIRE', KEYS[1], math.ceil(tonumber(ARGV[3]) * 1000))
return 1
"""
RENEW: Final = """
local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000
for i = 2, #ARGV do redis.call('ZADD', KEYS[1], now + tonumber(ARGV[1]), ARGV[i]) end
redis.call('PEXPIRE', KEYS[1], math.ceil(tonumber(ARGV[1]) * 1000))
return 1
"""


class RedisPlaces(LeasedPlaces):
    """The slots of all keys. While Redis is away: `open` has each process count alone, `closed` refuses."""

    def __init__(self, url: str, *, down: Literal["open", "closed"], prefix: str = "callgate:") -> None:
        super().__init__(refuses_while_away=down == "closed")
        self._redis = LimitsRedis(url, counting="alone" if down == "open" else "refused")
        self._client = self._redis.client
        self._take = self._client.register_script(TAKE)
        self._renew = self._client.register_script(RENEW)
        self._prefix = prefix

    async def take(self, key: str, slot: str, places: int) -> bool | None:
        answer = await self._redis.ask(
            lambda: self._take(keys=[self._name(key)], args=[places, slot, self.lease_seconds])
        )
        if answer is None:
            return None
        return bool(answer)

    async def renew(self, key: str, slots: list[str]) -> None:
        await self._redis.ask(lambda: self._renew(keys=[self._name(key)], args=[self.lease_seconds, *slots]))

    async def release(self, key: str, slot: str) -> None:
        await self._redis.ask(lambda: self._client.zrem(self._name(key), slot))

    async def close(self) -> None:
        await super().close()
        await self._client.aclose()

    def _name(self, key: str) -> str:
        return f"{self._prefix}slots:{{{key}}}"
