"""Tools of the Responses API that the client runs itself: behind any model their calls come as items of their own, and go back."""

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from callgate.access.keys import hash_key
from callgate.application import create_app
from tests.harness.clients import http_client, openai_client
from tests.harness.configs import make_config
from tests.harness.responses import responded
from tests.harness.served import served_to_http, served_to_openai
from tests.harness.server import serve
from tests.models.wire import Request, Server, Wire, raw_provider
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = pytest.mark.anyio

BOTH = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
SCREENSHOT = "data:image/png;base64,iVBORw0KGgo="
PATCH = {"type": "update_file", "path": "a.py", "diff": "@@\n-a\n+b"}
CASES: Mapping[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any], str]] = {
    "apply_patch": (
        {"type": "apply_patch"},
        PATCH,
        {"type": "apply_patch_call", "operation": PATCH},
        {"type": "apply_patch_call_output", "status": "failed", "output": "no such file"},
        "Failed. no such file",
    ),
    "shell": (
        {"type": "shell", "environment": {"type": "local"}},
        {"commands": ["ls"]},
        {"type": "shell_call", "action": {"commands": ["ls"], "timeout_ms": None, "max_output_length": None}},
        {
            "type": "shell_call_output",
            "output": [{"stdout": "a.py", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
        },
        '[{"stdout":"a.py","stderr":"","outcome":{"type":"exit","exit_code":0}}]',
    ),
    "local_shell": (
        {"type": "local_shell"},
        {"command": ["ls", "-l"]},
        {"type": "local_shell_call", "action": {"type": "exec", "env": {}, "command": ["ls", "-l"]}},
        {"type": "local_shell_call_output", "output": '{"stdout": "a.py"}'},
        '{"stdout": "a.py"}',
    ),
    "computer": (
        {"type": "computer"},
        {"actions": [{"type": "screenshot"}]},
        {"type": "computer_call", "actions": [{"type": "screenshot"}], "pending_safety_checks": []},
        {"type": "computer_call_output", "output": {"type": "computer_screenshot", "image_url": SCREENSHOT}},
        "(shown in the next message)",
    ),
}
"""Of each tool: how it is declared, the arguments of its function, the call's item, the output's item, the text of that."""


def plain(item: Any) -> dict[str, Any]:
    """An item without its ids and its status."""
    shown = item.to_dict(exclude_none=False) if hasattr(item, "to_dict") else item
    return {name: value for name, value in shown.items() if name not in ("id", "call_id", "status", "caller")}


def has(item: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(item.get(name) == value for name, value in wanted.items())


def returned(output: Mapping[str, Any], call: Any) -> dict[str, Any]:
    """The output's item for a call."""
    if output["type"] == "local_shell_call_output":
        return {"id": call.call_id, **output}
    return {"call_id": call.call_id, **output}


@BOTH
@pytest.mark.parametrize("kind", CASES)
async def test_a_model_of_chats_has_the_hands_of_its_client(upstream: Upstream, kind: str, stream: bool) -> None:
    tool, arguments, item, output, text = CASES[kind]
    upstream.script("m", [Reply(calls=[Call(kind, arguments)]), Reply(text="done"), Reply(text="done again")])
    async with served_to_openai(upstream) as client:
        asked: dict[str, Any] = {"model": "m", "tools": [tool], "stream": stream}
        first = await responded(client, input="do it", tool_choice="auto", **asked)
        [call] = first.output
        assert has(plain(call), item)
        assert (call.status, first.status) == ("completed", "completed")
        chained = await responded(client, input=[returned(output, call)], previous_response_id=first.id, **asked)
        sent = {name: value for name, value in call.to_dict().items() if value is not None}
        items = [{"role": "user", "content": "do it"}, sent, returned(output, call)]
        whole = await responded(client, input=items, **asked)
    assert (chained.output_text, whole.output_text) == ("done", "done again")
    assert upstream.requests[0].body["tools"][0]["function"]["name"] == kind
    for request in upstream.requests[1:]:
        _, made, result, *others = request.body["messages"]
        assert json.loads(made["tool_calls"][0]["function"]["arguments"]).items() >= arguments.items()
        assert (result["role"], result["content"]) == ("tool", text)
        assert [part["type"] for message in others for part in message["content"]] == (
            ["text", "image_url"] if kind == "computer" else []
        )


@BOTH
async def test_half_a_patch_is_not_handed_out(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(calls=[Call("apply_patch", '{"type": "update_file", "pa')], finish="length")])
    async with served_to_openai(upstream) as client:
        response = await responded(client, model="m", input="do it", tools=[{"type": "apply_patch"}], stream=stream)
    assert response.status == "incomplete"
    assert not [item for item in response.output if item.type == "apply_patch_call"]


async def test_a_tool_may_be_demanded_and_its_name_is_taken(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[Call("shell", {"commands": ["ls"]})])])
    async with served_to_http(upstream) as client:
        body: dict[str, Any] = {"model": "m", "input": "do it", "tools": [{"type": "shell"}]}
        demanding = {**body, "tool_choice": {"type": "shell"}}
        assert (await client.post("/v1/responses", json=demanding)).status_code == 200
        assert upstream.requests[0].body["tool_choice"] == {"type": "function", "function": {"name": "shell"}}
        body["tools"].append({"type": "shell"})
        twice = await client.post("/v1/responses", json=body)
    assert (twice.status_code, twice.json()["error"]["param"]) == (400, "tools[1].type")


