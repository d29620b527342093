"""Runs coroutines at the same time, without the cycle of references that a cancelled `asyncio.TaskGroup` leaves."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def side_by_side(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results, in the order of the works. Where one fails the others are cancelled; several failures are a group.

    A task group that is cancelled keeps its error in its frame, which the error's traceback has: all that was behind it, such
    as a whole conversation, would stay until a full collection of garbage.
    """
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    failures = [failure for task in tasks if not task.cancelled() and (failure := task.exception()) is not None]
    if not failures:
        return [task.result() for task in tasks]
    tasks.clear()
    failure = None
    try:
        raise failures[0] if len(failures) == 1 else BaseExceptionGroup("side by side", failures)
    finally:
        del failures
