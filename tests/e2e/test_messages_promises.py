"""What is promised of a chat holds of a message: limits, approvals, records, repetition, and the end of the server."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from callgate.access.keys import hash_key
from callgate.application import create_app
from callgate.state.local.sqlite import FILE
from tests.harness import toolshed
from tests.harness.clients import http_client
from tests.harness.configs import make_config, tool_entry
from tests.harness.messages import MessagesClient, text_of
from tests.harness.server import serve
from tests.scripted_upstream import Call, Hang, Reply, Upstream

pytestmark = pytest.mark.anyio

BOTH = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
MAIL = Call("send_mail", {"to": "ada", "text": "hi"})
KEY = "a-key-of-somebody"


@contextlib.asynccontextmanager
async def served_with_key(
    upstream: Upstream, *tools: Any, key: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[Any]:
    """A client with a key, and the application."""
    keys = [{"name": "ada", "hash": hash_key(KEY), **(key or {})}]
    config = make_config(upstream.url, tools=tools, auth="keys", keys=keys, **options)
    app = create_app(config)
    async with serve(app) as url, http_client(url, headers={"x-api-key": KEY}) as http:
        yield MessagesClient(http), app


@BOTH
async def test_after_a_tool_that_writes_an_error_is_one_that_clients_do_not_repeat(
    upstream: Upstream, stream: bool
) -> None:
    upstream.script("m", [Reply(calls=[MAIL]), Reply(status=400, body={"error": {"message": "no"}})])
    async with served_with_key(upstream, "send_mail") as (client, _):
        answer = await client.post(stream=stream)
    assert (answer.status_code, answer.headers["x-should-retry"]) == (400, "false")
    assert answer.json()["error"]["type"] == "invalid_request_error"


@BOTH
async def test_a_message_with_a_key_for_idempotency_is_made_once(
    upstream: Upstream, stream: bool, tmp_path: Path
) -> None:
    upstream.script("m", [Reply(calls=[MAIL]), Reply(text="Sent.")])
    async with served_with_key(upstream, "send_mail", data_dir=str(tmp_path)) as (client, _):
        headers = {"idempotency-key": "order-7"}
        first, second = [await client.post(stream=stream, headers=headers) for _ in range(2)]
        other = await client.post(stream=stream, headers=headers, system="Something else.")
    assert first.content == second.content
    assert len(upstream.requests) == 2
    assert other.json()["error"]["details"]["error_code"] == "idempotency_key_reused"


@BOTH
async def test_a_key_is_held_to_its_rate(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", lambda _: Reply(text="hi"))
    async with served_with_key(upstream, key={"requests_per_minute": 1}) as (client, _):
        assert text_of(await client.ask(stream=stream)) == "hi"
        refused = await client.post(stream=stream)
    assert (refused.status_code, refused.json()["error"]["type"]) == (429, "rate_limit_error")
    assert int(refused.headers["retry-after"]) >= 1


@BOTH
async def test_a_call_waits_for_its_approval_and_stands_in_the_ledger_and_in_a_recorded_run(
    upstream: Upstream, stream: bool, tmp_path: Path
) -> None:
    upstream.script("m", [Reply(calls=[MAIL]), Reply(text="Refused.")])
    tool = {**tool_entry("send_mail"), "require_approval": "always"}
    rights = {"approve": True, "see": "own"}
    async with served_with_key(upstream, tool, key=rights, data_dir=str(tmp_path), record={"content": True}) as (
        client,
        app,
    ):
        asking = asyncio.create_task(client.ask(stream=stream))
        approvals = app.state.manager.shared.approvals
        async with asyncio.timeout(30):
            while not approvals.waiting():
                await approvals.changed()
        [waiting] = (await client.http.get("/v1/approvals")).json()["data"]
        await client.http.post(f"/v1/approvals/{waiting['id']}", json={"decision": "approve"})
        message = await asking
        run = message["x_callgate"]["run"]
        recorded = (await client.http.get(f"/v1/runs/{run}")).json()
    assert text_of(message) == "Refused."
    assert recorded["id"] == run
    assert "send_mail" in str(recorded)
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as database:
        assert database.execute("SELECT run_id, tool FROM calls").fetchall() == [(run, "send_mail")]


@BOTH
async def test_a_client_that_leaves_ends_the_models_answer(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(text="And then, and then", fault=Hang(after=3))])
    async with served_with_key(upstream) as (client, _):
        asking = asyncio.create_task(client.post(stream=stream))
        [asked] = await upstream.requests.wait(1)
        asking.cancel()
        async with asyncio.timeout(30):
            assert await asked.until_closed() == "client_disconnected"


@BOTH
async def test_a_tool_of_ours_runs_under_the_limits_of_its_policy(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(calls=[Call("wait_for_gate", {})]), Reply(text="It took too long.")])
    tool = {**tool_entry("wait_for_gate"), "timeout": 0.1}
    async with toolshed.held() as running, served_with_key(upstream, tool) as (client, _):
        message = await client.ask(stream=stream)
    assert running.cancelled.is_set()
    assert text_of(message) == "It took too long."
    assert "No result after" in next(iter(upstream.requests[-1].tool_results.values()))
