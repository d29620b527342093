"""Where the path names the model, it decides which hooks look."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.guardrails.test_three_ways import MASKS, hook
from tests.harness.cards import CARD, shows_card
from tests.harness.clients import http_client
from tests.harness.served import served
from tests.scripted_upstream import Reply, Upstream

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("named", [{}, {"model": "m"}, {"model": None}, {"model": 5}])
async def test_the_model_in_the_path_decides_which_hooks_look(upstream: Upstream, named: Mapping[str, Any]) -> None:
    upstream.script("other", [Reply(text="hello")])
    hooks = [hook(["request"], {**MASKS, "models": ["other"]})]
    body = {**named, "messages": [{"role": "user", "content": CARD}]}
    async with (
        served(upstream, guardrails=hooks, models=["m", "other"]) as url,
        http_client(url) as client,
    ):
        answer = await client.post("/openai/deployments/other/chat/completions", json=body)
    assert answer.status_code == 200
    sent = json.dumps([request.body for request in upstream.requests])
    assert not shows_card(sent)
    assert "[CARD]" in sent
