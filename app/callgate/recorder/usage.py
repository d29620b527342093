"""Usage: requests, tokens and cost of each key and model."""

import time
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

import msgspec

from callgate.conversation.prices import NANO, Price
from callgate.conversation.usage import TokenCounts


class KeyUsage(msgspec.Struct):
    """The usage of one model by one key in a day."""

    day: str
    """`2026-11-18`, UTC; or another span of time."""
    key: str
    model: str
    requests: int = 0
    failed: int = 0
    """The requests that ended in an error."""
    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_cached: int = 0
    """Those of `tokens_in` that providers read from their caches."""
    tokens_cache_written: int = 0
    """Those of `tokens_in` that providers wrote to their caches."""
    nano: int = 0
    """The known cost, in billionths of a dollar."""
    unpriced: int = 0
    """The requests with tokens of this model, whose price was not known."""
    unpriced_elsewhere: int = 0
    """The requests with tokens of a fallback whose price was not known."""
    priced_in: int = 0
    """All of `tokens_in` but those of this model without a price."""
    priced_out: int = 0

    def place(self) -> tuple[str, str, str]:
        """Return what it is the usage of."""
        return self.day, self.key, self.model

    def counts(self) -> tuple[int, ...]:
        """Return the columns of `COUNTED`."""
        return _counts(self)

    def add(self, other: "KeyUsage") -> None:
        for name in COUNTED:
            setattr(self, name, getattr(self, name) + getattr(other, name))


_SHOWN: Final = ("requests", "failed", "calls", "tokens_in", "tokens_out", "tokens_cached", "tokens_cache_written")
COUNTED: Final = (*_SHOWN, "nano", "unpriced", "unpriced_elsewhere", "priced_in", "priced_out")
_counts = attrgetter(*COUNTED)


def day_of(moment: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(moment))


def grouped(used: Iterable[KeyUsage], by: str, prices: Mapping[str, Price | None]) -> list[dict[str, Any]]:
    """Add up usage by key, model or day, see `grouped_by`."""
    return [{"name": name, **row} for (name,), row in grouped_by(used, (by,), prices).items()]


def grouped_by(
    used: Iterable[KeyUsage], by: Sequence[str], prices: Mapping[str, Price | None]
) -> dict[tuple[str, ...], dict[str, Any]]:
    """Add up usage by some of key, model and day, in their order. `cost` is the known cost in US dollars, and `unpriced_requests` the
    number of requests with tokens whose price is not known. `prices` are today's by model, for tokens that had none."""
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    nanos: dict[tuple[str, ...], int] = {}
    for usage in used:
        name = tuple(getattr(usage, field) for field in by)
        row = rows.setdefault(name, dict.fromkeys((*_SHOWN, "unpriced_requests"), 0))
        for field in _SHOWN:
            row[field] += getattr(usage, field)
        nano = usage.nano
        unpriced = usage.unpriced_elsewhere
        tokens_in = usage.tokens_in - usage.priced_in
        tokens_out = usage.tokens_out - usage.priced_out
        if tokens_in or tokens_out:
            price = prices.get(usage.model)
            if price is None:
                unpriced += usage.unpriced or max(usage.requests - usage.failed, 1)
            else:
                nano += price.of(TokenCounts(tokens_in, tokens_out))
        row["unpriced_requests"] += unpriced
        nanos[name] = nanos.get(name, 0) + nano
    return {name: {**row, "cost": nanos[name] / NANO} for name, row in sorted(rows.items())}
