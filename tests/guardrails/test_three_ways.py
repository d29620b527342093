"""What must not pass is stopped on each of its ways: from the client, from a tool, and from the model. On every API, whole and streamed."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.e2e.test_call_order import APIS, BOTH, body_for
from tests.harness import toolshed
from tests.harness.cards import CARD, shows_card
from tests.harness.clients import http_client
from tests.harness.configs import tool_entry
from tests.harness.served import served
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = pytest.mark.anyio

BLOCKS = {"kind": "patterns", "find": ["cards"], "then": "block"}
MASKS = {"kind": "patterns", "find": ["cards"]}
READ = Call("echo", {"text": f"card {CARD}."}, id="call_read")
ENDS = {
    "chat": '"finish_reason": *"content_filter"',
    "responses": '"reason": *"content_filter"',
    "messages": '"refusal"',
}


@pytest.fixture(autouse=True)
def _no_steps() -> None:
    toolshed.steps.clear()


def hook(at: Sequence[str], what: Mapping[str, Any] = BLOCKS, name: str = "cards") -> dict[str, Any]:
    return {"name": name, "at": list(at), **what}


async def asked(url: str, api: str, *, stream: bool, text: str = "go", **more: Any) -> Any:
    path, body = body_for(api, stream=stream, **more)
    if api == "responses":
        body["input"] = text
    else:
        body["messages"] = [{"role": "user", "content": text}]
    async with http_client(url) as client:
        return await client.post(path, json=body)


def text_in(answer: Any, api: str, *, stream: bool) -> str:
    """The text that a client has of an answer, put together."""
    if not stream:
        body = answer.json()
        if api == "chat":
            return body["choices"][0]["message"]["content"] or ""
        if api == "messages":
            return "".join(block.get("text", "") for block in body["content"])
        parts = [part for item in body["output"] if item["type"] == "message" for part in item["content"]]
        return "".join(part.get("text", "") for part in parts)
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    events = [json.loads(line) for line in lines]
    if api == "chat":
        return "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])
    if api == "messages":
        return "".join(event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta")
    return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")


@BOTH
@APIS
async def test_a_request_is_blocked(upstream: Upstream, api: str, stream: bool) -> None:
    upstream.script("m", [Reply(text="hello")])
    async with served(upstream, guardrails=[hook(["request"])]) as url:
        answer = await asked(url, api, stream=stream, text=f"my card is {CARD}")
    assert answer.status_code == 400
    assert "blocked by the guardrail `cards`" in answer.text
    assert not shows_card(answer.text)
    assert len(upstream.requests) == 0


@BOTH
@APIS
async def test_a_result_is_blocked_before_the_model_reads_it(upstream: Upstream, api: str, stream: bool) -> None:
    upstream.script("m", [Reply(calls=[READ]), Reply(text="done")])
    async with served(upstream, "echo", guardrails=[hook(["result"])]) as url:
        answer = await asked(url, api, stream=stream)
    assert text_in(answer, api, stream=stream) == "done"
    results = [message for message in upstream.requests[1].messages if message["role"] == "tool"]
    assert "held back, blocked by the guardrail `cards`" in results[0]["content"]
    assert not shows_card(results[0]["content"])


@BOTH
@APIS
async def test_an_answer_is_blocked(upstream: Upstream, api: str, stream: bool) -> None:
    upstream.script("m", [Reply(text=f"Your card is {CARD}, is it not?")])
    async with served(upstream, guardrails=[hook(["answer"])]) as url:
        answer = await asked(url, api, stream=stream)
    assert answer.status_code == 200
    assert not shows_card(answer.text)
    assert re.search(ENDS[api], answer.text), answer.text


@BOTH
@APIS
async def test_a_request_is_masked(upstream: Upstream, api: str, stream: bool) -> None:
    upstream.script("m", [Reply(text="hello")])
    async with served(upstream, guardrails=[hook(["request"], MASKS)]) as url:
        answer = await asked(url, api, stream=stream, text=f"my card is {CARD}.")
    assert text_in(answer, api, stream=stream) == "hello"
    assert "my card is [CARD]." in json.dumps(upstream.requests[0].body)
    assert not shows_card(json.dumps(upstream.requests[0].body))


@APIS
async def test_words_that_begin_like_data_are_words(upstream: Upstream, api: str) -> None:
    upstream.script("m", [Reply(text="hello")])
    async with served(upstream, guardrails=[hook(["request"])]) as url:
        answers = [
            await asked(url, api, stream=False, text=f"{start}{CARD}")
            for start in ("data: ", "data:x;base64,", "DATA:")
        ]
    assert [answer.status_code for answer in answers] == [400] * 3
    assert len(upstream.requests) == 0


@BOTH
@APIS
async def test_a_result_is_masked(upstream: Upstream, api: str, stream: bool) -> None:
    upstream.script("m", [Reply(calls=[READ]), Reply(text="done")])
    async with served(upstream, "echo", guardrails=[hook(["result"], MASKS)]) as url:
        await asked(url, api, stream=stream)
    results = [message for message in upstream.requests[1].messages if message["role"] == "tool"]
    assert results[0]["content"] == "card [CARD]."


@BOTH
@APIS
async def test_an_answer_is_masked(upstream: Upstream, api: str, stream: bool) -> None:
    upstream.script("m", [Reply(text=f"Your card is {CARD}, is it not?")])
    async with served(upstream, guardrails=[hook(["answer"], MASKS)]) as url:
        answer = await asked(url, api, stream=stream)
    assert text_in(answer, api, stream=stream) == "Your card is [CARD], is it not?"
    assert not shows_card(answer.text)


@BOTH
@APIS
async def test_arguments_are_masked_before_the_call_runs(upstream: Upstream, api: str, stream: bool) -> None:
    upstream.script("m", [Reply(calls=[Call("step", {"label": CARD}, id="c")]), Reply(text="done")])
    async with served(upstream, "step", guardrails=[hook(["arguments"], MASKS)]) as url:
        await asked(url, api, stream=stream)
    assert toolshed.steps == ["+[CARD]", "-[CARD]"]
    assert not shows_card(json.dumps(upstream.requests[1].body))


@BOTH
@APIS
async def test_a_call_with_blocked_arguments_does_not_run(upstream: Upstream, api: str, stream: bool) -> None:
    upstream.script("m", [Reply(calls=[Call("step", {"label": CARD}, id="c")]), Reply(text="done")])
    async with served(upstream, "step", guardrails=[hook(["arguments"])]) as url:
        answer = await asked(url, api, stream=stream)
    assert toolshed.steps == []
    assert text_in(answer, api, stream=stream) == "done"
    results = [message for message in upstream.requests[1].messages if message["role"] == "tool"]
    assert "Not run: blocked by the guardrail `cards`" in results[0]["content"]
    assert not shows_card(json.dumps(upstream.requests[1].body))


async def test_tools_are_as_they_were_without_a_hook(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[READ]), Reply(text=CARD)])
    async with served(upstream, {**tool_entry("echo")}) as url:
        answer = await asked(url, "chat", stream=False)
    assert text_in(answer, "chat", stream=False) == CARD


async def test_a_call_that_no_model_makes_is_judged_too(upstream: Upstream) -> None:
    hooks = [
        hook(["arguments"], {"kind": "patterns", "find": ["emails"], "then": "block"}),
        hook(["result"], MASKS, "masks"),
    ]
    async with served(upstream, "echo", guardrails=hooks) as url, http_client(url) as client:
        masked = (await client.post("/v1/tools/echo/call", json={"arguments": {"text": CARD}})).json()
        blocked = (await client.post("/v1/tools/echo/call", json={"arguments": {"text": "a@example.org"}})).json()
    assert masked["text"] == "[CARD]"
    assert blocked["outcome"] == "refused"
    assert "Not run: blocked by the guardrail `cards`" in blocked["text"]
