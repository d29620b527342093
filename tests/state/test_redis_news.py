"""Notices between processes that share a Redis, over a real one."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from callgate.state.cluster.redis_news import LISTENING, RedisNews
from callgate.untrusted.work import TURN_TEXTS
from tests.harness.needs import needs
from tests.harness.redis import redis_server

pytestmark = [pytest.mark.anyio, needs("redis-server", "module:redis")]


@contextlib.asynccontextmanager
async def listening(folder: Path, on_news: Callable[[str], None]) -> AsyncIterator[Any]:
    """A client of the Redis whose news is heard."""
    from redis.asyncio import Redis

    subscribed = asyncio.Event()

    def hear(what: str) -> None:
        if what == LISTENING:
            subscribed.set()
        else:
            on_news(what)

    async with redis_server(folder) as url, asyncio.timeout(60):
        news = RedisNews(url, "test:", hear)
        news.open()
        try:
            await subscribed.wait()
            async with Redis.from_url(url) as client:
                yield client
        finally:
            await news.close()


async def test_a_flood_of_news_leaves_turns_to_the_loop(tmp_path: Path) -> None:
    heard = 0
    of_turn = 0
    most = 0
    is_over = asyncio.Event()

    def count(what: str) -> None:
        nonlocal heard, of_turn, most
        heard += 1
        of_turn += 1
        most = max(most, of_turn)
        if what == "over":
            is_over.set()

    async def begin_turns() -> None:
        nonlocal of_turn
        while True:
            of_turn = 0
            await asyncio.sleep(0)

    async with listening(tmp_path, count) as client:
        turns = asyncio.create_task(begin_turns())
        async with client.pipeline(transaction=False) as flood:
            for _ in range(20_000):
                flood.publish("test:news", "x y")
            flood.publish("test:news", "x over")
            await flood.execute()
        await is_over.wait()
        turns.cancel()
    assert (heard, most <= TURN_TEXTS) == (20_001, True), most


async def test_bytes_that_are_no_text_do_not_end_listening(tmp_path: Path) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()
    async with listening(tmp_path, heard.put_nowait) as client:
        await client.publish("test:news", b"\xff\xfe \xff")
        await client.publish("test:news", b"other happened")
        assert [await heard.get(), await heard.get()] == ["\ufffd", "happened"]
