"""Rate limits and budgets counted in Redis, for several processes that serve as one.

One script reads the state of a key and books the reservation, by Redis' own clock, so that two processes cannot both take
the rest and their clocks do not matter. While Redis does not answer, either requests with limits are refused, or each process
counts by itself.
"""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Literal

import structlog

from callgate.auth.limits import (
    Allowance,
    Amount,
    Limiter,
    MemoryLimiter,
    OverLimit,
    Remember,
    Reservation,
    Standing,
    day_of,
    forget,
    headers_of,
    month_of,
    refusal,
)
from callgate.auth.redis_patience import PATIENCE, LimitsRedis, limits_unavailable
from callgate.conversation.prices import NANO

SLOT_SECONDS: Final = 3600
"""The longest time that a chat counts as running that was not settled because its process died."""
KEPT_SECONDS: Final = 40 * 86_400
"""How long an unused key is kept: longer than a month, the longest period that is counted."""

UNKNOWN_SPENDING: Final = 2
"""The script's result where it needs the spending of a key first."""
Recall = Callable[[str, str, str], Awaitable[tuple[int, int] | None]]
"""Returns the spending of a key in a day and a month, in nanodollars; None where it is unknown at the moment."""

log = structlog.get_logger("callgate.limits")

_COMMON: Final = """
local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000
local second = tonumber(clock[1])

local function day_of(at) return math.floor(at / 86400) end

local function month_of(at)
  -- days since 1970 to year and month, by the calendar's 400-year cycle
  local z = math.floor(at / 86400) + 719468
  local era = math.floor(z / 146097)
  local doe = z - era * 146097
  local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524) - math.floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  local mp = math.floor((5 * doy + 2) / 153)
  local month = mp < 10 and mp + 3 or mp - 9
  local year = yoe + era * 400 + (month <= 2 and 1 or 0)
  return string.format('%04d-%02d', year, month)
end

local function whole(number) return string.format('%.0f', number) end

local account, slots = KEYS[1], KEYS[2]
"""

RESERVE: Final = (
    _COMMON
    + """
local rpm, tpm = tonumber(ARGV[1]), tonumber(ARGV[2])
local day_budget, month_budget = tonumber(ARGV[3]), tonumber(ARGV[4])
local tokens, nano = tonumber(ARGV[5]), tonumber(ARGV[6])
local slot, slot_seconds, kept, window = ARGV[7], tonumber(ARGV[8]), tonumber(ARGV[9]), 60
local weight, spent_day, spent_month = tonumber(ARGV[10]), ARGV[11], ARGV[12]

-- what was spent is known elsewhere, and Redis has forgotten it, or never knew
if (day_budget >= 0 or month_budget >= 0) and spent_day ~= '' then
  local known_day = redis.call('HEXISTS', account, 'd:' .. day_of(now)) == 1
  local known_month = redis.call('HEXISTS', account, 'm:' .. month_of(now)) == 1
  if not (known_day and known_month) then
    if spent_day == '?' then return {2, second} end
    redis.call('HSETNX', account, 'd:' .. day_of(now), spent_day)
    redis.call('HSETNX', account, 'm:' .. month_of(now), spent_month)
  end
end

-- what was asked once more because its answer did not come in time is not counted twice
local again = redis.call('ZSCORE', slots, slot)
redis.call('ZREMRANGEBYSCORE', slots, '-inf', now)
local running = redis.call('ZCARD', slots)

local fields = redis.call('HGETALL', account)
local requests, used_tokens, day, month = {}, {}, 0, 0
local all_requests, all_tokens, old = 0, 0, {}
for i = 1, #fields, 2 do
  local kind, at = string.match(fields[i], '^(%a):(.+)$')
  local amount = tonumber(fields[i + 1])
  if kind == 'r' or kind == 't' then
    local when = tonumber(at)
    if when < second - window or when > second + window then -- the clock was set back
      old[#old + 1] = fields[i]
    elseif kind == 'r' then
      requests[#requests + 1] = {when, amount}
      all_requests = all_requests + amount
    else
      used_tokens[#used_tokens + 1] = {when, amount}
      all_tokens = all_tokens + amount
    end
  elseif kind == 'd' then
    if tonumber(at) == day_of(now) then day = amount
    elseif tonumber(at) < day_of(now) - 1 then old[#old + 1] = fields[i] end
  elseif kind == 'm' then
    if at == month_of(now) then month = amount
    elseif at < month_of(now - 86400) then old[#old + 1] = fields[i] end
  end
end
if #old > 0 then redis.call('HDEL', account, unpack(old)) end

local function free_in(amounts, total, need, limit)
  if limit < 0 then return 0 end
  table.sort(amounts, function(a, b) return a[1] < b[1] end)
  local over, last = total + need - limit, 0
  for _, each in ipairs(amounts) do
    if over <= 0 then break end
    over = over - each[2]
    last = each[1] + window + 1 - now
  end
  return math.max(0, math.min(last, window + 1))
end

local function spent_out(budget, spent)
  if budget < 0 then return false end
  return spent >= budget or ((running > 0 or weight > 1) and spent + nano > budget)
end

local refused = 0
if again then -- as it stood before
  all_requests, all_tokens, running = all_requests - weight, all_tokens - tokens, running - 1
  day, month = day - nano, month - nano
elseif (rpm >= 0 and all_requests + weight > rpm)
  or (tpm >= 0 and (all_tokens > 0 or weight > 1) and all_tokens + tokens > tpm)
  or spent_out(day_budget, day) or spent_out(month_budget, month) then
  refused = 1
else
  redis.call('HINCRBY', account, 'r:' .. second, weight)
  if tokens > 0 then redis.call('HINCRBY', account, 't:' .. second, whole(tokens)) end
  if nano > 0 then
    redis.call('HINCRBY', account, 'd:' .. day_of(now), whole(nano))
    redis.call('HINCRBY', account, 'm:' .. month_of(now), whole(nano))
  end
  redis.call('ZADD', slots, now + slot_seconds, slot)
  redis.call('EXPIRE', account, kept)
  redis.call('EXPIRE', slots, kept)
end
return {refused, second, tostring(now), all_requests, all_tokens, whole(day), whole(month), running,
  tostring(free_in(requests, all_requests, weight, rpm)), tostring(free_in(used_tokens, all_tokens, tokens, tpm))}
"""
)

