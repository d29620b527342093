"""A whole answer that is read at once, when all of it has come, is the one that is iterated, for every odd answer."""

import asyncio
import json

import pytest
from msgspec.structs import replace

from callgate.conversation.errors import BrokenOff, ChatError
from callgate.conversation.events import ModelEvent, TextDelta
from callgate.conversation.preloaded_model import PreloadedAnswer
from callgate.http.client import HttpClient
from callgate.http.interface import Deadlines
from callgate.models.direct.chunks import MAX_FIELDS
from callgate.models.direct.model import DirectModel, Endpoint, HttpRequest, whole_events_fast
from callgate.untrusted.doors import SMALL
from tests.models.wire import QUICK, SSE, asking, chunk, completion, raw_provider

pytestmark = pytest.mark.anyio

LIMIT = 200_000


class IteratedModel(DirectModel):
    """Iterates every answer."""

    def send(self, request):
        return HttpRequest(self, self._encoded(request), request.record_body)


def said(content, **fields):
    return json.dumps({**completion(content), **fields}).encode()


def streamed(*deltas, done=True):
    events = [f"data: {json.dumps(chunk(delta))}\n\n" for delta in deltas]
    return "".join([*events, "data: [DONE]\n\n" if done else ""]).encode()


CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLS = {"role": "assistant", "content": None, "tool_calls": [CALL]}

BODIES = {
    "text": said("hi"),
    "calls": json.dumps({**completion(""), "choices": [{"index": 0, "message": CALLS}]}).encode(),
    "a field twice": said("hi").replace(b'"content":', b'"content": "first", "content":'),
    "a call's field twice": json.dumps({**completion(""), "choices": [{"message": CALLS}]})
    .replace('"arguments":', '"arguments": "{", "arguments":')
    .encode(),
    "a mark before it": b"\xef\xbb\xbf" + said("hi"),
    "blanks around it": b" \r\n" + said("hi") + b"\n",
    "half of a pair": said("hi").replace(b'"hi"', b'"\\ud800"'),
    "no UTF-8": said("hi").replace(b'"hi"', b'"\xff"'),
    "more than is counted quickly": said("a" * SMALL),
    "many reads": said("a" * 150_000),
    "more than the limit": said("a" * (LIMIT + 1)),
    "no text": said(""),
    "no content": json.dumps(completion("", None)).encode(),
    "no choice": said("hi", choices=[]),
    "two choices": said("hi", choices=[*completion("a")["choices"], *completion("b")["choices"]]),
    "an error": json.dumps({"error": {"message": "overloaded", "code": 529}}).encode(),
    "an error beside an answer": said("hi", error={"message": "half", "code": 500}),
    "no JSON": b"<html>gateway</html>",
    "cut JSON": said("hi")[:-9],
    "a list": b"[1]",
    "nothing": b"",
    "a stream": streamed({"content": "a"}, {"content": "b"}),
    "a stream without its end": streamed({"content": "a"}, {"content": "b"}, done=False),
    "a stream with a call": streamed({"tool_calls": [{"index": 0, **CALL}]}, {"content": "b"}),
    "a stream with thoughts": streamed({"thoughts": "hm"}, {"content": "b"}),
    "a stream of nothing": streamed(),
    "a stream without content": streamed({"role": "assistant"}),
    "a stream of an error": b'data: {"error": {"message": "overloaded", "code": 529}}\n\n' + streamed({"content": "a"}),
    "an error after content": streamed({"content": "a"}, done=False) + b'data: {"error": "late"}\n\ndata: [DONE]\n\n',
    "a stream with no JSON in it": streamed({"content": "a"}, done=False) + b"data: {\n\ndata: [DONE]\n\n",
    "a stream with no JSON before it": b"data: {\n\n" + streamed({"content": "a"}),
    "more behind the end": streamed({"content": "a"}) + streamed({"content": "b"}),
    "a comment before a stream": b": hi\n\n" + streamed({"content": "a"}),
    "a stream with its mark": b"\xef\xbb\xbf" + streamed({"content": "a"}),
    "a stream with other line ends": streamed({"content": "a"}).replace(b"\n", b"\r\n"),
    "a long stream": streamed(*[{"content": "word "}] * 400),
    "a stream of more than the limit": streamed({"content": "a" * LIMIT}),
    "too many fields": streamed({"content": "a"}, {str(number): None for number in range(MAX_FIELDS + 1)}),
}
HEADERS = {
    "in one piece": (),
    "compressed": ("Content-Encoding: gzip",),
    "not compressed": ("Content-Encoding: identity",),
    "in two pieces": (),
    "cut off": (),
    "chunked": ("Transfer-Encoding: chunked",),
    "until the connection ends": ("Connection: close",),
}


