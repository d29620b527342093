"""Anthropic's Messages API in front of the same conversation: what its clients send is read, what they expect is written."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from callgate.access.keys import hash_key
from tests.harness import toolshed
from tests.harness.messages import calls_of, events_in, text_of
from tests.harness.served import served_to_messages
from tests.scripted_upstream import Call, ErrorEvent, Reply, Upstream

pytestmark = pytest.mark.anyio

BOTH = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
WEATHER = Call("get_weather", {"city": "Oslo"})
LOOKUP = Call("lookup", {"word": "crane"})
OWN_TOOL = {"name": "lookup", "description": "Looks a word up.", "input_schema": {"type": "object"}}
QUESTION = {"role": "user", "content": "Go."}
MCP = {"anthropic-beta": "mcp-client-2025-11-20"}


TOOLS = ("get_weather",)


def result(call: Mapping[str, Any], content: Any = "a bird", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call["id"], "content": content, **more}


def turn_of_client(message: Mapping[str, Any], *results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The turn that a client adds: what it got, and its answers."""
    return [{"role": "assistant", "content": message["content"]}, {"role": "user", "content": list(results)}]


@BOTH
async def test_our_calls_are_hidden_and_their_text_is_one_answer(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(text="Let me see.", calls=[WEATHER]), Reply(text="It is 4 C.")])
    async with served_to_messages(upstream, *TOOLS) as client:
        message = await client.ask(stream=stream)
    assert [block["type"] for block in message["content"]] == ["text"]
    assert text_of(message) == "Let me see.\n\nIt is 4 C."
    assert message["stop_reason"] == "end_turn"


@BOTH
async def test_our_calls_are_shown_to_a_client_of_mcp_and_sent_once_when_they_come_back(
    upstream: Upstream, stream: bool
) -> None:
    upstream.script("m", [Reply(calls=[WEATHER]), Reply(calls=[LOOKUP]), Reply(text="4 C, and a bird.")])
    async with served_to_messages(upstream, *TOOLS) as client:
        message = await client.ask(stream=stream, headers=MCP, messages=[QUESTION], tools=[OWN_TOOL])
        assert [block["type"] for block in message["content"]] == ["mcp_tool_use", "mcp_tool_result", "tool_use"]
        ours, answer, theirs = message["content"]
        assert (ours["name"], ours["input"], answer["is_error"]) == ("get_weather", {"city": "Oslo"}, False)
        assert answer["content"] == [{"type": "text", "text": "4 C in Oslo"}]
        assert answer["tool_use_id"] == ours["id"]
        history = [QUESTION, *turn_of_client(message, result(theirs))]
        last = await client.ask(stream=stream, headers=MCP, messages=history, tools=[OWN_TOOL])
    assert text_of(last) == "4 C, and a bird."
    asked = upstream.requests[-1].body["messages"]
    assert [message["role"] for message in asked] == ["user", "assistant", "tool", "assistant", "tool"]
    assert [message["content"] for message in asked if message["role"] == "tool"] == ["4 C in Oslo", "a bird"]


async def test_a_round_that_was_shown_is_known_without_what_was_kept(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="And a bird.")])
    shown = [
        {"type": "text", "text": "Let me see."},
        {
            "type": "mcp_tool_use",
            "id": "mcptoolu_call_1",
            "name": "get_weather",
            "server_name": "x",
            "input": {"city": "Oslo"},
        },
        {"type": "mcp_tool_result", "tool_use_id": "mcptoolu_call_1", "is_error": False, "content": "4 C"},
        {"type": "text", "text": "It is 4 C."},
    ]
    history = [QUESTION, {"role": "assistant", "content": shown}, {"role": "user", "content": "More."}]
    async with served_to_messages(upstream, *TOOLS) as client:
        await client.ask(messages=history)
    _, call, answer, text, _ = upstream.requests[-1].body["messages"]
    assert (call["content"], call["tool_calls"][0]["id"]) == ("Let me see.", "call_1")
    assert (answer["role"], answer["content"], text["content"]) == ("tool", "4 C", "It is 4 C.")


