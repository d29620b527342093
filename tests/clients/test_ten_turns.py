"""Real clients in one conversation of ten turns: in each a tool of ours is called, then one of ours beside one of the client's own.

The model behind is strict: a history with a call without its result, or the other way round, fails the test. The beginning of its
prompt has to be the same in all requests of a client that does not change it itself.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from callgate.application import create_app
from tests.clients.coding_agents import CODING_AGENTS, CodingAgent, play
from tests.clients.test_histories import DRIVERS, played
from tests.harness.configs import make_config
from tests.harness.environment import MASTRA, NODE, Environment
from tests.harness.needs import BY_MAKE_CLIENTS, needs
from tests.harness.server import serve
from tests.prefixes.clients import head_of
from tests.scripted_upstream import Call, Reply, RequestRecord, Upstream

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

TURNS = 10
SHORT = 3
"""Turns of a client that takes a second for each."""
OWN: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "look": ("look", {"q": "x"}),
    "Bash": ("Bash", {"command": "echo seen", "description": "Says seen."}),
    "bash": ("bash", {"command": "echo seen", "description": "Says seen."}),
    "exec_command": ("exec_command", {"cmd": "echo seen"}),
    "shell_command": ("shell_command", {"command": "echo seen"}),
    "shell": ("shell", {"command": ["echo", "seen"]}),
    "run_shell_command": ("run_shell_command", {"command": "echo seen", "is_background": False}),
}
"""The tools of clients, and a call of each."""


def working(request: RequestRecord) -> Reply:
    """A model that adds in each turn, adds and looks at once, and says which turn it was and what came of it."""
    asked = [at for at, message in enumerate(request.messages) if turn_in(message)]
    if "add" not in request.tool_names or not asked:
        return Reply(text="A title")
    turn = turn_in(request.messages[asked[-1]])
    results = [message for message in request.messages[asked[-1] :] if message["role"] == "tool"]
    if not results:
        return Reply(calls=[Call("add", {"a": turn, "b": 1})])
    if len(results) == 1:
        own = [Call(*call) for name, call in OWN.items() if name in request.tool_names]
        return Reply(calls=[Call("add", {"a": turn, "b": 2}), *own[:1]])
    seen = "seen" in str(results[-1]["content"]) or len(results) == 2
    return Reply(text=f"Turn {turn}: {results[0]['content']}, {'seen' if seen else results[-1]['content']}.")


def turn_in(message: Mapping[str, Any]) -> int:
    """The turn that a message of the user begins, 0 for another."""
    if message["role"] != "user":
        return 0
    content = message["content"]
    texts = [content] if isinstance(content, str) else [str(part.get("text")) for part in content]
    found = [int(number) for text in texts for number in re.findall(r"^\W*turn (\d+)\W*$", text, re.MULTILINE)]
    return found[-1] if found else 0


def expected(turns: int) -> list[str]:
    return [f"Turn {turn}: {turn + 1}, seen." for turn in range(1, turns + 1)]


def check_work(requests: Sequence[RequestRecord], turns: int, beginnings: int = 1) -> None:
    """Every turn had its calls, and the prompts begin alike."""
    work = [request for request in requests if "add" in request.tool_names]
    assert len(work) >= 3 * turns
    heads = {head_of(request.body) for request in work}
    assert len(heads) == beginnings, "the beginning of the prompt changed"


@needs(f"environment:{NODE}")
@pytest.mark.parametrize(
    "flavour",
    ["responses", "anthropic", *(pytest.param(each, marks=BY_MAKE_CLIENTS) for each in ("openai", "compatible"))],
)
async def test_the_ai_sdk_goes_on_for_ten_turns(upstream: Upstream, tmp_path: Path, flavour: str) -> None:
    upstream.script("m", working)
    node = Environment(NODE)
    script = DRIVERS / "ten_turns_vercel.mjs"
    async with serve(create_app(make_config(upstream.url, tools=["add"]))) as url:
        report = await played(
            node.interpreter, str(script), url, str(node.folder), flavour, str(TURNS), folder=tmp_path
        )
    assert report == {"said": expected(TURNS), "ran": TURNS}
    check_work(upstream.requests, TURNS)


@needs(f"environment:{NODE}", f"environment:{MASTRA}")
async def test_mastra_goes_on_for_ten_turns(upstream: Upstream, tmp_path: Path) -> None:
    upstream.script("m", working)
    mastra = Environment(MASTRA)
    prompts = [f"turn {turn}" for turn in range(1, TURNS + 1)]
    async with serve(create_app(make_config(upstream.url, tools=["add"]))) as url:
        script = str(DRIVERS / "mastra.mjs")
        report = await played(mastra.interpreter, script, url, str(mastra.folder), *prompts, folder=tmp_path)
    assert report == {"said": expected(TURNS), "ran": TURNS}
    check_work(upstream.requests, TURNS)


@needs("environment:openai-agents")
@pytest.mark.parametrize("turns", [SHORT, pytest.param(TURNS, marks=BY_MAKE_CLIENTS)])
async def test_the_agents_sdk_goes_on_for_ten_turns(upstream: Upstream, tmp_path: Path, turns: int) -> None:
    upstream.script("m", working)
    async with serve(create_app(make_config(upstream.url, tools=["add"]))) as url:
        script = str(DRIVERS / "ten_turns_agents.py")
        report = await played(Environment("openai-agents").interpreter, script, url, str(turns), folder=tmp_path)
    assert [*report] == ["with_session", "streamed_with_session", "by_response_id", "approved", "on_chats"]
    for way, came in report.items():
        assert came == {"said": expected(turns), "ran": turns}, way
    check_work(upstream.requests, turns * 5, beginnings=2)  # the SDK words its own tool otherwise for chats


def agents() -> list[Any]:
    return [
        pytest.param(agent, marks=[needs(f"environment:{agent.environment}"), BY_MAKE_CLIENTS], id=agent.name)
        for agent in CODING_AGENTS
    ]


@pytest.mark.timeout(900)  # ten starts of an agent, each of which takes a minute on a machine that is busy with others
@pytest.mark.parametrize("agent", agents())
async def test_a_coding_agent_goes_on_for_ten_turns(upstream: Upstream, tmp_path: Path, agent: CodingAgent) -> None:
    upstream.script("m", working)
    config = make_config(upstream.url, tools=["add"], entry={"offer": "with_client_tools", "usage": "last_turn"})
    async with serve(create_app(config)) as url:
        reports = await play(agent, url, tmp_path, *(f"turn {turn}" for turn in range(1, TURNS + 1)))
    for turn, report in enumerate(reports, 1):
        assert f"Turn {turn}: {turn + 1}, seen." in str(report), report
    work = [request for request in upstream.requests if "add" in request.tool_names]
    assert len(work) >= 3 * TURNS
    assert len({str(request.body["tools"]) for request in work}) == 1, "the tools changed"
