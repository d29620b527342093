"""Calls that wait for approval at one process are listed and decided at another that shares its ledger."""

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from callgate.application import create_app
from callgate.tools.approvals.shared_approvals import SharedApprovals
from tests.chaos import tools
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.needs import needs
from tests.harness.server import serve
from tests.harness.wire import raw_connection, raw_post
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = pytest.mark.anyio
BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=needs("postgres", "module:asyncpg"))])
async def ledger(request: Any, tmp_path: Path, schema: str) -> dict[str, Any]:
    if request.param == "sqlite":
        return {"data_dir": str(tmp_path)}
    from callgate.state.cluster.postgres import migrate

    url = request.getfixturevalue("postgres").url
    await migrate(url, schema)
    return {"ledger": {"url": url, "namespace": schema}}


@pytest.fixture
def marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the tool leaves one."""
    file = tmp_path / "marks"
    file.touch()
    monkeypatch.setenv(tools.MARKS, str(file))
    return file


def ran(marks: Path) -> str:
    return marks.read_text()


@contextlib.asynccontextmanager
async def two(upstream: Upstream, ledger: dict[str, Any], **options: Any) -> AsyncIterator[tuple[str, str]]:
    entry = {"kind": "python", "function": f"{tools.__name__}:count", "safety": "write", "require_approval": "always"}
    config = make_config(upstream.url, tools=[entry], **ledger, **options)
    async with serve(create_app(config)) as one, serve(create_app(config)) as other:
        yield one, other


async def waiting_at(url: str, count: int = 1) -> list[dict[str, Any]]:
    async with http_client(url) as client, asyncio.timeout(30):
        while len(found := (await client.get("/v1/approvals")).json()["data"]) != count:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        return list(found)


async def decide(url: str, id: str, **given: Any) -> Any:
    return await raw_post(url, {"decision": "approve", **given}, path=f"/v1/approvals/{id}")


async def test_it_is_listed_and_decided_at_the_other_once(
    upstream: Upstream, ledger: dict[str, Any], marks: Path
) -> None:
    upstream.script("m", [Reply(calls=[Call("count", {"label": "a"})]), Reply(text="Done.")])
    async with two(upstream, ledger) as (one, other):
        asking = asyncio.create_task(raw_post(one, BODY))
        [asked] = await waiting_at(other)
        assert await waiting_at(one) == [asked]
        wrong = await decide(other, asked["id"], hash="sha256:00")
        decided = await asyncio.gather(*(decide(url, asked["id"], hash=asked["hash"]) for url in (one, other) * 3))
        answer = await asking
        assert await waiting_at(other, 0) == []
        gone = await decide(other, "apr_0")
    assert wrong.status == 409
    assert sorted(each.status for each in decided) == [200, 409, 409, 409, 409, 409]
    assert {json.loads(each.body)["error"]["code"] for each in decided if each.status == 409} == {"approval_approved"}
    assert b"Done." in answer.body
    assert ran(marks) == "a\n"
    assert gone.status == 404


ROGUE = {
    "no JSON": "nothing",
    "another type": "17",
    "too deep": "[" * 100_000,
    "too many values": "[" + "{}," * 300_000 + "{}]",
}


async def test_what_somebody_else_wrote_of_a_call_is_not_listed_and_not_decided_and_the_next_is(
    upstream: Upstream, tmp_path: Path, marks: Path
) -> None:
    upstream.script("m", [Reply(calls=[Call("count", {"label": "a"})]), Reply(text="Done.")])
    async with two(upstream, {"data_dir": str(tmp_path)}) as (one, other):
        asking = asyncio.create_task(raw_post(one, BODY))
        [asked] = await waiting_at(other)
        with contextlib.closing(sqlite3.connect(tmp_path / "ledger.sqlite3", isolation_level=None)) as database:
            columns = "process, hash, since, expires, state"
            for id, facts in ROGUE.items():
                copied = (
                    f"INSERT INTO approvals (id, facts, {columns}) SELECT ?, ?, {columns} FROM approvals WHERE id = ?"
                )
                database.execute(copied, (id.replace(" ", "_"), facts, asked["id"]))
            assert await waiting_at(other) == [asked]
            for id in ROGUE:
                refused = await decide(other, id.replace(" ", "_"), hash=asked["hash"])
                assert (refused.status, json.loads(refused.body)["error"]["code"]) == (500, "approval_unreadable")
            assert (await decide(other, asked["id"], hash=asked["hash"])).status == 200
        assert b"Done." in (await asking).body
    assert ran(marks) == "a\n"


async def test_a_call_whose_beginning_is_still_being_written_is_listed_where_it_waits(
    upstream: Upstream, ledger: dict[str, Any], marks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_write = asyncio.Event()
    write = SharedApprovals._write

    async def held(*given: Any) -> None:
        await may_write.wait()
        await write(*given)

    monkeypatch.setattr(SharedApprovals, "_write", held)
    upstream.script("m", [Reply(calls=[Call("count", {"label": "a"})]), Reply(text="Done.")])
    entry = {"kind": "python", "function": f"{tools.__name__}:count", "safety": "write", "require_approval": "always"}
    app = create_app(make_config(upstream.url, tools=[entry], **ledger))
    async with serve(app) as url:
        asking = asyncio.create_task(raw_post(url, BODY))
        shared = app.state.manager.shared
        async with asyncio.timeout(30):
            while not shared.approvals.waiting():
                await shared.approvals.changed()
        listing = asyncio.create_task(shared.decisions.waiting())
        for _ in range(5):  # as far as it comes by itself
            await asyncio.sleep(0)
        may_write.set()
        [asked] = await listing
        await decide(url, asked["id"])
        assert (await asking).status == 200
    assert ran(marks) == "a\n"


async def test_a_refusal_from_the_other_reaches_the_model_with_its_reason(
    upstream: Upstream, ledger: dict[str, Any], marks: Path
) -> None:
    upstream.script("m", [Reply(calls=[Call("count", {"label": "a"})]), Reply(text="I see.")])
    async with two(upstream, ledger) as (one, other):
        asking = asyncio.create_task(raw_post(one, BODY))
        [asked] = await waiting_at(other)
        await decide(other, asked["id"], decision="deny", reason="not on a Sunday")
        await asking
    [result] = [m["content"] for m in upstream.requests[1].messages if m["role"] == "tool"]
    assert "not on a Sunday" in result
    assert ran(marks) == ""


async def test_when_its_client_has_left_or_its_time_is_over_no_decision_is_accepted(
    upstream: Upstream, ledger: dict[str, Any], marks: Path
) -> None:
    call = Reply(calls=[Call("count", {"label": "a"})])
    upstream.script("m", [call, call, Reply(text="I see.")])
    async with two(upstream, ledger, approvals={"timeout_seconds": 1}) as (one, other):
        async with raw_connection(one) as connection:
            await connection.post("/v1/chat/completions", BODY)
            [left] = await waiting_at(other)
        assert await waiting_at(other, 0) == []
        asking = asyncio.create_task(raw_post(one, BODY))
        [asked] = await waiting_at(other)
        assert await waiting_at(other, 0) == []
        late = await decide(other, asked["id"])
        await asking
        after = [json.loads((await decide(other, each["id"])).body)["error"]["code"] for each in (left, asked)]
    assert json.loads(late.body)["error"]["code"] == "approval_expired"
    assert after == ["approval_withdrawn", "approval_expired"]
    assert ran(marks) == ""
