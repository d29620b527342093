"""Answers built to be slow to read or to write: none keeps the loop for longer than others may wait, and the loop goes on."""

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from typing import Any, Self
from urllib.parse import urlsplit

import pytest

from callgate.application import create_app
from callgate.http.event_stream import EVENT_BYTES
from tests.chaos.scale import held_to, scaled
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.loop_probe import LoopProbe
from tests.harness.server import serve

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(300)]

MOST = 0.1
"""Seconds of the processor between two turns of the loop."""
MIB = 1024 * 1024
KEPT = 2000
TRIES = scaled(1, 3)
"""Where the loop waits for a processor, a thread of ours may go on computing meanwhile."""
LENGTH = scaled(1, 4)
"""How many times as much of everything `make chaos` sends."""


def chunk(delta: Mapping[str, Any], **choice: Any) -> dict[str, Any]:
    choices = [{"index": 0, "delta": delta, "finish_reason": None, **choice}]
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices}


def completion(message: Mapping[str, Any], **choice: Any) -> dict[str, Any]:
    said = {"role": "assistant", "content": "x", **message}
    choices = [{"index": 0, "message": said, "finish_reason": "stop", **choice}]
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": choices}


def stream(*chunks: Mapping[str, Any]) -> bytes:
    return b"".join(b"data: %b\n\n" % encoded(chunk) for chunk in chunks) + b"data: [DONE]\n\n"


def encoded(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def call(place: int) -> dict[str, Any]:
    return {"index": place, "id": f"c{place}", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}


def keys(count: int) -> dict[str, int]:
    return {f"k{number}": 1 for number in range(count)}


LOGPROB = {"token": "a", "logprob": -0.1, "bytes": [97], "top_logprobs": []}
TOO_LARGE, ANSWERED, BAD = "answer_too_large", "", "upstream_error"

STREAMED: dict[str, tuple[str, Callable[[], bytes]]] = {
    "keys": (TOO_LARGE, lambda: stream(chunk(keys(200_000 * LENGTH)))),
    "keys in an inner object": (ANSWERED, lambda: stream(*[chunk({"more": keys(90_000)})] * 3 * LENGTH)),
    "calls in one event": (TOO_LARGE, lambda: stream(chunk({"tool_calls": list(map(call, range(20_000)))}))),
    "calls in many events": (
        TOO_LARGE,
        lambda: stream(*(chunk({"tool_calls": [call(place)]}) for place in range(4000 * LENGTH))),
    ),
    "log probabilities": (TOO_LARGE, lambda: stream(chunk({"content": "a"}, logprobs={"content": [LOGPROB] * 60_000}))),
    "choices": (TOO_LARGE, lambda: stream({**chunk({}), "choices": [{"index": at} for at in range(60_000)]})),
    "one field": (ANSWERED, lambda: stream(chunk({"foo": "a" * (10 * MIB)}))),
    "tiny events": (ANSWERED, lambda: stream(*[chunk({"content": "a"})] * 50_000 * LENGTH)),
    "lines without an end": (TOO_LARGE, lambda: b"data: a\n" * (2_000_000 * LENGTH)),
    "comments": (BAD, lambda: b": a\n" * (2_000_000 * LENGTH)),
}
WHOLE: dict[str, tuple[str, Callable[[], bytes]]] = {
    "keys": (TOO_LARGE, lambda: encoded(completion(keys(200_000 * LENGTH)))),
    "fields": (TOO_LARGE, lambda: encoded(completion(keys(90_000)))),
    "calls": (TOO_LARGE, lambda: encoded(completion({"tool_calls": list(map(call, range(20_000)))}))),
    "log probabilities": (TOO_LARGE, lambda: encoded(completion({}, logprobs={"content": [LOGPROB] * 90_000}))),
    "choices": (TOO_LARGE, lambda: encoded({**completion({}), "choices": [{"index": at} for at in range(60_000)]})),
    "one field": (ANSWERED, lambda: encoded(completion({"foo": "a" * (10 * MIB * LENGTH)}))),
    "text": (ANSWERED, lambda: encoded(completion({"content": '\n"' * (3 * MIB * LENGTH)}))),
    "arguments": (
        TOO_LARGE,
        lambda: encoded(completion({"tool_calls": [{"function": {"name": "get_time", "arguments": keys(200_000)}}]})),
    ),
    "no text": (BAD, lambda: encoded(completion({})).replace(b'"x"', b'"%b"' % (b"\xff" * MIB))),
}


@pytest.mark.parametrize("tools", [("get_time",), ()], ids=["our tools", "passed through"])
async def test_an_answer_at_its_limits_gives_the_loop_back(tools: tuple[str, ...]) -> None:
    longest: dict[str, float] = {}
    async with Provider() as provider:
        config = make_config(provider.url, tools=tools, upstream={"retries": 0}, logging={"level": "error"})
        async with serve(create_app(config)) as url:
            for is_stream, answers in ((True, STREAMED), (False, WHOLE)):
                for kind, (outcome, make) in answers.items():
                    provider.body = make()
                    asked = {"model": "m", "stream": is_stream, "messages": [{"role": "user", "content": "hi"}]}
                    name = f"{kind}, {'streamed' if is_stream else 'whole'}"
                    for _ in range(TRIES):
                        async with LoopProbe() as probe:
                            answer = await ends_of_answer(url, encoded(asked))
                        if tools:
                            assert outcome in answer, (kind, answer)
                        longest[name] = min(probe.longest, longest.get(name, probe.longest))
                        if longest[name] < MOST:
                            break
    for kind, seconds in longest.items():
        held_to(MOST, f"an answer keeps the loop: {kind}, {'our tools' if tools else 'passed through'}", seconds)


ONE_EVENT: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "direct": ("openai", "direct", "/v1/chat/completions", ("get_time",)),
    "passed through": ("openai", "direct", "/v1/chat/completions", ()),
    "responses": ("openai", "responses", "/v1/chat/completions", ("get_time",)),
    "messages passed through": ("anthropic", "translated", "/v1/messages", ()),
    "claude": ("anthropic", "translated", "/v1/chat/completions", ("get_time",)),
    "gemini": ("gemini", "translated", "/v1/chat/completions", ("get_time",)),
}


