"""Tools that a model searches for, and that its provider loads itself."""

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from callgate.application import create_app
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.models.wire import Request, Wire, raw_provider
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = [pytest.mark.anyio, pytest.mark.leaves("litellm", why="litellm keeps its thread for logging")]

TOOLS = ("get_weather", "search_docs", "get_time", "add")
QUESTION = [{"role": "user", "content": "How warm is Oslo?"}]
CLAUDE: dict[str, Any] = {"provider": "anthropic", "lane": "translated", "models": ("claude-sonnet-5",)}


@contextlib.asynccontextmanager
async def served_to_http(base: str, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    config = make_config(base, tools=TOOLS, **options)
    async with serve(create_app(config)) as url, http_client(url) as client:
        yield client


def finds_and_calls(request: Any) -> Reply:
    """A Claude that searches, and then calls what was loaded by its own name."""
    blocks = request.body["messages"][-1]["content"]
    last = blocks[-1] if isinstance(blocks, list) else {"type": "text"}
    if last["type"] == "text":
        return Reply(calls=[Call("find_tools", {"query": "weather in a city"}, id="toolu_find")])
    if "tool_reference" in json.dumps(last):
        return Reply(calls=[Call("get_weather", {"city": "Oslo"}, id="toolu_call")])
    return Reply(text="It is cold.")


@pytest.mark.parametrize("api", ["chat", "messages", "responses"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_claude_is_sent_all_tools_deferred_and_references_to_what_was_found(
    upstream: Upstream, api: str, stream: bool
):
    upstream.script("claude-sonnet-5", finds_and_calls)
    async with served_to_http(upstream.root, entry={"tool_search": "on"}, **CLAUDE) as client:
        await post(client, api, stream=stream)
    tools = [
        {tool["name"]: tool.get("defer_loading") for tool in request.body["tools"]} for request in upstream.requests
    ]
    assert tools == [{**dict.fromkeys(sorted(TOOLS), True), "read_more": None, "find_tools": None}] * 3
    assert len({json.dumps(request.body["tools"]) for request in upstream.requests}) == 1
    results = [
        block for block in upstream.requests[-1].body["messages"][2]["content"] if block["type"] == "tool_result"
    ]
    assert results[0]["content"] == [{"type": "tool_reference", "tool_name": "get_weather"}]


async def post(client: Any, api: str, **more: Any) -> Any:
    bodies: dict[str, tuple[str, dict[str, Any]]] = {
        "chat": ("/v1/chat/completions", {"messages": QUESTION}),
        "messages": ("/v1/messages", {"messages": QUESTION, "max_tokens": 100}),
        "responses": ("/v1/responses", {"input": "How warm is Oslo?"}),
    }
    path, body = bodies[api]
    answer = await client.post(path, json={"model": "claude-sonnet-5", **body, **more})
    assert answer.status_code == 200, answer.text
    assert more.get("stream") or "It is cold." in answer.text
    return answer


def refuses_deferred_tools(request: Any) -> Reply:
    """A server with Anthropic's API of before."""
    if any("defer_loading" in tool for tool in request.body["tools"]):
        why = "tools.0.custom.defer_loading: Extra inputs are not permitted"
        error = {"type": "error", "error": {"type": "invalid_request_error", "message": why}}
        return Reply(status=400, body=error)
    last = json.dumps(request.body["messages"][-1])
    if "found" in last:
        return Reply(calls=[Call("call_tool", {"name": "get_weather", "arguments": {"city": "Oslo"}})])
    if "4 C" in last:
        return Reply(text="It is cold.")
    return Reply(calls=[Call("find_tools", {"query": "weather in a city"})])


@pytest.mark.parametrize("api", ["chat", "messages"])
async def test_a_server_that_refuses_deferred_tools_is_asked_by_the_bridge_from_then_on(upstream: Upstream, api: str):
    upstream.script("claude-sonnet-5", refuses_deferred_tools)
    with capture_logs() as logs:
        async with served_to_http(upstream.root, entry={"tool_search": "on"}, **CLAUDE) as client:
            await post(client, api)
            await post(client, api)
    deferred = ["defer_loading" in json.dumps(request.body["tools"]) for request in upstream.requests]
    assert deferred == [True, *[False] * 6]
    assert [line["model"] for line in logs if line["event"] == "tool_search_by_bridge"] == ["claude-sonnet-5"]


async def test_the_bridge_is_taken_where_the_entry_says_so(upstream: Upstream):
    upstream.script("claude-sonnet-5", refuses_deferred_tools)
    entry = {"tool_search": {"mode": "on", "way": "bridge"}}
    async with served_to_http(upstream.root, entry=entry, **CLAUDE) as client:
        await post(client, "chat")
    assert [len(request.body["tools"]) for request in upstream.requests] == [3, 3, 3]


async def test_a_turn_without_tools_reads_what_was_found_as_text(upstream: Upstream):
    upstream.script("claude-sonnet-5", finds_and_calls)
    async with served_to_http(
        upstream.root, entry={"tool_search": "on"}, loop={"max_iterations": 1}, **CLAUDE
    ) as client:
        answer = await client.post("/v1/chat/completions", json={"model": "claude-sonnet-5", "messages": QUESTION})
    assert answer.json()["x_callgate"]["ending"] == "turn_limit"
    for request in upstream.requests:
        names = {tool["name"] for tool in request.body.get("tools") or ()}
        referred = json.dumps(request.body["messages"]).count("tool_reference")
        assert not referred or "get_weather" in names


# OpenAI's own way ---------------------------------------------------------------------------------------------------------

GPT = "responses/gpt-5.4"
SEARCH = {
    "type": "tool_search_call",
    "id": "tsc_1",
    "call_id": "call_find",
    "execution": "client",
    "status": "completed",
    "arguments": {"query": "weather in a city"},
}
CALL = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "call_weather",
    "name": "get_weather",
    "arguments": '{"city":"Oslo"}',
    "status": "completed",
}
SAID = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "It is cold.", "annotations": []}],
}


