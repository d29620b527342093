"""What a provider keeps in the operator's account cannot be named by a request, wherever it stands and whoever speaks to
the provider."""

import json
from typing import Any

import pytest

from callgate.application import create_app
from callgate.policy.operator_ids import may_have_ids
from tests.harness.clients import openai_client
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.harness.wire import raw_post
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = [pytest.mark.anyio, pytest.mark.leaves("litellm", why="litellm keeps its thread for logging")]

LANES = pytest.mark.parametrize("lane", ["direct", "translated", "litellm"])
TOOLS = pytest.mark.parametrize("tools", [(), ("get_time",)], ids=["passed", "with_our_tools"])
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def part(part: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}, part]}]}


NAMED: list[tuple[dict[str, Any], str]] = [
    (part({"type": "file", "file": {"file_id": "file_1"}}), "messages[0].content[1].file.file_id"),
    (part({"type": "file", "file_id": "file_1"}), "messages[0].content[1].file_id"),
    (part({"type": "input_file", "file_id": "file_1"}), "messages[0].content[1].file_id"),
    (part({"type": "image_url", "image_url": {"url": "", "file_id": "f"}}), "messages[0].content[1].image_url.file_id"),
    (part({"type": "input_audio", "input_audio": {"id": "a"}}), "messages[0].content[1].input_audio.id"),
    (
        part({"type": "document", "source": {"type": "file", "file_id": "f"}}),
        "messages[0].content[1].source.file_id",
    ),
    ({"messages": [{"role": "assistant", "audio": {"id": "audio_1"}}]}, "messages[0].audio.id"),
    ({"container": "cntr_1"}, "container"),
    ({"vector_store_ids": ["vs_1"]}, "vector_store_ids"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt.id"),
    ({"cached_content": "cachedContents/1"}, "cached_content"),
    ({"extra": {"inner": [{"file_ids": ["f"]}]}}, "extra.inner[0].file_ids"),
    ({"tools": [{"type": "file_search", "vector_store_ids": ["vs_1"]}]}, "tools[0].vector_store_ids"),
    ({"tools": [{**FUNCTION, "fileSearch": {"fileSearchStoreNames": ["s"]}}]}, "tools[0].fileSearch.fileSearchStoreNames"),
]  # fmt: skip


def chat_body(fields: dict[str, Any]) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}


@LANES
@TOOLS
async def test_a_chat_names_nothing_of_the_operators_account(
    upstream: Upstream, lane: str, tools: tuple[str, ...]
) -> None:
    provider = "cohere" if lane == "translated" else "openai"
    config = make_config(upstream.url, tools=tools, provider=provider, lane=lane, entry={"trust_litellm": "on"})
    async with serve(create_app(config)) as url:
        for fields, param in NAMED:
            answer = await raw_post(url, chat_body(fields))
            assert (answer.status, json.loads(answer.body)["error"].get("param")) == (400, param), answer.body
        spelled = b'{"model":"m","messages":[{"role":"user","content":[{"type":"file","file":{"file\\u005fid":"f"}}]}]}'
        assert (await raw_post(url, spelled)).status == 400
    assert not upstream.requests


@TOOLS
async def test_an_entry_may_let_a_chat_name_it(upstream: Upstream, tools: tuple[str, ...]) -> None:
    config = make_config(upstream.url, tools=tools, entry={"provider_selectors": True})
    async with serve(create_app(config)) as url:
        for fields in (NAMED[0][0], {"container": "cntr_1"}, {"extra": {"inner": [{"file_ids": ["f"]}]}}):
            upstream.script("m", [Reply(text="seen")])
            answer = await raw_post(url, chat_body(fields))
            assert answer.status == 200, answer.body
            assert {name: upstream.requests[-1].body[name] for name in fields} == fields


