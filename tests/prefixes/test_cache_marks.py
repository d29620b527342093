"""Cache marks reach every provider that takes them, from chats and from Messages alike; what has no place for them is named."""

import json
from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from callgate.application import create_app
from callgate.config.schema.whole import Config
from tests.harness.configs import tool_entry
from tests.harness.server import serve
from tests.models.wire import raw_provider
from tests.parameters.walk import AWS
from tests.prefixes.provider import Planned

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.leaves("litellm", why="litellm keeps its thread for logging"),
]

MARK = {"cache_control": {"type": "ephemeral"}}
HOUR = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
SCHEMA = {"type": "object", "properties": {}}
CHAT: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "Be terse.", **HOUR}]},
        {"role": "user", "content": [{"type": "text", "text": "Look.", **MARK}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "seen", **MARK}]},
    ],
    "tools": [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}, **MARK}],
}
MESSAGES: dict[str, Any] = {
    "max_tokens": 64,
    "system": [{"type": "text", "text": "Be terse.", **HOUR}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Look."}, {"type": "text", "text": "Twice.", **MARK}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "call_1", "name": "look", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "seen", **MARK}]},
    ],
    "tools": [{"name": "look", "input_schema": SCHEMA, **MARK}],
}
BODIES = {"/v1/chat/completions": CHAT, "/v1/messages": MESSAGES}
TAKES: Mapping[str, tuple[str, str]] = {
    "openrouter/anthropic/claude-sonnet-4.5": ("/v1", "cache_control"),
    "litellm_proxy/claude": ("/v1", "cache_control"),
    "bedrock/amazon.nova-pro-v1:0": ("", "cachePoint"),
    "anthropic/claude-sonnet-4-5": ("", "cache_control"),
}
TAKES_NONE: Mapping[str, str] = {"gemini/gemini-2.5-flash": "/v1beta", "mistral/mistral-large-latest": "/v1"}


async def asked(model: str, path: str, url_path: str, body: Mapping[str, Any], **entry: Any) -> tuple[Any, Any]:
    """The answer, and what the provider was sent."""
    planned = Planned(())
    async with raw_provider(planned.answer) as provider:
        params: dict[str, Any] = {"model": model, "api_base": provider.url + path, "api_key": "sk-upstream"}
        if model.startswith("bedrock/"):
            params = {"model": model, **AWS, "aws_bedrock_runtime_endpoint": provider.url}
        ours = {"model_name": "m", "litellm_params": params, "tools": ["*"], "tool_calling": "native", **entry}
        config = Config.model_validate({"auth": "off", "model_list": [ours], "tools": [tool_entry("get_time")]})
        async with serve(create_app(config)) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
            answer = await client.post(url_path, json={"model": "m", **body})
    assert answer.status_code == 200, answer.text
    return answer.json(), planned.requests[0]


@pytest.mark.parametrize("model", TAKES)
@pytest.mark.parametrize("url_path", BODIES)
async def test_marks_are_passed_on_where_the_provider_takes_them(model: str, url_path: str) -> None:
    path, word = TAKES[model]
    answer, sent = await asked(model, path, url_path, BODIES[url_path])
    assert json.dumps(sent).count(f'"{word}"') == 4
    assert not [warning for warning in answer["x_callgate"].get("warnings", ()) if "cache_control" in warning]


async def test_what_a_mark_says_and_where_it_stands_is_kept() -> None:
    _, sent = await asked("openrouter/anthropic/claude-sonnet-4.5", "/v1", "/v1/messages", MESSAGES)
    assert sent["messages"][0]["content"] == [{"type": "text", "text": "Be terse.", **HOUR}]
    assert sent["messages"][1]["content"] == MESSAGES["messages"][0]["content"]
    assert sent["messages"][3]["content"] == [{"type": "text", "text": "seen", **MARK}]
    assert [tool.get("cache_control") for tool in sent["tools"]] == [MARK["cache_control"], None, None]


async def test_what_is_not_marked_is_sent_as_without_marks() -> None:
    body = {**MESSAGES, "system": "Be terse.", "messages": [{"role": "user", "content": "Look."}]}
    _, sent = await asked("openrouter/anthropic/claude-sonnet-4.5", "/v1", "/v1/messages", body)
    assert [message["content"] for message in sent["messages"]] == ["Be terse.", "Look."]


@pytest.mark.parametrize("model", TAKES_NONE)
@pytest.mark.parametrize("url_path", BODIES)
async def test_marks_that_have_no_place_are_named(model: str, url_path: str) -> None:
    answer, sent = await asked(model, TAKES_NONE[model], url_path, BODIES[url_path])
    assert "cache" not in json.dumps(sent).lower()
    assert "cache_control" in " ".join(answer["x_callgate"]["warnings"])


@pytest.mark.parametrize("entry", [{"lane": "responses"}, {}])
async def test_so_are_those_of_messages_for_a_server_of_which_nothing_is_known(entry: Mapping[str, Any]) -> None:
    answer, sent = await asked("openai/m", "/v1", "/v1/messages", MESSAGES, **entry)
    assert "cache_control" not in json.dumps(sent)
    assert "cache_control" in " ".join(answer["x_callgate"]["warnings"])
