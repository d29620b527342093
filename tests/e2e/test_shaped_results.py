"""What becomes of a tool's result before the model reads it, through the APIs."""

import asyncio
import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import httpx
import pytest

from callgate.state.local.sqlite import FILE
from tests.harness.configs import tool_entry
from tests.harness.served import served_to_http
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = pytest.mark.anyio

ROWS = json.dumps({"rows": [{"id": at, "text": "long " * 50} for at in range(20)]})
CHAT = {"model": "m", "messages": [{"role": "user", "content": "go"}]}
ECHO: dict[str, Any] = {**tool_entry("echo"), "safety": "read_only"}


async def asked(client: httpx.AsyncClient, **headers: str) -> Any:
    answer = await client.post("/v1/chat/completions", json=CHAT, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def calls_in(answer: Any) -> list[dict[str, Any]]:
    return [call for turn in answer["x_callgate"]["turns"] for call in turn["calls"]]


def echoes(text: str) -> Any:
    """A model that calls the tool once, and then says what it was answered."""

    def model(request: Any) -> Reply:
        last = request.body["messages"][-1]
        return Reply(calls=[Call("echo", {"text": text})]) if last["role"] == "user" else Reply(text=last["content"])

    return model


async def test_the_model_reads_the_selected_part_and_the_run_says_what_it_is_of(upstream: Upstream):
    upstream.script("m", echoes(ROWS))
    async with served_to_http(upstream, {**ECHO, "select": "rows[].id"}) as client:
        answer = await asked(client)
        run = (await client.get(f"/v1/runs/{answer['x_callgate']['run']}")).json()
        tools = (await client.get("/v1/tools")).json()["data"]
    assert answer["choices"][0]["message"]["content"] == json.dumps(list(range(20)), separators=(",", ":"))
    (call,) = calls_in(answer)
    assert call["selected_from"] == len(ROWS)
    (ended,) = [event for event in run["events"] if event["kind"] == "call_ended"]
    assert ended["facts"]["selected_from"] == len(ROWS)
    assert tools[0]["select"] == "rows[].id"


async def test_an_expression_that_does_not_fit_hides_nothing_and_is_found(upstream: Upstream):
    upstream.script("m", echoes(ROWS))
    async with served_to_http(upstream, {**ECHO, "select": "columns"}) as client:
        answer = await asked(client)
        metrics = (await client.get("/metrics")).text
    assert answer["choices"][0]["message"]["content"] == ROWS
    assert calls_in(answer)[0]["findings"] == ["select_failed"]
    assert 'callgate_findings_total{finding="select_failed",model="m"} 1.0' in metrics


async def test_equal_calls_of_several_requests_are_one_run_of_the_tool(upstream: Upstream):
    upstream.script("m", echoes("hello"))
    async with served_to_http(upstream, {**ECHO, "cache_seconds": 60}) as client:
        answers = await asyncio.gather(*(asked(client) for _ in range(10)))
        later = await asked(client)
        metrics = (await client.get("/metrics")).text
        run = (await client.get(f"/v1/runs/{later['x_callgate']['run']}")).json()
    calls = [call for answer in (*answers, later) for call in calls_in(answer)]
    first = [call for call in calls if "cached_of" not in call]
    assert len(first) == 1
    assert {call["cached_of"] for call in calls if call is not first[0]} == {first[0]["id"]}
    assert {answer["choices"][0]["message"]["content"] for answer in answers} == {"hello"}
    assert 'callgate_tool_cache_total{result="miss"} 1.0' in metrics
    (ended,) = [event for event in run["events"] if event["kind"] == "call_ended"]
    assert ended["facts"]["cached_of"] == first[0]["id"]


async def test_a_hit_waits_for_its_approval_like_any_call(upstream: Upstream):
    upstream.script("m", echoes("hello"))
    waits = {**ECHO, "cache_seconds": 60, "require_approval": "always"}
    async with served_to_http(upstream, waits, approvals={"timeout_seconds": 0.01}) as client:
        answers = [await asked(client) for _ in range(2)]
    assert [call["outcome"] for answer in answers for call in calls_in(answer)] == ["refused", "refused"]


async def test_the_ledger_says_which_call_a_kept_result_is_of(upstream: Upstream, tmp_path: Path):
    upstream.script("m", echoes("hello"))
    async with served_to_http(upstream, {**ECHO, "cache_seconds": 60}, data_dir=str(tmp_path)) as client:
        first = calls_in(await asked(client))[0]["id"]
        again = calls_in(await asked(client))[0]["id"]
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as database:
        rows = database.execute("SELECT call_id, state, note FROM calls ORDER BY started_at").fetchall()
    assert rows == [(first, "done", ""), (again, "done", f"cached: of {first}")]
