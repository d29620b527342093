"""Results of tools in a history are text, often JSON: no result ends a chat, whatever a library makes of such texts."""

import json
from typing import Any

import pytest

from callgate.application import create_app
from callgate.calls.json_text import MAX_DEPTH, MAX_VALUES
from callgate.config.schema.whole import Config
from tests.chaos.scale import dealt
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.scripted_upstream import Reply, Upstream

pytestmark = [pytest.mark.anyio, pytest.mark.leaves("litellm", why="litellm keeps its thread for logging")]

RESULTS = {
    "deep": '{"a":' * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1),
    "very deep": "[" * 100_000 + "]" * 100_000,
    "deep and never closed": '{"a":' + "[" * 100_000,
    "behind blanks": "\u2003 \n" + '{"a":' * 20_000,
    "many values": '{"a":[' + "{}," * MAX_VALUES + "{}]}",
    "not a number": '{"a": NaN}',
    "a huge number": '{"a": 1e999}',
    "a number of many digits": '{"a": ' + "9" * 10_000 + "}",
    "many digits alone": "9" * 10_000,
    "half a surrogate pair": '{"a": "\\ud800"}',
    "a key twice": '{"path": "/a", "path": "/b"}',
    "cut": '{"a": ',
    "prose": "It is noon.",
}
LANES: dict[str, dict[str, Any]] = {
    "direct": {},
    "claude": {"provider": "anthropic", "lane": "auto"},
    "gemini": {"provider": "gemini", "lane": "auto"},
    "litellm": {"lane": "litellm"},
    "claude by litellm": {"provider": "anthropic", "lane": "litellm"},
    "gemini by litellm": {"provider": "gemini", "lane": "litellm"},
    "prompted": {"provider": "hosted_vllm", "entry": {"tool_calling": "hermes"}},
}
PATHS = {"gemini": "/v1beta", "anthropic": ""}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def config_of(upstream: Upstream, lane: str) -> Config:
    path = PATHS.get(LANES[lane].get("provider", ""), "/v1")
    return make_config(f"{upstream.root}{path}", **LANES[lane])


def chat(result: Any) -> dict[str, Any]:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": result},
    ]
    return {"model": "m", "messages": messages, "tools": [TOOL]}


@pytest.mark.parametrize("lane", LANES)
async def test_a_result_of_any_text_reaches_the_model(upstream: Upstream, lane: str) -> None:
    upstream.script("m", lambda _: Reply(text="fine"))
    async with serve(create_app(config_of(upstream, lane))) as url, http_client(url) as client:
        for place, (name, text) in enumerate(RESULTS.items()):
            for content in dealt((text, [{"type": "text", "text": text}]), 2, place + [*LANES].index(lane)):
                answer = await client.post("/v1/chat/completions", json=chat(content))
                assert answer.status_code == 200, (name, answer.text[:300])


@pytest.mark.parametrize("lane", ["gemini", "gemini by litellm"])
async def test_gemini_is_given_sound_objects_as_such_and_all_else_as_text(upstream: Upstream, lane: str) -> None:
    upstream.script("m", lambda _: Reply(text="fine"))
    sound = {"temperature": 21, "places": [{"name": "Paris"}]}
    texts = {"sound": json.dumps(sound), **RESULTS}
    async with serve(create_app(config_of(upstream, lane))) as url, http_client(url) as client:
        for text in texts.values():
            await client.post("/v1/chat/completions", json=chat(text))
    sent = [part_of(request.body) for request in upstream.requests]
    assert sent == [sound, *({"content": text} for text in RESULTS.values())]


def part_of(body: Any) -> Any:
    """Return what Gemini is told that the function returned."""
    [response] = [
        part.get("function_response") or part["functionResponse"]
        for content in body["contents"]
        for part in content["parts"]
        if "function_response" in part or "functionResponse" in part
    ]
    return response["response"]
