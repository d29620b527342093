"""Calling a tool without a model: the same gate, policy, approval and ledger as for a model's call."""

import asyncio
import contextlib
import json
import sqlite3
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from callgate.access.keys import mint_key
from callgate.application import create_app
from tests.harness import toolshed
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.scripted_upstream import Upstream

pytestmark = pytest.mark.anyio

TOOLS = ["add", "send_mail", "wait_for_gate"]


@contextlib.asynccontextmanager
async def served_tools(upstream: Upstream, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    config = make_config(upstream.url, tools=options.pop("tools", TOOLS), **options)
    async with serve(create_app(config)) as url, http_client(url) as client:
        yield client


async def test_a_tool_is_called_and_the_call_is_a_run_and_a_row_of_the_ledger(
    upstream: Upstream, tmp_path: Path
) -> None:
    async with served_tools(upstream, data_dir=str(tmp_path)) as client:
        answer = await client.post("/v1/tools/add/call", json={"arguments": {"a": 2, "b": 3}})
        run = (await client.get(f"/v1/runs/{answer.headers['x-callgate-run']}")).json()
    result = answer.json()

    assert answer.status_code == 200
    assert (result["verdict"], result["outcome"], result["text"]) == ("ready", "returned", "5")
    assert (run["route"], run["state"], run["calls"], run["key"]) == ("tool", "answered", 1, "anonymous")
    with contextlib.closing(sqlite3.connect(tmp_path / "ledger.sqlite3")) as ledger:
        rows = ledger.execute("SELECT run_id, call_id, tool, state FROM calls").fetchall()
    assert rows == [(result["run"], result["id"], "add", "done")]
    assert not list(upstream.requests)


@pytest.mark.parametrize(
    ("arguments", "flaw"),
    [
        ({"a": 2, "b": "three"}, "schema_mismatch"),
        ({"a": 2}, "schema_mismatch"),
        ('{"a": 2, "b": ', "truncated"),
        ("[1, 2]", "not_an_object"),
    ],
)
async def test_what_the_gate_does_not_let_through_is_not_run(
    upstream: Upstream, tmp_path: Path, arguments: Any, flaw: str
) -> None:
    async with served_tools(upstream, data_dir=str(tmp_path)) as client:
        result = (await client.post("/v1/tools/add/call", json={"arguments": arguments})).json()

    assert (result["verdict"], result["flaw"], result["outcome"]) == ("broken", flaw, "not_run")
    assert result["text"]
    with contextlib.closing(sqlite3.connect(tmp_path / "ledger.sqlite3")) as ledger:
        assert ledger.execute("SELECT * FROM calls").fetchall() == []


async def test_a_call_that_needs_approval_waits_for_it(upstream: Upstream) -> None:
    async with served_tools(upstream, require_approval={"always": ["send_*"]}) as client:
        body = {"arguments": {"to": "bob", "text": "hi"}}
        calling = asyncio.create_task(client.post("/v1/tools/send_mail/call", json=body))
        async with asyncio.timeout(30):
            while not (waiting := (await client.get("/v1/approvals")).json()["data"]):  # noqa: ASYNC110 - as in test_approvals
                await asyncio.sleep(0.01)
        assert (waiting[0]["tool"], waiting[0]["arguments"]) == ("send_mail", body["arguments"])
        await client.post(f"/v1/approvals/{waiting[0]['id']}", json={"decision": "deny", "reason": "not bob"})
        result = (await calling).json()

    assert result["outcome"] == "refused"
    assert "not bob" in result["text"]


async def test_who_leaves_stops_the_tool(upstream: Upstream) -> None:
    async with toolshed.held() as running, served_tools(upstream) as client:
        calling = asyncio.create_task(client.post("/v1/tools/wait_for_gate/call", json={}))
        await running.started.wait()
        calling.cancel()
        async with asyncio.timeout(30):
            await running.cancelled.wait()


async def test_only_an_operator_calls_tools_and_only_those_of_its_key(upstream: Upstream) -> None:
    made = {name: mint_key() for name in ("user", "boss")}
    keys = [
        {"name": "user", "hash": made["user"][1]},
        {"name": "boss", "hash": made["boss"][1], "admin": True, "tools": ["add"]},
    ]
    async with served_tools(upstream, auth="keys", keys=keys) as client:

        async def call(name: str, tool: str) -> tuple[int, str | None]:
            by = {"authorization": f"Bearer {made[name][0]}"}
            answer = await client.post(f"/v1/tools/{tool}/call", json={}, headers=by)
            return answer.status_code, answer.json().get("error", {}).get("code")

        assert await call("user", "add") == (403, "admin_not_allowed")
        assert await call("boss", "send_mail") == (404, "tool_not_found")
        assert await call("boss", "add") == (200, None)


@pytest.mark.parametrize(
    "body",
    [
        "{",
        '{"argument": {}}',
        '{"arguments": 3}',
        "[]",
        b'{"arguments": {"a": "\xff"}}',
        b'{"arguments": "\xff"}',
        '{"arguments": "\\ud83d"}',
    ],
)
async def test_a_body_with_other_fields_is_refused(upstream: Upstream, body: str | bytes) -> None:
    async with served_tools(upstream) as client:
        answer = await client.post("/v1/tools/add/call", content=body)

    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_body")


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ('{"a": 2, "b": 3, "b": 4}', 200, "broken"),
        ('{"a": 2, "b": 1e999}', 200, "broken"),
        ('{"a": 2, "b": 3}, "arguments": {"a": 2, "b": 4}', 400, "duplicate_parameter"),
        ('{"a": 2, "b": 3}, "arg\\u0075ments": {"a": 2, "b": 4}', 400, "duplicate_parameter"),
        ('{"a": 2, "b": 1234567890123456789}', 200, "1234567890123456791"),
    ],
)
async def test_the_arguments_are_those_that_were_sent_or_nothing_runs(
    upstream: Upstream, arguments: str, status: int, said: str
) -> None:
    async with served_tools(upstream) as client:
        answer = await client.post("/v1/tools/add/call", content=f'{{"arguments": {arguments}}}')
    found = answer.json()

    assert answer.status_code == status
    assert said in (found.get("verdict"), found.get("text"), found.get("error", {}).get("code")), found


