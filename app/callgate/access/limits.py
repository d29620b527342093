"""Rate limits and budgets of keys (requests, tokens, money by minute, day and month): what they allow, and how one process counts.

Before a chat an estimate is reserved, and replaced by the actual usage afterwards, so that concurrent chats cannot spend the
same money twice. A minute is the last 60 whole seconds and the current one: no sliding minute has more than is allowed, and
at least 60/61 of the limit can be used. Days and months are in UTC.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, NamedTuple, Protocol

import msgspec

from callgate.callers.allowance import RESERVED_RETRY, Allowance, OverLimit
from callgate.conversation.errors import ChatError
from callgate.conversation.prices import NANO

WINDOW: Final = 60
SLOT_SECONDS: Final = 3600
"""The longest time that a chat counts as running that was not settled because its process died."""
KEPT_PERIODS: Final = 8
"""How many days and months of spending are kept: several, in case the clock was wrong and is corrected."""


class Amount(msgspec.Struct, frozen=True):
    """The amount that a request takes from an allowance."""

    tokens: int = 0
    nano: int = 0
    """Billionths of a dollar."""
    requests: int = 1
    """How many requests it counts as: one for each answer that it wants (`n`)."""
    uses: int = 0
    """How often a provider ran tools of its own for it: each counts as one more request."""


class Reservation(msgspec.Struct, frozen=True):
    """The amount reserved for one chat until it is settled."""

    key: str
    amount: Amount
    second: int
    """When it was made, by the limiter's clock for minutes."""
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    slot: str = ""
    local: "Reservation | None" = None
    """Set where another limiter was used instead."""
    made_at: float = 0.0
    """When it was made, by the wall clock for days and months."""


UNAVAILABLE_RETRY: Final = 1.0
"""The `retry-after` in seconds where limits cannot be checked."""


def limits_unavailable() -> ChatError:
    """Return the error for a request whose limits cannot be checked."""
    return ChatError(
        503,
        "The limits of this key cannot be checked right now. Try again in a moment.",
        type="server_error",
        code="limits_unavailable",
        retry_after=UNAVAILABLE_RETRY,
    )


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


# What may begin ---------------------------------------------------------------------------------

Counter = Literal["requests", "tokens", "day", "month"]
"""What is counted of a key: requests and tokens of the last minute, spending of today and of this month."""


class Bound(msgspec.Struct, frozen=True):
    """The highest count of a counter at which a request may begin."""

    counter: Counter
    alone: int
    """While no other chat of the key runs."""
    beside: int
    """While others run, whose estimates are part of the spending."""


def bounds_of(allowance: Allowance, estimate: Amount) -> list[Bound]:
    """Return what must hold for a request to begin, the first to be refused first. A limiter compares and counts in one step; all
    that is decided is in these bounds. One request for `n` answers is treated as `n` requests one after the other: all must fit."""
    bounds: list[Bound] = []
    is_single = estimate.requests == 1
    limit = allowance.requests_per_minute
    if limit is not None:
        most = limit - estimate.requests
        bounds.append(Bound("requests", most, most))
    limit = allowance.tokens_per_minute
    if limit is not None:
        most = limit - estimate.tokens
        if is_single:
            most = max(
                most, 0
            )  # one larger than the whole limit may begin while nothing is counted: it could never run otherwise
        bounds.append(Bound("tokens", most, most))
    budgets: list[tuple[Counter, float | None]] = [
        ("day", allowance.budget_per_day),
        ("month", allowance.budget_per_month),
    ]
    for counter, budget in budgets:
        if budget is not None:
            not_used_up = nano_of(budget) - 1
            fits = min(not_used_up, nano_of(budget) - estimate.nano)
            alone = fits
            if is_single:
                alone = not_used_up  # a single chat may exceed what is left
            bounds.append(Bound(counter, alone, fits))
    return bounds


def nano_of(budget: float) -> int:
    return round(budget * NANO)


class Standing(msgspec.Struct, frozen=True):
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

    def exceeded(self, bounds: Iterable[Bound]) -> Counter | None:
        """Return the first counter that is above its bound, if any."""
        counts = {"requests": self.requests, "tokens": self.tokens, "day": self.day, "month": self.month}
        for bound in bounds:
            if self.running:
                most = bound.beside
            else:
                most = bound.alone
            if counts[bound.counter] > most:
                return bound.counter
        return None


