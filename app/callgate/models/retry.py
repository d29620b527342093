"""Retries and fallbacks, for a turn that failed before any of it was sent to the client.

No tools run here, so none can run twice. Waits have full jitter, a provider's short Retry-After is honoured, and all retries
of a runtime share one budget, so that a provider in trouble does not get several times as many requests.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any

import msgspec
from msgspec.structs import replace

from callgate.conversation.attempts import Attempts
from callgate.conversation.errors import AnswerTooLarge, BrokenOff, ChatError
from callgate.conversation.events import (
    Attempt,
    CharactersLost,
    ChoiceIgnored,
    EndNotSeen,
    ModelEvent,
    PromptedCalling,
    ProviderError,
    ProviderHead,
    Responder,
)
from callgate.conversation.ports import ModelAnswer, ModelRequest, Passthrough, TakeEvents, emit_nothing
from callgate.conversation.preloaded_model import PreloadedAnswer
from callgate.conversation.usage import Usage
from callgate.http.backoff import full_jitter
from callgate.http.trace_context import TRACE
from callgate.models import errors
from callgate.models.deployments import Deployment, DeploymentPool
from callgate.models.quotes import without_quotes

HALF_WINDOW_SECONDS = 30.0


class RetryPolicy(msgspec.Struct, frozen=True):
    tries: int = 3
    """How often the deployments of one name are asked together, before the fallbacks."""
    first_wait: float = 0.5
    """The maximum of the first random wait; it doubles with each further one."""
    longest_wait: float = 8.0
    """The maximum of any wait, except for a Retry-After."""
    give_up_after: float = 60.0
    """Seconds after the first request after which there are no retries."""
    wait_in_all: float = 5.0
    """The sum of the waits of one request. A longer Retry-After is passed on to the client."""


class RetryBudget:
    """Limits retries to a share of the recent requests, and a few beyond it for quiet times."""

    def __init__(self, share: float = 0.2, free: int = 10, clock: Callable[[], float] = time.monotonic) -> None:
        self._share = share
        self._free = free
        self._clock = clock
        # Two half windows instead of a list of times, which would have to be pruned.
        self._half = self._now()
        self._half_ends = (self._half + 1) * HALF_WINDOW_SECONDS
        self._requests = [0, 0]
        self._retries = [0, 0]

    def count_request(self) -> None:
        if self._clock() >= self._half_ends:
            self._forget()
        self._requests[0] += 1

    def take(self) -> bool:
        """Count one more retry if it is allowed; return whether it was."""
        self._forget()
        if sum(self._retries) >= self._free + self._share * sum(self._requests):
            return False
        self._retries[0] += 1
        return True

    def _forget(self) -> None:
        passed = (now := self._now()) - self._half
        if passed > 0:
            self._half = now
            self._half_ends = (now + 1) * HALF_WINDOW_SECONDS
            for counts in (self._requests, self._retries):
                counts[:] = [0, counts[0] if passed == 1 else 0]

    def _now(self) -> int:
        return int(self._clock() / HALF_WINDOW_SECONDS)


class RetryContext(msgspec.Struct, frozen=True):
    """The budget, clock, sleep and randomness of retrying; tests pass their own."""

    budget: RetryBudget
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: Callable[[], float] = random.random  # noqa: S311 -- scatter, not secrecy


class RetryingModel(msgspec.Struct, frozen=True):
    """A model with the pool of its own deployments and the pools of its fallbacks."""

    name: str
    pools: Sequence[DeploymentPool]
    circumstances: RetryContext
    policy: RetryPolicy = RetryPolicy()

    def send(
        self, request: ModelRequest | Passthrough, attempts: Attempts | None = None
    ) -> AbstractAsyncContextManager[ModelAnswer]:
        """Ask the model. With `attempts` of an earlier call it continues after the failed ones."""
        if attempts is None:
            attempts = Attempts(0, emit_nothing)
        chooser = attempts.chooser
        if chooser is None:
            order = next(self.pools[0].orders)
            chosen = _Selected(order[0])
            chooser = attempts.chooser = _TurnChooser(self, request, attempts.turn, attempts.emit, order, chosen)
        assert isinstance(chooser, _TurnChooser)
        return chooser


class _TurnChooser(msgspec.Struct, eq=False):
    """Asks one deployment after the other for a turn until an answer has begun, and again where that answer breaks off before
    any of it was sent to the client. The context manager of each of these answers."""

    model: RetryingModel
    request: ModelRequest | Passthrough
    # Not the attempts themselves: they refer to this, and a reference cycle needs the garbage collector.
    turn: int
    emit: Callable[[Attempt], Awaitable[None]]
    order: Sequence[Deployment]
    """The deployments of the model's own pool, in the order of this turn."""

    # The attempt that is made now.
    chosen: "_Selected"
    number: int = 0
    instead_of: str = ""
    """The deployment whose turn it would have been, for a first attempt that passes it over."""
    sent_at: float = 0.0
    wait: float = 0.0
    """How long was waited before it."""
    has_begun: bool = False
    """Whether its answer has begun."""
    exchange: AbstractAsyncContextManager[ModelAnswer] | None = None
    """The exchange that its answer comes in."""

    # All attempts.
    queue: "_Queue | None" = None
    """Built after the first failure."""
    began_at: float = 0.0
    waited: float = 0.0

    def responder(self) -> Responder:
        deployment = self.chosen.deployment
        if deployment.place is not None:
            deployment.find_host(deployment.place)
        return deployment.responder

    async def __aenter__(self) -> ModelAnswer:
        """Return the first answer that begins."""
        if not self.number:
            self._start()
        while True:
            self.has_begun = False
            try:
                # Any exception before the first content closes the request.
                if (trace := TRACE.get()) is not None:
                    trace.attempt(self.turn, self.number)
                exchange = self.chosen.deployment.model.send(self.request)
                answer = await exchange.__aenter__()
                if type(answer) is not PreloadedAnswer:
                    try:
                        answer = await _StartedAnswer.wait_for(answer)
                    except BaseException as error:
                        await exchange.__aexit__(type(error), error, error.__traceback__)
                        raise
                self.exchange = exchange
                self.has_begun = True
                if self.queue is not None and self._is_unusual():
                    await self._report(200)
                return answer
            except ChatError as failure:
                await self.failed(failure)
                if not failure.retryable:
                    raise
                await self.go_on(failure)

    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Coroutine[Any, Any, bool | None]:
        # No coroutine of its own, because this is used in every turn.
        assert self.exchange is not None
        return self.exchange.__aexit__(kind, error, trace)

    def _start(self) -> None:
        """Count the request, and pass over a first deployment that is cooling down."""
        context = self.model.circumstances
        context.budget.count_request()
        self.began_at = context.clock()
        self.sent_at = self.began_at
        self.number = 1
        first = self.chosen.deployment
        if first.cooldown.failures and first.cooldown.is_resting:
            self.queue = _Queue(self.model.pools, self.model.policy.tries, self.order)
            chosen = self.queue.first() or self.queue.fallback()
            assert chosen is not None, "a deployment that is cooling down is the last choice"
            self.chosen = chosen
            if chosen.deployment is not first:
                self.instead_of = first.responder.deployment

    def _is_unusual(self) -> bool:
        """True for an attempt that is reported even where it succeeds."""
        return self.number > 1 or self.chosen.anyway or self.chosen.on_trial or bool(self.instead_of)

    def succeeded(self, *, gave_reason: bool = False) -> bool:
        deployment = self.chosen.deployment
        if deployment.cooldown.failures:
            deployment.cooldown.answered()
        if gave_reason:
            deployment.gives_reasons = True
            return False
        return deployment.gives_reasons

    async def failed(self, failure: ChatError) -> None:
        """Count and emit a failure, before or after the answer has begun."""
        status = 200
        if not self.has_begun and not isinstance(failure, AnswerTooLarge):
            if not isinstance(failure, errors.UpstreamError):
                return  # we refused the request ourselves, and no deployment was asked
            status = failure.upstream_status
        failure.detail = without_quotes(failure.detail or failure.message, self.request)
        if failure.retryable:
            cooldown = self.chosen.deployment.cooldown
            cooldown.failed(on_trial=self.chosen.on_trial, retry_after=failure.retry_after)
        elif status in errors.CLIENT_MISTAKES:
            self.succeeded()
        await self._report(status, failure)

    async def _report(self, status: int, failure: ChatError | None = None) -> None:
        attempt = Attempt(
            self.turn,
            self.number,
            self.responder(),
            seconds=self.model.circumstances.clock() - self.sent_at,
            wait=self.wait,
            status=status,
            anyway=self.chosen.anyway,
            instead_of=self.instead_of if self.number == 1 else "",
        )
        if failure is not None:
            attempt = replace(
                attempt,
                reason=failure.code or failure.type,
                detail=failure.detail or "",
                is_refusal=not failure.retryable,
            )
        await self.emit(attempt)

    async def go_on(self, failure: ChatError) -> None:
        """Choose the deployment to ask after a failure, and wait before it if necessary; raises the failure when none is left."""
        context = self.model.circumstances
        if self.has_begun:
            self.began_at = context.clock()  # the time of an answer that had begun does not count
        give_up_at = self.began_at + self.model.policy.give_up_after
        if self.queue is None:
            self.queue = _Queue(self.model.pools, self.model.policy.tries, self.order)
            self.queue.first_was_asked()
        chosen = self.queue.again(self.chosen.deployment, is_passing(failure))
        wait = 0.0
        if chosen is not None:
            wait = self._wait_before(chosen, self.queue, failure)
            is_too_long = self.waited + wait > self.model.policy.wait_in_all or context.clock() + wait > give_up_at
            if is_too_long or not context.budget.take():
                chosen = None
                wait = 0.0
        if chosen is None:
            chosen = self.queue.fallback()
        if chosen is None or context.clock() > give_up_at:
            raise failure
        self.chosen = chosen
        self.number += 1
        self.wait = wait
        if wait > 0:
            self.waited += wait
            await context.sleep(wait)
        self.sent_at = context.clock()

    def _wait_before(self, chosen: "_Selected", queue: "_Queue", failure: ChatError) -> float:
        """Return how long to wait before a deployment is asked. One that has not failed needs no wait."""
        failures = queue.asked[chosen.deployment] - 1
        if not failures:
            return 0.0
        policy = self.model.policy
        chance = self.model.circumstances.random
        jitter = full_jitter(failures - 1, first=policy.first_wait, longest=policy.longest_wait, chance=chance)
        if failure.retry_after is None:
            return jitter
        return failure.retry_after + jitter


