"""Models that cannot call functions, behind a real socket: they read our prompt, write their calls as text, and get on.

The model here follows the prompt and nothing else: it looks up the tools and the form in what it was sent, carries
numbers from one result into the next call, and would say so if it were shown a tool natively.
"""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from callgate.application import create_app
from tests.harness.clients import http_client, openai_client, streamed, whole
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.scripted_upstream import Call, Hold, Pace, Reply, Shape, Upstream
from tests.scripted_upstream.records import RequestRecord

pytestmark = pytest.mark.anyio

BOTH = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
TASK = [{"role": "user", "content": "How warm is it in Lisbon, plus 4? Then say the number."}]
TOOLS = ("get_weather", "add", "echo")
ANSWER = "Let me look.\n\nNow I add.\n\nAnd I say it.\n\nThe number is 25."


class TextOnlyModel:
    """A model without native calls that does as the prompt says: three steps, each with the result of the one before."""

    def __init__(self, piece: int = 3) -> None:
        self._shape = Shape(piece=piece)
        self.forms: list[str] = []

    def __call__(self, request: RequestRecord) -> Reply:
        if request.tool_names:
            # It was never trained on tools: what it does not understand it leaves aside.
            return Reply(text="I do not know what that is.", shape=self._shape)
        messages = request.messages
        assert not any(message["role"] == "tool" or "tool_calls" in message for message in messages)
        prompt = str(messages[0]["content"])
        if "You can call tools." not in prompt:
            return Reply(text="Call what?", shape=self._shape)
        form = self._form(prompt)
        self.forms.append(form)
        return Reply(text=self._step(form, _listed_tools(prompt), str(messages[-1]["content"])), shape=self._shape)

    def _form(self, prompt: str) -> str:
        _, _, example = prompt.partition("For example:")
        return next(
            form for form, mark in (("xml", "<invoke"), ("hermes", "<tool_call>"), ("json", "{")) if mark in example
        )

    def _step(self, form: str, tools: Mapping[str, Any], received: str) -> str:
        result = _result(form, received)
        if result is None:
            return "Let me look.\n\n" + _written(form, tools["get_weather"], {"city": "Lisbon"})
        if degrees := re.fullmatch(r"(\d+) C in Lisbon", result):
            return "Now I add.\n\n" + _written(form, tools["add"], {"a": int(degrees[1]), "b": 4})
        if result == "25":
            return "And I say it.\n\n" + _written(form, tools["echo"], {"text": "25 degrees"})
        return "The number is 25." if result == "25 degrees" else f"What is {result}?"


def _listed_tools(prompt: str) -> dict[str, Any]:
    listing, _, _ = prompt.partition("To call a tool")
    found = [json.loads(match) for match in re.findall(r"\{.*\}", listing)]
    functions = [each.get("function", each) for each in found]
    return {function["name"]: function for function in functions}


def _result(form: str, received: str) -> str | None:
    """The latest result, as this form writes it."""
    match form:
        case "xml":
            found = re.findall(r"<result name=[^>]*>\n(.*?)\n</result>", received, re.DOTALL)
        case "hermes":
            found = [json.loads(each)["content"] for each in re.findall(r"<tool_response>\n(.*)\n", received)]
        case _:
            found = re.findall(r"<tool_result[^>]*>\n(.*?)\n</tool_result>", received, re.DOTALL)
    return str(found[-1]) if found else None


