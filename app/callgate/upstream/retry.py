"""Retries and fallbacks, for a turn that failed before anything of it was passed on.

Tools are not seen from here, so none can run twice. Waits are full-jitter, a provider's Retry-After is honoured as long
as it is short, and all retries of a runtime share one budget, so that a provider in trouble is not
asked three times as often by the very clients that wait for it.
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
from callgate.conversation.read_model import ReadAnswer
from callgate.http.backoff import full_jitter
from callgate.http.trace_context import TRACE
from callgate.upstream import errors
from callgate.upstream.deployments import Deployment, DeploymentPool
from callgate.upstream.first_content import first_said

HALF_WINDOW_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    tries: int = 3
    """How often the deployments of one name are asked in all, before the fallbacks are."""
    first_wait: float = 0.5
    """The upper end of the first random wait; it doubles with each further one."""
    longest_wait: float = 8.0
    """The upper end of any wait of our own choosing."""
    give_up_after: float = 60.0
    """Seconds from the first ask after which nothing is asked again."""
    wait_in_all: float = 5.0
    """How long one question waits for its deployments in all. A Retry-After beyond it is for the client to wait for."""


class RetryBudget:
    """No more than a share of the recent requests are repetitions, with a few free for quiet times."""

    def __init__(self, share: float = 0.2, free: int = 10, clock: Callable[[], float] = time.monotonic) -> None:
        self._share = share
        self._free = free
        self._clock = clock
        # Two half windows instead of a list of times: counting costs nothing and forgets by itself.
        self._half = self._now()
        self._half_ends = (self._half + 1) * HALF_WINDOW_SECONDS
        self._requests = [0, 0]
        self._retries = [0, 0]

    def count_request(self) -> None:
        if self._clock() >= self._half_ends:
            self._forget()
        self._requests[0] += 1

    def take(self) -> bool:
        """Count one more repetition if it is allowed; return whether it was."""
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
class Circumstances:
    """The budget, clock, sleep and randomness of retrying; tests pass their own."""

    budget: RetryBudget
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: Callable[[], float] = random.random  # noqa: S311 -- scatter, not secrecy


@dataclass(frozen=True, slots=True)
class RetryingModel:
    """A model made of the pool of its own deployments and the pools of its fallbacks."""

    name: str
    pools: Sequence[DeploymentPool]
    circumstances: Circumstances
    policy: RetryPolicy = RetryPolicy()

    def ask(
        self, ask: ModelRequest | Passthrough, attempts: Attempts | None = None
    ) -> AbstractAsyncContextManager[ModelAnswer]:
        """With `attempts` that it was asked with before, it goes on from where they are."""
        if attempts is not None and attempts.in_charge is not None:
            assert isinstance(attempts.in_charge, _Asking)
            return attempts.in_charge
        order = self.pools[0].in_turn()
        if attempts is None:
            return _Asking(self, ask, 0, emit_nothing, order, order[0])
        attempts.in_charge = asking = _Asking(self, ask, attempts.turn, attempts.emit, order, order[0])
        return asking


class _Asking(msgspec.Struct, eq=False):
    """One question, asked until its answer has begun, because only until then may it be asked again. The same context is
    entered once more where the answer breaks off and nothing of it was passed on."""

    _model: RetryingModel
    _ask: ModelRequest | Passthrough
    # Not the attempts themselves: they hold this, and the two would be garbage that only a collector finds.
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
                # Whatever happens before its first words closes what was opened.
                if (trace := TRACE.get()) is not None:
                    trace.attempt(self._turn, self.number)
                opened = self._deployment.model.ask(self._ask)
                answer = await opened.__aenter__()
                if not isinstance(answer, ReadAnswer):
                    try:
                        answer = await _Begun.wait_for(answer)
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

    def _take(self, chosen: "_Chosen | None") -> None:
        assert chosen is not None, "who rests is asked when nobody else is left"
        self._deployment, self._on_trial, self._anyway = chosen.deployment, chosen.on_trial, chosen.anyway

    def succeeded(self) -> None:
        cooldown = self._deployment.cooldown
        if cooldown.failures:
            cooldown.answered()

    async def failed(self, failure: ChatError) -> None:
        """Count a failure, and emit it: of the attempt to begin an answer, or of the answer that had begun."""
        status = 200
        if self._open is None:
            if not isinstance(failure, errors.UpstreamError):
                return  # we refused the request ourselves, and nobody was asked
            status = failure.upstream_status
        is_refusal = not failure.retryable
        if not is_refusal:
            self._deployment.cooldown.failed(on_trial=self._on_trial, retry_after=failure.retry_after)
        elif status in errors.CLIENT_MISTAKES:
            self.succeeded()
        await self._emit(status, failure.code or failure.type, failure.detail or failure.message, is_refusal)

    async def _emit(self, status: int, reason: str = "", detail: str = "", is_refusal: bool = False) -> None:
        seconds = self._model.circumstances.clock() - self._asked_at
        number, by = self.number, self.by
        instead_of = self._instead_of if number == 1 else ""
        anyway, wait = self._anyway, self._wait
        await self._announce(
            Attempt(self._turn, number, by, seconds, wait, status, reason, detail, is_refusal, anyway, instead_of)
        )

    async def go_on(self, failure: ChatError) -> None:
        """Find who is asked after a failure, and wait until it is time; raises the failure when nobody is left."""
        model, world = self._model, self._model.circumstances
        if self._open is not None:
            self._began = world.clock()  # the time for an answer that had begun was not spent on asking
        give_up_at = self._began + model.policy.give_up_after
        queue = self._queue
        if queue is None:  # only now is it worth knowing who else there is
            queue = self._queue = _Queue(model.pools, model.policy.tries, self._order)
            queue.first_was_asked()
        chosen, wait = queue.again(self._deployment, is_passing(failure)), 0.0
        if chosen is not None:
            asked = queue.asked[chosen.deployment] - 1
            if asked:  # another deployment of the same name has nothing to recover from
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
class _Chosen:
    deployment: Deployment
    on_trial: bool = False
    anyway: bool = False


class _Queue:
    """The order of attempts: the deployments of one pool in turn, without those that failed for good or are left alone;
    then the next pool; and at the end, once each, those that were left alone."""

    def __init__(self, pools: Sequence[DeploymentPool], tries: int, order: Sequence[Deployment]) -> None:
        """`order` is that of the first pool."""
        self._pools = list(pools[1:])
        self._tries = self._left = tries
        self._waiting = list(order)
        self._resting: list[Deployment] = []
        self.asked: dict[Deployment, int] = {}
        """How often each was."""

    def first(self) -> _Chosen | None:
        return self._next()

    def first_was_asked(self) -> None:
        self._count(self._waiting.pop(0))

    def again(self, failed: Deployment, passing: bool) -> _Chosen | None:
        """Return the deployment of the same pool to ask after a failure. One that is left alone from now on is asked
        again only where nobody else is there."""
        is_alone = not (self._waiting or self._pools or self._resting)
        if passing and (is_alone or not failed.cooldown.is_resting):
            self._waiting.append(failed)
        return self._next()

    def fallback(self) -> _Chosen | None:
        while self._pools:
            self._waiting, self._left = list(self._pools.pop(0).in_turn()), self._tries
            if (chosen := self._next()) is not None:
                return chosen
        self._left = 0
        if not self._resting:
            return None
        deployment = self._resting.pop(0)
        self.asked[deployment] = 1
        return _Chosen(deployment, anyway=True)

    def _next(self) -> _Chosen | None:
        while self._waiting and self._left:
            deployment = self._waiting.pop(0)
            on_trial = False
            if deployment.cooldown.is_resting and deployment not in self.asked:
                on_trial = deployment.cooldown.take_trial()
                if not on_trial:
                    self._resting.append(deployment)
                    continue
            self._count(deployment)
            return _Chosen(deployment, on_trial)
        return None

    def _count(self, deployment: Deployment) -> None:
        self._left -= 1
        self.asked[deployment] = self.asked.get(deployment, 0) + 1


class _Begun(msgspec.Struct, eq=False):
    """An answer whose first words are there; what came before them is given out first."""

    _answer: ModelAnswer
    _batches: AsyncIterator[Sequence[ModelEvent]]
    _held: list[Sequence[ModelEvent]]

    @classmethod
    async def wait_for(cls, answer: ModelAnswer) -> "_Begun":
        batches = aiter(answer)
        held: list[Sequence[ModelEvent]] = []
        try:
            async for batch in batches:
                held.append(batch)
                first = first_said(batch)
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
        return self._answer.reason_is_raw  # asked late: an answer may know it only at its end

    @property
    def lane(self) -> str:
        return self._answer.lane

    def __aiter__(self) -> AsyncIterator[Sequence[ModelEvent]]:
        return self

    def __anext__(self) -> Awaitable[Sequence[ModelEvent]]:
        # Not a coroutine of its own: what comes after the first words costs nothing here.
        return self._first() if self._held else self._batches.__anext__()

    async def _first(self) -> Sequence[ModelEvent]:
        return self._held.pop()


def is_passing(error: ChatError) -> bool:
    """True if the very same deployment may answer a moment later."""
    return error.again if isinstance(error, errors.UpstreamError) else error.retryable
