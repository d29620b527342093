"""Bodies that are no request to the Responses API: each refused in OpenAI's shape with the place of the mistake, and
with no effect."""

import json
from typing import Any

import pytest

from callgate.application import create_app
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.scripted_upstream import Upstream

pytestmark = pytest.mark.anyio

USER = {"role": "user", "content": "hi"}
CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "x"}
LOOK = {"type": "function", "name": "look", "parameters": {"type": "object"}}


def without(item: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in item.items() if key != name}


def content(*parts: Any) -> dict[str, Any]:
    return {"input": [{"role": "user", "content": [*parts]}]}


# What of the body is at fault, and the `param` that says so.
TEXTS: list[tuple[bytes, str | None]] = [
    (b"", None),
    (b"{", None),
    (b"null", None),
    (b"[]", None),
    (b'"hi"', None),
    (b"7", None),
    (b'{"model":"m","input":"hi"', None),
    (b'{"model":"m","input":"hi"}}', None),
    (b'{"model":"m","model":"n","input":"hi"}', "model"),
    (b'{"model":"m","input":"\xff"}', None),
    (b'{"model":"m","input":"\\ud800"}', None),
    (b'{"model":"m","input":' + b"[" * 200 + b"]" * 200 + b"}", None),
]
FIELDS: list[tuple[dict[str, Any], str | None]] = [
    ({"model": None}, "model"),
    ({"model": ""}, "model"),
    ({"model": 7}, "model"),
    ({"model": ["m"]}, "model"),
    ({"prompt": "pmpt_1"}, "prompt"),
    ({"prompt": {}}, "prompt"),
    ({"conversation": 7}, "conversation"),
    ({"input": None}, "input"),
    ({"input": ""}, "input"),
    ({"input": []}, "input"),
    ({"input": 7}, "input"),
    ({"input": {"role": "user"}}, "input"),
    ({"input": ["hi"]}, "input[0]"),
    ({"input": [USER, None]}, "input[1]"),
    ({"input": [{}]}, "input[0].type"),
    ({"input": [{"type": 7}]}, "input[0].type"),
    ({"input": [{"type": "nonsense"}]}, "input[0].type"),
    ({"input": [{"type": "computer_call", "call_id": "c"}]}, "input"),
    ({"input": [{"type": "local_shell_call_output"}]}, "input[0].call_id"),
    ({"input": [{"type": "shell_call"}]}, "input[0].call_id"),
    ({"input": [{"type": "shell_call", "call_id": "c", "action": []}]}, "input[0].action"),
    ({"input": [{"type": "apply_patch_call_output", "call_id": "c", "output": ""}]}, "input[0].call_id"),
    ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, "input[0].encrypted_content"),
    (
        {"input": [{"type": "mcp_approval_response", "approval_request_id": "x", "approve": True}]},
        "input[0].approval_request_id",
    ),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].id"),
    ({"input": [{"type": "item_reference"}]}, "input[0].id"),
    ({"input": [{"type": "item_reference", "id": 7}]}, "input[0].id"),
    ({"input": [{"role": "robot", "content": "hi"}]}, "input[0].role"),
    ({"input": [{"role": 7, "content": "hi"}]}, "input[0].role"),
    ({"input": [{"role": "tool", "content": "hi"}]}, "input[0].role"),
    ({"input": [{"type": "message", "content": "hi"}]}, "input[0].role"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": None}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": 7}]}, "input[0].content"),
    (content("hi"), "input[0].content[0]"),
    (content({"text": "hi"}), "input[0].content[0]"),
    (content({"type": "input_text"}), "input[0].content[0].text"),
    (content({"type": "input_text", "text": 7}), "input[0].content[0].text"),
    (content({"type": "nonsense"}), "input[0].content[0].type"),
    (content({"type": "input_video", "video_url": "http://x"}), "input[0].content[0].type"),
    (content({"type": "input_image", "file_id": "file_1"}), "input[0].content[0].file_id"),
    (content({"type": "input_image"}), "input[0].content[0]"),
    (content({"type": "input_image", "image_url": {"url": "x"}}), "input[0].content[0]"),
    (content({"type": "input_file", "file_id": "file_1"}), "input[0].content[0].file_id"),
    (content({"type": "input_file", "file_url": "http://x"}), "input[0].content[0].file_url"),
    (content({"type": "input_audio"}), "input[0].content[0].type"),
    ({"input": [USER, CALL]}, "input"),
    ({"input": [USER, OUTPUT]}, "input[1].call_id"),
    ({"input": [USER, CALL, OUTPUT, OUTPUT]}, "input[3].call_id"),
    ({"input": [USER, CALL, {**OUTPUT, "call_id": "c2"}]}, "input"),
    ({"input": [USER, without(CALL, "call_id"), OUTPUT]}, "input[1].call_id"),
    ({"input": [USER, {**CALL, "call_id": ""}, OUTPUT]}, "input[1].call_id"),
    ({"input": [USER, {**CALL, "call_id": 7}, OUTPUT]}, "input[1].call_id"),
    ({"input": [USER, without(CALL, "name"), OUTPUT]}, "input[1].name"),
    ({"input": [USER, without(CALL, "arguments"), OUTPUT]}, "input[1].arguments"),
    ({"input": [USER, {**CALL, "arguments": {}}, OUTPUT]}, "input[1].arguments"),
    ({"input": [USER, CALL, without(OUTPUT, "call_id")]}, "input[2].call_id"),
    ({"input": [USER, CALL, without(OUTPUT, "output")]}, "input[2].output"),
    ({"input": [USER, {"type": "custom_tool_call", "call_id": "c1", "name": "x"}]}, "input[1].input"),
    ({"input": [{"type": "reasoning", "summary": "x", "content": 7}]}, "input[0].content"),
    ({"input": [{"type": "reasoning", "summary": [{"type": "summary_text"}]}]}, "input[0].summary[0].text"),
    ({"input": [{"type": "mcp_call", "arguments": "{}"}]}, "input[0].name"),
    ({"input": [{"type": "mcp_call", "name": "x"}]}, "input[0].arguments"),
    ({"instructions": 7}, "instructions"),
    ({"instructions": ["x"]}, "instructions"),
    ({"previous_response_id": "resp_unknown"}, "previous_response_id"),
    ({"previous_response_id": ""}, "previous_response_id"),
    ({"previous_response_id": 7}, "previous_response_id"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"conversation": {"id": "conv_1"}, "previous_response_id": "resp_1"}, "conversation"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt.id"),
    ({"stream": "yes"}, "stream"),
    ({"store": 1}, "store"),
    ({"background": "no"}, "background"),
    ({"background": True, "store": False}, "background"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": []}, "top_p"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": 1.5}, "max_output_tokens"),
    ({"max_output_tokens": "9"}, "max_output_tokens"),
    ({"max_tool_calls": 0}, "max_tool_calls"),
    ({"max_tool_calls": "many"}, "max_tool_calls"),
    ({"top_logprobs": -1}, "top_logprobs"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ({"truncation": "sometimes"}, "truncation"),
    ({"include": "everything"}, "include"),
    ({"include": ["everything"]}, "include[0]"),
    ({"include": [7]}, "include[0]"),
    ({"metadata": "x"}, "metadata"),
    ({"metadata": {"k": 7}}, "metadata.k"),
    ({"metadata": {"k": "v" * 513}}, "metadata.k"),
    ({"metadata": {"k" * 65: "v"}}, "metadata." + "k" * 64),
    ({"metadata": {str(n): "v" for n in range(17)}}, "metadata"),
    ({"text": "json"}, "text"),
    ({"text": {"format": "json"}}, "text.format"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"text": {"format": {}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
    ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
    ({"reasoning": "high"}, "reasoning"),
    ({"reasoning": {"effort": 7}}, "reasoning.effort"),
    ({"reasoning": {"summary": "long"}}, "reasoning.summary"),
    ({"service_tier": 7}, "service_tier"),
    ({"user": 7}, "user"),
    ({"tools": "all"}, "tools"),
    ({"tools": ["look"]}, "tools[0].type"),
    ({"tools": [{"name": "look"}]}, "tools[0].type"),
    ({"tools": [{"type": 7}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [{"type": "function", "name": ""}]}, "tools[0].name"),
    ({"tools": [{**LOOK, "name": "x" * 65}]}, "tools[0].name"),
    ({"tools": [LOOK, LOOK]}, "tools[1].name"),
    ({"tools": [{**LOOK, "parameters": "{}"}]}, "tools[0].parameters"),
    ({"tools": [{**LOOK, "description": 7}]}, "tools[0].description"),
    ({"tools": [{**LOOK, "strict": "yes"}]}, "tools[0].strict"),
    ({"tools": [{"type": "custom"}]}, "tools[0].name"),
    ({"tools": [{"type": "custom", "name": "x", "format": {"type": "regex"}}]}, "tools[0].format"),
    ({"tools": [{"type": "namespace", "name": "n"}]}, "tools[0].tools"),
    ({"tools": [{"type": "namespace", "tools": []}]}, "tools[0].name"),
    ({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "mcp"}]}]}, "tools[0].tools[0].type"),
    ({"tools": [{"type": "mcp"}]}, "tools[0].server_label"),
    ({"tools": [{"type": "mcp", "server_label": "unknown"}]}, "tools[0].server_label"),
    ({"tools": [{"type": "mcp", "server_label": "x", "server_url": "http://evil"}]}, "tools[0].server_url"),
    ({"tools": [{"type": "mcp", "server_label": "callgate", "allowed_tools": "all"}]}, "tools[0].allowed_tools"),
    (
        {"tools": [{"type": "mcp", "server_label": "callgate", "allowed_tools": {"colour": 1}}]},
        "tools[0].allowed_tools.colour",
    ),
    (
        {"tools": [{"type": "mcp", "server_label": "callgate", "require_approval": "sometimes"}]},
        "tools[0].require_approval",
    ),
    (
        {"tools": [{"type": "mcp", "server_label": "callgate", "require_approval": {"always": ["add"]}}]},
        "tools[0].require_approval.always",
    ),
    ({"tools": [{"type": "mcp", "server_label": "callgate", "require_approval": "always"}], "store": False}, "store"),
    ({"tools": [{"type": "mcp", "server_label": "callgate", "require_approval": {}}]}, "tools[0].require_approval"),
    ({"tool_choice": "sometimes"}, "tool_choice"),
    ({"tool_choice": 7}, "tool_choice"),
    ({"tool_choice": {}}, "tool_choice"),
    ({"tool_choice": {"type": "function"}}, "tool_choice"),
    ({"tool_choice": {"type": "file_search"}}, "tool_choice"),
    ({"tool_choice": {"type": "allowed_tools", "tools": "all"}}, "tool_choice"),
    ({"tool_choice": {"type": "allowed_tools", "mode": "never", "tools": []}}, "tool_choice"),
    ({"tool_choice": {"type": "allowed_tools", "tools": [{"type": "web_search"}]}}, "tool_choice"),
]


async def test_each_is_refused_at_its_place_without_an_upstream_request(upstream: Upstream) -> None:
    assert len(TEXTS) + len(FIELDS) >= 100
    bodies = [
        *TEXTS,
        *((json.dumps({"model": "m", "input": "hi"} | fields).encode(), where) for fields, where in FIELDS),
    ]
    checked: list[tuple[bytes, Any, Any]] = []
    async with (
        serve(create_app(make_config(upstream.url, tools=["add"]))) as url,
        http_client(url, headers={"content-type": "application/json"}) as client,
    ):
        for body, where in bodies:
            for path in ("/v1/responses", "/responses"):
                answer = await client.post(path, content=body)
                error = answer.json()["error"]
                assert set(error) == {"message", "type", "param", "code"}
                assert error["type"] == "invalid_request_error"
                checked.append((body[:200], answer.status_code in (400, 404), error["param"] == where or error))
    assert [one for one in checked if one[1:] != (True, True)] == []
    assert len(upstream.requests) == 0
