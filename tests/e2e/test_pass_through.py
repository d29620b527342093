"""Requests without a server-side tool: what the provider sends is what the client gets, and the rest of the server still holds."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from callgate.application import create_app
from callgate.config.schema.whole import Config
from tests.harness.configs import config_dict, make_config
from tests.harness.server import serve
from tests.harness.wire import raw_connection, raw_post
from tests.models.wire import Request, Wire, raw_provider
from tests.scripted_upstream import Cut, ErrorEvent, Hang, Reply, Upstream

pytestmark = pytest.mark.anyio

ASKING = [{"role": "user", "content": "hello"}]
USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
STREAMING = {"stream": True, "stream_options": {"include_usage": True}}
ODD = {
    "id": "x",
    "object": "chat.completion",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hi", "new": [1e3]},
            "finish_reason": "stop",
            "odd": None,
        },
        {
            "index": 1,
            "message": {"role": "assistant", "content": "ho"},
            "finish_reason": "length",
            "logprobs": {"a": 1},
        },
    ],
    "usage": USAGE,
}


@contextlib.asynccontextmanager
async def passing(provider: Upstream, **options: Any) -> AsyncIterator[str]:
    async with serve(create_app(make_config(provider.url, tools=(), **options))) as url:
        yield url


def chat_body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": ASKING, **fields}


async def test_a_body_reaches_the_client_as_it_came_under_a_run_of_ours(upstream: Upstream) -> None:
    upstream.script("m", [Reply(body=ODD)])
    async with passing(upstream) as url:
        answer = await raw_post(url, chat_body(n=2, logprobs=True, top_k=3, metadata={"tools": "none", "user": "1"}))
    assert json.loads(answer.body) == ODD
    assert answer.headers["x-callgate-run"].startswith("run_")
    asked = upstream.requests[0].body
    assert (asked["n"], asked["logprobs"], asked["top_k"], asked["metadata"]) == (2, True, 3, {"user": "1"})


async def test_a_stream_reaches_the_client_as_it_came_and_is_counted(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="one two three four", usage=USAGE)])
    async with passing(upstream) as url:
        answer = await raw_post(url, chat_body(**STREAMING))
        async with httpx2.AsyncClient(base_url=url, trust_env=False) as plain:
            metrics = (await plain.get("/metrics")).text
    assert "".join(choice["delta"].get("content") or "" for each in answer.chunks for choice in each["choices"]) == (
        "one two three four"
    )
    assert answer.data[-1] == "[DONE]"
    assert answer.chunks[-1]["usage"] == USAGE
    assert 'callgate_tokens_total{kind="prompt",model="m"} 5.0' in metrics
    assert 'callgate_chats_total{ending="answered",finish_reason="stop",model="m"} 1.0' in metrics


async def test_usage_that_was_not_requested_is_counted_and_not_shown(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="hi", usage=USAGE)])
    async with passing(upstream) as url:
        answer = await raw_post(url, chat_body(stream=True))
        async with httpx2.AsyncClient(base_url=url, trust_env=False) as plain:
            metrics = (await plain.get("/metrics")).text
    assert all(each["choices"] for each in answer.chunks)
    assert 'callgate_tokens_total{kind="completion",model="m"} 2.0' in metrics


async def test_a_stream_that_breaks_off_ends_in_an_error_and_no_half_event(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="a text of some length", fault=Cut(after=3, into=20))])
    async with passing(upstream) as url:
        answer = await raw_post(url, chat_body(stream=True))
    assert answer.status == 200
    assert answer.chunks[-1]["error"]["code"] == "upstream_broke_off"
    assert answer.data[-1] == "[DONE]"
    assert all(text == "[DONE]" or json.loads(text) for text in answer.data)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_what_fails_before_the_first_content_is_asked_again_and_then_elsewhere(
    upstream: Upstream, stream: bool
) -> None:
    upstream.script("m", [Reply(status=503), Reply(status=503), Reply(status=503)])
    upstream.script("other", [Reply(text="from the other")])
    config = config_dict(upstream.url, models=("m", "other"))
    config["model_list"][0]["fallbacks"] = ["other"]
    async with serve(create_app(Config.model_validate(config))) as url:
        answer = await raw_post(url, chat_body(stream=stream))
    assert answer.status == 200
    assert b"other" in answer.body
    assert [request.body["model"] for request in upstream.requests] == ["m", "m", "m", "other"]


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_a_refusal_keeps_its_meaning(upstream: Upstream, stream: bool) -> None:
    body = {
        "error": {"message": "bad temperature", "type": "invalid_request_error", "param": "temperature", "code": None}
    }
    upstream.script("m", [Reply(status=400, body=body)])
    async with passing(upstream) as url:
        answer = await raw_post(url, chat_body(stream=stream, temperature=1))
    assert answer.status == 400
    assert json.loads(answer.body)["error"]["param"] == "temperature"


async def test_an_error_in_the_middle_of_a_stream_has_our_shape(upstream: Upstream) -> None:
    upstream.script(
        "m", [Reply(text="some words", fault=ErrorEvent(after=2, message="key sk-abcdef1234567890 failed"))]
    )
    async with passing(upstream) as url:
        answer = await raw_post(url, chat_body(stream=True))
    assert b'"type":"server_error"' in answer.body
    assert b"sk-abcdef1234567890" not in answer.body


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_an_answer_in_the_other_shape_is_translated(stream: bool) -> None:
    choice = {"index": 0, "finish_reason": "stop"}
    whole = {"choices": [{**choice, "message": {"role": "assistant", "content": "hi"}}]}
    event = json.dumps({"choices": [{**choice, "delta": {"content": "hi"}}]})

    async def answer_otherwise(request: Request, wire: Wire) -> None:
        await wire.whole(json.dumps(whole) if stream else f"data: {event}\n\ndata: [DONE]\n\n")

    async with raw_provider(answer_otherwise) as provider:
        config = make_config(f"{provider.url}/v1", tools=())
        async with serve(create_app(config)) as url:
            answers = [await raw_post(url, chat_body(stream=stream)) for _ in range(2)]
    for answer in answers:
        if stream:
            assert answer.data[-1] == "[DONE]"
            said = [one["delta"].get("content") or "" for each in answer.chunks for one in each["choices"]]
            assert "".join(said) == "hi"
        else:
            assert json.loads(answer.body)["choices"][0]["message"]["content"] == "hi"
    assert len(provider.requests) == 2, "each is asked once"


async def test_a_client_that_leaves_takes_the_providers_request_along(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="some words", fault=Hang(after=2))])
    async with passing(upstream) as url, asyncio.timeout(30):
        async with raw_connection(url) as connection:
            await connection.post("/v1/chat/completions", chat_body(stream=True))
            await connection.until(b"data:")
        await upstream.requests[0].closed.wait()
    assert upstream.requests[0].outcome == "client_disconnected"
