"""Threads for tools that are ordinary Python functions: a bounded pool of our own.

A thread cannot be stopped. When its call is cancelled, the thread is abandoned: it counts as stuck, keeps its place in the
pool until it returns, and is never joined. When all threads are stuck a call is refused at once. The threads are daemons, so
that a stuck one does not keep the process from ending, as those of `concurrent.futures` would.
"""

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from callgate.tools.concurrency import ConcurrencyLimiter

T = TypeVar("T")

DEFAULT_SIZE = 32
"""Far fewer than requests, so that a slow library cannot use up the machine."""
_JOIN_SECONDS = 1.0
"""The timeout for idle threads to end, which takes milliseconds."""


class NoThreadLeft(Exception):
    """Raised where every thread is stuck in a cancelled call, or the pool is closed."""


class _Job(msgspec.Struct, Generic[T], eq=False):
    work: Callable[[], T]
    answer: "asyncio.Future[tuple[T | None, BaseException | None]]"
    context: contextvars.Context
    thread: threading.Thread | None = None
    """The thread that has begun it."""
    is_given_up: bool = False
    """Nobody waits for it any more. It does not begin, if it has not."""
    is_stuck: bool = False
    is_over: bool = False


class ThreadPool:
    """Runs functions in threads, for one event loop."""

    def __init__(self, size: int = DEFAULT_SIZE, name: str = "tool") -> None:
        self._size = size
        self._name = name
        self._threads: list[threading.Thread] = []
        self._jobs: queue.SimpleQueue[_Job[Any] | None] = queue.SimpleQueue()
        self._unfinished: set[_Job[Any]] = set()
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
        if self._closed:
            raise NoThreadLeft("the runtime that this tool belongs to is closed")
        if self._stuck >= self._size:
            raise NoThreadLeft(f"all {self._size} threads are stuck")
        loop = asyncio.get_running_loop()
        job: _Job[T] = _Job(work, loop.create_future(), contextvars.copy_context())
        self._unfinished.add(job)
        if len(self._threads) < min(len(self._unfinished), self._size):
            self._start_thread(loop)
        self._jobs.put(job)
        try:
            result, error = await job.answer
        except asyncio.CancelledError:
            self._give_up(job)
            raise
        if error is not None:
            raise error
        return result  # type: ignore[return-value]  # None where there is an error, and then we are not here

    def close(self) -> None:
        """End idle threads and abandon the others, which end with their calls."""
        self._closed = True
        self._refuse_waiting("the runtime that this tool belongs to is closed")
        for _ in self._threads:
            self._jobs.put(None)
        busy = {job.thread for job in self._unfinished}
        for thread in self._threads:
            if thread not in busy:
                thread.join(_JOIN_SECONDS)

    def _start_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        name = f"{self._name}-{len(self._threads)}"
        thread = threading.Thread(target=_work, args=(self._jobs, loop, self._end), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _give_up(self, job: _Job[Any]) -> None:
        job.is_given_up = True  # before its thread is looked at, which sets that before it looks at this
        if job.thread is None or job.is_over:
            return
        job.is_stuck = True
        self._stuck += 1
        self.queue.retain()
        if self._stuck >= self._size:
            self._refuse_waiting(f"all {self._size} threads are stuck")

    def _refuse_waiting(self, why: str) -> None:
        for job in self._unfinished:
            if job.thread is None and not job.answer.done():
                job.is_given_up = True
                job.answer.set_exception(NoThreadLeft(why))

    def _end(self, job: _Job[Any], result: Any, error: BaseException | None) -> None:
        """Pass on the result of a job. Called in the event loop."""
        job.is_over = True
        self._unfinished.discard(job)
        if job.is_stuck:
            self._stuck -= 1
            self.queue.give_up()
        elif not job.answer.done():
            job.answer.set_result((result, error))


def _work(
    jobs: "queue.SimpleQueue[_Job[Any] | None]",
    loop: asyncio.AbstractEventLoop,
    end: Callable[[_Job[Any], Any, BaseException | None], None],
) -> None:
    thread = threading.current_thread()
    while (job := jobs.get()) is not None:
        job.thread = thread
        result, error = _outcome(job)
        try:
            loop.call_soon_threadsafe(end, job, result, error)
        except RuntimeError:
            return  # the event loop is closed
        del job, result, error


def _outcome(job: _Job[Any]) -> tuple[Any, BaseException | None]:
    if job.is_given_up:
        return None, None
    try:
        return job.context.run(job.work), None
    except StopIteration as error:
        # Coroutines and futures cannot raise StopIteration.
        return None, RuntimeError(f"StopIteration: {error}")
    except BaseException as error:  # noqa: BLE001 - whatever a tool raises, SystemExit too, belongs to its caller
        return None, error
