"""The oldest results of a run become one line each, once its prompt passes a share of the model's context."""

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from callgate.application import create_app
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.served import served_to_http
from tests.harness.server import serve
from tests.harness.toolshed import REPORT_BYTES
from tests.scripted_upstream import Call, Reply, RequestRecord, Upstream

pytestmark = [pytest.mark.anyio, pytest.mark.leaves("litellm", why="litellm keeps its thread for logging")]

TURNS = 12
CONTEXT = 128_000
"""Tokens that the scripted model takes, at four bytes each."""
LIMITED = {"context": {"clear_results_above": 0.6, "tokens": CONTEXT}}
LOOP = {"max_iterations": 40}
POINTER = re.compile(r'read_more \{"id": "(kept_[0-9a-f]{24})", "offset": 0\}')
CLEARED = re.compile(r"^\[This result was cleared to make room\.")
ASK = [{"role": "user", "content": "Read all reports, then add up the secrets of the first two."}]


def tokens_of(request: RequestRecord) -> int:
    return len(json.dumps([request.messages, request.body.get("tools")], ensure_ascii=False)) // 4


def texts_of_results(request: RequestRecord) -> list[str]:
    """The results in a prompt, in their order; in Anthropic's shape they are blocks."""
    texts = [str(message["content"]) for message in request.messages if message["role"] == "tool"]
    for message in request.messages:
        if isinstance(message["content"], list):
            texts += [str(b.get("content")) for b in message["content"] if b.get("type") == "tool_result"]
    return texts


def reader(request: RequestRecord) -> Reply:
    """Reads twelve reports, then the first two again, whose secrets it adds up."""
    tokens = tokens_of(request)
    if tokens > CONTEXT:
        error = {"message": f"{tokens} tokens are more than {CONTEXT}", "code": "context_length_exceeded"}
        return Reply(status=400, body={"error": error})
    usage = {"prompt_tokens": tokens, "completion_tokens": 10, "total_tokens": tokens + 10}
    results = texts_of_results(request)
    if len(results) < TURNS:
        return Reply(calls=[Call("report", {"number": len(results) + 1})], usage=usage)
    secrets = []
    for number in (1, 2):
        match = re.search(rf"The secret of report {number} is (\d+)", "".join(results))
        if match is None:
            pointer = POINTER.search(results[number - 1])
            assert pointer is not None, results[number - 1][:200]
            return Reply(calls=[Call("read_more", {"id": pointer[1], "offset": 0})], usage=usage)
        secrets.append(int(match[1]))
    return Reply(text=f"The sum is {sum(secrets)}.", usage=usage)


ANSWER = f"The sum is {7919 * 3}."


def largest(upstream: Upstream) -> int:
    return max(map(tokens_of, upstream.requests))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_twelve_long_results_fit_and_their_facts_are_found_again(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", reader)
    async with served_to_http(upstream, "report", entry=LIMITED, loop=LOOP) as client:
        question = {"model": "m", "messages": ASK, "stream": stream}
        answer = await client.post("/v1/chat/completions", json=question)
    assert answer.status_code == 200, answer.text
    assert TURNS * REPORT_BYTES // 4 > CONTEXT
    assert largest(upstream) <= CONTEXT
    text = answer.text
    said = text
    if stream:
        chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        said = "".join(c["delta"].get("content") or "" for chunk in chunks for c in chunk["choices"])
    assert ANSWER in said
    assert '"kind":"clear_results"' in text
    results = texts_of_results(upstream.requests[-1])
    assert CLEARED.match(results[2])
    assert len(results[-1]) > REPORT_BYTES / 2, "the newest stays"


async def test_without_the_setting_it_does_not_fit(upstream: Upstream) -> None:
    upstream.script("m", reader)
    async with served_to_http(upstream, "report", loop=LOOP) as client:
        answer = await client.post("/v1/chat/completions", json={"model": "m", "messages": ASK})
    assert answer.status_code == 400
    assert "tokens are more than" in answer.text


@pytest.mark.parametrize("face", ["responses", "messages"])
async def test_it_fits_on_every_api(upstream: Upstream, face: str) -> None:
    upstream.script("m", reader)
    bodies: Mapping[str, Any] = {
        "responses": {"model": "m", "input": ASK},
        "messages": {"model": "m", "messages": ASK, "max_tokens": 1000},
    }
    async with served_to_http(upstream, "report", entry=LIMITED, loop=LOOP) as client:
        answer = await client.post(f"/v1/{face}", json=bodies[face])
    assert answer.status_code == 200, answer.text
    assert ANSWER in answer.text
    changes = answer.json()["x_callgate"]["context"]
    assert {change["kind"] for change in changes} == {"clear_results"}
    assert sum(change["count"] for change in changes) >= TURNS - 4
    assert largest(upstream) <= CONTEXT


async def test_it_fits_where_anthropics_own_format_is_kept(upstream: Upstream) -> None:
    upstream.script("claude-x", reader)
    options: Any = {"provider": "anthropic", "lane": "translated", "models": ["claude-x"]}
    config = make_config(upstream.root, tools=["report"], entry=LIMITED, loop=LOOP, **options)
    async with serve(create_app(config)) as url, http_client(url) as client:
        mark = {"type": "text", "text": ASK[0]["content"], "cache_control": {"type": "ephemeral"}}
        body = {"model": "claude-x", "messages": [{"role": "user", "content": [mark]}], "max_tokens": 1000}
        answer = await client.post("/v1/messages", json=body)
    assert answer.status_code == 200, answer.text
    assert ANSWER in answer.text
    assert largest(upstream) <= CONTEXT
    first_blocks = [request.messages[0]["content"] for request in upstream.requests]
    assert all(blocks == [mark] for blocks in first_blocks)
