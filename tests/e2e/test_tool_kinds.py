"""Tools of an API and of the command line, asked for by a model and run in a chat, over real sockets."""

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, HTTPException, Request

from callgate.application import create_app
from callgate.config.entry_errors import BadTool
from callgate.tools.building import registry_of
from callgate.tools.kinds.command.process import CommandProcesses
from callgate.tools.kinds.http.client import Web
from callgate.tools.kinds.python.threads import ThreadPool
from tests.harness.clients import openai_client
from tests.harness.configs import as_yaml, config_dict, make_config
from tests.harness.process import serving_command
from tests.harness.server import serve
from tests.scripted_upstream import Call, Reply, Upstream
from tests.tools.executor_kinds import everything, processes_naming

pytestmark = pytest.mark.anyio

BOTH = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
ASKING: list[Any] = [{"role": "user", "content": "hello"}]


def library() -> FastAPI:
    app = FastAPI()
    books = {"moby/dick": "Melville"}

    @app.get("/authors", operation_id="find_author", summary="Who wrote a book.")
    async def find_author(title: str) -> dict[str, str]:
        if title not in books:
            raise HTTPException(404, f"there is no {title!r}")
        return {"title": title, "author": books[title]}

    @app.post("/books", operation_id="add_book")
    async def add_book(title: str, author: str) -> str:
        books[title] = author
        return "added"

    return app


async def answer_of(url: str, *, stream: bool) -> str:
    async with openai_client(url) as client:
        if not stream:
            answer = await client.chat.completions.create(model="m", messages=ASKING)
            return answer.choices[0].message.content or ""
        text = ""
        async for chunk in await client.chat.completions.create(model="m", messages=ASKING, stream=True):
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
        return text


def results(upstream: Upstream) -> list[str]:
    """The results of the tools, as the model was sent them."""
    return [message["content"] for message in upstream.requests[-1].body["messages"] if message["role"] == "tool"]


@BOTH
async def test_an_api_is_used_by_the_document_it_serves(upstream: Upstream, stream: bool) -> None:
    upstream.script(
        "m",
        [
            Reply(calls=[Call("find_author", {"title": "emma"}), Call("find_author", {"titel": "emma"})]),
            Reply(calls=[Call("add_book", {"title": "emma", "author": "Austen"})]),
            Reply(calls=[Call("find_author", {"title": "emma"}), Call("find_author", {"title": "moby/dick"})]),
            Reply(text="Austen and Melville."),
        ],
    )
    async with serve(library()) as api:
        entry = {"kind": "openapi", "name": "library", "document": f"{api}/openapi.json", "allow_private": True}
        async with serve(create_app(make_config(upstream.url, tools=[entry]))) as url:
            assert await answer_of(url, stream=stream) == "Austen and Melville."
    offered = [tool["function"] for tool in upstream.requests[0].body["tools"]]
    assert [each["name"] for each in offered] == ["add_book", "find_author", "read_more"]
    assert offered[1]["description"] == "Who wrote a book."
    missing, misspelt, added, emma, moby = results(upstream)
    assert missing == """HTTP 404 Not Found: {"detail":"there is no 'emma'"}"""
    assert json.loads(misspelt)["error"]["code"] == "schema_mismatch"
    assert added == '"added"'
    assert json.loads(emma) == {"title": "emma", "author": "Austen"}
    assert json.loads(moby) == {"title": "moby/dick", "author": "Melville"}


@BOTH
async def test_a_command_is_run_with_what_the_model_wrote_and_nothing_else(upstream: Upstream, stream: bool) -> None:
    words = "$(touch /tmp/never); `id` && echo 'x"
    upstream.script(
        "m", [Reply(calls=[Call("say", {"words": words}), Call("say", {"words": "-n"})]), Reply(text="said")]
    )
    entry = {
        "kind": "command",
        "name": "say",
        "description": "Says it.",
        "argv": ["printf", "%s|", "{words}"],
        "parameters": {"type": "object", "properties": {"words": {"type": "string"}}, "required": ["words"]},
    }
    async with serve(create_app(make_config(upstream.url, tools=[entry]))) as url:
        assert await answer_of(url, stream=stream) == "said"
    said, refused = results(upstream)
    assert said == f"{words}|"
    assert "may not begin with a dash" in refused


def waiting(script: str, mark: Path) -> dict[str, Any]:
    """A tool that is a Python script, which writes the file when it runs."""
    argv = [sys.executable, "-I", "-S", "-c", script, str(mark)]
    return {"kind": "command", "name": "wait", "description": "Waits.", "argv": argv}


