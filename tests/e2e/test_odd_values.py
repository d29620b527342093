"""Whatever stands at any place of a request, of whichever API: it is the client's mistake or none, and never ours."""

import copy
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from callgate.application import create_app
from callgate.config.schema.whole import Config
from tests.chaos.scale import scaled
from tests.harness.clients import http_client
from tests.harness.configs import config_dict
from tests.harness.server import serve
from tests.scripted_upstream import Reply, Upstream

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ODD: list[Any] = [[], {}, 5, None, "x", [None], ["x"], {"type": []}]
OF_EACH = scaled(1, len(ODD))
"""How many of them each place is tried with."""
IMAGE = "data:image/png;base64,AA=="
RESPONSE: dict[str, Any] = {
    "instructions": "i",
    "input": [
        {"role": "user", "content": [
            {"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": IMAGE},
            {"type": "input_file", "file_data": "x", "filename": "f"},
            {"type": "input_audio", "input_audio": {"data": "x", "format": "wav"}}]},
        {"type": "message", "role": "assistant", "content": [
            {"type": "output_text", "text": "b"}, {"type": "refusal", "refusal": "n"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "t"}],
         "content": [{"type": "reasoning_text", "text": "x"}], "encrypted_content": "z"},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}", "namespace": "n"},
        {"type": "function_call_output", "call_id": "c1", "output": [
            {"type": "input_text", "text": "o"}, {"type": "input_image", "image_url": "x"}]},
        {"type": "custom_tool_call", "call_id": "c2", "name": "g", "input": "i"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "o"},
        {"type": "mcp_call", "id": "m", "name": "add", "arguments": "{}", "output": "o",
         "error": {"content": [{"type": "text", "text": "e"}]}},
    ],
    "tools": [
        {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True, "description": "d"},
        {"type": "custom", "name": "g", "format": {"type": "grammar", "syntax": "lark", "definition": "d"}},
        {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "h", "parameters": {}}]},
        {"type": "mcp", "server_label": "callgate", "allowed_tools": {"tool_names": ["add"]},
         "require_approval": {"always": {"tool_names": ["add"]}, "never": {"tool_names": ["echo"]}}},
        {"type": "web_search"},
    ],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
    "text": {"format": {"type": "json_schema", "name": "a", "schema": {}}, "verbosity": "low"},
    "reasoning": {"effort": "low", "summary": "auto"},
    "include": ["reasoning.encrypted_content"],
    "metadata": {"a": "b"},
    "stream_options": {"include_obfuscation": True},
}  # fmt: skip
MESSAGE: dict[str, Any] = {
    "max_tokens": 9,
    "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [
            {"type": "text", "text": "a"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "t", "signature": "s"}, {"type": "text", "text": "b"},
            {"type": "tool_use", "id": "t1", "name": "f", "input": {}},
            {"type": "mcp_tool_use", "id": "m1", "name": "add", "server_name": "callgate", "input": {}},
            {"type": "mcp_tool_result", "tool_use_id": "m1", "content": [{"type": "text", "text": "r"}]}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "r"}], "is_error": False}]},
    ],
    "tools": [
        {"name": "f", "description": "d", "input_schema": {"type": "object"}},
        {"type": "mcp_toolset", "mcp_server_name": "callgate", "configs": {"add": {"enabled": True}},
         "default_config": {"enabled": False}},
    ],
    "mcp_servers": [
        {"type": "url", "name": "callgate", "url": "callgate:callgate",
         "tool_configuration": {"enabled": True, "allowed_tools": ["add"]}},
    ],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "metadata": {"user_id": "u"},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {}}},
    "thread": {"type": "create"},
    "stop_sequences": ["x"],
}  # fmt: skip
CHAT: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [
            {"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": IMAGE}}]},
        {"role": "assistant", "content": None, "reasoning_content": "x", "audio": None,
         "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "a", "content": "r"},
    ],
    "tools": [
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}},
        {"type": "custom", "custom": {"name": "g", "format": {"type": "text"}}},
    ],
    "tool_choice": {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}},
    "stream_options": {"include_usage": True},
    "metadata": {"tools": "add", "tool_events": "x"},
}  # fmt: skip
FACES = [("/v1/responses", RESPONSE), ("/v1/messages", MESSAGE), ("/v1/chat/completions", CHAT)]


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if at:
        yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in inner:
        yield from places(each, (*at, name))


def changed(body: dict[str, Any], at: tuple[Any, ...], value: Any) -> dict[str, Any]:
    body = copy.deepcopy(body)
    inner: Any = body
    for name in at[:-1]:
        inner = inner[name]
    inner[at[-1]] = value
    return body


@pytest.mark.parametrize("model", ["m", "text", "demo"])
@pytest.mark.parametrize(("path", "body"), FACES, ids=["responses", "messages", "chat"])
async def test_no_value_at_any_place_is_an_error_of_ours(
    upstream: Upstream, model: str, path: str, body: dict[str, Any]
) -> None:
    upstream.script("m", lambda _: Reply(text="ok"), lax=True)
    config = config_dict(upstream.url, tools=("add",))
    [entry] = config["model_list"]
    demo = {"model_name": "demo", "litellm_params": {"model": "demo/demo"}, "tools": ["*"]}
    config["model_list"] = [entry, {**entry, "model_name": "text", "tool_calling": "xml"}, demo]
    odd = itertools.cycle(ODD)
    wrong: list[Any] = []
    async with serve(create_app(Config.model_validate(config))) as url, http_client(url) as client:
        assert (await client.post(path, json={**body, "model": "demo", "stream": True})).status_code == 200
        for number, (at, _) in enumerate(itertools.product(places(body), range(OF_EACH))):
            value = next(odd)
            asked = {**changed(body, at, value), "model": model, "stream": number % 2 == 0}
            answer = await client.post(path, json=asked)
            if answer.status_code >= 500 or '"server_error"' in answer.text or '"api_error"' in answer.text:
                wrong.append((at, value, answer.text[:200]))
    upstream.problems.clear()  # a provider is sent odd values too, and says so
    assert not wrong