@pytest.mark.parametrize("name", ONE_EVENT)
async def test_an_answer_over_a_limit_of_ours_is_not_asked_for_again_and_its_deployment_is_not_left_alone(
    name: str,
) -> None:
    provider_name, lane, path, tools = ONE_EVENT[name]
    async with Provider() as provider:
        provider.body = b'data: {"id":"' + b"a" * (EVENT_BYTES + MIB) + b'"}\n\n'
        app = create_app(make_config(provider.url, tools=tools, provider=provider_name, lane=lane))
        async with serve(app) as url:
            asked = {"model": "m", "stream": True, "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
            answer = await ends_of_answer(url, encoded(asked), path)
            assert (provider.requests, f"more than {EVENT_BYTES} bytes in one event" in answer) == (1, True)
            deployments = app.state.manager.current.catalogue.known_deployments()
            assert [deployment.cooldown.failures for deployment in deployments] == [0]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
async def test_halves_of_characters_in_any_field_of_an_answer_do_not_end_it(path: str, is_stream: bool) -> None:
    half = "\ud800"
    said = {"content": f"a{half}b", "reasoning_content": half, half: half, "foo": [half]}
    rest = {"finish_reason": half, "logprobs": {"content": [{"token": half}]}}
    around = {"id": half, "model": half, "system_fingerprint": half, "usage": {half: 1, "total_tokens": 2}}
    body = encoded({**completion(said, **rest), **around})
    if is_stream:
        body = stream({**chunk(said, **rest), **around})
    question = [{"role": "user", "content": "hi"}]
    asked = {"model": "m", "stream": is_stream, "max_tokens": 9}
    async with Provider() as provider:
        provider.body = body
        config = make_config(provider.url, tools=("get_time",))
        async with serve(create_app(config)) as url, http_client(url) as client:
            response = await client.post(
                path, json={**asked, "input" if path == "/v1/responses" else "messages": question}
            )
    assert response.status_code == 200
    assert "a\ufffdb" in response.text
    assert '"error":{' not in response.text


async def ends_of_answer(url: str, body: bytes, path: str = "/v1/chat/completions") -> str:
    """The first and the last of an answer; what a client makes of the rest would count as ours."""
    to = urlsplit(url)
    reader, writer = await asyncio.open_connection(to.hostname, to.port)
    try:
        head = b"POST %b HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        writer.write(head % (path.encode(), len(body)) + body)
        beginning, end = b"", b""
        while data := await reader.read(64 * 1024):
            beginning, end = beginning or data[:KEPT], (end + data)[-KEPT:]
        return (beginning + end).decode(errors="replace")
    finally:
        writer.close()


class Provider:
    """Answers every request with the same bytes."""

    def __init__(self) -> None:
        self.body = b""
        self.requests = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", limit=MIB)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            self.requests += 1
            is_stream = self.body.startswith((b"data:", b":"))
            kind = b"text/event-stream" if is_stream else b"application/json"
            head = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
            writer.write(head % (kind, len(self.body)))
            for start in range(0, len(self.body), MIB):
                writer.write(self.body[start : start + MIB])
                await writer.drain()
            await writer.drain()
        writer.close()
