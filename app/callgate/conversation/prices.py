"""What tokens cost."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

NANO: Final = 1_000_000_000
"""Money is counted in whole billionths of a dollar: the cheapest token costs some fifty of them, and sums stay exact."""
MOST_TOKENS: Final = 1_000_000_000
"""No count of a provider's means more than this: such a number is a mistake, and would not fit where it is kept."""


class Price(msgspec.Struct, frozen=True, gc=False):
    """US dollars for one token."""

    prompt: float = 0.0
    completion: float = 0.0
    cached: float | None = None
    """For a token of the prompt that the provider had kept; the usual price where None."""

    def of(self, prompt: int, completion: int, cached: int = 0) -> int:
        """What so many tokens cost, in nanodollars."""
        kept = self.prompt if self.cached is None else self.cached
        cached = min(cached, prompt)
        return round(((prompt - cached) * self.prompt + cached * kept + completion * self.completion) * NANO)

    def of_usage(self, usage: Mapping[str, Any]) -> int:
        """What it costs as the provider counted, in nanodollars."""
        cached = 0 if self.cached is None else counted(usage.get("prompt_tokens_details"), "cached_tokens")
        return self.of(counted(usage, "prompt_tokens"), counted(usage, "completion_tokens"), cached)


FREE: Final = Price()


def counted(usage: Any, name: str) -> int:
    """A count of a provider's, as far as it can be one."""
    if type(usage) is not dict and not isinstance(usage, Mapping):  # asking for an abstract class takes long
        return 0
    value = usage.get(name)
    return min(value, MOST_TOKENS) if type(value) is int and value > 0 else 0
