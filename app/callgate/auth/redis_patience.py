"""Timeouts for Redis while a request waits for it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

PATIENCE: Final = 0.25
"""Seconds for an answer of Redis."""
LISTENS: Final = 3
LISTEN_SECONDS: Final = 0.01
"""How often, and how long, the event loop may still read after the time is over."""


async def ask_twice(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Return the answer of Redis; ask a second time where there was none, because a connection may have died unnoticed. The
    command must be idempotent."""
    try:
        return await with_timeout(ask(), 2 * PATIENCE)  # a connection and an answer
    except TimeoutError:
        return await with_timeout(ask(), 2 * PATIENCE)


async def with_timeout(asking: Awaitable[Any], seconds: float) -> Any:
    """Return the answer of Redis. Raises `TimeoutError`.

    An answer that arrived while this process was blocked counts as in time: otherwise a busy process would take Redis for
    away, and count alone."""
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
