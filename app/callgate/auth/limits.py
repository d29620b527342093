"""Rate limits and budgets of keys (requests, tokens, money by minute, day and month), counted in one process.

Before a chat an estimate is reserved, and replaced by the actual usage afterwards, so that concurrent chats cannot spend the
same money twice. A minute is the last 60 whole seconds and the current one: no sliding minute has more than is allowed, and
at least 60/61 of the limit can be used. Days and months are in UTC.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from callgate.conversation.errors import ChatError
from callgate.conversation.prices import NANO

WINDOW: Final = 60
KEPT_PERIODS: Final = 8
"""How many days and months of spending are kept: several, in case the clock was wrong and is corrected."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """The limits of one key. None is no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    parallel: int | None = None
    budget_per_day: float | None = None
    """In US dollars."""
    budget_per_month: float | None = None

    @property
    def is_metered(self) -> bool:
        """True if usage has to be counted."""
        return not (
            self.requests_per_minute is None
            and self.tokens_per_minute is None
            and self.budget_per_day is None
            and self.budget_per_month is None
        )


UNLIMITED: Final = Allowance()


@dataclass(frozen=True, slots=True)
class Amount:
    """The amount that a request takes from an allowance."""

    tokens: int = 0
    nano: int = 0
    """Billionths of a dollar."""
    requests: int = 1
    """How many requests it counts as: one for each answer that it wants (`n`)."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """The amount reserved for one chat until it is settled."""

    key: str
    amount: Amount
    second: int
    """When it was made, by the limiter's clock for minutes."""
    headers: Mapping[str, str] = field(default_factory=dict)
    slot: str = ""
    local: "Reservation | None" = None
    """Set where another limiter was used instead."""
    made_at: float = 0.0
    """When it was made, by the wall clock for days and months."""


class OverLimit(ChatError):
    """A 429 with the rate-limit headers."""

    def __init__(self, what: str, message: str, retry_after: float, headers: Mapping[str, str]) -> None:
        money = what == "budget"
        super().__init__(
            429,
            message,
            type="insufficient_quota" if money else "rate_limit_error",
            code="insufficient_quota" if money else "rate_limit_exceeded",
            retry_after=retry_after,
        )
        self.headers = dict(headers)
        if money and retry_after > RESERVED_RETRY:
            # Clients retry a 429 by themselves, within seconds.
            self.headers["x-should-retry"] = "false"


class Limiter(Protocol):
    async def reserve(self, key: str, allowance: Allowance, estimate: Amount) -> Reservation:
        """Take one request and an estimate from the allowance, or raise `OverLimit` and take nothing."""
        ...

    def settle(self, reservation: Reservation, used: Amount) -> None:
        """Replace the estimate by the actual usage. Once for each reservation."""
        ...

    async def spent(self, key: str) -> tuple[int, int] | None:
        """Return a key's spending of today and this month in nanodollars, for keys with a budget; None where it is unknown
        now."""
        ...

    async def close(self) -> None: ...


# The state of one key ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of a key's limits: decides on a request, and fills the rate-limit headers."""

    now: float
    requests: int
    """In the last minute."""
    tokens: int
    day: int
    month: int
    running: int
    """Running chats, whose estimates are part of the spending."""
    requests_free_in: float = 0.0
    """Seconds until one more request fits."""
    tokens_free_in: float = 0.0


