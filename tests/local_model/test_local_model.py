"""The served product in front of a real model that has no native calls: protocol and shape, never wording."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from openai import AsyncOpenAI

from callgate.application import create_app
from callgate.config.schema.whole import Config
from tests.harness.clients import http_client, openai_client
from tests.harness.configs import tool_entry
from tests.harness.installing import NotMade
from tests.harness.needs import BY_MAKE_CLIENTS, demanded
from tests.harness.server import serve
from tests.local_model import environment

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.timeout(300),  # the first test downloads the model, where that has not been done
    pytest.mark.leaves("tool-", why="the pool of threads for tools ends with the served product"),
]

NAME = "local-model"
"""What `CALLGATE_TESTS_REQUIRE` calls it."""
TOOLS = ("get_weather", "add")
QUESTION = "What is the weather in Oslo?"
ROOM = 48
"""Tokens for one turn: enough for any call here, and an end to a model that rambles."""


@pytest.fixture(autouse=True)
def _no_task_left() -> None:
    """The servers stay for the whole file, with a task for each connection that is kept open."""


@dataclass(frozen=True, slots=True)
class Served:
    url: str
    client: AsyncOpenAI


@pytest.fixture(scope="module")
async def served() -> AsyncIterator[Served]:
    try:
        interpreter = environment.made()
    except NotMade as fault:
        if demanded(NAME):
            pytest.fail(f"{NAME} is demanded and cannot be had: {fault}", pytrace=False)
        pytest.skip(f"{NAME} cannot be had here: {fault}")
    async with (
        environment.model_server(interpreter) as upstream_url,
        serve(create_app(config(upstream_url))) as url,
        openai_client(url) as client,
    ):
        yield Served(url, client)


def config(upstream_url: str) -> Config:
    params = {"model": "llamafile/smollm2", "api_base": upstream_url, "api_key": "none"}
    steady = {"temperature": 0, "max_tokens": ROOM}

    def model(name: str, **more: Any) -> dict[str, Any]:
        return {"model_name": name, "litellm_params": {**params, **steady}, "tools": ["*"], **more}

    models = [
        model("enforced", tool_calling="json", constrain_calls="on"),
        model("found-out", tool_calling="auto", constrain_calls="on"),
        model("xml", tool_calling="xml"),
    ]
    return Config.model_validate(
        {
            "auth": "off",
            "model_list": models,
            "tools": [tool_entry(name) for name in TOOLS],
            "loop": {"max_iterations": 1},
        }
    )


@dataclass(slots=True)
class ModelOutput:
    text: str = ""
    finish_reason: str | None = None
    usage: Any = None
    diagnostics: dict[str, Any] = field(default_factory=dict)

    @property
    def shape(self) -> Any:
        """What must be the same in both modes."""
        turns = [
            ([(call["name"], call["verdict"], call.get("flaw")) for call in turn["calls"]], turn["finish_reason"])
            for turn in self.diagnostics["turns"]
        ]
        return self.finish_reason, self.diagnostics["ending"], turns

    @property
    def first_calls(self) -> list[dict[str, Any]]:
        calls: list[dict[str, Any]] = self.diagnostics["turns"][0]["calls"]
        return calls


async def ask(served: Served, model: str, *, stream: bool, **fields: Any) -> ModelOutput:
    asked: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": QUESTION}], **fields}
    result = ModelOutput()
    if not stream:
        answer = await served.client.chat.completions.create(**asked)
        [choice] = answer.choices
        assert not choice.message.tool_calls
        return ModelOutput(
            choice.message.content or "", choice.finish_reason, answer.usage, (answer.model_extra or {})["x_callgate"]
        )
    async for chunk in await served.client.chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    ):
        for choice in chunk.choices:
            assert not choice.delta.tool_calls
            result.text += choice.delta.content or ""
            result.finish_reason = choice.finish_reason or result.finish_reason
        result.diagnostics |= (chunk.model_extra or {}).get("x_callgate") or {}
        result.usage = chunk.usage or result.usage
    return result


async def test_a_demanded_call_is_whole_and_the_stream_says_what_the_whole_answer_says(served: Served) -> None:
    streamed, whole = [await ask(served, "enforced", stream=stream, tool_choice="required") for stream in (True, False)]
    for result in (streamed, whole):
        assert [call["verdict"] for call in result.first_calls] == ["ready"]
        assert result.first_calls[0]["name"] in TOOLS
        check_usage(result)
    assert streamed.shape == whole.shape
    assert streamed.text == whole.text
    async with http_client(served.url) as plain:
        metrics = (await plain.get("/metrics")).text
    assert 'callgate_prompt_tokens_added_total{format="litellm_json",model="enforced"}' in metrics


async def test_a_named_tool_is_called_and_not_the_one_that_the_question_is_about(served: Served) -> None:
    choice = {"type": "function", "function": {"name": "add"}}
    result = await ask(served, "enforced", stream=True, tool_choice=choice)
    assert [(call["name"], call["verdict"]) for call in result.first_calls] == [("add", "ready")]


@BY_MAKE_CLIENTS
async def test_a_server_that_ignores_tools_is_detected_and_prompted(served: Served) -> None:
    result = await ask(served, "found-out", stream=True, tool_choice="required")
    assert result.diagnostics["turns"][0]["asked_in_words"]["format"] == "litellm_json"
    assert [call["verdict"] for call in result.first_calls] == ["ready"]


@BY_MAKE_CLIENTS
async def test_a_model_that_is_not_held_to_a_form_ends_all_the_same(served: Served) -> None:
    result = await ask(served, "xml", stream=True)
    assert result.finish_reason in ("stop", "length")
    assert result.diagnostics["ending"] in ("answered", "turn_limit", "gave_up")
    check_usage(result)


def check_usage(result: ModelOutput) -> None:
    usage = result.usage
    assert usage.prompt_tokens > 0
    assert usage.completion_tokens > 0
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