class _Selected(msgspec.Struct, frozen=True):
    """The deployment of an attempt."""

    deployment: Deployment
    on_trial: bool = False
    """Whether it is asked to find out if it answers again."""
    anyway: bool = False
    """Whether it is cooling down, and there is no other."""


class _Queue:
    """The order of attempts: the deployments of one pool in turn, without those that failed for good or are cooling down;
    then the next pool; and at the end, once each, those that are cooling down."""

    def __init__(self, pools: Sequence[DeploymentPool], tries: int, order: Sequence[Deployment]) -> None:
        """`order` is that of the first pool."""
        self._pools = list(pools[1:])
        self._tries = self._left = tries
        self._waiting = list(order)
        self._resting: list[Deployment] = []
        self.asked: dict[Deployment, int] = {}
        """How often each deployment was asked."""

    def first(self) -> _Selected | None:
        return self._next()

    def first_was_asked(self) -> None:
        self._count(self._waiting.pop(0))

    def again(self, failed: Deployment, passing: bool) -> _Selected | None:
        """Return the deployment of the same pool to ask after a failure. One that begins to cool down is asked again only
        where there is no other."""
        is_alone = not (self._waiting or self._pools or self._resting)
        if passing and (is_alone or not failed.cooldown.is_resting):
            self._waiting.append(failed)
        return self._next()

    def fallback(self) -> _Selected | None:
        while self._pools:
            self._waiting = list(next(self._pools.pop(0).orders))
            self._left = self._tries
            if (chosen := self._next()) is not None:
                return chosen
        self._left = 0
        if not self._resting:
            return None
        deployment = self._resting.pop(0)
        self.asked[deployment] = 1
        return _Selected(deployment, anyway=True)

    def _next(self) -> _Selected | None:
        while self._waiting and self._left:
            deployment = self._waiting.pop(0)
            on_trial = False
            if deployment.cooldown.is_resting and deployment not in self.asked:
                on_trial = deployment.cooldown.take_trial()
                if not on_trial:
                    self._resting.append(deployment)
                    continue
            self._count(deployment)
            return _Selected(deployment, on_trial)
        return None

    def _count(self, deployment: Deployment) -> None:
        self._left -= 1
        self.asked[deployment] = self.asked.get(deployment, 0) + 1