def serving(body, way):
    async def serve(request, wire):
        lines = ["HTTP/1.1 200 Status", *HEADERS[way]]
        lines.append("Content-Type: " + (SSE if body.startswith(b"data") else "application/json"))
        if way == "cut off":
            lines.append(f"Content-Length: {len(body) + 10}")
        elif way == "chunked":
            body_sent = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
            await wire.send("\r\n".join([*lines, "", ""]).encode() + body_sent)
            return
        elif way != "until the connection ends":
            lines.append(f"Content-Length: {len(body)}")
        head = "\r\n".join([*lines, "", ""]).encode()
        if way == "in two pieces":
            await wire.send(head + body[: len(body) // 2])
            await wire.send(body[len(body) // 2 :])
        else:
            await wire.send(head + body)
        if way in ("cut off", "until the connection ends"):
            wire.writer.close()

    return serve


async def answered(model, request):
    """What came, how it ended, and what was recorded of it."""
    reads: list[bytes] = []
    events: list[ModelEvent] = []
    failure = None
    try:
        async with model.send(replace(request, record_body=lambda: reads.append)) as answer:
            async for batch in answer:
                events += batch
            assert answer.reason_is_raw
            assert answer.lane == "direct"
    except (ChatError, BrokenOff) as error:
        failure = (type(error), str(error), getattr(error, "code", ""), getattr(error, "detail", ""))
    return events, failure, b"".join(reads)


@pytest.mark.parametrize("way", HEADERS)
@pytest.mark.parametrize("reasoning_field", ["", "thoughts"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_every_whole_answer_is_the_one_that_is_iterated(way, reasoning_field, stream):
    client = HttpClient()
    request = asking(stream=stream)
    for name, body in BODIES.items():
        async with raw_provider(serving(body, way)) as server:
            endpoint = Endpoint(f"{server.url}/v1/chat/completions", "real-m", reasoning_field=reasoning_field)
            read = await answered(DirectModel("m", endpoint, client, QUICK, answer_bytes=LIMIT), request)
            iterated = await answered(IteratedModel("m", endpoint, client, QUICK, answer_bytes=LIMIT), request)
            assert read == iterated, name
    await client.close()


@pytest.mark.parametrize(
    ("body", "way"),
    [
        ("text", "in one piece"),
        ("text", "in two pieces"),
        ("text", "chunked"),
        ("a stream", "in one piece"),
        ("a stream", "chunked"),
    ],
)
async def test_usual_answers_and_short_streams_are_read_at_once_and_leave_their_connection(body, way):
    client = HttpClient()
    async with raw_provider(serving(BODIES[body], way)) as server:
        model = DirectModel("m", Endpoint(f"{server.url}/v1/chat/completions", "real-m"), client, QUICK)
        async with model.send(asking(stream=body == "a stream")) as answer:
            assert type(answer) is PreloadedAnswer
            assert sum(map(len, client._idle.values())) == 1
    await client.close()


async def test_a_page_that_looks_like_a_stream_is_no_answer():
    async def serve(request, wire):
        body = streamed({"content": "a"})
        head = f"HTTP/1.1 200 OK\r\nContent-Type: Text/HTML\r\nContent-Length: {len(body)}\r\n\r\n"
        await wire.send(head.encode() + body)

    client = HttpClient()
    async with raw_provider(serve) as server:
        model = DirectModel("m", Endpoint(f"{server.url}/v1/chat/completions", "real-m"), client, QUICK)
        events, failure, _ = await answered(model, asking(stream=True))
    assert events == []
    assert failure is not None
    await client.close()


@pytest.mark.parametrize("kind", [SSE, "text/plain"])
async def test_a_stream_that_was_not_asked_for_ends_where_it_says_so(kind):
    async def serve(request, wire):
        body = streamed({"content": "a"})
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n"
        await wire.send(head.encode() + b"%x\r\n%b\r\n" % (len(body), body))
        await wire.peer_left()

    client = HttpClient()
    async with raw_provider(serve) as server:
        deadlines = Deadlines(connect=30, first_byte=30, idle=1000, total=1000)
        model = DirectModel("m", Endpoint(f"{server.url}/v1/chat/completions", "real-m"), client, deadlines)
        async with asyncio.timeout(30):
            events, failure, _ = await answered(model, asking(stream=False))
    assert TextDelta("a") in events
    assert failure is None
    await client.close()


def test_an_answer_without_content_is_left_to_the_iteration():
    assert whole_events_fast(BODIES["text"], "") is not None
    assert whole_events_fast(BODIES["no content"], "") is None