def refusal(allowance: Allowance, standing: Standing, estimate: Amount) -> OverLimit | None:
    """Return the error if one more request may not begin, or None. One for `n` answers is treated as `n` requests one after
    the other: all must fit."""
    headers = headers_of(allowance, standing)
    limit = allowance.requests_per_minute
    several = estimate.requests > 1
    if limit is not None and standing.requests + estimate.requests > limit:
        counts_as = f" This one counts as {estimate.requests}, one for each answer." if several else ""
        message = f"Rate limit reached: {limit} request(s) per minute.{counts_as}"
        if estimate.requests > limit:
            headers["x-should-retry"] = "false"  # it will never fit
        return OverLimit("requests", message, standing.requests_free_in, headers)
    limit = allowance.tokens_per_minute
    # A request larger than the whole limit is allowed while nothing else is counted: it could never run otherwise.
    if limit is not None and (standing.tokens or several) and standing.tokens + estimate.tokens > limit:
        return OverLimit("tokens", f"Rate limit reached: {limit} tokens per minute.", standing.tokens_free_in, headers)
    day = _spent_out(allowance.budget_per_day, standing.day, standing.running, estimate)
    if day is not None:
        wait = RESERVED_RETRY if day == "reserved" else seconds_to_next_day(standing.now)
        return OverLimit("budget", "The budget of this key for today is used up.", wait, headers)
    month = _spent_out(allowance.budget_per_month, standing.month, standing.running, estimate)
    if month is not None:
        wait = RESERVED_RETRY if month == "reserved" else seconds_to_next_month(standing.now)
        return OverLimit("budget", "The budget of this key for this month is used up.", wait, headers)
    return None


RESERVED_RETRY: Final = 5.0
"""The `retry-after` in seconds where money is only reserved for running chats."""


def _spent_out(budget: float | None, spent: int, running: int, estimate: Amount) -> str | None:
    """Return `spent` when a budget is used up, `reserved` when running chats may need the rest. A single chat may exceed it."""
    if budget is None:
        return None
    whole = round(budget * NANO)
    if spent >= whole:
        return "spent" if not running else "reserved"
    is_alone = not running and estimate.requests == 1
    return "reserved" if not is_alone and spent + estimate.nano > whole else None


def headers_of(allowance: Allowance, standing: Standing) -> dict[str, str]:
    """Return the rate-limit headers that OpenAI's clients read."""
    headers: dict[str, str] = {}
    for name, limit, used, free_in in (
        ("requests", allowance.requests_per_minute, standing.requests, standing.requests_free_in),
        ("tokens", allowance.tokens_per_minute, standing.tokens, standing.tokens_free_in),
    ):
        if limit is not None:
            headers[f"x-ratelimit-limit-{name}"] = str(limit)
            headers[f"x-ratelimit-remaining-{name}"] = str(max(0, limit - used))
            headers[f"x-ratelimit-reset-{name}"] = f"{math.ceil(free_in)}s"
    return headers


def day_of(now: float) -> str:
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%d")


def month_of(now: float) -> str:
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m")


def seconds_to_next_day(now: float) -> float:
    return 86_400 - now % 86_400


def seconds_to_next_month(now: float) -> float:
    today = datetime.fromtimestamp(now, UTC)
    first = (today.replace(day=1) + timedelta(days=32)).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return first.timestamp() - now


# Counting in this process -----------------------------------------------------------------------


class Window:
    """Counts amounts of the last minute, by second."""

    __slots__ = ("_seconds", "total")

    def __init__(self) -> None:
        self._seconds: dict[int, int] = {}
        self.total = 0

    def move_to(self, now: int) -> None:
        """Drop what is older than a minute. Seconds are in ascending order."""
        while self._seconds and (oldest := next(iter(self._seconds))) < now - WINDOW:
            self.total -= self._seconds.pop(oldest)

    def add(self, second: int, amount: int) -> None:
        self._seconds[second] = self._seconds.get(second, 0) + amount
        self.total += amount

    def correct(self, second: int, by: int) -> None:
        """Correct the amount of a second, if it is still in the window."""
        if second in self._seconds:
            by = max(by, -self._seconds[second])
            self._seconds[second] += by
            self.total += by

    def free_in(self, now: float, need: int, limit: int) -> float:
        """Return the seconds until an amount fits."""
        over = self.total + need - limit
        last = 0.0
        for second, amount in self._seconds.items():
            if over <= 0:
                break
            over -= amount
            last = second + WINDOW + 1 - now
        return max(0.0, last)


