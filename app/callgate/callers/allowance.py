"""The limits of a caller, and the error of a request beyond them."""

from collections.abc import Mapping
from typing import Final

import msgspec

from callgate.conversation.errors import ChatError

RESERVED_RETRY: Final = 5.0
"""The `retry-after` in seconds where money is only reserved for running chats."""


class Allowance(msgspec.Struct, frozen=True):
    """The limits of one key. None is no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    parallel: int | None = None
    budget_per_day: float | None = None
    """In US dollars."""
    budget_per_month: float | None = None

    @property
    def has_budget(self) -> bool:
        """True if what it spends is limited."""
        return self.budget_per_day is not None or self.budget_per_month is not None

    @property
    def is_metered(self) -> bool:
        """True if usage has to be counted."""
        return not (self.requests_per_minute is None and self.tokens_per_minute is None and not self.has_budget)


UNLIMITED: Final = Allowance()


class OverLimit(ChatError):
    """A 429 with the rate-limit headers."""

    def __init__(self, what: str, message: str, retry_after: float, headers: Mapping[str, str]) -> None:
        money = what == "budget"
        if money:
            kind = code = "insufficient_quota"
        else:
            kind = "rate_limit_error"
            code = "rate_limit_exceeded"
        super().__init__(
            429,
            message,
            type=kind,
            code=code,
            retry_after=retry_after,
        )
        self.headers = dict(headers)
        if money and retry_after > RESERVED_RETRY:
            # Clients retry a 429 by themselves, within seconds.
            self.headers["x-should-retry"] = "false"
