"""Clients that send the whole history back, in shapes of their own: what ran here stands in it once, and approvals in it count."""

import json
from pathlib import Path
from typing import Any

import pytest

from callgate.application import create_app
from tests.harness.configs import make_config
from tests.harness.environment import MASTRA, NODE, Environment
from tests.harness.needs import needs
from tests.harness.process import output_of
from tests.harness.server import serve
from tests.scripted_upstream import Call, Reply, RequestRecord, Upstream

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

PATIENCE = 90.0
DRIVERS = Path(__file__).parent / "drivers"
ADD = Call("add", {"a": 1, "b": 2})


async def played(program: Path, *options: str, folder: Path) -> Any:
    environment = {"HOME": str(folder), "PATH": "/usr/bin:/bin", "MASTRA_TELEMETRY_DISABLED": "1"}
    output, log = await output_of(program, *options, seconds=PATIENCE, environment=environment, folder=folder)
    lines = output.splitlines()
    assert lines, log
    return json.loads(lines[-1])


def calls_in(request: RequestRecord) -> list[str]:
    return [call["function"]["name"] for it in request.messages for call in it.get("tool_calls") or ()]


@needs(f"environment:{NODE}", f"environment:{MASTRA}")
async def test_mastra_goes_on_after_turns_with_tools_of_both_sides(upstream: Upstream, tmp_path: Path) -> None:
    def answer(request: RequestRecord) -> Reply:
        users = [place for place, it in enumerate(request.messages) if it["role"] == "user"]
        done = [it for it in request.messages[users[-1] :] if it["role"] == "tool"]
        if not done:
            return Reply(calls=[ADD, Call("look", {"q": "x"})])
        if len(done) == 2:
            return Reply(calls=[ADD])
        return Reply(text=f"Done {len(users)}.")

    upstream.script("m", answer)
    mastra = Environment(MASTRA)
    async with serve(create_app(make_config(upstream.url, tools=["add"]))) as url:
        script = str(DRIVERS / "mastra.mjs")
        report = await played(mastra.interpreter, script, url, str(mastra.folder), "go", "again", folder=tmp_path)
    assert report == {"said": ["Done 1.", "Done 2."], "ran": 2}
    assert calls_in(upstream.requests[-1]) == ["add", "look", "add"] * 2
    assert "unknown_tool" not in json.dumps([request.body for request in upstream.requests])


@needs("environment:openai-agents")
async def test_the_agents_sdk_approves_calls_in_its_history(upstream: Upstream, tmp_path: Path) -> None:
    def answer(request: RequestRecord) -> Reply:
        users = [it for it in request.messages if it["role"] == "user"]
        if len(users) > 1:
            return Reply(text="Sure.")
        return Reply(text="It is 3.") if request.tool_results else Reply(calls=[ADD])

    upstream.script("m", answer)
    async with serve(create_app(make_config(upstream.url, tools=["add"]))) as url:
        script = str(DRIVERS / "agents_approvals.py")
        report = await played(Environment("openai-agents").interpreter, script, url, folder=tmp_path)
    assert report == {way: ["It is 3.", "Sure."] for way in ("run", "streamed", "interrupted")}
    assert [calls_in(request) for request in upstream.requests] == [[], ["add"], ["add"]] * 3
    assert [[*request.tool_results.values()] for request in upstream.requests] == [[], ["3"], ["3"]] * 3