Remember = Callable[[str, str, int], None]
"""Called with a key, a period (`2026-11-18`, `2026-11`) and the change of its spending in nanodollars."""


def forget(key: str, period: str, nano: int) -> None:
    """Discard a change of spending."""


class _Account:
    __slots__ = ("requests", "running", "spent", "tokens")

    def __init__(self) -> None:
        self.requests = Window()
        self.tokens = Window()
        self.spent: dict[str, int] = {}
        self.running = 0


class MemoryLimiter:
    """Counts in this process. Spending is passed to `remember`, and is loaded at the next start as `spent`."""

    def __init__(
        self,
        spent: Mapping[tuple[str, str], int] | None = None,
        remember: Remember = forget,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` is for days and months, `monotonic` for minutes, so that setting the clock back blocks no key."""
        self._accounts: dict[str, _Account] = {}
        self._remember = remember
        self._clock, self._monotonic = clock, monotonic
        for (key, period), nano in (spent or {}).items():
            self._account(key).spent[period] = nano

    async def reserve(self, key: str, allowance: Allowance, estimate: Amount) -> Reservation:
        return self.reserve_now(key, allowance, estimate)

    def reserve_now(self, key: str, allowance: Allowance, estimate: Amount) -> Reservation:
        now, moment = self._clock(), self._monotonic()
        second = int(moment)
        account = self._account(key)
        account.requests.move_to(second)
        account.tokens.move_to(second)
        standing = self._standing(account, allowance, estimate, now, moment)
        refused = refusal(allowance, standing, estimate)
        if refused is not None:
            raise refused
        account.requests.add(second, estimate.requests)
        account.tokens.add(second, estimate.tokens)
        account.running += 1
        self._spend(key, account, estimate.nano, now)
        after = self._standing(account, allowance, Amount(), now, moment)
        return Reservation(key, estimate, second, headers_of(allowance, after), made_at=now)

    def settle(self, reservation: Reservation, used: Amount) -> None:
        account = self._account(reservation.key)
        account.running -= 1
        account.tokens.correct(reservation.second, used.tokens - reservation.amount.tokens)
        # Booked on the day of the estimate: a chat over midnight belongs to the day it began on.
        self._spend(reservation.key, account, used.nano - reservation.amount.nano, reservation.made_at)

    async def spent(self, key: str) -> tuple[int, int] | None:
        account, now = self._accounts.get(key), self._clock()
        return (0, 0) if account is None else (account.spent.get(day_of(now), 0), account.spent.get(month_of(now), 0))

    async def close(self) -> None:
        """Do nothing."""

    def _account(self, key: str) -> _Account:
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = _Account()
        return account

    def _standing(
        self, account: _Account, allowance: Allowance, estimate: Amount, now: float, moment: float
    ) -> Standing:
        requests, tokens = allowance.requests_per_minute, allowance.tokens_per_minute
        return Standing(
            now=now,
            requests=account.requests.total,
            tokens=account.tokens.total,
            day=account.spent.get(day_of(now), 0),
            month=account.spent.get(month_of(now), 0),
            running=account.running,
            requests_free_in=0.0 if requests is None else account.requests.free_in(moment, estimate.requests, requests),
            tokens_free_in=0.0 if tokens is None else account.tokens.free_in(moment, estimate.tokens, tokens),
        )

    def _spend(self, key: str, account: _Account, nano: int, at: float) -> None:
        if not nano:
            return
        spent = account.spent
        for period in (day_of(at), month_of(at)):
            spent[period] = max(0, spent.get(period, 0) + nano)
            self._remember(key, period, nano)
        if len(spent) > KEPT_PERIODS:
            latest = {*sorted(spent)[-KEPT_PERIODS:], day_of(at), month_of(at)}
            for period in spent.keys() - latest:
                del spent[period]
