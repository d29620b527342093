"""What one chat takes from its key's allowance: an estimate when it begins, and what it really came to when it ends."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from app.auth.keys import Caller
from app.auth.limits import NANO, Amount, Limiter, OverLimit, Reservation
from app.chat.events import ChatEnded, ChatEvent, TurnEnded, TurnStarted
from app.chat.usage import add_usage

BYTES_PER_TOKEN: Final = 4
"""For a guess before anything was counted; what the provider counts is what is settled."""
USUAL_ANSWER: Final = 1024
"""Tokens reserved for an answer of which the request says no maximum."""


@dataclass(frozen=True, slots=True)
class Price:
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


FREE: Final = Price()


class Meter:
    """Holds one chat to its key's allowance. Also a listener: it hears what the chat uses."""

    __slots__ = ("_asked", "_caller", "_estimate", "_limiter", "_price", "_reservation", "_usages", "headers")

    def __init__(
        self, limiter: Limiter, caller: Caller, price: Price, prompt_bytes: int, max_tokens: int | None
    ) -> None:
        prompt = prompt_bytes // BYTES_PER_TOKEN
        answer = USUAL_ANSWER if max_tokens is None else max_tokens
        self._limiter, self._caller, self._price = limiter, caller, price
        self._estimate = Amount(prompt + answer, price.of(prompt, answer))
        self._reservation: Reservation | None = None
        self._usages: list[Mapping[str, Any] | None] = []
        self._asked = 0
        self.headers: Mapping[str, str] = {}
        """How the key stands, for the answer; of a refusal too."""

    async def __aenter__(self) -> Self:
        allowance = self._caller.allowance
        if allowance.is_metered:
            try:
                self._reservation = await self._limiter.reserve(self._caller.name, allowance, self._estimate)
            except OverLimit as over:
                self.headers = over.headers
                raise
            self.headers = self._reservation.headers
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._reservation is not None:
            self._limiter.settle(self._reservation, self._used())

    def hear(self, event: ChatEvent) -> None:
        match event:
            case TurnStarted():
                self._asked += 1
            case TurnEnded(answer=answer):
                self._asked -= 1
                self._usages.append(answer.usage)
            case ChatEnded(usage=usage):
                self._asked = 0
                self._usages = [usage]

    def _used(self) -> Amount:
        """What was counted. A turn that nobody heard the end of was paid for all the same: it counts as estimated."""
        usage = add_usage(self._usages) or {}
        prompt, completion = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
        details = usage.get("prompt_tokens_details")
        cached = _count(details, "cached_tokens") if isinstance(details, Mapping) else 0
        used = Amount(prompt + completion, self._price.of(prompt, completion, cached))
        if self._asked > 0 or (self._usages and not usage):
            return Amount(used.tokens + self._estimate.tokens, used.nano + self._estimate.nano)
        return used


def _count(usage: Mapping[str, Any], name: str) -> int:
    value = usage.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
