"""Messages in front of Anthropic's own API: what the client wrote goes on as it came, with our turns between its own. The
provider checks each history as strictly as Anthropic does."""

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from callgate.application import create_app
from callgate.config.schema.whole import Config
from tests.harness.clients import http_client
from tests.harness.configs import config_dict, make_config
from tests.harness.messages import MessagesClient, calls_of, events_in, text_of
from tests.harness.server import serve
from tests.models.wire import Request, Wire, raw_provider
from tests.scripted_upstream import Call, ErrorEvent, Pace, Reply, Upstream

pytestmark = [pytest.mark.anyio, pytest.mark.leaves("litellm", why="litellm keeps its thread for logging")]

BOTH = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
MODEL = "claude-sonnet-4-5"
WEATHER = Call("get_weather", {"city": "Oslo"})
LOOKUP = Call("lookup", {"word": "crane"})
OWN_TOOL = {"name": "lookup", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}}
DOCUMENT = {
    "type": "document",
    "source": {"type": "text", "media_type": "text/plain", "data": "Cranes are birds."},
    "citations": {"enabled": True},
    "cache_control": {"type": "ephemeral"},
}
QUESTION = {"role": "user", "content": [DOCUMENT, {"type": "text", "text": "What is a crane?"}]}


@contextlib.asynccontextmanager
async def in_front_of(base: str, *tools: str, **options: Any) -> AsyncIterator[MessagesClient]:
    config = make_config(base, models=[MODEL], provider="anthropic", tools=tools, lane="auto", **options)
    async with serve(create_app(config)) as url, http_client(url) as http:
        yield MessagesClient(http)


@BOTH
async def test_blocks_go_on_as_they_came_with_our_turns_between_them(upstream: Upstream, stream: bool) -> None:
    turns = [
        Reply(reasoning="I look.", calls=[WEATHER]),
        Reply(reasoning="And a word.", calls=[LOOKUP]),
        Reply(text="A bird."),
    ]
    upstream.script(MODEL, turns)
    system = [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
    asked: dict[str, Any] = {
        "model": MODEL, "system": system, "tools": [OWN_TOOL], "top_k": 5, "context_management": {"edits": []},
        "thinking": {"type": "enabled", "budget_tokens": 1024}, "metadata": {"user_id": "u1"},
    }  # fmt: skip
    async with in_front_of(upstream.root, "get_weather") as client:
        headers = {"anthropic-beta": "context-management-2025-06-27,mcp-client-2025-11-20"}
        message = await client.ask(stream=stream, messages=[QUESTION], headers=headers, **asked)
        [call] = calls_of(message)
        result = {
            "type": "tool_result",
            "tool_use_id": call["id"],
            "content": "a bird",
            "cache_control": {"type": "ephemeral"},
        }
        history = [
            QUESTION,
            {"role": "assistant", "content": message["content"]},
            {"role": "user", "content": [result]},
        ]
        last = await client.ask(stream=stream, messages=history, headers=headers, **asked)
    assert text_of(last) == "A bird."
    first, _, third = [request.body for request in upstream.requests]
    assert first["messages"] == [QUESTION]
    assert (first["system"], first["top_k"], first["context_management"]) == (system, 5, {"edits": []})
    assert [tool["name"] for tool in first["tools"]] == ["lookup", "get_weather", "read_more"]
    assert first["tools"][0] == OWN_TOOL
    assert first["metadata"] == {"user_id": "u1"}
    assert upstream.requests[0].headers["anthropic-beta"] == "context-management-2025-06-27"
    question, ours, weather, theirs, answer = third["messages"]
    assert question == QUESTION
    assert [block["type"] for block in ours["content"]] == ["thinking", "tool_use"]
    assert ours["content"][0] == {"type": "thinking", "thinking": "I look.", "signature": "c2lnbmVk"}
    assert weather["content"][0]["content"] == "4 C in Oslo"
    assert theirs["content"][0]["thinking"] == "And a word."
    assert answer["content"] == [result]


@BOTH
async def test_without_tools_of_ours_the_bytes_are_the_providers(stream: bool) -> None:
    usage = {"input_tokens": 3, "output_tokens": 5, "cache_read_input_tokens": 7}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"id": "msg_x", "type": "message", "role": "assistant", "model": "claude-x",
         "content": [], "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 3, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "odd_block", "odd": [1, 2]}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": usage},
        {"type": "message_stop"},
    ]  # fmt: skip
    whole = json.dumps(
        {"type": "message", "content": [{"type": "odd_block"}], "stop_reason": "end_turn", "usage": usage}
    )
    streamed = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)

    async def answer(request: Request, wire: Wire) -> None:
        await wire.whole(streamed if stream else whole)

    async with raw_provider(answer) as provider, in_front_of(provider.url) as client:
        tool = {"type": "web_search_20250305", "name": "web_search"}
        got = await client.post(stream=stream, model=MODEL, messages=[QUESTION], tools=[tool])
    assert got.text == (streamed if stream else whole)
    [asked] = provider.requests
    body = asked.body
    assert (body["messages"], body["tools"], body["model"]) == ([QUESTION], [tool], MODEL)


