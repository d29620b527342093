"""The servers that people run, over their real transports: listed, called through chats, killed and restarted."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from callgate.application import create_app
from callgate.calls.outcome import Failed, Outcome, Returned
from callgate.conversation.ports import ProgressReport
from callgate.tools.approvals.rules import ApprovalRule
from callgate.tools.kinds.http.client import Web
from callgate.tools.kinds.mcp.http import HttpSpec, rules_for
from callgate.tools.kinds.mcp.process import StdioSpec
from callgate.tools.kinds.mcp.server import McpSource, ServerSpec
from callgate.tools.registry import Registry
from callgate.tools.source_supervisor import SourceState
from callgate.tools.toolbox import RequestToolbox, ToolSet
from tests.harness.clients import openai_client
from tests.harness.configs import make_config
from tests.harness.needs import needs
from tests.harness.ports import free_port
from tests.harness.server import serve
from tests.scripted_upstream import Call, Reply, Upstream
from tests.tools.executor_kinds import everything, ready
from tests.tools.servers import real

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(400)]  # the first test may have to install the servers

BOTH = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
NODE = needs("node", "npm")


@dataclass(slots=True)
class RuntimeManager:
    registry: Registry
    server: McpSource
    reported: list[tuple[str, float | None]]

    def names(self) -> set[str]:
        return {tool.original for tool in self.registry.tools()}

    async def run(self, name: str, **arguments: Any) -> Outcome:
        tools = {tool.original: tool.name for tool in self.registry.tools()}
        box = RequestToolbox(server_tools=ToolSet(self.registry.tools()), run_id="run_1", limits=self.registry.limits)
        return await box.run(ready(tools[name], **arguments), self._report)

    async def text(self, name: str, **arguments: Any) -> str:
        outcome = await self.run(name, **arguments)
        assert isinstance(outcome, Returned), outcome
        return outcome.text

    async def state(self, state: SourceState) -> None:
        await everything(lambda: self.registry.sources()[0].state is state)

    async def _report(self, progress: ProgressReport) -> None:
        self.reported.append((progress.message, progress.fraction))


@contextlib.asynccontextmanager
async def opened_manager(transport: StdioSpec | HttpSpec) -> AsyncIterator[RuntimeManager]:
    web = Web()
    server = McpSource(ServerSpec("it", transport, prefix="it"), web)
    registry = Registry(delay=lambda failures: 0.05, approval=ApprovalRule(never=("*",)))
    registry.add_source(server)
    async with asyncio.timeout(60):
        await registry.open(wait=30)
        try:
            await everything(lambda: registry.sources()[0].state is SourceState.READY)
            yield RuntimeManager(registry, server, [])
        finally:
            await registry.close()
            await web.close()


@contextlib.contextmanager
def everything_over_http(kind: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """The server as somebody else's process, killed on leaving."""
    command = real.command("mcp-server-everything")
    process = subprocess.Popen(
        [command, kind], env={**os.environ, "PORT": str(port)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def over_http(url: str, *, sse: bool = False) -> HttpSpec:
    return HttpSpec(url, sse=sse, rules=rules_for(url))


# Through a chat -----------------------------------------------------------------------------------


@NODE
@BOTH
async def test_a_model_calls_real_servers_and_gets_their_answers(
    upstream: Upstream, stream: bool, tmp_path: Path
) -> None:
    upstream.script(
        "m",
        [
            Reply(calls=[Call("sums_get-sum", {"a": 4, "b": 38}), Call("time_get_current_time", {"timezone": "UTC"})]),
            Reply(calls=[Call("files_write_file", {"path": str(tmp_path / "note"), "content": "forty-two"})]),
            Reply(text="It is 42."),
        ],
    )
    config = make_config(
        upstream.url,
        entry={"tools": ["sums/get-sum", "time/*", "files_*"]},
        mcp_servers={
            "sums": {"command": real.command("mcp-server-everything"), "args": ["stdio"]},
            "time": {"command": real.command("mcp-server-time"), "args": ["--local-timezone", "UTC"]},
            "files": {
                "command": real.command("mcp-server-filesystem"),
                "args": [str(tmp_path)],
                "allowed_tools": ["write_*"],
                "require_approval": "never",
            },
        },
    )
    app = create_app(config)
    async with asyncio.timeout(60), serve(app) as url, openai_client(url) as client:
        registry = app.state.manager.current.registry
        await everything(lambda: all(status.state is SourceState.READY for status in registry.sources()))
        question: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "4 + 38?"}]}
        if stream:
            chunks = [chunk async for chunk in await client.chat.completions.create(**question, stream=True)]
            text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
        else:
            answer = await client.chat.completions.create(**question)
            text = answer.choices[0].message.content or ""
    assert text == "It is 42."
    offered = {tool["function"]["name"] for tool in upstream.requests[0].body["tools"]}
    assert offered == {"sums_get-sum", "time_get_current_time", "time_convert_time", "files_write_file", "read_more"}
    results = [message["content"] for message in upstream.requests[1].body["messages"] if message["role"] == "tool"]
    assert results[0] == "The sum of 4 and 38 is 42."
    assert json.loads(results[1])["timezone"] == "UTC"
    assert (tmp_path / "note").read_text() == "forty-two"


# One by one ---------------------------------------------------------------------------------------


@NODE
async def test_everything_over_standard_streams() -> None:
    async with opened_manager(StdioSpec(real.command("mcp-server-everything"), ("stdio",))) as it:
        assert {"echo", "get-sum", "get-tiny-image", "trigger-long-running-operation"} <= it.names()
        assert await it.text("echo", message="hello") == "Echo: hello"
        assert await it.text("trigger-long-running-operation", duration=0.2, steps=2)
        assert ("", 1.0) in it.reported
        picture = await it.run("get-tiny-image")
        assert isinstance(picture, Returned)
        assert [image.mime_type for image in picture.images] == ["image/png"]
        assert "temperature" in await it.text("get-structured-content", location="New York")


