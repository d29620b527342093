"""Passing through over real sockets: what goes on unread goes on unchanged, and what decides something is not missed."""

import asyncio
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callgate.conversation.errors import BrokenOff, ChatError, SeparateChoices
from callgate.conversation.events import Finished, Passed, ProviderError, TextDelta
from callgate.conversation.ports import Passthrough
from callgate.conversation.usage import Usage
from callgate.http.client import HttpClient
from callgate.http.event_stream import EventStreamReader
from callgate.http.interface import Deadlines
from callgate.models.direct.chunks import ChunkReader
from callgate.models.direct.model import ANSWER_BYTES, Endpoint
from callgate.models.direct.passthrough import PassedEvents, PassthroughModel
from callgate.policy.litellm_settings import without_settings
from tests.chaos.scale import examples
from tests.models.wire import QUICK, SSE, chunk, closing, completion, raw_provider

pytestmark = pytest.mark.anyio

USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


@pytest.fixture
async def model():
    client = HttpClient()

    def make(server, answer_bytes=ANSWER_BYTES, **endpoint):
        place = Endpoint(f"{server.url}/v1/chat/completions", "real-m", **endpoint)
        return PassthroughModel("m", place, client, QUICK, answer_bytes=answer_bytes)

    yield make
    await client.close()


def passing(*, stream=True, include_usage=True, **fields):
    body = {"model": "mine", "messages": [{"role": "user", "content": "hi"}], "stream": stream, **fields}
    raw = {name: msgspec.Raw(json.dumps(value).encode()) for name, value in body.items()}
    return Passthrough(
        without_settings(raw), stream, include_usage, fields.get("n", 1), has_tools="tools" in fields, read=unread
    )


def unread():
    raise AssertionError("what is passed through is not read")


class ProviderProxy:
    """What came of one question."""

    def __init__(self):
        self.parts: list[bytes] = []
        self.reasons: list[str] = []
        self.usage = None
        self.others: list[Any] = []

    def take(self, events):
        for event in events:
            if isinstance(event, Passed):
                self.parts.append(event.data)
                self.reasons += [finished.reason for finished in event.reasons]
                self.usage = event.usage or self.usage
            else:
                self.others.append(event)

    @property
    def out(self):
        return b"".join(self.parts)


async def passed(model, asked, passage=None):
    passage = passage or ProviderProxy()
    async with asyncio.timeout(60), model.send(asked) as answer:
        async for events in answer:
            passage.take(events)
    return passage.out, passage


def sse(*payloads, done=True):
    texts = [payload if isinstance(payload, str) else json.dumps(payload) for payload in payloads]
    return "".join(f"data: {text}\n\n" for text in [*texts, *(["[DONE]"] if done else [])])


def serve_stream(text, cut=None):
    async def serve(request, wire):
        await wire.head(200, SSE)
        await wire.send(text)

    return closing(serve)


def serve_body(body, status=200):
    async def serve(request, wire):
        await wire.whole(body, status)

    return serve


async def test_a_body_comes_out_as_it_came(model):
    body = b'{ "id":"x",\n "odd": [1e400], "choices":[{"index":0,"logprobs":{"a":1},"finish_reason":"stop"}], "usage":{"total_tokens":5} }'
    async with raw_provider(serve_body(body)) as server:
        out, passage = await passed(model(server), passing(stream=False))
    assert out == body
    assert passage.usage == Usage({"total_tokens": 5})
    assert passage.reasons == ["stop"]


async def test_a_stream_comes_out_as_it_came(model):
    text = ": hello\n\n" + sse(
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "a"}),
        {"choices": [{"index": 1, "delta": {"x": "\u00e9"}, "finish_reason": None}], "odd": 1},
        chunk({}, "stop"),
        {"choices": [], "usage": USAGE},
    )
    async with raw_provider(serve_stream(text)) as server:
        out, passage = await passed(model(server), passing())
    assert out.decode() == text
    assert passage.usage == Usage(USAGE)
    assert passage.reasons == ["stop"]


