"""From the config's words to servers with tools: what an entry says reaches the registry, the gates and the metrics."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from callgate.application import create_app
from callgate.config.schema.whole import Config
from callgate.runtime.manager import RuntimeManager
from callgate.tools.executor import Safety
from callgate.tools.registry import RegisteredTool, Registry
from callgate.tools.source_supervisor import SourceState
from callgate.tools.toolbox import RequestToolbox, ToolSet
from tests.harness.clients import openai_client
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.scripted_upstream import Call, Reply, Upstream
from tests.tools.executor_kinds import RAW_MCP, everything, ready, silent

pytestmark = pytest.mark.anyio

RAW: dict[str, Any] = {"command": sys.executable, "args": ["-S", str(RAW_MCP)]}


def config(servers: dict[str, Any], **more: Any) -> Config:
    models = [{"model_name": "m", "litellm_params": {"model": "demo/demo"}, "tools": ["*"]}]
    return Config.model_validate({"model_list": models, "mcpServers": servers, "auth": "off", **more})


@contextlib.asynccontextmanager
async def opened_manager(servers: dict[str, Any], **more: Any) -> AsyncIterator[RuntimeManager]:
    async with asyncio.timeout(40), RuntimeManager(config(servers, **more)) as opened:
        yield opened


def tools(opened: RuntimeManager) -> dict[str, RegisteredTool]:
    return {tool.name: tool for tool in opened.current.registry.tools()}


async def call(registry: Registry, name: str) -> None:
    await RequestToolbox(server_tools=ToolSet(registry.tools()), run_id="r", limits=registry.limits).run(
        ready(name), silent
    )


def counted(opened: RuntimeManager, metric: str) -> list[str]:
    text = opened.metrics.exposition()[0].decode()
    return [line for line in text.splitlines() if line.startswith(metric) and not line.startswith(f"{metric}_created")]


async def test_what_an_entry_says_of_its_tools_is_their_policy() -> None:
    said = {**RAW, "timeout": 9, "max_result_bytes": 500, "retries": 2, "safety": "read_only", "concurrency": 3}
    async with opened_manager(
        {"one": said, "two": {**RAW, "prefix": ""}, "three": {**RAW, "disabled": True}}
    ) as opened:
        found = tools(opened)
        one, two = found["one_echo"].tool.policy, found["echo"].tool.policy
        assert (one.timeout, one.max_result_bytes, one.retries, one.safety) == (9, 500, 2, Safety.READ_ONLY)
        assert (one.concurrency, two.concurrency) == (None, None)
        assert [gate.places for gate in opened.current.registry.limits.on_the_way_to("one_echo", "one")] == [3]
        assert two.max_result_bytes == opened.current.limits.tool_result_bytes
        assert sorted({tool.source for tool in found.values()}) == ["one", "two"]


async def test_approval_is_asked_for_by_a_servers_own_names_and_by_those_models_know() -> None:
    asked = {"always": ["ec*", "raw_pid", "safety:destructive"]}
    async with opened_manager({"raw": {**RAW, "require_approval": asked}}) as opened:
        waiting = {tool.original for tool in tools(opened).values() if tool.tool.policy.require_approval}
        assert waiting == {"echo", "pid", "dies"}
    async with opened_manager({"raw": {**RAW, "require_approval": {"always": ["*"], "never": ["echo"]}}}) as opened:
        free = {tool.original for tool in tools(opened).values() if not tool.tool.policy.require_approval}
        assert free == {"echo"}


async def test_names_of_servers_that_are_no_names_of_tools_are_made_legal() -> None:
    async with opened_manager({"io.github/my server": {**RAW, "allowed_tools": ["echo"]}}) as opened:
        assert list(tools(opened)) == ["io_github_my_server_echo"]
        assert [tool.name for tool in opened.current.registry.select(["io.github/my server/echo"])] == [
            "io_github_my_server_echo"
        ]


async def test_a_server_that_fails_and_a_tool_that_changes_are_counted(tmp_path: Path) -> None:
    servers = {"good": {**RAW, "pins": "warn"}, "bad": {"command": "no-such-server-anywhere"}}
    async with opened_manager(servers, data_dir=str(tmp_path)) as opened:
        registry = opened.current.registry
        await call(registry, "good_changes")
        await everything(lambda: "good_fresh" in tools(opened))
        assert counted(opened, "callgate_tool_changes_total") == ['callgate_tool_changes_total{server="good"} 1.0']
        [failures] = counted(opened, "callgate_tool_server_failures_total")
        assert failures.startswith('callgate_tool_server_failures_total{server="bad"}')
        states = {status.name: status.state for status in registry.sources()}
        assert states["good"] is SourceState.READY
        assert states["bad"] in {SourceState.DOWN, SourceState.OPENING}
    async with opened_manager({"good": RAW}, data_dir=str(tmp_path)) as opened:
        assert counted(opened, "callgate_tool_changes_total") == ['callgate_tool_changes_total{server="good"} 1.0']


async def test_a_secret_of_a_server_is_in_no_repr() -> None:
    said = config({"a": {"url": "https://mcp.example.com/?key=s3cret", "headers": {"Authorization": "Bearer s3cret"}}})
    assert "s3cret" not in repr(said)
    async with opened_manager({"raw": {**RAW, "env": {"TOKEN": "s3cret"}}}) as opened:
        assert "s3cret" not in repr(opened.current.registry.tools())


async def test_a_client_that_leaves_stops_the_call_at_the_server(upstream: Upstream, tmp_path: Path) -> None:
    begun, cancelled = tmp_path / "begun", tmp_path / "cancelled"
    upstream.script("m", [Reply(calls=[Call("raw_hangs", {"city": "Oslo"})])])
    server = {**RAW, "env": {"BEGUN": str(begun), "CANCELLED": str(cancelled)}}
    options = make_config(upstream.url, entry={"tools": ["raw/*"]}, mcp_servers={"raw": server})
    app = create_app(options)
    async with asyncio.timeout(40), serve(app) as url, openai_client(url) as client:
        asking = asyncio.create_task(
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hello"}])
        )
        await everything(begun.exists)
        asking.cancel()
        await asyncio.wait([asking])
        await everything(cancelled.exists)


async def test_progress_of_a_tool_reaches_a_client_that_asks_for_it(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[Call("raw_progresses", {})]), Reply(text="done")])
    app = create_app(make_config(upstream.url, entry={"tools": ["*"]}, mcp_servers={"raw": RAW}))
    async with asyncio.timeout(40), serve(app) as url, openai_client(url) as client:
        stream = await client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": "hello"}],
            stream=True,
            extra_headers={"X-Callgate-Events": "x"},
        )
        extras = [str(chunk.model_extra) async for chunk in stream if chunk.model_extra]
    assert any("step 1" in each or "step 2" in each for each in extras), extras
