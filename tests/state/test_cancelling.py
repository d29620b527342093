"""Tasks whose driver swallows a cancellation."""

import asyncio

import pytest

from callgate.state.cancelling import cancel_until_ended
from callgate.state.cluster.redis_news import RedisNews
from tests.harness.needs import needs

pytestmark = pytest.mark.anyio


class Stubborn:
    """Goes on after it was cancelled for the first time."""

    def __init__(self) -> None:
        self.began = asyncio.Event()

    async def work(self) -> None:
        try:
            self.began.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.Event().wait()


async def test_a_task_that_swallows_a_cancellation_is_ended_all_the_same() -> None:
    stubborn = Stubborn()
    task = asyncio.create_task(stubborn.work())
    await stubborn.began.wait()
    async with asyncio.timeout(30):
        await cancel_until_ended(task)
    assert task.cancelled()


@needs("module:redis")
async def test_news_are_closed_although_their_driver_swallows_the_cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    stubborn = Stubborn()
    news = RedisNews("redis://127.0.0.1:1", "callgate:", lambda _: None)
    monkeypatch.setattr(news, "_listen", stubborn.work)
    news.open()
    await stubborn.began.wait()
    async with asyncio.timeout(30):
        await news.close()