@BOTH
async def test_a_turn_with_calls_of_both_sides_comes_back_whole(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(calls=[WEATHER, LOOKUP]), Reply(text="Both.")])
    async with served_to_messages(upstream, *TOOLS) as client:
        message = await client.ask(stream=stream, messages=[QUESTION], tools=[OWN_TOOL])
        [call] = message["content"]
        assert (call["name"], call["input"], message["stop_reason"]) == ("lookup", {"word": "crane"}, "tool_use")
        last = await client.ask(
            stream=stream, messages=[QUESTION, *turn_of_client(message, result(call))], tools=[OWN_TOOL]
        )
    assert text_of(last) == "Both."
    assert list(upstream.requests[-1].tool_results.values()) == ["4 C in Oslo", "a bird"]


@BOTH
async def test_calls_of_both_sides_in_one_turn_are_sent_once_where_ours_were_shown(
    upstream: Upstream, stream: bool
) -> None:
    upstream.script("m", [Reply(calls=[WEATHER, LOOKUP]), Reply(text="Both.")])
    async with served_to_messages(upstream, *TOOLS) as client:
        message = await client.ask(stream=stream, headers=MCP, messages=[QUESTION], tools=[OWN_TOOL])
        [call] = calls_of(message)
        history = [QUESTION, *turn_of_client(message, result(call))]
        await client.ask(stream=stream, headers=MCP, messages=history, tools=[OWN_TOOL])
    asked = upstream.requests[-1].body["messages"]
    assert [message["role"] for message in asked] == ["user", "assistant", "tool", "tool"]


@BOTH
async def test_half_a_call_of_the_clients_is_left_out_and_the_answer_says_that_it_was_cut(
    upstream: Upstream, stream: bool
) -> None:
    half = Reply(calls=[Call("lookup", '{"word": "cra')], finish="length")
    upstream.script("m", [half, half])
    async with served_to_messages(upstream, *TOOLS) as client:
        message = await client.ask(stream=stream, tools=[OWN_TOOL])
    assert (message["content"], message["stop_reason"]) == ([], "max_tokens")


@BOTH
@pytest.mark.parametrize("tools", [("get_weather",), ()], ids=["with ours", "without ours"])
async def test_thinking_is_shown_where_it_was_asked_for_and_comes_back(
    upstream: Upstream, stream: bool, tools: tuple[str, ...]
) -> None:
    upstream.script("m", [Reply(reasoning="A word.", calls=[LOOKUP]), Reply(text="A bird.")])
    async with served_to_messages(upstream, *tools) as client:
        thinking = {"type": "enabled", "budget_tokens": 2000}
        message = await client.ask(stream=stream, messages=[QUESTION], tools=[OWN_TOOL], thinking=thinking)
        thought, call = message["content"]
        assert (thought["type"], thought["thinking"]) == ("thinking", "A word.")
        assert thought["signature"].startswith("callgate.unsigned.")
        await client.ask(stream=stream, messages=[QUESTION, *turn_of_client(message, result(call))], tools=[OWN_TOOL])
    assert upstream.requests[-1].body["messages"][1]["reasoning_content"] == "A word."


@BOTH
async def test_thinking_that_was_not_requested_is_not_shown(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(reasoning="Hm.", text="Hello.")])
    async with served_to_messages(upstream, *TOOLS) as client:
        message = await client.ask(stream=stream)
    assert [block["type"] for block in message["content"]] == ["text"]


