"""What a request was made of goes as soon as it is over: rings of objects would keep every body until a collection."""

import asyncio
import gc
import json
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self
from urllib.parse import urlsplit

import pytest

from callgate.access.keys import hash_key
from callgate.application import create_app
from callgate.http.connection import ClientConnection
from callgate.server.connection import ServerConnection
from callgate.server.request_cycle import Application, RequestCycle
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.harness.toolshed import held
from tests.harness.websocket import TEXT, client_frame
from tests.harness.wire import raw_connection, raw_post
from tests.scripted_upstream import Call, Reply, Upstream
from tests.scripted_upstream.records import RequestRecord

pytestmark = pytest.mark.anyio

REQUESTS = 5


def answers(record: RequestRecord) -> Reply:
    calls = any("call" in str(message["content"]) for message in record.messages) and record.turn == 0
    return Reply(calls=[Call("echo", {"text": "x"}), Call("no_such_tool", {})]) if calls else Reply(text="words")


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize(("tools", "text"), [((), "hello"), (("echo",), "hello"), (("echo",), "call")])
async def test_a_request_leaves_nothing_to_collect(
    upstream: Upstream, tools: tuple[str, ...], text: str, stream: bool
) -> None:
    upstream.script("m", answers)
    question = {"model": "m", "messages": [{"role": "user", "content": text}], "stream": stream}
    async with serve(create_app(make_config(upstream.url, tools=tools))) as url:
        await raw_post(url, question)  # what is made once is made now
        with Garbage() as garbage:
            for _ in range(REQUESTS):
                assert (await raw_post(url, question)).status == 200
    assert not garbage.of_every_request


class Garbage:
    """What a block leaves that only a collection frees."""

    def __init__(self) -> None:
        self.left: Counter[str] = Counter()
        """Objects of ours, by their types."""
        self.byte_count = 0
        """The bytes that these and others hold in lists."""

    def __enter__(self) -> Self:
        for _ in range(10):  # what other tests left may take several rounds
            if not gc.collect():
                break
        gc.disable()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            self.left.update(type(it).__qualname__ for it in gc.garbage if type(it).__module__.startswith("callgate."))
            holders = [it for it in gc.garbage if isinstance(it, list)]
            self.byte_count = sum(len(part) for it in holders for part in it if isinstance(part, bytes))
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()

    @property
    def of_every_request(self) -> dict[str, int]:
        return {name: count for name, count in self.left.items() if count >= REQUESTS}


# Clients that leave ---------------------------------------------------------------------------------------------------

ASKING = [{"role": "user", "content": "go on"}]


def posted(path: str, body: Any, **headers: str) -> bytes:
    content = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "host: localhost", f"content-length: {len(content)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + content


SOCKET = (
    b"GET /v1/responses HTTP/1.1\r\nhost: localhost\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
ASKED_OVER_IT = client_frame(TEXT, json.dumps({"type": "response.create", "model": "m", "input": "go on"}).encode())
CHAT: dict[str, Any] = {"model": "m", "stream": True, "messages": ASKING}
CLIENTS = {
    "chat": posted("/v1/chat/completions", CHAT),
    "choices": posted("/v1/chat/completions", CHAT | {"n": 2}),
    "keyed": posted("/v1/chat/completions", CHAT, idempotency_key="one"),
    "responses": posted("/v1/responses", {"model": "m", "stream": True, "input": "go on"}),
    "messages": posted("/v1/messages", CHAT | {"max_tokens": 1000}),
    "web socket": SOCKET,
    "feed": b"GET /v1/feed HTTP/1.1\r\nhost: localhost\r\n\r\n",
}


class EndlessAnswer(asyncio.Protocol):
    """A model that says the same for ever, as fast as it is read."""

    def __init__(self) -> None:
        delta = {"index": 0, "delta": {"content": "x" * 2000}, "finish_reason": None}
        chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [delta]}
        self._block = b"data: %b\n\n" % json.dumps(chunk).encode() * 16
        self._is_held = self._is_begun = False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if not self._is_begun:
            self._is_begun = True
            self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
            self._go_on()

    def pause_writing(self) -> None:
        self._is_held = True

    def resume_writing(self) -> None:
        self._is_held = False
        self._go_on()

    def _go_on(self) -> None:
        if not self._is_held and not self._transport.is_closing():
            self._transport.write(self._block)
            asyncio.get_running_loop().call_soon(self._go_on)