def _written(form: str, tool: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
    assert set(tool["parameters"]["required"]) <= set(arguments) <= set(tool["parameters"]["properties"])
    name = tool["name"]
    if form == "xml":
        values = "".join(f'<parameter name="{key}">{value}</parameter>\n' for key, value in arguments.items())
        return f'<function_calls>\n<invoke name="{name}">\n{values}</invoke>\n</function_calls>'
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{call}\n</tool_call>" if form == "hermes" else call


async def ask_and_diagnose(
    client: AsyncOpenAI, model: str, *, stream: bool, **fields: Any
) -> tuple[str, dict[str, Any], Any]:
    """The text the client sees, the diagnostics, and the usage."""
    question: dict[str, Any] = {"model": model, "messages": TASK, **fields}
    if not stream:
        answer = await client.chat.completions.create(**question)
        [choice] = answer.choices
        assert not choice.message.tool_calls
        return choice.message.content or "", (answer.model_extra or {}).get("x_callgate", {}), answer.usage
    text, usage = "", None
    diagnostics: dict[str, Any] = {}
    async for chunk in await client.chat.completions.create(
        **question, stream=True, stream_options={"include_usage": True}
    ):
        for choice in chunk.choices:
            assert not choice.delta.tool_calls
            text += choice.delta.content or ""
        diagnostics |= (chunk.model_extra or {}).get("x_callgate") or {}
        usage = chunk.usage or usage
    return text, diagnostics, usage


def flaws(diagnostics: Mapping[str, Any]) -> list[str]:
    return [call["flaw"] for turn in diagnostics["turns"] for call in turn["calls"] if "flaw" in call]


@BOTH
@pytest.mark.parametrize("format", ["xml", "json", "hermes"])
async def test_a_task_of_three_steps_is_done_in_text_and_no_mark_is_ever_seen(
    upstream: Upstream, format: str, stream: bool
) -> None:
    model = TextOnlyModel()
    upstream.script("m", model)
    config = make_config(upstream.url, tools=TOOLS, entry={"tool_calling": format})
    async with serve(create_app(config)) as url, openai_client(url) as client, http_client(url) as plain:
        text, diagnostics, usage = await ask_and_diagnose(client, "m", stream=stream)
        metrics = (await plain.get("/metrics")).text
    assert text == ANSWER
    assert model.forms == [format] * 4
    assert flaws(diagnostics) == []
    assert [[call["name"] for call in turn["calls"]] for turn in diagnostics["turns"]] == [
        ["get_weather"],
        ["add"],
        ["echo"],
        [],
    ]
    assert all(turn["findings"] == [] for turn in diagnostics["turns"])
    added = [turn["asked_in_words"] for turn in diagnostics["turns"]]
    assert {each["format"] for each in added} == {"litellm_json" if format == "json" else format}
    assert all(each["extra_tokens"] > 100 for each in added)
    assert f'format="{added[0]["format"]}",model="m"}} {float(sum(each["extra_tokens"] for each in added))}' in metrics
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens > 0


@BOTH
async def test_marks_that_arrive_letter_by_letter_are_never_seen(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", TextOnlyModel(piece=1))
    config = make_config(upstream.url, tools=TOOLS, entry={"tool_calling": "xml"})
    async with serve(create_app(config)) as url, openai_client(url) as client:
        text, _, _ = await ask_and_diagnose(client, "m", stream=stream)
    assert text == ANSWER


# Found out by itself --------------------------------------------------------------------------------------------------


def probes(upstream: Upstream) -> list[Any]:
    return [request for request in upstream.requests if request.tool_names == ["report_word"]]


@BOTH
async def test_a_model_that_ignores_tools_is_detected_once_and_prompted(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", TextOnlyModel())
    config = make_config(upstream.url, tools=TOOLS, provider="hosted_vllm", entry={"tool_calling": "auto"})
    async with serve(create_app(config)) as url, openai_client(url) as client:
        for _ in range(2):
            text, diagnostics, _ = await ask_and_diagnose(client, "m", stream=stream)
            assert text == ANSWER
            assert diagnostics["turns"][0]["asked_in_words"]["format"] == "hermes"
    assert len(probes(upstream)) == 1


@pytest.mark.leaves("litellm", why="litellm keeps its thread for logging")
@pytest.mark.parametrize("lane", ["direct", "litellm"])
@pytest.mark.parametrize("status", [400, 500], ids=["as vLLM does", "as llama.cpp does"])
async def test_a_server_that_refuses_tools_is_prompted(upstream: Upstream, status: int, lane: str) -> None:
    obedient = TextOnlyModel()
    refusal = {"error": {"message": "tools need a parser, and none is set up", "type": "invalid_request_error"}}

    def refusing(request: RequestRecord) -> Reply:
        return Reply(status=status, body=refusal) if request.tool_names else obedient(request)

    upstream.script("m", refusing)
    config = make_config(upstream.url, tools=TOOLS, lane=lane, provider="hosted_vllm", entry={"tool_calling": "auto"})
    async with serve(create_app(config)) as url, openai_client(url) as client:
        for _ in range(2):
            text, _, _ = await ask_and_diagnose(client, "m", stream=True)
            assert text == ANSWER
    assert len(probes(upstream)) == 2


async def test_what_was_detected_of_a_model_is_listed_with_it(upstream: Upstream) -> None:
    upstream.script("m", TextOnlyModel())
    config = make_config(upstream.url, tools=TOOLS, provider="hosted_vllm", entry={"tool_calling": "auto"})
    async with serve(create_app(config)) as url, openai_client(url) as client:
        before = await client.models.retrieve("m")
        await ask_and_diagnose(client, "m", stream=True)
        after = await client.models.retrieve("m")
    assert (before.model_extra or {})["x_callgate"]["tool_calling"] == [None]
    assert (after.model_extra or {})["x_callgate"]["tool_calling"] == [{"format": "hermes", "decided_by": "probe"}]


async def test_a_model_that_calls_natively_is_found_out_once_and_sent_its_tools(upstream: Upstream) -> None:
    def native(request: RequestRecord) -> Reply:
        if request.tool_names == ["report_word"]:
            return Reply(calls=[Call("report_word", {"word": "ready"})])
        if request.turn == 0:
            return Reply(calls=[Call("get_weather", {"city": "Lisbon"})])
        return Reply(text="21 degrees.")

    upstream.script("m", native)
    config = make_config(upstream.url, tools=TOOLS, provider="hosted_vllm", entry={"tool_calling": "auto"})
    async with serve(create_app(config)) as url, openai_client(url) as client:
        for _ in range(2):
            text, diagnostics, _ = await ask_and_diagnose(client, "m", stream=True)
            assert text == "21 degrees."
            assert "asked_in_words" not in diagnostics["turns"][0]
    assert len(probes(upstream)) == 1


async def test_a_request_without_tools_costs_no_probe(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="Hello.")])
    config = make_config(upstream.url, provider="hosted_vllm", entry={"tool_calling": "auto"})
    async with serve(create_app(config)) as url, openai_client(url) as client:
        text, _, _ = await ask_and_diagnose(client, "m", stream=False)
    assert text == "Hello."
    assert len(upstream.requests) == 1


async def test_what_model_info_says_needs_no_probe(upstream: Upstream) -> None:
    upstream.script("m", TextOnlyModel())
    entry = {"tool_calling": "auto", "model_info": {"supports_function_calling": False}}
    config = make_config(upstream.url, tools=TOOLS, entry=entry)
    async with serve(create_app(config)) as url, openai_client(url) as client:
        text, _, _ = await ask_and_diagnose(client, "m", stream=True)
    assert text == ANSWER
    assert probes(upstream) == []


# Live from the first answer on ----------------------------------------------------------------------------------------

STORY = "Once upon a time there was a fox. It lived in a wood, and nobody ever saw it by day."
THOUGHT = "Okay, the user wants the weather. No tool is needed for that.\n</think>\n\nIt is warm."


async def streamed_text(client: AsyncOpenAI) -> list[str]:
    chunks = await client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "hello"}], stream=True
    )
    deltas = [choice.delta.content async for chunk in chunks for choice in chunk.choices]
    return [text for text in deltas if text]


