"""`llm-comply` checks answers against OpenAI's and Anthropic's own specifications. They run clean, without a warning."""

import json
from typing import Any

import pytest

from callgate.application import create_app
from tests.clients.behaviours import KEY
from tests.clients.served import Served
from tests.harness.configs import make_config
from tests.harness.environment import Environment
from tests.harness.needs import needs
from tests.harness.process import output_of
from tests.harness.server import serve
from tests.scripted_upstream import Call, Reply, Upstream
from tests.scripted_upstream.records import RequestRecord

pytestmark = [pytest.mark.anyio, pytest.mark.slow, needs("environment:llm-comply")]

MODEL, CLAUDE = "gpt-5", "claude-sonnet-4-5"
"""It checks reasoning only where the name promises some."""
USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 7,
    "total_tokens": 16,
    "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 4, "audio_tokens": 0},
}
PATIENCE = 30.0


async def test_its_chat_checks_run_clean(served: Served) -> None:
    async with served.free() as provider:
        provider.script(MODEL, _answer)
        report = await _checked(served.url)
    notes = {
        f"{result['name']}: {note}"
        for result in report["results"]
        for note in (*result.get("errors", ()), *result.get("warnings", ()))
    }
    assert not notes
    assert [result["status"] for result in report["results"]] == ["passed"] * 9


async def test_its_checks_of_responses_pass(served: Served) -> None:
    async with served.free() as provider:
        provider.script(MODEL, _answer_with_tools)
        report = await _checked(served.url, "open-responses")
    assert [result["status"] for result in report["results"]] == ["passed"] * 13
    assert {result["id"] for result in report["results"] if result.get("warnings")} <= {"compact-response"}


def _answer_with_tools(request: RequestRecord) -> Reply:
    if request.body.get("tools"):
        return Reply(calls=[Call("get_weather", {"location": "San Francisco"})], usage=USAGE)
    return Reply(text="One, two, three.", reasoning="They want it short.", usage=USAGE)


def _answer(request: RequestRecord) -> Reply:
    if request.body.get("tool_choice") == "required":
        return Reply(calls=[Call("get_weather", {"location": "San Francisco"})], usage=USAGE)
    return Reply(text="One, two, three.", reasoning="They want it short.", usage=USAGE)


async def _checked(url: str, api: str = "openai-chat", model: str = MODEL) -> Any:
    options = ["--base-url", f"{url}/v1", "--api-key", KEY, "--model", model, "--format", api, "--json"]
    command = (str(Environment("llm-comply").interpreter), "-m", "llm_comply.cli", *options)
    output, log = await output_of(*command, seconds=PATIENCE)
    assert output.strip(), log
    return json.loads(output)


async def test_its_messages_checks_run_clean(upstream: Upstream) -> None:
    upstream.script(CLAUDE, _calling)
    config = make_config(upstream.url, models=[CLAUDE], tools=["add"])
    async with serve(create_app(config)) as url:
        report = await _checked(url, "anthropic", CLAUDE)
    assert [
        (result["name"], result.get("errors")) for result in report["results"] if result["status"] != "passed"
    ] == []
    assert len(report["results"]) == 9


def _calling(request: RequestRecord) -> Reply:
    if "get_weather" in request.tool_names:
        return Reply(calls=[Call("get_weather", {"location": "San Francisco"})])
    return Reply(text="One, two, three.", reasoning="They want it short.")