@asynccontextmanager
async def model_of(answer: type[asyncio.Protocol]) -> AsyncIterator[str]:
    async with await asyncio.get_running_loop().create_server(answer, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        yield f"http://{host}:{port}"


class Edge:
    """How many clients do not read, and how many requests are over."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = self.over = self.closed = 0
        self._news = asyncio.Event()
        for kind, name, counter in (
            (ServerConnection, "pause_writing", "full"),
            (ClientConnection, "connection_lost", "closed"),
        ):
            self._count(monkeypatch, kind, name, counter)
        self._count_runs(monkeypatch)

    def _count(self, monkeypatch: pytest.MonkeyPatch, kind: Any, name: str, counter: str) -> None:
        inner = getattr(kind, name)

        def counted(*given: Any) -> Any:
            try:
                return inner(*given)
            finally:
                setattr(self, counter, getattr(self, counter) + 1)
                self._news.set()

        monkeypatch.setattr(kind, name, counted)

    def _count_runs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        run = RequestCycle.run

        async def run_counted(cycle: RequestCycle, app: Application) -> None:
            try:
                await run(cycle, app)
            finally:
                self.over += 1
                self._news.set()

        monkeypatch.setattr(RequestCycle, "run", run_counted)

    async def until(self, counter: str, count: int) -> None:
        async with asyncio.timeout(30):
            while getattr(self, counter) < count:
                self._news.clear()
                await self._news.wait()


async def leave_without_reading(url: str, edge: Edge, client: str, asks: bytes) -> None:
    """One client that asks, reads the first bytes, and leaves when no more can be sent to it."""
    loop, to = asyncio.get_running_loop(), urlsplit(url)
    full, over, closed = edge.full, edge.over, edge.closed
    with socket.socket() as asking:
        asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        asking.setblocking(False)
        await loop.sock_connect(asking, (to.hostname, to.port))
        await loop.sock_sendall(asking, asks)
        assert (await loop.sock_recv(asking, 9)) == b"HTTP/1.1 "
        if client == "web socket":
            await loop.sock_sendall(asking, ASKED_OVER_IT)
        if client != "feed":
            await edge.until("full", full + 1)
    await edge.until("over", over + 1)
    if client != "feed":
        await edge.until("closed", closed + 1)


@pytest.mark.parametrize("tools", [(), ("echo",)], ids=["passed on", "with tools"])
@pytest.mark.parametrize("client", CLIENTS)
async def test_clients_that_do_not_read_and_leave_leave_nothing_to_collect(
    monkeypatch: pytest.MonkeyPatch, client: str, tools: tuple[str, ...]
) -> None:
    edge, asks = Edge(monkeypatch), CLIENTS[client]
    async with model_of(EndlessAnswer) as upstream, serve(create_app(make_config(upstream, tools=tools))) as url:
        await leave_without_reading(url, edge, client, asks)
        with Garbage() as garbage:
            for _ in range(REQUESTS):
                await leave_without_reading(url, edge, client, asks)
    assert not garbage.of_every_request
    assert garbage.byte_count < 10_000 * REQUESTS


class BrokenAnswer(EndlessAnswer):
    """A model whose connection is lost in the middle of its answer."""

    def _go_on(self) -> None:
        self._transport.write(self._block)
        self._transport.close()


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("tools", [(), ("echo",)], ids=["passed on", "with tools"])
async def test_an_answer_that_breaks_off_leaves_nothing_to_collect(tools: tuple[str, ...], stream: bool) -> None:
    async with (
        model_of(BrokenAnswer) as upstream,
        serve(create_app(make_config(upstream, tools=tools))) as url,
    ):
        body = CHAT | {"stream": stream}
        await raw_post(url, body)
        with Garbage() as garbage:
            for _ in range(REQUESTS):
                assert b'"error":' in (await raw_post(url, body)).body
    assert not garbage.of_every_request
    assert garbage.byte_count < 10_000 * REQUESTS


async def test_clients_that_leave_while_tools_run_leave_nothing_to_collect(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    edge = Edge(monkeypatch)
    upstream.script("m", lambda _: Reply(calls=[Call("wait_for_gate", {"label": label}) for label in "ab"]))
    async with serve(create_app(make_config(upstream.url, tools=("wait_for_gate",)))) as url:

        async def leave() -> None:
            over = edge.over
            async with held() as running, raw_connection(url) as connection:
                await connection.post("/v1/chat/completions", CHAT)
                await running.started.wait()
                connection.writer.close()
                await running.cancelled.wait()
            await edge.until("over", over + 1)

        await leave()
        with Garbage() as garbage:
            for _ in range(REQUESTS):
                await leave()
    assert not garbage.of_every_request


# Refusals -------------------------------------------------------------------------------------------------------------

LARGE = "x" * 20_000
ANN = "cg-ann"
KEYS = {
    "auth": "keys",
    "keys": [{"name": "ann", "hash": hash_key(ANN), "requests_per_minute": 1, "models": ["m", "busy", "broken"]}],
}
UNLIMITED = {"auth": "keys", "keys": [{"name": "ann", "hash": hash_key(ANN), "models": ["m"]}]}
AS_ANN = {"authorization": f"Bearer {ANN}"}
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, str], int]] = {
    "a foreign page": ({}, {}, {"origin": "https://evil.example"}, 403),
    "no key": (KEYS, {}, {}, 401),
    "an unknown key": (KEYS, {}, {"authorization": "Bearer cg-none"}, 401),
    "beyond its limit": (KEYS, {}, AS_ANN, 429),
    "a model that is not the key's": (UNLIMITED, {"model": "busy"}, AS_ANN, 404),
    "an unknown model": ({}, {"model": "none"}, {}, 404),
    "a wrong type": ({}, {"stream": "maybe"}, {}, 400),
    "too large": ({"limits": {"body_bytes": 10_000}}, {}, {}, 413),
    "busy": ({}, {"model": "busy"}, {}, 429),
    "broken": ({}, {"model": "broken"}, {}, 502),
    "broken, with tools": ({"tools": ("echo",)}, {"model": "broken"}, {}, 502),
}
PATHS = ("/v1/chat/completions", "/v1/messages", "/v1/responses")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("case", REFUSED)
async def test_what_is_refused_leaves_nothing_to_collect(upstream: Upstream, case: str, path: str) -> None:
    """An error holds the frames that it went through, and what they hold. A frame that still names it would be a ring."""
    sections, fields, headers, status = REFUSED[case]
    upstream.script("m", answers)
    upstream.script("busy", lambda _: Reply(status=429, body={"error": {"message": "slow down"}}))
    upstream.script("broken", lambda _: Reply(status=500, body={"error": {"message": "no"}}))
    messages = [{"role": "user", "content": LARGE}]
    body = {"model": "m", "max_tokens": 9, "input" if path.endswith("responses") else "messages": messages} | fields
    config = make_config(upstream.url, models=("m", "busy", "broken"), upstream={"retries": 0}, **sections)
    async with serve(create_app(config)) as url:
        await raw_post(url, body, path, headers)
        with Garbage() as garbage:
            statuses = {(await raw_post(url, body, path, headers)).status for _ in range(REQUESTS)}
    assert statuses == {status}
    assert not garbage.of_every_request
    assert garbage.byte_count < 10_000 * REQUESTS
