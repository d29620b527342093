"""Agents that compact their conversation by the usage of an answer do not, though ten rounds of ours went into one answer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from callgate.access.keys import hash_key
from callgate.application import create_app
from tests.clients.coding_agents import CLAUDE, CODING_AGENTS, CodingAgent, play
from tests.harness.configs import make_config
from tests.harness.needs import BY_MAKE_CLIENTS, needs
from tests.harness.server import serve
from tests.scripted_upstream import Call, Reply, RequestRecord, Upstream

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ROUNDS = 10
TOKENS = 20_000
"""What each turn reports of its prompt: a third of the context that agents are told of, and ten times that in sum."""
USAGE = {"prompt_tokens": TOKENS, "completion_tokens": 20, "total_tokens": TOKENS + 20}
SUMS, NEXT = "Do the SUMS please.", "And now?"
IN_THE_SUITE = ("Claude Code", "Codex", "Qwen Code, Messages")
"""Those of which a test runs whenever tests do; `make clients` runs all, and what they do with the sum."""


def cases(*, control: bool) -> list[Any]:
    def marks(agent: CodingAgent) -> list[pytest.MarkDecorator]:
        is_short = agent.name in IN_THE_SUITE and not control
        return [needs(f"environment:{agent.environment}"), *([] if is_short else [BY_MAKE_CLIENTS])]

    return [pytest.param(agent, marks=marks(agent), id=agent.name) for agent in CODING_AGENTS]


def adding_up(agent: CodingAgent) -> Callable[[RequestRecord], Reply]:
    """A model that calls our tool ten times for the sums, then the agent's shell if that is wanted, and is done."""

    def answer(request: RequestRecord) -> Reply:
        asked = str([message for message in request.messages if message["role"] == "user"][-1]["content"])
        done = 0
        for message in reversed(request.messages):
            if message["role"] == "user":
                break
            done += message["role"] == "tool"
        calls: list[Call] = []
        if "add" in request.tool_names and "SUMS" in asked:
            if done < ROUNDS:
                calls = [Call("add", {"a": done, "b": 1})]
            elif done == ROUNDS and agent.shell is not None:
                calls = [Call(*agent.shell)]
        return Reply(text=None if calls else "All done.", calls=calls, usage=USAGE)

    return answer


def compactions(agent: CodingAgent, upstream: Upstream, played: Any) -> list[str]:
    """Every sign that it has compacted."""
    said = "\n".join([*map(str, played), *(str(request.messages) for request in upstream.requests)])
    return [mark for mark in agent.compaction_marks if mark in said]


class WithoutIterations:
    """The application, as if it had never heard of the field from which Claude Code calculates its context."""

    def __init__(self, app: Any) -> None:
        self._app: ASGIApp = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_less(message: Message) -> None:
            if body := message.get("body"):
                message = {**message, "body": body.replace(b'"iterations"', b'"iterationz"')}
            await send(message)

        await self._app(scope, receive, send_less)


@pytest.mark.parametrize("agent", cases(control=False))
async def test_ten_rounds_of_ours_on_a_small_prompt_compact_nothing(
    upstream: Upstream, tmp_path: Path, agent: CodingAgent
) -> None:
    upstream.script("m", adding_up(agent))
    config = make_config(upstream.url, tools=["add"], entry={"offer": "with_client_tools"})
    async with serve(create_app(config)) as url:
        played = await play(agent, url, tmp_path, SUMS, NEXT)
    assert compactions(agent, upstream, played) == []
    assert ["All done." in str(each) for each in played] == [True, True]
    rounds = [request for request in upstream.requests if "add" in request.tool_names and request.tool_results]
    assert len(rounds) >= ROUNDS


@pytest.mark.parametrize("agent", cases(control=True))
async def test_with_the_sum_it_does_compact(upstream: Upstream, tmp_path: Path, agent: CodingAgent) -> None:
    """So that the test above could fail; and the session goes on, because a summary is offered no tools."""
    upstream.script("m", adding_up(agent))
    config = make_config(upstream.url, tools=["add"], entry={"usage": "sum"})
    app: Any = create_app(config)
    async with serve(WithoutIterations(app) if agent is CLAUDE else app) as url:
        played = await play(agent, url, tmp_path, SUMS, NEXT)
    assert compactions(agent, upstream, played) != []
    assert not [event for each in played for event in each.events if event["type"] == "error"]


class Counted:
    """The application, and how many messages were asked for."""

    def __init__(self, app: Any) -> None:
        self._app: ASGIApp = app
        self.asked = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked += scope["type"] == "http" and scope["path"] == "/v1/messages"
        await self._app(scope, receive, send)


@needs(f"environment:{CLAUDE.environment}")
async def test_claude_code_says_at_once_that_its_key_is_wrong(upstream: Upstream, tmp_path: Path) -> None:
    keys = [{"name": "ada", "hash": hash_key("cg-right")}]
    app = Counted(create_app(make_config(upstream.url, auth="keys", keys=keys)))
    async with serve(app) as url:
        [played] = await play(CLAUDE, url, tmp_path, "hi", key="cg-wrong")
    assert app.asked == 1
    assert "401" in str(played.events[-1]["result"])
    assert played.events[-1]["is_error"] is True
