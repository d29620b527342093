"""A whole answer of Claude's on litellm's lane is mapped once, by litellm; nothing else is worked out of it there."""

import pytest
from msgspec.structs import replace

from callgate.conversation.errors import ChatError
from callgate.conversation.events import TextDelta
from callgate.models import litellm_model
from callgate.models import litellm_seam as seam
from callgate.models.litellm_lane import model as lane
from callgate.models.litellm_lane.model import LiteLLMModel
from callgate.models.litellm_lane.tapped_answer import AskedQuestion
from callgate.models.resolve import LiteLLMSettings
from tests.models.reading import text_of
from tests.models.through_litellm import MARKS
from tests.models.wire import QUICK, asking, raw_provider, tool

pytestmark = MARKS

TEXT = {"type": "text", "text": "Hm."}
CALL = {"type": "tool_use", "id": "t1", "name": "t", "input": {"a": 1}}
FORMAT_CALL = {**CALL, "name": "json_tool_call"}
MESSAGE = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x", "stop_reason": "end_turn",
    "content": [TEXT], "usage": {"input_tokens": 3, "output_tokens": 2},
}  # fmt: skip
SEARCH = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "q"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []}
CITED = {**TEXT, "citations": [{"type": "char_location", "cited_text": "c", "document_index": 0}]}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}
CACHED = {"input_tokens": 3, "output_tokens": 2, "cache_read_input_tokens": 7, "cache_creation_input_tokens": 5}
REASONS = ("end_turn", "tool_use", "max_tokens", "refusal", "stop_sequence", "pause_turn", "strange", "", None, 7)
ANSWERS = {
    **{f"{reason!r} of {name}": {**MESSAGE, "stop_reason": reason, "content": content} for reason in REASONS for name, content in {
        "text": [TEXT], "a call": [TEXT, CALL], "text behind a call": [CALL, TEXT], "nothing": [],
    }.items()},
    **{f"no {name}": {key: value for key, value in MESSAGE.items() if key != name} for name in ("stop_reason", "usage", "model", "id")},
    "two calls": {**MESSAGE, "content": [CALL, {**CALL, "id": "t2", "input": {}}]},
    "input that is text": {**MESSAGE, "content": [{**CALL, "input": "text"}]},
    "input that is null": {**MESSAGE, "content": [{**CALL, "input": None}]},
    "a block that is text": {**MESSAGE, "content": ["odd", CALL]},
    "a strange block": {**MESSAGE, "content": [{"type": "strange"}, CALL]},
    "thinking": {**MESSAGE, "content": [THOUGHT, TEXT]},
    "hidden thinking": {**MESSAGE, "content": [{"type": "redacted_thinking", "data": "x"}, TEXT]},
    "a search": {**MESSAGE, "content": [SEARCH, FOUND, CITED]},
    "what was found": {**MESSAGE, "content": [FOUND, CITED]},
    "usage of a cache": {**MESSAGE, "usage": CACHED},
    "usage that is odd": {**MESSAGE, "usage": {"input_tokens": None, "output_tokens": 2}},
    "a container": {**MESSAGE, "container": {"id": "c"}, "context_management": {"applied_edits": []}},
    "an error": {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
    "no content": {**MESSAGE, "content": None},
}  # fmt: skip


def answering(body):
    async def serve(request, wire):
        await wire.whole(body)

    return serve


async def outcome(server, request):
    """What a conversation is told of the answer: its events, or the error."""
    way = LiteLLMSettings({"model": "anthropic/claude-x", "api_base": server.url, "api_key": "k"})
    try:
        async with LiteLLMModel("m", way, QUICK).send(request) as answer:
            return [event async for batch in answer for event in batch], answer.lane
    except ChatError as error:
        return error.status, error.message, error.code, error.retryable


@pytest.fixture
def maps_twice(monkeypatch):
    """Reads answers as if litellm had not mapped them."""

    def unmapped(**fields):
        return AskedQuestion(**{**fields, "completion": None})

    def switch():
        monkeypatch.setattr(lane, "AskedQuestion", unmapped)

    return switch


async def test_answers_mapped_by_litellm_are_read_as_those_that_are_mapped_here(maps_twice):
    request = asking(stream=False, tools=[tool("t")])
    async with raw_provider(*map(answering, [*ANSWERS.values()] * 2)) as server:
        mapped_by_litellm = {name: await outcome(server, request) for name in ANSWERS}
        maps_twice()
        assert {name: await outcome(server, request) for name in ANSWERS} == mapped_by_litellm


async def test_a_format_that_was_asked_for_as_a_call_comes_as_text(maps_twice):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    request = asking(stream=False, tools=[tool("t")], response_format=form)
    contents = [[FORMAT_CALL], [FORMAT_CALL, CALL], [CALL], [TEXT]]
    answers = [answering({**MESSAGE, "stop_reason": "tool_use", "content": content}) for content in contents]
    async with raw_provider(*answers, *answers) as server:
        mapped_by_litellm = [await outcome(server, request) for _ in contents]
        maps_twice()
        assert [await outcome(server, request) for _ in contents] == mapped_by_litellm
        assert any(sent["name"] == "json_tool_call" for sent in server.requests[0].body["tools"])
    assert [event.text for event in mapped_by_litellm[0][0] if isinstance(event, TextDelta)] == ['{"a": 1}']


async def test_an_answer_is_mapped_once_and_litellm_writes_no_record_of_it(monkeypatch):
    await litellm_model.loaded()
    config = seam.ANTHROPIC_CONFIG.get()
    original = config.transform_parsed_response
    from litellm.litellm_core_utils.litellm_logging import Logging

    happened = []

    def counted(*arguments, **named):
        happened.append("mapped")
        return original(*arguments, **named)

    async def noted(*_, **__):
        happened.append("recorded")

    monkeypatch.setattr(config, "transform_parsed_response", counted)
    monkeypatch.setattr(Logging, "async_success_handler", noted)
    async with raw_provider(answering(MESSAGE)) as server:
        await outcome(server, asking(stream=False))
        await seam.LOGGING_WORKER.get().flush()
    assert happened == ["mapped"]


async def test_a_beginning_that_the_client_wrote_is_part_of_the_answer():
    begun = {"role": "assistant", "content": "Well. ", "prefix": True}
    request = asking(stream=False)
    request = replace(request, messages=[*request.messages, begun])
    async with raw_provider(answering(MESSAGE)) as server:
        events, _ = await outcome(server, request)
    assert text_of(events) == "Well. Hm."
