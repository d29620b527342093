"""Charges one chat to its key's allowance: an estimate when it begins, the actual usage when it ends."""

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import ClassVar, Final, Self

from callgate.access.limits import Amount, Limiter, Reservation
from callgate.callers.allowance import Allowance, OverLimit
from callgate.callers.caller import Caller, accounts_of
from callgate.conversation.errors import ChatError
from callgate.conversation.events import ChatEnded, Responder, TurnEnded, TurnStarted
from callgate.conversation.listeners import Handlers, Listener, handles
from callgate.conversation.prices import Price
from callgate.conversation.usage import NO_USAGE, TokenCounts, Usage, add_usage

BYTES_PER_TOKEN: Final = 4
"""For the estimate; the provider's count replaces it."""
USUAL_ANSWER: Final = 1024
"""Tokens reserved for an answer where the request sets no maximum."""
LONGEST_ANSWER: Final = 1_000_000
"""The maximum of a reservation; a client may request any number."""


class Tally(Listener):
    """Counts the usage of one chat."""

    __slots__ = ("_asked", "_has_ended", "_hosted", "_sum", "_turns", "answers", "uses")

    handlers: ClassVar[Handlers] = {}

    def __init__(self, answers: int = 1, *, hosted: bool = False) -> None:
        self.answers = answers
        """How many answers its chat has."""
        self._hosted = hosted
        self.uses = 0
        """How often its provider ran tools of its own."""
        self._turns: list[tuple[Usage | None, Responder]] = []
        self._sum: Usage | None = None
        """The usage of the whole chat, once it has ended."""
        self._asked = 0
        self._has_ended = False

    @handles(handlers, TurnStarted)
    def _turn_started(self, event: TurnStarted) -> None:
        self._asked += 1

    @handles(handlers, TurnEnded)
    def _turn_ended(self, event: TurnEnded) -> None:
        self._asked -= 1
        usage = event.answer.usage
        self._turns.append((usage, event.answer.by))
        uses = None if usage is None else usage.hosted_uses()
        if uses is not None:
            self.uses += uses
        elif self._hosted:
            self.uses += self.answers  # not told: one for each answer

    @handles(handlers, ChatEnded)
    def _chat_ended(self, event: ChatEnded) -> None:
        self._asked = 0
        self._has_ended = True
        self._sum = event.usage

    def usage(self) -> Usage | None:
        """Return the usage so far."""
        if self._has_ended:
            return self._sum
        return add_usage(usage for usage, _ in self._turns)

    def is_partial(self) -> bool:
        """True if a model was asked and did not report its usage, in any turn: a blocked answer ends before it would."""
        if self._asked > 0 or any(usage is None for usage, _ in self._turns):
            return True
        return self._has_ended and self._sum is None

    def cost(self, price: Price, price_of: Callable[[Responder], Price]) -> int:
        """Return the cost in nanodollars: each turn at the price of the deployment that answered it, tokens of no turn that was seen
        here at `price`."""
        nano = 0
        prompt = 0
        completion = 0
        for usage, by in self._turns:
            if usage is not None:
                counts = usage.counts()
                nano += price_of(by).of(counts)
                prompt += counts.prompt
                completion += counts.completion
        nano += self.uses * price.of_use()
        total = (self.usage() or NO_USAGE).counts()
        unseen = TokenCounts(max(total.prompt - prompt, 0), max(total.completion - completion, 0))
        return nano + price.of(unseen)


