"""Charges one chat to its key's allowance: an estimate when it begins, the actual usage when it ends."""

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, ClassVar, Final, Self

from callgate.auth.keys import Caller
from callgate.auth.limits import Amount, Limiter, OverLimit, Reservation
from callgate.conversation.events import ChatEnded, Responder, TurnEnded, TurnStarted
from callgate.conversation.listeners import Handlers, Listener, handles
from callgate.conversation.prices import Price, counted
from callgate.conversation.usage import add_usage

BYTES_PER_TOKEN: Final = 4
"""For the estimate; the provider's count replaces it."""
USUAL_ANSWER: Final = 1024
"""Tokens reserved for an answer where the request sets no maximum."""
LONGEST_ANSWER: Final = 1_000_000
"""The maximum of a reservation; a client may request any number."""


class Tally(Listener):
    """Counts the usage of one chat."""

    __slots__ = ("_asked", "_has_ended", "_sum", "_turns", "answers")

    handlers: ClassVar[Handlers] = {}

    def __init__(self, answers: int = 1) -> None:
        self.answers = answers
        """How many answers its chat has."""
        self._turns: list[tuple[Mapping[str, Any] | None, Responder]] = []
        self._sum: Mapping[str, Any] | None = None
        """The usage of the whole chat, once it has ended."""
        self._asked = 0
        self._has_ended = False

    @handles(handlers, TurnStarted)
    def _turn_started(self, event: TurnStarted) -> None:
        self._asked += 1

    @handles(handlers, TurnEnded)
    def _turn_ended(self, event: TurnEnded) -> None:
        self._asked -= 1
        self._turns.append((event.answer.usage, event.answer.by))

    @handles(handlers, ChatEnded)
    def _chat_ended(self, event: ChatEnded) -> None:
        self._asked = 0
        self._has_ended = True
        self._sum = event.usage

    @property
    def usage(self) -> Mapping[str, Any]:
        usage = self._sum if self._has_ended else add_usage(usage for usage, _ in self._turns)
        return usage or {}

    @property
    def is_partial(self) -> bool:
        """True if a model was asked and did not report its usage."""
        return self._asked > 0 or ((self._has_ended or bool(self._turns)) and not self.usage)

    def cost(self, price: Price, price_of: Callable[[Responder], Price]) -> int:
        """Return the cost in nanodollars: each turn at the price of the deployment that answered it, tokens of no turn that was seen
        here at `price`."""
        nano, prompt, completion = 0, 0, 0
        for usage, by in self._turns:
            if usage:
                nano += price_of(by).of_usage(usage)
                prompt += counted(usage, "prompt_tokens")
                completion += counted(usage, "completion_tokens")
        usage = self.usage
        unseen_prompt = max(counted(usage, "prompt_tokens") - prompt, 0)
        unseen_completion = max(counted(usage, "completion_tokens") - completion, 0)
        return nano + price.of(unseen_prompt, unseen_completion)


class Meter:
    """Charges a request, with one or several chats, to its key's allowance."""

    __slots__ = (
        "_caller",
        "_each",
        "_estimate",
        "_limiter",
        "_price",
        "_price_of",
        "_reservation",
        "_tallies",
        "headers",
    )

    def __init__(
        self,
        limiter: Limiter,
        caller: Caller,
        price: Price,
        prompt_bytes: int,
        max_tokens: int | None,
        choices: int = 1,
        price_of: Callable[[Responder], Price] | None = None,
    ) -> None:
        """`price`: of the model that was asked for, for the estimate. `price_of`: returns that of a deployment that answered, which
        may be another's; `price` where it is None."""
        prompt = prompt_bytes // BYTES_PER_TOKEN
        answer = USUAL_ANSWER if max_tokens is None else min(max_tokens, LONGEST_ANSWER)
        self._limiter, self._caller, self._price = limiter, caller, price
        self._price_of = price_of or (lambda by: price)
        self._each = Amount(prompt + answer, price.of(prompt, answer))
        self._estimate = Amount(self._each.tokens * choices, self._each.nano * choices, choices)
        self._reservation: Reservation | None = None
        self._tallies: list[Tally] = []
        self.headers: Mapping[str, str] = {}
        """The rate-limit headers of the response, or of the refusal."""

    def tally(self, answers: int = 1) -> Tally:
        """Return a listener for one more chat of this request, with a number of answers."""
        tally = Tally(answers)
        self._tallies.append(tally)
        return tally

    def begin_again(self) -> None:
        """Drop the chats so far, which were not answered and are replaced by others."""
        self._tallies.clear()

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
            used = [self._used(tally) for tally in self._tallies]
            total = Amount(sum(each.tokens for each in used), sum(each.nano for each in used))
            self._limiter.settle(self._reservation, total)

    def _used(self, tally: Tally) -> Amount:
        """Return the usage of a chat. A turn that did not end was billed as well, and counts as estimated."""
        usage = tally.usage
        tokens = counted(usage, "prompt_tokens") + counted(usage, "completion_tokens")
        used = Amount(tokens, tally.cost(self._price, self._price_of))
        if tally.is_partial:
            each, answers = self._each, tally.answers
            return Amount(used.tokens + each.tokens * answers, used.nano + each.nano * answers)
        return used
