"""Runs of several processes that share a data folder and no Redis: it is said which of them has one that is under way."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from callgate.application import create_app
from callgate.auth.keys import mint_key
from tests.harness import toolshed
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = pytest.mark.anyio

QUESTION = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True}


@contextlib.asynccontextmanager
async def serving(upstream: Upstream, folder: Path, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    config = make_config(upstream.url, tools=["wait_for_gate"], data_dir=str(folder), **options)
    async with serve(create_app(config)) as url, http_client(url) as client:
        yield client


def sockets_in(folder: Path) -> list[Path]:
    return list(folder.glob("*.sock"))


@contextlib.asynccontextmanager
async def under_way(upstream: Upstream, client: httpx.AsyncClient, headers: dict[str, str]) -> AsyncIterator[str]:
    """A run whose tool is at work."""
    upstream.script("m", [Reply(calls=[Call("wait_for_gate", {})]), Reply(text="done")])
    async with (
        toolshed.held() as running,
        client.stream("POST", "/v1/chat/completions", json=QUESTION, headers=headers) as answer,
    ):
        await running.started.wait()
        yield answer.headers["x-callgate-run"]
        running.gate.set()
        await answer.aread()


async def test_the_answer_names_the_process_that_has_a_run_under_way(upstream: Upstream, tmp_path: Path) -> None:
    keys = {name: mint_key() for name in ("alice", "bob")}
    listed = [{"name": name, "hash": hash, "see": "own"} for name, (_, hash) in keys.items()]
    alice, bob = ({"authorization": f"Bearer {key}"} for key, _ in keys.values())
    options = {"auth": "keys", "keys": listed}
    async with serving(upstream, tmp_path, **options) as here, serving(upstream, tmp_path, **options) as there:
        async with under_way(upstream, there, alice) as run:
            elsewhere = await here.get(f"/v1/runs/{run}", headers=alice)
            export = await here.get(f"/v1/runs/{run}/export", headers=alice)
            foreign = await here.get(f"/v1/runs/{run}", headers=bob)
            made_up = await here.get(f"/v1/runs/run_{24 * '0'}", headers=alice)
        async with asyncio.timeout(10):
            while (ended := await here.get(f"/v1/runs/{run}", headers=alice)).status_code == 404:  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # a thread writes it, and nobody is told
    assert sockets_in(tmp_path) == []

    for answer in (elsewhere, export):
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "run_not_here")
        assert f"{socket.gethostname()}:" in answer.json()["error"]["message"]
        assert "where it is under way" in answer.json()["error"]["message"]
    assert [each.json()["error"]["code"] for each in (foreign, made_up)] == ["run_not_found", "run_not_found"]
    assert ended.json()["state"] == "answered"


async def test_a_process_that_died_or_does_not_answer_holds_no_request_up(upstream: Upstream, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead, socket.socket(socket.AF_UNIX) as silent:
        dead.bind(str(tmp_path / "process-dead.sock"))
        silent.bind(str(tmp_path / "process-silent.sock"))
        silent.listen()
        async with serving(upstream, tmp_path) as client, asyncio.timeout(5):
            answer = await client.get(f"/v1/runs/run_{24 * '0'}")
    assert answer.json()["error"]["code"] == "run_not_found"
    assert not (tmp_path / "process-dead.sock").exists()


async def test_a_folder_that_can_hold_no_socket_is_served_all_the_same(upstream: Upstream, tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    async with serving(upstream, folder) as client:
        answer = await client.get(f"/v1/runs/run_{24 * '0'}")
    assert answer.json()["error"]["code"] == "run_not_found"