def refusal(counter: Counter, allowance: Allowance, standing: Standing, estimate: Amount) -> OverLimit:
    """Return the error for a request that may not begin because of a counter."""
    headers = headers_of(allowance, standing)
    if counter == "requests":
        limit = allowance.requests_per_minute
        counts_as = ""
        if estimate.requests > 1:
            counts_as = f" This one counts as {estimate.requests}, one for each answer."
        if limit is not None and estimate.requests > limit:
            headers["x-should-retry"] = "false"  # it will never fit
        message = f"Rate limit reached: {limit} request(s) per minute.{counts_as}"
        return OverLimit("requests", message, standing.requests_free_in, headers)
    if counter == "tokens":
        message = f"Rate limit reached: {allowance.tokens_per_minute} tokens per minute."
        return OverLimit("tokens", message, standing.tokens_free_in, headers)
    if counter == "day":
        is_used_up = _is_used_up(allowance.budget_per_day, standing.day)
        wait = seconds_to_next_day(standing.now)
        message = "The budget of this key for today is used up."
    else:
        is_used_up = _is_used_up(allowance.budget_per_month, standing.month)
        wait = seconds_to_next_month(standing.now)
        message = "The budget of this key for this month is used up."
    if standing.running or not is_used_up:
        wait = RESERVED_RETRY  # running chats may need less than is reserved for them
    return OverLimit("budget", message, wait, headers)


def _is_used_up(budget: float | None, spent: int) -> bool:
    return budget is not None and spent >= nano_of(budget)


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


# What is counted of one key ---------------------------------------------------------------------


class Window:
    """Counts amounts of the last minute, by second."""

    __slots__ = ("_seconds", "total")

    def __init__(self, seconds: dict[int, int] | None = None) -> None:
        """`seconds`: the amounts of seconds, which are in ascending order."""
        self._seconds: dict[int, int] = seconds or {}
        self.total = sum(self._seconds.values())

    def move_to(self, now: int) -> None:
        """Drop what is older than a minute."""
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

    def free_in(self, now: float, need: int, limit: int | None) -> float:
        """Return the seconds until an amount fits."""
        if limit is None:
            return 0.0
        over = self.total + need - limit
        last = 0.0
        for second, amount in self._seconds.items():
            if over <= 0:
                break
            over -= amount
            last = second + WINDOW + 1 - now
        return max(0.0, last)


class Account:
    """The counts of one key."""

    __slots__ = ("requests", "running", "spent", "tokens")

    def __init__(self) -> None:
        self.requests = Window()
        self.tokens = Window()
        self.spent: dict[str, int] = {}
        """In nanodollars, by day and month."""
        self.running = 0
        """Chats that are reserved and not settled."""

    def refusal(self, allowance: Allowance, estimate: Amount, now: float, at: float) -> OverLimit | None:
        """Return the error if one more request may not begin, or None. `now` is the time by the clock of days and months, `at` by that
        of the minute."""
        standing = self.standing(allowance, estimate, now, at)
        counter = standing.exceeded(bounds_of(allowance, estimate))
        if counter is None:
            return None
        return refusal(counter, allowance, standing, estimate)

    def standing(self, allowance: Allowance, estimate: Amount, now: float, at: float) -> Standing:
        """Return the state of the limits, for a request that takes `estimate`."""
        return Standing(
            now,
            self.requests.total,
            self.tokens.total,
            self.spent.get(day_of(now), 0),
            self.spent.get(month_of(now), 0),
            self.running,
            self.requests.free_in(at, estimate.requests, allowance.requests_per_minute),
            self.tokens.free_in(at, estimate.tokens, allowance.tokens_per_minute),
        )

    def count(self, amount: Amount, now: float, second: int) -> None:
        """Count a request that begins."""
        self.requests.add(second, amount.requests)
        self.tokens.add(second, amount.tokens)
        self.running += 1
        self.spend(periods_of(now), amount.nano)

    def spend(self, periods: Iterable[str], nano: int) -> None:
        for period in periods:
            self.spent[period] = max(0, self.spent.get(period, 0) + nano)

    def headers(self, allowance: Allowance, now: float, at: float) -> dict[str, str]:
        """Return the rate-limit headers of an answer."""
        return headers_of(allowance, self.standing(allowance, Amount(), now, at))


