"""Sessions of the OpenAI Agents SDK that a server keeps, or compacts."""

import json
from typing import Any

import pytest

from callgate.application import create_app
from callgate.conversation.context import MARK, PROMPT
from tests.clients.driver import DRIVERS
from tests.harness.configs import make_config
from tests.harness.environment import Environment
from tests.harness.needs import needs
from tests.harness.process import output_of
from tests.harness.server import serve
from tests.scripted_upstream import Call, Reply, RequestRecord, Upstream

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

TURNS = 4
SUMMARY = "Some turns were taken."


def answer(request: RequestRecord) -> Reply:
    """Calls a tool of each side in every turn, and says how many turns of the user it knows of."""
    last = request.messages[-1]
    if PROMPT in str(last["content"]):
        return Reply(text=SUMMARY)
    if last["role"] == "user":
        number = len(request.messages)
        return Reply(calls=[Call("add", {"a": 1, "b": 2}, id=f"a{number}"), Call("look", {"q": "x"}, id=f"l{number}")])
    users = [m for m in request.messages if m["role"] == "user" and not str(m["content"]).startswith(MARK)]
    return Reply(text=f"{len(users)} turns")


@needs("environment:openai-agents")
async def test_the_agents_sdk_keeps_its_conversations_here_and_has_them_compacted(upstream: Upstream) -> None:
    upstream.script("gpt-5", answer)
    config = make_config(upstream.url, models=["gpt-5"], tools=["add"])
    async with serve(create_app(config)) as url:
        script = str(DRIVERS / "agents_sessions.py")
        python = Environment("openai-agents").interpreter
        output, log = await output_of(python, script, url, seconds=90)
    assert output, log
    said: dict[str, Any] = json.loads(output)
    every_turn = [f"{turn} turns" for turn in range(1, TURNS + 1)]
    assert {way: of_way["said"] for way, of_way in said.items()} == dict.fromkeys(said, every_turn)
    kept = said["conversation"]
    assert (kept["items"] - kept["left"], kept["last"]) == (1, "message")
    assert said["by_its_id"]["items"] == kept["items"] == 1 + TURNS * 5, "the tools are listed once"
    assert said["compacted"]["compactions"] == 1
    assert any(PROMPT in str(request.messages[-1]["content"]) for request in upstream.requests)
