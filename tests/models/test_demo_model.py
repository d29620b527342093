"""The embedded model: what it calls, what it never calls, and that it speaks like any other."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from callgate.conversation.events import CallDelta, CallWritten, Finished, ProviderHead, TextDelta
from callgate.conversation.ports import ModelRequest
from callgate.conversation.usage import Usage
from callgate.models.demo_model import DemoModel
from callgate.policy.litellm_settings import without_settings
from tests.models.reading import text_of
from tests.models.wire import tool

pytestmark = pytest.mark.anyio

CLOCK = tool("clock", timezone={"type": "string", "default": "UTC"})
CALCULATOR = tool("calculator", expression={"type": "string"})
BOTH = (CLOCK, CALCULATOR)


def user(text):
    return {"role": "user", "content": text}


def ask(*messages, tools=BOTH, choice=None, stream=True, **params):
    raw = [msgspec.Raw(json.dumps(message).encode()) for message in messages]
    return ModelRequest(
        raw, [msgspec.Raw(json.dumps(each).encode()) for each in tools], choice, without_settings(params), stream
    )


async def batches(question):
    async with asyncio.timeout(60), DemoModel(pause=lambda: asyncio.sleep(0)).send(question) as answer:
        return [list(batch) async for batch in answer]


async def turn_of(question):
    return [event for batch in await batches(question) for event in batch]


def calls_of(events):
    return [(name, json.loads(arguments)) for name, arguments in written_calls(events)]


def written_calls(events):
    calls: dict[int | None, list[Any]] = {}
    for event in events:
        if isinstance(event, CallWritten):
            calls[len(calls)] = [event.name, event.arguments]
        elif isinstance(event, CallDelta) and event.name:
            calls[event.index] = [event.name, event.arguments]
        elif isinstance(event, CallDelta):
            calls[event.index][1] += event.arguments
    return [(name, arguments) for name, arguments in calls.values()]


def reason_of(events):
    (finished,) = [event for event in events if isinstance(event, Finished)]
    return finished.reason


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "text, calls",
    [
        ("What time is it in Tokyo?", [("clock", {"timezone": "Asia/Tokyo"})]),
        ("what's the time in New York", [("clock", {"timezone": "America/New_York"})]),
        ("What time is it in Europe/Paris?", [("clock", {"timezone": "Europe/Paris"})]),
        ("What time is it?", [("clock", {"timezone": "UTC"})]),
        ("What is 2*21?", [("calculator", {"expression": "2*21"})]),
        ("what is 17 plus 25", [("calculator", {"expression": "17+25"})]),
        ("(1 + 2) * 3 - 4.5 = ?", [("calculator", {"expression": "(1 + 2) * 3 - 4.5"})]),
        (
            "What time is it in Tokyo, and what is 2*21?",
            [("clock", {"timezone": "Asia/Tokyo"}), ("calculator", {"expression": "2*21"})],
        ),
        ('Use the calculator with {"expression": "6*7"}', [("calculator", {"expression": "6*7"})]),
    ],
)
async def test_a_request_leads_to_its_calls(text, calls, stream):
    events = await turn_of(ask(user(text), stream=stream))
    assert calls_of(events) == calls
    assert reason_of(events) == "tool_calls"
    assert text_of(events) == ""


@pytest.mark.parametrize("text", ["What time is it in Tokyo?", "What is 2*21?", "Call clock", "hello"])
async def test_what_is_not_offered_is_not_called(text):
    events = await turn_of(ask(user(text), tools=()))
    assert calls_of(events) == []
    assert reason_of(events) == "stop"
    assert "demo model" in text_of(events)


async def test_with_tool_choice_none_nothing_is_called():
    assert calls_of(await turn_of(ask(user("What is 2*21?"), choice="none"))) == []


async def test_a_tool_under_a_prefix_is_found():
    events = await turn_of(
        ask(user("What is 2*21?"), tools=[tool("callgate__calculator", expression={"type": "string"})])
    )
    assert calls_of(events) == [("callgate__calculator", {"expression": "2*21"})]


def history(*rounds):
    for calls in rounds:
        ids = [f"c{name}" for name, _ in calls]
        yield {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}}
                for id, (name, _) in zip(ids, calls, strict=True)
            ],
        }
        for id, (_, result) in zip(ids, calls, strict=True):
            yield {"role": "tool", "tool_call_id": id, "content": result}


async def test_results_become_the_answer():
    messages = [
        user("What time is it in Tokyo, and what is 2*21?"),
        *history([("clock", "10:00"), ("calculator", "42")]),
    ]
    events = await turn_of(ask(*messages))
    assert text_of(events) == "The clock tool says: 10:00. The calculator tool says: 42."
    assert reason_of(events) == "stop"


async def test_then_means_another_turn():
    request = user("What time is it in Tokyo? Then what is 2*21?")
    first = await turn_of(ask(request))
    second = await turn_of(ask(request, *history([("clock", "10:00")])))
    last = await turn_of(ask(request, *history([("clock", "10:00")], [("calculator", "42")])))
    assert [name for name, _ in calls_of(first)] == ["clock"]
    assert [name for name, _ in calls_of(second)] == ["calculator"]
    assert text_of(last) == "The clock tool says: 10:00. The calculator tool says: 42."


async def test_its_first_call_is_cut_off_where_that_is_asked_for_and_sent_again_whole():
    question = user("What is 2*21? Cut your first call off.")
    for stream in (True, False):
        events = await turn_of(ask(question, stream=stream))
        assert written_calls(events) == [("calculator", '{"expression": "2*2')]
        assert reason_of(events) == "length"
    told = {"error": {"code": "truncated", "message": "Not run: the arguments were cut off."}}
    cut = [("calculator", json.dumps(told, separators=(",", ":")))]
    again = await turn_of(ask(question, *history(cut)))
    assert calls_of(again) == [("calculator", {"expression": "2*21"})]
    assert reason_of(again) == "tool_calls"
    last = await turn_of(ask(question, *history(cut, [("calculator", "42")])))
    assert text_of(last) == "The calculator tool says: 42."


async def test_a_new_question_starts_over():
    messages = [user("What is 1+1?"), *history([("calculator", "2")]), {"role": "assistant", "content": "2"}]
    assert calls_of(await turn_of(ask(*messages, user("What is 2*21?")))) == [("calculator", {"expression": "2*21"})]


SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Rome", "Oslo"]},
        "days": {"type": "integer", "minimum": 3},
        "deep": {"$ref": "#/$defs/deep"},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 2},
        "maybe": {"anyOf": [{"type": "null"}, {"type": "string"}]},
        "optional": {"type": "string"},
    },
    "required": ["city", "days", "deep", "tags", "maybe"],
    "$defs": {"deep": {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]}},
}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
async def test_a_forced_call_is_made_with_arguments_that_satisfy_the_schema(choice):
    events = await turn_of(ask(user("hello"), tools=[WEATHER], choice=choice))
    made_up = {"city": "Rome", "days": 3, "deep": {"on": True}, "tags": ["demo", "demo"], "maybe": None}
    assert calls_of(events) == [("weather", made_up)]


async def test_a_forced_choice_of_a_tool_that_was_asked_for_takes_the_requests_arguments():
    choice = {"type": "function", "function": {"name": "calculator"}}
    assert calls_of(await turn_of(ask(user("2*21 and the time"), choice=choice))) == [
        ("calculator", {"expression": "2*21"})
    ]


async def test_it_streams_text_by_words_and_calls_by_fragments():
    spoken = await batches(ask(user("hello")))
    assert isinstance(spoken[0][0], ProviderHead)
    assert sum(isinstance(event, TextDelta) for batch in spoken for event in batch) > 10
    called = await batches(ask(user("What is 2*21?")))
    assert sum(isinstance(event, CallDelta) for batch in called for event in batch) > 2


async def test_its_streamed_and_whole_answers_are_equal():
    streamed, whole = await turn_of(ask(user("hello"))), await batches(ask(user("hello"), stream=False))
    assert len(whole) == 1
    assert text_of(streamed) == text_of(whole[0])
    assert [event for event in streamed if isinstance(event, Usage)] == [e for e in whole[0] if isinstance(e, Usage)]


async def test_usage_adds_up():
    (usage,) = [event for event in await turn_of(ask(user("hello"))) if isinstance(event, Usage)]
    counts = usage.report
    assert counts["prompt_tokens"] > 0
    assert counts["total_tokens"] == counts["prompt_tokens"] + counts["completion_tokens"]


async def test_a_token_limit_cuts_its_text():
    events = await turn_of(ask(user("hello"), max_tokens=3))
    assert len(text_of(events).split()) == 3
    assert reason_of(events) == "length"


async def test_a_response_format_is_met():
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    form = msgspec.Raw(json.dumps({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}).encode())
    assert json.loads(text_of(await turn_of(ask(user("hello"), response_format=form)))) == {"n": 1}


async def test_hidden_requests_of_chat_pages_call_nothing():
    events = await turn_of(ask(user("### Task:\nGenerate a title.\nUSER: What is 2*21?")))
    assert calls_of(events) == []
    assert json.loads(text_of(events))["title"]


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": None},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": "hi"}]},
        {"role": "system", "content": "x"},
        {"role": "user", "content": "9" * 5000 + "*" * 5000},
    ],
)
async def test_odd_messages_are_answered_with_text(message):
    assert "demo model" in text_of(await turn_of(ask(message)))
