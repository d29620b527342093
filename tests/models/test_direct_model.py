"""The direct lane over real sockets: what is sent, what is read, and everything that can go wrong in between."""

import asyncio
import codecs
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.calls.json_text import join_halves
from callgate.conversation.errors import BrokenOff, ChatError
from callgate.conversation.events import (
    CallDelta,
    CallWritten,
    CharactersLost,
    Finished,
    ProviderError,
    ProviderHead,
    TextDelta,
)
from callgate.conversation.ports import ModelRequest
from callgate.conversation.usage import Usage
from callgate.http.client import HttpClient
from callgate.http.interface import Deadlines
from callgate.models.direct.model import (
    DirectModel,
    Endpoint,
    _may_have_duplicates,
    has_duplicate_names,
    read_json,
    tolerant_text,
)
from callgate.models.errors import UpstreamError
from callgate.policy.litellm_settings import without_settings
from tests.models.reading import events_until_broken_off, text_of
from tests.models.wire import QUICK, SSE, asking, chunk, closing, completion, raw_provider, tool

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[HttpClient, HttpClient])
async def client(request):
    client = request.param()
    yield client
    await client.close()


@pytest.fixture
def model(client):
    def make(server, deadlines=QUICK, **endpoint):
        return DirectModel("m", Endpoint(f"{server.url}/v1/chat/completions", "real-m", **endpoint), client, deadlines)

    return make


async def batches(model, request):
    async with asyncio.timeout(60), model.send(request) as answer:
        return [list(batch) async for batch in answer]


async def events(model, request):
    return [event for batch in await batches(model, request) for event in batch]


def streaming(*payloads, done=True, head=True):
    async def serve(request, wire):
        if head:
            await wire.head()
        for payload in payloads:
            await wire.event(payload)
        if done:
            await wire.event("[DONE]")

    return closing(serve)


# What is sent -------------------------------------------------------------------------------------


async def test_messages_and_tools_travel_as_the_bytes_they_came_as(model):
    message = b'{"role":"user",  "content":"\\u00e9", "odd": 1e2}'
    schema = b'{"type":"function", "function":{"name":"t",   "parameters":{}}}'
    ask = ModelRequest(
        [msgspec.Raw(message), {"role": "assistant", "content": "x"}],
        [msgspec.Raw(schema)],
        params=without_settings({"top_k": 3}),
    )
    async with raw_provider(streaming(chunk({"content": "x"}))) as server:
        await events(model(server), ask)
    sent = server.requests[0]
    assert message in sent.raw
    assert schema in sent.raw
    assert sent.body["model"] == "real-m"
    assert sent.body["top_k"] == 3
    assert sent.body["stream"] is True
    assert sent.target == "/v1/chat/completions"


async def test_usage_is_asked_for_beside_what_the_client_asked_for(model):
    ask = asking(stream_options=msgspec.Raw(b'{"include_obfuscation":false}'))
    async with raw_provider(streaming(chunk({"content": "x"}))) as server:
        await events(model(server), ask)
        await events(model(server, include_usage=False), ask)
        assert server.requests[0].body["stream_options"] == {"include_obfuscation": False, "include_usage": True}
        assert "stream_options" not in server.requests[1].body


async def test_a_whole_answer_is_asked_for_without_stream_options(model):
    async def serve(request, wire):
        await wire.whole(completion())

    async with raw_provider(serve) as server:
        await events(model(server), asking(stream=False, stream_options={"include_usage": True}))
    assert server.requests[0].body["stream"] is False
    assert "stream_options" not in server.requests[0].body


@pytest.mark.parametrize(
    "field",
    ["api_base", "base_url", "api_key", "extra_headers", "headers", "mock_response", "mock_anything", "client", "timeout",
     "model_list", "deployment_id", "callbacks", "success_callback", "langfuse_host", "aws_access_key_id", "extra_body",
     "custom_llm_provider", "vertex_credentials", "API_BASE", "litellm_metadata", "no-log", "fallbacks"],
)  # fmt: skip
async def test_fields_that_choose_addresses_keys_or_mocks_do_not_travel(model, field):
    async with raw_provider(streaming(chunk({"content": "x"}))) as server:
        await events(model(server), asking(params={field: "http://evil"}))
    assert b"evil" not in server.requests[0].raw
    assert "evil" not in json.dumps(server.requests[0].headers)


