"""How long Redis is waited for where a request waits for it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

PATIENCE: Final = 0.25
"""Seconds for Redis to answer. A request waits for it."""
LISTENS: Final = 3
LISTEN_SECONDS: Final = 0.01
"""How often, and how long, it is listened once more when the time is over."""


async def twice_in_time(ask: Callable[[], Awaitable[Any]]) -> Any:
    """What Redis says when it is asked, or once more where it said nothing: a connection may have died unheard, and whoever is
    refused by nobody is let in by all. It must do no harm to do it twice."""
    try:
        return await in_time(ask(), 2 * PATIENCE)  # a connection and an answer
    except TimeoutError:
        return await in_time(ask(), 2 * PATIENCE)


async def in_time(asking: Awaitable[Any], seconds: float) -> Any:
    """What Redis says. Raises `TimeoutError` where it says nothing for so many seconds.

    What came while this process itself stood still has come in time: else one that has too little of its processor would
    take Redis for away, and count alone."""
    task = asyncio.ensure_future(asking)
    try:
        await asyncio.wait({task}, timeout=seconds)
        for _ in range(LISTENS):
            if task.done():
                break
            await asyncio.wait({task}, timeout=LISTEN_SECONDS)
    except BaseException:
        task.cancel()
        raise
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
        raise TimeoutError
    return task.result()
