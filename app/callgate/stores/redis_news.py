"""Publishes notices between the processes that share a Redis. Delivery is not guaranteed: an outage of Redis loses
them."""

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from typing import Final

import structlog

AGAIN_SECONDS: Final = 1.0
"""The delay before subscribing again."""
PATIENCE: Final = 2.0
LISTENING: Final = "listening"

log = structlog.get_logger("callgate.stores")


class RedisNews:
    """One channel. `on_news` is called with messages of other processes, and with `LISTENING` after each subscription, because
    messages may have been missed."""

    def __init__(self, url: str, prefix: str, on_news: Callable[[str], None]) -> None:
        import redis.asyncio

        self._client = redis.asyncio.Redis.from_url(url, socket_connect_timeout=PATIENCE, health_check_interval=15)
        self._channel = f"{prefix}news"
        self._own = secrets.token_hex(8)
        self._on_news = on_news
        self._listening: asyncio.Task[None] | None = None

    def open(self) -> None:
        self._listening = asyncio.create_task(self._listen(), name="news in Redis")

    async def say(self, what: str) -> bool:
        """Publish a message; return whether it could be sent."""
        import redis

        try:
            async with asyncio.timeout(PATIENCE):
                await self._client.publish(self._channel, f"{self._own} {what}")
        except (redis.RedisError, OSError, TimeoutError) as failure:
            log.warning("news_not_sent", what=what, error=type(failure).__name__)
            return False
        return True

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait({self._listening})
        await self._client.aclose()

    async def _listen(self) -> None:
        import redis

        while True:
            with contextlib.suppress(redis.RedisError, OSError):  # logged by the limits and the store
                async with self._client.pubsub(ignore_subscribe_messages=True) as channel:
                    await channel.subscribe(self._channel)
                    self._on_news(LISTENING)
                    async for message in channel.listen():
                        by, _, what = bytes(message["data"]).decode().partition(" ")
                        if by != self._own:
                            self._on_news(what)
            await asyncio.sleep(AGAIN_SECONDS)
