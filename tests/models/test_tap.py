"""What litellm's HTTP client receives, and one contract test for each fact about litellm that the tap depends on.

A contract test that fails after an update of litellm says what broke. Until it is mended nothing is seen on litellm's lane,
and no call runs there.
"""

import asyncio
import contextvars
import gzip
import inspect
import sys

import httpx
import pytest
import structlog

from callgate.calls.states import BrokenCall, Finding, ReadyCall
from callgate.config import redaction
from callgate.config.redaction import Redactor
from callgate.conversation.errors import BrokenOff, ChatError
from callgate.http.interface import Broken
from callgate.models import litellm_model
from callgate.models.litellm_lane import tap
from callgate.models.litellm_lane.echoes import mask_echoes
from callgate.models.litellm_lane.model import LiteLLMModel
from callgate.models.litellm_lane.raw_end import judge
from callgate.models.litellm_lane.tap import BodyState, Exchange
from callgate.models.litellm_lane.tapped_answer import FormSearch, WireFormat
from callgate.models.resolve import LiteLLMSettings
from tests.models.through_litellm import MARKS, both_ways, turn_of
from tests.models.wire import QUICK, SSE, asking, chunk, closing, completion, raw_provider, tool

pytestmark = MARKS

NOW = tool("now", place={"type": "string"})
CALL = {"index": 0, "id": "c1", "type": "function", "function": {"name": "now", "arguments": '{"place":"Lisbon"}'}}


@pytest.fixture
async def litellm():
    return await litellm_model.loaded()


def at(server, model="openai/m", **more):
    arguments = {"model": model, "api_base": f"{server.url}/v1", "api_key": "sk-planted-key-000111222"}
    return LiteLLMModel("m", LiteLLMSettings(arguments), QUICK, **more)


def answering(reason="tool_calls", place="Lisbon", together=None):
    """Serves one call, streamed or whole as it is requested."""

    async def serve(request, wire):
        if together is not None:
            await together.wait()
        found = request.body["messages"][0]["content"] if place is None else place
        written = {**CALL, "function": {"name": "now", "arguments": f'{{"place":"{found}"}}'}}
        if request.body.get("stream"):
            await wire.head()
            await wire.event(chunk({"tool_calls": [written]}))
            await wire.event(chunk(finish=reason))
            await wire.event("[DONE]")
        else:
            await wire.whole(completion("", reason, tool_calls=[written]))

    return closing(serve)


def ran(turn):
    return [call.arguments for call in turn.calls if isinstance(call, ReadyCall)]


# What litellm is relied upon for --------------------------------------------------------------------------------------


async def test_the_method_that_makes_transports_is_public_and_static(litellm):
    from litellm.llms.custom_httpx.http_handler import AsyncHTTPHandler

    method = inspect.getattr_static(AsyncHTTPHandler, tap.METHOD)
    assert isinstance(method, staticmethod), "litellm's transports are made elsewhere: nothing is seen"
    assert hasattr(method.__func__, "__wrapped__"), "the tap is not installed"
    expected = {"ssl_context", "ssl_verify", "shared_session"}
    assert set(inspect.signature(method.__func__).parameters) >= expected, "its arguments are others"


async def test_all_clients_of_litellm_take_their_transport_from_it(litellm):
    from litellm.llms.custom_httpx.http_handler import AsyncHTTPHandler, get_async_httpx_client
    from litellm.llms.openai.common_utils import BaseOpenAILLM
    from litellm.types.utils import LlmProviders

    clients = [
        AsyncHTTPHandler().client,
        get_async_httpx_client(LlmProviders.DATABRICKS).client,
        BaseOpenAILLM._get_async_http_client(),
        litellm.module_level_aclient.client,
    ]
    for client in clients:
        assert isinstance(client._transport, tap._TappedTransport), "litellm has clients that are not seen"
    for client in clients[:1] + clients[2:3]:
        await client.aclose()


async def test_a_tapped_transport_is_still_what_litellm_looks_for(litellm):
    from litellm.llms.custom_httpx.aiohttp_transport import LiteLLMAiohttpTransport
    from litellm.llms.custom_httpx.http_handler import AsyncHTTPHandler

    made = AsyncHTTPHandler.create_async_transport()
    assert isinstance(made, LiteLLMAiohttpTransport), "litellm closes only transports of its own class"
    await made.aclose()


