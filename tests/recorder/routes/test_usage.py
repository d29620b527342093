"""What was used and what came of it, by `GET /v1/usage` and `GET /v1/stats`."""

import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from callgate.application import create_app
from tests.harness.clients import http_client
from tests.harness.configs import make_config, tool_entry
from tests.harness.server import serve
from tests.page.served import PRICE, keyring
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = pytest.mark.anyio

TOOLS = ("add", "get_weather")
QUESTION = {"messages": [{"role": "user", "content": "?"}]}
ADD = Call("add", {"a": 2, "b": 3}, id="call_add")
CUT = Call("get_weather", '{"city": "Os', id="call_cut")
TURNS = [Reply(calls=[ADD, CUT]), Reply(text="5")]


def settings(upstream: Upstream, **more: Any) -> Any:
    return make_config(upstream.url, tools=TOOLS, models=["m", "other"], entry={"model_info": PRICE}, **more)


async def ask_model(client: httpx.AsyncClient, model: str = "m", key: str = "") -> None:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    await client.post("/v1/chat/completions", json={"model": model, **QUESTION}, headers=headers)


async def usage_of(client: httpx.AsyncClient, **query: Any) -> list[dict[str, Any]]:
    answer = await client.get("/v1/usage", params=query)
    assert answer.status_code == 200, answer.text
    rows: list[dict[str, Any]] = answer.json()["data"]
    return rows


@pytest.mark.parametrize("where", ["memory", "file"])
async def test_what_calls_cost_is_added_up_by_tool(upstream: Upstream, tmp_path: Path, where: str) -> None:
    more = {"data_dir": str(tmp_path)} if where == "file" else {}
    upstream.script("m", [Reply(calls=[Call("add", {"a": 1, "b": 2}), Call("echo", {"text": "hi"})]), Reply(text="3")])
    tools = [{**tool_entry("add"), "price": 0.25}, "echo"]
    async with serve(create_app(make_config(upstream.url, tools=tools, **more))) as url, http_client(url) as client:
        await ask_model(client)
        of_tools = await usage_of(client, by="tool")
        crossed = await usage_of(client, by="tool,key", interval="hour")
    assert [(row["name"], row["calls"], row["cost"]) for row in of_tools] == [("add", 1, 0.25), ("echo", 1, 0.0)]
    assert [(row["tool"], row["cost"]) for row in crossed] == [("add", 0.25), ("echo", 0.0)]


@pytest.mark.parametrize("where", ["memory", "file"])
async def test_calls_are_added_up_by_tool_flaw_provider_model_and_key(
    upstream: Upstream, tmp_path: Path, where: str
) -> None:
    more = {"data_dir": str(tmp_path)} if where == "file" else {}
    async with serve(create_app(settings(upstream, **more))) as url, http_client(url) as client:
        upstream.script("m", TURNS)
        await ask_model(client)
        upstream.script("other", [Reply(status=400, body={"error": {"message": "no"}})])
        await ask_model(client, "other")
        tools = await usage_of(client, by="tool")
        flaws = await usage_of(client, by="flaw,model,tool")
        providers = await usage_of(client, by="provider,model")
        keys = await usage_of(client, by="key,model")
        crossed = await usage_of(client, by="tool,provider,key")

    assert [(row["name"], row["calls"], row["failed_calls"], row["broken_calls"]) for row in tools] == [
        ("add", 1, 0, 0),
        ("get_weather", 0, 0, 1),
    ]
    assert tools[0]["p95"] is not None
    assert [(row["flaw"], row["model"], row["tool"], row["broken_calls"]) for row in flaws] == [
        (flaws[0]["flaw"], "m", "get_weather", 1)
    ]
    assert flaws[0]["flaw"] in {"truncated", "invalid_json"}
    of_provider = {(row["provider"], row["model"]): (row["answers"], row["failed_attempts"]) for row in providers}
    assert of_provider[("openai", "m")] == (2, 0)
    assert [(row["key"], row["model"], row["requests"], row["failed"], row["broken_runs"]) for row in keys] == [
        ("anonymous", "m", 1, 0, 1),
        ("anonymous", "other", 1, 1, 0),
    ]
    assert keys[0]["cost"] > 0
    assert keys[0]["p50"] is not None
    assert [(row["tool"], row["provider"], row["key"]) for row in crossed] == [
        ("add", "openai", "anonymous"),
        ("get_weather", "openai", "anonymous"),
    ]


