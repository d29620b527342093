"""Streaming or not is a choice of writer, and so are passing through and the API: every recorded conversation is played each
way over real sockets, and what the official client puts together from our chunks must be what it gets whole. Where no tool of ours
is called, it must be the same without any on offer, whichever shape the provider answers in."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion

from callgate.application import create_app
from callgate.conversation.messages_api import STOP_REASONS
from tests.harness.clients import http_client, openai_client
from tests.harness.configs import make_config
from tests.harness.messages import MessagesClient, calls_of, text_of
from tests.harness.responses import responded
from tests.harness.server import serve
from tests.models.wire import Request, Wire, raw_provider
from tests.recordings import Recording, load_all
from tests.scripted_upstream import Upstream

pytestmark = pytest.mark.anyio

RECORDINGS = load_all()
MENDED = {
    "content-filter-with-a-call": "the call is of a tool of ours",
    "server-and-client-tool-in-one-turn": "so is one of the calls",
    "surrogate-halves-in-two-chunks": "halves of a character are put together",
    "tool-calls-with-none": "the finish reason says what came",
}
"""Answers that are not what their provider wrote once they are read, and why."""
UNMENDED = [one for one in RECORDINGS if len(one.replies) == 1 and one.name not in MENDED]


Played = tuple[ChatCompletion, list[dict[str, Any]]]
_played: dict[tuple[str, bool], Played] = {}
"""Each is looked at from several sides, and played once."""


async def play(recording: Recording, upstream: Upstream, *, stream: bool) -> Played:
    """The client's answer, and the requests that the model got."""
    if (recording.name, stream) not in _played:
        _played[recording.name, stream] = await play_now(recording, upstream, stream=stream)
    return _played[recording.name, stream]


async def play_now(recording: Recording, upstream: Upstream, *, stream: bool) -> Played:
    model = f"{recording.name}-{'streamed' if stream else 'whole'}"
    recording.play_on(upstream, model)
    config = make_config(upstream.url, models=[model], tools=recording.house_tools)
    async with serve(create_app(config)) as url, openai_client(url) as client:
        question: dict[str, Any] = {"model": model, **recording.request}
        if stream:
            answer = await accumulated(client, question)
        else:
            answer = await client.chat.completions.create(**question)
    asked = [request.body for request in upstream.requests if request.model == model]
    return answer, asked


async def accumulated(client: Any, question: dict[str, Any]) -> ChatCompletion:
    """The answer as the official client's own accumulator puts it together."""
    state: ChatCompletionStreamState[Any] = ChatCompletionStreamState()
    extras: dict[str, Any] = {}
    reasoning: list[str] = []
    chunks = await client.chat.completions.create(**question, stream=True, stream_options={"include_usage": True})
    async for chunk in chunks:
        state.handle_chunk(chunk)
        extras |= chunk.model_extra or {}
        for choice in chunk.choices:
            reasoning.append((choice.delta.model_extra or {}).get("reasoning_content") or "")
    whole = state.current_completion_snapshot
    answer = ChatCompletion.model_validate({**whole.to_dict(), **extras, "object": "chat.completion"})
    if any(reasoning):
        answer.choices[0].message.reasoning_content = "".join(reasoning)  # type: ignore[attr-defined]
    return answer


async def play_without_tools(
    recording: Recording, *, stream: bool, other_shape: bool
) -> tuple[ChatCompletion, Sequence[Any]]:
    """The client's answer where none of our tools is on offer, and what the model was asked."""
    [reply] = recording.replies
    events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in reply["chunks"]) + "data: [DONE]\n\n"
    body = json.dumps(reply["whole"]) if stream is other_shape else events

    async def answer(request: Request, wire: Wire) -> None:
        await wire.whole(body)

    question: dict[str, Any] = {"model": "m", **recording.request}
    async with (
        raw_provider(answer) as provider,
        serve(create_app(make_config(f"{provider.url}/v1"))) as url,
        openai_client(url) as client,
    ):
        if stream:
            return await accumulated(client, question), provider.requests
        return await client.chat.completions.create(**question), provider.requests


def content_of(answer: ChatCompletion) -> dict[str, Any]:
    """What a client acts on. Empty and absent content are one thing: a stream's first delta must carry a text."""
    [choice] = answer.choices
    message = choice.message
    return {
        "content": message.content or "",
        "refusal": message.refusal,
        "reasoning": (message.model_extra or {}).get("reasoning_content") or "",
        "finish_reason": choice.finish_reason,
        "tool_calls": [
            {"id": call.id, "name": call.function.name, "arguments": call.function.arguments}
            for call in message.tool_calls or ()
            if call.type == "function"
        ],
        "usage": counts(answer),
        "diagnostics": diagnostics(answer),
    }


