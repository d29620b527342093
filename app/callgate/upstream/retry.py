"""Asking again, and asking another: for a turn that failed before anything of it was passed on, and only for that turn.

Tools are not seen from here, so none can run twice. Waits are full-jitter, a provider's Retry-After is honoured as long
as it is short, and all retries of a runtime share one budget, so that a provider in trouble is not
asked three times as often by the very clients that wait for it.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from itertools import count
from types import TracebackType
from typing import TypeAlias

from callgate.conversation.errors import BrokenOff, ChatError
from callgate.conversation.events import ModelEvent, ProviderError
from callgate.conversation.ports import Model, ModelAnswer, ModelRequest, Passthrough
from callgate.conversation.read_model import ReadAnswer
from callgate.http.backoff import full_jitter
from callgate.upstream import errors
from callgate.upstream.first_content import first_said

WINDOW_SECONDS = 60.0


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


@dataclass(frozen=True, slots=True)
class Retry:
    """What the callback gets before a turn is asked again."""

    attempt: int
    """1 for the first repetition."""
    model: str
    """Who is asked now: the entry itself or one of its fallbacks."""
    reason: str
    wait: float


Report: TypeAlias = Callable[[Retry], Awaitable[None]]


class RetryBudget:
    """No more than a share of the recent requests are repetitions, with a few free for quiet times."""

    def __init__(self, share: float = 0.2, free: int = 10, clock: Callable[[], float] = time.monotonic) -> None:
        self._share = share
        self._free = free
        self._clock = clock
        # Two half windows instead of a list of times: counting costs nothing and forgets by itself.
        self._half = self._now()
        self._requests = [0, 0]
        self._retries = [0, 0]

    def count_request(self) -> None:
        self._forget()
        self._requests[0] += 1

    def take(self) -> bool:
        """Whether one more repetition is allowed; counts it if so."""
        self._forget()
        if sum(self._retries) >= self._free + self._share * sum(self._requests):
            return False
        self._retries[0] += 1
        return True

    def _forget(self) -> None:
        passed = (now := self._now()) - self._half
        if passed > 0:
            self._half = now
            for counts in (self._requests, self._retries):
                counts[:] = [0, counts[0] if passed == 1 else 0]

    def _now(self) -> int:
        return int(self._clock() / (WINDOW_SECONDS / 2))


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What retrying needs of the world; tests bring their own."""

    budget: RetryBudget
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: Callable[[], float] = random.random  # noqa: S311 -- scatter, not secrecy


@dataclass(frozen=True, slots=True)
class Pool:
    """The deployments that answer to one name. They are asked in turn, each request starting with the next one."""

    name: str
    deployments: Sequence[Model]
    start: Callable[[], int] = field(default_factory=lambda: count().__next__)

    def in_turn(self) -> list[Model]:
        if len(self.deployments) == 1:
            return list(self.deployments)
        start = self.start() % len(self.deployments)
        return [*self.deployments[start:], *self.deployments[:start]]


@dataclass(frozen=True, slots=True)
class RetryingModel:
    """A model made of the pool of its own deployments and the pools of its fallbacks."""

    name: str
    pools: Sequence[Pool]
    circumstances: Circumstances
    policy: RetryPolicy = RetryPolicy()
    report: Report | None = None

    def reporting_to(self, report: Report) -> "RetryingModel":
        """The same model for one request, which wants to know of its own retries."""
        return replace(self, report=report)

    def ask(self, ask: ModelRequest | Passthrough) -> AbstractAsyncContextManager[ModelAnswer]:
        return _Asking(self, ask)


