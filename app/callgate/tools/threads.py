"""Threads for tools that are ordinary Python functions: a bounded pool of our own.

A thread cannot be stopped. When its call is cancelled, the thread is abandoned: it counts as stuck, keeps its place in the
pool until it returns, and is never joined. When all threads are stuck a call is refused at once. The threads are daemons, so
that a stuck one does not keep the process from ending.
"""

import asyncio
import contextvars
import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from callgate.tools.concurrency import ConcurrencyLimiter

T = TypeVar("T")

DEFAULT_SIZE = 32
"""Far fewer than requests, so that a slow library cannot use up the machine."""
_JOIN_SECONDS = 1.0
"""The timeout for idle threads to end, which takes milliseconds."""


class NoThreadLeft(Exception):
    """Raised where every thread is stuck in a cancelled call, or the pool is closed."""


class ThreadPool:
    """Runs functions in threads, for one event loop."""

    def __init__(self, size: int = DEFAULT_SIZE, name: str = "tool") -> None:
        self._size = size
        self._name = name
        self._idle: list[_Worker] = []
        self._workers: set[_Worker] = set()
        self._waiting: deque[asyncio.Future[_Worker]] = deque()
        self._stuck = 0
        self._closed = False
        self.queue = ConcurrencyLimiter(size)
        """The limiter for callers whose timeout must not begin before there is a thread."""

    @property
    def stuck(self) -> int:
        """The number of threads whose call was cancelled and has not returned."""
        return self._stuck

    @property
    def size(self) -> int:
        return self._size

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread with this task's context variables; return its result or raise its exception."""
        worker = await self._worker()
        loop = asyncio.get_running_loop()
        job: _Job[T] = _Job(work, loop.create_future(), contextvars.copy_context())
        worker.jobs.put(job)
        try:
            result, error = await job.done
        except asyncio.CancelledError:
            job.given_up = True
            self._stuck += 1
            self.queue.retain()
            if self._stuck >= self._size:
                self._turn_away(f"all {self._size} threads are stuck")
            raise
        if error is not None:
            raise error
        return result  # type: ignore[return-value]  # None where there is an error, and then we are not here

    def close(self) -> None:
        """End idle threads and abandon the others, which end with their calls."""
        self._closed = True
        idle, self._idle = self._idle, []
        for worker in idle:
            worker.jobs.put(None)
        for worker in idle:
            worker.thread.join(_JOIN_SECONDS)
            self._workers.discard(worker)
        self._turn_away("the runtime that this tool belongs to is closed")

    async def _worker(self) -> "_Worker":
        if self._closed:
            raise NoThreadLeft("the runtime that this tool belongs to is closed")
        if self._stuck >= self._size:
            raise NoThreadLeft(f"all {self._size} threads are stuck")
        if self._idle:
            return self._idle.pop()
        if len(self._workers) < self._size:
            worker = _Worker()
            loop = asyncio.get_running_loop()
            worker.thread = threading.Thread(
                target=_work,
                args=(worker, loop, self._finished),
                name=f"{self._name}-{len(self._workers)}",
                daemon=True,
            )
            self._workers.add(worker)
            worker.thread.start()
            return worker
        waiter: asyncio.Future[_Worker] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._free(waiter.result())  # a thread was given at the moment of the cancellation
            raise

    def _finished(self, worker: "_Worker", job: "_Job[Any]", result: Any, error: BaseException | None) -> None:
        """Pass on the result of a job, and its thread to the next caller. Called in the event loop."""
        if job.given_up:
            self._stuck -= 1
            self.queue.give_up()
        elif not job.done.done():
            job.done.set_result((result, error))
        self._free(worker)

    def _free(self, worker: "_Worker") -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(worker)
                return
        if self._closed:
            worker.jobs.put(None)
            self._workers.discard(worker)
        else:
            self._idle.append(worker)

    def _turn_away(self, why: str) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_exception(NoThreadLeft(why))


@dataclass(slots=True, eq=False)
class _Job(Generic[T]):
    work: Callable[[], T]
    done: "asyncio.Future[tuple[T | None, BaseException | None]]"
    context: contextvars.Context
    given_up: bool = False


@dataclass(slots=True, eq=False)
class _Worker:
    jobs: "queue.SimpleQueue[_Job[Any] | None]" = field(default_factory=queue.SimpleQueue)
    thread: threading.Thread = field(default_factory=threading.Thread)


def _work(
    worker: _Worker,
    loop: asyncio.AbstractEventLoop,
    finished: Callable[[_Worker, _Job[Any], Any, BaseException | None], None],
) -> None:
    while (job := worker.jobs.get()) is not None:
        result, error = _outcome(job)
        try:
            loop.call_soon_threadsafe(finished, worker, job, result, error)
        except RuntimeError:
            return  # the event loop is closed
        del job, result, error


def _outcome(job: _Job[Any]) -> tuple[Any, BaseException | None]:
    if job.given_up:
        return None, None
    try:
        return job.context.run(job.work), None
    except StopIteration as error:
        # Coroutines and futures cannot raise StopIteration.
        return None, RuntimeError(f"StopIteration: {error}")
    except BaseException as error:  # noqa: BLE001 - whatever a tool raises, SystemExit too, belongs to its caller
        return None, error
