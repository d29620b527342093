"""The arguments of calls in a history are JSON inside a string: read with bounds before a library sees them, on every lane."""

import json
from typing import Any

import httpx
import pytest

from callgate.application import create_app
from callgate.calls.json_text import MAX_DEPTH, MAX_VALUES
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.scripted_upstream import Reply, Upstream

pytestmark = [pytest.mark.anyio, pytest.mark.leaves("litellm", why="litellm keeps its thread for logging")]

DEEP = '{"a":' * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1)
ATTACKS = {
    "deep": DEEP,
    "deep and never closed": '{"a":' + "[" * 2_000_000,
    "many keys": "{" + ",".join(f'"k{at}":1' for at in range(MAX_VALUES + 1)) + "}",
    "many empty objects": '{"a":[' + "{}," * MAX_VALUES + "{}]}",
    "a key twice": '{"path": "/a", "path": "/b"}',
    "a huge number": '{"a": 1e999}',
    "a number of a million digits": '{"a": ' + "9" * 1_000_000 + "}",
}
BROKEN = {"cut": '{"path": "/a', "prose": "the file /a", "a long text": "a" * 2_000_000}
LANES: dict[str, dict[str, Any]] = {
    "claude": {"provider": "anthropic", "lane": "auto"},
    "gemini": {"provider": "gemini", "lane": "auto"},
    "cohere": {"provider": "cohere", "lane": "auto"},
    "litellm": {"provider": "openai", "lane": "litellm"},
    "prompted": {"provider": "hosted_vllm", "lane": "direct", "entry": {"tool_calling": "hermes"}},
    "responses": {"provider": "openai", "lane": "responses"},
}
CALLS = (
    lambda text: {"tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": text}}]},
    lambda text: {"function_call": {"name": "f", "arguments": text}},
)
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def chat(text: str, *, legacy: bool = False) -> dict[str, Any]:
    answer = {"role": "function", "name": "f", "content": "ok"} if legacy else {"role": "tool", "tool_call_id": "c"}
    messages = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": None, **CALLS[legacy](text)},
        {"content": "ok", **answer},
    ]
    return {"model": "m", "messages": messages, "tools": [TOOL]}