async def test_a_request_reaches_the_model_as_a_chat(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="Yes.")])
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    cached = {"type": "ephemeral"}
    async with served_to_messages(upstream, *TOOLS) as client:
        await client.ask(
            system=[
                {"type": "text", "text": "Be kind.", "cache_control": cached},
                {"type": "text", "text": "Be short."},
            ],
            messages=[
                {"role": "user", "content": [{"type": "text", "text": "What", "cache_control": cached}]},
                {"role": "user", "content": [{"type": "text", "text": "is it?"}, image]},
                {"role": "assistant", "content": "It is"},
            ],
            tools=[{**OWN_TOOL, "cache_control": cached, "type": "custom"}],
            tool_choice={"type": "tool", "name": "lookup", "disable_parallel_tool_use": True},
            stop_sequences=["END"],
            temperature=0.5,
            metadata={"user_id": "u" * 100},
            output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}},
        )
    body = upstream.requests[-1].body
    assert body["messages"] == [
        {"role": "system", "content": "Be kind.\n\nBe short."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What"},
                {"type": "text", "text": "is it?"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
            ],
        },
        {"role": "assistant", "content": "It is"},
    ]
    assert body["tools"][0]["function"] == {
        "name": "lookup", "description": "Looks a word up.", "parameters": {"type": "object"},
    }  # fmt: skip
    assert body["tool_choice"] == {"type": "function", "function": {"name": "lookup"}}
    assert (body["parallel_tool_calls"], body["stop"], body["temperature"], body["max_tokens"]) == (
        False,
        ["END"],
        0.5,
        1000,
    )
    assert len(body["user"]) == 64
    assert body["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert "cache_control" not in json.dumps(body)


async def test_results_are_texts_and_their_images_follow_them(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[LOOKUP]), Reply(text="Seen.")])
    image = {"type": "image", "source": {"type": "url", "url": "https://example.com/x.png"}}
    async with served_to_messages(upstream, *TOOLS) as client:
        message = await client.ask(messages=[QUESTION], tools=[OWN_TOOL])
        [call] = message["content"]
        answer = result(call, [{"type": "text", "text": "no bird"}, image], is_error=True)
        history = [QUESTION, *turn_of_client(message, answer, {"type": "text", "text": "Look."})]
        await client.ask(messages=history, tools=[OWN_TOOL])
    tool, shown, text = upstream.requests[-1].body["messages"][-3:]
    assert (tool["role"], tool["content"]) == ("tool", "Error: no bird")
    assert shown["content"][1] == {"type": "image_url", "image_url": {"url": "https://example.com/x.png"}}
    assert text == {"role": "user", "content": "Look."}


@BOTH
async def test_an_error_of_the_provider_has_anthropics_shape(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(status=401, body={"error": {"message": "bad key"}})] * 3)
    async with served_to_messages(upstream, *TOOLS) as client:
        answer = await client.post(stream=stream)
    found = answer.json()
    assert (found["type"], found["error"]["type"]) == ("error", "api_error")
    assert found["request_id"] == answer.headers["request-id"]


async def test_an_error_inside_a_stream_is_its_last_event(upstream: Upstream) -> None:
    broken = Reply(text="I will tell you", fault=ErrorEvent(after=2))
    upstream.script("m", [broken])
    async with served_to_messages(upstream, *TOOLS) as client:
        answer = await client.post(stream=True)
    *_, last = events_in(answer.text)
    assert answer.status_code == 200
    assert (last["type"], last["error"]["type"]) == ("error", "api_error")
    assert last["request_id"] == answer.headers["request-id"]


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/v1/messages", 405, "invalid_request_error"),
        ("POST", "/v1/messages/batches", 404, "not_found_error"),
        ("DELETE", "/v1/messages/msg_1", 404, "not_found_error"),
    ],
)
async def test_every_route_below_it_answers_errors_in_anthropics_shape(
    upstream: Upstream, method: str, path: str, status: int, kind: str
) -> None:
    async with served_to_messages(upstream, *TOOLS) as client:
        answer = await client.http.request(method, path, json={})
    found = answer.json()
    assert (answer.status_code, found["type"], found["error"]["type"]) == (status, "error", kind)
    assert found["request_id"] == answer.headers["request-id"]


@pytest.mark.parametrize("path", ["/v1/files", "/v1/agents", "/v1/skills", "/v1/organizations/me"])
async def test_a_client_of_anthropics_gets_its_errors_wherever_it_asks(upstream: Upstream, path: str) -> None:
    async with served_to_messages(upstream, *TOOLS) as client:
        answer = await client.http.get(path, headers={"anthropic-version": "2023-06-01"})
        plain = await client.http.get(path)
    found = answer.json()
    assert (answer.status_code, found["error"]["type"]) == (404, "not_found_error")
    assert found["request_id"] == answer.headers["request-id"]
    assert plain.json().keys() == {"error"}


@pytest.mark.parametrize("header", ["x-api-key", "authorization"])
async def test_a_key_comes_in_either_header(upstream: Upstream, header: str) -> None:
    upstream.script("m", [Reply(text="Hello.")])
    keys = [{"name": "me", "hash": hash_key("secret-key")}]
    async with served_to_messages(upstream, *TOOLS, auth="keys", keys=keys) as client:
        value = "secret-key" if header == "x-api-key" else "Bearer secret-key"
        assert text_of(await client.ask(headers={header: value})) == "Hello."
        refused = await client.post(headers={"x-api-key": "another"})
    assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")


