"""Programs of others as clients of `/mcp`: Claude Code, and by `make clients` the command lines of the Inspector and Continue."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from callgate.application import create_app
from callgate.config.schema.whole import Config
from tests.clients.coding_agents import CLAUDE, play
from tests.harness.configs import as_yaml, config_dict, make_config
from tests.harness.environment import CLAUDE_CODE, CONTINUE, MCP_INSPECTOR, MCP_NODE, ROOT, Environment
from tests.harness.needs import BY_MAKE_CLIENTS, needs
from tests.harness.process import child_environment, output_of
from tests.harness.server import serve
from tests.scripted_upstream import Call, Reply, RequestRecord, Upstream

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

NOWHERE = "http://127.0.0.1:9"
PATIENCE = 90.0


async def inspected(home: Path, *arguments: str) -> Any:
    """What the Inspector's command line answers. Its own store is in its home."""
    program = Environment(MCP_INSPECTOR).folder / "node_modules" / ".bin" / "mcp-inspector"
    variables = {**child_environment({"CALLGATE_PORT": "9"}), "HOME": str(home), "PYTHONPATH": str(ROOT / "app")}
    output, log = await output_of(
        Environment(MCP_NODE).interpreter,
        *(str(program), "--cli", *arguments),
        seconds=PATIENCE,
        environment=variables,
        folder=home,
    )
    assert output.strip(), log
    return json.loads(output)


@needs(f"environment:{MCP_NODE}", f"environment:{MCP_INSPECTOR}")
@BY_MAKE_CLIENTS
@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_the_inspector_lists_and_calls_over_http(tmp_path: Path, era: str) -> None:
    config = Config.model_validate(config_dict(NOWHERE, tools=["add", "echo"]))
    async with serve(create_app(config)) as url:
        where = (f"{url}/mcp", "--transport", "http", "--protocol-era", era)
        listed = await inspected(tmp_path, *where, "--method", "tools/list", "--strict")
        called = await inspected(
            tmp_path, *where, "--method", "tools/call", "--tool-name", "add", "--tool-arg", "a=2", "b=3"
        )
    assert [tool["name"] for tool in listed["tools"]] == ["add", "echo", "read_more"]
    assert called["content"] == [{"type": "text", "text": "5"}]


@needs(f"environment:{MCP_NODE}", f"environment:{MCP_INSPECTOR}")
@BY_MAKE_CLIENTS
async def test_the_inspector_lists_and_calls_over_standard_input(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(as_yaml(config_dict(NOWHERE, tools=["add"])), encoding="utf-8")
    run = tmp_path / "callgate-mcp"
    run.write_text(
        f'#!/bin/sh\nPYTHONPATH="{ROOT / "app"}:{ROOT}" CALLGATE_PORT=9 exec "{sys.executable}" -m callgate mcp serve --config "{config}"\n',
        encoding="utf-8",
    )
    run.chmod(0o700)
    listed = await inspected(tmp_path, str(run), "--method", "tools/list")
    called = await inspected(
        tmp_path, str(run), "--method", "tools/call", "--tool-name", "add", "--tool-arg", "a=2", "b=3"
    )
    assert [tool["name"] for tool in listed["tools"]] == ["add", "read_more"]
    assert called["content"] == [{"type": "text", "text": "5"}]


ADD = "mcp__callgate__add"


def adding(request: RequestRecord, name: str = ADD) -> Reply:
    """A model that adds by the tool of its client's MCP server, and says what came of it."""
    if name not in request.tool_names:
        return Reply(text="A title")
    results = [message for message in request.messages if message["role"] == "tool"]
    if not results:
        return Reply(calls=[Call(name, {"a": 2, "b": 3})])
    return Reply(text=f"It is {results[-1]['content']}.")


@needs(f"environment:{CLAUDE_CODE}")
async def test_claude_code_calls_a_tool_of_its_mcp_server(upstream: Upstream, tmp_path: Path) -> None:
    upstream.script("m", adding)
    config = make_config(upstream.url, tools=["add"], entry={"tools": []})
    async with serve(create_app(config)) as url:
        settings = {"mcpServers": {"callgate": {"type": "http", "url": f"{url}/mcp"}}}
        (tmp_path / ".mcp.json").write_text(json.dumps(settings), encoding="utf-8")
        (tmp_path / ".claude").mkdir()
        # Its own search would be one more turn of the model.
        allowed = {
            "permissions": {"allow": [ADD]},
            "enableAllProjectMcpServers": True,
            "env": {"ENABLE_TOOL_SEARCH": "false"},
        }
        (tmp_path / ".claude" / "settings.json").write_text(json.dumps(allowed), encoding="utf-8")
        [played] = await play(CLAUDE, url, tmp_path, "What is 2 + 3?")
    assert any(event.get("type") == "result" and "5" in str(event.get("result")) for event in played.events), str(
        played
    )
    assert any(ADD in request.tool_names for request in upstream.requests)


@needs(f"environment:{MCP_NODE}", f"environment:{CONTINUE}")
@BY_MAKE_CLIENTS
async def test_continue_calls_a_tool_of_its_mcp_server(upstream: Upstream, tmp_path: Path) -> None:
    upstream.script("m", lambda request: adding(request, "add"))
    async with serve(create_app(make_config(upstream.url, tools=["add"], entry={"tools": []}))) as url:
        model = {"name": "m", "provider": "openai", "model": "m", "apiBase": f"{url}/v1", "apiKey": "sk-test"}
        settings = {
            "name": "test",
            "version": "0.0.1",
            "schema": "v1",
            "models": [{**model, "roles": ["chat"], "capabilities": ["tool_use"]}],
            "mcpServers": [{"name": "callgate", "type": "streamable-http", "url": f"{url}/mcp"}],
        }
        file = tmp_path / "continue.yaml"
        file.write_text(json.dumps(settings), encoding="utf-8")
        program = Environment(CONTINUE).folder / "node_modules" / ".bin" / "cn"
        offline = {"HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1", "CONTINUE_TELEMETRY_ENABLED": "0"}
        output, log = await output_of(
            Environment(MCP_NODE).interpreter,
            *(str(program), "-p", "What is 2 + 3?", "--config", str(file), "--auto"),
            seconds=PATIENCE,
            environment={**child_environment({}), **offline, "HOME": str(tmp_path)},
            folder=tmp_path,
        )
    assert b"It is" in output, log
    assert b"5" in output