async def test_the_first_answer_of_an_unknown_model_is_live_behind_its_first_sentence(upstream: Upstream) -> None:
    gate = asyncio.Event()
    shape = Shape(piece=4)
    upstream.script("m", [Reply(text=STORY, shape=shape, pace=Pace(hold=Hold(gate, after=12)))])
    config = make_config(upstream.url, tools=TOOLS, entry={"tool_calling": "json"})
    async with serve(create_app(config)) as url, openai_client(url) as client:
        text = ""
        chunks = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hello"}], stream=True
        )
        async for chunk in chunks:
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
            if text and not gate.is_set():
                assert STORY.startswith(text)
                gate.set()
    assert text == STORY


async def test_what_was_learnt_of_a_model_is_known_after_a_restart_and_a_reload(
    upstream: Upstream, tmp_path: Path
) -> None:
    shape = Shape(piece=4)
    upstream.script("m", [Reply(text=text, shape=shape) for text in (THOUGHT, STORY, STORY)])
    config = make_config(upstream.url, tools=TOOLS, entry={"tool_calling": "json"}, data_dir=str(tmp_path))
    for expected in ("It is warm.", STORY):
        async with serve(create_app(config)) as url, openai_client(url) as client:
            pieces = await streamed_text(client)
        assert "".join(pieces).strip() == expected
    assert len(pieces) == 1
    (tmp_path / "thinking.json").unlink()
    async with serve(create_app(config)) as url, openai_client(url) as client:
        assert len(await streamed_text(client)) > 1