async def test_the_tap_is_installed_once(litellm):
    from litellm.llms.custom_httpx.http_handler import AsyncHTTPHandler

    before = inspect.getattr_static(AsyncHTTPHandler, tap.METHOD)
    assert tap.install()
    assert inspect.getattr_static(AsyncHTTPHandler, tap.METHOD) is before


async def test_a_litellm_without_the_method_is_told_of_and_nothing_is_seen(litellm, monkeypatch):
    monkeypatch.setattr(tap, "METHOD", "gone_in_a_newer_one")
    with structlog.testing.capture_logs() as logs:
        assert not tap.install()
    assert [line["event"] for line in logs] == ["tap_not_installed"]


@both_ways
async def test_where_nothing_is_seen_nothing_runs_and_it_is_told_once(litellm, monkeypatch, stream):
    monkeypatch.setattr(Exchange, "take", lambda *arguments: None)
    async with raw_provider(answering()) as server:
        model = at(server)
        with structlog.testing.capture_logs() as logs:
            turns = [(await turn_of(model, asking(stream=stream, tools=[NOW])))[0] for _ in range(2)]
    for turn in turns:
        assert [type(call) for call in turn.calls] == [BrokenCall]
        assert Finding.END_NOT_SEEN in turn.findings
        assert turn.failure is None, "it is no failure of the deployment"
    assert [(line["event"], line["model"]) for line in logs] == [("end_not_seen", "m")]
    assert "trust_litellm" in logs[0]["todo"]


@both_ways
async def test_with_trust_calls_run_on_litellms_word(litellm, monkeypatch, stream):
    monkeypatch.setattr(Exchange, "take", lambda *arguments: None)
    async with raw_provider(answering()) as server:
        turn, _, raw = await turn_of(at(server, trusts_litellm=True), asking(stream=stream, tools=[NOW]))
    assert (ran(turn), raw) == ([{"place": "Lisbon"}], False)


# Exchanges are not mixed ----------------------------------------------------------------------------------------------


@both_ways
@pytest.mark.parametrize("provider", ["openai", "snowflake"])
async def test_concurrent_requests_over_one_client_each_see_their_own_answer(litellm, stream, provider):
    """By the OpenAI SDK, and by litellm's own handler."""
    places = [f"place{number}" for number in range(12)]
    together = asyncio.Barrier(len(places))
    async with raw_provider(answering(place=None, together=together)) as server:
        model = at(server, f"{provider}/m")
        tasks = [asyncio.create_task(turn_of(model, asking(place, stream=stream, tools=[NOW]))) for place in places]
        turns = [turn for turn, _, _ in await asyncio.gather(*tasks)]
    assert [ran(turn) for turn in turns] == [[{"place": place}] for place in places]


async def test_of_two_answers_in_one_exchange_none_is_believed(litellm, monkeypatch):
    """As when something that litellm does beside the request receives an answer of its own."""
    async with raw_provider(answering()) as server:
        model = at(server)
        original = litellm.acompletion

        async def twice(**arguments):
            await original(**arguments)
            return await original(**arguments)

        monkeypatch.setattr(litellm, "acompletion", twice)
        turn, _, _ = await turn_of(model, asking(stream=False, tools=[NOW]))
    assert [type(call) for call in turn.calls] == [BrokenCall]
    assert Finding.END_NOT_SEEN in turn.findings


async def test_requests_of_tasks_belong_to_the_exchange_that_began_them(litellm):
    from litellm.llms.custom_httpx.http_handler import AsyncHTTPHandler

    async with raw_provider(answering()) as server:
        handler = AsyncHTTPHandler()
        body = {"messages": [{"content": "x"}]}
        mine, other = Exchange(10**6), Exchange(10**6)
        with mine.watched():
            task = asyncio.create_task(handler.post(server.url, json=body))
        with other.watched():
            thread = contextvars.copy_context()
        await asyncio.gather(task, asyncio.create_task(handler.post(server.url, json=body), context=thread))
        await handler.post(server.url, json=body)
        assert (len(mine.responses), len(other.responses), len(server.requests)) == (1, 1, 3)
        await mine.close()
        task = asyncio.create_task(handler.post(server.url, json=body), context=thread)
        await other.close()
        await task
        assert (mine.responses, other.responses) == ([], []), "an exchange that is over takes nothing more"
        await handler.close()


