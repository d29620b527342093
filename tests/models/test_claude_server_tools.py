"""Tools that Anthropic runs itself: their calls are nobody's here, and an answer that pauses for them goes on."""

import pytest

from callgate.calls.states import ReadyCall
from callgate.conversation.errors import BrokenOff
from callgate.models.catalogue import Catalogue
from callgate.models.resolve import ModelConfig
from callgate.models.retry import RetryPolicy
from callgate.models.translated.model import MOST_PAUSES
from tests.models.through_litellm import MARKS, both_ways, turn_of
from tests.models.wire import QUICK, asking, raw_provider, tool

pytestmark = MARKS

NOW = tool("now", place={"type": "string"})
SEARCH = {"web_search_options": {"search_context_size": "low"}}
SEARCHING = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "weather"}}
FOUND = {
    "type": "web_search_tool_result", "tool_use_id": "srvtoolu_1",
    "content": [{"type": "web_search_result", "url": "https://a.example", "title": "A", "encrypted_content": "x", "page_age": None}],
}  # fmt: skip
ASIDE = {"type": "text", "text": "I look it up. "}
ANSWER = {"type": "text", "text": "It rains."}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "now", "input": {"place": "Lisbon"}}


def whole(*content, reason="end_turn"):
    usage = {"input_tokens": 5, "output_tokens": 3}
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x", "stop_sequence": None}
    return {**head, "content": list(content), "stop_reason": reason, "usage": usage}


def streamed(*content, reason="end_turn"):
    usage = {"input_tokens": 5, "output_tokens": 1}
    yield {"type": "message_start", "message": {**whole(), "stop_reason": None, "usage": usage}}
    for at, block in enumerate(content):
        start, deltas = {**block}, []
        if block["type"] == "text":
            start["text"], deltas = "", [{"type": "text_delta", "text": block["text"]}]
        elif block["type"] in {"server_tool_use", "tool_use"}:
            name, value = next(iter(block["input"].items()))
            start["input"] = {}
            deltas = [
                {"type": "input_json_delta", "partial_json": piece} for piece in (f'{{"{name}": ', f'"{value}"}}')
            ]
        yield {"type": "content_block_start", "index": at, "content_block": start}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": at, "delta": delta}
        yield {"type": "content_block_stop", "index": at}
    yield {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 3}}
    yield {"type": "message_stop"}


def saying(*content, reason="end_turn"):
    async def serve(request, wire):
        if request.body["stream"]:
            await wire.head()
            for event in streamed(*content, reason=reason):
                await wire.event(event)
            wire.writer.close()
        else:
            await wire.whole(whole(*content, reason=reason))

    return serve


@pytest.fixture
def model(client):
    def make(server):
        params = {"model": "anthropic/claude-sonnet-4-5", "api_base": server.url, "api_key": "k"}
        return Catalogue([ModelConfig("m", params, deadlines=QUICK)], client, policy=RetryPolicy(tries=1)).model("m")

    return make


def search_request(stream):
    return asking(stream=stream, tools=[NOW], params=SEARCH)


@both_ways
async def test_a_finished_answer_with_a_search_in_it_has_no_calls(model, stream):
    async with raw_provider(saying(ASIDE, SEARCHING, FOUND, ANSWER)) as server:
        turn, broke, _ = await turn_of(model(server), search_request(stream))
    assert (turn.text, turn.calls, turn.reasons, broke) == ("I look it up. It rains.", (), ("end_turn",), None)


@both_ways
async def test_of_a_search_and_a_call_the_call_is_a_call(model, stream):
    async with raw_provider(saying(SEARCHING, FOUND, CALL, reason="tool_use")) as server:
        turn, _, _ = await turn_of(model(server), search_request(stream))
    assert [(type(call), call.name, call.arguments) for call in turn.calls] == [(ReadyCall, "now", {"place": "Lisbon"})]


@both_ways
@pytest.mark.parametrize("before", [(ASIDE, SEARCHING, FOUND), (SEARCHING,)], ids=["said", "silent"])
async def test_a_pause_is_no_end_the_answer_goes_on_with_what_was_said(model, stream, before):
    async with raw_provider(saying(*before, reason="pause_turn"), saying(ANSWER)) as server:
        turn, broke, _ = await turn_of(model(server), search_request(stream))
    assert turn.text == ("I look it up. It rains." if ASIDE in before else "It rains.")
    assert (turn.reasons, turn.calls, broke) == (("end_turn",), (), None)
    assert (turn.usage.report["prompt_tokens"], turn.usage.report["completion_tokens"]) == (10, 6)
    first, second = (request.body["messages"] for request in server.requests)
    assert second == [*first, {"role": "assistant", "content": list(before)}]


async def test_who_pauses_for_ever_is_left(model):
    async with raw_provider(saying(ASIDE, SEARCHING, reason="pause_turn")) as server:
        _, broke, _ = await turn_of(model(server), search_request(True))
    assert isinstance(broke, BrokenOff)
    assert len(server.requests) == MOST_PAUSES + 1


async def test_a_failure_after_a_pause_breaks_the_answer_off(model):
    async def refuse(request, wire):
        await wire.whole({"error": {"type": "overloaded_error", "message": "busy"}}, 529)

    async with raw_provider(saying(ASIDE, SEARCHING, reason="pause_turn"), refuse) as server:
        turn, broke, _ = await turn_of(model(server), search_request(True))
    assert isinstance(broke, BrokenOff)
    assert (turn.text, turn.calls) == ("I look it up. ", ())
