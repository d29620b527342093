"""`callgate approvals` against a running server."""

import asyncio
import json

import pytest

from callgate.application import create_app
from tests.harness.clients import http_client
from tests.harness.command import run_command
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.scripted_upstream import Call, Reply, Upstream

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
