"""Asks Redis about limits while a request waits: with short timeouts, and not for a moment after a failure."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from math import inf
from typing import Any, Final

import structlog

from callgate.state.cancelling import cancel_until_ended
from callgate.telemetry.outages import Outage

PATIENCE: Final = 0.25
"""Seconds for an answer of Redis."""
LISTENS: Final = 3
LISTEN_SECONDS: Final = 0.01
"""How often, and how long, the event loop may still read after the time is over."""

AWAY_SECONDS: Final = 1.0
"""How long Redis is not asked after a failure, because every request would wait for its timeout."""

log = structlog.get_logger("callgate.limits")


class LimitsRedis:
    """A Redis client that is not asked for a moment after a failure."""

    def __init__(self, url: str, *, counting: str) -> None:
        """`counting`: what happens while Redis is away, for the log."""
        import redis.asyncio
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        self.client = redis.asyncio.Redis.from_url(
            url,
            socket_timeout=None,  # see `with_timeout`
            socket_connect_timeout=2 * PATIENCE,
            retry=Retry(NoBackoff(), 0),
            health_check_interval=15,
        )
        self._counting = counting
        self._away_until = -inf
        self._outage = Outage()

    async def ask(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Return the answer of Redis, or None when it is away."""
        import redis

        if time.monotonic() < self._away_until:
            return None
        try:
            answer = await ask_twice(ask)
        except (redis.RedisError, OSError, TimeoutError) as failure:
            if time.monotonic() >= self._away_until and (failures := self._outage.failed()):
                log.error(  # noqa: TRY400 - a traceback of the client library does not help
                    "redis_unavailable", error=type(failure).__name__, counting=self._counting, failures=failures
                )
            self._away_until = time.monotonic() + AWAY_SECONDS
            return None
        if failures := self._outage.over():
            log.warning("redis_available_again", failures=failures)
        return answer


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
        await cancel_until_ended(task)
        raise TimeoutError
    return task.result()