async def test_fields_only_some_providers_know_travel_on(model):
    fields = {
        "min_p": 0.1,
        "chat_template_kwargs": {"enable_thinking": False},
        "metadata": {"a": "b"},
        "guided_json": {},
    }
    async with raw_provider(streaming(chunk({"content": "x"}))) as server:
        await events(model(server), asking(params=fields))
    assert {name: server.requests[0].body[name] for name in fields} == fields


async def test_what_needs_tools_is_left_out_without_them(model):
    async with raw_provider(streaming(chunk({"content": "x"}))) as server:
        await events(model(server), asking(tool_choice="none", parallel_tool_calls=False))
        await events(model(server), asking(tool_choice="none", parallel_tool_calls=False, tools=[tool("t")]))
    without, with_tools = (request.body for request in server.requests)
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & set(without)
    assert {"tools", "tool_choice", "parallel_tool_calls"} <= set(with_tools)


async def test_the_operators_defaults_give_way_to_the_request(model):
    async with raw_provider(streaming(chunk({"content": "x"}))) as server:
        await events(model(server, defaults={"temperature": 0, "seed": 7}), asking(temperature=1))
    assert (server.requests[0].body["temperature"], server.requests[0].body["seed"]) == (1, 7)


async def test_the_operators_defaults_that_need_tools_are_left_out_without_them(model):
    async with raw_provider(streaming(chunk({"content": "x"}))) as server:
        await events(model(server, defaults={"parallel_tool_calls": False}), asking())
    assert "parallel_tool_calls" not in server.requests[0].body


async def test_half_a_surrogate_pair_is_the_clients_mistake(model):
    async with raw_provider(streaming()) as server:
        with pytest.raises(ChatError) as caught:
            await events(model(server), asking("\ud800"))
    assert caught.value.status == 400
    assert not server.requests


# What is read -------------------------------------------------------------------------------------


async def test_a_stream_is_read_batch_by_batch_to_its_end_mark(model):
    sent = [asyncio.Event(), asyncio.Event()]

    async def serve(request, wire):
        await wire.head()
        await wire.event(chunk({"role": "assistant", "content": "He"}))
        await sent[0].wait()
        await wire.event(chunk({"content": "llo"}))
        await sent[1].wait()
        await wire.event(chunk(finish="stop"))
        await wire.event(chunk(usage={"total_tokens": 5}, choices=[]))
        await wire.event("[DONE]")

    async with raw_provider(closing(serve)) as server, asyncio.timeout(60), model(server).send(asking()) as answer:
        assert answer.reason_is_raw
        found = []
        async for batch in answer:
            found.append(list(batch))
            if len(found) <= len(sent):
                sent[len(found) - 1].set()
    assert found[0] == [ProviderHead(id="chatcmpl-1", model="m"), TextDelta("He")]
    assert found[1] == [TextDelta("llo")]
    rest = [event for batch in found[2:] for event in batch]
    assert rest == [Finished("stop"), Usage({"total_tokens": 5})]


async def test_a_whole_answer_is_one_batch(model):
    call = {"id": "c1", "type": "function", "function": {"name": "t", "arguments": "{}"}}

    async def serve(request, wire):
        await wire.whole(completion("Hi", tool_calls=[call]))

    async with raw_provider(serve) as server:
        (found,) = await batches(model(server), asking(stream=False))
    assert text_of(found) == "Hi"
    assert [event.name for event in found if isinstance(event, CallWritten)] == ["t"]
    assert Finished("stop") in found


@pytest.mark.parametrize("label", [SSE, "application/json", "text/plain"])
async def test_a_body_is_read_as_what_it_is_and_not_as_what_was_asked_for(model, label):
    async def whole(request, wire):
        await wire.whole(completion("whole"), kind=label)

    async def stream(request, wire):
        await wire.head(200, label)
        await wire.event(chunk({"content": "streamed"}))
        await wire.event("[DONE]")

    async with raw_provider(whole, closing(stream)) as server:
        assert text_of(await events(model(server), asking(stream=True))) == "whole"
        assert text_of(await events(model(server), asking(stream=False))) == "streamed"


