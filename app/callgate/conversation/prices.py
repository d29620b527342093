"""The price of tokens, and the cost of usage."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeAlias

import msgspec

NANO: Final = 1_000_000_000
"""Costs are whole billionths of a dollar, so that sums are exact: the cheapest token costs about fifty of them."""
MOST_TOKENS: Final = 1_000_000_000
"""Larger token counts are taken for mistakes; they would not fit into the databases."""


class Price(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """US dollars for one token."""

    prompt: float = 0.0
    completion: float = 0.0
    cached: float | None = None
    """For a prompt token that the provider read from its cache; the usual price where None."""

    def of(self, prompt: int, completion: int, cached: int = 0) -> int:
        """Return the cost of token counts in nanodollars."""
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
    """Token counts in the usual format; checking each field in Python takes three times as long."""

    prompt_tokens: _Count = 0
    completion_tokens: _Count = 0
    prompt_tokens_details: _OfPrompt | None = None


FREE: Final = Price()


def counted(usage: Any, name: str) -> int:
    """Return one token count; 0 where the field is missing or no count."""
    if type(usage) is not dict and not isinstance(usage, Mapping):  # the check against an abstract class is slow
        return 0
    value = usage.get(name)
    return min(value, MOST_TOKENS) if type(value) is int and value > 0 else 0
