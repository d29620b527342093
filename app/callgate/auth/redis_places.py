"""Concurrency limits of keys, models and tools counted in Redis, for several processes that serve as one.

Each request holds a slot with a lease of half a minute, which is renewed while it runs, so that the slots of a dead process
expire.
"""

import asyncio
import secrets
import time
from collections.abc import Coroutine
from functools import partial
from typing import Any, Final, Literal

import structlog

from callgate.auth.redis_patience import PATIENCE, LimitsRedis, limits_unavailable

LEASE_SECONDS: Final = 30.0
RENEW_SECONDS: Final = 10.0
LOOK_SECONDS: Final = 0.05
"""The interval of attempts of a request that waits for a slot."""

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

log = structlog.get_logger("callgate.limits")


class RedisSlot:
    """The slot of one request."""

    __slots__ = ("_places", "id", "is_wanted", "key")

    def __init__(self, places: "RedisPlaces", key: str) -> None:
        self._places, self.key, self.id = places, key, secrets.token_hex(8)
        self.is_wanted = True

    def leave(self) -> None:
        """Release the slot in the background."""
        self._places.give_back(self)


class RedisPlaces:
    """The slots of all keys. While Redis is away: `open` has each process count alone, `closed` refuses."""

    def __init__(self, url: str, *, down: Literal["open", "closed"], prefix: str = "callgate:") -> None:
        self._redis = LimitsRedis(url, counting="alone" if down == "open" else "refused")
        self._client = self._redis.client
        self._take, self._renew = self._client.register_script(TAKE), self._client.register_script(RENEW)
        self._down, self._prefix = down, prefix
        self._held: dict[str, dict[str, RedisSlot]] = {}
        self._work: set[asyncio.Task[Any]] = set()
        self._renewing: asyncio.Task[None] | None = None

    async def enter(self, key: str, places: int, wait_seconds: float) -> "RedisSlot | bool":
        """Take a slot; False where there was none in time; True where Redis is away and this process should count alone."""
        until = time.monotonic() + wait_seconds
        slot = RedisSlot(self, key)
        asking = asyncio.get_running_loop().create_task(self._taken(slot, places, until))
        try:
            found = await asyncio.shield(asking)
        except asyncio.CancelledError:
            slot.is_wanted = False
            self._keep(self._undo(asking, slot))  # Redis may have taken it already
            raise
        if found is None:
            if self._down == "closed":
                raise limits_unavailable()
            return True
        if not found:
            return False
        self._held.setdefault(key, {})[slot.id] = slot
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.get_running_loop().create_task(self._keep_renewing(), name="slots in Redis")
        return slot

    def give_back(self, slot: RedisSlot) -> None:
        held = self._held.get(slot.key, {})
        held.pop(slot.id, None)
        if not held:
            self._held.pop(slot.key, None)
        self._keep(self._redis.ask(lambda: self._client.zrem(self._name(slot.key), slot.id)))

    async def close(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait({self._renewing})
        if self._work:
            await asyncio.wait(self._work, timeout=4 * PATIENCE)
        await self._client.aclose()

    async def _taken(self, slot: RedisSlot, places: int, until: float) -> bool | None:
        while True:
            given = await self._redis.ask(
                lambda: self._take(keys=[self._name(slot.key)], args=[places, slot.id, LEASE_SECONDS])
            )
            if given or given is None:
                return None if given is None else True
            if time.monotonic() + LOOK_SECONDS > until or not slot.is_wanted:
                return False
            await asyncio.sleep(LOOK_SECONDS)

    async def _undo(self, asking: "asyncio.Task[bool | None]", slot: RedisSlot) -> None:
        if await asking:
            await self._redis.ask(lambda: self._client.zrem(self._name(slot.key), slot.id))

    async def _keep_renewing(self) -> None:
        while self._held:
            await asyncio.sleep(RENEW_SECONDS)
            for key, slots in list(self._held.items()):
                await self._redis.ask(partial(self._renew, keys=[self._name(key)], args=[LEASE_SECONDS, *slots]))

    def _keep(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work, name="giving back a slot")
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    def _name(self, key: str) -> str:
        return f"{self._prefix}slots:{{{key}}}"
