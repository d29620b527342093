"""`callgate chat`, its lines coming through a pipe."""

import asyncio
import contextlib
import os
import pty
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from callgate.access.keys import mint_key
from callgate.application import create_app
from callgate.cli.chat import _how_far
from tests.harness.clients import http_client
from tests.harness.configs import as_yaml, config_dict, make_config
from tests.harness.process import ROOT
from tests.harness.server import serve
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = pytest.mark.anyio


async def chat(*arguments: str, lines: str, environment: dict[str, str] | None = None) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "callgate", "chat", *arguments,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT / "app"), **(environment or {})},
    )  # fmt: skip
    async with asyncio.timeout(50):
        out, err = await process.communicate(lines.encode())
    assert b"Traceback" not in err, err.decode()
    return process.returncode or 0, out.decode(), err.decode()


async def test_it_shows_text_and_tool_calls_and_keeps_the_history(upstream: Upstream) -> None:
    upstream.script(
        "m",
        [
            Reply(calls=[Call("add", {"a": 1, "b": 2}), Call("send_mail", {"to": "a", "text": "b"})]),
            Reply(text="3\x1b[2J"),
            Reply(text="yes"),
        ],
    )
    async with serve(create_app(make_config(upstream.url, tools=["add", "send_mail"]))) as url:
        code, out, err = await chat("--url", url, lines="one and two?\n\nsure?\n")
    assert code == 0
    assert out == "3\\u001b[2J\nyes\n"
    assert "add done in " in err
    assert "send_mail failed after " in err
    said = [(m["role"], m["content"]) for m in upstream.requests[2].body["messages"]]
    assert said == [("user", "one and two?"), ("assistant", "3\x1b[2J"), ("user", "sure?")]


@contextlib.asynccontextmanager
async def at_a_terminal(upstream: Upstream, **approvals: Any) -> AsyncIterator[tuple[Any, int, str]]:
    """The command at a terminal of its own, that terminal's other end, and a server whose tool waits for approval."""
    upstream.script("m", [Reply(calls=[Call("add", {"a": 1, "b": 2})]), Reply(text="ended")])
    config = make_config(upstream.url, tools=["add"], require_approval="always", approvals=approvals)
    near, far = pty.openpty()
    async with serve(create_app(config)) as url:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "callgate", "chat", "--url", url,
            stdin=far, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT / "app")},
        )  # fmt: skip
        os.close(far)
        async with asyncio.timeout(50):
            yield process, near, url
            await process.wait()
    os.close(near)


@pytest.mark.parametrize(("typed", "decision"), [("y", "approved"), ("n", "denied"), ("", "denied")])
async def test_a_call_that_waits_is_asked_about_at_the_terminal(upstream: Upstream, typed: str, decision: str) -> None:
    async with at_a_terminal(upstream) as (process, near, _):
        os.write(near, b"one and two?\n")
        question = (await process.stderr.readuntil(b"[y/N] ")).decode()
        os.write(near, f"{typed}\n".encode())
        await process.stdout.readuntil(b"ended")
        os.write(near, b"/quit\n")
        rest = (await process.stderr.read()).decode()
    assert 'run add {"a": 1, "b": 2}' in question
    assert decision in rest
    result = upstream.requests[1].body["messages"][-1]["content"]
    assert (result == "3") == (typed == "y")


async def test_what_was_typed_before_a_call_is_shown_does_not_approve_it(upstream: Upstream) -> None:
    async with at_a_terminal(upstream) as (process, near, _):
        os.write(near, b"one and two?\ny\n")
        await process.stderr.readuntil(b"[y/N] ")
        os.write(near, b"n\n")
        await process.stdout.readuntil(b"ended")
        os.write(near, b"/quit\n")
        rest = (await process.stderr.read()).decode()
    assert "denied" in rest
    assert "approved" not in rest


