"""The Codex CLI as it comes, against the Responses API: its own shell, namespaces and hosted tools beside a tool of ours."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from callgate.application import create_app
from tests.harness.configs import make_config
from tests.harness.needs import needs
from tests.harness.server import serve
from tests.scripted_upstream import Call, Reply, RequestRecord, Upstream

pytestmark = [pytest.mark.anyio, pytest.mark.slow, needs("codex")]

PATIENCE = 60.0
CONFIG = """
model = "m"
model_provider = "callgate"
[model_providers.callgate]
name = "callgate"
base_url = "{url}/v1"
env_key = "CALLGATE_KEY"
wire_api = "responses"
"""


def _answer(request: RequestRecord) -> Reply:
    results = [message for message in request.messages if message["role"] == "tool"]
    if not results:
        return Reply(text="First a sum.", reasoning="Hard.", calls=[Call("add", {"a": 1, "b": 2})])
    if len(results) == 1:
        return Reply(calls=[Call("exec_command", {"cmd": "echo forty-$((40+2))"})])
    return Reply(text="All done.")


async def test_it_runs_its_shell_and_we_run_our_tool(upstream: Upstream, tmp_path: Path) -> None:
    upstream.script("m", _answer)
    async with serve(create_app(make_config(upstream.url, tools=["add"]))) as url:
        (tmp_path / "config.toml").write_text(CONFIG.format(url=url), encoding="utf-8")
        events = await _played(tmp_path)
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    said = [item["text"] for item in items if item["type"] == "agent_message"]
    [command] = [item for item in items if item["type"] == "command_execution"]
    assert said == ["First a sum.", "All done."]
    assert (command["aggregated_output"], command["status"]) == ("forty-42\n", "completed")
    assert events[-1]["type"] == "turn.completed"
    last = upstream.requests[-1]
    assert [each["role"] for each in last.messages if each["role"] in ("assistant", "tool")] == [
        "assistant",
        "tool",
        "assistant",
        "tool",
    ]
    assert next(each["content"] for each in last.messages if each["role"] == "tool") == "3"
    assert {"add", "exec_command"} <= set(last.tool_names)
    assert len(upstream.requests) == 3


async def _played(home: Path) -> list[dict[str, Any]]:
    process = await asyncio.create_subprocess_exec(
        *("codex", "exec", "--skip-git-repo-check", "--json", "-s", "danger-full-access", "do it"),
        cwd=home,
        env={"PATH": os.environ["PATH"], "HOME": str(home), "CODEX_HOME": str(home), "CALLGATE_KEY": "k"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(PATIENCE):
            told, log = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    events = [json.loads(line) for line in told.splitlines() if line.startswith(b"{")]
    assert events, log.decode(errors="replace")
    return events
