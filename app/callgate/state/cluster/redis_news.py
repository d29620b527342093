"""Publishes notices between the processes that share a Redis. Delivery is not guaranteed: an outage of Redis loses
them."""

import asyncio
import secrets
from collections.abc import Callable
from typing import Final

import structlog

from callgate.state.cancelling import cancel_until_ended
from callgate.telemetry.outages import Outage
from callgate.untrusted.work import TurnShare

AGAIN_SECONDS: Final = 1.0
"""The delay before subscribing again."""
PATIENCE: Final = 2.0
LISTENING: Final = "listening"
NOTE_SECONDS: Final = 3600
"""How long a note is kept. A process that missed more asks its operator."""

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
        self._unsent = Outage()
        self._unheard = Outage()

    def open(self) -> None:
        self._listening = asyncio.create_task(self._listen(), name="news in Redis")

    async def say(self, what: str) -> bool:
        """Publish a message; return whether it could be sent."""
        import redis

        try:
            async with asyncio.timeout(PATIENCE):
                await self._client.publish(self._channel, f"{self._own} {what}")
        except (redis.RedisError, OSError, TimeoutError) as failure:
            self._note_unsent(what, failure)
            return False
        if failures := self._unsent.over():
            log.warning("news_sent_again", failures=failures)
        return True

    def _note_unsent(self, what: str, failure: Exception) -> None:
        if failures := self._unsent.failed():
            log.warning("news_not_sent", what=what, error=type(failure).__name__, failures=failures)

    async def leave_note(self, name: str, text: str) -> None:
        """Leave a note for processes that do not listen now; forgotten after an hour."""
        import redis

        try:
            async with asyncio.timeout(PATIENCE):
                await self._client.set(f"{self._channel}:{name}", text, ex=NOTE_SECONDS)
        except (redis.RedisError, OSError, TimeoutError) as failure:
            self._note_unsent(name, failure)

    async def read_note(self, name: str) -> str:
        """Return a note; empty where there is none, or it cannot be read."""
        import redis

        try:
            async with asyncio.timeout(PATIENCE):
                note = await self._client.get(f"{self._channel}:{name}")
        except (redis.RedisError, OSError, TimeoutError):  # logged by the limits and the store
            return ""
        if isinstance(note, bytes):
            return note.decode(errors="replace")
        return ""

    async def close(self) -> None:
        if self._listening is not None:
            await cancel_until_ended(self._listening)
        await self._client.aclose()

    async def _listen(self) -> None:
        import redis

        while True:
            try:
                async with self._client.pubsub(ignore_subscribe_messages=True) as channel:
                    await channel.subscribe(self._channel)
                    if failures := self._unheard.over():
                        log.warning("news_heard_again", failures=failures)
                    self._on_news(LISTENING)
                    share = TurnShare()
                    async for message in channel.listen():
                        data = bytes(message["data"])
                        by, _, what = data.decode(errors="replace").partition(" ")
                        if by != self._own:
                            self._on_news(what)
                        share.take(len(data))
                        if not share.is_left:  # messages that have arrived are given without a pause
                            await asyncio.sleep(0)
                            share = TurnShare()
            except (redis.RedisError, OSError) as failure:
                if failures := self._unheard.failed():
                    log.warning("news_not_heard", error=type(failure).__name__, failures=failures)
            await asyncio.sleep(AGAIN_SECONDS)
