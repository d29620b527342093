"""A hundred bodies that are no Messages request: each refused in Anthropic's shape, naming the place, with no effect."""

import json
from typing import Any

import pytest

from callgate.application import create_app
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.messages import MessagesClient
from tests.harness.server import serve
from tests.scripted_upstream import Reply, Upstream

pytestmark = pytest.mark.anyio

GOOD: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
TOOL = {"name": "look", "input_schema": {"type": "object"}}
CALL = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "x"}
OURS = {"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "look", "input": {}, "server_name": "callgate"}


def user(*blocks: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(blocks)}]}


def turns(*messages: tuple[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in messages]}


def without(name: str) -> bytes:
    return json.dumps({key: value for key, value in GOOD.items() if key != name}).encode()


RAW: list[tuple[bytes, str]] = [
    (b"", "We could not parse"),
    (b"{", "We could not parse"),
    (b"nothing", "We could not parse"),
    (b"[]", "The body of the request must be a JSON object"),
    (b'"text"', "The body of the request must be a JSON object"),
    (b"null", "The body of the request must be a JSON object"),
    (b"7", "The body of the request must be a JSON object"),
    (b"{}", "model: Field required"),
    (without("model"), "model: Field required"),
    (without("messages"), "messages: Field required"),
    (without("max_tokens"), "max_tokens: Field required"),
    (b'{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"\xff"}]}', "We could not parse"),
    (b'{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"\\ud800"}]}', "We could not parse"),
    (b'{"model":"m","model":"n","max_tokens":9,"messages":[]}', "'model' is given more than once"),
    (
        b'{"model":"m","max_tokens":9,"messages":' + b"[" * 200 + b"]" * 200 + b"}",
        "The JSON body of your request is nested",
    ),
    (b'{"model":"m","max_tokens":1e999,"messages":[]}', ""),
]
FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"model": ""}, "model: "),
    ({"model": 7}, "model: "),
    ({"model": None}, "model: "),
    ({"max_tokens": 0}, "max_tokens: "),
    ({"max_tokens": -1}, "max_tokens: "),
    ({"max_tokens": "9"}, "max_tokens: "),
    ({"max_tokens": 9.5}, "max_tokens: "),
    ({"max_tokens": None}, "max_tokens: "),
    ({"stream": "yes"}, "stream: "),
    ({"stream": 1}, "stream: "),
    ({"temperature": 1.1}, "temperature: "),
    ({"temperature": -0.1}, "temperature: "),
    ({"temperature": "hot"}, "temperature: "),
    ({"top_p": 2}, "top_p: "),
    ({"top_k": -1}, "top_k: "),
    ({"top_k": "many"}, "top_k: "),
    ({"stop_sequences": "END"}, "stop_sequences: "),
    ({"stop_sequences": [7]}, "stop_sequences.0: "),
    ({"stop_sequences": [" "]}, "stop_sequences.0: "),
    ({"metadata": "me"}, "metadata: "),
    ({"metadata": {"user_id": 7}}, "metadata.user_id: "),
    ({"system": 7}, "system: "),
    ({"system": {"text": "x"}}, "system: "),
    ({"system": ["x"]}, "system.0: "),
    ({"system": [{"text": "x"}]}, "system.0.type: "),
    ({"system": [{"type": "image", "source": {}}]}, "system.0.type: "),
    ({"system": [{"type": "text"}]}, "system.0.text.text: "),
    ({"thinking": "on"}, "thinking: "),
    ({"thinking": {}}, "thinking.type: "),
    ({"thinking": {"type": "deep"}}, "thinking.type: "),
    ({"thinking": {"type": "enabled"}}, "thinking.enabled.budget_tokens: "),
    ({"output_config": {"effort": "most"}}, "output_config.effort: "),
    ({"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema: "),
    ({"output_format": {"type": "json_schema", "schema": 7}}, "output_format.schema: "),
    ({"thread": {"type": "fork"}}, "thread.type: "),
    ({"thread": {"type": "continue"}}, "thread.continue.previous_message_id: "),
    # messages
    ({"messages": []}, "messages: "),
    ({"messages": "hi"}, "messages: "),
    ({"messages": {}}, "messages: "),
    ({"messages": ["hi"]}, "messages.0: "),
    ({"messages": [{"content": "hi"}]}, "messages.0.role: "),
    ({"messages": [{"role": "user"}]}, "messages.0.content: "),
    (turns(("tool", "hi")), "messages.0.role: "),
    (turns(("User", "hi")), "messages.0.role: "),
    (turns(("user", None)), "messages.0.content: "),
    (turns(("user", 7)), "messages.0.content: "),
    (turns(("user", "")), "messages.0: "),
    (turns(("user", [])), "messages.0: "),
    (turns(("user", "hi"), ("assistant", ""), ("user", "hi")), "messages.1: "),
    (user("hi"), "messages.0.content.0: "),
    (user({}), "messages.0.content.0.type: "),
    (user({"type": 7}), "messages.0.content.0.type: "),
    (user({"type": "text"}), "messages.0.content.0.text.text: "),
    (user({"type": "text", "text": ""}), "messages.0.content.0: "),
    (user({"type": "text", "text": ["x"]}), "messages.0.content.0.text: "),
    (user({"type": "image"}), "messages.0.content.0.image.source: "),
    (user({"type": "image", "source": "x"}), "messages.0.content.0.image.source: "),
    (user({"type": "image", "source": {"type": "url"}}), "messages.0.content.0.image.source.url.url: "),
    (user({"type": "image", "source": {"type": "base64", "data": "x"}}), "messages.0.content.0.image.source.base64.media_type: "),
    (user({"type": "image", "source": {"type": "base64", "media_type": "image/png"}}), "messages.0.content.0.image.source.base64.data: "),
    (user({"type": "image", "source": {"type": "file", "file_id": "f"}}), "messages.0.content.0.image.source: "),
    (user(CALL), "messages.0.content.0: "),
    (user({"type": "thinking", "thinking": "x", "signature": "y"}), "messages.0.content.0: "),
    (user(RESULT), "messages.0.content.0: unexpected `tool_use_id`"),
    (user({"type": "tool_result"}), "messages.0.content.0.tool_result.tool_use_id: "),
    (turns(("assistant", [RESULT])), "messages.0.content.0: "),
    (turns(("assistant", [{"type": "image", "source": {"type": "url", "url": "x"}}])), "messages.0.content.0: "),
    (turns(("system", [{"type": "image", "source": {"type": "url", "url": "x"}}])), "messages.0.content.0"),
    (turns(("user", "hi"), ("assistant", [{**CALL, "id": ""}])), "messages.1.content.0.tool_use.id: "),
    (turns(("user", "hi"), ("assistant", [{**CALL, "name": None}])), "messages.1.content.0.tool_use.name: "),
    (turns(("user", "hi"), ("assistant", [{**CALL, "input": "{}"}])), "messages.1.content.0.input: "),
    (turns(("user", "hi"), ("assistant", [{**CALL, "input": None}])), "messages.1.content.0.tool_use.input: "),
    (turns(("user", "hi"), ("assistant", [CALL])), "messages.1: `tool_use` ids were found without"),
    (turns(("user", "hi"), ("assistant", [CALL]), ("user", "no")), "messages.1: `tool_use` ids were found without"),
    (turns(("user", "hi"), ("assistant", [CALL, CALL]), ("user", [RESULT])), "messages.1.content.1: "),
    (turns(("user", "hi"), ("assistant", [CALL]), ("user", [RESULT, RESULT])), "messages.2.content.1: "),
    (turns(("user", "hi"), ("assistant", [CALL]), ("user", [{**RESULT, "content": 7}])), "messages.2.content.0.tool_result.content: "),
    (turns(("user", "hi"), ("assistant", [CALL]), ("user", [{**RESULT, "is_error": "no"}])), "messages.2.content.0.is_error: "),
    (turns(("user", "hi"), ("assistant", [{"type": "thinking", "thinking": "x"}])), "messages.1.content.0.thinking.signature: "),
    (turns(("user", "hi"), ("assistant", [{"type": "redacted_thinking"}])), "messages.1.content.0.redacted_thinking.data: "),
    (turns(("user", "hi"), ("assistant", [OURS])), "messages.1.content.0: `mcp_tool_use` without"),
    (turns(("user", "hi"), ("assistant", [{"type": "mcp_tool_result", "tool_use_id": "x"}])), "messages.1.content.0: `mcp_tool_result` without"),
    # tools
    ({"tools": {}}, "tools: "),
    ({"tools": ["look"]}, "tools.0: "),
    ({"tools": [{"input_schema": {}}]}, "tools.0.custom.name: "),
    ({"tools": [{"name": "look"}]}, "tools.0.custom.input_schema: "),
    ({"tools": [{**TOOL, "name": "look up"}]}, "tools.0.custom.name: "),
    ({"tools": [{**TOOL, "name": "x" * 129}]}, "tools.0.custom.name: "),
    ({"tools": [{**TOOL, "input_schema": "{}"}]}, "tools.0.input_schema: "),
    ({"tools": [{**TOOL, "input_schema": {"type": "string"}}]}, "tools.0.custom.input_schema.type: "),
    ({"tools": [TOOL, TOOL]}, "tools: Tool names must be unique"),
    ({"tools": [{"type": "computer_toolset_20260801"}]}, "tools.0: "),
    ({"tools": [{"type": "mcp_toolset"}]}, "tools.0.mcp_toolset.mcp_server_name: "),
    ({"tools": [{"type": "mcp_toolset", "mcp_server_name": "x"}]}, "tools: MCP server 'x' not found"),
    ({"tool_choice": "any"}, "tool_choice: "),
    ({"tool_choice": {}}, "tool_choice.type: "),
    ({"tool_choice": {"type": "function"}}, "tool_choice.type: "),
    ({"tool_choice": {"type": "tool"}}, "tool_choice.tool.name: "),
    ({"mcp_servers": "x"}, "mcp_servers: "),
    ({"mcp_servers": [{}]}, "mcp_servers.0.name: "),
    ({"mcp_servers": [{"type": "url", "name": "x", "url": "https://example.com/mcp"}]}, "mcp_servers.0.url: "),
    ({"mcp_servers": [{"type": "url", "name": "x", "url": "callgate:y"}]}, "mcp_servers.0.url: "),
    ({"mcp_servers": [{"type": "url", "name": "x", "url": "callgate:x", "authorization_token": "t"}]}, "mcp_servers.0.authorization_token: "),
]  # fmt: skip


async def test_each_is_refused_in_anthropics_shape_and_nothing_is_done(upstream: Upstream) -> None:
    bodies = [*RAW, *((json.dumps({**GOOD, **fields}).encode(), where) for fields, where in FIELDS)]
    assert len(bodies) >= 100
    config = make_config(upstream.url, tools=["get_weather", "send_mail"])
    async with serve(create_app(config)) as url, http_client(url) as http:
        for body, where in bodies:
            answer = await http.post("/v1/messages", content=body, headers={"content-type": "application/json"})
            found = answer.json()
            assert (answer.status_code, found["type"]) == (400, "error"), (body, found)
            assert found["error"]["type"] == "invalid_request_error", (body, found)
            assert found["error"]["message"].startswith(where), (body, found)
            assert found["request_id"] == answer.headers["request-id"]
        assert not upstream.requests
        upstream.script("m", [Reply(text="Hello.")])
        assert (await MessagesClient(http).ask(**GOOD))["stop_reason"] == "end_turn"