async def test_a_stream_that_is_longer_than_allowed_is_broken_off(model):
    text = sse(*[chunk({"content": "y" * 100})] * 100, chunk({}, "stop"))
    passage = ProviderProxy()
    async with raw_provider(serve_stream(text)) as server:
        with pytest.raises(ChatError, match="longer than 2000 bytes") as caught:
            await passed(model(server, answer_bytes=2000), passing(), passage)
    assert not caught.value.retryable
    assert len(passage.out) <= 2000


async def test_a_body_that_is_longer_than_allowed_is_not_passed_on(model):
    async with raw_provider(serve_body(completion("y" * 5000))) as server:
        with pytest.raises(ChatError) as caught:
            await passed(model(server, answer_bytes=2000), passing(stream=False))
    assert caught.value.status == 502
    assert not caught.value.retryable


async def test_the_request_goes_on_as_it_came_but_for_the_model_and_what_could_choose(model):
    asked = passing(
        stream=False,
        n=3,
        top_k=7,
        tools=[{"type": "custom", "custom": {"name": "x"}}],
        api_base="http://evil",
        mock_response="x",
    )
    async with raw_provider(serve_body(completion())) as server:
        await passed(model(server, defaults={"temperature": 0.5, "top_k": 1}), asked)
    assert server.requests[0].body == {
        "model": "real-m",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": False,
        "n": 3,
        "top_k": 7,
        "tools": [{"type": "custom", "custom": {"name": "x"}}],
        "temperature": 0.5,
    }


async def test_usage_that_was_not_requested_is_counted_and_not_passed_on(model):
    text = sse(chunk({"content": "a"}), chunk({}, "stop"), {"choices": [], "usage": USAGE})
    async with raw_provider(serve_stream(text)) as server:
        out, passage = await passed(model(server), passing(include_usage=False))
    assert server.requests[0].body["stream_options"] == {"include_usage": True}
    assert passage.usage == Usage(USAGE)
    assert b"usage" not in out
    assert out.endswith(b"data: [DONE]\n\n")


async def test_the_end_mark_inside_a_text_ends_nothing(model):
    text = sse(
        chunk({"content": "data: [DONE]"}), chunk({"content": "\n\ndata: [DONE]\n\n"}), chunk({"content": "b"}, "stop")
    )
    async with raw_provider(serve_stream(text)) as server:
        out, _ = await passed(model(server), passing())
    assert out.decode() == text


async def test_nothing_comes_after_the_end_mark(model):
    async with raw_provider(
        serve_stream(sse(chunk({"content": "a"}, "stop")) + sse(chunk({"content": "b"})))
    ) as server:
        out, _ = await passed(model(server), passing())
    assert out.decode() == sse(chunk({"content": "a"}, "stop"))


async def test_a_finished_stream_without_its_mark_is_whole(model):
    text = sse(chunk({"content": "a"}), chunk({}, "stop"), done=False).rstrip("\n")
    passage = ProviderProxy()
    async with raw_provider(serve_stream(text)) as server:
        with pytest.raises(BrokenOff):
            await passed(model(server), passing(), passage)
    assert passage.out.decode() == text + "\n\n"
    assert passage.reasons == ["stop"], "by which the conversation knows that it is whole"


async def test_a_whole_answer_needs_its_connection_no_longer_while_it_is_emitted(model):
    async with raw_provider(serve_body(json.dumps(completion()))) as server:
        made = model(server)
        async with asyncio.timeout(60), made.send(passing(stream=False)) as answer:
            async for _ in answer:
                await passed(made, passing(stream=False))
        assert server.connections == 1