async def test_a_silent_stream_is_kept_alive_by_pings(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[Call("wait_for_gate", {})]), Reply(text="Open.")])
    server = {"heartbeat_seconds": 0.05, "first_chunk_seconds": 0.05}
    async with toolshed.held() as running, served_to_messages(upstream, "wait_for_gate", server=server) as client:
        body = {"model": "m", "max_tokens": 9, "messages": [QUESTION], "stream": True}
        async with client.http.stream("POST", "/v1/messages", json=body) as answer:
            text = ""
            async for piece in answer.aiter_text():
                text += piece
                if text.count("event: ping") == 3:
                    running.gate.set()
    assert running.gate.is_set()


@BOTH
async def test_a_client_that_leaves_stops_the_tool(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(calls=[Call("wait_for_gate", {})])])
    async with toolshed.held() as running, served_to_messages(upstream, "wait_for_gate") as client:
        asking = asyncio.create_task(client.post(stream=stream))
        await running.started.wait()
        asking.cancel()
        async with asyncio.timeout(30):
            await running.cancelled.wait()


async def test_models_are_listed_in_anthropics_shape_for_its_clients(upstream: Upstream) -> None:
    async with served_to_messages(upstream, *TOOLS, models=("a", "b", "c")) as client:
        version = {"anthropic-version": "2023-06-01"}
        first = (await client.http.get("/v1/models?limit=2", headers=version)).json()
        rest = (await client.http.get("/v1/models?limit=2&after_id=b", headers=version)).json()
        one = (await client.http.get("/v1/models/c", headers=version)).json()
        none = await client.http.get("/v1/models/x", headers=version)
        openais = (await client.http.get("/v1/models")).json()
    assert [model["id"] for model in first["data"]] == ["a", "b"]
    assert (first["has_more"], first["first_id"], first["last_id"]) == (True, "a", "b")
    assert ([model["id"] for model in rest["data"]], rest["has_more"]) == (["c"], False)
    assert (one["type"], one["id"], one["display_name"]) == ("model", "c", "c")
    assert none.json()["error"]["type"] == "not_found_error"
    assert none.json()["request_id"] == none.headers["request-id"]
    assert openais["object"] == "list"


async def test_a_body_that_is_too_large_and_a_full_server_get_anthropics_errors(upstream: Upstream) -> None:
    limits = {"body_bytes": 2000, "concurrent_requests": 1, "queue_seconds": 0}
    upstream.script("m", [Reply(calls=[Call("wait_for_gate", {})]), Reply(text="Open.")])
    async with toolshed.held() as running, served_to_messages(upstream, "wait_for_gate", limits=limits) as client:
        large = await client.post(system="x" * 3000)
        asking = asyncio.create_task(client.post())
        await running.started.wait()
        full = await client.post()
        running.gate.set()
        await asking
    assert (large.status_code, large.json()["error"]["type"]) == (413, "request_too_large")
    assert (full.status_code, full.json()["error"]["type"]) == (529, "overloaded_error")
    assert int(full.headers["retry-after"]) >= 1
    assert full.json()["request_id"] == full.headers["request-id"]


async def test_a_head_that_is_too_large_is_refused_in_anthropics_shape(upstream: Upstream) -> None:
    async with served_to_messages(upstream, *TOOLS) as client:
        answer = await client.http.post("/v1/messages", headers={"x-large": "x" * 100_000})
    found = answer.json()
    assert (answer.status_code, found["type"], found["error"]["type"]) == (431, "error", "invalid_request_error")
    assert found["request_id"] == answer.headers["request-id"]


