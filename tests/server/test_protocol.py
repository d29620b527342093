"""The factory of the server over real sockets: bytes, clocks and connections that would otherwise have no end."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from callgate.application import create_app
from callgate.server import ConnectionLimits, ProtocolFactory
from callgate.server.limits import MAX_PIPELINED
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.harness.wire import RawAnswer, raw_connection, raw_post
from tests.scripted_upstream import Hold, Pace, Reply, Upstream

pytestmark = pytest.mark.anyio

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
LIVE = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n"
ASK = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


@contextlib.asynccontextmanager
async def served(upstream: Upstream, **rules: Any) -> AsyncIterator[tuple[str, ProtocolFactory]]:
    factory = ProtocolFactory(ConnectionLimits(**rules))
    async with serve(create_app(make_config(upstream.url)), http=factory.protocol, timeout_graceful_shutdown=1) as url:
        yield url, factory


def refused(answer: RawAnswer) -> tuple[int, str]:
    """The status and the code of a refusal, which is in OpenAI's shape and closes the connection."""
    error = json.loads(answer.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert answer.headers["connection"] == "close"
    return answer.status, error["code"]


async def sent(url: str, *pieces: bytes) -> RawAnswer:
    async with raw_connection(url) as connection:
        for piece in pieces:
            with contextlib.suppress(ConnectionError):
                await connection.send(piece)
        return await connection.answer()


async def test_a_request_goes_through_untouched(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="hi")])
    async with served(upstream) as (url, _):
        answer = await raw_post(url, ASK)
    assert answer.status == 200


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([HEAD + b"x-big: " + b"a" * 70_000 + b"\r\n\r\n"], id="whole"),
        pytest.param([HEAD + b"x-big: ", *[b"a" * 8192] * 9], id="one header that never ends"),
        pytest.param([HEAD, *[b"x-many: 1234567890\r\n" * 100] * 40], id="many headers"),
        pytest.param([b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n"], id="a long address"),
    ],
)
async def test_headers_beyond_the_limit_get_a_431_that_arrives(upstream: Upstream, pieces: list[bytes]) -> None:
    async with served(upstream) as (url, _):
        answer = await sent(url, *pieces)
    assert refused(answer) == (431, "headers_too_large")


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("http://localhost/health/live", 200),
        ("HTTP://LOCALHOST/health/live?a=http://evil.example/", 200),
        ("http://evil.example/health/live", 400),
        ("http://localhost:81/health/live", 400),
        ("http://user@localhost/health/live", 400),
        ("http://evil.example?@localhost/health/live", 400),
    ],
)
async def test_a_target_that_names_another_host_than_its_header_is_refused(
    upstream: Upstream, target: str, status: int
) -> None:
    async with served(upstream) as (url, _):
        answer = await sent(url, f"GET {target} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    assert answer.status == status


async def test_a_client_that_goes_on_sending_after_a_refusal_is_cut_off(upstream: Upstream) -> None:
    async with served(upstream) as (url, _), raw_connection(url) as connection, asyncio.timeout(30):
        with pytest.raises(ConnectionError):
            await _drip(connection, b"x" * 65_536, 0)


async def test_a_silent_connection_is_closed(upstream: Upstream) -> None:
    async with served(upstream, header_seconds=0.1) as (url, _):
        answer = await sent(url)
    assert (answer.raw, answer.ended) == (b"", "eof")


async def test_headers_that_do_not_come_in_time_get_a_408_though_bytes_keep_coming(upstream: Upstream) -> None:
    async with served(upstream, header_seconds=0.2) as (url, _), raw_connection(url) as connection:
        await connection.send(HEAD)
        dripping = asyncio.create_task(_drip(connection, b"x: y\r\n", 0.02))
        try:
            answer = await connection.answer()
        finally:
            dripping.cancel()
            await asyncio.wait([dripping])
    assert refused(answer) == (408, "request_timeout")


async def test_a_body_that_stops_coming_gets_a_408(upstream: Upstream) -> None:
    async with served(upstream, body_seconds=0.1) as (url, _):
        answer = await sent(url, HEAD + b'content-length: 100\r\n\r\n{"model"')
    assert refused(answer) == (408, "request_timeout")


async def test_a_body_that_drips_gets_a_408_though_no_gap_is_long(upstream: Upstream) -> None:
    async with served(upstream, body_seconds=0.2) as (url, _), raw_connection(url) as connection:
        await connection.send(HEAD + b"content-length: 100000\r\n\r\n{")
        dripping = asyncio.create_task(_drip(connection, b" ", 0.01))
        try:
            answer = await connection.answer()
        finally:
            dripping.cancel()
            await asyncio.wait([dripping])
    assert refused(answer) == (408, "request_timeout")


async def test_a_body_that_was_refused_unread_may_not_come_for_ever(upstream: Upstream) -> None:
    async with served(upstream, body_seconds=0.2) as (url, _), raw_connection(url) as connection:
        head = HEAD.replace(b"/v1/chat/completions", b"/nowhere")
        await connection.send(head + b"content-length: 100000\r\n\r\n{")
        assert (await connection.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 404")
        async with asyncio.timeout(30):
            while await connection.reader.read(1024):
                pass


async def test_a_kept_connection_serves_again_and_is_closed_when_idle(upstream: Upstream) -> None:
    async with served(upstream, idle_seconds=0.5) as (url, factory), raw_connection(url) as connection:
        for _ in range(2):
            connection.received.clear()
            await connection.send(LIVE)
            assert (await connection.answer()).status == 200
        assert len(factory.idle) == 1
        async with asyncio.timeout(30):
            assert await connection.reader.read() == b""
        assert not factory.idle


async def test_part_of_a_next_request_does_not_cost_the_answer_that_is_under_way(upstream: Upstream) -> None:
    gate = asyncio.Event()
    upstream.script("m", [Reply(text="hi", pace=Pace(hold=Hold(gate)))])
    async with served(upstream, header_seconds=0.05) as (url, _), raw_connection(url) as connection:
        await connection.post("/v1/chat/completions", ASK)
        [asked] = await upstream.requests.wait(1)
        await connection.send(b"GET /hea")
        asyncio.get_running_loop().call_later(0.3, gate.set)
        answer = await connection.answer()
        assert answer.status == 200, asked


async def test_beyond_the_limit_of_connections_only_health_is_answered(upstream: Upstream) -> None:
    gate = asyncio.Event()
    upstream.script("m", [Reply(text="hi", pace=Pace(hold=Hold(gate)))] * 2)
    async with served(upstream, connections=2) as (url, _), raw_connection(url) as one, raw_connection(url) as two:
        for each in (one, two):
            await each.post("/v1/chat/completions", ASK)
        await upstream.requests.wait(2)
        turned_away = await raw_post(url, ASK)
        probe = await sent(url, LIVE)
        gate.set()
        assert [(await each.answer()).status for each in (one, two)] == [200, 200]
    assert refused(turned_away) == (503, "over_capacity")
    assert turned_away.headers["retry-after"] == "1"
    assert probe.status == 200


async def test_idle_connections_give_way_to_new_ones(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="hi")])
    async with served(upstream, connections=2) as (url, _), raw_connection(url) as one, raw_connection(url) as two:
        for each in (one, two):
            await each.send(LIVE)
            await each.answer()
        assert (await raw_post(url, ASK)).status == 200
        assert await one.reader.read() == b"", "the one idle for the longest goes first"
        two.received.clear()
        await two.send(LIVE)
        assert (await two.answer()).status == 200


