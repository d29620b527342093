"""What every lane promises, held against all of them: the same answer is the same turn, and what fails means the same.

What only one of them does is in its own test: `test_direct_model`, `test_litellm_model`, `test_translated_model`, `test_gemini`.
"""

import asyncio
import contextlib
import json

import pytest

from callgate.calls.states import ReadyCall
from callgate.conversation.errors import BrokenOff, ChatError
from callgate.conversation.events import Finished, ProviderError, TextDelta
from callgate.conversation.finish_words import FinishClass
from callgate.http.interface import Deadlines
from callgate.models import resolve
from callgate.models.direct.model import DirectModel, Endpoint
from callgate.models.litellm_lane.model import LiteLLMModel
from callgate.models.resolve import LiteLLMSettings, ModelConfig
from callgate.models.translated.model import TranslatedModel
from tests.models.through_litellm import MARKS, both_ways, turn_of
from tests.models.wire import QUICK, SSE, asking, chunk, closing, raw_provider, tool
from tests.scripted_upstream.script import Call, Cut, ErrorEvent, Hang, Reply, Reset

pytestmark = MARKS

KEY = "sk-planted-key-000111222"
SCRIPTED = "claude-sonnet-4-5"
NOW = tool("now", place={"type": "string"})
LATER = tool("later")
CALL = Call("now", {"place": "Lisbon"})


# The same answer, in the words of each provider -----------------------------------------------------------------------


@pytest.fixture(params=["direct", "litellm", "litellm-claude", "litellm-gemini", "claude", "gemini"])
def lane(request, upstream, client):
    """A scripted model behind one of the APIs, on one of the lanes."""
    upstream.key = KEY
    if request.param == "direct":
        headers = {"Authorization": f"Bearer {KEY}"}
        return DirectModel("m", Endpoint(f"{upstream.url}/chat/completions", SCRIPTED, headers), client, QUICK)
    provider, base = {
        "litellm": ("openai", upstream.url),
        "claude": ("anthropic", upstream.root),
        "gemini": ("gemini", f"{upstream.root}/v1beta"),
    }[request.param.rpartition("-")[2]]
    params = {"model": f"{provider}/{SCRIPTED}", "api_base": base, "api_key": KEY}
    way = resolve.litellm_settings(ModelConfig("m", params))
    through = LiteLLMModel("m", way, QUICK)
    return through if request.param.startswith("litellm") else TranslatedModel("m", way, client, QUICK)


def question(stream):
    return asking(stream=stream, tools=[NOW, LATER])


@both_ways
@pytest.mark.parametrize(
    "reply, winner",
    [
        (Reply(text="Grüße, Welt"), FinishClass.STOP),
        (Reply(text="I look.", calls=[CALL]), None),
        (Reply(calls=[CALL, Call("later", {}), Call("now", {"place": "Porto"})]), None),
        (Reply(text="Once upon a", finish="length"), FinishClass.LENGTH),
    ],
    ids=["text", "call", "parallel", "length"],
)
async def test_the_same_answer_is_the_same_turn_on_every_lane(upstream, lane, stream, reply, winner):
    upstream.script(SCRIPTED, [reply])
    turn, broke, _ = await turn_of(lane, question(stream))
    assert (turn.text, broke) == (reply.text or "", None)
    assert [(type(it), it.name, it.arguments) for it in turn.calls] == [
        (ReadyCall, call.name, dict(call.arguments)) for call in reply.calls
    ]
    assert len({call.id for call in turn.calls}) == len(reply.calls)
    # Google says that it stopped beside a call, too; what counts is that the calls run.
    assert turn.winner is winner or reply.calls
    assert (
        turn.usage.report["total_tokens"]
        == turn.usage.report["prompt_tokens"] + turn.usage.report["completion_tokens"]
        > 0
    )


@pytest.mark.parametrize("fault", [Cut(after=5), Reset(after=5)], ids=["cut", "reset"])
async def test_a_stream_that_breaks_off_is_not_an_answer_on_any_lane(upstream, lane, fault):
    upstream.script(SCRIPTED, [Reply(text="I look it up, and then I tell you all of it.", calls=[CALL], fault=fault)])
    turn, broke, _ = await turn_of(lane, question(True))
    assert not any(isinstance(call, ReadyCall) for call in turn.calls)
    assert isinstance(broke, BrokenOff)
    assert turn.reasons == ()


@both_ways
async def test_a_key_that_is_refused_is_the_operators_to_mend_on_every_lane(upstream, lane, stream):
    upstream.key = "another"
    upstream.script(SCRIPTED, [Reply(text="never")])
    with pytest.raises(ChatError) as caught:
        await turn_of(lane, question(stream))
    assert (caught.value.status, caught.value.code) == (502, "upstream_auth")
    assert KEY not in f"{caught.value.envelope()}{caught.value.detail}"
    assert len(upstream.requests) == 1


async def test_an_error_before_anything_else_is_the_requests_on_every_lane(upstream, lane):
    upstream.script(SCRIPTED, [Reply(text="x", fault=ErrorEvent(after=0, message="Overloaded"))])
    with pytest.raises(ChatError) as caught:
        await turn_of(lane, question(True))
    assert caught.value.status >= 500


async def test_leaving_a_lane_in_the_middle_closes_the_connection(upstream, lane):
    upstream.script(SCRIPTED, [Reply(text="I look it up, and then I tell you.", fault=Hang(after=4))])
    async with asyncio.timeout(60), lane.send(asking()) as answer:
        async for batch in answer:
            if any(isinstance(event, TextDelta) for event in batch):
                break
    assert await upstream.requests[0].until_closed() == "client_disconnected"


