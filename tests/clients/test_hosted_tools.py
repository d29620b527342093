"""Clients that declare tools of their provider's get them run here, and send back what they were shown."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from callgate.application import create_app
from tests.harness.configs import make_config
from tests.harness.environment import Environment
from tests.harness.needs import needs
from tests.harness.server import serve
from tests.hosted.stand_ins import EVERY, EVERY_ENTRY
from tests.scripted_upstream import Call, Reply, RequestRecord, Upstream

pytestmark = [pytest.mark.anyio, pytest.mark.slow, needs("env:CALLGATE_CLIENTS_TABLE")]

SCRIPTS = Path(__file__).parent / "hosted"
CALLS = {
    "search": Call("find", {"query": "rust 2"}),
    "page": Call("get_page", {"url": "https://rust.example/2"}),
    "code": Call("run_code", {"code": "print(42)"}),
    "files": Call("search_files", {"query": "holidays"}),
    "image": Call("draw", {"prompt": "a dot"}),
}
ANSWER = "See [Rust 2.0](https://rust.example/2)."
PATIENCE = 120.0


def using(call: Call) -> Any:
    """A model that makes this call when it is first spoken to."""

    def answer(request: RequestRecord) -> Reply:
        last = [message for message in request.messages if message["role"] in ("user", "tool")][-1]
        is_first = last["role"] == "user" and "go" in str(last["content"])
        return Reply(calls=[call]) if is_first else Reply(text=ANSWER)

    return answer


@pytest.mark.parametrize(
    ("environment", "script", "chats", "rounds"),
    [
        pytest.param("node", "vercel.mjs", 14, 14, marks=needs("environment:node", "node")),
        pytest.param("openai-agents", "agents.py", 8, 8, marks=needs("environment:openai-agents")),
        # On Responses it sends back what was said alone.
        pytest.param("pydantic-ai", "pydantic.py", 4, 2, marks=needs("environment:pydantic-ai")),
    ],
)
async def test_each_tool_of_each_client_is_run_and_comes_back_as_it_was(
    upstream: Upstream, environment: str, script: str, chats: int, rounds: int
) -> None:
    for name, call in CALLS.items():
        upstream.script(name, using(call))
    config = make_config(upstream.url, models=list(CALLS), tools=EVERY_ENTRY, hosted_tools=EVERY)
    async with serve(create_app(config)) as url:
        said = [json.loads(line) for line in (await played(environment, script, url)).splitlines()]
    assert len(said) == chats
    assert [chat for chat in said if chat.get("texts") != [ANSWER, ANSWER] or chat["results"] != 1] == []
    again = [request for request in upstream.requests if "and now?" in str(request.messages) and request.tool_results]
    for request in again:
        roles = [message["role"] for message in request.messages if message["role"] != "system"]
        assert roles == ["user", "assistant", "tool", "assistant", "user"]
        [call] = request.messages[-4]["tool_calls"]
        assert call["function"]["name"] == CALLS[request.model].name
    assert len(again) == rounds


async def played(environment: str, script: str, url: str) -> str:
    made = Environment(environment)
    is_node = script.endswith(".mjs")
    command = ["node", "--input-type=module", "-"] if is_node else [str(made.interpreter), "-"]
    variables = {**os.environ, "CALLGATE_URL": url, "OPENAI_API_KEY": "k"}
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=made.folder,
        env=variables,
    )
    async with asyncio.timeout(PATIENCE):
        output, _ = await process.communicate((SCRIPTS / script).read_bytes())
    return output.decode()
