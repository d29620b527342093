"""Codex with a provider that is called OpenAI has its conversation compacted by the server, and works on past its limit.

Older versions ask `/responses/compact`, newer ones send a `compaction_trigger`.
"""

from pathlib import Path

import pytest

from callgate.application import create_app
from callgate.conversation.context import MARK, PROMPT
from tests.clients.coding_agents import CODEX_OF_OPENAI, CONTEXT, play
from tests.harness.configs import make_config
from tests.harness.needs import needs
from tests.harness.server import serve
from tests.scripted_upstream import Reply, RequestRecord, Upstream

pytestmark = [pytest.mark.anyio, pytest.mark.slow, needs(f"environment:{CODEX_OF_OPENAI.environment}")]

SUMMARY = "The code word is slate."


def is_asked_for_summary(request: RequestRecord) -> bool:
    return PROMPT in str(request.messages[-1]["content"])


def answer(request: RequestRecord) -> Reply:
    """Says that its prompt has nearly filled the context, until there is a summary in it."""
    said = str(request.messages)
    if is_asked_for_summary(request):
        return Reply(text=SUMMARY)
    tokens = 1000 if MARK in said else CONTEXT * 9 // 10
    usage = {"prompt_tokens": tokens, "completion_tokens": 10, "total_tokens": tokens + 10}
    if "code word?" not in said:
        return Reply(text="Noted.", usage=usage)
    return Reply(text="It is slate." if SUMMARY in said else "I do not know.", usage=usage)


async def test_codex_works_past_its_limit(upstream: Upstream, tmp_path: Path) -> None:
    upstream.script("m", answer)
    async with serve(create_app(make_config(upstream.url))) as url:
        played = await play(
            CODEX_OF_OPENAI, url, tmp_path, "The code word is slate.", "What is the code word?", "And the code word?"
        )
    assert sum(map(is_asked_for_summary, upstream.requests)) == 1
    said = [str(each) for each in played]
    assert "Noted." in said[0]
    assert "It is slate." in said[1]
    assert "It is slate." in said[2]
    assert not [event for each in played for event in each.events if event["type"] in ("error", "turn.failed")]
