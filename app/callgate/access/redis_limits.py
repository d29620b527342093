"""Rate limits and budgets counted in Redis, for several processes that serve as one.

Redis keeps numbers and changes them; what they mean is decided in `limits`. One script reads what is counted of a key and adds to
it, unless a count is above the bound that it was given: in one step and by Redis' own clock, so that two processes cannot both
take the rest and their clocks do not matter.
While Redis does not answer, either requests with limits are refused, or each process counts by itself.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal

import msgspec

from callgate.access.limits import (
    SLOT_SECONDS,
    WINDOW,
    Account,
    Amount,
    Bound,
    Correction,
    Counter,
    MemoryLimiter,
    Remember,
    Reservation,
    Window,
    bounds_of,
    day_of,
    forget,
    month_of,
    periods_of,
    refusal,
)
from callgate.access.redis_patience import LimitsRedis
from callgate.access.shared_limits import JointLimiter, Recall
from callgate.callers.allowance import Allowance, OverLimit
from callgate.untrusted.messagepack import PackDoor, open_pack
from callgate.untrusted.readers import msgpack_reader

KEPT_SECONDS: Final = 40 * 86_400
"""How long an unused key is kept: longer than a month, the longest period that is counted."""
DAY: Final = 86_400
MOST_QUESTIONS: Final = 4
"""How often Redis is asked about one request: more than once where a day has begun, or where it does not know what was spent."""

ADD: Final = """
-- Adds to what is counted, unless a count is above its bound. Returns what was done, the time, how many chats run, and the counts.
local account, slots = KEYS[1], KEYS[2]
local ask = cjson.decode(ARGV[1])
local clock = redis.call('TIME')
local second = tonumber(clock[1])
local now = second + tonumber(clock[2]) / 1000000
if second < ask.since or second >= ask.before then return {'another day', clock[1], clock[2]} end

for field, amount in pairs(ask.initial) do redis.call('HSETNX', account, field, amount) end
for _, field in ipairs(ask.needed) do
  if redis.call('HEXISTS', account, field) == 0 then return {'unknown', clock[1], clock[2]} end
end

local again = redis.call('ZSCORE', slots, ask.slot) -- its answer did not come in time, and it is asked once more
redis.call('ZREMRANGEBYSCORE', slots, '-inf', now)
local running = redis.call('ZCARD', slots)

