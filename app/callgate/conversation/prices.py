"""The price of tokens, and the cost of usage."""

from collections.abc import Callable
from operator import itemgetter
from typing import Final

import msgspec

from callgate.conversation.usage import COUNTS, TokenCounts

NANO: Final = 1_000_000_000
"""Costs are whole billionths of a dollar, so that sums are exact: the cheapest token costs about fifty of them."""


USUAL_USE: Final = 0.01
"""US dollars for a search that a provider makes, at most of them."""


class Price(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """US dollars for one token."""

    prompt: float = 0.0
    completion: float = 0.0
    cached: float | None = None
    """For a prompt token that the provider read from its cache; the usual price where None."""
    cache_written: float | None = None
    """For a prompt token that the provider wrote to its cache; the usual price where None."""
    hosted_use: float | None = None
    """For one use of a tool that the provider runs; `USUAL_USE` where None."""

    def of_use(self) -> int:
        """Return the cost in nanodollars of one use of a tool that the provider runs."""
        return round((USUAL_USE if self.hosted_use is None else self.hosted_use) * NANO)

    def of(self, counts: TokenCounts) -> int:
        """Return the cost of token counts in nanodollars. A part with a price of its own costs that instead of the usual one."""
        cost = counts.prompt * self.prompt + counts.completion * self.completion
        if _parts(counts) != _NO_PARTS:
            for place, name, whole, usual in _PARTS:
                tokens = counts[place]
                if tokens and (price := getattr(self, name)) is not None:
                    cost += min(tokens, counts[whole]) * (price - getattr(self, usual))
        return round(cost * NANO)


_PARTS: Final = tuple(
    (place, count.price, TokenCounts._fields.index(count.part_of), count.part_of)
    for place, count in enumerate(COUNTS)
    if count.price and count.part_of
)
"""The place in `TokenCounts` and the price of each part that has one, and those of the whole."""
_parts: Final[Callable[[TokenCounts], tuple[int, ...]]] = itemgetter(*(place for place, *_ in _PARTS))
_NO_PARTS: Final = (0,) * len(_PARTS)
FREE: Final = Price()
