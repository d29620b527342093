"""Secrets and unseen letters are planted in one server and its config, and every route and every command is tried: none shows them."""

import asyncio
import contextlib
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer

from callgate.access.keys import mint_key
from callgate.application import create_app
from callgate.calls.unseen import is_unseen
from callgate.commands import app as command_line
from callgate.config.load import load
from tests.chaos.scale import dealt
from tests.e2e.test_every_route import routes
from tests.harness.clients import http_client
from tests.harness.configs import as_yaml
from tests.harness.process import Child, child_environment, output_of, serving_command

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(240)]

KEY, KEY_HASH = mint_key()
PLANTED = {
    "PLANTED_KEY": "canary-key-93be07d1c5",
    "PLANTED_ORG": "org-canary-4f1c9e7a2b",
    "PLANTED_HEADER": "canary/header+5a8d22e6f0",
    "PLANTED_PATH": "canary-path-b17c40a9d3",
    "PLANTED_TOOL": 'canary"tool\\e0625f8c1a',
    "PLANTED_URL": "https://user:canary-pw-7d94ab31fe@host.invalid/p?sig=canary-sig-11aa22bb33",
    "PLANTED_ARGUMENT": "canary-argument-0c9d8e7f6a",
    "PLANTED_DATABASE": "postgresql://canary-user-5a5b5c5d5e:canary-pw-0a1b2c3d4e@127.0.0.1:1/db",
    "PLANTED_NO_DATABASE": "postgresql://canary-user-5a5b5c5d5e:canary-pw-0a1b2c3d4e@127.0.0.1:port/db?canary-x-0a1b2c3d4e=1",
    "PLANTED_REDIS": "redis://canary-user-5a5b5c5d5e:canary-pw-0a1b2c3d4e@127.0.0.1:1/0",
    "PLANTED_NO_REDIS": "redis://canary-user-5a5b5c5d5e:canary-pw-0a1b2c3d4e@127.0.0.1:port/nowhere",
    "PLANTED_QUERY": "canary-query-4b5a69788c",
    "PLANTED_BODY": "canary/body+9e8d7c6b5a",
}
IN_FILE = "canary-file-a1b2c3d4e5"
CANARY = re.compile(r"canary[-/\"\\]*[a-z]+[-/+\"\\]*[0-9a-f]{10}")
HIDDEN = "\x1b]0;owned\x07\x9b2J\u202e\u3164\u2800\u115f\U000e0041"


