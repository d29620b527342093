"""`callgate approvals` against a running server."""

import asyncio
import json
from typing import Any

import pytest

from callgate.application import create_app
from tests.harness.clients import http_client
from tests.harness.command import run_command
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.scripted_upstream import Call, Reply, Upstream
from tests.tools.servers.asking_mcp import AskingMcp, answered, elicitation, input_required

pytestmark = pytest.mark.anyio

QUESTION = {"model": "m", "messages": [{"role": "user", "content": "?"}]}


async def callgate(*arguments: str, url: str) -> tuple[int, str, str]:
    ran = await asyncio.to_thread(run_command, "approvals", *arguments, "--url", url)
    return ran.returncode, ran.stdout, ran.stderr


@pytest.mark.parametrize(("words", "expected"), [(["approve"], "hi\n\x1b[2J"), (["deny", "--reason", "no"], "no")])
async def test_a_waiting_call_is_listed_and_decided(upstream: Upstream, words: list[str], expected: str) -> None:
    upstream.script("m", [Reply(calls=[Call("echo", {"text": "hi\n\x1b[2J"})]), Reply(text="done")])
    app = create_app(make_config(upstream.url, tools=["echo"], require_approval="always"))
    async with serve(app) as url, http_client(url, timeout=None) as client:
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=QUESTION))
        approvals = app.state.manager.shared.approvals
        while not approvals.waiting():
            await approvals.changed()
        code, out, _ = await callgate("list", url=url)
        assert code == 0
        [asked] = approvals.waiting()
        assert asked.id in out
        assert asked.hash in out
        assert "\x1b" not in out
        listed = json.loads((await callgate("list", "--json", url=url))[1])
        assert listed[0]["arguments"] == {"text": "hi\n\x1b[2J"}
        code, out, err = await callgate(words[0], asked.id, *words[1:], url=url)
        assert (code, err) == (0, "")
        assert (await asking).status_code == 200
        assert (await callgate("list", url=url))[1] == "nothing waits\n"
        code, _, err = await callgate("approve", asked.id, url=url)
        assert (code, err) == (1, f"callgate: no call waits under {asked.id}\n")
    assert expected in upstream.requests[-1].body["messages"][-1]["content"]


async def test_a_server_that_is_not_there_is_an_error() -> None:
    code, _, err = await callgate("list", url="http://127.0.0.1:1")
    assert code == 1
    assert "refused" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["answer", "--set", "title=It leaks"],
            {"action": "accept", "content": {"title": "It leaks", "priority": "low", "loud": False}},
        ),
        (["decline"], {"action": "decline"}),
    ],
    ids=["answered", "declined"],
)
async def test_what_a_running_tool_asks_is_listed_and_answered(
    upstream: Upstream, words: list[str], said: dict[str, object]
) -> None:
    def does(params: dict[str, Any]) -> dict[str, Any]:
        if "inputResponses" in params:
            return answered(json.dumps(params["inputResponses"]["q0"]))
        return input_required(elicitation("Which\x1b[2J issue?"))

    upstream.script("m", [Reply(calls=[Call("tracker_create_issue", {})]), Reply(text="done")])
    server = AskingMcp(does=does)
    async with server.running():
        servers = {"tracker": {"url": server.url, "elicitation": "form"}}
        app = create_app(make_config(upstream.url, entry={"tools": ["*"]}, mcp_servers=servers))
        async with serve(app) as url, http_client(url, timeout=None) as client:
            asking = asyncio.create_task(client.post("/v1/chat/completions", json=QUESTION))
            approvals = app.state.manager.shared.approvals
            while not approvals.waiting():
                await approvals.changed()
            [asked] = approvals.waiting()
            _, out, _ = await callgate("list", url=url)
            assert "tracker asks, while running tracker_create_issue: Which" in out
            assert "\x1b" not in out
            code, _, err = await callgate("answer", asked.id, "--set", "title=x", url=url)
            assert (code, err.startswith("callgate: title: ")) == (1, True)
            assert (await callgate("approve", asked.id, url=url))[0] == 1
            assert (await callgate(words[0], asked.id, *words[1:], url=url))[0] == 0
            await asking
    assert json.loads(upstream.requests[-1].body["messages"][-1]["content"]) == said