@BOTH
async def test_a_limit_of_the_loop_ends_in_an_answer(upstream: Upstream, stream: bool) -> None:
    upstream.script(
        MODEL, [Reply(calls=[WEATHER]), Reply(calls=[Call("get_weather", {"city": "Lisbon"})]), Reply(text="Enough.")]
    )
    async with in_front_of(upstream.root, "get_weather", loop={"max_iterations": 1}) as client:
        message = await client.ask(stream=stream, model=MODEL, messages=[QUESTION])
    assert (text_of(message), message["stop_reason"]) == ("Enough.", "end_turn")
    last = upstream.requests[-1].body
    assert last["tool_choice"] == {"type": "none"}
    assert last["tools"]


@BOTH
async def test_a_call_that_was_cut_is_not_run(upstream: Upstream, stream: bool) -> None:
    half = Call("get_weather", '{"city": "Os') if stream else WEATHER
    upstream.script(MODEL, [Reply(calls=[half], finish="length"), Reply(text="Once more?")])
    async with in_front_of(upstream.root, "get_weather") as client:
        message = await client.ask(stream=stream, model=MODEL)
    [first, _] = message["x_callgate"]["turns"]
    assert [(call["verdict"], call["flaw"]) for call in first["calls"]] == [("broken", "truncated")]
    assert (text_of(message), first["lane"]) == ("Once more?", "messages")
    sent = upstream.requests[-1].body["messages"][1]["content"]
    assert [(block["type"], block.get("input")) for block in sent] == [("tool_use", {})]