def periods_of(now: float) -> tuple[str, str]:
    """Return the day and the month whose budgets a moment belongs to."""
    return day_of(now), month_of(now)


class Correction(NamedTuple):
    """The change that replaces the estimate of a chat by its actual usage."""

    tokens: int
    nano: int
    requests: int
    periods: tuple[str, str]
    """Those of the estimate: a chat over midnight belongs to the day it began on."""


def correction_of(reservation: Reservation, used: Amount) -> Correction:
    return Correction(
        used.tokens - reservation.amount.tokens,
        used.nano - reservation.amount.nano,
        used.uses,
        periods_of(reservation.made_at),
    )


# Counting in this process -----------------------------------------------------------------------

Remember = Callable[[str, str, int], None]
"""Called with a key, a period (`2026-11-18`, `2026-11`) and the change of its spending in nanodollars."""


def forget(key: str, period: str, nano: int) -> None:
    """Discard a change of spending."""


SpentBefore = Callable[[], Mapping[tuple[str, str], int] | None]
"""Returns what keys had spent in each period before this process began, in nanodollars; None while it cannot be read."""


def nothing_spent() -> Mapping[tuple[str, str], int]:
    """Return the spending of keys that are new."""
    return {}


class MemoryLimiter:
    """Counts in this process. Spending is passed to `remember`, and is loaded at the next start as `spent`. While that cannot be read
    requests of keys with a budget are refused."""

    def __init__(
        self,
        spent: SpentBefore = nothing_spent,
        remember: Remember = forget,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` is for days and months, `monotonic` for minutes, so that setting the clock back blocks no key."""
        self._accounts: dict[str, Account] = {}
        self._remember = remember
        self._clock = clock
        self._monotonic = monotonic
        self._spent_before: SpentBefore | None = spent
        """None once its spending is counted."""
        self._take_in_spending()

    async def reserve(self, key: str, allowance: Allowance, estimate: Amount) -> Reservation:
        return self.reserve_now(key, allowance, estimate)

    def reserve_now(self, key: str, allowance: Allowance, estimate: Amount) -> Reservation:
        if self._spent_before is not None and not self._take_in_spending() and allowance.has_budget:
            raise limits_unavailable()
        now = self._clock()
        moment = self._monotonic()
        second = int(moment)
        account = self._account(key)
        account.requests.move_to(second)
        account.tokens.move_to(second)
        refused = account.refusal(allowance, estimate, now, moment)
        if refused is not None:
            raise refused
        account.count(estimate, now, second)
        self._spent(key, account, periods_of(now), estimate.nano)
        return Reservation(key, estimate, second, account.headers(allowance, now, moment), made_at=now)

    def settle(self, reservation: Reservation, used: Amount) -> None:
        account = self._account(reservation.key)
        correction = correction_of(reservation, used)
        account.running -= 1
        account.tokens.correct(reservation.second, correction.tokens)
        account.requests.correct(reservation.second, correction.requests)
        account.spend(correction.periods, correction.nano)
        self._spent(reservation.key, account, correction.periods, correction.nano)

    async def spent(self, key: str) -> tuple[int, int] | None:
        if not self._take_in_spending():
            return None
        account = self._accounts.get(key)
        if account is None:
            return (0, 0)
        day, month = periods_of(self._clock())
        return (account.spent.get(day, 0), account.spent.get(month, 0))

    async def close(self) -> None:
        """Do nothing."""

    def _take_in_spending(self) -> bool:
        """Count what was spent before; return whether it is known."""
        if self._spent_before is None:
            return True
        spent = self._spent_before()
        if spent is None:
            return False
        self._spent_before = None
        for (key, period), nano in spent.items():
            self._account(key).spend((period,), nano)
        return True

    def _account(self, key: str) -> Account:
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = Account()
        return account

    def _spent(self, key: str, account: Account, periods: tuple[str, str], nano: int) -> None:
        """Tell of spending that was counted, and drop periods of long ago."""
        if not nano:
            return
        for period in periods:
            self._remember(key, period, nano)
        spent = account.spent
        if len(spent) > KEPT_PERIODS:
            latest = {*sorted(spent)[-KEPT_PERIODS:], *periods}
            for period in spent.keys() - latest:
                del spent[period]