async def test_a_burst_of_requests_beyond_the_limit_gets_503s_and_none_is_closed_without_an_answer(
    upstream: Upstream,
) -> None:
    gate = asyncio.Event()
    upstream.script("m", lambda _: Reply(text="hi", pace=Pace(hold=Hold(gate))))
    async with served(upstream, connections=5, reserve=10) as (url, _), contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(raw_connection(url)) for _ in range(60)]
        await asyncio.gather(*(each.post("/v1/chat/completions", ASK) for each in clients))
        await upstream.requests.wait(5)
        answers = [asyncio.create_task(each.answer()) for each in clients]
        done: set[asyncio.Task[RawAnswer]] = set()
        while len(done) < 55:
            finished, _ = await asyncio.wait(set(answers) - done, return_when=asyncio.FIRST_COMPLETED)
            done |= finished
        gate.set()
        await asyncio.gather(*answers)
    refusals = [task.result() for task in answers if task.result().status != 200]
    assert {refused(each) for each in refusals} == {(503, "over_capacity")}
    assert all(each.headers["retry-after"] == "1" for each in refusals)
    assert len(refusals) == 55


async def test_health_is_answered_while_all_connections_are_in_use(upstream: Upstream) -> None:
    gate = asyncio.Event()
    upstream.script("m", lambda _: Reply(text="hi", pace=Pace(hold=Hold(gate))))
    async with served(upstream, connections=2) as (url, _), contextlib.AsyncExitStack() as stack:
        for _ in range(2):
            await (await stack.enter_async_context(raw_connection(url))).post("/v1/chat/completions", ASK)
        await upstream.requests.wait(2)
        for _ in range(20):
            assert (await sent(url, LIVE)).status == 200
        gate.set()