@pytest.mark.parametrize("tools", [(), ("get_weather",)], ids=["passed", "with ours"])
async def test_an_error_before_the_first_content_has_its_status(upstream: Upstream, tools: tuple[str, ...]) -> None:
    refusal = {"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}
    upstream.script(MODEL, [Reply(status=400, body=refusal)])
    async with in_front_of(upstream.root, *tools) as client:
        refused = await client.post(stream=True, model=MODEL)
    assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize("tools", [(), ("get_weather",)], ids=["passed", "with ours"])
async def test_an_error_behind_the_first_content_is_the_last_event(upstream: Upstream, tools: tuple[str, ...]) -> None:
    upstream.script(MODEL, [Reply(text="I will tell you", fault=ErrorEvent(after=5), pace=Pace(between=0.02))])
    async with in_front_of(upstream.root, *tools) as client:
        answer = await client.post(stream=True, model=MODEL)
    *events, last = events_in(answer.text)
    assert events[-1]["type"] == "content_block_delta"
    assert (last["type"], last["error"]["type"]) == ("error", "api_error")
    assert last["request_id"] == answer.headers["request-id"]


@pytest.mark.parametrize(
    ("block", "where"),
    [
        ({"type": "document", "source": {"type": "file", "file_id": "file_1"}}, "messages.0.content.0.document.source"),
        ({"type": "image", "source": {"type": "file", "file_id": "file_1"}}, "messages.0.content.0.image.source"),
        ({"type": "container_upload", "file_id": "file_1"}, "messages.0.content.0"),
    ],
)
@pytest.mark.parametrize("tools", [(), ("get_weather",)], ids=["passed", "with ours"])
async def test_what_the_operator_keeps_at_the_provider_is_closed_to_clients(
    upstream: Upstream, block: dict[str, Any], where: str, tools: tuple[str, ...]
) -> None:
    async with in_front_of(upstream.root, *tools) as client:
        refused = await client.post(model=MODEL, messages=[{"role": "user", "content": [block]}])
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith(where)
    assert not upstream.requests


@pytest.mark.parametrize("field", ["container", "fallbacks", "models", "provider", "workspace_id"])
@pytest.mark.parametrize("tools", [(), ("get_weather",)], ids=["passed", "with ours"])
async def test_a_request_chooses_nothing_that_is_the_operators(
    upstream: Upstream, field: str, tools: tuple[str, ...]
) -> None:
    chosen: dict[str, Any] = {field: "x"}
    async with in_front_of(upstream.root, *tools) as client:
        refused = await client.post(model=MODEL, **chosen)
    assert (refused.status_code, refused.json()["error"]["message"].partition(":")[0]) == (400, field)
    assert not upstream.requests


async def test_settings_of_the_proxys_own_libraries_do_not_travel(upstream: Upstream) -> None:
    upstream.script(MODEL, [Reply(text="Hello.")])
    async with in_front_of(upstream.root) as client:
        await client.ask(model=MODEL, api_base="http://example.com", mock_response="x", api_key="k", extra_headers={})
    assert upstream.requests[0].body.keys() == {"model", "max_tokens", "messages", "stream"}


async def test_a_chat_model_is_not_sent_fields_without_a_chat_equivalent(upstream: Upstream) -> None:
    config = make_config(upstream.url, models=["m"])
    async with serve(create_app(config)) as url, http_client(url) as http:
        client = MessagesClient(http)
        tool = await client.post(tools=[{"type": "web_search_20250305", "name": "web_search"}])
    assert tool.status_code == 400
    assert tool.json()["error"]["message"].startswith("tools.0: ")
    assert not upstream.requests


async def test_tokens_are_counted_by_the_provider_with_our_tools_among_them() -> None:
    async def answer(request: Request, wire: Wire) -> None:
        await wire.whole('{"input_tokens": 42}')

    async with raw_provider(answer) as provider, in_front_of(provider.url, "get_weather") as client:
        body = {"model": MODEL, "messages": [QUESTION], "system": "Be kind.", "tools": [OWN_TOOL]}
        counted = await client.http.post("/v1/messages/count_tokens", json=body)
    assert (counted.json(), counted.headers["x-callgate-token-count"]) == ({"input_tokens": 42}, "exact")
    [asked] = provider.requests
    assert asked.target == "/v1/messages/count_tokens"
    assert asked.body.keys() == {"model", "system", "messages", "tools"}
    assert [tool["name"] for tool in asked.body["tools"]] == ["lookup", "get_weather", "read_more"]


@BOTH
async def test_a_fallback_to_a_chat_model_reads_a_chat(upstream: Upstream, stream: bool) -> None:
    upstream.script(MODEL, [Reply(reasoning="I look.", calls=[WEATHER]), *[Reply(status=529, body={})] * 3])
    upstream.script("m", [Reply(text="It is 4 C.")])
    config = config_dict(
        upstream.root,
        models=[MODEL],
        provider="anthropic",
        tools=["get_weather"],
        lane="auto",
        entry={"fallbacks": ["m"]},
    )
    config["model_list"] += config_dict(upstream.url, models=["m"], tools=["get_weather"])["model_list"]
    signed = [{"type": "thinking", "thinking": "Hm.", "signature": "c2lnbmVk"}, {"type": "text", "text": "Hello."}]
    history = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": signed},
        {"role": "user", "content": "go"},
    ]
    async with serve(create_app(Config.model_validate(config))) as url, http_client(url) as http:
        message = await MessagesClient(http).ask(stream=stream, model=MODEL, messages=history)
    assert text_of(message) == "It is 4 C."
    first, last = upstream.requests[0].body["messages"], upstream.requests[-1].body["messages"]
    assert first[1]["content"] == signed
    assert [entry["role"] for entry in last] == ["user", "assistant", "user", "assistant", "tool"]
    assert last[1] == {"role": "assistant", "content": "Hello.", "reasoning_content": "Hm."}
    assert last[3].keys() == {"role", "content", "reasoning_content", "tool_calls"}