@contextlib.asynccontextmanager
async def echoing() -> AsyncIterator[str]:
    """A provider that answers with all that it was sent: as JSON, as an error, as HTML, or as a stream cut after every byte."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            sized = re.search(r"(?i)content-length: (\d+)", head)
            body = await reader.readexactly(int(sized[1])) if sized else b""
            asked = json.loads(body) if body.startswith(b"{") else {}
            status, kind, parts = echo(head, asked)
            writer.write(f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\nconnection: close\r\n\r\n".encode())
            for part in parts:
                writer.write(part)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


def echo(head: str, asked: dict[str, Any]) -> tuple[int, str, list[bytes]]:
    messages = asked.get("messages", [])
    results = [str(message.get("content")) for message in messages]
    said = f"{HIDDEN} {head} {asked.get('team')} {' '.join(results)}"
    model = str(asked.get("model", ""))
    if "html" in model:
        return 200, "text/html", [f"<pre>{said}</pre>".encode()]
    if "error" in model:
        return 400, "application/json", [json.dumps({"error": {"message": said, "code": said}}).encode()]
    message: dict[str, Any] = {"role": "assistant", "content": said}
    finish = "stop"
    if "tool" in model and asked["messages"][-1]["role"] == "user":
        message["tool_calls"] = [
            {"index": at, "id": f"c{at}", "type": "function", "function": {"name": name, "arguments": "{}"}}
            for at, name in enumerate(("leak", "fetch"))
        ]
        finish = "tool_calls"
    if asked.get("stream"):
        deltas = [message]
        if "pieces" in model or "tool" in model:
            deltas = [{**message, "content": piece} for piece in in_pieces(said)]
        chunks = [
            {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
            for choice in (
                *({"index": 0, "delta": delta, "finish_reason": None} for delta in deltas),
                {"index": 0, "delta": {}, "finish_reason": finish},
            )
        ]
        events = [f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks] + [b"data: [DONE]\n\n"]
        if "plain" in model:
            events = [bytes([byte]) for byte in b"".join(events)]
        return 200, "text/event-stream", events
    choice = {"index": 0, "message": message, "finish_reason": finish}
    whole = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "echo": said}
    return 200, "application/json", [as_php(json.dumps(whole)) if "pieces" in model else json.dumps(whole).encode()]


def in_pieces(text: str) -> list[str]:
    """A text as models stream it."""
    return [text[at : at + 5] for at in range(0, len(text), 5)]


def as_php(text: str) -> bytes:
    """JSON with other escapes than ours: of slashes, and of letters."""
    return text.replace("/", "\\/").replace("canary", "\\u0063an\\u0061ry").encode()


def a_config(provider: str) -> dict[str, Any]:
    params = {
        "api_base": f"{provider}/${{PLANTED_PATH}}/v1",
        "api_key": "os.environ/PLANTED_KEY",
        "organization": "os.environ/PLANTED_ORG",
        "extra_headers": {"X-Team": "${PLANTED_HEADER}", "X-From-File": "file:./planted"},
        "extra_body": {"team": "${PLANTED_BODY}"},
    }
    command = {"kind": "command", "description": f"d{HIDDEN}", "env": {"PLANTED": "${PLANTED_TOOL}"}}
    return {
        "model_list": [
            {
                "model_name": name,
                "litellm_params": {"model": f"openai/{name}", **params},
                "tools": ["leak", "fetch"] if name == "tool" else [],
            }
            for name in (*MODELS, f"odd{HIDDEN}")
        ],
        "keys": [{"name": "boss", "hash": KEY_HASH, "admin": True, "approve": True, "see": "all"}],
        "data_dir": "./data",
        "record": {"content": True, "wire": True},
        "logging": {"content": True, "format": "json"},
        "tools": [
            {**command, "name": "leak", "argv": ["sh", "-c", f'printf %s "$PLANTED {HIDDEN}"'], "safety": "read_only"},
            {
                "kind": "http",
                "name": "far",
                "description": "d",
                "url": "${PLANTED_URL}",
                "headers": {"X-Token": "${PLANTED_HEADER}"},
            },
            {
                "kind": "http",
                "name": "fetch",
                "description": "d",
                "url": f"{provider}/here?sig=${{PLANTED_QUERY}}",
                "headers": {"X-Token": "${PLANTED_HEADER}"},
                "allow_private": True,
            },
        ],
        "mcp_servers": {"gone": {"command": "false", "args": ["--secret", "${PLANTED_ARGUMENT}"]}},
        "reload": {"watch": False},
        "upstream": {"retries": 0},
    }


MODELS = ("plain", "error", "html", "tool", "pieces")


AWAY: dict[str, dict[str, Any]] = {
    "refused": {"ledger": {"url": "os.environ/PLANTED_DATABASE"}, "store": {"redis_url": "os.environ/PLANTED_REDIS"}},
    "wrong": {
        "ledger": {"url": "os.environ/PLANTED_NO_DATABASE"},
        "store": {"redis_url": "os.environ/PLANTED_NO_REDIS"},
    },
}
"""Stores that nobody can connect to, and addresses that are none."""

BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "hi"}],
    "input": "hi",
    "prompt": "hi",
    "max_tokens": 50,
}


def bodies(path: str) -> Iterator[dict[str, Any]]:
    """What a route is asked: all that a model of each kind makes of it."""
    if not path.startswith("/v1") and path.startswith("/admin"):
        yield {}
        return
    for model in MODELS:
        for stream in (False, True):
            yield {**BODY, "model": model, "stream": stream}


@contextlib.asynccontextmanager
async def planted(folder: Path) -> AsyncIterator[tuple[Child, httpx.AsyncClient, Path, str]]:
    async with echoing() as provider:
        file = folder / "config.yaml"
        (folder / "planted").write_text(IN_FILE)
        file.write_text(as_yaml(a_config(provider)))
        async with serving_command(file, environment=PLANTED) as child, http_client(child.url, timeout=60) as client:
            client.headers["authorization"] = f"Bearer {KEY}"
            yield child, client, file, provider


def leaks(text: str) -> list[str]:
    """The secrets in a text, however they are written; words alone, which errors may quote, are none."""
    letters = re.sub(r"\\u00([0-7][0-9a-fA-F])", lambda code: chr(int(code[1], 16)), text)
    decoded = (
        letters.replace("%2F", "/").replace("%2B", "+").replace("\\/", "/").replace('\\"', '"').replace("\\\\", "\\")
    )
    versions = (text, decoded, "".join(re.findall(r'"(?:content|text|delta)":\s?"((?:[^"\\]|\\.)*)"', text)))
    return sorted({leak for version in versions for leak in (*CANARY.findall(version), *re.findall(IN_FILE, version))})


async def test_no_route_and_no_command_shows_what_was_planted(tmp_path: Path) -> None:
    async with planted(tmp_path) as (child, client, file, provider):
        listed = routes(create_app(load(file, environ={**os.environ, **PLANTED}).config))
        answers: dict[str, str] = {}
        for place, (method, path) in enumerate(listed):
            if method not in ("GET", "POST", "PATCH", "DELETE") or path == "/v1/feed":
                continue
            asked = [*enumerate(bodies(path) if method == "POST" else [{}])]
            is_twin = (method, f"/v1{path}") in listed
            for number, body in dealt(asked, 5, place) if is_twin and len(asked) > 1 else asked:
                answer = await client.request(method, path, json=body if method in ("POST", "PATCH") else None)
                answers[f"{method} {path} {number}"] = f"{answer.headers}\n{answer.text}"
        runs = (await client.get("/v1/runs?count=100")).json()["data"]
        for run in runs:
            for what in ("", "/wire", "/events", "/export", "/content"):
                answers[f"run {run['id']}{what}"] = (await client.get(f"/v1/runs/{run['id']}{what}")).text
        broken = a_config(provider)
        broken["model_list"][0]["litellm_params"]["api_base"] = (
            "ftp://user:canary-pw-7d94ab31ff@h/v1?sig=canary-sig-11aa22bb34"
        )
        file.write_text(as_yaml(broken))
        answers["reload"] = (await client.post("/admin/reload")).text
        assert "api_base" in answers["reload"]
        file.write_text(as_yaml(a_config(provider)))
        assert "*" * len(PLANTED["PLANTED_ORG"]) in answers["POST /v1/chat/completions 0"], "it echoes"
        assert "*" * len(PLANTED["PLANTED_ORG"]) in answers["POST /v1/embeddings 2"], answers["POST /v1/embeddings 2"]
        for path in ("/v1/chat/completions", "/v1/responses", "/v1/messages"):
            for number, body in enumerate(bodies(path)):
                answer = await client.post(path, json=body, headers={"idempotency-key": f"{path} {number}"})
                answers[f"kept {path} {number}"] = answer.text
        assert {name: found for name, text in answers.items() if (found := leaks(text))} == {}
        run = re.search("run_[0-9a-f]+", answers["POST /v1/chat/completions 6"])
        assert run is not None
        said = await commands(child, file, run[0])
        log = child.log
    assert leaks(log) == []
    at_rest = {
        path.name: path.read_bytes().decode("latin-1")
        for path in sorted((tmp_path / "data").rglob("*"))
        if path.is_file()
    }
    assert {name: found for name, text in at_rest.items() if (found := leaks(text))} == {}
    for name, text in said.items():
        assert leaks(text) == [], name
        assert [letter for letter in text if is_unseen(letter) and letter not in "\n\t"] == [], name
        assert "Traceback" not in text, (name, text)
    for name in ("tools call", "chat", "models", "runs show"):
        assert "\\u202e" in said[name], (name, said[name])


async def commands(child: Child, file: Path, run: str) -> dict[str, str]:
    """What every command says, by its name: the table has to have them all."""
    config = ("--config", str(file))
    server = ("--url", child.url, "--key", KEY)
    arguments: dict[str, tuple[str, ...]] = {
        "init": ("--output", str(file.parent / "made.yaml"), "--yes", "--base-url", "http://127.0.0.1:1/v1"),
        "serve": (*config, "--port", child.url.rpartition(":")[2]),
        "check": config,
        "doctor": config,
        "models": config,
        "chat": (*server, "--model", "plain"),
        "health": ("--url", child.url),
        "reload": server,
        "calls": (*config, "--content"),
        "usage": config,
        "worker": (*config, "--pool", "none"),
        "pools": config,
        "tools list": config,
        "tools call": ("leak", *config),
        "tools accept": ("planted/leak\u202e", "--yes", *server),
        "approvals list": server,
        "approvals approve": ("apr_x\u202e", *server),
        "approvals deny": ("apr_x\u202e", *server),
        "approvals answer": ("apr_x\u202e", "--yes", *server),
        "approvals decline": ("apr_x\u202e", *server),
        "approvals history": server,
        "keys create": (f"made{HIDDEN}", *config),
        "keys list": config,
        "keys limit": ("made", *config, "--parallel", "2"),
        "keys rotate": ("made", *config),
        "keys revoke": ("made", *config),
        "runs list": config,
        "runs show": (run, *config, "--content"),
        "runs export": (run, *config),
        "runs replay": (run, "--url", child.url, "--server-key", KEY),
        "runs prune": (*config, "--days", "1000"),
        "ledger migrate": config,
        "mcp install": ("claude", "--url", child.url),
        "mcp login": ("planted\u202e", "--paste", *config),
        "mcp logout": ("planted\u202e", *config),
        "mcp status": config,
    }
    # It takes the process' own output for itself, and writes there what `POST /mcp` answers.
    assert {*arguments, "mcp serve"} == set(names_of(typer.main.get_command(command_line)))

    asked = [[name, [*name.split(), *arguments[name]]] for name in arguments]
    for kind, urls in AWAY.items():
        away = file.with_name(f"{kind}.yaml")
        away.write_text(as_yaml({**a_config(child.url), **urls}))
        asked += [
            [f"{name}: {kind}", [*name.split(), "--config", str(away)]]
            for name in ("ledger migrate", "calls", "keys list", "check")
        ]
    output, errors = await output_of(
        sys.executable, "-c", IN_ONE_PROCESS, json.dumps(asked), seconds=110, folder=file.parent,
        environment=child_environment(PLANTED),
    )  # fmt: skip
    assert output, errors
    return dict(json.loads(output))


IN_ONE_PROCESS = """
import contextlib, io, json, sys, traceback
from callgate.commands import app
said = {}
for name, arguments in json.loads(sys.argv[1]):
    text = io.StringIO()
    sys.stdin = io.StringIO("hi\\n")
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        try:
            app(arguments, prog_name="callgate")
        except SystemExit:
            pass
        except BaseException:
            traceback.print_exc()
    said[name] = text.getvalue()
sys.stdout.write(json.dumps(said))
"""
"""Runs commands one after another: each in a process of its own would import everything again."""


def names_of(command: Any, above: str = "") -> Iterator[str]:
    """The names of all commands below this one."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield above
        return
    for name, below in inner.items():
        yield from names_of(below, f"{above} {name}".strip())