@TOOLS
async def test_names_of_the_clients_own_are_its_own(upstream: Upstream, tools: tuple[str, ...]) -> None:
    schema = {"type": "object", "properties": {"file_id": {"type": "string"}, "container": {"type": "string"}}}
    call = Call("f", {"file_id": "x"})
    function = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": json.dumps(call.arguments)}}
    messages = [
        {"role": "user", "content": '{"file_id": "file_1"}'},
        {"role": "assistant", "content": None, "tool_calls": [function]},
        {"role": "tool", "tool_call_id": "call_1", "content": '{"container": "c"}'},
    ]
    fields = {
        "messages": messages,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}},
        "metadata": {"conversation": "c", "file_id": "f"},
    }
    upstream.script("m", [Reply(text="fine")])
    async with serve(create_app(make_config(upstream.url, tools=tools))) as url:
        answer = await raw_post(url, chat_body(fields))
    assert answer.status == 200, answer.body


MESSAGES: list[tuple[dict[str, Any], str]] = [
    (part({"type": "document", "source": {"type": "file", "file_id": "f"}}), "messages.0.content.1.document.source:"),
    (part({"type": "container_upload", "file_id": "f"}), "messages.0.content.1.container_upload.file_id:"),
    ({"container": "cntr_1"}, "container:"),
    ({"tools": [{"type": "file_search", "vector_store_ids": ["v"]}]}, "tools.0.file_search.vector_store_ids:"),
]


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
@TOOLS
async def test_a_message_names_nothing_of_the_operators_account(
    upstream: Upstream, provider: str, tools: tuple[str, ...]
) -> None:
    base = upstream.root if provider == "anthropic" else upstream.url
    config = make_config(base, tools=tools, provider=provider, lane="auto")
    async with serve(create_app(config)) as url:
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            for fields, where in MESSAGES:
                answer = await raw_post(url, {"max_tokens": 9, **chat_body(fields)}, path=path)
                message = json.loads(answer.body).get("error", {}).get("message", "")
                assert (answer.status, message.startswith(where)) == (400, True), (fields, answer.body)
    assert not upstream.requests


def test_a_name_is_found_wherever_it_stands_in_a_large_body() -> None:
    for at in (0, 524_280, 524_287, 524_288, 1_048_570, 1_100_000):
        assert may_have_ids(b" " * at + b'"file_search_store_names"' + b" " * 100)
    assert not may_have_ids(b'"text"' * 300_000)


def tool(**tool: Any) -> dict[str, Any]:
    return {"input": "hi", "tools": [tool]}


def item(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}, *parts]}]}


RESPONSES: list[tuple[dict[str, Any], str]] = [
    (tool(type="file_search", vector_store_ids=["vs_1"]), "tools[0].vector_store_ids"),
    (tool(type="code_interpreter", container="cntr_1"), "tools[0].container"),
    (tool(type="code_interpreter", container={"type": "auto", "file_ids": ["file_1"]}), "tools[0].container.file_ids"),
    (tool(type="image_generation", input_image_mask={"file_id": "file_1"}), "tools[0].input_image_mask.file_id"),
    (item({"type": "input_file", "file_id": "file_1"}), "input[0].content[1].file_id"),
    (item({"type": "input_audio", "input_audio": {"id": "a"}}), "messages[0].content[1].input_audio.id"),
    ({"input": "hi", "prompt": {"id": "pmpt_1"}}, "prompt.id"),
]


async def test_a_response_names_nothing_of_the_operators_account(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="fine")])
    async with serve(create_app(make_config(upstream.url))) as url:
        for path in ("/v1/responses", "/v1/responses/input_tokens"):
            for fields, where in RESPONSES:
                answer = await raw_post(url, {"model": "m", **fields}, path=path)
                error = json.loads(answer.body).get("error", {})
                assert (answer.status, error.get("param")) == (400, where), (path, fields, answer.body)
        assert not upstream.requests
        harmless = {"type": "code_interpreter", "container": {"type": "auto"}}
        answer = await raw_post(url, {"model": "m", "input": "hi", "tools": [harmless]}, path="/v1/responses")
    assert answer.status == 200, answer.body


async def test_tokens_are_counted_whatever_parts_there_are(upstream: Upstream) -> None:
    file = {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}
    audio = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    counts = []
    async with serve(create_app(make_config(upstream.url))) as url, openai_client(url) as client:
        for parts in ((), (file,), (file, audio)):
            asked: Any = item(*parts)
            counts.append((await client.responses.input_tokens.count(model="m", **asked)).input_tokens)
    assert counts == sorted(set(counts)), "each part counts for something"