@BOTH
async def test_a_small_model_that_repeats_a_result_shows_no_tags(upstream: Upstream, stream: bool) -> None:
    call = json.dumps({"name": "add", "arguments": {"a": 1, "b": 2}})
    echo = '<tool_result name="add">\n3\n</tool_result>\nThe sum is 3.'
    upstream.script("m", [Reply(text=call), Reply(text=echo, shape=Shape(piece=3))])
    config = make_config(upstream.url, tools=TOOLS, entry={"tool_calling": "json"})
    async with serve(create_app(config)) as url, openai_client(url) as client:
        text, _, _ = await ask_and_diagnose(client, "m", stream=stream)
    assert text == "3\nThe sum is 3."


# The client's own tools -----------------------------------------------------------------------------------------------

BAROMETER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The client's own barometer.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@BOTH
async def test_a_clients_own_call_is_handed_back_as_a_call_and_its_answer_is_written_as_text(
    upstream: Upstream, stream: bool
) -> None:
    upstream.script("m", TextOnlyModel())
    config = make_config(upstream.url, entry={"tool_calling": "xml"})
    async with serve(create_app(config)) as url, openai_client(url) as client:
        question: dict[str, Any] = {"model": "m", "messages": TASK, "tools": [BAROMETER]}
        message = await accumulated(client, question, stream=stream)
        [call] = message["tool_calls"]
        assert message["content"] == "Let me look."
        assert json.loads(call["function"]["arguments"]) == {"city": "Lisbon"}
        answer = {"role": "tool", "tool_call_id": call["id"], "content": "25 degrees"}
        question["messages"] = [*TASK, message, answer]
        last = await accumulated(client, question, stream=stream)
    assert last["content"] == "The number is 25."
    assert not last.get("tool_calls")


async def accumulated(client: AsyncOpenAI, question: dict[str, Any], *, stream: bool) -> dict[str, Any]:
    """The assistant's message, as the official client puts it together."""
    answer = await (streamed if stream else whole)(client, **question)
    [choice] = answer.choices
    assert choice.finish_reason == ("tool_calls" if choice.message.tool_calls else "stop")
    return choice.message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True)


# Enforced, and bounded ------------------------------------------------------------------------------------------------


def schema_sent(request: RequestRecord) -> Any:
    return request.body.get("response_format", {}).get("json_schema", {}).get("schema")


async def test_a_demanded_call_is_enforced_where_the_server_can(upstream: Upstream) -> None:
    replies: Sequence[Reply] = [
        Reply(text='{"name": "get_weather", "arguments": {"city": "Oslo"}}'),
        Reply(text="4 C."),
    ]
    upstream.script("m", replies)
    entry = {"tool_calling": "json", "constrain_calls": "on"}
    config = make_config(upstream.url, tools=TOOLS, entry=entry)
    async with serve(create_app(config)) as url, openai_client(url) as client:
        text, diagnostics, _ = await ask_and_diagnose(client, "m", stream=True, tool_choice="required")
    assert text == "4 C."
    shapes = schema_sent(upstream.requests[0])["anyOf"]
    assert [shape["properties"]["name"]["enum"] for shape in shapes] == [
        [name] for name in (*sorted(TOOLS), "read_more")
    ]
    assert schema_sent(upstream.requests[1]) is None
    assert flaws(diagnostics) == []


@BOTH
@pytest.mark.parametrize("calling", ["native", "hermes"])
async def test_arguments_beyond_the_limit_are_reported_to_the_model_and_not_run(
    upstream: Upstream, calling: str, stream: bool
) -> None:
    text = "x" * 200_000
    large = (
        Reply(calls=[Call("echo", {"text": text})], shape=Shape(piece=4096))
        if calling == "native"
        else Reply(text=_written("hermes", ECHO, {"text": text}), shape=Shape(piece=4096))
    )
    upstream.script("m", [large, Reply(text="Too much, I see.")])
    config = make_config(upstream.url, tools=TOOLS, entry={"tool_calling": calling}, limits={"argument_bytes": 100_000})
    async with serve(create_app(config)) as url, openai_client(url) as client:
        seen, diagnostics, _ = await ask_and_diagnose(client, "m", stream=stream)
    assert seen == "Too much, I see."
    assert flaws(diagnostics) == ["arguments_too_large"]
    received = json.dumps(upstream.requests[1].messages[-1])
    assert "arguments_too_large" in received
    assert len(received) < 2000


ECHO = {"name": "echo", "parameters": {"required": ["text"], "properties": {"text": {"type": "string"}}}}
