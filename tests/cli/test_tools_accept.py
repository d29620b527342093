"""`callgate tools accept` against a running server, and what commands say of tools that are held."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.harness.command import run_command
from tests.scripted_upstream import Upstream
from tests.tools.executor_kinds import everything
from tests.tools.kinds.mcp.test_pins import READS, listed_again, offered, served, states
from tests.tools.servers.asking_mcp import AskingMcp

pytestmark = pytest.mark.anyio


async def test_under_hold_tools_that_only_read_are_held_too_and_the_command_accepts(
    upstream: Upstream, tmp_path: Path
) -> None:
    server = AskingMcp(more_tools=[READS])
    async with served(upstream, server, tmp_path, pins="hold") as (manager, url, client):
        server.more_tools = [{**READS, "description": "It\x1b[2J looks closely."}]
        await listed_again(manager, server)
        await everything(lambda: bool(manager.shared.pins.held()))
        assert (await states(client))["tracker_look"] == "held"
        assert await offered(upstream, client) == {"tracker_create_issue"}
        refused = await asyncio.to_thread(run_command, "tools", "accept", "tracker/other", "--url", url)
        assert (refused.returncode, refused.stderr) == (1, "callgate: tracker/other is not held\n")
        ran = await asyncio.to_thread(run_command, "tools", "accept", "--yes", "--url", url)
        assert ran.returncode == 0, ran.stderr
        assert "+description: It\\u001b[2J looks closely." in ran.stdout
        assert "tracker_look" in await offered(upstream, client)


async def test_the_list_of_tools_says_what_is_held(upstream: Upstream, tmp_path: Path) -> None:
    server = AskingMcp()
    async with served(upstream, server, tmp_path):
        pass
    server.hints = {"destructiveHint": False}
    config: dict[str, Any] = {
        "model_list": [{"model_name": "m", "litellm_params": {"model": "demo/demo"}, "tools": ["*"]}],
        "mcp_servers": {"tracker": {"url": ""}},
        "data_dir": str(tmp_path),
    }
    async with server.running():
        config["mcp_servers"] = {"tracker": {"url": server.url}}
        (tmp_path / "config.yaml").write_text(json.dumps(config))
        ran = await asyncio.to_thread(run_command, "tools", "list", "--config", str(tmp_path / "config.yaml"))
    assert "held tracker_create_issue (tracker): held back, because it is not what it was" in ran.stdout
