"""Claude behind its own API, through the whole server: the provider checks each history as strictly as Anthropic does."""

import json
from dataclasses import replace
from typing import Any

import pytest

from callgate.application import create_app
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = [pytest.mark.anyio, pytest.mark.leaves("litellm", why="litellm keeps its thread for logging")]

MODEL = "claude-sonnet-4-5"
GEMINI = "gemini-2.5-flash"
ASKING = [{"role": "user", "content": "How warm is it in Lisbon, and what is 2 + 2?"}]
CALLS = [Call("get_weather", {"city": "Lisbon"}), Call("add", {"a": 2, "b": 2})]


async def ask_translated(upstream: Upstream, *, stream: bool, model: str = MODEL) -> tuple[str, dict[str, Any]]:
    """The text of an answer and what is said of its turns."""
    base, provider = (f"{upstream.root}/v1beta", "gemini") if model == GEMINI else (upstream.root, "anthropic")
    config = make_config(base, models=[model], provider=provider, tools=("get_weather", "add"), lane="auto")
    question = {"model": model, "messages": ASKING, "stream": stream}
    async with serve(create_app(config)) as url, http_client(url) as client:
        answer = await client.post("/v1/chat/completions", json=question)
        assert answer.status_code == 200, answer.text
    if not stream:
        body = answer.json()
        return body["choices"][0]["message"]["content"], body["x_callgate"]
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    [account] = [event["x_callgate"] for event in events if "turns" in (event.get("x_callgate") or {})]
    return "".join(delta.get("content") or "" for delta in deltas), account


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_claudes_calls_are_run_and_its_thinking_goes_back_signed(upstream: Upstream, stream: bool) -> None:
    upstream.script(MODEL, [Reply(reasoning="I look it up.", calls=CALLS), Reply(text="21 C, and 4.")])
    text, account = await ask_translated(upstream, stream=stream)
    assert text == "21 C, and 4."
    assert [turn["finish_reason"] for turn in account["turns"]] == ["tool_use", "end_turn"]
    assert [turn["lane"] for turn in account["turns"]] == ["translated", "translated"]
    assert not any("finish_reason_rewritten" in turn for turn in account["turns"])
    assistant, results = upstream.requests[1].body["messages"][1:]
    assert [block["type"] for block in assistant["content"]] == ["thinking", "tool_use", "tool_use"]
    assert assistant["content"][0]["signature"] == "c2lnbmVk"
    assert [block["type"] for block in results["content"]] == ["tool_result", "tool_result"]


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_a_call_of_claudes_that_was_cut_is_not_run(upstream: Upstream, stream: bool) -> None:
    upstream.script(MODEL, [Reply(calls=CALLS[:1], finish="length"), Reply(text="Once more?")])
    if stream:
        piece = Reply(calls=[Call("get_weather", '{"city": "Lis')], finish="length")
        upstream.script(MODEL, [piece, Reply(text="Once more?")])
    _, account = await ask_translated(upstream, stream=stream)
    first = account["turns"][0]
    assert first["finish_reason"] == "max_tokens"
    assert [(call["verdict"], call.get("flaw")) for call in first["calls"]] == [("broken", "truncated")]


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_geminis_calls_are_run_and_their_signatures_go_back(upstream: Upstream, stream: bool) -> None:
    signed = [replace(CALLS[0], extras={"thoughtSignature": "c2lnbmVk"}), CALLS[1]]
    upstream.script(GEMINI, [Reply(calls=signed), Reply(text="21 C, and 4.")])
    text, account = await ask_translated(upstream, stream=stream, model=GEMINI)
    assert text == "21 C, and 4."
    assert [(turn["lane"], turn["finish_reason"]) for turn in account["turns"]] == 2 * [("translated", "STOP")]
    assert account["turns"][0]["findings"] == ["nonstandard_finish_reason", "tool_calls_with_stop"]
    calls, results = upstream.requests[1].body["contents"][1:]
    assert [part["function_call"]["name"] for part in calls["parts"]] == ["get_weather", "add"]
    assert calls["parts"][0]["thoughtSignature"] == "c2lnbmVk"
    assert [part["function_response"]["name"] for part in results["parts"]] == ["get_weather", "add"]


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_calls_that_say_the_same_are_all_sent_to_gemini(upstream: Upstream, stream: bool) -> None:
    add = Call("add", {"a": 2, "b": 2})
    upstream.script(GEMINI, [Reply(calls=[add, CALLS[0], add, add]), Reply(text="4.")])
    text, _ = await ask_translated(upstream, stream=stream, model=GEMINI)
    assert text == "4."
    calls, results = upstream.requests[1].body["contents"][1:]
    assert [part["function_call"]["name"] for part in calls["parts"]] == ["add", "get_weather", "add", "add"]
    assert [part["function_call"]["args"] for part in calls["parts"] if part["function_call"]["name"] == "add"] == 3 * [
        {"a": 2, "b": 2}
    ]
    assert len(results["parts"]) == 4