@pytest.mark.parametrize("kind", [SSE, "text/plain"])
@pytest.mark.parametrize("pieces", [1, 7])
@pytest.mark.parametrize("n", [1, 2])
async def test_a_stream_that_was_not_asked_for_ends_where_it_says_so(kind, pieces, n):
    text = "\ufeff\n" + sse(chunk({"content": "a"}), chunk({}, "stop"))

    async def serve(request, wire):
        await wire.send(f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n")
        data = text.encode()
        for start in range(0, len(data), -(-len(data) // pieces)):
            piece = data[start : start - (-len(data) // pieces)]
            await wire.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        await wire.peer_left()

    client = HttpClient()
    deadlines = Deadlines(connect=30, first_byte=30, idle=1000, total=1000)
    async with raw_provider(serve) as server:
        made = PassthroughModel("m", Endpoint(f"{server.url}/v1/chat/completions", "real-m"), client, deadlines)
        async with asyncio.timeout(60):
            if n == 1:
                _, passage = await passed(made, passing(stream=False))
                assert TextDelta("a") in passage.others
            else:
                with pytest.raises(SeparateChoices) as separate:
                    await passed(made, passing(stream=False, n=n))
                assert TextDelta("a") in separate.value.answers[0]
    await client.close()


async def test_a_body_with_an_end_mark_in_a_text_is_read_to_its_end(model):
    body = json.dumps(completion("data: [DONE]\n\n" * 10_000))
    async with raw_provider(serve_body(body)) as server:
        out, _ = await passed(model(server), passing(stream=False))
    assert out == body.encode()


async def test_a_stream_that_its_client_has_left_loses_its_connection(model):
    left = asyncio.Event()

    async def serve(request, wire):
        await wire.head(200, SSE)
        await wire.event(chunk({"content": "a"}))
        await wire.peer_left()
        left.set()

    async with raw_provider(serve) as server, asyncio.timeout(60):
        async with model(server).send(passing()) as answer:
            await anext(aiter(answer))
        await left.wait()


async def test_a_stream_that_breaks_off_ends_with_an_error_and_no_half_event(model):
    text = sse(chunk({"content": "a"}), done=False) + 'data: {"choices":[{"ind'
    passage = ProviderProxy()
    async with raw_provider(serve_stream(text)) as server:
        with pytest.raises(BrokenOff):
            await passed(model(server), passing(), passage)
    assert passage.out.decode() == sse(chunk({"content": "a"}), done=False)


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("", 502),
        ("data: [DONE]\n\n", 502),
        (sse(chunk({"role": "assistant"}), done=False), 502),
        (sse({"error": {"message": "slow down", "code": 429}}), 429),
        (sse(chunk({"role": "assistant"}), {"error": {"message": "no", "code": 503}}), 503),
        ("<html>busy</html>", 502),
        (sse("not json"), 502),
    ],
)
async def test_a_failure_before_the_first_content_is_an_error(model, text, status):
    async with raw_provider(serve_stream(text)) as server:
        with pytest.raises(ChatError) as caught:
            await passed(model(server), passing())
    assert caught.value.status == status
    assert caught.value.retryable


@pytest.mark.parametrize(
    "event", ['data: {"error": {"message": "key sk-1234567890abcdef"}}', "event: error\ndata: key sk-1234567890abcdef"]
)
async def test_an_error_in_the_middle_ends_the_answer_and_is_not_passed_on(model, event):
    text = sse(chunk({"content": "a"}), done=False) + event + "\n\n" + sse(chunk({"content": "b"}, "stop"))
    async with raw_provider(serve_stream(text)) as server:
        out, passage = await passed(model(server), passing())
    assert out.decode() == sse(chunk({"content": "a"}), done=False)
    assert [type(event) for event in passage.others] == [ProviderError]


@pytest.mark.parametrize(
    ("body", "status", "expected"),
    [
        ("", 200, 502),
        ('{"choices":[{"fin', 200, 502),
        ("<html>", 200, 502),
        ('{"choices":[]}', 200, 502),
        ('{"error":{"message":"x","code":429}}', 200, 429),
        ('{"error":{"message":"bad field","type":"invalid_request_error"}}', 400, 400),
        ('{"error":{"message":"no such key"}}', 401, 502),
    ],
)
async def test_a_body_that_is_no_answer_is_an_error(model, body, status, expected):
    async with raw_provider(serve_body(body, status)) as server:
        with pytest.raises(ChatError) as caught:
            await passed(model(server), passing(stream=False))
    assert caught.value.status == expected


FAILURE = {"error": {"message": "the key let-me-in-please is none"}}


@pytest.mark.parametrize("body", [json.dumps(FAILURE), sse(FAILURE), f"event: error\n{sse(FAILURE)}"])
@pytest.mark.parametrize("stream", [True, False])
async def test_an_error_says_nothing_of_the_key_in_whichever_form_it_comes(model, stream, body):
    async with raw_provider(serve_body(body)) as server:
        with pytest.raises(ChatError) as caught:
            await passed(model(server, secrets=("let-me-in-please",)), passing(stream=stream))
    detail = str(caught.value.detail)
    assert "is none" in detail
    assert "let-me-in-please" not in detail


@pytest.mark.parametrize(
    ("stream", "body"), [(True, json.dumps(completion("a"))), (False, sse(chunk({"content": "a"}, "stop")))]
)
async def test_an_answer_in_the_other_shape_is_read_and_asked_for_once(model, stream, body):
    async with raw_provider(serve_body(body)) as server:
        out, passage = await passed(model(server), passing(stream=stream))
    assert out == b""
    assert TextDelta("a") in passage.others
    assert Finished("stop") in passage.others
    assert len(server.requests) == 1


TWO = {
    "choices": [
        {"index": at, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        for at, text in enumerate("ab")
    ],
    "usage": USAGE,
}
TWO_STREAMED = [
    *(
        {"choices": [{"index": at, "delta": {"content": text}, "finish_reason": "stop"}]}
        for at, text in enumerate("ab")
    ),
    {"choices": [], "usage": USAGE},
]


@pytest.mark.parametrize(("stream", "body"), [(True, json.dumps(TWO)), (False, sse(*TWO_STREAMED))])
async def test_several_choices_in_the_other_shape_are_all_in_the_one_answer(model, stream, body):
    async with raw_provider(serve_body(body)) as server:
        with pytest.raises(SeparateChoices) as caught:
            await passed(model(server), passing(stream=stream, n=2))
    assert [[event.text for event in answer if isinstance(event, TextDelta)] for answer in caught.value.answers] == [
        ["a"],
        ["b"],
    ]
    assert [sum(isinstance(event, Usage) for event in answer) for answer in caught.value.answers] == [1, 0]
    assert len(server.requests) == 1


def read_all(body):
    """The plain reading: every event parsed."""
    reader, chunks = EventStreamReader(), ChunkReader()
    events: list[Any] = []
    for payload in [*reader.feed(body), *reader.finish()]:
        if payload.data.strip() == b"[DONE]":
            break
        try:
            events += chunks.read(json.loads(payload.data))
        except ValueError:
            events.append(payload.data)
    return events


deltas = st.lists(
    st.one_of(
        st.fixed_dictionaries({"content": st.text(max_size=12)}),
        st.fixed_dictionaries(
            {"content": st.sampled_from(["[DONE]", "data: x\n\n", '"error"', '"usage":{', "\r\n", "\u2028"])}
        ),
        st.just({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": '{"a":"\n"}'}}]}),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=examples(300), deadline=None)
@given(
    deltas,
    st.data(),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.booleans(),
    st.sampled_from([": ping\n\n", "event: x\nid: 1\n", ""]),
)
def test_a_stream_cut_anywhere_is_read_as_when_it_is_whole(found, data, newline, ascii_only, noise):
    text = noise.join(
        f"data: {json.dumps(each, ensure_ascii=ascii_only)}\n\n"
        for each in [
            chunk({"content": "first"}),
            *map(chunk, found),
            chunk({}, "stop"),
            {"choices": [], "usage": USAGE},
        ]
    )
    body = (text + "data: [DONE]\n\n").replace("\n", newline).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=12)))
    pieces = [piece for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True) if (piece := body[a:b])]

    reader, passage = PassedEvents(hide_usage=False, takes_calls=True), ProviderProxy()
    for piece in pieces:
        passage.take(reader.feed(piece))
    if not reader.is_done:
        passage.take(reader.finish())
    assert reader.is_done
    assert reader.fault is None
    assert read_all(passage.out) == read_all(body)
    assert passage.out.endswith(b"data: [DONE]\n\n")
    assert passage.usage == Usage(USAGE)
    assert passage.reasons == ["stop"]
    if newline == "\n":
        assert passage.out == body