def gpt(*, has_search: bool = True) -> Any:
    """A provider with the Responses API that searches, calls and answers; or one that knows no search."""

    async def answer(request: Request, wire: Wire) -> None:
        body = request.body
        if not has_search and any(tool["type"] == "tool_search" for tool in body["tools"]):
            error = {"message": "Invalid value: 'tool_search'.", "param": "tools[1]", "type": "invalid_request_error"}
            await wire.whole(json.dumps({"error": error}), status=400)
            return
        outputs = sum(item["type"].endswith("_output") for item in body["input"])
        item = (SEARCH, CALL, SAID)[outputs] if has_search else SAID
        whole: dict[str, Any] = {
            "id": "resp_1",
            "object": "response",
            "model": "gpt-5.4",
            "status": "completed",
            "output": [item],
        }
        whole["usage"] = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        if not body["stream"]:
            await wire.whole(json.dumps(whole))
            return
        events: list[dict[str, Any]] = [
            {"type": "response.created", "response": {**whole, "status": "in_progress", "output": []}},
            {"type": "response.output_item.added", "output_index": 0, "item": {**item, "status": "in_progress"}},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": whole},
        ]
        await wire.head(200)
        await wire.send("".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events))
        wire.writer.close()

    return answer


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("api", ["chat", "messages", "responses"])
async def test_gpt_is_given_its_own_search_and_the_definitions_of_what_was_found(api: str, stream: bool):
    async with raw_provider(gpt()) as provider:
        options: dict[str, Any] = {"models": [GPT], "lane": "auto", "entry": {"tool_search": "on"}}
        async with served_to_http(f"{provider.url}/v1", **options) as client:
            answer = await post(client, api, stream=stream, model=GPT)
        bodies = [request.body for request in provider.requests]
    assert "get_weather" in answer.text
    assert [[tool.get("name", tool["type"]) for tool in body["tools"]] for body in bodies] == [
        ["read_more", "tool_search"]
    ] * 3
    search = bodies[0]["tools"][1]
    assert (search["execution"], "query" in search["parameters"]["properties"]) == ("client", True)
    called, loaded = bodies[1]["input"][-2:]
    assert {name: called[name] for name in ("type", "call_id", "execution", "arguments")} == {
        name: SEARCH[name] for name in ("type", "call_id", "execution", "arguments")
    }
    assert (loaded["type"], loaded["call_id"], loaded["execution"]) == ("tool_search_output", "call_find", "client")
    assert [(tool["name"], tool["defer_loading"]) for tool in loaded["tools"]] == [("get_weather", True)]
    assert "city" in loaded["tools"][0]["parameters"]["properties"]
    assert bodies[2]["input"][-1]["output"] == "4 C in Oslo"


async def test_a_provider_that_refuses_the_search_is_asked_by_the_bridge_from_then_on():
    async with raw_provider(gpt(has_search=False)) as provider:
        options: dict[str, Any] = {"models": [GPT], "lane": "auto", "entry": {"tool_search": "on"}}
        async with served_to_http(f"{provider.url}/v1", **options) as client:
            for _ in range(2):
                await post(client, "chat", model=GPT)
        names = [[tool.get("name", tool["type"]) for tool in request.body["tools"]] for request in provider.requests]
    bridge = ["read_more", "find_tools", "call_tool"]
    assert names == [["read_more", "tool_search"], bridge, bridge]


async def test_a_model_of_before_is_asked_by_the_bridge():
    async with raw_provider(gpt(has_search=False)) as provider:
        old = "responses/gpt-5.1"
        options: dict[str, Any] = {"models": [old], "lane": "auto", "entry": {"tool_search": "on"}}
        async with served_to_http(f"{provider.url}/v1", **options) as client:
            await post(client, "chat", model=old)
        assert [tool["name"] for tool in provider.requests[0].body["tools"]] == ["read_more", "find_tools", "call_tool"]


@pytest.mark.parametrize("name", ["find_tools", "call_tool"])
async def test_a_demanded_call_of_our_own_tools_takes_the_bridge(upstream: Upstream, name: str):
    upstream.script("claude-sonnet-5", [Reply(text="It is cold.")])
    choice = {"type": "function", "function": {"name": name}}
    async with served_to_http(upstream.root, entry={"tool_search": "on"}, **CLAUDE) as client:
        await post(client, "chat", tool_choice=choice)
    names = [tool["name"] for tool in upstream.requests[0].body["tools"]]
    assert names == ["read_more", "find_tools", "call_tool"]