class _Asking:
    """The context of one question, asked until its answer has begun, because only until then may it be asked again."""

    __slots__ = ("_ask", "_attempt", "_model", "_open", "_waited")

    def __init__(self, model: RetryingModel, ask: ModelRequest | Passthrough) -> None:
        self._model = model
        self._ask = ask
        self._attempt = 0
        self._waited = 0.0
        self._open: AbstractAsyncContextManager[ModelAnswer] | None = None

    async def __aenter__(self) -> ModelAnswer:
        world = self._model.circumstances
        world.budget.count_request()
        began = world.clock()
        order = self._model.pools[0].in_turn()
        try:
            return await self._begin(order[0])
        except ChatError as error:
            if not error.retryable:
                raise
            failure = error
        # Only now is it worth knowing who else there is.
        queue = _Queue(self._model.pools, self._model.policy.tries, order)
        candidate = queue.first()
        while True:
            candidate = await self._following(queue, candidate, failure, began + self._model.policy.give_up_after)
            try:
                return await self._begin(candidate.deployment)
            except ChatError as error:
                if not error.retryable:
                    raise
                failure = error

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        assert self._open is not None
        return await self._open.__aexit__(kind, error, trace)

    async def _begin(self, deployment: Model) -> ModelAnswer:
        """Ask, and wait for the first words; whatever happens before them closes what was opened."""
        opened = deployment.ask(self._ask)
        answer = await opened.__aenter__()
        if isinstance(answer, ReadAnswer):
            self._open = opened
            return answer
        try:
            begun = await _Begun.wait_for(answer)
        except BaseException as error:
            await opened.__aexit__(type(error), error, error.__traceback__)
            raise
        self._open = opened
        return begun

    async def _following(
        self, queue: "_Queue", failed: "_Candidate", failure: ChatError, give_up_at: float
    ) -> "_Candidate":
        """Who is asked after a failure, once the wait for it is over; raises the failure when nobody is left."""
        world = self._model.circumstances
        following, wait = queue.again(failed, is_passing(failure)), 0.0
        if following is not None:
            if not following.asked:
                wait = 0.0  # another deployment of the same name has nothing to recover from
            else:
                policy, chance = self._model.policy, self._model.circumstances.random
                jitter = full_jitter(
                    following.asked - 1, first=policy.first_wait, longest=policy.longest_wait, chance=chance
                )
                wait = jitter if failure.retry_after is None else failure.retry_after + jitter
            too_long = self._waited + wait > self._model.policy.wait_in_all or world.clock() + wait > give_up_at
            if too_long or not world.budget.take():
                following, wait = None, 0.0
        if following is None:
            following = queue.fallback()
        if following is None or world.clock() > give_up_at:
            raise failure
        self._attempt += 1
        if self._model.report is not None:
            await self._model.report(Retry(self._attempt, following.pool, failure.message, wait))
        if wait > 0:
            self._waited += wait
            await world.sleep(wait)
        return following


@dataclass(frozen=True, slots=True)
class _Candidate:
    pool: str
    deployment: Model
    asked: int = 0
    """How often this very deployment was asked before."""


class _Queue:
    """Who is asked next: the deployments of one pool in turn, without those that failed for good; then the next pool."""

    def __init__(self, pools: Sequence[Pool], tries: int, order: Sequence[Model]) -> None:
        """`order` is that of the first pool."""
        self._pools = list(pools[1:])
        self._tries = self._left = tries
        self._waiting = [_Candidate(pools[0].name, deployment) for deployment in order]

    def first(self) -> _Candidate:
        candidate = self._take()
        assert candidate is not None, "a model has at least one deployment"
        return candidate

    def again(self, failed: _Candidate, passing: bool) -> _Candidate | None:
        if passing:
            self._waiting.append(replace(failed, asked=failed.asked + 1))
        return self._take()

    def fallback(self) -> _Candidate | None:
        if not self._pools:
            return None
        pool = self._pools.pop(0)
        self._waiting = [_Candidate(pool.name, deployment) for deployment in pool.in_turn()]
        self._left = self._tries
        return self._take()

    def _take(self) -> _Candidate | None:
        if not self._waiting or not self._left:
            return None
        self._left -= 1
        return self._waiting.pop(0)


class _Begun:
    """An answer whose first words are there; what came before them is given out first."""

    def __init__(self, answer: ModelAnswer) -> None:
        self._answer = answer
        self._batches = aiter(answer)
        self._held: list[Sequence[ModelEvent]] = []

    @classmethod
    async def wait_for(cls, answer: ModelAnswer) -> "_Begun":
        begun = cls(answer)
        try:
            async for batch in begun._batches:
                begun._held.append(batch)
                first = first_said(batch)
                if isinstance(first, ProviderError):
                    raise errors.reported(first.message, first.body, {})
                if first is not None:
                    break
            else:
                raise errors.bad_answer("The model's provider sent an empty answer.")
        except BrokenOff as error:
            raise errors.bad_answer("The model's provider broke its answer off.", str(error)) from error
        begun._held.reverse()
        return begun

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
    """Whether the very same deployment may answer a moment later."""
    return error.again if isinstance(error, errors.UpstreamError) else error.retryable
