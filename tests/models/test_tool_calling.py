"""How deployments are asked for their calls: what the config says counts, and `auto` asks no more than it has to."""

import subprocess
import sys
from typing import Any

import pytest

from callgate.models import litellm_model
from callgate.models.resolve import ModelConfig
from callgate.models.tool_calling import ToolCalling
from callgate.text_calls.calling_detection import CallingMode, DetectingModel
from callgate.text_calls.prompted import PromptedModel
from tests.fakes import ScriptedModel, says
from tests.models.wire import asking

pytestmark = pytest.mark.anyio

TOOL = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}


class Known:
    def __init__(self) -> None:
        self.detected: list[tuple[str, CallingMode]] = []
        self.calling = ToolCalling(lambda entry, choice: self.detected.append((entry.model_name, choice)))


@pytest.fixture
def known() -> Known:
    return Known()


def entry(model: str = "openai/my-model", name: str = "m", **more: Any) -> ModelConfig:
    return ModelConfig(name, {"model": model, "api_base": "http://127.0.0.1:9/v1"}, **more)


def ways(model: object) -> str:
    return type(model).__name__ if not isinstance(model, PromptedModel) else model.format


@pytest.mark.parametrize(
    ("more", "way", "choice"),
    [
        ({"tool_calling": "native"}, "ScriptedModel", CallingMode("native", "config")),
        ({"tool_calling": "xml"}, "xml", CallingMode("xml", "config")),
        ({"tool_calling": "json"}, "litellm_json", CallingMode("json", "config")),
        ({"calls_natively": True}, "ScriptedModel", CallingMode("native", "model_info")),
        ({"calls_natively": False}, "hermes", CallingMode("hermes", "model_info")),
        ({"calls_natively": False, "constrain_calls": True}, "litellm_json", CallingMode("json", "model_info")),
        ({"calls_natively": False, "tool_calling": "native"}, "ScriptedModel", CallingMode("native", "config")),
        ({"model": "demo/demo"}, "ScriptedModel", CallingMode("native", "family")),
        ({}, "DetectingModel", None),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_configured_way_of_calling_needs_no_probe(known, more, way, choice):
    asked = entry(**more)
    assert ways(known.calling.wrap(ScriptedModel(), asked)) == way
    assert known.calling.choice(asked) == choice


def test_a_family_that_can_be_constrained_keeps_its_own_format(known):
    asked = entry("openai/llama-3.1-8b", calls_natively=False, constrain_calls=True)
    assert ways(known.calling.wrap(ScriptedModel(), asked)) == "llama3_json"


async def test_the_result_of_a_probe_is_remembered_and_reported_once(known):
    inner = ScriptedModel(says("What tool?"), says("ok"), says("ok"))
    asked = entry("hosted_vllm/my-model")
    model = known.calling.wrap(inner, asked)
    for _ in range(2):
        async with model.send(asking(tools=[TOOL])) as answer:
            assert [batch async for batch in answer]
    assert known.detected == [("m", CallingMode("hermes", "probe"))]
    assert known.calling.choice(asked) == CallingMode("hermes", "probe")


async def test_a_model_behind_an_openai_shaped_address_is_asked_nothing_that_no_client_asked(known):
    inner = ScriptedModel(says("ok"))
    asked = entry("openai/my-model")
    async with known.calling.wrap(inner, asked).send(asking(tools=[TOOL])) as answer:
        assert [batch async for batch in answer]
    assert len(inner.asked) == 1
    assert known.calling.choice(asked) == CallingMode("native", "provider")


def test_one_deployment_has_one_way_however_often_it_is_built(known):
    first, again = (known.calling.wrap(ScriptedModel(), entry()) for _ in range(2))
    other = known.calling.wrap(ScriptedModel(), entry(name="other"))
    assert isinstance(first, DetectingModel)
    assert isinstance(again, DetectingModel)
    assert isinstance(other, DetectingModel)
    assert first.detector is again.detector
    assert first.detector is not other.detector


async def test_litellms_list_decides_where_litellm_serves_the_model(known):
    await litellm_model.loaded()
    asked = entry("deepseek/deepseek-reasoner", lane="litellm")
    model = known.calling.wrap(ScriptedModel(says("ok")), asked)
    async with model.send(asking(tools=[TOOL])) as answer:
        assert [batch async for batch in answer]
    assert known.calling.choice(asked) == CallingMode("hermes", "litellm")


def test_litellm_is_not_loaded_to_find_out_about_a_model_on_the_direct_lane():
    code = """
import asyncio, sys
from callgate.models.tool_calling import _litellms_word
from callgate.models.resolve import ModelConfig
entry = ModelConfig("m", {"model": "openai/my-model", "api_base": "http://127.0.0.1:9/v1"})
assert asyncio.run(_litellms_word(entry)) is None
assert "litellm" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
