"""What one key may do, and what a server at its limits does, over real sockets."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from callgate.access.keys import mint_key
from callgate.application import create_app
from callgate.state.local.sqlite import FILE
from tests.harness import toolshed
from tests.harness.clients import http_client
from tests.harness.configs import make_config, tool_entry
from tests.harness.server import serve
from tests.scripted_upstream import Call, Hang, Hold, Pace, Reply, Upstream, by_turn

pytestmark = pytest.mark.anyio

ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
ALICE, ALICE_HASH = mint_key()
BOB, BOB_HASH = mint_key()
BOTH = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
HI = Reply(text="hi", usage={"prompt_tokens": 30, "completion_tokens": 10, "total_tokens": 40})


@contextlib.asynccontextmanager
async def served_with_keys(
    upstream: Upstream, *, alice: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[httpx.AsyncClient]:
    keys = [{"name": "alice", "hash": ALICE_HASH, **(alice or {})}, {"name": "bob", "hash": BOB_HASH}]
    config = make_config(upstream.url, auth="keys", keys=keys, **options)
    async with serve(create_app(config)) as url, http_client(url) as client:
        client.headers["authorization"] = f"Bearer {ALICE}"
        yield client


async def ask(client: httpx.AsyncClient, key: str = ALICE, **fields: Any) -> httpx.Response:
    return await client.post("/v1/chat/completions", json=ASK | fields, headers={"authorization": f"Bearer {key}"})


def refused(answer: httpx.Response) -> tuple[int, str]:
    assert int(answer.headers["retry-after"]) >= 1
    return answer.status_code, answer.json()["error"]["code"]


@BOTH
async def test_requests_a_minute_with_the_rate_limit_headers_of_the_key(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", lambda _: HI)
    async with served_with_keys(upstream, alice={"requests_per_minute": 2}) as client:
        left = [(await ask(client, stream=stream)).headers["x-ratelimit-remaining-requests"] for _ in range(2)]
        third = await ask(client, stream=stream)
        other = await ask(client, BOB, stream=stream)
    assert left == ["1", "0"]
    assert refused(third) == (429, "rate_limit_exceeded")
    assert third.headers["x-ratelimit-limit-requests"] == "2"
    assert other.status_code == 200
    assert "x-ratelimit-limit-requests" not in other.headers


@BOTH
async def test_tokens_are_settled_with_what_the_provider_counted(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", lambda _: HI)
    async with served_with_keys(upstream, alice={"tokens_per_minute": 200}) as client:
        first = await ask(
            client, stream=stream, max_tokens=100, stream_options={"include_usage": True} if stream else None
        )
        second = await ask(client, stream=stream, max_tokens=100)
        third = await ask(client, stream=stream, max_tokens=150)
    assert (first.status_code, second.status_code) == (200, 200)
    assert refused(third) == (429, "rate_limit_exceeded")
    assert third.headers["x-ratelimit-remaining-tokens"] == str(200 - 2 * 40)


async def test_a_budget_is_counted_by_the_prices_of_the_entry_and_survives_a_restart(
    upstream: Upstream, tmp_path: Path
) -> None:
    upstream.script("m", lambda _: HI)
    entry = {"model_info": {"input_cost_per_token": 0.01, "output_cost_per_token": 0.02}}
    options: dict[str, Any] = {"alice": {"budget_per_day": 1.2}, "entry": entry, "data_dir": str(tmp_path / "data")}
    async with served_with_keys(upstream, **options) as client:
        assert [(await ask(client, max_tokens=5)).status_code for _ in range(2)] == [200, 200]  # 50 cents each
    async with served_with_keys(upstream, **options) as client:
        third = await ask(client, max_tokens=5)
        fourth = await ask(client, max_tokens=5)
    assert third.status_code == 200, "20 cents were left, and one chat may overshoot"
    assert refused(fourth) == (429, "insufficient_quota")


@BOTH
@pytest.mark.parametrize("tools", [False, True], ids=["passed through", "with tools"])
async def test_a_budget_is_charged_for_the_model_that_answered(upstream: Upstream, stream: bool, tools: bool) -> None:
    upstream.script("cheap", lambda _: Reply(status=500))
    upstream.script("dear", lambda _: HI)
    models = [
        {
            "model_name": name,
            "litellm_params": {"model": f"openai/{name}", "api_base": upstream.url, "api_key": "sk-1"},
            "model_info": {"input_cost_per_token": price, "output_cost_per_token": price},
            "fallbacks": ["dear"] if name == "cheap" else [],
            "tools": ["*"] if tools else [],
        }
        for name, price in (("cheap", 0.0), ("dear", 0.01))
    ]
    offered = {"tools": [tool_entry("add")]} if tools else {}
    async with served_with_keys(
        upstream, alice={"budget_per_day": 0.3, "admin": True}, model_list=models, **offered
    ) as client:
        first = await ask(client, model="cheap", max_tokens=5, stream=stream)
        [alice, _] = (await client.get("/admin/keys")).json()["data"]
        second = await ask(client, model="dear", max_tokens=5, stream=stream)
    assert first.status_code == 200
    assert alice["spent"]["day"] == pytest.approx(0.4)
    assert refused(second) == (429, "insufficient_quota")


async def test_a_budget_holds_for_all_names_that_a_wildcard_stands_for(upstream: Upstream) -> None:
    for name in ("made-1", "made-2", "made-3"):
        upstream.script(name, lambda _: HI)
    entry = {"model_info": {"input_cost_per_token": 0.01, "output_cost_per_token": 0.02}}
    async with served_with_keys(upstream, models=["made-*"], alice={"budget_per_day": 0.9}, entry=entry) as client:
        answers = [await ask(client, model=f"made-{at}", max_tokens=5) for at in (1, 2, 3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]


async def test_the_places_of_a_wildcard_are_those_of_all_its_names_together(upstream: Upstream) -> None:
    gate = asyncio.Event()
    for name in ("made-1", "made-2"):
        upstream.script(name, lambda _: Reply(text="hi", pace=Pace(hold=Hold(gate))))
    async with served_with_keys(upstream, models=["made-*"], entry={"concurrency": 1}, alice={"see": "own"}) as client:
        first = asyncio.create_task(ask(client, model="made-1"))
        await upstream.requests.wait(1)
        seen = (await client.get("/v1/models/made-2")).json()["x_callgate"]
        assert seen["concurrency"] == {"places": 1, "running": 1}
        unseen = await client.get("/v1/models/made-2", headers={"authorization": f"Bearer {BOB}"})
        assert "concurrency" not in unseen.json()["x_callgate"]
        assert refused(await ask(client, BOB, model="made-2")) == (503, "model_over_capacity")
        gate.set()
        assert (await first).status_code == 200


@BOTH
async def test_a_key_with_too_many_requests_under_way_gets_a_429(upstream: Upstream, stream: bool) -> None:
    gate = asyncio.Event()
    upstream.script("m", lambda _: Reply(text="hi", pace=Pace(hold=Hold(gate))))
    async with served_with_keys(upstream, alice={"parallel": 1}) as client:
        first = asyncio.create_task(ask(client, stream=stream))
        await upstream.requests.wait(1)
        second = await ask(client, stream=stream)
        gate.set()
        other = await ask(client, BOB, stream=stream)
        assert refused(second) == (429, "too_many_parallel_requests")
        assert [(await first).status_code, other.status_code] == [200, 200]
        assert (await ask(client, stream=stream)).status_code == 200


@pytest.mark.parametrize(
    ("options", "code"),
    [({"limits": {"concurrent_requests": 1}}, "over_capacity"), ({"entry": {"concurrency": 1}}, "model_over_capacity")],
)
async def test_a_full_server_and_a_full_model_refuse_with_a_503_and_health_answers(
    upstream: Upstream, options: dict[str, Any], code: str
) -> None:
    gate = asyncio.Event()
    upstream.script("m", lambda _: Reply(text="hi", pace=Pace(hold=Hold(gate))))
    async with served_with_keys(upstream, **options) as client:
        first = asyncio.create_task(ask(client))
        await upstream.requests.wait(1)
        assert refused(await ask(client, BOB)) == (503, code)
        assert (await client.get("/health/ready")).status_code == 200
        assert (await client.get("/v1/models")).status_code == 200
        gate.set()
        assert (await first).status_code == 200
        assert (await ask(client, BOB)).status_code == 200


@BOTH
async def test_a_client_that_disconnects_frees_its_places_and_what_was_reserved(
    upstream: Upstream, stream: bool
) -> None:
    replies = iter([Reply(text="hi", fault=Hang()), HI])
    upstream.script("m", lambda _: next(replies))
    options: dict[str, Any] = {"entry": {"concurrency": 1}, "limits": {"concurrent_requests": 1, "queue_seconds": 5}}
    async with served_with_keys(upstream, alice={"parallel": 1, "requests_per_minute": 2}, **options) as client:
        leaving = asyncio.create_task(ask(client, stream=stream))
        [asked] = await upstream.requests.wait(1)
        leaving.cancel()
        await asyncio.wait([leaving])
        await asked.until_closed()
        assert (await ask(client, stream=stream)).status_code == 200


async def test_every_run_of_a_tool_stands_in_the_ledger(upstream: Upstream, tmp_path: Path) -> None:
    calls = [
        Call("get_weather", {"city": "Oslo"}, id="call_a"),
        Call("send_mail", {"to": "a", "text": "b"}, id="call_b"),
    ]
    upstream.script("m", by_turn([Reply(calls=calls), HI]))
    async with served_with_keys(upstream, tools=["get_weather", "send_mail"], data_dir=str(tmp_path)) as client:
        answer = await ask(client)
        assert answer.status_code == 200
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as database:
        rows = database.execute(
            "SELECT call_id, tool, state, key_name, writes, arguments, run_id FROM calls ORDER BY call_id"
        )
        found = rows.fetchall()
    run_id = answer.headers["x-callgate-run"]
    assert found == [
        ("call_a", "get_weather", "done", "alice", 0, None, run_id),
        ("call_b", "send_mail", "failed", "alice", 1, None, run_id),
    ]


async def test_a_tool_whose_client_left_is_unknown_in_the_ledger(upstream: Upstream, tmp_path: Path) -> None:
    upstream.script("m", by_turn([Reply(calls=[Call("wait_for_gate", {})]), HI]))
    async with (
        toolshed.held() as running,
        served_with_keys(upstream, tools=["wait_for_gate"], data_dir=str(tmp_path)) as client,
    ):
        leaving = asyncio.create_task(ask(client))
        await running.started.wait()
        leaving.cancel()
        async with asyncio.timeout(30):
            await running.cancelled.wait()
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as database:
        assert database.execute("SELECT state, note FROM calls").fetchall() == [("unknown", "cut off: CancelledError")]


async def test_a_call_that_waits_on_a_full_server_can_be_decided_about(upstream: Upstream) -> None:
    upstream.script("m", by_turn([Reply(calls=[Call("send_mail", {"to": "a", "text": "b"})]), HI]))
    tool = {**tool_entry("send_mail"), "require_approval": "always"}
    full = {"concurrent_requests": 1, "queue_seconds": 0}
    async with served_with_keys(upstream, alice={"parallel": 1, "approve": True}, tools=[tool], limits=full) as client:
        asking = asyncio.create_task(ask(client))
        async with asyncio.timeout(30):
            while not (waiting := (await client.get("/v1/approvals")).json()["data"]):  # noqa: ASYNC110 - over the wire
                await asyncio.sleep(0.01)
        decided = await client.post(f"/v1/approvals/{waiting[0]['id']}", json={"decision": "approve"})
        assert decided.status_code == 200, decided.text
        assert (await asking).status_code == 200


async def test_large_bodies_of_one_key_leave_memory_to_others(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body is held until its request ends, and a model may take its time."""
    monkeypatch.setattr("callgate.api.bodies.OF_ONE", 1)
    monkeypatch.setattr("callgate.api.bodies.OF_ALL", 2)
    gate, arrived = asyncio.Event(), asyncio.Event()

    def answer(request: Any) -> Reply:
        large = len(request.body["messages"][0]["content"]) > 1000
        if large:
            arrived.set()
        return Reply(text="hi", pace=Pace(hold=Hold(gate, after=None) if large else None))

    upstream.script("m", answer)
    large = [{"role": "user", "content": "x" * 300_000}]
    async with served_with_keys(upstream, limits={"body_bytes": 400_000}) as client:
        first = asyncio.create_task(ask(client, messages=large))
        await arrived.wait()
        assert refused(await ask(client, messages=large)) == (503, "over_capacity")
        assert (await ask(client)).status_code == 200
        arrived.clear()
        of_bob = asyncio.create_task(ask(client, BOB, messages=large))
        await arrived.wait()
        gate.set()
        assert [(await each).status_code for each in (first, of_bob)] == [200, 200]
        assert (await ask(client, messages=large)).status_code == 200