def counts(answer: ChatCompletion) -> dict[str, int] | None:
    usage = answer.usage
    return (
        None
        if usage is None
        else {name: getattr(usage, name) for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
    )


def diagnostics(answer: ChatCompletion) -> Any:
    """Without what no two runs share: ids of ours, times, and addresses and names made for a test."""
    return timeless((answer.model_extra or {}).get("x_callgate"))


def timeless(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            key: timeless(inner) for key, inner in value.items() if key not in ("ms", "run", "id", "deployment", "host")
        }
    if isinstance(value, list):
        return [timeless(inner) for inner in value]
    return value


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda recording: recording.name)
async def test_the_chunks_put_together_are_the_whole_answer(recording: Recording, upstream: Upstream) -> None:
    streamed, asked_streamed = await play(recording, upstream, stream=True)
    whole, asked_whole = await play(recording, upstream, stream=False)
    assert content_of(streamed) == content_of(whole)
    assert [request["messages"] for request in asked_streamed] == [request["messages"] for request in asked_whole]


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda recording: recording.name)
async def test_what_comes_of_it_is_what_the_recording_says(
    recording: Recording, upstream: Upstream, stream: bool
) -> None:
    answer, asked = await play(recording, upstream, stream=stream)
    expected, actual = recording.expect, content_of(answer)
    assert actual["content"] == (expected.content or "")
    assert actual["refusal"] == expected.refusal
    assert actual["finish_reason"] == expected.finish_reason
    assert actual["tool_calls"] == [dict(call) for call in expected.tool_calls]
    if expected.usage is not None:
        assert {key: actual["usage"][key] for key in expected.usage if key in actual["usage"]} == {
            key: value for key, value in expected.usage.items() if key in actual["usage"]
        }
    assert actual["reasoning"] == "\n\n".join(expected.reasoning)
    assert len(asked) == expected.requests
    check_results(expected.results, asked)
    check_echo(expected.echo, asked)


def check_results(expected: Mapping[str, Any], asked: list[dict[str, Any]]) -> None:
    """The result that the model was sent for each call, wherever in the history it stands."""
    results = {
        message["tool_call_id"]: message["content"]
        for request in asked
        for message in request["messages"]
        if message["role"] == "tool"
    }
    for call_id, wanted in expected.items():
        found = results[call_id]
        if isinstance(wanted, str):
            assert found == wanted
        elif "contains" in wanted:
            assert wanted["contains"] in found
        elif "flaw" in wanted:
            assert f'"code":"{wanted["flaw"]}"' in found
        else:
            assert "not run" in found.lower()


def check_echo(expected: Any, asked: list[dict[str, Any]]) -> None:
    if not expected:
        return
    said = [message for message in asked[-1]["messages"] if message["role"] == "assistant"]
    for fields, message in zip(expected, said, strict=False):
        for name, value in fields.items():
            assert message.get(name) == value, name


@pytest.mark.parametrize("other_shape", [False, True], ids=["as_asked", "other_shape"])
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("recording", UNMENDED, ids=lambda recording: recording.name)
async def test_an_answer_is_the_same_with_and_without_our_tools_on_offer(
    recording: Recording, upstream: Upstream, stream: bool, other_shape: bool
) -> None:
    with_tools, _ = await play(recording, upstream, stream=stream)
    without, asked = await play_without_tools(recording, stream=stream, other_shape=other_shape)
    assert {**content_of(without), "diagnostics": None} == {**content_of(with_tools), "diagnostics": None}
    assert len(asked) == 1


# The same through Anthropic's Messages --------------------------------------------------------------------------------


async def play_on_both(
    recording: Recording, upstream: Upstream
) -> tuple[ChatCompletion, list[dict[str, Any]], list[list[Any]]]:
    """The answer of a chat, the messages streamed and whole, and the histories that the model got for each."""
    models = [f"{recording.name}-{way}" for way in ("chat", "streamed", "whole")]
    for model in models:
        recording.play_on(upstream, model)
    tools = [
        {"name": tool["function"]["name"], "input_schema": tool["function"]["parameters"]}
        for tool in recording.request.get("tools", ())
    ]
    question: dict[str, Any] = {**recording.request, "thinking": {"type": "adaptive"}}
    question |= {"tools": tools} if tools else {}
    config = make_config(upstream.url, models=models, tools=recording.house_tools)
    async with serve(create_app(config)) as url, openai_client(url) as client, http_client(url) as http:
        chat = await client.chat.completions.create(model=models[0], **recording.request)
        ask = MessagesClient(http).ask
        messages = [await ask(**question, model=models[1], stream=True), await ask(**question, model=models[2])]
    histories = [
        [request.body["messages"] for request in upstream.requests if request.model == model] for model in models
    ]
    return chat, messages, histories


