"""Cancelling at every place where a piece of work can be cancelled.

`Steps` counts how often any task of a piece of work is suspended, however many tasks it has made, and does something at
the k-th time. A test runs its scenario with k = 1, 2, … until the work ends before it is reached.
"""

import asyncio
import contextlib
import contextvars
from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import Any

_steps: contextvars.ContextVar["Steps | None"] = contextvars.ContextVar("steps", default=None)


class Steps:
    """The suspensions of one piece of work, tasks made on the way included."""

    def __init__(self, at: int) -> None:
        self.count = 0
        self.tasks: set[asyncio.Task[Any]] = set()
        """Every task that the work made."""
        self._at = at
        self._do: Callable[[], object] = _nothing

    def then(self, do: Callable[[], object]) -> None:
        """What to do at the k-th suspension."""
        self._do = do

    @property
    def reached(self) -> bool:
        """Whether the work was still going on at the k-th suspension."""
        return self.count >= self._at

    def suspended(self) -> None:
        self.count += 1
        if self.count == self._at:
            # not at once: a task cannot be cancelled by what runs inside it
            asyncio.get_running_loop().call_soon(self._do, context=contextvars.Context())

    def begin(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """The work as a task. Whatever tasks it makes are counted too, and nothing else is."""
        context = contextvars.copy_context()
        context.run(_steps.set, self)
        return asyncio.get_running_loop().create_task(work, context=context)


def _nothing() -> None:
    pass


@contextlib.contextmanager
def counting() -> Iterator[None]:
    """While this is on, tasks that belong to a piece of work are counted."""
    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()
    loop.set_task_factory(_counted)
    try:
        yield
    finally:
        loop.set_task_factory(before)


def _counted(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any] | Generator[Any, None, Any], **options: Any
) -> "asyncio.Task[Any]":
    context = options.get("context") or contextvars.copy_context()
    steps = context.get(_steps)
    if steps is None:
        return asyncio.Task(work, loop=loop, **options)
    task: asyncio.Task[Any] = asyncio.Task(_stepped(work, steps), loop=loop, **options)
    task.add_done_callback(lambda _: work.close())  # one that was cancelled before it began was never taken up
    steps.tasks.add(task)
    return task


async def _stepped(work: Any, steps: Steps) -> Any:
    return await _Stepped(work, steps)


class _Stepped:
    """Passes everything through between a task and its work, and counts."""

    def __init__(self, work: Any, steps: Steps) -> None:
        self._work, self._steps = work, steps

    def __await__(self) -> Generator[Any, Any, Any]:
        work = self._work
        sent: Any = None
        thrown: BaseException | None = None
        while True:
            try:
                yielded = work.send(sent) if thrown is None else work.throw(thrown)
            except StopIteration as ended:
                return ended.value
            thrown = None
            self._steps.suspended()
            try:
                sent = yield yielded
            except BaseException as error:  # noqa: BLE001 - handed on to the work, whatever it is
                thrown = error