async def test_noise_between_events_is_passed_over(model):
    async def serve(request, wire):
        await wire.head()
        await wire.send(b"\xef\xbb\xbf: hello\r\n\r\nretry: 5\r\n\r\n")
        await wire.send("event: x\nid: 1\ndata: : keepalive\n\ndata: ping\n\n")
        await wire.send(f"data:{json.dumps(chunk({'content': 'é'}), ensure_ascii=False)}\r\n\r\n")
        await wire.send("data: null\n\ndata: 5\n\ndata: []\n\ndata: {}\n\n")
        await wire.send("data: [DONE] \n\ndata: after the end\n\n")

    async with raw_provider(closing(serve)) as server:
        assert text_of(await events(model(server), asking())) == "é"


async def test_an_answer_in_single_bytes_is_the_same_answer(model):
    body = (
        "".join(f"data: {json.dumps(chunk({'content': c}), ensure_ascii=False)}\n\n" for c in "né😀")
        + "data: [DONE]\n\n"
    )

    async def serve(request, wire):
        await wire.head()
        for byte in body.encode():
            await wire.send(bytes([byte]))
            await asyncio.sleep(0)

    async with raw_provider(closing(serve)) as server:
        assert text_of(await events(model(server), asking())) == "né😀"


@pytest.mark.parametrize(
    "event",
    [
        'event: error\ndata: {"reason":"gone"}\n\n',
        "event:error\ndata: gone\n\n",
        'data: {"reason":"gone"}\nevent: Error\n\n',
        "event: response.failed\ndata: {}\n\n",
        'data: {"detail":"gone"}\n\n',
        'data: {"code":500,"message":"gone"}\n\n',
        'data: {"object":"error"}\n\n',
        'data: [{"error":{"code":503,"message":"gone"}}]\n\n',
        'data: "upstream request timeout"\n\n',
    ],
)
async def test_an_event_that_reports_an_error_in_any_shape_fails_the_turn(model, event):
    async def serve(request, wire):
        await wire.head()
        await wire.event(chunk({"content": "Hel"}))
        await wire.send(event)
        await wire.event("[DONE]")

    async with raw_provider(closing(serve)) as server:
        found = await events(model(server), asking())
    assert text_of(found) == "Hel"
    assert any(isinstance(one, ProviderError) for one in found)


@pytest.mark.parametrize("junk", [b"\xff", b"\xf0\x9f", b"\xed\xa0\xbd", b"\\ud83d\x80"])
@pytest.mark.parametrize("before", [0, 8], ids=["read", "in the known form of a chunk"])
async def test_bytes_that_are_no_utf8_are_no_characters_of_arguments_and_are_noted_in_text(model, junk, before):
    def piece(arguments):
        return json.dumps(chunk({"tool_calls": [{"index": 0, "function": {"arguments": arguments}}]})).encode()

    async def serve(request, wire):
        await wire.head()
        for _ in range(before):
            await wire.send(b"data: " + piece("x") + b"\n\n")
        await wire.send(b"data: " + piece("a@b").replace(b"@", junk) + b"\n\n")
        await wire.send(b"data: " + json.dumps(chunk({"content": "a@b"})).encode().replace(b"@", junk) + b"\n\n")
        await wire.event("[DONE]")

    async with raw_provider(closing(serve)) as server:
        found = await events(model(server), asking())
    arguments = "".join(one.arguments for one in found if isinstance(one, CallDelta))
    with pytest.raises(UnicodeEncodeError):
        join_halves(arguments).encode()
    assert "\ufffd" in text_of(found)
    assert CharactersLost() in found


async def test_a_character_sent_in_two_escaped_halves_is_one_character(model):
    async def serve(request, wire):
        await wire.head()
        await wire.send('data: {"id":"1","choices":[{"delta":{"content":"a\\ud83d"}}]}\n\n')
        await wire.send('data: {"id":"1","choices":[{"delta":{"content":"\\ude00b"}}]}\n\n')
        await wire.event("[DONE]")

    async with raw_provider(closing(serve)) as server:
        assert text_of(await events(model(server), asking())) == "a😀b"