async def test_a_call_that_was_to_be_made_once_is_refused_and_not_made_twice(upstream: Upstream) -> None:
    async with served_tools(upstream) as client:
        answer = await client.post("/v1/tools/add/call", json={}, headers={"idempotency-key": "k"})
        runs = (await client.get("/v1/runs")).json()["data"]

    assert (answer.status_code, answer.json()["error"]["param"], runs) == (400, "Idempotency-Key", [])


async def test_the_servers_of_tools_are_listed_for_an_operator(upstream: Upstream) -> None:
    user, user_hash = mint_key()
    boss, boss_hash = mint_key()
    keys = [{"name": "user", "hash": user_hash}, {"name": "boss", "hash": boss_hash, "admin": True}]
    down = {"mcp_servers": {"away": {"command": "/nonexistent/server"}}}
    async with served_tools(upstream, auth="keys", keys=keys, **down) as client:
        by = {who: {"authorization": f"Bearer {key}"} for who, key in (("user", user), ("boss", boss))}
        lists = {who: (await client.get("/v1/tools?servers=1", headers=by[who])).json() for who in by}
        plain = (await client.get("/v1/tools", headers=by["boss"])).json()

    assert lists["user"]["servers"] == []
    [away] = lists["boss"]["servers"]
    assert (away["name"], away["kind"], away["state"]) == ("away", "mcp", "down")
    assert away["error"]
    assert away["failures"] >= 1
    assert abs(away["since"] - time.time()) < 60
    assert "servers" not in plain
    assert json.dumps(lists["user"]).count("away") == 0
