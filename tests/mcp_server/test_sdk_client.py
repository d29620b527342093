"""The Python SDK's client, over HTTP and over standard input, at both kinds of revision; and what many calls leave behind."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp_types import ElicitResult

from callgate.application import create_app
from callgate.config.schema.whole import Config
from callgate.mcp_server.stdio import AppPost, StdioBridge
from tests.harness import toolshed
from tests.harness.clients import http_client
from tests.harness.configs import as_yaml, config_dict
from tests.harness.needs import BY_MAKE_CLIENTS
from tests.harness.process import ROOT, child_environment
from tests.harness.server import serve
from tests.mcp_server.mcp_client import McpClient

pytestmark = pytest.mark.anyio

NOWHERE = "http://127.0.0.1:9"
MODES = {"auto": "2026-07-28", "legacy": "2025-11-25"}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


def config_of(*tools: Any, **sections: Any) -> Config:
    return Config.model_validate(config_dict(NOWHERE, tools=tools, **sections))


@pytest.mark.parametrize("mode", MODES)
async def test_it_lists_and_calls_over_http(mode: Any) -> None:
    async with (
        serve(create_app(config_of("add", "photo", "send_mail"))) as url,
        Client(f"{url}/mcp", mode=mode) as client,
    ):
        listed = await client.list_tools()
        result = await client.call_tool("add", {"a": 2, "b": 3})
        broken = await client.call_tool("add", {"a": "two"})
        photo = await client.call_tool("photo", {"number": 1})
        revision = client.protocol_version
    assert [tool.name for tool in listed.tools] == ["add", "photo", "read_more", "send_mail"]
    assert [part.type for part in result.content] == ["text"]
    assert (result.content[0].text, result.is_error) == ("5", False)  # type: ignore[union-attr]  # a text
    assert broken.is_error
    assert photo.content[0].type == "image"
    assert revision == MODES[mode]


async def test_its_user_approves_a_call_by_its_form() -> None:
    toolshed.steps.clear()
    shown: list[Any] = []

    async def answer(context: Any, params: Any) -> ElicitResult:
        shown.append(params)
        return ElicitResult(action="accept", content={"approve": True})

    config = config_of("step", auth="keys", require_approval="always")
    async with serve(create_app(config)) as url, Client(f"{url}/mcp", elicitation_callback=answer) as client:
        result = await client.call_tool("step", {"label": "x"})
    assert not result.is_error
    assert "step" in shown[0].message
    assert toolshed.steps == ["+x", "-x"]


@pytest.mark.parametrize("mode", ["auto", pytest.param("legacy", marks=BY_MAKE_CLIENTS)])
async def test_it_lists_and_calls_over_standard_input_whatever_tools_print(mode: Any, tmp_path: Path) -> None:
    noisy = {"kind": "python", "function": "noisy:shout", "safety": "read_only"}
    (tmp_path / "noisy.py").write_text(
        'def shout(word: str) -> str:\n    """Shouts."""\n    print("not a message", flush=True)\n    return word.upper()\n',
        encoding="utf-8",
    )
    (tmp_path / "config.yaml").write_text(as_yaml(config_dict(NOWHERE, tools=[noisy])), encoding="utf-8")
    environment = {**child_environment({"CALLGATE_PORT": "9"}), "PYTHONPATH": str(ROOT / "app")}
    program = StdioServerParameters(
        command=sys.executable,
        args=["-m", "callgate", "mcp", "serve", "--config", str(tmp_path / "config.yaml")],
        env=environment,
        cwd=tmp_path,
    )
    async with Client(program, mode=mode) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        result = await client.call_tool("shout", {"word": "hé"})
    assert names == ["read_more", "shout"]
    assert result.content[0].text == "HÉ"  # type: ignore[union-attr]  # a text


async def test_standard_input_is_a_bridge_to_the_server_that_runs_and_its_end_stops_the_tool() -> None:
    async with toolshed.held() as running, serve(create_app(config_of("wait_for_gate", "add"))) as url:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "callgate", "mcp", "serve", "--url", url),
            env={**child_environment({}), "PYTHONPATH": str(ROOT / "app")},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        client = McpClient(None)  # type: ignore[arg-type]  # only its messages

        def line(method: str, params: Any, id: int) -> bytes:
            return json.dumps(client.message(method, params, id=id)).encode() + b"\n"

        process.stdin.write(line("tools/call", {"name": "wait_for_gate", "arguments": {}}, 1))
        process.stdin.write(line("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}}, 2))
        async with asyncio.timeout(60):
            await running.started.wait()
            first = json.loads(await process.stdout.readline())
            process.stdin.close()
            await running.cancelled.wait()
            code = await process.wait()
    assert (first["id"], first["result"]["content"][0]["text"]) == (2, "3")
    assert code == 0


async def test_a_client_that_cancels_over_standard_input_stops_its_tool() -> None:
    app = create_app(config_of("wait_for_gate"))
    written: list[bytes] = []

    async def write(message: bytes) -> None:
        written.append(message)

    client = McpClient(None)  # type: ignore[arg-type]  # only its messages
    call = client.message("tools/call", {"name": "wait_for_gate", "arguments": {}}, id=5)
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}}
    lines: asyncio.Queue[bytes | None] = asyncio.Queue()
    async with toolshed.held() as running, app.router.lifespan_context(app):
        bridge = asyncio.create_task(StdioBridge(AppPost(app), write).run(lines))
        lines.put_nowait(json.dumps(call).encode())
        await running.started.wait()
        lines.put_nowait(json.dumps(cancel).encode())
        async with asyncio.timeout(30):
            await running.cancelled.wait()
        lines.put_nowait(None)
        await bridge


@pytest.mark.parametrize("number_of_clients", [5, pytest.param(50, marks=BY_MAKE_CLIENTS)])
async def test_twenty_calls_of_each_of_many_clients_leave_nothing_behind(number_of_clients: int) -> None:
    app = create_app(config_of("add", "step", auth="keys", require_approval={"always": ["step"]}))
    async with serve(app) as url:
        before = asyncio.all_tasks()
        async with http_client(url) as http:
            clients = [
                McpClient(http) if number % 2 else McpClient(http).older() for number in range(number_of_clients)
            ]

            async def twenty_calls(number: int, client: McpClient) -> int:
                whole = 0
                for call in range(20):
                    result = await client.call("add", {"a": number, "b": call})
                    whole += result["content"][0]["text"] == str(number + call)
                return whole

            whole = await asyncio.gather(*(twenty_calls(number, client) for number, client in enumerate(clients)))
            asking = McpClient(http).that_asks()
            asked = [await asking.call("step", {"label": "x"}) for _ in range(3)]
            retries = [
                {"requestState": one["requestState"], "inputResponses": {"approval": {"action": "decline"}}}
                for one in asked
            ]
            refused = [await asking.call("step", {"label": "x"}, **retry) for retry in retries]
            waiting = (await http.get("/v1/approvals")).json()["data"]
        door: Any = next(vars(route)["endpoint"] for route in app.routes if getattr(route, "name", "") == "mcp")
        async with asyncio.timeout(30):
            while left := {task for task in asyncio.all_tasks() - before if not task.done()}:  # noqa: ASYNC110 - connections close
                await asyncio.sleep(0.01)
        admission = app.state.manager.current.admission
        assert door.server.parked.count() == 0
        assert door.server.subscriptions.count() == 0
        assert admission.all.running == 0
    assert sum(whole) == 20 * number_of_clients
    assert all(one["isError"] for one in refused)
    assert waiting == []
    assert left == set()