async def test_a_connection_that_gave_a_whole_stream_is_used_again(model):
    payload = f"data: {json.dumps(chunk({'content': 'x'}))}\n\ndata: [DONE]\n\n".encode()

    async def serve(request, wire):
        await wire.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await wire.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(payload), payload))

    async with raw_provider(serve) as server:
        for _ in range(3):
            await events(model(server), asking())
    assert server.connections == 1


async def test_a_connection_that_gave_a_refusal_is_used_again(model):
    async def serve(request, wire):
        await wire.whole({"error": {"message": "no"}}, 429)

    async with raw_provider(serve) as server:
        for _ in range(3):
            with pytest.raises(ChatError):
                await events(model(server), asking())
    assert server.connections == 1


async def test_nothing_after_the_end_mark_is_waited_for(model):
    left = asyncio.Event()

    async def serve(request, wire):
        await wire.head()
        await wire.event(chunk({"content": "x"}, "stop"))
        await wire.event("[DONE]")
        await wire.peer_left()
        left.set()

    async with raw_provider(serve) as server:
        async with asyncio.timeout(60):
            assert text_of(await events(model(server, Deadlines(2, 30, 30, 30)), asking())) == "x"
            await left.wait()


# What breaks --------------------------------------------------------------------------------------


async def test_a_stream_that_just_ends_is_broken_off_by_its_end(model):
    async with (
        raw_provider(streaming(chunk({"content": "x"}), done=False)) as server,
        model(server).send(asking()) as answer,
    ):
        assert text_of(await anext(answer)) == "x"
        with pytest.raises(BrokenOff) as caught:
            await anext(answer)
    assert not caught.value.transport_error


def framed(*chunks):
    """A body of known length, without an end mark."""
    return b"".join(f"data: {json.dumps(one)}\n\n".encode() for one in chunks)


async def test_a_framed_body_that_ends_behind_its_reason_is_whole_without_an_end_mark(model):
    async def serve(request, wire):
        await wire.whole(framed(chunk({"content": "x"}), chunk({}, "stop")), kind="text/event-stream")

    async with raw_provider(serve) as server, model(server).send(asking()) as answer:
        events = [event async for batch in answer for event in batch]
    assert events[-1] == Finished("stop")