class Meter:
    """Charges a request, with one or several chats, to its key's allowance."""

    __slots__ = (
        "_caller",
        "_charged",
        "_each",
        "_estimate",
        "_hosted",
        "_limiter",
        "_price",
        "_price_of",
        "_reservations",
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
        *,
        hosted: bool = False,
    ) -> None:
        """`hosted`: the request names a tool that its provider runs. `price`: of the model that was asked for, for the estimate. `price_of`: returns that of a deployment that answered, which
        may be another's; `price` where it is None."""
        prompt = prompt_bytes // BYTES_PER_TOKEN
        if max_tokens is None:
            answer = USUAL_ANSWER
        else:
            answer = min(max_tokens, LONGEST_ANSWER)
        self._limiter = limiter
        self._caller = caller
        self._price = price
        self._price_of = price_of or (lambda by: price)
        self._hosted = hosted
        nano = price.of(TokenCounts(prompt, answer))
        if hosted:
            nano += price.of_use()
        self._each = Amount(prompt + answer, nano)
        self._estimate = Amount(self._each.tokens * choices, self._each.nano * choices, choices)
        self._reservations: Sequence[Reservation] = ()
        self._tallies: list[Tally] = []
        self._charged: set[str] = set()
        """The calls of tools that were charged."""
        self.headers: Mapping[str, str] = {}
        """The rate-limit headers of the response, or of the refusal."""

    def tally(self, answers: int = 1) -> Tally:
        """Return a listener for one more chat of this request, with a number of answers."""
        tally = Tally(answers, hosted=self._hosted)
        self._tallies.append(tally)
        return tally

    def begin_again(self) -> None:
        """Drop the chats so far, which were not answered and are replaced by others."""
        self._tallies.clear()

    async def charge(self, key: str, nano: int, /) -> str | None:
        """Charge a call of a tool before it runs. Return why it may not run: its price is more than is left of a budget."""
        if key in self._charged:
            return None
        price = Amount(0, nano, requests=0)
        budgets = [
            (name, Allowance(budget_per_day=allowance.budget_per_day, budget_per_month=allowance.budget_per_month))
            for name, allowance in accounts_of(self._caller)
            if allowance.has_budget
        ]
        try:
            reservations = await self._reserve(budgets, price)
        except OverLimit:
            return "the budget of this key does not allow what the tool costs."
        except ChatError as failure:
            return failure.message
        for reservation in reservations:
            self._limiter.settle(reservation, price)
            self._charged.add(key)
        return None

    async def __aenter__(self) -> Self:
        accounts = [account for account in accounts_of(self._caller) if account[1].is_metered]
        try:
            self._reservations = await self._reserve(accounts, self._estimate)
        except OverLimit as over:
            self.headers = over.headers
            raise
        for reservation in self._reservations:
            self.headers = tighter(self.headers, reservation.headers)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._reservations:
            used = [self._used(tally) for tally in self._tallies]
            uses = sum(tally.uses for tally in self._tallies)
            total = Amount(sum(amount.tokens for amount in used), sum(amount.nano for amount in used), uses=uses)
            for reservation in self._reservations:
                self._limiter.settle(reservation, total)

    async def _reserve(self, accounts: Sequence[tuple[str, Allowance]], amount: Amount) -> Sequence[Reservation]:
        """Take an amount from each account, or raise and take nothing."""
        reservations: list[Reservation] = []
        try:
            for name, allowance in accounts:
                reservations.append(await self._limiter.reserve(name, allowance, amount))
        except BaseException:
            for reservation in reservations:
                self._limiter.settle(reservation, Amount(uses=-amount.requests))
            raise
        return reservations

    def _used(self, tally: Tally) -> Amount:
        """Return the usage of a chat. A turn that did not end was billed as well, and counts as estimated."""
        counts = (tally.usage() or NO_USAGE).counts()
        used = Amount(counts.prompt + counts.completion, tally.cost(self._price, self._price_of))
        if tally.is_partial():
            per_answer = self._each
            answers = tally.answers
            return Amount(used.tokens + per_answer.tokens * answers, used.nano + per_answer.nano * answers)
        return used


def tighter(headers: Mapping[str, str], others: Mapping[str, str]) -> Mapping[str, str]:
    """Return of two accounts' rate-limit headers, by requests and by tokens, those of which less is left."""
    chosen = dict(headers)
    for counter in ("requests", "tokens"):
        remaining = f"x-ratelimit-remaining-{counter}"
        if remaining in others and int(others[remaining]) <= int(headers.get(remaining, others[remaining])):
            chosen |= {name: value for name, value in others.items() if name.endswith(f"-{counter}")}
    return chosen
