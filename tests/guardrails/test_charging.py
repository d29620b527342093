"""What a model has said before a hook ended its answer is charged to the key all the same."""

import pytest

from tests.e2e.test_limits import served_with_keys
from tests.guardrails.test_three_ways import READ, hook
from tests.harness.cards import CARD
from tests.scripted_upstream import Reply, Upstream

pytestmark = pytest.mark.anyio

WORDS = "word " * 1000
USAGE = {"prompt_tokens": 30, "completion_tokens": 2000, "total_tokens": 2030}
MOST = 3000


@pytest.mark.parametrize("before", [[], [Reply(calls=[READ])]], ids=["first turn", "second turn"])
@pytest.mark.parametrize("is_told", [True, False], ids=["told", "untold"])
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_a_blocked_answer_is_charged(
    upstream: Upstream, before: list[Reply], stream: bool, is_told: bool
) -> None:
    usage = USAGE if is_told else None
    blocked = Reply(text=f"{WORDS} {CARD} {WORDS}", usage=usage)
    upstream.script("m", [*before, blocked, Reply(text="hi", usage={"prompt_tokens": 0, "completion_tokens": 0})])
    keys = {"tokens_per_minute": 1_000_000}
    async with served_with_keys(upstream, alice=keys, tools=["echo"], guardrails=[hook(["answer"])]) as client:
        ask = {"model": "m", "messages": [{"role": "user", "content": "go"}]}
        answer = await client.post("/v1/chat/completions", json={**ask, "stream": stream, "max_tokens": MOST})
        after = await client.post("/v1/chat/completions", json={**ask, "max_tokens": 1})
    assert "content_filter" in answer.text
    spent = 1_000_000 - int(after.headers["x-ratelimit-remaining-tokens"])
    assert spent > 2000