async def test_a_request_outside_of_an_exchange_is_not_touched(litellm):
    from litellm.llms.custom_httpx.http_handler import AsyncHTTPHandler

    async with raw_provider(answering()) as server:
        handler = AsyncHTTPHandler()
        response = await handler.post(server.url, json={"messages": [{"content": "x"}]})
        assert response.status_code == 200
        assert not isinstance(response.stream, tap.TappedBody)
        assert "identity" not in server.requests[0].headers["accept-encoding"]
        await handler.close()


# Bodies ---------------------------------------------------------------------------------------------------------------


class _Pieces(httpx.AsyncByteStream):
    def __init__(self, *pieces, error=None):
        self.pieces, self.error, self.closed = pieces, error, False

    async def __aiter__(self):
        for piece in self.pieces:
            yield piece
        if self.error is not None:
            raise self.error

    async def aclose(self):
        self.closed = True


def tapped_body(*pieces, error=None, most=1000):
    exchange = Exchange(most)
    stream = _Pieces(*pieces, error=error)
    exchange.take(httpx.Response(200, stream=stream), "http://model")
    return exchange, exchange.responses[0], stream


async def test_both_readers_get_every_byte_whoever_reads_first(litellm):
    for order in ("uullu", "lulul", "uuuul", "lllll"):
        _, body, _ = tapped_body(b"a", b"b", b"c")
        ours, theirs = b"", b""
        litellms = aiter(body)
        for who in order + "uuuullll":
            if who == "u":
                ours += await body.read() or b""
            else:
                theirs += await anext(litellms, b"")
        assert (ours, theirs, body.state) == (b"abc", b"abc", BodyState.ENDED)


async def test_a_body_that_breaks_off_breaks_off_for_both(litellm):
    _, body, _ = tapped_body(b"a", error=httpx.ReadError("reset"))
    assert await body.read() == b"a"
    with pytest.raises(Broken):
        await body.read()
    litellms = aiter(body)
    assert await anext(litellms) == b"a"
    with pytest.raises(httpx.ReadError):
        await anext(litellms)
    assert body.state is BodyState.BROKEN


async def test_what_was_sent_is_masked_for_both_and_a_broken_body_is_given_as_far_as_it_came(litellm):
    key = b"planted-key-000111222"
    request = httpx.Request("POST", "http://model", headers={"authorization": f"Bearer {key.decode()}"})
    pieces = (b"a", key[:9], key[9:], b"b planted")
    stream = _Pieces(*pieces, error=httpx.ReadError("reset"))
    response = httpx.Response(200, stream=stream)
    mask_echoes(response, request, ())
    exchange = Exchange(1000)
    exchange.take(response, "http://model")
    (body,) = exchange.responses
    masked = [b"a", b"*" * len(key), b"b ", b"planted"]
    assert [await body.read() for _ in masked] == masked
    with pytest.raises(Broken):
        await body.read()
    litellms = aiter(body)
    assert [await anext(litellms) for _ in masked] == masked
    with pytest.raises(httpx.ReadError):
        await anext(litellms)
    await exchange.close()
    assert stream.closed


async def test_a_secret_of_extra_body_is_masked_on_litellms_lane(litellm, monkeypatch):
    secret = "planted/team+000111222"
    monkeypatch.setattr(redaction, "current", Redactor([secret]))

    async def echo(request, wire):
        await wire.whole(completion(request.body["team"]))

    async with raw_provider(echo) as server:
        arguments = {
            "model": "openai/m",
            "api_base": f"{server.url}/v1",
            "api_key": "none",
            "extra_body": {"team": secret},
        }
        settled = LiteLLMModel("m", LiteLLMSettings(arguments), QUICK)
        turn, _, _ = await turn_of(settled, asking(stream=False))
    assert turn.text == "*" * len(secret)


async def test_where_nothing_secret_was_sent_the_body_is_as_it_came(litellm):
    stream = _Pieces(b"a")
    response = httpx.Response(200, stream=stream)
    mask_echoes(response, httpx.Request("POST", "http://model", headers={"x-team": "blue"}), ())
    assert response.stream is stream