@pytest.mark.parametrize(
    ("interval", "form"), [("minute", "%Y-%m-%dT%H:%MZ"), ("hour", "%Y-%m-%dT%H:00Z"), ("day", "%Y-%m-%d")]
)
@pytest.mark.parametrize("by", ["tool", "model", ""])
async def test_a_row_stands_for_each_interval(upstream: Upstream, interval: str, form: str, by: str) -> None:
    async with serve(create_app(settings(upstream))) as url, http_client(url) as client:
        before = time.strftime(form, time.gmtime())
        upstream.script("m", TURNS)
        await ask_model(client)
        rows = await usage_of(client, interval=interval, **({"by": by} if by else {}))
        after = time.strftime(form, time.gmtime())

    assert {row["at"] for row in rows} <= {before, after}
    assert rows[0]["name"] == {"tool": "add", "model": "m", "": rows[0]["at"]}[by]
    if by == "tool":
        assert sum(row["calls"] for row in rows) == 1
        assert sum(row["broken_calls"] for row in rows) == 1
    else:
        assert sum(row["requests"] for row in rows) == 1


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"by": "nope"}, "by"),
        ({"by": "tool,nope"}, "by"),
        ({"interval": "week"}, "interval"),
        ({"by": "tool", "days": "91"}, "days"),
        ({"interval": "hour", "days": "91"}, "days"),
    ],
)
async def test_what_cannot_be_added_up_is_a_400(upstream: Upstream, query: dict[str, str], param: str) -> None:
    async with serve(create_app(settings(upstream))) as url, http_client(url) as client:
        answer = await client.get("/v1/usage", params=query)
        stats = await client.get("/v1/stats", params={"days": "91"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert stats.status_code == 400


async def test_a_key_sees_what_came_of_its_own_runs_alone(upstream: Upstream) -> None:
    keys, auth = keyring(alice={"see": "own"}, bob={"see": "own"}, boss={"see": "all"}, blind={})
    async with serve(create_app(settings(upstream, **auth))) as url, http_client(url) as client:
        upstream.script("m", TURNS)
        await ask_model(client, key=keys["alice"])
        answers = {}
        for name, key in keys.items():
            headers = {"authorization": f"Bearer {key}"}
            for query in (
                "usage?by=tool",
                "usage?by=tool&interval=minute",
                "usage?by=key",
                "stats?days=1",
                "stats?days=7",
            ):
                answers[name, query] = await client.get(f"/v1/{query}", headers=headers)

    for query in ("usage?by=tool", "usage?by=tool&interval=minute", "usage?by=key"):
        rows = {name: answers[name, query].json().get("data") for name in keys}
        assert rows["alice"] == rows["boss"]
        assert len(rows["alice"]) == (1 if "key" in query else 2)
        assert rows["bob"] == []
        assert answers["blind", query].status_code == 403
    for query in ("stats?days=1", "stats?days=7"):
        stats = {name: answers[name, query].json() for name in keys}
        assert answers["blind", query].status_code == 403
        assert {stats["alice"]["key"], stats["bob"]["key"], stats["boss"]["key"]} == {"alice", "bob", None}
        for part in ("models", "keys", "tools", "providers", "flaws"):
            assert stats["alice"][part] == stats["boss"][part] != []
            assert stats["bob"][part] == []
        assert stats["bob"]["totals"]["requests"] == 0


@pytest.mark.parametrize(
    ("days", "bars", "step"), [(1, range(24, 25), 3600), (7, range(25, 29), 21600), (30, range(30, 31), 86400)]
)
async def test_the_overview_has_all_figures_in_bars_of_one_length(
    upstream: Upstream, days: int, bars: range, step: int
) -> None:
    async with serve(create_app(settings(upstream))) as url, http_client(url) as client:
        upstream.script("m", TURNS)
        await ask_model(client)
        stats = (await client.get("/v1/stats", params={"days": days})).json()

    lines = [stats[name] for name in ("requests", "failed", "broken_runs", "cost", "tokens", "p50", "p95", "first_p50")]
    lines += [bars_of for part in ("models", "tools", "providers") for bars_of in stats[part][0]["bars"].values()]
    lines.append(stats["flaws"][0]["bars"])
    assert len({len(line) for line in lines}) == 1
    assert len(lines[0]) in bars
    assert stats["step"] == step
    assert stats["since"] + len(lines[0]) * step >= stats["until"] > time.time() - 1
    assert stats["kept"] == "memory"
    assert sum(stats["requests"]) == stats["totals"]["requests"] == 1
    assert sum(stats["broken_runs"]) == 1
    assert sum(stats["cost"]) == pytest.approx(stats["totals"]["cost"]) != 0
    assert [tool["name"] for tool in stats["tools"]] == ["add", "get_weather"]
    assert stats["models"][0]["name"] == "m"
    assert stats["flaws"][0]["model"] == "m"
    assert (stats["totals"]["calls"], stats["cooling"]) == (1, [])


async def test_a_deployment_that_cools_down_is_named_to_who_sees_all(upstream: Upstream) -> None:
    keys, auth = keyring(alice={"see": "own"}, boss={"see": "all"})
    async with serve(create_app(settings(upstream, **auth))) as url, http_client(url) as client:
        upstream.script("m", [Reply(status=500, body={"error": {"message": "down"}})], repeat_last=True)
        for _ in range(3):
            await ask_model(client, key=keys["alice"])
        stats = {
            name: (await client.get("/v1/stats", headers={"authorization": f"Bearer {key}"})).json()
            for name, key in keys.items()
        }
    assert [(each["model"], each["deployment"]) for each in stats["boss"]["cooling"]] == [("m", "openai/m")]
    assert stats["alice"]["cooling"] == []
    assert stats["boss"]["providers"][0]["failed_attempts"] > 0