local all, old, sums, counts = redis.call('HGETALL', account), {}, {}, {}
for _, kind in ipairs(ask.kinds) do counts[kind] = {} end
for i = 1, #all, 2 do
  local field, amount = all[i], tonumber(all[i + 1])
  local kind, at = string.match(field, '^(%a):(.+)$')
  local is_old
  if ask.oldest[kind] then is_old = at < ask.oldest[kind]
  else is_old = math.abs(tonumber(at) - second) > ask.window end -- ahead of it where the clock was set back
  if is_old then
    old[#old + 1] = field
  else
    local same = counts[kind]
    same[#same + 1], same[#same + 2] = tonumber(at) or at, amount
    sums[field], sums[kind] = amount, (sums[kind] or 0) + amount
  end
end
if #old > 0 then redis.call('HDEL', account, unpack(old)) end
local by_kind = {}
for i, kind in ipairs(ask.kinds) do by_kind[i] = counts[kind] end
local answer = {'again', clock[1], clock[2], running, cmsgpack.pack(by_kind)}
if again then return answer end

for _, bound in ipairs(ask.bounds) do
  local most = bound.alone
  if running > 0 then most = bound.beside end
  if (sums[bound.of] or 0) > most then
    answer[1] = bound.counter
    return answer
  end
end
for kind, amount in pairs(ask.in_second) do redis.call('HINCRBY', account, kind .. ':' .. second, amount) end
for field, amount in pairs(ask.add) do redis.call('HINCRBY', account, field, amount) end
redis.call('ZADD', slots, now + ask.slot_seconds, ask.slot)
redis.call('EXPIRE', account, ask.kept)
redis.call('EXPIRE', slots, ask.kept)
answer[1] = 'added'
return answer
"""

CORRECT: Final = """
-- Changes counts of a chat that has ended, none below zero, once for each slot.
if redis.call('ZREM', KEYS[2], ARGV[1]) == 0 then return 0 end
for i = 2, #ARGV, 2 do
  if redis.call('HINCRBY', KEYS[1], ARGV[i], ARGV[i + 1]) < 0 then redis.call('HSET', KEYS[1], ARGV[i], 0) end
end
return 1
"""


RAISE: Final = """
-- Raises counts to amounts that were spent. One that is not there is left for who recalls it.
for i = 1, #ARGV, 2 do
  local count = redis.call('HGET', KEYS[1], ARGV[i])
  if count and tonumber(count) < tonumber(ARGV[i + 1]) then redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
end
return 1
"""


COUNTS: Final = PackDoor(name="counts of a key", bytes=64 * 1024)
_COUNTS: Final = msgpack_reader(list[list[Any]])
"""For each kind a second, a day or a month, its amount, the next one, and so on."""


class _CountBound(msgspec.Struct):
    """A bound of the sum of a kind, or of one field."""

    counter: Counter
    of: str
    alone: int
    beside: int


class _Question(msgspec.Struct, kw_only=True):
    """What the script is asked to do. Fields of the hash are `r:` and `t:` with a second, for requests and tokens, `d:` with a day and
    `m:` with a month."""

    kinds: tuple[str, ...] = ("r", "t", "d", "m")
    """The order in which the counts are returned."""
    slot: str
    slot_seconds: int = SLOT_SECONDS
    kept: int = KEPT_SECONDS
    window: int = WINDOW
    since: int
    """The seconds of Redis' clock for which the question is meant."""
    before: int
    oldest: dict[str, str]
    """The first day and month that are kept."""
    needed: list[str]
    """Fields without which is not counted, because they are known elsewhere: Redis may have lost them."""
    initial: dict[str, str]
    """Their values, where they are missing."""
    bounds: list[_CountBound]
    in_second: dict[str, str]
    """Amounts by kind, added to the current second."""
    add: dict[str, str]
    """Amounts by field."""


class RedisLimiter(JointLimiter):
    """Counts in Redis. While Redis is away: `open` counts in this process, `closed` refuses requests with limits."""

    def __init__(
        self,
        url: str,
        *,
        down: Literal["open", "closed"],
        prefix: str = "callgate:",
        remember: Remember = forget,
        recall: Recall | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`remember` is called with spending, `recall` to get it where Redis has lost it. `clock` is this process's, which may be
        wrong."""
        if down == "open":
            super().__init__(remember, MemoryLimiter(remember=remember), recall)
            self._redis = LimitsRedis(url, counting="alone")
        else:
            super().__init__(remember, None, recall)
            self._redis = LimitsRedis(url, counting="refused")
        self._client = self._redis.client
        self._add = self._client.register_script(ADD)
        self._correct = self._client.register_script(CORRECT)
        self._raise = self._client.register_script(RAISE)
        self._prefix = prefix
        self._clock = clock
        self._ahead = 0.0
        """The seconds by which Redis' clock was ahead of ours when it had another day."""

    async def count(
        self, key: str, allowance: Allowance, estimate: Amount, slot: str
    ) -> Reservation | OverLimit | None:
        bounds = bounds_of(allowance, estimate)
        spent: tuple[int, int] | None = None
        for _ in range(MOST_QUESTIONS):
            today = self._clock() + self._ahead
            question = self._question(bounds, estimate, slot, today, spent)
            reply = await self._ask(self._add, key, msgspec.json.encode(question))
            if reply is None:
                return None
            done = reply[0].decode()
            now = int(reply[1]) + int(reply[2]) / 1e6
            if done == "another day":
                self._ahead = now - self._clock()
                spent = None
            elif done == "unknown":
                assert self.recall is not None, "nothing is needed without it"
                spent = await self.recall(key, *periods_of(now))
                if spent is None:
                    return None
            else:
                account = _account(reply[4], running=reply[3])
                return _outcome(done, key, account, allowance, estimate, now, slot)
        return None

    async def correct(self, reservation: Reservation, correction: Correction) -> bool | None:
        changes: list[str | int] = []
        if correction.tokens:
            changes += [f"t:{reservation.second}", correction.tokens]
        if correction.requests:
            changes += [f"r:{reservation.second}", correction.requests]
        if correction.nano:
            for field in _fields_of(reservation.made_at):
                changes += [field, correction.nano]
        answer = await self._ask(self._correct, reservation.key, reservation.slot, *changes)
        if answer is None:
            return None
        return bool(answer)

    async def raise_to(self, key: str, spent: tuple[int, int]) -> bool | None:
        day, month = _fields_of(self._clock() + self._ahead)
        if await self._ask(self._raise, key, day, spent[0], month, spent[1]) is None:
            return None
        return True

    async def spent(self, key: str) -> tuple[int, int] | None:
        async def read(*, keys: list[str], args: tuple[str, ...]) -> Any:
            return await self._client.hmget(keys[0], args)

        reply = await self._ask(read, key, *_fields_of(self._clock() + self._ahead))
        if reply is None:
            return None
        return (int(reply[0] or 0), int(reply[1] or 0))

    async def close(self) -> None:
        await super().close()
        await self._client.aclose()

    def _question(
        self, bounds: list[Bound], estimate: Amount, slot: str, now: float, spent: tuple[int, int] | None
    ) -> _Question:
        """Return the question about a request, for the day of `now`. `spent` is what was recalled."""
        day, month = _fields_of(now)
        kinds: dict[Counter, str] = {"requests": "r", "tokens": "t", "day": day, "month": month}
        has_budget = any(bound.counter in {"day", "month"} for bound in bounds)
        yesterday = now - DAY
        started = int(now // DAY) * DAY
        needed: list[str] = []
        if has_budget and self.recall is not None:
            needed = [day, month]
        initial: dict[str, str] = {}
        if spent is not None:
            initial = {day: str(spent[0]), month: str(spent[1])}
        in_second = {"r": str(estimate.requests)}
        if estimate.tokens:
            in_second["t"] = str(estimate.tokens)
        add: dict[str, str] = {}
        if estimate.nano:
            add = {day: str(estimate.nano), month: str(estimate.nano)}
        return _Question(
            slot=slot,
            since=started,
            before=started + DAY,
            oldest={"d": str(int(yesterday // DAY)), "m": month_of(yesterday)},
            needed=needed,
            initial=initial,
            bounds=[_CountBound(bound.counter, kinds[bound.counter], bound.alone, bound.beside) for bound in bounds],
            in_second=in_second,
            add=add,
        )

    async def _ask(self, script: Any, key: str, *arguments: Any) -> Any:
        """Run the script; None when Redis is away."""
        names = [f"{self._prefix}limits:{{{key}}}", f"{self._prefix}running:{{{key}}}"]
        return await self._redis.ask(lambda: script(keys=names, args=arguments))


def _outcome(
    done: str, key: str, account: Account, allowance: Allowance, estimate: Amount, now: float, slot: str
) -> Reservation | OverLimit:
    """Return what became of a request. `account` is as it was before."""
    if done not in {"added", "again"}:
        counter = msgspec.convert(done, Counter)
        return refusal(counter, allowance, account.standing(allowance, estimate, now, now), estimate)
    second = int(now)
    if done == "added":
        account.count(estimate, now, second)
    return Reservation(key, estimate, second, account.headers(allowance, now, now), slot, made_at=now)


def _account(counts: bytes, running: int) -> Account:
    """Read the counts of a key."""
    requests, tokens, days, months = map(_pairs, _COUNTS(open_pack(counts, COUNTS)))
    account = Account()
    account.requests = Window(dict(sorted(requests)))
    account.tokens = Window(dict(sorted(tokens)))
    account.spent = {day_of(day * DAY): nano for day, nano in days} | dict(months)
    account.running = running
    return account


def _pairs(values: list[Any]) -> Iterator[tuple[Any, int]]:
    return zip(values[::2], values[1::2], strict=True)


def _fields_of(now: float) -> tuple[str, str]:
    """Return the fields with the spending of the day and the month."""
    return f"d:{int(now // DAY)}", f"m:{month_of(now)}"
