"""Coding agents as they come: their own shell and all that they offer beside it, and a tool of ours."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from callgate.application import create_app
from tests.harness.configs import make_config
from tests.harness.environment import AGENTS, Environment
from tests.harness.needs import BY_MAKE_CLIENTS, needs
from tests.harness.process import output_of
from tests.harness.server import serve
from tests.scripted_upstream import Call, Reply, RequestRecord, Upstream

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(300), needs(f"environment:{AGENTS}")]

PATIENCE = 180.0
PACKAGES = Environment(AGENTS).folder / "node_modules"
COMMAND = "echo forty-$((40+2))"
CODEX = """
model = "m"
model_provider = "callgate"
[model_providers.callgate]
name = "callgate"
base_url = "{url}/v1"
env_key = "CALLGATE_KEY"
wire_api = "responses"
"""
OFFLINE = dict.fromkeys(("OPENCODE_DISABLE_MODELS_FETCH", "OPENCODE_DISABLE_AUTOUPDATE"), "1")


def in_the_suite(package: str, *others: str) -> pytest.MarkDecorator:
    """One of the packages by which opencode reaches an API; `make clients` plays the others too, each of which takes seconds to start."""
    return pytest.mark.parametrize(
        "package", [package, *(pytest.param(each, marks=BY_MAKE_CLIENTS) for each in others)]
    )


def working_with(shell: str, **more: Any) -> Any:
    """What the model does: a sum, which is ours, then a command, which is the agent's."""

    def answer(request: RequestRecord) -> Reply:
        results = [message for message in request.messages if message["role"] == "tool"]
        if shell not in request.tool_names:
            return Reply(text="A title.")
        if not results:
            return Reply(text="First a sum.", reasoning="Hard.", calls=[Call("add", {"a": 1, "b": 2})])
        if len(results) == 1:
            return Reply(calls=[Call(shell, more)])
        return Reply(text="All done.")

    return answer


def check_history(upstream: Upstream, shell: str) -> None:
    """The model saw each of its turns once, and what came of them."""
    last = [request for request in upstream.requests if shell in request.tool_names][-1]
    roles = [each["role"] for each in last.messages if each["role"] in ("assistant", "tool")]
    assert roles == ["assistant", "tool", "assistant", "tool"]
    results = [each["content"] for each in last.messages if each["role"] == "tool"]
    assert results[0] == "3"
    assert "forty-42" in results[1]
    assert {"add", shell} <= set(last.tool_names)


async def test_codex_runs_its_shell_and_we_run_our_tool(upstream: Upstream, tmp_path: Path) -> None:
    upstream.script("m", working_with("exec_command", cmd=COMMAND))
    async with serve(create_app(make_config(upstream.url, tools=["add"]))) as url:
        (tmp_path / "config.toml").write_text(CODEX.format(url=url), encoding="utf-8")
        program = next(PACKAGES.glob("@openai/codex-*/vendor/*/*/codex"))
        options = ("exec", "--skip-git-repo-check", "--json", "-s", "danger-full-access", "do it")
        events = await _played(program, *options, home=tmp_path, CODEX_HOME=str(tmp_path))
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    said = [item["text"] for item in items if item["type"] == "agent_message"]
    [command] = [item for item in items if item["type"] == "command_execution"]
    assert said == ["First a sum.", "All done."]
    assert (command["aggregated_output"], command["status"]) == ("forty-42\n", "completed")
    assert events[-1]["type"] == "turn.completed"
    check_history(upstream, "exec_command")
    assert len(upstream.requests) == 3


@in_the_suite("@ai-sdk/anthropic", "@ai-sdk/openai")
async def test_opencode_runs_its_shell_and_we_run_our_tool(upstream: Upstream, tmp_path: Path, package: str) -> None:
    upstream.script("m", working_with("bash", command=COMMAND, description="A number."))
    async with serve(create_app(make_config(upstream.url, tools=["add"]))) as url:
        events = await _played_opencode(url, package, tmp_path)
    parts = [event["part"] for event in events]
    texts = [part["text"] for part in parts if part["type"] == "text"]
    assert (texts[0].split("\n")[0], texts[-1]) == ("First a sum.", "All done.")
    [command] = [part for part in parts if part["type"] == "tool" and part["tool"] == "bash"]
    assert "forty-42" in command["state"]["output"]
    assert not [event for event in events if event["type"] == "error"]
    check_history(upstream, "bash")


@in_the_suite("@ai-sdk/openai", "@ai-sdk/anthropic", "@ai-sdk/openai-compatible")
async def test_opencode_does_not_repeat_what_failed_after_a_tool_wrote(
    upstream: Upstream, tmp_path: Path, package: str
) -> None:
    def answer(request: RequestRecord) -> Reply:
        if "bash" not in request.tool_names:
            return Reply(text="A title.")
        if not request.tool_results:
            return Reply(calls=[Call("send_mail", {"to": "a", "text": "b"})])
        return Reply(status=500, body={"error": {"message": "boom"}})

    upstream.script("m", answer)
    config = make_config(upstream.url, tools=["send_mail"], upstream={"retries": 0})
    async with serve(create_app(config)) as url:
        events = await _played_opencode(url, package, tmp_path)
    assert events[-1]["type"] == "error"
    asked = [request for request in upstream.requests if "bash" in request.tool_names]
    assert len([request for request in asked if not request.tool_results]) == 1


async def _played_opencode(url: str, package: str, home: Path) -> list[dict[str, Any]]:
    options = {"baseURL": f"{url}/v1", "apiKey": "k"}
    provider = {"npm": package, "options": options, "models": {"m": {"tool_call": True}}}
    config: dict[str, Any] = {"model": "callgate/m", "small_model": "callgate/m", "permission": {"bash": "allow"}}
    config |= {"share": "disabled", "autoupdate": False, "provider": {"callgate": provider}}
    (home / "opencode.json").write_text(json.dumps(config), encoding="utf-8")
    program = next(PACKAGES.glob("opencode-*/bin/opencode"))
    return await _played(program, "run", "--format", "json", "do it", home=home, **OFFLINE)


async def _played(program: Path, *options: str, home: Path, **variables: str) -> list[dict[str, Any]]:
    """Its report of its work, line by line, which stays on this machine."""
    offline: Mapping[str, str] = {"HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "CALLGATE_KEY": "k", **offline, **variables}
    output, log = await output_of(program, *options, seconds=PATIENCE, environment=environment, folder=home)
    events = [json.loads(line) for line in output.splitlines() if line.startswith(b"{")]
    assert events, log
    return events
