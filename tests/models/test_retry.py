"""Repetition, fallbacks and the budget; time and chance are the tests' own."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from callgate.conversation.attempts import Attempts
from callgate.conversation.errors import BrokenOff, ChatError
from callgate.conversation.events import (
    CallDelta,
    Finished,
    ModelEvent,
    ProviderError,
    ProviderHead,
    Responder,
    TextDelta,
)
from callgate.conversation.ports import hand_nothing
from callgate.conversation.usage import Usage
from callgate.models.deployments import Cooldown, Deployment, DeploymentPool
from callgate.models.errors import UpstreamError
from callgate.models.retry import RetryBudget, RetryContext, RetryingModel, RetryPolicy
from tests.models.wire import asking

pytestmark = pytest.mark.anyio

ANSWER: list[list[ModelEvent]] = [[ProviderHead(id="1")], [TextDelta("hello")], [Finished("stop")]]


def passing(retry_after=None):
    return UpstreamError(503, "busy", again=True, retry_after=retry_after)


def lasting():
    return UpstreamError(502, "wrong key", code="upstream_auth")


def mistake():
    return UpstreamError(400, "bad", elsewhere=False)


class Scripted:
    """Each ask takes the next script: an error at once, or batches with an error among them."""

    def __init__(self, *scripts, name="m"):
        self.name = name
        self.scripts = list(scripts)
        self.asked = 0
        self.open = 0
        self.opened = asyncio.Event()

    @asynccontextmanager
    async def send(self, request):
        script = self.scripts[min(self.asked, len(self.scripts) - 1)]
        self.asked += 1
        if isinstance(script, Exception):
            raise script
        self.open += 1
        self.opened.set()
        try:
            yield Batches(script)
        finally:
            self.open -= 1


class Batches:
    reason_is_raw = True
    hand_to = hand_nothing

    def __init__(self, script):
        self._script = list(script)

    def __aiter__(self):
        return self

    async def __anext__(self):
        if not self._script:
            raise StopAsyncIteration
        step = self._script.pop(0)
        if isinstance(step, Exception):
            raise step
        if isinstance(step, asyncio.Event):
            await step.wait()
            return await self.__anext__()
        return step


class World:
    def __init__(self, budget=None, cooldown=0):
        self.cooldown = cooldown
        self.now = 1000.0
        self.waits = []
        self.retries = []
        self.circumstances = RetryContext(
            budget or RetryBudget(clock=lambda: self.now), lambda: self.now, self.sleep, lambda: 0.5
        )

    async def sleep(self, seconds):
        self.waits.append(seconds)
        self.now += seconds

    async def on_retry(self, retry):
        self.retries.append(retry)

    def model(self, *pools, **policy):
        made = [
            DeploymentPool(
                f"p{i}", [self.deployment(f"p{i}", one) for one in (pool if isinstance(pool, list) else [pool])]
            )
            for i, pool in enumerate(pools)
        ]
        return RetryingModel("m", made, self.circumstances, RetryPolicy(**policy))

    def deployment(self, name, model):
        return Deployment(model, Responder(name), cooldown=Cooldown(self.cooldown, clock=lambda: self.now))

    async def turn_of(self, model):
        async with model.send(asking(), attempts := Attempts(0, self.on_retry)) as answer:
            events = [event async for batch in answer for event in batch]
        attempts.succeeded(gave_reason=True)
        return events


@pytest.fixture
def world():
    return World()


async def test_an_answer_that_begins_is_given_out_from_its_first_batch(world):
    one = Scripted(ANSWER)
    assert await world.turn_of(world.model(one)) == [event for batch in ANSWER for event in batch]
    assert (one.asked, one.open, world.retries) == (1, 0, [])


async def test_the_raw_finish_reason_comes_from_the_wrapped_model_when_it_is_asked_for(world):
    async with world.model(Scripted(ANSWER)).send(asking()) as answer:
        assert answer.reason_is_raw
        answer._answer.reason_is_raw = False
        assert not answer.reason_is_raw


@pytest.mark.parametrize(
    "failure",
    [
        passing(),
        [passing()],
        [[ProviderHead(id="1")], passing()],
        [BrokenOff("cut", transport_error=True)],
        [[ProviderHead(id="1")], BrokenOff("cut", transport_error=False)],
        [[ProviderHead(id="1"), Usage({})]],
        [[ProviderHead(id="1")], [ProviderError("oops", {"error": "oops"})]],
        [],
    ],
)
async def test_what_fails_before_the_first_content_is_asked_again(world, failure):
    one = Scripted(failure, ANSWER)
    assert TextDelta("hello") in await world.turn_of(world.model(one))
    assert (one.asked, one.open) == (2, 0)
    assert [(retry.number, bool(retry.reason)) for retry in world.retries] == [(1, True), (2, False)]


async def test_nothing_is_repeated_once_content_was_passed_on(world):
    one = Scripted([[TextDelta("hel")], BrokenOff("cut", transport_error=True)], ANSWER)
    with pytest.raises(BrokenOff):
        await world.turn_of(world.model(one))
    assert (one.asked, one.open) == (1, 0)


async def test_a_mistake_of_the_clients_is_not_repeated_anywhere(world):
    one, other = Scripted(mistake()), Scripted(ANSWER)
    with pytest.raises(ChatError, match="bad"):
        await world.turn_of(world.model(one, other))
    assert (one.asked, other.asked) == (1, 0)


async def test_waits_grow_are_random_and_end_with_the_tries(world):
    one = Scripted(passing())
    with pytest.raises(ChatError, match="busy"):
        await world.turn_of(world.model(one, tries=5, first_wait=1, longest_wait=3))
    assert world.waits == [0.5, 1.0, 1.5, 1.5]
    assert [(retry.number, retry.by.model, retry.wait) for retry in world.retries] == [
        (1, "p0", 0),
        (2, "p0", 0.5),
        (3, "p0", 1),
        (4, "p0", 1.5),
        (5, "p0", 1.5),
    ]


async def test_retry_after_is_honoured_with_some_scatter_on_top(world):
    await world.turn_of(world.model(Scripted(passing(retry_after=3), ANSWER)))
    assert world.waits == [3.25]


async def test_a_retry_after_beyond_the_deadline_goes_to_the_fallback_at_once(world):
    one, other = Scripted(passing(retry_after=300)), Scripted(ANSWER)
    await world.turn_of(world.model(one, other))
    assert (one.asked, other.asked, world.waits) == (1, 1, [])


async def test_a_retry_after_beyond_the_deadline_without_fallback_is_sent_to_the_client(world):
    with pytest.raises(ChatError) as caught:
        await world.turn_of(world.model(Scripted(passing(retry_after=300))))
    assert caught.value.retry_after == 300
    assert world.waits == []


async def test_a_refused_key_is_not_tried_again_but_the_fallback_is(world):
    one, other = Scripted(lasting()), Scripted(ANSWER)
    await world.turn_of(world.model(one, other))
    assert (one.asked, other.asked, world.waits) == (1, 1, [])


async def test_another_deployment_of_the_name_is_asked_without_waiting(world):
    one, two = Scripted(passing()), Scripted(ANSWER)
    await world.turn_of(world.model([one, two]))
    assert (one.asked, two.asked, world.waits) == (1, 1, [])


async def test_deployments_take_turns(world):
    one, two = Scripted(ANSWER), Scripted(ANSWER)
    model = world.model([one, two])
    for _ in range(6):
        await world.turn_of(model)
    assert (one.asked, two.asked) == (3, 3)


async def test_fallbacks_are_asked_in_order_and_the_last_failure_is_the_answer(world):
    pools = [Scripted(lasting()), Scripted(passing()), Scripted(UpstreamError(504, "slow"))]
    with pytest.raises(ChatError, match="slow"):
        await world.turn_of(world.model(*pools, tries=2))
    assert [pool.asked for pool in pools] == [1, 2, 1]
    assert [retry.by.model for retry in world.retries] == ["p0", "p1", "p1", "p2"]


async def test_nothing_is_asked_again_after_the_deadline(world):
    class Slow(Scripted):
        @asynccontextmanager
        async def send(self, request):
            world.now += 100
            async with super().send(request) as answer:
                yield answer

    one, other = Slow(passing()), Scripted(ANSWER)
    with pytest.raises(ChatError, match="busy"):
        await world.turn_of(world.model(one, other, give_up_after=60))
    assert (one.asked, other.asked) == (1, 0)


async def test_the_budget_bounds_repetitions_of_all_requests_together(world):
    one = Scripted(passing())
    world.circumstances = World(RetryBudget(share=0.2, free=3, clock=lambda: world.now)).circumstances
    model = world.model(one)
    for _ in range(100):
        with pytest.raises(ChatError):
            await world.turn_of(model)
    assert 100 + 3 + 15 <= one.asked <= 100 + 3 + 21


async def test_the_budget_does_not_bound_fallbacks(world):
    world.circumstances = World(RetryBudget(share=0, free=0, clock=lambda: world.now)).circumstances
    one, other = Scripted(passing()), Scripted(ANSWER)
    await world.turn_of(world.model(one, other))
    assert (one.asked, other.asked) == (1, 1)


async def test_the_budget_forgets_with_time():
    now = 0.0
    budget = RetryBudget(share=0, free=2, clock=lambda: now)
    assert [budget.take() for _ in range(3)] == [True, True, False]
    now = 31.0
    assert not budget.take()
    now = 61.0
    assert [budget.take() for _ in range(3)] == [True, True, False]
    now = 500.0
    assert budget.take()


@pytest.mark.parametrize("when", ["before_words", "after_words"])
async def test_cancelling_closes_what_was_opened(world, when):
    never = asyncio.Event()
    one = Scripted([[TextDelta("x")], never] if when == "after_words" else [[ProviderHead(id="1")], never])
    task = asyncio.create_task(world.turn_of(world.model(one)))
    async with asyncio.timeout(60):
        await one.opened.wait()
        task.cancel()
        await asyncio.wait([task])
    assert task.cancelled()
    assert (one.asked, one.open) == (1, 0)


# Deployments that keep failing ----------------------------------------------------------------------------------------


@pytest.fixture
def cooling():
    return World(cooldown=10)


async def test_a_deployment_that_failed_three_times_running_is_left_alone_for_a_while(cooling):
    one, other = Scripted(passing()), Scripted(ANSWER)
    model = cooling.model(one, other)
    for _ in range(5):
        await cooling.turn_of(model)
    assert (one.asked, other.asked) == (3, 5)


async def test_one_request_tries_a_deployment_that_was_left_alone_and_a_failure_doubles_the_time(cooling):
    one, other = Scripted(passing()), Scripted(ANSWER)
    model = cooling.model(one, other, tries=3)
    await cooling.turn_of(model)
    asked = []
    for seconds in (9, 2, 0, 18, 3, 0, 39, 2):
        cooling.now += seconds
        before = one.asked
        await cooling.turn_of(model)
        asked.append(one.asked - before)
    assert asked == [0, 1, 0, 0, 1, 0, 0, 1]


async def test_while_one_request_tries_the_others_go_elsewhere(cooling):
    gate = asyncio.Event()
    one, other = Scripted(passing(), passing(), passing(), [gate, *ANSWER], ANSWER), Scripted(ANSWER)
    model = cooling.model(one, other)
    await cooling.turn_of(model)
    cooling.now += 11
    one.opened.clear()
    trial = asyncio.create_task(cooling.turn_of(model))
    async with asyncio.timeout(60):
        await one.opened.wait()
        await cooling.turn_of(model)
        assert (one.asked, other.asked) == (4, 2)
        gate.set()
        await trial
    await cooling.turn_of(model)  # it is back
    assert (one.asked, other.asked) == (5, 2)


async def test_the_time_grows_to_a_limit(cooling):
    one, other = Scripted(passing()), Scripted(ANSWER)
    model = cooling.model(one, other)
    await cooling.turn_of(model)
    for _ in range(20):
        cooling.now += 301
        await cooling.turn_of(model)
    assert one.asked == 23


async def test_an_answer_in_between_resets_the_count(cooling):
    one = Scripted(passing(), passing(), ANSWER, passing(), passing(), ANSWER)
    model = cooling.model(one, Scripted(ANSWER))
    for _ in range(2):
        await cooling.turn_of(model)
    assert one.asked == 6
    assert not model.pools[0].deployments[0].cooldown.is_resting


async def test_a_clients_mistakes_are_no_reason_to_leave_a_deployment_alone(cooling):
    one = Scripted(mistake())
    model = cooling.model(one, Scripted(ANSWER))
    for _ in range(5):
        with pytest.raises(ChatError, match="bad"):
            await cooling.turn_of(model)
    assert one.asked == 5


async def test_where_all_are_left_alone_each_is_asked_once_all_the_same(cooling):
    one, other = Scripted(lasting()), Scripted(lasting())
    model = cooling.model(one, other)
    for _ in range(3):
        with pytest.raises(ChatError):
            await cooling.turn_of(model)
    cooling.retries.clear()
    with pytest.raises(ChatError):
        await cooling.turn_of(model)
    assert (one.asked, other.asked) == (4, 4)
    assert [(retry.by.model, retry.anyway) for retry in cooling.retries] == [("p0", True), ("p1", True)]


async def test_an_answer_of_one_asked_anyway_is_emitted_and_brings_it_back(cooling):
    one = Scripted(lasting(), lasting(), lasting(), ANSWER)
    model = cooling.model(one)
    for _ in range(3):
        with pytest.raises(ChatError):
            await cooling.turn_of(model)
    cooling.retries.clear()
    await cooling.turn_of(model)
    assert [(retry.anyway, retry.reason) for retry in cooling.retries] == [(True, "")]
    assert not model.pools[0].deployments[0].cooldown.is_resting


async def test_the_configured_tries_hold_for_a_deployment_without_another(cooling):
    one = Scripted(passing(), passing(), passing(), passing(), ANSWER)
    await cooling.turn_of(cooling.model(one, tries=5, wait_in_all=60))
    assert one.asked == 5


async def test_other_deployments_of_the_name_take_the_requests_of_one_that_is_left_alone(cooling):
    one, two = Scripted(lasting()), Scripted(ANSWER)
    model = cooling.model([one, two])
    for _ in range(12):
        await cooling.turn_of(model)
    assert one.asked == 3


async def test_an_answer_that_keeps_breaking_off_within_goes_to_the_fallback(cooling):
    cut = [[CallDelta(0, "c", "echo", "{")], BrokenOff("cut", transport_error=True)]
    one, other = Scripted(cut), Scripted(ANSWER)
    model = cooling.model(one, other)
    attempts = Attempts(0, cooling.on_retry)
    failure = ChatError(502, "broke off", code="upstream_broke_off", retryable=True)
    for _ in range(3):
        with pytest.raises(BrokenOff):
            async with model.send(asking(), attempts) as answer:
                assert [batch async for batch in answer]
        await attempts.broke_off(failure, 0.1)
        assert await attempts.go_on(failure)
    async with model.send(asking(), attempts) as answer:
        assert [batch async for batch in answer] == ANSWER
    attempts.succeeded(gave_reason=True)
    assert (one.asked, other.asked, attempts.number, attempts.by.model) == (3, 1, 4, "p1")
    assert model.pools[0].deployments[0].cooldown.is_resting
