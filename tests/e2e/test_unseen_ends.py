"""Where nobody sees how a provider ended an answer on litellm's lane, the client gets its text, and nothing of the turn runs."""

import json
from typing import Any

import pytest

from callgate.application import create_app
from callgate.models.litellm_lane.tap import Exchange
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.harness.wire import raw_post
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.leaves("litellm", why="litellm keeps its thread for logging"),
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings"),
]
OURS = Call("get_weather", {"city": "Lisbon"})
THEIRS = Call("own", {})
OWN = {"type": "function", "function": {"name": "own", "parameters": {"type": "object", "properties": {}}}}
ASKED = {"model": "m", "messages": [{"role": "user", "content": "Go on."}], "tools": [OWN]}


def unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Exchange, "take", lambda *arguments: None)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("call", [OURS, THEIRS], ids=["ours", "theirs"])
async def test_the_text_comes_and_no_call_runs_or_is_handed_out(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch, call: Call, stream: bool
) -> None:
    unseen(monkeypatch)
    config = make_config(upstream.url, tools=["get_weather"], lane="litellm")
    async with serve(create_app(config)) as url:
        upstream.script("m", [Reply(text="I look.", calls=[call])])
        answer = await raw_post(url, {**ASKED, "stream": stream})
    assert answer.status == 200
    parts = payloads(answer.body) if stream else [json.loads(answer.body)]
    choices = [choice for part in parts for choice in part.get("choices", ())]
    said = [choice.get("delta") or choice.get("message") or {} for choice in choices]
    assert "".join(one.get("content") or "" for one in said) == "I look."
    assert not any(one.get("tool_calls") for one in said)
    assert [choice["finish_reason"] for choice in choices if choice.get("finish_reason")] == ["length"]
    [turn] = next(part["x_callgate"] for part in parts if "x_callgate" in part)["turns"]
    assert "end_not_seen" in turn["findings"]
    assert [(found["name"], found["verdict"]) for found in turn["calls"]] == [(call.name, "broken")]
    assert len(upstream.requests) == 1, "it is no failure that is asked again"


async def test_on_litellms_word_they_run(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    unseen(monkeypatch)
    config = make_config(upstream.url, tools=["get_weather"], lane="litellm", entry={"trust_litellm": "on"})
    async with serve(create_app(config)) as url:
        upstream.script("m", [Reply(calls=[OURS]), Reply(text="Mild.")])
        answer = await raw_post(url, ASKED)
    body: dict[str, Any] = json.loads(answer.body)
    assert body["choices"][0]["message"]["content"] == "Mild."
    assert len(upstream.requests) == 2


def payloads(body: bytes) -> list[dict[str, Any]]:
    lines = (line.removeprefix("data: ") for line in body.decode().splitlines() if line.startswith("data: "))
    return [json.loads(line) for line in lines if line != "[DONE]"]