async def test_a_connection_that_gives_way_before_its_first_request_gets_a_503(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callgate.server.protocol.PROMPT_SECONDS", 0.0)
    async with served(upstream, connections=1) as (url, _), raw_connection(url) as slow:
        await slow.send(b"GET /health/li")
        assert (await sent(url, LIVE)).status == 200
        assert refused(await slow.answer()) == (503, "over_capacity")


@pytest.mark.parametrize("length", [10_000_001, 10**12, 10**18])
@pytest.mark.parametrize("expect", [b"", b"expect: 100-continue\r\n"])
async def test_a_body_announced_beyond_the_limit_is_refused_before_any_of_it_is_sent(
    upstream: Upstream, length: int, expect: bytes
) -> None:
    async with served(upstream) as (url, _):
        async with asyncio.timeout(30):
            answer = await sent(url, HEAD + b"content-length: %d\r\n" % length + expect + b"\r\n")
    assert answer.status == 413
    assert json.loads(answer.body)["error"]["code"] == "request_too_large"
    assert len(upstream.requests) == 0


async def test_silent_connections_give_way_to_new_ones_and_those_under_way_do_not(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callgate.server.protocol.PROMPT_SECONDS", 0.0)
    gate = asyncio.Event()
    upstream.script("m", lambda _: Reply(text="hi", pace=Pace(hold=Hold(gate))))
    async with served(upstream, connections=3) as (url, factory), contextlib.AsyncExitStack() as stack:
        busy = await stack.enter_async_context(raw_connection(url))
        await busy.post("/v1/chat/completions", ASK)
        await upstream.requests.wait(1)
        flood = [await stack.enter_async_context(raw_connection(url)) for _ in range(20)]
        for each in flood[10:]:
            await each.send(b"GET /health/li")
        late = asyncio.create_task(raw_post(url, ASK))
        await upstream.requests.wait(2)
        probe = await sent(url, LIVE)
        gate.set()
        assert [(await busy.answer()).status, (await late).status, probe.status] == [200, 200, 200]
        assert len(factory.awaiting_head) <= 3


async def test_while_draining_only_health_is_answered_and_no_connection_is_kept(upstream: Upstream) -> None:
    async with served(upstream) as (url, factory), raw_connection(url) as kept:
        await kept.send(LIVE)
        await kept.answer()
        factory.draining = True
        kept.received.clear()
        await kept.send(LIVE)
        probe = await kept.answer()
        assert (probe.status, probe.headers["connection"]) == (200, "close")
        assert refused(await raw_post(url, ASK)) == (503, "shutting_down")


@pytest.mark.parametrize(
    "request_bytes",
    [
        pytest.param(b"hello\r\n\r\n", id="not http"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64), id="a TLS greeting"),
        pytest.param(HEAD + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", id="two lengths"),
        pytest.param(HEAD + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello", id="lengths at odds"),
        pytest.param(HEAD + b"content-length: -1\r\n\r\n", id="a negative length"),
        pytest.param(HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n", id="a chunk size that is none"),
        pytest.param(HEAD + b"bad header\r\n\r\n", id="a header without a colon"),
        pytest.param(HEAD + b"x: a\x00b\r\n\r\n", id="a zero byte in a header"),
        pytest.param(HEAD + b" folded: y\r\n\r\n", id="a folded header"),
    ],
)
async def test_what_is_not_http_gets_a_400_in_shape(upstream: Upstream, request_bytes: bytes) -> None:
    async with served(upstream, body_seconds=1) as (url, _):
        answer = await sent(url, request_bytes)
        assert (await sent(url, LIVE)).status == 200
    assert refused(answer) == (400, "invalid_http_request")


async def test_trailers_do_not_become_headers_and_are_bounded(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="hi")])
    body = json.dumps(ASK).encode()
    chunk = b"%x\r\n%s\r\n0\r\n" % (len(body), body)
    async with served(upstream) as (url, _):
        request = HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunk + b"x-request-id: smuggled\r\n\r\n"
        answer = await sent(url, request)
        assert answer.status == 200
        assert answer.headers["x-request-id"] != "smuggled"
        flood = await sent(
            url, HEAD + b"transfer-encoding: chunked\r\n\r\n", *[b"1;" + b"e" * 8000 + b"\r\nx\r\n"] * 60
        )
    assert refused(flood) == (400, "invalid_http_request")


async def test_an_unsupported_upgrade_is_answered_as_a_plain_request(upstream: Upstream) -> None:
    asked = LIVE.replace(b"\r\n\r\n", b"\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n")
    async with served(upstream) as (url, _):
        assert (await sent(url, asked)).status == 200


async def test_requests_sent_far_ahead_of_their_answers_are_refused(
    upstream: Upstream, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(upstream) as (url, _), raw_connection(url) as connection:
        await connection.send(LIVE * (MAX_PIPELINED + 50))
        async with asyncio.timeout(30):
            data = await connection.reader.read()
    assert data.count(b"HTTP/1.1 200") <= MAX_PIPELINED + 1
    assert not caplog.records, "nothing was written after the end"


async def test_a_few_requests_sent_ahead_are_answered_in_order(upstream: Upstream) -> None:
    async with served(upstream) as (url, _), raw_connection(url) as connection:
        await connection.send(LIVE + LIVE.replace(b"/health/live", b"/v1/models") + LIVE.replace(b"live", b"nowhere"))
        data = b""
        async with asyncio.timeout(30):
            while data.count(b"HTTP/1.1 ") < 3 or not data.endswith(b"}"):
                data += await connection.reader.read(1000)
    live, models, nowhere = data.split(b"HTTP/1.1 ")[1:]
    assert live.startswith(b"200")
    assert (models[:3], b'"object":"list"' in models) == (b"200", True)
    assert nowhere[:3] in (b"401", b"404")


@pytest.mark.parametrize("size", [50_000_000, 12_000_000])
async def test_a_client_that_does_not_take_its_answer_is_let_go(size: int) -> None:
    ended = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for _ in range(size // 1_000_000):
                await send({"type": "http.response.body", "body": bytes(1_000_000), "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            ended.set()

    factory = ProtocolFactory(ConnectionLimits(idle_seconds=0.3))
    states: list[Any] = []

    def protocol(**given: Any) -> Any:
        states.append(given["server_state"])
        return factory.protocol(**given)

    async with serve(app, http=protocol, lifespan="off") as url, raw_connection(url) as connection, asyncio.timeout(30):
        connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await connection.send(LIVE.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
        await ended.wait()
        while states[0].connections:  # noqa: ASYNC110 - uvicorn's set has no event of ours
            await asyncio.sleep(0.01)


async def _drip(connection: Any, piece: bytes, seconds: float) -> None:
    while True:
        await connection.send(piece)
        await asyncio.sleep(seconds)