class _StartedAnswer(msgspec.Struct, eq=False, kw_only=True):
    """An answer whose first content has come; the events before it are emitted first."""

    _answer: ModelAnswer
    _batches: AsyncIterator[Sequence[ModelEvent]]
    _held: list[Sequence[ModelEvent]]
    _take: TakeEvents | None = None

    @classmethod
    async def wait_for(cls, answer: ModelAnswer) -> "_StartedAnswer":
        batches = aiter(answer)
        batches_so_far: list[Sequence[ModelEvent]] = []
        try:
            async for batch in batches:
                batches_so_far.append(batch)
                first = first_content_event(batch)
                if type(first) is ProviderError:
                    raise errors.reported(first.message, first.body, {})
                if first is not None:
                    break
            else:
                raise errors.bad_answer("The model's provider sent an empty answer.")
        except BrokenOff as error:
            raise errors.bad_answer("The model's provider broke its answer off.", str(error)) from error
        batches_so_far.reverse()
        return cls(_answer=answer, _batches=batches, _held=batches_so_far)

    @property
    def reason_is_raw(self) -> bool:
        return self._answer.reason_is_raw  # not copied: it may be known only at the end of the answer

    @property
    def lane(self) -> str:
        return self._answer.lane

    def hand_to(self, take: TakeEvents) -> None:
        self._take = take

    def __aiter__(self) -> AsyncIterator[Sequence[ModelEvent]]:
        return self

    def __anext__(self) -> Awaitable[Sequence[ModelEvent]]:
        # No coroutine of its own, so that events after the first content cost nothing here.
        if self._held:
            return self._first()
        if self._take is not None:
            self._answer.hand_to(self._take)
            self._take = None
        return self._batches.__anext__()

    async def _first(self) -> Sequence[ModelEvent]:
        return self._held.pop()


def is_passing(error: ChatError) -> bool:
    """True if the same deployment may answer a moment later."""
    if isinstance(error, errors.UpstreamError):
        return error.again
    return error.retryable


NO_CONTENT = frozenset({ProviderHead, PromptedCalling, Usage, ChoiceIgnored, CharactersLost, EndNotSeen})
"""Events that are no content: an id, a role or a token count may come before a failure."""


def is_content(event: ModelEvent) -> bool:
    """True if an event is content of an answer."""
    return type(event) not in NO_CONTENT


def first_content_event(batch: Sequence[ModelEvent]) -> ModelEvent | None:
    """Return the first of these that is content."""
    for event in batch:
        if type(event) not in NO_CONTENT:
            return event
    return None


def has_begun(batch: Sequence[ModelEvent]) -> bool:
    return first_content_event(batch) is not None
