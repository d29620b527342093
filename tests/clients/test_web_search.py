"""Coding agents that search the web by a tool of their provider's find it here, behind any model."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from callgate.application import create_app
from tests.clients.coding_agents import CLAUDE, CODING_AGENTS, CodingAgent, Setting, play
from tests.harness.configs import make_config
from tests.harness.needs import needs
from tests.harness.server import serve
from tests.scripted_upstream import Call, Reply, RequestRecord, Upstream
from tests.tools.kinds.web_pages import found, web_of_tests

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


def with_its_search(url: str, home: Path) -> Setting:
    """Claude Code with its own search in each request, which else it has to find first, and without asking for leave."""
    setting = CLAUDE.set_up(url, home)

    def arguments(prompt: str, goes_on: bool) -> Sequence[str]:
        return [*setting.arguments(prompt, goes_on), "--tools", "WebSearch", "--allowedTools", "WebSearch"]

    return replace(setting, arguments=arguments, variables={**setting.variables, "ENABLE_TOOL_SEARCH": "false"})


CLAUDE_CODE = replace(CLAUDE, set_up=with_its_search)
CODEX = next(agent for agent in CODING_AGENTS if agent.name == "Codex")
RUST = {"url": "https://rust.example/2", "title": "Rust 2.0", "content": "It is out since Monday."}
ASKED, NEXT = "Is Rust 2.0 out?", "And now?"
ANSWER = f"It is out since Monday, says [Rust 2.0]({RUST['url']})."


async def played(upstream: Upstream, agent: CodingAgent, home: Path) -> Any:
    async with web_of_tests(lambda *_: found(RUST)) as web:
        search = {"kind": "web_search", "engine": "searxng", "url": web.url("127.0.0.1")}
        config = make_config(upstream.url, tools=[search], entry={"offer": "with_client_tools"})
        async with serve(create_app(config)) as url:
            runs = await play(agent, url, home, ASKED, NEXT)
        assert [target.partition("?")[0] for _, target in web.asked] == ["/search"]
    return runs


def results_in(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    return [str(message["content"]) for message in messages if message["role"] == "tool"]


@needs(f"environment:{CLAUDE.environment}")
async def test_claude_code_searches_the_web(upstream: Upstream, tmp_path: Path) -> None:
    """Its own tool asks the model once more, with the tool that Anthropic would run."""

    def answer(request: RequestRecord) -> Reply:
        asked = str([message for message in request.messages if message["role"] == "user"][-1]["content"])
        results = results_in(request.messages)
        if "WebSearch" not in request.tool_names and "web_search" in request.tool_names:
            if not results:
                return Reply(calls=[Call("web_search", {"query": "rust 2"})])
            return Reply(text=ANSWER)
        if "WebSearch" in request.tool_names and ASKED in asked and not results:
            return Reply(calls=[Call("WebSearch", {"query": "rust 2"})])
        return Reply(text="All done.")

    upstream.script("m", answer)
    runs = await played(upstream, CLAUDE_CODE, tmp_path)
    results = [result for request in upstream.requests for result in results_in(request.messages)]
    [of_agent] = {result for result in results if result.startswith("Web search results")}
    assert RUST["url"] in of_agent
    assert ANSWER in of_agent
    assert [result for result in results if "It is out since Monday." in result and result != of_agent]
    assert [str(run).count('"is_error": true') for run in runs] == [0, 0]
    assert all("All done." in str(run) for run in runs)


@needs(f"environment:{CODEX.environment}")
async def test_codex_searches_the_web(upstream: Upstream, tmp_path: Path) -> None:
    def answer(request: RequestRecord) -> Reply:
        asked = str([message for message in request.messages if message["role"] == "user"][-1]["content"])
        if ASKED in asked and not results_in(request.messages):
            return Reply(calls=[Call("web_search", {"query": "rust 2"})])
        if ASKED in asked and len(results_in(request.messages)) == 1:
            return Reply(calls=[Call("exec_command", {"cmd": "echo hi"})])
        return Reply(text=ANSWER)

    upstream.script("m", answer)
    runs = await played(upstream, CODEX, tmp_path)
    items = [event["item"] for event in runs[0].events if event["type"] == "item.completed"]
    [search] = [item for item in items if item["type"] == "web_search"]
    assert search["query"] == "rust 2"
    assert [item["text"] for item in items if item["type"] == "agent_message"] == [ANSWER]
    assert [run.events[-1]["type"] for run in runs] == ["turn.completed", "turn.completed"]
    last = upstream.requests[-1].messages
    calls = [call["function"]["name"] for message in last for call in message.get("tool_calls") or ()]
    assert calls == ["web_search", "exec_command"]
    assert json.dumps(last).count('It is out since Monday."') == 1