def response(text: str) -> dict[str, Any]:
    items = [
        {"role": "user", "content": "?"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": text},
        {"type": "function_call_output", "call_id": "c", "output": "ok"},
    ]
    return {"model": "m", "input": items, "store": False}


def error_of(answer: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = answer.json()["error"]
    return error


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails where litellm is given the messages of a request."""

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("litellm was given the messages")

    monkeypatch.setattr("litellm.utils.validate_and_fix_openai_messages", never)
    monkeypatch.setattr("litellm.acompletion", never)


@pytest.mark.usefixtures("no_library")
@pytest.mark.parametrize("lane", LANES)
async def test_arguments_that_a_library_could_not_bear_are_refused_by_their_place(
    upstream: Upstream, lane: str
) -> None:
    async with serve(create_app(make_config(upstream.url, **LANES[lane]))) as url, http_client(url) as client:
        for name, text in ATTACKS.items():
            for stream in (False, True):
                answer = await client.post("/v1/chat/completions", json=chat(text) | {"stream": stream})
                assert answer.status_code == 400, (name, answer.text[:300])
                assert error_of(answer)["param"] == "messages[1].tool_calls[0].function.arguments", name
                assert len(answer.content) < 1000, name
            answer = await client.post("/v1/chat/completions", json=chat(text, legacy=True))
            assert (answer.status_code, error_of(answer)["code"]) == (400, "invalid_arguments"), name
            answer = await client.post("/v1/responses", json=response(text))
            assert (answer.status_code, error_of(answer)["param"]) == (400, "input[1].arguments"), name
    assert list(upstream.requests) == []


@pytest.mark.usefixtures("no_library")
@pytest.mark.parametrize("lane", ["claude", "gemini", "cohere"])
async def test_a_text_that_is_no_object_is_refused_where_the_provider_takes_objects(
    upstream: Upstream, lane: str
) -> None:
    async with serve(create_app(make_config(upstream.url, **LANES[lane]))) as url, http_client(url) as client:
        for name, text in BROKEN.items():
            answer = await client.post("/v1/chat/completions", json=chat(text))
            assert answer.status_code == 400, name
            assert error_of(answer)["param"] == "messages[1].tool_calls[0].function.arguments"
            assert len(answer.content) < 1000, "the text is not quoted"


@pytest.mark.usefixtures("no_library")
async def test_the_values_of_all_calls_of_a_history_are_counted_together(upstream: Upstream) -> None:
    """Each call has a tenth of what one may have, and some more."""
    text = '{"a":[' + "0," * (MAX_VALUES // 10) + "0]}"
    body = chat(text)
    [_, calling, result] = body["messages"]
    body["messages"] += [calling, result] * 9
    async with serve(create_app(make_config(upstream.url, **LANES["claude"]))) as url, http_client(url) as client:
        answer = await client.post("/v1/chat/completions", json=body)
        many = [*response(text)["input"][:1], *response(text)["input"][1:] * 10]
        others = await client.post("/v1/responses", json=response(text) | {"input": many})
    assert (answer.status_code, error_of(answer)["code"]) == (400, "invalid_arguments")
    assert "all calls together" in error_of(answer)["message"]
    assert (others.status_code, error_of(others)["code"]) == (400, "invalid_arguments")


@pytest.mark.parametrize("lane", ["direct", "prompted"])
async def test_what_a_lane_can_hand_on_as_text_is_handed_on(upstream: Upstream, lane: str) -> None:
    texts = {**BROKEN, **(ATTACKS if lane == "direct" else {})}
    upstream.script("m", lambda _: Reply(text="fine"))
    config = make_config(upstream.url, **LANES.get(lane, {}))
    async with serve(create_app(config)) as url, http_client(url) as client:
        for name, text in texts.items():
            answer = await client.post("/v1/chat/completions", json=chat(text))
            assert answer.status_code == 200, (name, answer.text[:300])
    if lane == "direct":
        sent = [each.body["messages"][1]["tool_calls"][0]["function"]["arguments"] for each in upstream.requests]
        assert sent == list(texts.values())


async def test_a_history_with_a_hidden_turn_and_deep_arguments_is_no_failure_of_the_server(upstream: Upstream) -> None:
    from tests.scripted_upstream import Call

    upstream.script("m", [Reply(calls=[Call("get_time"), Call("f", {})]), Reply(text="fine")])
    config = make_config(upstream.url, tools=["get_time"])
    async with serve(create_app(config)) as url, http_client(url) as client:
        first = await client.post("/v1/chat/completions", json={**chat("{}"), "messages": chat("{}")["messages"][:1]})
        message = first.json()["choices"][0]["message"]
        id = message["tool_calls"][0]["id"]
        message["tool_calls"][0]["function"]["arguments"] = '{"a":' + "[" * 100_000
        returned = [
            {"role": "user", "content": "?"},
            message,
            {"role": "tool", "tool_call_id": id, "content": "ok"},
        ]
        answer = await client.post("/v1/chat/completions", json={**chat("{}"), "messages": returned})
    assert answer.status_code < 500, answer.text


async def test_files_full_of_commas_are_no_values(upstream: Upstream) -> None:
    """What a coding agent writes: as many commas as one likes, inside strings."""
    upstream.script("m", lambda _: Reply(text="fine"))
    config = make_config(upstream.url, **LANES["prompted"])
    text = json.dumps({"path": "/a", "content": "[1,2,3]," * 100_000})
    async with serve(create_app(config)) as url, http_client(url) as client:
        answer = await client.post("/v1/chat/completions", json=chat(text))
    assert answer.status_code == 200, answer.text[:300]