SETTLE: Final = (
    _COMMON
    + """
local slot, at, tokens, nano = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
if redis.call('ZREM', slots, slot) == 0 then return 0 end
local function correct(field, by)
  if by ~= 0 and redis.call('HEXISTS', account, field) == 1 then
    if redis.call('HINCRBY', account, field, whole(by)) < 0 then redis.call('HSET', account, field, 0) end
  elseif by > 0 then
    redis.call('HINCRBY', account, field, whole(by))
  end
end
if second - at <= 60 then correct('t:' .. ARGV[2], tokens) end
correct('d:' .. day_of(at), nano)
correct('m:' .. month_of(at), nano)
return 1
"""
)


class RedisLimiter:
    """Counts in Redis. While Redis is away: `open` counts in this process, `closed` refuses requests with limits."""

    def __init__(
        self,
        url: str,
        *,
        down: Literal["open", "closed"],
        prefix: str = "callgate:",
        remember: Remember = forget,
        recall: Recall | None = None,
    ) -> None:
        """`remember` is called with spending, `recall` to get it where Redis has lost it."""
        self._redis = LimitsRedis(url, counting="alone" if down == "open" else "refused")
        self._client = self._redis.client
        self._reserve = self._client.register_script(RESERVE)
        self._settle = self._client.register_script(SETTLE)
        self._prefix = prefix
        self._remember, self._recall = remember, recall
        self._stands_in: Limiter | None = MemoryLimiter() if down == "open" else None
        self._settling: set[asyncio.Task[None]] = set()

    async def reserve(self, key: str, allowance: Allowance, estimate: Amount) -> Reservation:
        slot = secrets.token_hex(8)
        arguments = [
            _or_none(allowance.requests_per_minute),
            _or_none(allowance.tokens_per_minute),
            _nano(allowance.budget_per_day),
            _nano(allowance.budget_per_month),
            estimate.tokens,
            estimate.nano,
            slot,
            SLOT_SECONDS,
            KEPT_SECONDS,
            estimate.requests,
        ]
        asking = asyncio.get_running_loop().create_task(self._reserved(key, arguments))
        try:
            found = await asyncio.shield(asking)
        except asyncio.CancelledError:
            # The script may have run: its reservation is released, because the request was cancelled.
            self._keep(self._give_back(asking, key, slot, estimate))
            raise
        if found is None:
            return await self._without_redis(key, allowance, estimate)
        refused, second, standing = found[0], int(found[1]), _standing(found)
        if refused:
            # The script refused what `refusal` allows: a difference by rounding.
            raise refusal(allowance, standing, estimate) or OverLimit("requests", "Rate limit reached.", 1.0, {})
        self._spend(key, estimate.nano, second)
        after = Standing(
            now=standing.now,
            requests=standing.requests + estimate.requests,
            tokens=standing.tokens + estimate.tokens,
            day=standing.day,
            month=standing.month,
            running=standing.running,
            requests_free_in=standing.requests_free_in,
            tokens_free_in=standing.tokens_free_in,
        )
        return Reservation(key, estimate, second, headers_of(allowance, after), slot)

    async def _reserved(self, key: str, arguments: list[Any]) -> Any:
        """Run the script with what the key has spent; None when that cannot be found out."""
        found = await self._ask(self._reserve, key, [*arguments, "" if self._recall is None else "?", ""])
        if found is None or found[0] != UNKNOWN_SPENDING or self._recall is None:
            return found
        now = float(found[1])
        spent = await self._recall(key, day_of(now), month_of(now))
        return None if spent is None else await self._ask(self._reserve, key, [*arguments, *spent])

    def _spend(self, key: str, nano: int, at: float) -> None:
        if nano:
            self._remember(key, day_of(at), nano)
            self._remember(key, month_of(at), nano)

    def settle(self, reservation: Reservation, used: Amount) -> None:
        """Settle in the background, so that the response does not wait for Redis."""
        if reservation.local is not None:
            assert self._stands_in is not None
            self._stands_in.settle(reservation.local, used)
            return
        self._keep(self._settle_later(reservation, used))

    async def spent(self, key: str) -> tuple[int, int] | None:
        async def read(*, keys: list[str], args: list[str]) -> Any:
            return await self._client.hmget(keys[0], args)

        now = time.time()
        found = await self._ask(read, key, [f"d:{int(now // 86_400)}", f"m:{month_of(now)}"])
        return None if found is None else (int(found[0] or 0), int(found[1] or 0))

    async def close(self) -> None:
        if self._settling:
            await asyncio.wait(self._settling, timeout=2 * PATIENCE)
        await self._client.aclose()

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name="settling a limit")
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def _give_back(self, asking: "asyncio.Task[Any]", key: str, slot: str, estimate: Amount) -> None:
        found = await asking
        if found is not None and not found[0]:
            await self._settle_later(Reservation(key, estimate, int(found[1]), slot=slot), Amount())

    async def _settle_later(self, reservation: Reservation, used: Amount) -> None:
        tokens, nano = used.tokens - reservation.amount.tokens, used.nano - reservation.amount.nano
        arguments = [reservation.slot, reservation.second, tokens, nano]
        if await self._ask(self._settle, reservation.key, arguments):
            self._spend(reservation.key, nano, reservation.second)

    async def _ask(self, script: Any, key: str, arguments: list[Any]) -> Any:
        """Run the script; None when Redis is away."""
        names = [f"{self._prefix}limits:{{{key}}}", f"{self._prefix}running:{{{key}}}"]
        return await self._redis.ask(lambda: script(keys=names, args=arguments))

    async def _without_redis(self, key: str, allowance: Allowance, estimate: Amount) -> Reservation:
        if self._stands_in is None:
            raise limits_unavailable()
        local = await self._stands_in.reserve(key, allowance, estimate)
        return Reservation(key, estimate, local.second, local.headers, local=local)


def _standing(found: list[Any]) -> Standing:
    now, requests, tokens, day, month, running, requests_free_in, tokens_free_in = found[2:]
    return Standing(
        now=float(now),
        requests=int(requests),
        tokens=int(tokens),
        day=int(day),
        month=int(month),
        running=int(running),
        requests_free_in=float(requests_free_in),
        tokens_free_in=float(tokens_free_in),
    )


def _or_none(limit: int | None) -> int:
    return -1 if limit is None else limit


def _nano(budget: float | None) -> int:
    return -1 if budget is None else round(budget * NANO)
