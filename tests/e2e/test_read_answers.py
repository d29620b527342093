"""A whole answer of text, where tools are on offer, is told without what only calls need. What anybody sees of it, and of every other
answer, is what the loop would have told."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.api.conversation import Conversation
from callgate.application import create_app
from callgate.conversation.events import CallWritten, Finished, ModelEvent, ProviderHead, ReasoningDelta, TextDelta
from callgate.conversation.finish_words import OPEN
from callgate.conversation.turn import TurnBuilder
from callgate.conversation.usage import Usage
from callgate.conversation.whole_turn import NO_OFFER, whole_turn_fast
from callgate.models import retry
from tests.e2e import test_passed_answers as passed
from tests.e2e.test_passed_answers import CASES, Case, answer, hello, reset, seen, streamed, whole
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.models.wire import chunk, completion, raw_provider

pytestmark = pytest.mark.anyio

WHERE = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}
CUT = {**WHERE, "function": {"name": "get_weather", "arguments": '{"city": "Os'}}
CALLS = whole(answer("tool_calls", tool_calls=[WHERE], content=None))
SHOWN = {
    "messages": [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [WHERE]},
        {"role": "tool", "tool_call_id": "call_1", "content": "4"},
    ]
}
JSON_FORMAT = {"response_format": {"type": "json_object"}}
OF_TOOLS = [
    Case("has a call", [CALLS, whole(completion("Cold."))]),
    Case(
        "has a call after a failure",
        [whole({"error": {"message": "oh"}}, 500, "retry-after: 0"), CALLS, whole(completion())],
    ),
    Case(
        "has a call beside text",
        [whole(answer("tool_calls", tool_calls=[WHERE], content="Let me look.")), whole(completion())],
    ),
    Case("has a broken call", [whole(answer("tool_calls", tool_calls=[CUT], content=None)), whole(completion())]),
    Case("has a call and then an error", [CALLS, whole({"error": {"message": "no"}}, 400)]),
    Case("has a call and then none that is whole", [CALLS, reset, streamed(chunk({"content": "Hel"})), whole("")]),
    Case("says what it thinks", [whole(completion(reasoning_content="hm"))]),
    Case("says nothing", [whole(completion(""))]),
    Case("says half of a pair", [whole(completion("a \ud800 b \ud83d\ude00"))]),
    Case("says much", [whole(completion("word " * 20_000))]),
    Case("has fields of its own", [whole({**completion(), "system_fingerprint": "fp", "service_tier": "flex"})]),
    Case("is of JSON", [whole(completion("{}"))], body=JSON_FORMAT),
    Case(
        "is of JSON, which no tools may be beside",
        [whole(completion("{}"))] * 2,
        JSON_FORMAT,
        entry={"response_format_with_tools": False},
    ),
    Case("comes behind calls", [whole(completion())], body=SHOWN),
    Case("has no tools on offer", [whole(completion())], body={"metadata": {"tools": "none"}}),
    Case("has tools by name", [whole(completion())], headers={"x-callgate-tools": "get_weather"}),
    Case("must not call", [whole(completion())], body={"tool_choice": "none"}),
    Case("has tools that are described", [whole(completion())], entry={"tool_calling": "hermes"}),
    Case("is kept small", [whole(completion())], entry={"context": {"clear_results_above": 0.5, "tokens": 1000}}),
    Case("is padded in a stream's way", [whole(completion())], body={"stream_options": {"include_obfuscation": True}}),
    Case("shows progress", [whole(completion())], headers={"x-callgate-events": "x"}),
    Case("shows all", [whole(completion())], headers={"x-callgate-events": "trace"}),
]
FEW = frozenset(
    {
        "usual",
        "ends as length",
        "ends as content_filter",
        "has no reason",
        "has a cached prompt",
        "is refused",
        "in a trace",
        "that is recorded",
        "has a call",
        "has a broken call",
        "says what it thinks",
        "says half of a pair",
        "comes behind calls",
    }
)
"""The cases that other sections of the config may change."""
SECTIONS: dict[str, Mapping[str, Any]] = {
    "usual": {},
    "without diagnostics": {"loop": {"diagnostics": False}},
    "with texts": {"record": {"content": True}},
    "without runs": {"record": {"runs": "off"}},
}


@pytest.mark.parametrize("section", SECTIONS)
async def test_what_is_seen_of_an_answer_equals_what_the_loop_tells(
    section: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "full_jitter", lambda *_, **__: 0.0)
    sections = SECTIONS[section]
    cases = [*CASES, *OF_TOOLS]
    if section != "usual":
        cases = [case for case in cases if case.name in FEW]
    fast = await seen(sections, cases, ["get_weather"])
    monkeypatch.setattr(Conversation, "_is_plain", lambda conversation: False)
    looped = await seen(sections, cases, ["get_weather"])
    for name, told in looped.items():
        assert fast[name] == told, name


@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
async def test_what_is_seen_of_it_on_other_apis_is_what_the_loop_tells(
    path: str, section: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "full_jitter", lambda *_, **__: 0.0)
    sections = SECTIONS[section]
    cases = [case for case in (*CASES, *OF_TOOLS) if not case.body and (section == "usual" or case.name in FEW)]
    fast = await seen(sections, cases, ["get_weather"], path)
    monkeypatch.setattr(Conversation, "_is_plain", lambda conversation: False)
    looped = await seen(sections, cases, ["get_weather"], path)
    for name, told in looped.items():
        assert fast[name] == told, name


async def test_a_client_that_leaves_is_counted_and_logged_as_by_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passed, "make_config", lambda url: make_config(url, tools=["get_weather"]))
    assert await passed.seen_of_leaving() == (await passed.seen_of_leaving(monkeypatch))


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
async def test_a_usual_answer_needs_no_loop(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Conversation, "_chat")
    async with (
        raw_provider(whole(completion("Cold."))) as provider,
        serve(create_app(make_config(provider.url, tools=["get_weather"]))) as url,
        http_client(url) as client,
    ):
        answered = await client.post(path, json=hello(path=path))
    assert "Cold." in answered.text
    assert provider.requests[0].body["tools"][0]["function"]["name"] == "get_weather"


usages = st.sampled_from([Usage({}), Usage({"prompt_tokens": 1}), Usage({"completion_tokens": "x"})])
reasons = st.sampled_from(["stop", "length", "tool_calls", "content_filter", "STOP", " ", "", "odd", "function_call"])
events = (
    st.text(max_size=3).map(TextDelta)
    | st.sampled_from(["\ud800", "\ud83d\ude00"]).map(TextDelta)
    | reasons.map(Finished)
    | st.builds(Finished, reasons, reasons.map(OPEN.judge))
    | usages
    | st.builds(ProviderHead, st.none() | st.text(max_size=2))
    | st.just(ReasoningDelta("hm"))
    | st.just(CallWritten("f", "{}", "call_1"))
)


@given(said=st.lists(events, max_size=5))
def test_a_turn_of_text_is_the_one_that_is_built(said: list[ModelEvent]) -> None:
    turn = whole_turn_fast(said, NO_OFFER, 0)
    if turn is None:
        return
    builder = TurnBuilder(offer={}, ids=str)
    builder.feed(said)
    assert turn == builder.finish()


@pytest.mark.parametrize("reason", ["stop", "length"])
def test_the_usual_events_are_a_turn_of_text(reason: str) -> None:
    assert (
        whole_turn_fast([ProviderHead("c", "m"), TextDelta("hi"), Finished(reason), Usage({})], NO_OFFER, 0) is not None
    )