@pytest.mark.parametrize("how", ["elsewhere", "with_timeout"])
async def test_a_question_ends_with_the_wait_of_its_call(upstream: Upstream, how: str) -> None:
    seconds = {"timeout_seconds": 2} if how == "with_timeout" else {}
    async with at_a_terminal(upstream, **seconds) as (process, near, url), http_client(url) as client:
        os.write(near, b"one and two?\n")
        await process.stderr.readuntil(b"[y/N] ")
        if how == "elsewhere":
            [asked] = (await client.get("/v1/approvals")).json()["data"]
            await client.post(f"/v1/approvals/{asked['id']}", json={"decision": "approve"})
        await process.stdout.readuntil(b"ended")
        os.write(near, b"/quit\n")
        rest = (await process.stderr.read()).decode()
    assert "it waits no more" in rest
    assert ("add done in" in rest) == (how == "elsewhere")


async def test_a_broken_call_is_shown_and_commands_are_its_own(upstream: Upstream) -> None:
    cut = Call("add", '{"a": 1, "b')
    upstream.script("m", [Reply(calls=[cut], finish="length"), Reply(text="Sorry."), Reply(text="Fine.")])
    async with serve(create_app(make_config(upstream.url, tools=["add"]))) as url:
        code, out, err = await chat("--url", url, lines="one and two?\n/help\n/hepl\n/etc/hosts says what?\n/quit\n")
    assert code == 0
    assert out == "Sorry.\nFine.\n"
    assert "✗ add: cut off, not run (turn 1)" in err
    assert "there is no /hepl. /help says this again" in err
    assert [
        each.body["messages"][-1]["content"]
        for each in upstream.requests
        if each.body["messages"][-1]["role"] == "user"
    ] == [
        "one and two?",
        "/etc/hosts says what?",
    ]


async def test_a_new_beginning_forgets(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="a"), Reply(text="b")])
    async with serve(create_app(make_config(upstream.url))) as url:
        await chat("--url", url, lines="one\n/new\ntwo\n/quit\nthree\n")
    assert len(upstream.requests) == 2
    assert [m["content"] for m in upstream.requests[1].body["messages"]] == ["two"]


async def test_an_error_is_printed_and_the_question_is_not_kept(upstream: Upstream) -> None:
    refusal = {"error": {"message": "no such thing\x1b]0;owned\x07"}}
    upstream.script("m", [Reply(status=400, body=refusal), Reply(text="fine")])
    async with serve(create_app(make_config(upstream.url))) as url:
        code, out, err = await chat("--url", url, lines="bad\ngood\n")
    assert (code, out) == (0, "fine\n")
    assert "no such thing\\u001b]0;owned\\u0007" in err
    assert [m["content"] for m in upstream.requests[1].body["messages"]] == ["good"]


async def test_a_key_is_taken_from_the_environment_and_a_missing_one_is_reported(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="hi")])
    secret, digest = mint_key()
    config = make_config(upstream.url, auth="keys", keys=[{"name": "ann", "hash": digest}])
    async with serve(create_app(config)) as url:
        code, _, err = await chat("--url", url, lines="x\n")
        assert code == 1
        assert "API key" in err
        code, out, _ = await chat("--url", url, lines="x\n", environment={"CALLGATE_KEY": secret})
    assert (code, out) == (0, "hi\n")


async def test_without_an_address_it_has_a_server_of_its_own(upstream: Upstream, tmp_path: Path) -> None:
    upstream.script("m", [Reply(calls=[Call("add", {"a": 1, "b": 2})]), Reply(text="3")])
    file = tmp_path / "config.yaml"
    _, digest = mint_key()
    keys = [{"name": "ann", "hash": digest}]
    file.write_text(as_yaml({**config_dict(upstream.url, tools=["add"], keys=keys), "auth": "keys"}))
    code, out, err = await chat("--config", str(file), "--model", "m", lines="?\n")
    assert (code, out) == (0, "3\n")
    assert "add done in " in err


def test_progress_is_told_with_what_there_is_of_it() -> None:
    assert _how_far({"message": "half", "fraction": 0.5}) == "half 50%"
    assert _how_far({"message": "", "fraction": 1}) == "100%"
    assert _how_far({"message": "", "fraction": None}) == "working …"