CALL = {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f"}}]}
NEXT_CALL = {"tool_calls": [{"index": 1, "id": "d", "function": {"name": "f"}}]}


@pytest.mark.parametrize(
    "chunks",
    [
        [chunk({"content": "x"})],
        [chunk({}, "..."), chunk({"content": "x"})],
        [chunk(CALL, "stop"), chunk(NEXT_CALL, "stop")],
    ],
    ids=["no reason", "a reason without a word", "a reason with every call"],
)
async def test_a_framed_body_is_cut_where_no_reason_ended_it(model, chunks):
    async def serve(request, wire):
        await wire.whole(framed(*chunks), kind="text/event-stream")

    async with raw_provider(serve) as server, model(server).send(asking()) as answer:
        with pytest.raises(BrokenOff):
            async for _ in answer:
                pass


async def test_of_a_body_without_a_length_the_end_is_not_known(model):
    chunks = [chunk({"content": "x"}), chunk({}, "stop")]
    async with raw_provider(streaming(*chunks, done=False)) as server, model(server).send(asking()) as answer:
        with pytest.raises(BrokenOff):
            async for _ in answer:
                pass


@pytest.mark.parametrize("how", ["reset", "cut_chunk", "malformed", "idle", "total"])
async def test_a_stream_that_is_lost_is_broken_off_by_an_error(model, how):
    async def serve(request, wire):
        await wire.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        event = f"data: {json.dumps(chunk({'content': 'x'}))}\n\n"
        await wire.send(f"{len(event):x}\r\n{event}\r\n")
        if how == "reset":
            wire.reset()
        elif how == "cut_chunk":
            await wire.send("ff\r\ndata: {")
        elif how == "malformed":
            await wire.send('e\r\ndata: {"cho\n\n\n\r\n')
            await wire.peer_left()
        elif how == "idle":
            await wire.peer_left()
        else:
            while True:
                await wire.send(f"{len(event):x}\r\n{event}\r\n")
                await asyncio.sleep(0.02)

    deadlines = Deadlines(2, 5, 0.2 if how == "idle" else 5, 0.4 if how == "total" else 5)
    async with raw_provider(closing(serve)) as server:
        got, caught = await events_until_broken_off(model(server, deadlines), asking())
    assert caught.transport_error
    assert text_of(got).startswith("x")


async def test_a_stream_that_is_longer_than_allowed_is_an_error_that_is_not_asked_again(client):
    arrived = asyncio.Event()

    async def serve(request, wire):
        await wire.head()
        await wire.event(chunk({"content": "x"}))
        await arrived.wait()
        await wire.event(chunk({"content": "y" * 5000}))

    async with raw_provider(closing(serve)) as server, asyncio.timeout(60):
        endpoint = Endpoint(f"{server.url}/v1/chat/completions", "real-m")
        async with DirectModel("m", endpoint, client, QUICK, answer_bytes=2000).send(asking()) as answer:
            batches = aiter(answer)
            assert text_of(await anext(batches)) == "x"
            arrived.set()
            with pytest.raises(ChatError, match="longer than 2000 bytes") as caught:
                assert [batch async for batch in batches] == []
    assert not caught.value.retryable


async def test_a_whole_answer_that_is_longer_than_allowed_is_a_502(client):
    async def serve(request, wire):
        await wire.whole(completion("y" * 5000))

    async with raw_provider(serve) as server:
        endpoint = Endpoint(f"{server.url}/v1/chat/completions", "real-m")
        small = DirectModel("m", endpoint, client, QUICK, answer_bytes=2000)
        with pytest.raises(ChatError) as caught:
            await events(small, asking(stream=False))
    assert caught.value.status == 502


async def test_what_came_before_a_malformed_event_in_one_read_is_given_out(model):
    async def serve(request, wire):
        await wire.head()
        await wire.send(f"data: {json.dumps(chunk({'content': 'x'}, 'stop'))}\n\ndata: oops {{\n\n")
        await wire.peer_left()

    async with raw_provider(serve) as server, asyncio.timeout(60), model(server).send(asking()) as answer:
        assert Finished("stop") in await anext(answer)
        with pytest.raises(BrokenOff):
            await anext(answer)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "body",
    [
        "", "   ", "<html>Sign in</html>", "<!doctype html>", "data: oops\n\n", "{", '{"choices": []}', "[]", "[1]",
        "data: [DONE]\n\n", 'data: {"id": "1", "choices": []}\n\ndata: [DONE]\n\n', 'data: {"id": "1"}\n\n', "Hello!",
        'data: {"cut', "5", "null", "\x00\x01",
    ],
)  # fmt: skip
async def test_a_200_that_is_no_answer_is_a_502_that_may_be_repeated(model, body, stream):
    async def serve(request, wire):
        await wire.whole(body, kind="text/html" if "<" in body else SSE if stream else "application/json")

    async with raw_provider(serve) as server:
        with pytest.raises(ChatError) as caught:
            await events(model(server), asking(stream=stream))
    assert (caught.value.status, caught.value.code) == (502, "upstream_error")
    assert caught.value.retryable


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "error, status",
    [
        ({"message": "no"}, 502),
        ("no", 502),
        ({"code": 429, "message": "no"}, 429),
        ({"code": 401, "message": "no"}, 502),
    ],
)
async def test_an_error_in_a_200_is_an_error_of_the_request(model, error, status, stream):
    async def serve(request, wire):
        if stream:
            await wire.head()
            await wire.event({"error": error})
        else:
            await wire.whole({"error": error})

    async with raw_provider(closing(serve)) as server:
        with pytest.raises(ChatError) as caught:
            await events(model(server), asking(stream=stream))
    assert caught.value.status == status


@pytest.mark.parametrize("status, expected", [(200, 502), (401, 502), (429, 429)])
async def test_a_compressed_body_is_not_read_but_its_status_is(model, status, expected):
    async def serve(request, wire):
        await wire.whole("\x1f\x8b", status, "Content-Encoding: gzip")

    async with raw_provider(serve) as server:
        with pytest.raises(ChatError) as caught:
            await events(model(server), asking())
    assert caught.value.status == expected
    assert caught.value.code == {200: "upstream_error", 401: "upstream_auth", 429: "rate_limit_exceeded"}[status]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_compressed_answer_is_called_so_and_not_asked_for_again(model, stream):
    async def serve(request, wire):
        await wire.whole("\x1f\x8b", 200, "Content-Encoding: gzip")

    async with raw_provider(serve) as server:
        with pytest.raises(UpstreamError, match="compressed") as caught:
            await events(model(server), asking(stream=stream))
    assert not caught.value.again