# Behind a provider that has them -----------------------------------------------------------------------------------------


def streamed(response: Mapping[str, Any]) -> str:
    begun = {**response, "status": "in_progress", "output": []}
    events: list[dict[str, Any]] = [{"type": "response.created", "response": begun}]
    for at, item in enumerate(response["output"]):
        events.append(
            {"type": "response.output_item.added", "output_index": at, "item": {**item, "status": "in_progress"}}
        )
        events.append({"type": "response.output_item.done", "output_index": at, "item": item})
    events.append({"type": "response.completed", "response": response})
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)


@contextlib.asynccontextmanager
async def provided(item: Mapping[str, Any], **options: Any) -> AsyncIterator[tuple[Server, str]]:
    """A provider whose model makes the call, and says so once it has what came of it."""

    async def answer(request: Request, wire: Wire) -> None:
        asked = request.body
        made = {"id": "x_1", "call_id": "call_1x2", "status": "completed", **item}
        part = {"type": "output_text", "text": "done", "annotations": []}
        said = {"type": "message", "id": "msg_x", "role": "assistant", "status": "completed", "content": [part]}
        is_answered = any(entry["type"].endswith("_output") for entry in asked["input"])
        usage = {"input_tokens": 3, "output_tokens": 5, "total_tokens": 8}
        response = {"id": "resp_p", "object": "response", "model": "m", "status": "completed", "usage": usage}
        whole = {**response, "output": [said if is_answered else made]}
        if asked["stream"]:
            await wire.head(200)
            await wire.send(streamed(whole))
            wire.writer.close()
        else:
            await wire.whole(json.dumps(whole))

    async with raw_provider(answer) as provider:
        config = make_config(f"{provider.url}/v1", lane="responses", tools=["add"], **options)
        async with serve(create_app(config)) as url:
            yield provider, url


@BOTH
@pytest.mark.parametrize("kind", CASES)
async def test_a_provider_that_has_them_is_given_them(kind: str, stream: bool) -> None:
    tool, _, item, output, _ = CASES[kind]
    async with provided(item) as (server, url), openai_client(url) as client:
        asked: dict[str, Any] = {"model": "m", "tools": [tool], "stream": stream}
        first = await responded(client, input="do it", **asked)
        [call] = first.output
        assert has(plain(call), item)
        last = await responded(client, input=[returned(output, call)], previous_response_id=first.id, **asked)
    assert last.output_text == "done"
    assert tool in server.requests[0].body["tools"]
    made, result = server.requests[1].body["input"][1:3]
    assert has(made, item)
    assert has(result, output)
    assert (result.get("call_id") or result["id"]) == made["call_id"] == "call_1x2"


async def test_tools_that_the_provider_runs_reach_one_that_has_them_where_the_key_may_use_them() -> None:
    rights: dict[str, dict[str, Any]] = {"all": {}, "few": {"tools": ["add"]}}
    keys = [{"name": name, "hash": hash_key(f"cg-{name}"), **more} for name, more in rights.items()]
    body = {"model": "m", "input": "do it", "tools": [{"type": "web_search"}], "truncation": "auto", "min_p": 0.5}
    item = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "ok", "annotations": []}],
    }
    async with provided(item, keys=keys, auth="keys") as (server, url), http_client(url) as client:
        for name in rights:
            headers = {"Authorization": f"Bearer cg-{name}"}
            answer = (await client.post("/v1/responses", json=body, headers=headers)).json()
            sent = server.requests[-1].body
            assert (sent["truncation"], sent["min_p"]) == ("auto", 0.5)
            is_sent = {"type": "web_search"} in sent["tools"]
            assert is_sent is (name == "all")
            assert ("web_search" in str(answer["x_callgate"].get("warnings"))) is not is_sent