# The same bytes of OpenAI's shape, on the lanes that read it ------------------------------------------------------------


@pytest.fixture(params=["direct", "litellm"])
def model(request, client):
    def make(server, deadlines=QUICK):
        if request.param == "direct":
            endpoint = Endpoint(f"{server.url}/v1/chat/completions", "real-m", secrets=(KEY,))
            return DirectModel("m", endpoint, client, deadlines)
        arguments = {"model": "openai/m", "api_base": f"{server.url}/v1", "api_key": KEY}
        return LiteLLMModel("m", LiteLLMSettings(arguments, (KEY,)), deadlines)

    return make


async def events(model, request):
    async with asyncio.timeout(60), model.send(request) as answer:
        return [event async for batch in answer for event in batch]


def streaming(*payloads):
    async def serve(request, wire):
        await wire.head()
        for payload in payloads:
            await wire.event(payload)
        await wire.event("[DONE]")

    return closing(serve)


@pytest.mark.parametrize("finishes", [["MALFORMED_FUNCTION_CALL"], ["tool_calls", "stop"], ["end_turn"]])
async def test_a_streams_finish_reasons_are_the_providers_own(model, finishes):
    chunks = [chunk({"content": "x"}), *(chunk(finish=finish) for finish in finishes)]
    async with raw_provider(streaming(*chunks)) as server:
        found = await events(model(server), asking())
    assert [event.reason for event in found if isinstance(event, Finished)] == finishes


async def test_an_error_event_in_the_middle_is_part_of_the_turn(model):
    error = {"error": {"message": "overloaded", "type": "server_error", "code": 500}}
    async with raw_provider(streaming(chunk({"content": "Hi"}), error)) as server:
        found = await events(model(server), asking())
    assert [event.message for event in found if isinstance(event, ProviderError)] == ["overloaded"]


@both_ways
@pytest.mark.parametrize(
    "status, expected, code",
    [
        (400, 400, "invalid_value"), (401, 502, "upstream_auth"), (403, 502, "upstream_auth"), (404, 404, "model_not_found"),
        (429, 429, "rate_limit_exceeded"), (500, 502, "upstream_error"), (503, 503, "upstream_overloaded"),
    ],
)  # fmt: skip
async def test_errors_are_mapped_scrubbed_and_asked_for_once(model, status, expected, code, stream):
    said = {"message": f"The model m says no: {KEY}", "code": "invalid_value" if status == 400 else None, "param": "n"}

    async def serve(request, wire):
        await wire.whole({"error": said}, status, "Retry-After: 7")

    async with raw_provider(serve) as server:
        with pytest.raises(ChatError) as caught:
            await events(model(server), asking(stream=stream))
    assert (caught.value.status, caught.value.code) == (expected, code)
    assert "planted" not in f"{caught.value.envelope()}{caught.value.detail}"
    assert caught.value.retry_after == (7 if status in {429, 503} else None)
    assert len(server.requests) == 1
    if status == 400:
        # What litellm is sent back is masked where it comes in, letter by letter; elsewhere the writer names what it left out.
        assert caught.value.message in {f"The model m says no: {mask}" for mask in ("[redacted]", "*" * len(KEY))}


@both_ways
async def test_a_hanging_provider_meets_our_deadline(model, stream):
    async def serve(request, wire):
        await wire.peer_left()

    async with raw_provider(serve) as server:
        with pytest.raises(ChatError) as caught:
            await events(model(server, Deadlines(2, 0.3, 5, 5)), asking(stream=stream))
    assert (caught.value.status, caught.value.code) == (504, "upstream_timeout")
    assert len(server.requests) == 1


@pytest.mark.parametrize("deadlines", [Deadlines(2, 5, 0.3, 10), Deadlines(2, 5, 5, 0.8)], ids=["idle", "total"])
async def test_silence_and_slow_drips_meet_our_deadlines(model, deadlines):
    async def serve(request, wire):
        await wire.head()
        await wire.event(chunk({"content": "x "}))
        while deadlines.idle > 1:
            await wire.event(chunk({"content": "x "}))
            await asyncio.sleep(0.05)
        await wire.peer_left()

    async with raw_provider(closing(serve)) as server:
        with pytest.raises(BrokenOff) as caught:
            await events(model(server, deadlines), asking())
    assert caught.value.transport_error


async def test_deadlines_are_met_in_a_task_that_was_cancelled_before_and_lived_on(model):
    async def serve(request, wire):
        await wire.head()
        await wire.event(chunk({"content": "x "}))
        await wire.peer_left()

    async def ask_after_a_cancellation(url):
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        await events(model(url, Deadlines(2, 5, 0.2, 10)), asking())

    async with raw_provider(closing(serve)) as server:
        with pytest.raises(BrokenOff):
            await asyncio.create_task(ask_after_a_cancellation(server))


@both_ways
@pytest.mark.parametrize("begun", [True, False], ids=["begun", "silent"])
async def test_a_client_that_leaves_closes_the_upstream_connection(model, stream, begun):
    arrived, left = asyncio.Event(), asyncio.Event()

    async def serve(request, wire):
        if begun:
            await wire.head(200, SSE if stream else "application/json")
            await wire.send(f"data: {json.dumps(chunk({'content': 'x'}))}\n\n" if stream else '{"choices":')
        arrived.set()
        await wire.peer_left()
        left.set()

    async with raw_provider(serve) as server, asyncio.timeout(60):
        task = asyncio.create_task(events(model(server), asking(stream=stream)))
        await arrived.wait()
        task.cancel()
        await asyncio.wait([task])
        async with asyncio.timeout(60):
            await left.wait()
    assert task.cancelled()
