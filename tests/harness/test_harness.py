"""The harness starts what it is given, says when it is ready, and leaves nothing behind."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest

from callgate.application import create_app
from tests.harness import sessions, toolshed
from tests.harness.clients import openai_client, streamed, whole
from tests.harness.command import run_command
from tests.harness.configs import as_yaml, config_dict, make_config, tool_entry
from tests.harness.process import ChildFailed, child, serving_command
from tests.harness.server import NotStarted, serve
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = pytest.mark.anyio

ASKED: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


class SmallApp:
    """An ASGI app that answers with its state; its lifespan can refuse to start."""

    def __init__(self, *, starts: bool = True) -> None:
        self.state = "new"
        self._starts = starts

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return await self._live(receive, send)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": self.state.encode()})
        return None

    async def _live(self, receive: Any, send: Any) -> None:
        await receive()
        if not self._starts:
            await send({"type": "lifespan.startup.failed", "message": "no"})
            return
        self.state = "open"
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self.state = "closed"
        await send({"type": "lifespan.shutdown.complete"})


async def test_an_app_is_served_with_its_lifespan_and_can_be_looked_into():
    app = SmallApp()
    async with serve(app) as url, httpx.AsyncClient(trust_env=False) as client:
        assert (await client.get(url)).text == app.state == "open"
    assert app.state == "closed"
    async with httpx.AsyncClient(trust_env=False) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(url)


async def test_an_app_that_refuses_to_start_is_an_error():
    with pytest.raises(NotStarted):
        async with serve(SmallApp(starts=False)):
            pytest.fail("it started")


async def test_signals_stay_the_test_runners():
    before = signal.getsignal(signal.SIGINT)
    async with serve(SmallApp()):
        assert signal.getsignal(signal.SIGINT) is before


def test_a_config_offers_the_tools_it_names():
    config = make_config("http://127.0.0.1:9/v1", models=["a", "b"], tools=["add"], loop={"max_iterations": 2})
    assert [(entry.model_name, entry.tools) for entry in config.model_list] == [("a", ("*",)), ("b", ("*",))]
    assert config.loop.max_iterations == 2
    assert len(config.tools) == 1


def test_every_tool_of_the_shed_can_be_configured():
    names = list(toolshed.SAFETY)
    assert all(callable(getattr(toolshed, name)) for name in names)
    config = make_config("http://127.0.0.1:9/v1", tools=names)
    assert len(config.tools) == len(names)
    assert tool_entry("add")["safety"] == "read_only"


async def test_the_accumulator_puts_a_stream_together_as_the_whole_answer(upstream):
    upstream.script("m", [Reply(text="Hi", calls=[Call("f", {"a": 1}, id="c1")], finish="length")], repeat_last=True)
    async with openai_client(upstream.url) as client:
        one, other = await whole(client, **ASKED), await streamed(client, **ASKED)
    for answer in (one, other):
        assert answer.choices[0].finish_reason == "length"
        assert answer.choices[0].message.content == "Hi"
        [call] = answer.choices[0].message.tool_calls or []
        assert (call.id, call.model_dump()["function"]["arguments"]) == ("c1", '{"a":1}')
    assert one.usage is not None
    assert other.usage == one.usage


async def test_the_product_is_served_in_the_loop_of_the_test(upstream: Upstream):
    """With a tool that runs in a thread, and one that the test holds by its gate: nothing of either stays."""
    upstream.script("m", [Reply(calls=[Call("add", {"a": 2, "b": 3}), Call("wait_for_gate")]), Reply(text="done")])
    config = make_config(upstream.url, tools=["add", "wait_for_gate"])
    async with toolshed.held() as waiting, serve(create_app(config)) as url, openai_client(url) as client:
        asked = asyncio.create_task(streamed(client, **ASKED))
        await waiting.started.wait()
        waiting.gate.set()
        assert (await asked).choices[0].message.content == "done"
    assert sorted(upstream.requests[1].tool_results.values()) == ["5", "waited"]


async def test_a_child_that_fails_shows_its_log():
    async with child(["no-such-command"]) as failing:
        with pytest.raises(ChildFailed, match="no-such-command"):
            await failing.line("this line never comes")
        assert await failing.ended() != 0


async def test_the_command_serves_a_config_file_in_a_child(upstream: Upstream, tmp_path: Path):
    upstream.script("m", [Reply(calls=[Call("add", {"a": 2, "b": 3}, id="c1")]), Reply(text="five")])
    path = tmp_path / "config.yaml"
    path.write_text(as_yaml(config_dict(upstream.url, tools=["add"])), encoding="utf-8")
    async with serving_command(path) as running, openai_client(running.url) as client:
        answer = await whole(client, **ASKED)
        assert answer.choices[0].message.content == "five"
        assert upstream.requests[1].tool_results == {"c1": "5"}
        running.signal(signal.SIGTERM)
        assert await running.ended() == 0


async def test_the_upstream_can_be_run_by_hand(tmp_path: Path):
    case = {"id": "by-hand", "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
    path = tmp_path / "case.json"
    path.write_text(json.dumps(case), encoding="utf-8")
    arguments = ["--port", "0", "--case", str(path)]
    async with child(arguments, module="tests.scripted_upstream") as running:
        url = (await running.line(r"READY (\S+)")).group(1)
        async with openai_client(url) as client:
            assert (await whole(client, **{**ASKED, "model": "by-hand"})).choices[0].message.content == "hi"
            assert (await streamed(client, **{**ASKED, "model": "echo+bytes"})).choices[0].message.content == "hello"
        running.signal(signal.SIGTERM)
        assert await running.ended() == 0


async def test_waiting_for_a_line_has_an_end():
    async with child(["--port", "0"], module="tests.scripted_upstream") as running:
        await running.line("READY")
        with pytest.raises(ChildFailed, match="no line like 'never'"):
            await running.line("never", within=0.01)


def test_a_command_that_is_forked_does_what_a_fresh_one_does(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import os, sys\nfrom callgate import tool\n\n\n@tool\ndef where() -> str:\n"
        "    return f\"{os.getcwd()} {os.environ['WORD']} {os.environ.get('PATH')} {sys.stdin.read()!r}\"\n"
    )
    (tmp_path / "config.yaml").write_text(
        "model_list: [{model_name: demo, litellm_params: {model: demo/demo}}]\ntools: [{kind: python, module: mine}]\n"
    )
    for command in (["tools", "call", "where"], ["tools", "call", "there"], ["check"], ["no", "such"]):
        forked, fresh = (
            run_command(*command, folder=tmp_path, environment={"WORD": "ünï"}, fresh=fresh) for fresh in (False, True)
        )
        assert (forked.returncode, forked.stdout, forked.stderr) == (fresh.returncode, fresh.stdout, fresh.stderr)
    assert forked.returncode == 2


async def test_a_session_that_a_library_keeps_is_closed_with_its_test() -> None:
    kept = aiohttp.ClientSession()
    await sessions.close()
    assert kept.closed
