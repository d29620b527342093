"""Places are held by who may use them: refused, silent and unread connections hold none, and no key has all."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any, Literal

import pytest

from callgate.access.keys import mint_key
from callgate.api.middleware import CONNECTION
from callgate.application import create_app
from callgate.server import ConnectionLimits, ProtocolFactory
from callgate.server.limits import LINGERING
from tests.chaos.scale import scaled
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.harness.wire import RawAnswer, RawConnection, raw_connection
from tests.scripted_upstream import Hold, Pace, Reply, Upstream
from tests.server.bare import begin, behind_the_edge, part

pytestmark = pytest.mark.anyio

PLACES = 40
SHARE = ConnectionLimits().key_share
(ANN, ANN_HASH), (BOB, BOB_HASH) = mint_key(), mint_key()
KEYS = [{"name": "ann", "hash": ANN_HASH}, {"name": "bob", "hash": BOB_HASH}]
ASK = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
SLOW_BODY = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n%bcontent-length: 5000000\r\n\r\n{"


@contextlib.asynccontextmanager
async def served(
    upstream: Upstream, *, auth: Literal["off", "keys"] = "keys", **rules: Any
) -> AsyncIterator[tuple[str, ProtocolFactory]]:
    """Serve with two keys and few places, which nobody gets back by the passing of time."""
    factory = ProtocolFactory(ConnectionLimits(**{"connections": PLACES, "reserve": 10, "body_seconds": 600, **rules}))
    app = create_app(make_config(upstream.url, auth=auth, keys=KEYS))
    async with serve(app, http=factory.protocol, timeout_graceful_shutdown=1) as url, asyncio.timeout(60):
        yield url, factory


def header(key: str) -> bytes:
    return b"authorization: Bearer %b\r\n" % key.encode()


async def answer_to(url: str, key: str) -> RawAnswer:
    async with raw_connection(url) as connection:
        await connection.post("/v1/chat/completions", ASK, {"authorization": f"Bearer {key}"})
        return await connection.answer()


async def open_all(url: str, stack: contextlib.AsyncExitStack, count: int, sent: bytes) -> list[RawConnection]:
    connections = [await stack.enter_async_context(raw_connection(url)) for _ in range(count)]
    for connection in connections:
        with contextlib.suppress(ConnectionError):
            await connection.send(sent)
    return connections


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(SLOW_BODY % b"", id="bodies without a key"),
        pytest.param(SLOW_BODY % header("cg-none"), id="bodies with a wrong key"),
        pytest.param(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n" * 50, id="the page, far ahead and unread"),
        pytest.param(b"", id="silence"),
        pytest.param(b"POST /v1/chat/completions HTTP/1.1\r\nhost:", id="half a head"),
    ],
)
async def test_sockets_without_a_key_take_no_place_from_those_with_one(upstream: Upstream, sent: bytes) -> None:
    upstream.script("m", lambda _: Reply(text="hi"))
    async with served(upstream) as (url, _), contextlib.AsyncExitStack() as stack:
        for _ in range(2):
            await open_all(url, stack, PLACES + 10, sent)
            assert [(await answer_to(url, ANN)).status for _ in range(4)] == [200] * 4


@pytest.mark.parametrize("auth", ["off", "keys"])
async def test_behind_many_fresh_idle_connections_the_next_requests_are_answered(
    upstream: Upstream, auth: Literal["off", "keys"]
) -> None:
    upstream.script("m", lambda _: Reply(text="hi"))
    async with served(upstream, auth=auth) as (url, factory), contextlib.AsyncExitStack() as stack:
        for _ in range(3):
            await open_all(url, stack, scaled(5 * PLACES, 20 * PLACES), b"")
            assert [(await answer_to(url, ANN)).status for _ in range(8)] == [200] * 8
            assert len(factory.connections) <= PLACES + 10 + LINGERING


async def test_a_refused_connection_is_answered_and_holds_no_place(upstream: Upstream) -> None:
    async with served(upstream) as (url, factory), contextlib.AsyncExitStack() as stack:
        connections = await open_all(url, stack, LINGERING + 10, SLOW_BODY % b"")
        answers = [await connection.answer() for connection in connections[-10:]]
        assert {(one.status, one.headers["connection"]) for one in answers} == {(401, "close")}
        assert len(factory.lingering) <= LINGERING
        assert not factory.keyless


@pytest.mark.parametrize("part_of_all", [SHARE, 0.5])
async def test_one_key_has_a_share_of_the_connections_and_others_have_the_rest(
    upstream: Upstream, part_of_all: float
) -> None:
    upstream.script("m", lambda _: Reply(text="hi"))
    share = int(PLACES * part_of_all)
    async with served(upstream, key_share=part_of_all) as (url, factory), contextlib.AsyncExitStack() as stack:
        connections = await open_all(url, stack, PLACES, SLOW_BODY % header(ANN))
        refused = [await connection.answer() for connection in connections[share:]]
        assert {one.status for one in refused} == {429}
        assert json.loads(refused[0].body)["error"]["code"] == "too_many_connections"
        assert (await answer_to(url, ANN)).status == 429
        assert (await answer_to(url, BOB)).status == 200
        for connection in connections[: share // 2]:
            connection.writer.transport.abort()
        while len(factory.connections) - len(factory.lingering) > share // 2:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.001)
        assert (await answer_to(url, ANN)).status == 200


async def test_idle_connections_of_a_key_make_room_in_its_share(upstream: Upstream) -> None:
    upstream.script("m", lambda _: Reply(text="hi"))
    get = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n%b\r\n" % header(ANN)
    async with served(upstream) as (url, factory), contextlib.AsyncExitStack() as stack:
        for connection in await open_all(url, stack, int(PLACES * SHARE), get):
            assert (await connection.answer()).status == 200
        assert (await answer_to(url, ANN)).status == 200
        assert len(factory.connections) <= PLACES * SHARE


async def test_a_key_gets_a_place_where_all_are_in_use_by_requests_only_once_one_has_ended(upstream: Upstream) -> None:
    gate = asyncio.Event()
    upstream.script("m", lambda _: Reply(text="hi", pace=Pace(hold=Hold(gate))))
    async with served(upstream, connections=4) as (url, _), contextlib.AsyncExitStack() as stack:
        asking = []
        for key in (ANN, ANN, BOB, BOB):
            connection = await stack.enter_async_context(raw_connection(url))
            await connection.post("/v1/chat/completions", ASK, {"authorization": f"Bearer {key}"})
            asking.append(connection)
        await upstream.requests.wait(4)
        assert (await answer_to(url, BOB)).status == 503
        gate.set()
        assert [(await connection.answer()).status for connection in asking] == [200] * 4
        assert (await answer_to(url, BOB)).status == 200


LARGE = 12_000_000
"""More than the system takes on both sides."""


async def large(scope: Any, receive: Any, send: Any) -> None:
    """Answers for the key that the path names: more than is taken unread, or a little."""
    owner, _, size = scope["path"][1:].partition("/")
    scope[CONNECTION].belong_to(owner)
    await begin(send)
    await part(send, bytes(int(size)))
    await part(send, b"", more=False)


def get(path: str) -> bytes:
    return b"GET /%b HTTP/1.1\r\nhost: localhost\r\n\r\n" % path.encode()


async def unread_answers(url: str, stack: contextlib.AsyncExitStack, *owners: str) -> None:
    """Ask for answers of these keys, and take nothing of them."""
    for owner in owners:
        connection = await stack.enter_async_context(raw_connection(url))
        connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await connection.send(get(f"{owner}/{LARGE}"))


async def short_answer(url: str, owner: str) -> bytes:
    async with raw_connection(url) as connection:
        await connection.send(get(f"{owner}/2"))
        return (await connection.answer()).body


async def test_an_answer_that_nobody_takes_makes_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callgate.server.protocol.UNREAD_SECONDS", 0.0)
    async with behind_the_edge(large, connections=4, reserve=2) as bare, contextlib.AsyncExitStack() as stack:
        await unread_answers(bare.url, stack, "ann", "ann", "ann", "bob")
        while len(bare.factory.unread) < 4:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.001)
        assert await short_answer(bare.url, "bob") == bytes(2)
        assert len(bare.factory.unread) == 3


async def test_what_one_key_leaves_unread_is_bounded_in_bytes() -> None:
    begun = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        begun.append(scope["path"])
        await large(scope, receive, send)

    async with behind_the_edge(app, unread_bytes=20_000_000) as bare, contextlib.AsyncExitStack() as stack:
        await unread_answers(bare.url, stack, *["ann"] * 6)
        while len(begun) < 6 or len(bare.factory.connections) > 1:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.001)
        assert await short_answer(bare.url, "bob") == bytes(2)
        assert bare.factory.unread, "the only answer of a key is never too much"