async def test_a_body_that_is_closed_early_has_not_ended_and_is_closed_once(litellm):
    exchange, body, stream = tapped_body(b"a", b"b")
    await body.read()
    await exchange.close()
    assert (body.state, stream.closed, exchange.responses) == (BodyState.BROKEN, True, [])


@both_ways
async def test_an_answer_over_the_limit_is_refused(litellm, stream):
    async with raw_provider(answering(place="x" * 5000)) as server:
        with pytest.raises(ChatError) as caught:
            await turn_of(at(server, answer_bytes=4000), asking(stream=stream, tools=[NOW]))
    assert caught.value.code == "answer_too_large"


async def test_a_compressed_body_is_not_seen(litellm):
    async def serve(request, wire):
        assert request.headers["accept-encoding"] == "identity"
        body = completion("", "tool_calls", tool_calls=[CALL])
        await wire.whole(gzip.compress(httpx.Response(200, json=body).content), 200, "Content-Encoding: gzip")

    async with raw_provider(closing(serve)) as server:
        turn, _, _ = await turn_of(at(server), asking(stream=False, tools=[NOW]))
    assert [type(call) for call in turn.calls] == [BrokenCall]
    assert Finding.END_NOT_SEEN in turn.findings


async def test_what_litellm_cannot_read_is_read_as_on_the_direct_lane(litellm):
    """It fails where the arguments are a list in a chunk, and at the content in parts."""
    body = completion("", "tool_calls", tool_calls=[CALL])
    body["choices"][0]["message"]["content"] = [{"type": "text", "text": "Hi"}]
    async with raw_provider(closing(lambda request, wire: wire.whole(body))) as server:
        turn, _, _ = await turn_of(at(server), asking(stream=False, tools=[NOW]))
    assert (turn.text, ran(turn)) == ("Hi", [{"place": "Lisbon"}])


async def test_keep_alives_in_a_stream_are_skipped(litellm):
    async def serve(request, wire):
        await wire.head()
        await wire.event(chunk({"tool_calls": [CALL]}))
        await wire.send("data: : keepalive\n\n")
        await wire.event(chunk(finish="stop"))
        await wire.event("[DONE]")

    async with raw_provider(closing(serve)) as server:
        turn, broke, _ = await turn_of(at(server), asking(tools=[NOW]))
    assert (ran(turn), turn.reasons, broke) == ([{"place": "Lisbon"}], ("stop",), None)


async def test_a_stream_that_goes_silent_is_given_up(litellm):
    silent = type(QUICK)(connect=2, first_byte=5, idle=0.2, total=10)

    async def serve(request, wire):
        await wire.head()
        await wire.event(chunk({"content": "Hm"}))
        await wire.peer_left()

    async with raw_provider(closing(serve)) as server:
        model = at(server)
        model._deadlines = silent
        _, broke, _ = await turn_of(model, asking(tools=[NOW]))
    assert isinstance(broke, BrokenOff)
    assert broke.transport_error


# Forms and ends ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "form"),
    [
        (b'data: {"choices": []}\n\n', WireFormat.CHAT_EVENTS),
        (b': hi\n\ndata: {"choices": [{"delta": {}}]}\n\n', WireFormat.CHAT_EVENTS),
        (b'data: {"error": {"message": "x"}}\n\n', WireFormat.CHAT_EVENTS),
        (b'event: ping\ndata: {"type": "ping"}\n\ndata: {"type": "message_start"}\n\n', WireFormat.CLAUDE_EVENTS),
        (b'data: {"candidates": [{}]}\n\n', WireFormat.GEMINI_EVENTS),
        (b'data: {"type": "message-start"}\n\n', WireFormat.COHERE_EVENTS),
        (b'data: {"type": "response.created"}\n\n', WireFormat.RESPONSES_EVENTS),
        (b'data: {"choices": [{"text": "hi"}]}\n\n', None),
        (b'data: {"odd": 1}\n\n', None),
        (b"data: [DONE]\n\n", "undecided"),
        (b'data: {"choi', "undecided"),
        (b'{"model": "m"}\n{"model"', None),
        (b'{"choices": [', "undecided"),
        (b"", "undecided"),
    ],
)
async def test_a_form_is_found_in_the_beginning_of_a_body(start, form):
    assert FormSearch(SSE).feed(start) == form
    search = FormSearch(SSE)
    verdicts = [search.feed(start[at : at + 1]) for at in range(len(start))]
    assert next((verdict for verdict in verdicts if verdict != "undecided"), "undecided") == form


