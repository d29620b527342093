"""Several workers serve as one: on one port, with one drain and one page of metrics, and a dead one is started again."""

import asyncio
import contextlib
import os
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from callgate.config.schema import Config
from callgate.server.workers import share_of
from callgate.telemetry.metrics import Metrics, added_up
from tests.harness.clients import http_client
from tests.harness.configs import as_yaml, config_dict
from tests.harness.needs import needs
from tests.harness.process import Child, serving
from tests.harness.redis import redis_server

pytestmark = pytest.mark.anyio

ASK = {"model": "demo", "messages": [{"role": "user", "content": "What is 2*21?"}]}


def _config(**sections: Any) -> dict[str, Any]:
    config = config_dict("http://127.0.0.1:1", **sections)
    config["model_list"] = [{"model_name": "demo", "litellm_params": {"model": "demo/demo"}, "tools": ["*"]}]
    config["tools"] = [{"kind": "python", "module": "callgate.tools.builtin"}]
    return config


@contextlib.asynccontextmanager
async def workers(folder: Path, count: int, **sections: Any) -> AsyncIterator[Child]:
    """A server with so many workers, once all of them serve."""
    async with redis_server(folder) as url:
        file = folder / "config.yaml"
        file.write_text(as_yaml(_config(store={"redis_url": url}, server={"workers": count}, **sections)), "utf-8")
        async with serving(file) as child:
            yield child


def of(child: Child) -> set[int]:
    """The processes of the workers."""
    with Path(f"/proc/{child.process.pid}/task/{child.process.pid}/children").open(encoding="ascii") as file:
        return set(map(int, file.read().split()))


def lives(process: int) -> bool:
    """Return whether a process runs. One that has ended may not have been waited for yet."""
    try:
        return ") Z " not in Path(f"/proc/{process}/stat").read_text("ascii")
    except OSError:
        return False


@needs("redis-server")
@pytest.mark.slow
async def test_workers_share_the_requests_and_the_metrics_count_all_of_them(tmp_path: Path):
    async with workers(tmp_path, 2) as child, http_client(child.url) as client:
        assert len(of(child)) == 2

        async def ask() -> str:
            answer = await client.post("/v1/chat/completions", json=ASK, headers={"connection": "close"})
            return str(answer.json()["choices"][0]["message"]["content"])

        answers = Counter(await asyncio.gather(*(ask() for _ in range(40))))
        assert [("42" in text, count) for text, count in answers.items()] == [(True, 40)]
        # Whichever of them is asked says the same.
        for _ in range(6):
            page = (await client.get("/metrics", headers={"connection": "close"})).text
            assert re.findall(
                r'^callgate_requests_total{model="demo",route="chat",status="200"} (\S+)', page, re.MULTILINE
            ) == ["40.0"]
        child.signal(signal.SIGTERM)
        assert await child.ended() == 0


@needs("redis-server")
@pytest.mark.slow
async def test_a_worker_that_is_killed_is_started_again_and_the_others_go_on(tmp_path: Path):
    async with workers(tmp_path, 2) as child, http_client(child.url) as client:
        first = of(child)
        for _ in range(12):
            await client.post("/v1/chat/completions", json=ASK, headers={"connection": "close"})
        assert await asked(client) == 12.0
        os.kill(min(first), signal.SIGKILL)
        await child.line("worker_died")
        assert await asked(client) == 12.0, "a sum that goes down is taken for a new beginning, and all of it for new"
        for _ in range(10):
            assert (await client.get("/health/ready", headers={"connection": "close"})).status_code == 200
        async with asyncio.timeout(20):
            while len(now := of(child)) < 2 or now == first:  # noqa: ASYNC110 - no event of another process' children
                await asyncio.sleep(0.05)
        assert max(first) in of(child)
        for _ in range(3):
            assert await asked(client) == 12.0
        child.signal(signal.SIGTERM)
        assert await child.ended() == 0


@needs("redis-server")
@pytest.mark.slow
async def test_workers_whose_parent_is_killed_end_too(tmp_path: Path):
    async with workers(tmp_path, 2) as child:
        left = of(child)
        child.signal(signal.SIGKILL)
        await child.ended()
        async with asyncio.timeout(20):
            while any(map(lives, left)):  # noqa: ASYNC110 - they are not our children
                await asyncio.sleep(0.05)


async def asked(client: httpx.AsyncClient) -> float:
    """How many requests were counted, whichever worker is asked."""
    page = (await client.get("/metrics", headers={"connection": "close"})).text
    [count] = re.findall(r'^callgate_requests_total{model="demo",route="chat",status="200"} (\S+)', page, re.MULTILINE)
    return float(count)


async def test_several_workers_without_redis_are_refused_with_what_to_do(tmp_path: Path):
    file = tmp_path / "config.yaml"
    file.write_text(as_yaml(_config(server={"workers": 2})), "utf-8")
    with pytest.raises(AssertionError, match=r"store\.redis_url"):
        async with serving(file):
            pass


def test_what_protects_the_machine_is_divided_and_nothing_of_it_is_lost():
    config = Config.model_validate(
        _config(limits={"concurrent_requests": 10, "tool_threads": 3, "child_processes": 1}, server={"connections": 7})
    )
    parts = [share_of(config, place, 4) for place in range(4)]
    assert [part.limits.concurrent_requests for part in parts] == [3, 3, 2, 2]
    assert [part.limits.tool_threads for part in parts] == [1, 1, 1, 1]
    assert [part.limits.child_processes for part in parts] == [1, 1, 1, 1]
    assert sum(part.server.connections for part in parts) == 7


def test_metrics_of_several_processes_are_added_up_but_for_when_they_began():
    pages = []
    for status in (200, 200, 429):
        metrics = Metrics()
        metrics.request("chat", status, "m", 0.2)
        pages.append(metrics.exposition()[0])
    text = added_up(pages)[0].decode()
    assert 'callgate_requests_total{model="m",route="chat",status="200"} 2.0' in text
    assert 'callgate_requests_total{model="m",route="chat",status="429"} 1.0' in text
    assert 'callgate_request_seconds_count{model="m",route="chat"} 3.0' in text
    assert 'callgate_request_seconds_bucket{le="0.25",model="m",route="chat"} 3.0' in text
    starts = re.findall(r"^process_start_time_seconds (\S+)", text, re.MULTILINE)
    assert starts == re.findall(r"^process_start_time_seconds (\S+)", pages[0].decode(), re.MULTILINE)