@pytest.mark.parametrize(
    ("model", "asked", "sent"),
    [
        ("gpt-5", {"thinking": {"type": "enabled", "budget_tokens": 1024}}, "low"),
        ("gpt-5", {"thinking": {"type": "enabled", "budget_tokens": 32000}}, "high"),
        ("gpt-5", {"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}, "high"),
        ("gpt-5", {"thinking": {"type": "disabled"}}, None),
        ("gpt-4o", {"thinking": {"type": "enabled", "budget_tokens": 1024}, "output_config": {"effort": "low"}}, None),
    ],
)
async def test_thinking_is_requested_of_a_chat_model_in_its_own_parameters(
    upstream: Upstream, model: str, asked: dict[str, Any], sent: str | None
) -> None:
    upstream.script(model, [Reply(text="Yes.")])
    async with served_to_messages(upstream, *TOOLS, models=(model,)) as client:
        await client.ask(model=model, **asked)
    body = upstream.requests[-1].body
    assert body.get("reasoning_effort") == sent
    assert "thinking" not in body


async def test_tokens_are_estimated_with_our_tools_among_them(upstream: Upstream) -> None:
    async with served_to_messages(upstream, *TOOLS) as client:
        body = {"model": "m", "messages": [QUESTION], "tools": [OWN_TOOL]}
        counted = await client.http.post("/v1/messages/count_tokens", json=body)
        alone = await client.http.post("/v1/messages/count_tokens", json=body, headers={"x-callgate-tools": "none"})
        wrong = await client.http.post("/v1/messages/count_tokens", json={"model": "m"})
    assert counted.headers["x-callgate-token-count"] == "estimate"
    assert counted.json()["input_tokens"] > alone.json()["input_tokens"] > 0
    assert (wrong.status_code, wrong.json()["error"]["message"]) == (400, "messages: Field required")
    assert not upstream.requests


@BOTH
async def test_a_thread_is_gone_on_with_by_its_own_key_alone(upstream: Upstream, stream: bool) -> None:
    replies = [
        Reply(text="Let me see.", calls=[WEATHER]),
        Reply(calls=[LOOKUP]),
        Reply(text="A bird."),
        Reply(text="Yes."),
    ]
    upstream.script("m", replies)
    keys = [{"name": name, "hash": hash_key(f"key-of-{name}")} for name in ("ada", "bob")]
    ada, bob = ({"x-api-key": f"key-of-{name}"} for name in ("ada", "bob"))
    async with served_to_messages(upstream, *TOOLS, auth="keys", keys=keys) as client:

        async def go_on(id: str, *content: Any, headers: Any = ada) -> dict[str, Any]:
            thread = {"type": "continue", "previous_message_id": id}
            messages = [{"role": "user", "content": list(content)}]
            return await client.ask(stream=stream, headers=headers, thread=thread, messages=messages)

        first = await client.ask(
            stream=stream,
            headers=ada,
            thread={"type": "create"},
            system="Be kind.",
            messages=[QUESTION],
            tools=[OWN_TOOL],
        )
        [call] = calls_of(first)
        second = await go_on(first["id"], result(call))
        last = await go_on(second["id"], {"type": "text", "text": "Sure?"})
        refused = [
            await go_on(second["id"], {"type": "text", "text": "Sure?"}, headers=bob),
            await go_on("msg_none", {"type": "text", "text": "Sure?"}),
        ]
    assert (text_of(second), text_of(last)) == ("A bird.", "Yes.")
    asked = upstream.requests[-1].body
    roles = ["system", "user", "assistant", "tool", "assistant", "tool", "assistant", "user"]
    assert [message["role"] for message in asked["messages"]] == roles
    assert (asked["messages"][0]["content"], asked["messages"][-1]["content"]) == ("Be kind.", "Sure?")
    assert asked["tools"][0]["function"]["name"] == "lookup"
    for error in refused:
        assert error["error"]["type"] == "not_found_error"
        assert error["error"]["details"] == {"error_code": "thread_not_found"}


@pytest.mark.parametrize(
    ("server", "toolset", "offered"),
    [
        ({"name": "callgate"}, {}, ["add", "get_weather"]),
        ({"name": "callgate", "url": "callgate:callgate"}, {"default_config": {"enabled": False}}, []),
        (
            {"name": "callgate"},
            {"default_config": {"enabled": False}, "configs": {"add": {"enabled": True}}},
            ["add"],
        ),
        ({"name": "callgate", "tool_configuration": {"allowed_tools": ["get_weather"]}}, {}, ["get_weather"]),
        ({"name": "another"}, {}, []),
    ],
)
async def test_mcp_servers_narrow_what_is_on_offer(
    upstream: Upstream, server: dict[str, Any], toolset: dict[str, Any], offered: list[str]
) -> None:
    upstream.script("m", [Reply(text="Hello.")])
    tools = [{"type": "mcp_toolset", "mcp_server_name": server["name"], **toolset}] if toolset else []
    async with served_to_messages(upstream, "get_weather", "add") as client:
        await client.ask(mcp_servers=[{"type": "url", **server}], tools=tools, headers=MCP)
    assert sorted(set(upstream.requests[-1].tool_names) - {"read_more"}) == offered
