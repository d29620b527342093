"""Runs of several processes that share a Redis: what happens there while somebody watches here."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from callgate.application import create_app
from callgate.recorder import run_news
from callgate.recorder.recorder import Recorder
from callgate.recorder.run_news import RunNews
from callgate.records.row import RunRow
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.needs import needs
from tests.harness.redis import redis_server
from tests.harness.server import serve
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = [pytest.mark.anyio, needs("redis-server", "module:redis")]

QUESTION = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


@contextlib.asynccontextmanager
async def two(
    upstream: Upstream, redis: str, **options: Any
) -> AsyncIterator[tuple[httpx.AsyncClient, httpx.AsyncClient]]:
    async with contextlib.AsyncExitStack() as life:
        clients = []
        for _ in range(2):
            config = make_config(
                upstream.url,
                tools=["add", "wait_for_gate"],
                store={"redis_url": redis},
                require_approval={"always": ["add"]},
                **options,
            )
            url = await life.enter_async_context(serve(create_app(config)))
            clients.append(await life.enter_async_context(http_client(url)))
        yield clients[0], clients[1]


async def events(answer: httpx.Response) -> AsyncIterator[tuple[str, Any]]:
    kind = ""
    async for line in answer.aiter_lines():
        if line.startswith("event: "):
            kind = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield kind, json.loads(line.removeprefix("data: "))


async def test_a_feed_has_the_runs_and_approvals_of_the_other_process_each_once(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream.script("m", [Reply(calls=[Call("add", {"a": 1, "b": 2}, id="c")]), Reply(text="3")])
    listening, watched, hear = asyncio.Semaphore(0), asyncio.Semaphore(0), RunNews.on_message

    def hear_and_say(self: RunNews, what: str) -> None:
        hear(self, what)
        if what == "listening":
            listening.release()
        elif what == "watched":
            watched.release()

    monkeypatch.setattr(RunNews, "on_message", hear_and_say)
    async with redis_server(tmp_path) as redis, two(upstream, redis) as (here, there), asyncio.timeout(30):
        await listening.acquire()
        await listening.acquire()
        async with here.stream("GET", "/v1/feed") as mine, there.stream("GET", "/v1/feed") as theirs:
            await watched.acquire()
            await watched.acquire()
            following = events(mine), events(theirs)
            asking = asyncio.create_task(there.post("/v1/chat/completions", json=QUESTION))
            seen = [[await anext(each), await anext(each)] for each in following]
            await there.post(f"/v1/approvals/{seen[0][1][1]['id']}", json={"decision": "approve"})
            assert (await asking).status_code == 200
            for each, new in zip(seen, following, strict=True):
                each += [await anext(new), await anext(new)]

    for each in seen:
        assert [(kind, facts["state"]) for kind, facts in each] == [
            ("run", "under_way"),
            ("approval", "waiting"),
            ("approval", "approved"),
            ("run", "answered"),
        ]


async def test_no_news_are_published_once_no_client_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    said: asyncio.Queue[str] = asyncio.Queue()

    async def say(what: str) -> bool:
        said.put_nowait(what)
        return True

    monkeypatch.setattr(run_news, "WATCHED_SECONDS", 0.05)
    recorder = Recorder(lambda text: text)
    news = RunNews(recorder, say)
    news.on_message("watched")
    recorder.watchers.publish("run", RunRow("run_1", 1.0))
    assert "run_1" in await said.get()
    await asyncio.wait(news._tasks)
    recorder.watchers.publish("run", RunRow("run_2", 1.0))
    news.on_message("watched")
    recorder.watchers.publish("run", RunRow("run_3", 1.0))
    assert "run_3" in await said.get()
    await news.close()


async def test_a_message_of_another_version_is_logged_and_ignored() -> None:
    news = RunNews(Recorder(lambda text: text), None)  # type: ignore[arg-type]  # it is not asked
    with capture_logs() as logs:
        for what in ("happened {", 'happened ["run"]', 'happened ["run", {"id": 7}]', "made_up", ""):
            news.on_message(what)
    assert [each["event"] for each in logs] == ["news_not_understood"] * 3
