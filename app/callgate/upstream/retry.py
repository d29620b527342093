"""Retries and fallbacks, for a turn that failed before any of it was sent to the client.

No tools run here, so none can run twice. Waits have full jitter, a provider's short Retry-After is honoured, and all retries
of a runtime share one budget, so that a provider in trouble does not get several times as many requests.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import msgspec

from callgate.conversation.attempts import Attempts
from callgate.conversation.errors import BrokenOff, ChatError
from callgate.conversation.events import Attempt, ModelEvent, ProviderError, Responder
from callgate.conversation.ports import ModelAnswer, ModelRequest, Passthrough, emit_nothing
from callgate.conversation.preloaded_model import PreloadedAnswer
from callgate.http.backoff import full_jitter
from callgate.http.trace_context import TRACE
from callgate.upstream import errors
from callgate.upstream.deployments import Deployment, DeploymentPool
from callgate.upstream.first_content import first_content_event
from callgate.upstream.quotes import without_quotes

HALF_WINDOW_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
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


@dataclass(frozen=True, slots=True)
class RetryContext:
    """The budget, clock, sleep and randomness of retrying; tests pass their own."""

    budget: RetryBudget
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: Callable[[], float] = random.random  # noqa: S311 -- scatter, not secrecy


@dataclass(frozen=True, slots=True)
class RetryingModel:
    """A model with the pool of its own deployments and the pools of its fallbacks."""

    name: str
    pools: Sequence[DeploymentPool]
    circumstances: RetryContext
    policy: RetryPolicy = RetryPolicy()

    def ask(
        self, ask: ModelRequest | Passthrough, attempts: Attempts | None = None
    ) -> AbstractAsyncContextManager[ModelAnswer]:
        """Ask the model. With `attempts` of an earlier call it continues after the failed ones."""
        if attempts is not None and attempts.chooser is not None:
            assert isinstance(attempts.chooser, _Asking)
            return attempts.chooser
        order = self.pools[0].in_turn()
        if attempts is None:
            return _Asking(self, ask, 0, emit_nothing, order, order[0])
        attempts.chooser = asking = _Asking(self, ask, attempts.turn, attempts.emit, order, order[0])
        return asking


class _Asking(msgspec.Struct, eq=False):
    """The context manager of one request, which is retried until its answer has begun. It is entered again where the answer
    breaks off before any of it was sent to the client."""

    _model: RetryingModel
    _ask: ModelRequest | Passthrough
    # Not the attempts themselves: they refer to this, and a reference cycle needs the garbage collector.
    _turn: int
    _announce: Callable[[Attempt], Awaitable[None]]
    _order: Sequence[Deployment]
    _deployment: Deployment
    number: int = 0
    _began: float = 0.0
    _asked_at: float = 0.0
    _queue: "_Queue | None" = None
    _anyway: bool = False
    _on_trial: bool = False
    _instead_of: str = ""
    _wait: float = 0.0
    _waited: float = 0.0
    _open: AbstractAsyncContextManager[ModelAnswer] | None = None

    @property
    def by(self) -> Responder:
        return self._deployment.responder

    async def __aenter__(self) -> ModelAnswer:
        if not self.number:
            world = self._model.circumstances
            world.budget.count_request()
            self._began = self._asked_at = world.clock()
            self.number = 1
            cooldown = self._deployment.cooldown
            if cooldown.failures and cooldown.is_resting:
                passed_over = self._deployment
                self._queue = _Queue(self._model.pools, self._model.policy.tries, self._order)
                self._take(self._queue.first() or self._queue.fallback())
                if self._deployment is not passed_over:
                    self._instead_of = passed_over.responder.deployment
        while True:
            self._open = None
            try:
                # Any exception before the first content closes the request.
                if (trace := TRACE.get()) is not None:
                    trace.attempt(self._turn, self.number)
                opened = self._deployment.model.ask(self._ask)
                answer = await opened.__aenter__()
                if not isinstance(answer, PreloadedAnswer):
                    try:
                        answer = await _StartedAnswer.wait_for(answer)
                    except BaseException as error:
                        await opened.__aexit__(type(error), error, error.__traceback__)
                        raise
                self._open = opened
                if self._queue is not None and (self.number > 1 or self._anyway or self._on_trial or self._instead_of):
                    await self._emit(200)
                return answer
            except ChatError as failure:
                await self.failed(failure)
                if not failure.retryable:
                    raise
                await self.go_on(failure)

    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Coroutine[Any, Any, bool | None]:
        assert self._open is not None
        return self._open.__aexit__(kind, error, trace)

    def _take(self, chosen: "_Selected | None") -> None:
        assert chosen is not None, "a deployment that is cooling down is the last choice"
        self._deployment, self._on_trial, self._anyway = chosen.deployment, chosen.on_trial, chosen.anyway

    def succeeded(self, *, gave_reason: bool = False) -> bool:
        deployment = self._deployment
        if deployment.cooldown.failures:
            deployment.cooldown.answered()
        if gave_reason:
            deployment.gives_reasons = True
            return False
        return deployment.gives_reasons

    async def failed(self, failure: ChatError) -> None:
        """Count and emit a failure, before or after the answer has begun."""
        status = 200
        if self._open is None:
            if not isinstance(failure, errors.UpstreamError):
                return  # we refused the request ourselves, and no deployment was asked
            status = failure.upstream_status
        detail = failure.detail = without_quotes(failure.detail or failure.message, self._ask)
        is_refusal = not failure.retryable
        if not is_refusal:
            self._deployment.cooldown.failed(on_trial=self._on_trial, retry_after=failure.retry_after)
        elif status in errors.CLIENT_MISTAKES:
            self.succeeded()
        await self._emit(status, failure.code or failure.type, detail, is_refusal)

    async def _emit(self, status: int, reason: str = "", detail: str = "", is_refusal: bool = False) -> None:
        seconds = self._model.circumstances.clock() - self._asked_at
        number, by = self.number, self.by
        instead_of = self._instead_of if number == 1 else ""
        anyway, wait = self._anyway, self._wait
        await self._announce(
            Attempt(self._turn, number, by, seconds, wait, status, reason, detail, is_refusal, anyway, instead_of)
        )

    async def go_on(self, failure: ChatError) -> None:
        """Choose the deployment to ask after a failure, and wait before it if necessary; raises the failure when none is left."""
        model, world = self._model, self._model.circumstances
        if self._open is not None:
            self._began = world.clock()  # the time of an answer that had begun does not count
        give_up_at = self._began + model.policy.give_up_after
        queue = self._queue
        if queue is None:  # built only after the first failure
            queue = self._queue = _Queue(model.pools, model.policy.tries, self._order)
            queue.first_was_asked()
        chosen, wait = queue.again(self._deployment, is_passing(failure)), 0.0
        if chosen is not None:
            asked = queue.asked[chosen.deployment] - 1
            if asked:  # a deployment that has not failed needs no wait
                policy = model.policy
                jitter = full_jitter(
                    asked - 1, first=policy.first_wait, longest=policy.longest_wait, chance=world.random
                )
                wait = jitter if failure.retry_after is None else failure.retry_after + jitter
            too_long = self._waited + wait > model.policy.wait_in_all or world.clock() + wait > give_up_at
            if too_long or not world.budget.take():
                chosen, wait = None, 0.0
        if chosen is None:
            chosen = queue.fallback()
        if chosen is None or world.clock() > give_up_at:
            raise failure
        self._take(chosen)
        self.number += 1
        self._wait = wait
        if wait > 0:
            self._waited += wait
            await world.sleep(wait)
        self._asked_at = world.clock()


@dataclass(frozen=True, slots=True)
class _Selected:
    deployment: Deployment
    on_trial: bool = False
    anyway: bool = False


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
            self._waiting, self._left = list(self._pools.pop(0).in_turn()), self._tries
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


class _StartedAnswer(msgspec.Struct, eq=False):
    """An answer whose first content has come; the events before it are emitted first."""

    _answer: ModelAnswer
    _batches: AsyncIterator[Sequence[ModelEvent]]
    _held: list[Sequence[ModelEvent]]

    @classmethod
    async def wait_for(cls, answer: ModelAnswer) -> "_StartedAnswer":
        batches = aiter(answer)
        held: list[Sequence[ModelEvent]] = []
        try:
            async for batch in batches:
                held.append(batch)
                first = first_content_event(batch)
                if isinstance(first, ProviderError):
                    raise errors.reported(first.message, first.body, {})
                if first is not None:
                    break
            else:
                raise errors.bad_answer("The model's provider sent an empty answer.")
        except BrokenOff as error:
            raise errors.bad_answer("The model's provider broke its answer off.", str(error)) from error
        held.reverse()
        return cls(answer, batches, held)

    @property
    def reason_is_raw(self) -> bool:
        return self._answer.reason_is_raw  # not copied: it may be known only at the end of the answer

    @property
    def lane(self) -> str:
        return self._answer.lane

    def __aiter__(self) -> AsyncIterator[Sequence[ModelEvent]]:
        return self

    def __anext__(self) -> Awaitable[Sequence[ModelEvent]]:
        # No coroutine of its own, so that events after the first content cost nothing here.
        return self._first() if self._held else self._batches.__anext__()

    async def _first(self) -> Sequence[ModelEvent]:
        return self._held.pop()


def is_passing(error: ChatError) -> bool:
    """True if the same deployment may answer a moment later."""
    return error.again if isinstance(error, errors.UpstreamError) else error.retryable