@NODE
async def test_the_file_server(tmp_path: Path) -> None:
    async with opened_manager(StdioSpec(real.command("mcp-server-filesystem"), (str(tmp_path),))) as it:
        await it.text("write_file", path=str(tmp_path / "a.txt"), content="21 C\n")
        assert await it.text("read_text_file", path=str(tmp_path / "a.txt")) == "21 C\n"
        outcome = await it.run("read_text_file", path="/etc/passwd")
        assert isinstance(outcome, Failed)
        assert "outside allowed directories" in outcome.text


@NODE
async def test_the_memory_server_keeps_what_it_is_given(tmp_path: Path) -> None:
    memory = StdioSpec(real.command("mcp-server-memory"), env={"MEMORY_FILE_PATH": str(tmp_path / "memory.json")})
    async with opened_manager(memory) as it:
        oslo = {"name": "Oslo", "entityType": "city", "observations": ["cold"]}
        await it.text("create_entities", entities=[oslo])
    async with opened_manager(memory) as it:
        assert json.loads(await it.text("read_graph"))["entities"][0]["name"] == "Oslo"


async def test_the_time_server() -> None:
    async with opened_manager(StdioSpec(real.command("mcp-server-time"), ("--local-timezone", "UTC"))) as it:
        assert it.names() == {"get_current_time", "convert_time"}
        assert json.loads(await it.text("get_current_time", timezone="Europe/Lisbon"))["timezone"] == "Europe/Lisbon"
        outcome = await it.run("get_current_time", timezone="Mars/Olympus")
        assert isinstance(outcome, Failed)
        assert "Mars" in outcome.text


@needs("git")
async def test_the_git_server(tmp_path: Path) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.com"]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "The first."]):
        await asyncio.to_thread(subprocess.run, [*git, *words], check=True)
    async with opened_manager(StdioSpec(real.command("mcp-server-git"), ("--repository", str(tmp_path)))) as it:
        assert "The first." in await it.text("git_log", repo_path=str(tmp_path))


# Deaths -------------------------------------------------------------------------------------------


@NODE
async def test_a_real_server_killed_in_a_call_is_started_again() -> None:
    async with opened_manager(StdioSpec(real.command("mcp-server-everything"), ("stdio",))) as it:
        running = asyncio.create_task(it.run("trigger-long-running-operation", duration=30, steps=30))
        await it.text("echo", message="in step")
        link: Any = it.server._session._link if it.server._session else None
        os.kill(link._child._pid, signal.SIGKILL)
        outcome = await running
        assert isinstance(outcome, Failed)
        assert "went away while the tool ran" in outcome.text
        await everything(lambda: it.server._session is not None and it.server._session._link is not link)
        await it.state(SourceState.READY)
        assert await it.text("echo", message="back") == "Echo: back"


@NODE
async def test_a_real_server_over_http_killed_in_a_call_comes_back() -> None:
    port = free_port()
    with everything_over_http("streamableHttp", port):
        async with opened_manager(over_http(f"http://127.0.0.1:{port}/mcp")) as it:
            assert await it.text("echo", message="hello") == "Echo: hello"
            await it.text("trigger-long-running-operation", duration=0.2, steps=2)
            assert ("", 1.0) in it.reported
    async with contextlib.AsyncExitStack() as stack:
        first = stack.enter_context(everything_over_http("streamableHttp", port))
        it = await stack.enter_async_context(opened_manager(over_http(f"http://127.0.0.1:{port}/mcp")))
        running = asyncio.create_task(it.run("trigger-long-running-operation", duration=30, steps=30))
        await it.text("echo", message="in step")
        first.kill()
        outcome = await running
        assert isinstance(outcome, Failed)
        await it.state(SourceState.DOWN)
        with everything_over_http("streamableHttp", port):
            await it.state(SourceState.READY)
            assert await it.text("echo", message="back") == "Echo: back"
            await it.registry.close()


@NODE
async def test_a_real_server_that_was_restarted_unnoticed_gets_a_new_session() -> None:
    port = free_port()
    async with contextlib.AsyncExitStack() as stack:
        first = stack.enter_context(everything_over_http("streamableHttp", port))
        it = await stack.enter_async_context(opened_manager(over_http(f"http://127.0.0.1:{port}/mcp")))
        session: Any = it.server._session
        session._link._tap._lost = lambda reason: None  # as if no stream were open that could show it
        first.kill()
        first.wait()
        with everything_over_http("streamableHttp", port):
            await everything(lambda: _listens(port))
            assert await it.text("echo", message="hello") == "Echo: hello"
            assert it.server._session is not session
            await it.registry.close()


@NODE
async def test_a_real_server_over_sse() -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/sse"
    with everything_over_http("sse", port) as process:
        async with opened_manager(over_http(url, sse=True)) as it:
            assert await it.text("echo", message="hello") == "Echo: hello"
            process.kill()
            await it.state(SourceState.DOWN)


def _listens(port: int) -> bool:
    with socket.socket() as trying:
        return trying.connect_ex(("127.0.0.1", port)) == 0


def test_the_servers_are_locked_with_hashes_and_name_no_registry() -> None:
    python = (real.LOCKS / "pypi.txt").read_text()
    node = json.loads((real.LOCKS / "package-lock.json").read_text())
    assert "--hash=sha256:" in python
    assert "://" not in python.replace("# via", "")
    assert all("resolved" not in package for package in node["packages"].values())
