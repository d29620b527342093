"""Which requests are offered our tools: not one with an empty list of tools, and none without tools where the config says so."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from callgate.access.keys import hash_key
from callgate.application import create_app
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.messages import put_together
from tests.harness.server import serve
from tests.harness.websocket import websocket
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = pytest.mark.anyio

KEY = "a-key-of-somebody"
APIS = pytest.mark.parametrize("api", ["chat", "azure", "responses", "messages"])
BOTH = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
ASKED = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {}}
NO_TOOLS: Mapping[str, Any] = {}
EMPTY: Mapping[str, Any] = {"tools": []}
OWN: Mapping[str, Mapping[str, Any]] = {
    "chat": {"tools": [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]},
    "responses": {"tools": [{"type": "function", "name": "look", "parameters": SCHEMA}]},
    "messages": {"tools": [{"name": "look", "input_schema": SCHEMA}]},
}
OURS: Mapping[str, Mapping[str, Any]] = {
    "chat": {"tools": [{"type": "mcp", "server_label": "callgate"}]},
    "responses": {"tools": [{"type": "mcp", "server_label": "callgate"}]},
    "messages": {"mcp_servers": [{"type": "url", "name": "callgate", "url": "callgate:callgate"}]},
}


def request_of(api: str, *, stream: bool = False, **more: Any) -> tuple[str, dict[str, Any]]:
    match api:
        case "chat":
            return "/v1/chat/completions", {"model": "m", "messages": ASKED, "stream": stream, **more}
        case "azure":
            return "/openai/deployments/m/chat/completions", {"messages": ASKED, "stream": stream, **more}
        case "responses":
            return "/v1/responses", {"model": "m", "input": "hi", "stream": stream, **more}
        case _:
            return "/v1/messages", {"model": "m", "max_tokens": 99, "messages": ASKED, "stream": stream, **more}


def own_tools(api: str) -> Mapping[str, Any]:
    return OWN["chat" if api == "azure" else api]


def body_of(api: str, answer: Any) -> dict[str, Any]:
    """The whole answer, or the last event of a stream that says most."""
    assert answer.status_code == 200, answer.text
    if not answer.headers["content-type"].startswith("text/event-stream"):
        whole: dict[str, Any] = answer.json()
        return whole
    if api == "messages":
        return put_together(answer.text)
    last: dict[str, Any] = json.loads([line for line in answer.text.splitlines() if line.startswith("data: {")][-1][6:])
    return last["response"] if api == "responses" else last


def obeying(upstream: Upstream) -> None:
    """A model that calls `add` once wherever it has it."""

    def answer(request: Any) -> Reply:
        if "add" in request.tool_names and not request.tool_results:
            return Reply(calls=[Call("add", {"a": 1, "b": 2})])
        return Reply(text="Done.")

    upstream.script("m", answer)


@BOTH
@APIS
async def test_an_empty_list_of_tools_means_none_of_ours(upstream: Upstream, api: str, stream: bool) -> None:
    obeying(upstream)
    path, body = request_of(api, stream=stream, **EMPTY)
    async with serve(create_app(make_config(upstream.url, tools=["add"]))) as url, http_client(url) as client:
        answer = await client.post(path, json=body)
    [sent] = upstream.requests
    assert "tools" not in sent.body  # OpenAI refuses an empty list
    assert body_of(api, answer)["x_callgate"]["warnings"] == ["empty_tools_list"]
    assert answer.headers["x-callgate-warning"] == "empty_tools_list"


@APIS
async def test_without_a_list_our_tools_are_on_offer_as_before(upstream: Upstream, api: str) -> None:
    obeying(upstream)
    path, body = request_of(api)
    async with serve(create_app(make_config(upstream.url, tools=["add"]))) as url, http_client(url) as client:
        answer = await client.post(path, json=body)
    assert [request.tool_names for request in upstream.requests] == [["add", "read_more"]] * 2
    assert "warnings" not in body_of(api, answer)["x_callgate"]


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True},
        {"tools": [], "tool_choice": "none"},
        {"functions": []},
        {"functions": [], "function_call": "auto"},
    ],
    ids=str,
)
@pytest.mark.parametrize("tools", [["add"], []], ids=["with tools of ours", "without"])
async def test_what_stands_beside_an_empty_list_is_not_sent_on_either(
    upstream: Upstream, fields: Mapping[str, Any], tools: list[str]
) -> None:
    obeying(upstream)
    async with serve(create_app(make_config(upstream.url, tools=tools))) as url, http_client(url) as client:
        answer = await client.post("/v1/chat/completions", json=request_of("chat", **fields)[1])
    assert answer.status_code == 200
    [sent] = upstream.requests
    assert sent.body.keys().isdisjoint({"tools", "functions", "tool_choice", "function_call", "parallel_tool_calls"})


@pytest.mark.parametrize("choice", ["auto", "none"])
async def test_a_response_with_an_empty_list_has_no_choice_upstream(upstream: Upstream, choice: str) -> None:
    obeying(upstream)
    path, body = request_of("responses", tools=[], tool_choice=choice)
    async with serve(create_app(make_config(upstream.url, tools=["add"]))) as url, http_client(url) as client:
        assert (await client.post(path, json=body)).status_code == 200
    [sent] = upstream.requests
    assert sent.body.keys().isdisjoint({"tools", "tool_choice"})


async def test_an_empty_list_where_nothing_is_held_back_leaves_the_answer_as_it_is(upstream: Upstream) -> None:
    obeying(upstream)
    async with serve(create_app(make_config(upstream.url))) as url, http_client(url) as client:
        answer = await client.post("/v1/chat/completions", json=request_of("chat", tools=[])[1])
    assert ("x_callgate" in answer.json(), "x-callgate-warning" in answer.headers) == (False, False)
    assert "tools" not in upstream.requests[0].body


@APIS
@pytest.mark.parametrize(
    ("of_entry", "of_key", "is_offered"),
    [
        ("any", None, True),
        ("with_client_tools", None, False),
        ("any", "with_client_tools", False),
        ("with_client_tools", "any", True),
    ],
)
async def test_side_requests_without_tools_get_none_where_the_entry_or_the_key_says_so(
    upstream: Upstream, api: str, of_entry: str, of_key: str | None, is_offered: bool
) -> None:
    obeying(upstream)
    keys = [{"name": "ada", "hash": hash_key(KEY), **({} if of_key is None else {"offer": of_key})}]
    config = make_config(upstream.url, tools=["add"], entry={"offer": of_entry}, auth="keys", keys=keys)
    async with (
        serve(create_app(config)) as url,
        http_client(url, headers={"authorization": f"Bearer {KEY}"}) as client,
    ):
        for fields in (NO_TOOLS, EMPTY, own_tools(api)):
            path, body = request_of(api, **fields)
            assert (await client.post(path, json=body)).status_code == 200
    offered = ["add" in request.tool_names for request in upstream.requests if not request.tool_results]
    assert offered == [is_offered, False, True]


@pytest.mark.parametrize("api", OURS)
async def test_a_request_that_names_our_tools_is_offered_them(upstream: Upstream, api: str) -> None:
    obeying(upstream)
    config = make_config(upstream.url, tools=["add"], entry={"offer": "with_client_tools"})
    path, body = request_of(api, **OURS[api])
    async with serve(create_app(config)) as url, http_client(url) as client:
        assert (await client.post(path, json=body)).status_code == 200
    assert [request.tool_names for request in upstream.requests] == [["add", "read_more"]] * 2


@BOTH
async def test_calls_of_ours_are_no_items_of_a_response_whose_request_had_no_tools(
    upstream: Upstream, stream: bool
) -> None:
    obeying(upstream)
    async with serve(create_app(make_config(upstream.url, tools=["add"]))) as url, http_client(url) as client:
        shown = []
        for fields in (NO_TOOLS, OWN["responses"], OURS["responses"]):
            path, body = request_of("responses", stream=stream, **fields)
            response = body_of("responses", await client.post(path, json=body))
            shown.append([item["type"] for item in response["output"]])
        following = request_of("responses", previous_response_id=response["id"])
        assert (await client.post(following[0], json=following[1])).status_code == 200
    assert shown == [["message"], ["mcp_call", "message"], ["mcp_list_tools", "mcp_call", "message"]]


async def test_the_same_holds_in_the_background_and_on_a_socket(upstream: Upstream) -> None:
    obeying(upstream)
    async with serve(create_app(make_config(upstream.url, tools=["add"]))) as url, http_client(url) as client:
        for fields in (NO_TOOLS, EMPTY):
            path, body = request_of("responses", stream=True, background=True, **fields)
            response = body_of("responses", await client.post(path, json=body))
            assert [item["type"] for item in response["output"]] == ["message"]
            async with websocket(url) as socket:
                events = await socket.turn({"model": "m", "input": "hi", **fields})
            assert [item["type"] for item in events[-1]["response"]["output"]] == ["message"]
    assert [request.tool_names for request in upstream.requests] == [["add", "read_more"]] * 4 + [[]] * 2


@pytest.mark.parametrize("api", ["responses", "messages"])
async def test_tokens_are_counted_for_the_tools_that_are_offered(upstream: Upstream, api: str) -> None:
    path = "/v1/responses/input_tokens" if api == "responses" else "/v1/messages/count_tokens"
    _, body = request_of(api)
    body = {name: value for name, value in body.items() if name not in ("stream", "max_tokens")}
    async with serve(create_app(make_config(upstream.url, tools=["add"]))) as url, http_client(url) as client:
        offered = (await client.post(path, json=body)).json()["input_tokens"]
        held_back = (await client.post(path, json={**body, "tools": []})).json()["input_tokens"]
    assert held_back < offered