async def test_an_endless_error_body_is_not_read(model):
    async def serve(request, wire):
        await wire.head(500, "application/json")
        while True:
            await wire.send("x" * 65536)

    async with raw_provider(closing(serve)) as server:
        with pytest.raises(ChatError) as caught:
            await events(model(server), asking())
    assert caught.value.status == 502


@pytest.mark.parametrize("text", [b"[" * 200_000, b"oops", b'{"a": \xff\xfe', b"1" * 5000 + b"x"])
def test_invalid_json_is_a_value_error(text):
    with pytest.raises(ValueError):
        read_json(text)


@pytest.mark.parametrize(
    "text, value",
    [(b'{"a": NaN}', None), (b'"\xff"', "\udfff\udfff"), (b'"a\\ud800"', "a\ud800"), (b'{"a":1,"a":2}', {"a": 2})],
)
def test_what_some_provider_sends_all_the_same_is_read(text, value):
    found = read_json(text)
    assert value is None or found == value


def _surrogate_for(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    before = error.object[max(error.start - 6, 0) : error.start]
    is_beside = before.endswith(b'"') or before[:2] in (b"\\u", b"\\U")
    return ("\udfff\udfff" if is_beside else "\udfff"), error.end


@given(
    st.lists(
        st.sampled_from(
            [b'"', b"a", b"\\ud83d", b"\\", b"\xc3\xa9", b"\xf0\x9f", b"\xe2\x82", b"\xff", b"\x80", b"\xed\xa0\x80"]
        )
    )
)
def test_invalid_bytes_are_read_as_pythons_decoder_divides_them(pieces):
    codecs.register_error("tests.surrogates", _surrogate_for)
    data = b"      " + b"".join(pieces)
    expected = data.decode("utf-8", "tests.surrogates")
    assert tolerant_text(data) == expected


def test_a_sound_text_is_not_searched_for_invalid_bytes(monkeypatch):
    monkeypatch.setattr("callgate.models.direct.model._INVALID", None)
    assert tolerant_text(b'"\xc3\xa9\\ud83d"') == '"\u00e9\\ud83d"'


SPACES = st.sampled_from(["", " ", "\n", "  "])
NAMES = st.sampled_from(["arguments", "name", "function", "tool_calls", "delta", "choices"])


@st.composite
def objects_in_text(draw, depth=2):
    fields = []
    for name in draw(st.lists(NAMES, max_size=3)):
        value = st.one_of(NAMES.map(json.dumps), st.just(json.dumps('{"name": 1, "arguments": ""}')), st.just("[]"))
        if depth:
            value = value | objects_in_text(depth - 1)
        fields.append(f'{draw(SPACES)}"{name}"{draw(SPACES)}:{draw(SPACES)}{draw(value)}{draw(SPACES)}')
    return "{" + ",".join(fields) + "}"


@given(objects_in_text())
def test_a_text_with_a_call_is_parsed_again_where_a_name_may_be_there_twice(text):
    data = b'{"tool_calls":[' + text.encode() + b"]}"
    assert _may_have_duplicates(data) or not has_duplicate_names(data)


async def test_a_whole_answer_with_one_call_is_parsed_once(model, monkeypatch):
    texts: list[bytes] = []
    monkeypatch.setattr("callgate.models.direct.model.has_duplicate_names", texts.append)
    call = {"id": "c1", "type": "function", "function": {"name": "act", "arguments": "{}"}}

    async def serve(request, wire):
        await wire.whole(completion("", "tool_calls", tool_calls=[call]))

    async with raw_provider(serve) as server:
        assert await events(model(server), asking(stream=False))
    assert texts == []


async def test_a_question_is_forgotten_once_its_answer_has_begun(model):
    question = asking("x" * 1_000_000)
    async with raw_provider(streaming(chunk({"content": "hi"}))) as server:
        exchange = model(server).send(question)
        async with asyncio.timeout(60), exchange as answer:
            assert not exchange.body
            assert text_of([event async for batch in answer for event in batch]) == "hi"