async def test_when_the_client_leaves_the_command_ends(upstream: Upstream, tmp_path: Path) -> None:
    mark = tmp_path / "running"
    script = "import sys, signal; open(sys.argv[1], 'w').close(); signal.pause()"
    upstream.script("m", [Reply(calls=[Call("wait", {})])])
    entry = waiting(script, mark)
    async with serve(create_app(make_config(upstream.url, tools=[entry]))) as url, asyncio.timeout(30):
        asking = asyncio.create_task(answer_of(url, stream=True))
        await everything(mark.exists)
        assert processes_naming(str(mark))
        asking.cancel()
        await asyncio.wait([asking])
        await everything(lambda: not processes_naming(str(mark)))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_however_the_server_ends_its_commands_end_with_it(
    upstream: Upstream, tmp_path: Path, number: signal.Signals
) -> None:
    mark = tmp_path / "running"
    script = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    open(sys.argv[1], "w").close()
signal.pause()
"""
    upstream.script("m", [Reply(calls=[Call("wait", {})])])
    entry = waiting(script, mark)
    config = tmp_path / "config.yaml"
    config.write_text(as_yaml(config_dict(upstream.url, tools=[entry], server={"drain_seconds": 0.1})))
    async with serving_command(config) as server, asyncio.timeout(50):
        asking = asyncio.create_task(answer_of(server.url, stream=True))
        await everything(mark.exists)
        server.signal(number)
        await everything(lambda: not processes_naming(str(mark)))
        asking.cancel()
        await asyncio.wait([asking])


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (
            {"kind": "command", "name": "x", "description": "x", "argv": ["no-such-program"]},
            r"tools\.1 \(x\): the program no-such-program is not there",
        ),
        (
            {"kind": "openapi", "name": "x", "document": "missing.yaml"},
            r"tools\.1 \(x\): .*missing\.yaml: cannot be read",
        ),
        ({"kind": "python", "module": "no_such_module"}, r"tools\.1: there is no module no_such_module"),
        (
            {"kind": "http", "name": "x", "description": "x", "url": "https://h.example/../x"},
            r"tools\.1 \(x\): .* has `\.` or `\.\.` in its path",
        ),
    ],
)
async def test_a_tool_that_cannot_be_made_fails_the_start_with_its_place(entry: dict[str, Any], words: str) -> None:
    config = make_config("http://127.0.0.1:9", tools=["add", entry])
    web, threads = Web(), ThreadPool()
    with pytest.raises(BadTool, match=words):
        registry_of(config, web, threads, CommandProcesses())
    await web.close()
    threads.close()


@BOTH
async def test_a_model_cannot_change_what_the_operator_fixed_in_an_http_tool(upstream: Upstream, stream: bool) -> None:
    asked: list[str] = []
    service = FastAPI()

    @service.get("/rows")
    async def rows(request: Request) -> dict[str, str]:
        asked.append(request.url.query)
        return {"rows_of": request.query_params["tenant"], "role": request.query_params["role"]}

    attack = {"q": "x", "tenant": "victim", "role": "admin"}
    upstream.script("m", [Reply(calls=[Call("rows", attack), Call("rows", {"q": "x"})]), Reply(text="done")])
    async with serve(service) as there:
        entry = {
            "kind": "http",
            "name": "rows",
            "description": "Finds rows.",
            "url": f"{there}/rows?role=reader",
            "query": {"tenant": "acme", "q": "{q}"},
            "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
            "allow_private": True,
        }
        async with serve(create_app(make_config(upstream.url, tools=[entry]))) as url:
            await answer_of(url, stream=stream)
    refused, answered = results(upstream)
    assert "schema_mismatch" in refused
    assert json.loads(answered) == {"rows_of": "acme", "role": "reader"}
    assert asked == ["role=reader&tenant=acme&q=x"]


async def test_a_command_that_reads_its_arguments_gets_only_those_that_are_declared(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[Call("read", {"q": "x", "tenant": "victim"})]), Reply(text="done")])
    entry = {
        "kind": "command",
        "name": "read",
        "description": "Reads.",
        "argv": ["cat"],
        "stdin": "json",
        "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
    }
    async with serve(create_app(make_config(upstream.url, tools=[entry]))) as url:
        await answer_of(url, stream=False)
    [refused] = results(upstream)
    assert "schema_mismatch" in refused
