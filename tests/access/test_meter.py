import pytest

from callgate.access.limits import Amount, MemoryLimiter, Reservation
from callgate.access.meter import LONGEST_ANSWER, USUAL_ANSWER, Meter
from callgate.callers.allowance import Allowance, OverLimit
from callgate.callers.caller import Caller
from callgate.conversation.events import ChatEnded, Ending, EndingKind, Responder, TurnAccount, TurnEnded, TurnStarted
from callgate.conversation.prices import FREE, NANO, Price
from callgate.conversation.usage import MOST_TOKENS, Usage

pytestmark = pytest.mark.anyio

CALLER = Caller("alice", allowance=Allowance(tokens_per_minute=100_000, budget_per_day=10.0))
PRICE = Price(prompt=1e-6, completion=4e-6, cached=1e-7)
USAGE = Usage({"prompt_tokens": 1000, "completion_tokens": 100, "prompt_tokens_details": {"cached_tokens": 500}})


class Noting(MemoryLimiter):
    """A limiter that records its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.reserved: list[Amount] = []
        self.settled: list[Amount] = []

    async def reserve(self, key: str, allowance: Allowance, estimate: Amount) -> Reservation:
        self.reserved.append(estimate)
        return await super().reserve(key, allowance, estimate)

    def settle(self, reservation: Reservation, used: Amount) -> None:
        self.settled.append(used)
        super().settle(reservation, used)


def turn_ended(usage):
    return TurnEnded(0, TurnAccount(("stop",), (), (), (), (), usage, 0.1))


async def test_a_chat_is_settled_with_what_the_provider_counted_and_what_that_costs() -> None:
    limiter = Noting()
    async with Meter(limiter, CALLER, PRICE, 4000, 500) as meter:
        tally = meter.tally()
        tally.handle(TurnStarted(0))
        tally.handle(turn_ended(USAGE))
        tally.handle(ChatEnded(Ending(EndingKind.ANSWERED, "stop"), USAGE))
    assert limiter.reserved == [Amount(1500, round((1000 * 1e-6 + 500 * 4e-6) * NANO))]
    assert limiter.settled == [Amount(1100, round((500 * 1e-6 + 500 * 1e-7 + 100 * 4e-6) * NANO))]


async def test_each_turn_costs_what_the_deployment_that_answered_it_costs() -> None:
    def answered_by(name: str) -> TurnEnded:
        return TurnEnded(
            0, TurnAccount(("stop",), (), (), (), (), Usage({"prompt_tokens": 10}), 0.1, by=Responder(name))
        )

    limiter = Noting()
    prices = {"m": Price(prompt=1e-6), "fallback": Price(prompt=1e-3)}
    async with Meter(limiter, CALLER, prices["m"], 4000, 500, 1, lambda by: prices[by.model]) as meter:
        tally = meter.tally()
        tally.handle(answered_by("m"))
        tally.handle(answered_by("fallback"))
        tally.handle(ChatEnded(Ending(EndingKind.ANSWERED, "stop"), Usage({"prompt_tokens": 27})))
    assert limiter.settled == [Amount(27, round((10 * 1e-6 + 10 * 1e-3 + 7 * 1e-6) * NANO))]


async def test_a_chat_that_ends_before_a_model_was_asked_costs_nothing() -> None:
    limiter = Noting()
    with pytest.raises(RuntimeError):
        async with Meter(limiter, CALLER, PRICE, 400, None):
            raise RuntimeError
    assert limiter.reserved[0].tokens == 100 + USUAL_ANSWER
    assert limiter.settled == [Amount()]


async def test_a_turn_without_a_usage_report_counts_as_estimated_beside_the_counted_ones() -> None:
    limiter = Noting()
    async with Meter(limiter, CALLER, PRICE, 4000, 500) as meter:
        tally = meter.tally()
        tally.handle(TurnStarted(0))
        tally.handle(turn_ended(USAGE))
        tally.handle(TurnStarted(1))
    assert limiter.settled[0].tokens == 1100 + 1500


async def test_a_provider_that_counts_nothing_is_paid_as_estimated() -> None:
    limiter = Noting()
    async with Meter(limiter, CALLER, PRICE, 4000, 500) as meter:
        tally = meter.tally()
        tally.handle(TurnStarted(0))
        tally.handle(turn_ended(None))
        tally.handle(ChatEnded(Ending(EndingKind.ANSWERED, "stop"), None))
    assert limiter.settled[0].tokens == 1500


async def test_impossible_token_counts_are_ignored() -> None:
    limiter = Noting()
    async with Meter(limiter, CALLER, PRICE, 0, 10**30) as meter:
        meter.tally().handle(turn_ended(Usage({"prompt_tokens": 10**30, "completion_tokens": -5})))
    assert limiter.reserved[0].tokens == LONGEST_ANSWER
    assert limiter.settled[0].tokens == MOST_TOKENS
    assert limiter.settled[0].nano < 2**53


async def test_who_is_not_metered_is_not_counted() -> None:
    limiter = Noting()
    async with Meter(limiter, Caller("free"), FREE, 4000, None) as meter:
        tally = meter.tally()
        tally.handle(TurnStarted(0))
    assert (limiter.reserved, dict(meter.headers)) == ([], {})


async def test_a_refusal_has_the_headers_too_and_settles_nothing() -> None:
    limiter = Noting()
    caller = Caller("alice", allowance=Allowance(requests_per_minute=0))
    meter = Meter(limiter, caller, FREE, 0, None)
    with pytest.raises(OverLimit):
        async with meter:
            pass
    assert meter.headers["x-ratelimit-limit-requests"] == "0"
    assert not limiter.settled
