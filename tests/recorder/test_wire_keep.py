"""Bodies of providers' answers: all choices have them, and they leave the file before the other texts do."""

import contextlib
import sqlite3
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from callgate.application import create_app
from callgate.recorder.run_filter import RunFilter
from callgate.recorder.store import FILE, RunStore
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.scripted_upstream import Call, ErrorEvent, Reply, Upstream

pytestmark = pytest.mark.anyio

DAY = 86_400


@contextlib.asynccontextmanager
async def served_with_wire(upstream: Upstream, folder: Path, **record: Any) -> AsyncIterator[httpx.AsyncClient]:
    options = {"data_dir": str(folder), "record": {"content": True, "wire": "on", **record}}
    async with (
        serve(create_app(make_config(upstream.url, tools=["add"], **options))) as url,
        http_client(url) as client,
    ):
        yield client


async def ask(client: httpx.AsyncClient, upstream: Upstream, *, choices: int = 1) -> str:
    upstream.script(
        "m", lambda seen: Reply(text="5") if seen.tool_results else Reply(calls=[Call("add", {"a": 2, "b": 3})])
    )
    asked = {"model": "m", "messages": [{"role": "user", "content": "what is 2 + 3?"}], "n": choices}
    return str((await client.post("/v1/chat/completions", json=asked)).headers["x-callgate-run"])


def prune(folder: Path, wire_older_than: float) -> None:
    with contextlib.closing(RunStore(folder)) as store:
        store.prune(older_than=0.0, most_bytes=10**12, wire_older_than=wire_older_than)
        total = store.bytes()
    with contextlib.closing(sqlite3.connect(folder / FILE)) as database:
        assert database.execute("SELECT sum(bytes) FROM runs").fetchone() == (total,)


def parts(folder: Path) -> dict[str, list[str]]:
    """The bodies that are kept of each run."""
    with contextlib.closing(RunStore(folder, read_only=True)) as store:
        whole = {row.id: store.get(row.id) for row in store.page(RunFilter(), 5)}
    return {id: [part for part in run.content if "wire." in part] for id, run in whole.items() if run is not None}


async def test_they_are_removed_by_age_and_the_other_texts_stay(upstream: Upstream, tmp_path: Path) -> None:
    async with served_with_wire(upstream, tmp_path) as client:
        first = await ask(client, upstream, choices=2)
    began = time.time()
    prune(tmp_path, began - DAY)
    assert len(parts(tmp_path)[first]) == 4  # it is not old enough
    prune(tmp_path, began + 1)
    assert parts(tmp_path) == {first: []}
    async with served_with_wire(upstream, tmp_path) as client:
        second = await ask(client, upstream)
        texts = (await client.get(f"/v1/runs/{first}?content=1")).json()
        wire = await client.get(f"/v1/runs/{first}/wire/0")
    prune(tmp_path, began)  # what was written since is not looked at

    assert (wire.status_code, wire.json()["error"]["code"]) == (404, "wire_not_kept")
    assert texts["kept"] == "content"
    assert texts["content"]["turn.1.text"] == texts["content"]["choice.1.turn.1.text"] == "5"
    assert parts(tmp_path) == {first: [], second: ["wire.0.0", "wire.1.0"]}


async def test_all_choices_have_theirs_and_all_lose_them_where_nothing_was_odd(
    upstream: Upstream, tmp_path: Path
) -> None:
    async with served_with_wire(upstream, tmp_path / "on") as client:
        run = await ask(client, upstream, choices=2)
        bodies = (await client.get(f"/v1/runs/{run}/wire/0")).json()["data"]
    async with served_with_wire(upstream, tmp_path / "on_error", wire="on_error") as client:
        run = await ask(client, upstream, choices=2)
        content = (await client.get(f"/v1/runs/{run}?content=1")).json()["content"]

    assert len(bodies) == 2
    assert "choice.1.turn.1.text" in content
    assert [part for part in content if "wire." in part] == []


async def test_text_of_an_answer_that_broke_off_is_not_that_of_the_one_that_came_instead(
    upstream: Upstream, tmp_path: Path
) -> None:
    broken_off = Reply(text="planted beginning of an answer", fault=ErrorEvent(after=4))
    script = [broken_off, Reply(calls=[Call("add", {"a": 2, "b": 3})]), Reply(text='{"sum": 5}')]
    upstream.script("m", script)
    asked = {
        "model": "m",
        "messages": [{"role": "user", "content": "what is 2 + 3?"}],
        "response_format": {"type": "json_object"},
        "stream": True,
    }
    async with served_with_wire(upstream, tmp_path) as client:
        run = (await client.post("/v1/chat/completions", json=asked)).headers["x-callgate-run"]
        content = (await client.get(f"/v1/runs/{run}?content=1")).json()["content"]

    assert "planted" in content["wire.0.0"]
    assert "turn.0.text" not in content
    assert content["turn.1.text"] == '{"sum": 5}'