@pytest.mark.parametrize(
    ("body", "form"),
    [
        (b'{"choices": [{"message": {}}]}', WireFormat.CHAT_WHOLE),
        (b'{"choices": [{"message": {"content": "I ', WireFormat.CHAT_WHOLE),
        (b'{"choices": [{"text": "hi"}]}', None),
        (b'{"type": "message", "content": []}', WireFormat.CLAUDE_WHOLE),
        (b'{"candidates": []}', WireFormat.GEMINI_WHOLE),
        (b'{"object": "response", "output": []}', WireFormat.RESPONSES_WHOLE),
        (b'{"message": {}, "finish_reason": "COMPLETE"}', WireFormat.COHERE_WHOLE),
        (b'{"message": {}, "done": true, "done_reason": "stop"}', None),
        (b'{"output": {"message": {"content": []}}, "stopReason": "x"}', WireFormat.BEDROCK_WHOLE),
        (b'{"error": {"message": "no"}}', WireFormat.CHAT_WHOLE),
        (b'{"access_token": "t"}', None),
        (b"[]", None),
        (b"null", None),
    ],
)
async def test_the_form_of_a_whole_body_is_found(body, form):
    whole = FormSearch("application/json")
    cut = FormSearch("application/json")
    assert {whole.feed(body), *(cut.feed(body[at : at + 1]) for at in range(len(body)))} == {"undecided"}
    assert (whole.finish(), cut.finish()) == (form, form)


OLLAMA = b'{"message": {"content": "x", "tool_calls": [{}]}, "done": false}\n{"done": true, "done_reason": "stop"}\n'
OCI = b'{"chatResponse": {"finishReason": "COMPLETE", "toolCalls": [{"parameters": {"finishReason": "ERROR"}}]}}'
TEXT = (
    b'data: {"choices": [{"text": "x", "finish_reason": null}]}\n\ndata: {"choices": [{"finish_reason": "stop"}]}\n\n'
)


@pytest.mark.parametrize(
    ("body", "is_whole", "reasons", "is_good"),
    [
        (OLLAMA, True, ("stop",), True),
        (OLLAMA, False, ("stop",), False),
        (OLLAMA.replace(b"stop", b"length"), True, ("length",), False),
        (OLLAMA.replace(b"stop", b"load"), True, ("load",), None),
        (OLLAMA.splitlines()[0], True, ("length",), False),
        (OLLAMA.replace(b'"done": true', b'"done": false'), True, ("stop", "length"), False),
        (OLLAMA.replace(b'"done": true', b'"status": "failed"'), True, ("stop", "failed"), False),
        (OLLAMA[:-20], True, (), False),
        (OLLAMA.replace(b'"done": true', b'"error": "out of memory"'), True, ("stop",), False),
        (OLLAMA.replace(b'"done": true', b'"done_reason": "error"'), True, (), False),
        (OCI, True, ("COMPLETE",), True),
        (OCI.replace(b"COMPLETE", b"ERROR_LIMIT"), True, ("ERROR_LIMIT",), False),
        (b'{"choices": [{"message": {"arguments": {"finish_reason": "stop"}}}]}', True, (), False),
        (TEXT, True, ("stop",), True),
        (TEXT, False, ("stop",), False),
        (TEXT + b"data: [DONE]\n\n", False, ("stop",), True),
        (TEXT + b"event: error\ndata: {}\n\n", True, (), False),
        (TEXT + b"data: what\n\n", True, (), False),
        (b"<html>", True, (), False),
        (b"", True, (), False),
        (b"[" * 5000, True, (), False),
        (b'{"message":' * 5000, True, (), False),
    ],
)
async def test_an_end_is_judged_by_what_the_provider_wrote_at_its_own_places(body, is_whole, reasons, is_good):
    end = judge(body, is_whole=is_whole)
    assert end.reasons == reasons
    if is_good is not None:
        assert (not end.why_not_seen) is is_good


async def test_whoever_needs_no_litellm_does_not_load_what_the_tap_needs():
    code = "import sys, callgate.models.catalogue; sys.exit('httpx' in sys.modules or 'litellm' in sys.modules)"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    assert await process.wait() == 0
