"""The price of tokens, and the cost of usage."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeAlias

import msgspec

NANO: Final = 1_000_000_000
"""Money is counted in whole billionths of a dollar: the cheapest token costs some fifty of them, and sums stay exact."""
MOST_TOKENS: Final = 1_000_000_000
"""No count of a provider's means more than this: such a number is a mistake, and would not fit where it is kept."""


class Price(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """US dollars for one token."""

    prompt: float = 0.0
    completion: float = 0.0
    cached: float | None = None
    """For a token of the prompt that the provider had kept; the usual price where None."""

    def of(self, prompt: int, completion: int, cached: int = 0) -> int:
        """Return the cost of so many tokens in nanodollars."""
        cost = prompt * self.prompt + completion * self.completion
        if cached and self.cached is not None:
            cost += min(cached, prompt) * (self.cached - self.prompt)
        return round(cost * NANO)

    def of_usage(self, usage: Mapping[str, Any]) -> int:
        """Return the cost of a usage report in nanodollars."""
        try:
            tokens = msgspec.convert(usage, _Tokens)
        except msgspec.ValidationError:
            details = usage.get("prompt_tokens_details")
            cached = counted(details, "cached_tokens")
            return self.of(counted(usage, "prompt_tokens"), counted(usage, "completion_tokens"), cached)
        cached = 0 if tokens.prompt_tokens_details is None else tokens.prompt_tokens_details.cached_tokens
        return self.of(tokens.prompt_tokens, tokens.completion_tokens, cached)


_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]


class _OfPrompt(msgspec.Struct):
    cached_tokens: _Count = 0


class _Tokens(msgspec.Struct):
    """Counts as nearly every provider has them: to look at each here takes three times as long."""

    prompt_tokens: _Count = 0
    completion_tokens: _Count = 0
    prompt_tokens_details: _OfPrompt | None = None


FREE: Final = Price()


def counted(usage: Any, name: str) -> int:
    """A count of a provider's, as far as it can be one."""
    if type(usage) is not dict and not isinstance(usage, Mapping):  # asking for an abstract class takes long
        return 0
    value = usage.get(name)
    return min(value, MOST_TOKENS) if type(value) is int and value > 0 else 0