def of_a_chat(message: Mapping[str, Any]) -> dict[str, Any]:
    """What of a message a chat would have said as well."""
    usage = message["usage"]
    return {
        "content": text_of(message),
        "reasoning": "\n\n".join(block["thinking"] for block in calls_of(message, "thinking")),
        "stop_reason": message["stop_reason"],
        "tool_calls": [(call["id"], call["name"], call["input"]) for call in calls_of(message)],
        "usage": (usage["input_tokens"] + usage["cache_read_input_tokens"], usage["output_tokens"]),
        "diagnostics": timeless(message["x_callgate"]),
    }


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda recording: recording.name)
async def test_messages_have_the_content_of_a_chat_streamed_and_whole(recording: Recording, upstream: Upstream) -> None:
    chat, messages, (as_chat, *as_messages) = await play_on_both(recording, upstream)
    expected = content_of(chat)
    calls = [(call["id"], call["name"], json.loads(call["arguments"])) for call in expected["tool_calls"]]
    reason = "refusal" if expected["refusal"] else STOP_REASONS[expected["finish_reason"]]
    streamed, whole = ([block["type"] for block in message["content"]] for message in messages)
    assert streamed == whole
    for message in messages:
        assert of_a_chat(message) == {
            "content": expected["content"] + (expected["refusal"] or ""),
            "reasoning": expected["reasoning"],
            "stop_reason": reason,
            "tool_calls": calls,
            "usage": (expected["usage"]["prompt_tokens"], expected["usage"]["completion_tokens"]),
            "diagnostics": expected["diagnostics"],
        }
    assert as_messages == [as_chat, as_chat]


# The same through the Responses API -----------------------------------------------------------------------------------

STATUSES = {"stop": "completed", "tool_calls": "completed", "length": "incomplete", "content_filter": "incomplete"}


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda recording: recording.name)
async def test_responses_have_the_content_of_a_chat_streamed_and_whole(
    recording: Recording, upstream: Upstream
) -> None:
    models = [f"{recording.name}-{way}" for way in ("chat", "streamed", "whole")]
    for model in models:
        recording.play_on(upstream, model)
    request = {**recording.request}
    asked: dict[str, Any] = {"input": request.pop("messages"), "reasoning": {"summary": "auto"}}
    tools = [{"type": "function", **tool["function"]} for tool in request.pop("tools", ())]
    asked |= {"tools": tools} if tools else {}
    if "max_tokens" in request:
        asked["max_output_tokens"] = request.pop("max_tokens")
    config = make_config(upstream.url, models=models, tools=recording.house_tools)
    async with serve(create_app(config)) as url, openai_client(url) as client:
        expected = content_of(await client.chat.completions.create(model=models[0], **recording.request))
        streamed = (await responded(client, stream=True, model=models[1], **asked, **request)).to_dict(warnings=False)
        whole = (await responded(client, stream=False, model=models[2], **asked, **request)).to_dict(warnings=False)
    assert [item["type"] for item in streamed["output"]] == [item["type"] for item in whole["output"]]
    for response in (streamed, whole):
        assert of_a_response(response) == {
            "content": expected["content"],
            "refusal": expected["refusal"],
            "reasoning": expected["reasoning"],
            "status": STATUSES[expected["finish_reason"]],
            "tool_calls": expected["tool_calls"],
            "usage": expected["usage"],
            "diagnostics": expected["diagnostics"],
        }
    as_chat, *as_responses = [
        [request.body["messages"] for request in upstream.requests if request.model == model] for model in models
    ]
    assert as_responses == [as_chat, as_chat]


def of_a_response(response: Mapping[str, Any]) -> dict[str, Any]:
    """What of a response a chat would have said as well."""
    items, usage = response["output"], response["usage"]
    parts = [item["content"] for item in items if item["type"] == "message"]
    calls = [item for item in items if item["type"] == "function_call"]
    return {
        "content": "\n\n".join(text for one in parts for part in one if (text := part.get("text"))),
        "refusal": "".join(part["refusal"] for one in parts for part in one if part["type"] == "refusal") or None,
        "reasoning": "\n\n".join(
            "".join(part["text"] for part in item["summary"]) for item in items if item["type"] == "reasoning"
        ),
        "status": response["status"],
        "tool_calls": [{"id": it["call_id"], "name": it["name"], "arguments": it["arguments"]} for it in calls],
        "usage": {
            "prompt_tokens": usage["input_tokens"],
            "completion_tokens": usage["output_tokens"],
            "total_tokens": usage["total_tokens"],
        },
        "diagnostics": timeless(response["x_callgate"]),
    }
