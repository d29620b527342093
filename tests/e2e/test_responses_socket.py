"""`GET /v1/responses` as a WebSocket: responses one after another, with a memory of their own."""

import asyncio
import contextlib
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from callgate.access.keys import hash_key
from callgate.application import create_app
from callgate.responses.frames import FrameReader
from callgate.responses.socket_limits import MESSAGES_OF_ONE
from tests.chaos.scale import held_to
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.loop_probe import LoopProbe
from tests.harness.responses import check_events
from tests.harness.server import serve
from tests.harness.websocket import CLOSE, PING, PONG, TEXT, client_frame, websocket
from tests.scripted_upstream import Call, Hold, Pace, Reply, Upstream

pytestmark = pytest.mark.anyio


async def test_its_messages_are_the_events_of_a_stream(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="Let me see.", calls=[Call("add", {"a": 1, "b": 2})]), Reply(text="3")])
    async with serve(create_app(make_config(upstream.url, tools=["add"]))) as url, websocket(url) as socket:
        ours = [{"type": "mcp", "server_label": "callgate"}]
        events = await socket.turn({"model": "m", "input": "1+2?", "tools": ours})
    check_events(events)
    kinds = [item["type"] for item in events[-1]["response"]["output"]]
    assert kinds == ["mcp_list_tools", "message", "mcp_call", "message"]


async def test_what_is_not_stored_is_gone_on_from_over_the_same_connection_alone(upstream: Upstream) -> None:
    upstream.script("m", lambda request: Reply(text=f"answer {request.turn}"))
    async with serve(create_app(make_config(upstream.url))) as url:
        async with websocket(url) as socket:
            first = (await socket.turn({"model": "m", "input": "one", "store": False}))[-1]["response"]
            given = {"model": "m", "input": "two", "store": False, "previous_response_id": first["id"]}
            assert (await socket.turn(given))[-1]["type"] == "response.completed"
            assert [each["content"] for each in upstream.requests[-1].body["messages"]] == ["one", "answer 0", "two"]
        async with websocket(url) as socket:
            [error] = await socket.turn(given)
            assert (error["type"], error["status"]) == ("error", 400)
            assert error["error"]["code"] == "previous_response_not_found"
            assert (await socket.turn({"model": "m", "input": "again"}))[-1]["type"] == "response.completed"


async def test_a_turn_that_fails_forgets_what_it_went_on_from(upstream: Upstream) -> None:
    upstream.script("m", lambda request: Reply(text="ok"))
    async with serve(create_app(make_config(upstream.url))) as url, websocket(url) as socket:
        first = (await socket.turn({"model": "m", "input": "one", "store": False}))[-1]["response"]
        given = {"model": "m", "input": "two", "store": False, "previous_response_id": first["id"]}
        [refused] = await socket.turn({**given, "temperature": "hot"})
        assert refused["error"]["param"] == "temperature"
        [error] = await socket.turn(given)
        assert error["error"]["code"] == "previous_response_not_found"


async def test_a_key_is_asked_for_and_stands_for_every_response(upstream: Upstream) -> None:
    upstream.script("m", lambda request: Reply(text="ok"))
    keys = [{"name": "alice", "hash": hash_key("cg-alice"), "requests_per_minute": 1}]
    async with serve(create_app(make_config(upstream.url, auth="keys", keys=keys))) as url:
        async with http_client(url) as client:
            refused = await client.get("/v1/responses", headers={"upgrade": "websocket", "connection": "upgrade"})
            assert (refused.status_code, refused.json()["error"]["code"]) == (401, None)
        async with websocket(url, authorization="Bearer cg-alice") as socket:
            assert (await socket.turn({"model": "m", "input": "one"}))[-1]["type"] == "response.completed"
            [error] = await socket.turn({"model": "m", "input": "two"})
            assert error["status"] == 429


async def test_a_client_that_leaves_in_the_middle_stops_the_model(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="a long story", pace=Pace(hold=Hold(asyncio.Event(), after=2)))])
    async with serve(create_app(make_config(upstream.url))) as url:
        async with websocket(url) as socket:
            await socket.send({"type": "response.create", "model": "m", "input": "go"})
            while (await socket.message())["type"] != "response.in_progress":
                pass
        async with asyncio.timeout(30):
            await upstream.requests[0].until_closed()


async def test_one_key_leaves_connections_to_the_others(upstream: Upstream) -> None:
    upstream.script("m", lambda request: Reply(text="ok"))
    keys = [{"name": name, "hash": hash_key(f"cg-{name}")} for name in ("alice", "bob", "carol")]
    config = make_config(upstream.url, auth="keys", keys=keys, server={"connections": 12})
    async with serve(create_app(config)) as url, contextlib.AsyncExitStack() as stack, http_client(url) as client:
        alice, bob, carol = ({"authorization": f"Bearer cg-{name}"} for name in ("alice", "bob", "carol"))
        sockets = [await stack.enter_async_context(websocket(url, **alice)) for _ in range(3)]
        assert await refused(client, alice) == (429, "too_many_sockets")
        for _ in range(3):
            await stack.enter_async_context(websocket(url, **bob))
        assert await refused(client, carol) == (503, "too_many_sockets")
        await sockets[0].send_raw(client_frame(CLOSE, b"\x03\xe8"))
        assert await sockets[0].closing_code() == 1000
        assert (await sockets[1].turn({"model": "m", "input": "one"}))[-1]["type"] == "response.completed"
        await stack.enter_async_context(websocket(url, **alice))


async def refused(client: httpx.AsyncClient, headers: dict[str, str]) -> tuple[int, str]:
    shake = {
        "connection": "upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "eA==",
    }
    answer = await client.get("/v1/responses", headers={**headers, **shake})
    return answer.status_code, answer.json()["error"]["code"]


async def test_one_key_holds_only_so_much_of_messages_that_never_end(upstream: Upstream) -> None:
    upstream.script("m", lambda request: Reply(text="ok"))
    largest = 20_000
    keys = [{"name": name, "hash": hash_key(f"cg-{name}")} for name in ("alice", "bob")]
    config = make_config(upstream.url, auth="keys", keys=keys, limits={"body_bytes": largest})
    async with serve(create_app(config)) as url, contextlib.AsyncExitStack() as stack:
        sockets = [
            await stack.enter_async_context(websocket(url, authorization="Bearer cg-alice"))
            for _ in range(MESSAGES_OF_ONE + 1)
        ]
        for socket in sockets:
            # Answered, so that what came before it has been taken in.
            await socket.send_raw(client_frame(TEXT, b"x" * (largest - 10), final=False) + client_frame(PING, b""))
        kinds = [await socket.frame() for socket in sockets]
        assert [kind for kind, _ in kinds] == [PONG] * len(sockets)
        assert await sockets[-1].closing_code() == 1013
        bob = await stack.enter_async_context(websocket(url, authorization="Bearer cg-bob"))
        assert (await bob.turn({"model": "m", "input": "one"}))[-1]["type"] == "response.completed"


async def test_a_message_of_many_values_is_an_error_and_delays_no_other_request(upstream: Upstream) -> None:
    fields = ",".join(f'"k{number}":1' for number in range(600_000))
    data = b'{"type":"response.create",%b}' % fields.encode()
    message = b"\x81\xff" + len(data).to_bytes(8, "big") + bytes(4) + data
    async with serve(create_app(make_config(upstream.url))) as url, websocket(url) as socket, LoopProbe() as probe:
        for start in range(0, len(message), 65_536):
            await socket.send_raw(message[start : start + 65_536])
        error = await socket.message()
        assert error["error"]["code"] == "too_many_values"
    held_to(0.2, "a message of many values keeps the loop, of the processor", probe.longest)


def test_pieces_without_content_take_no_memory() -> None:
    reader = FrameReader(1000)
    assert list(reader.feed(client_frame(TEXT, b"a", final=False))) == []
    assert list(reader.feed(client_frame(0x0, b"", final=False) * 10_000)) == []
    assert reader.held == 1
    assert list(reader.feed(client_frame(0x0, b"b"))) == [(TEXT, b"ab")]
    assert reader.held == 0


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (client_frame(TEXT, b"{}", masked=False), 1002),
        (client_frame(0x2, b"{}"), 1003),
        (client_frame(0x3, b"{}"), 1002),
        (client_frame(0x0, b"{}"), 1002),
        (client_frame(TEXT, b"{", final=False) + client_frame(TEXT, b"}"), 1002),
        (client_frame(PING, b"x" * 126), 1002),
        (client_frame(PING, b"x", final=False), 1002),
        (bytes([0xC1, 0x80, 0, 0, 0, 0]), 1002),
        (client_frame(TEXT, b"x" * 2000), 1009),
        (client_frame(TEXT, b"x" * 600, final=False) + client_frame(0x0, b"x" * 600), 1009),
        (client_frame(CLOSE, b"\x03\xe8"), 1000),
    ],
    ids=[
        "unmasked",
        "binary",
        "unknown",
        "nothing-to-continue",
        "begun-twice",
        "long-ping",
        "ping-in-parts",
        "reserved-bits",
        "large",
        "large-in-parts",
        "close",
    ],
)
async def test_what_is_no_message_ends_the_connection_with_the_reason(
    upstream: Upstream, data: bytes, code: int
) -> None:
    config = make_config(upstream.url, limits={"body_bytes": 1024})
    async with serve(create_app(config)) as url, websocket(url) as socket:
        await socket.send_raw(data)
        assert await socket.closing_code() == code


@pytest.mark.parametrize(
    "message", [b"", b"{", b"[]", b"{}", b'{"type":"response.steer"}', b'{"type":"response.create"}', b"\xff"]
)
async def test_a_message_that_asks_for_nothing_is_an_error_and_the_connection_goes_on(
    upstream: Upstream, message: bytes
) -> None:
    upstream.script("m", lambda request: Reply(text="ok"))
    async with serve(create_app(make_config(upstream.url))) as url, websocket(url) as socket:
        await socket.send_raw(client_frame(TEXT, message))
        error = await socket.message()
        assert (error["type"], error["status"]) == ("error", 400)
        assert set(error["error"]) == {"message", "type", "param", "code"}
        assert (await socket.turn({"model": "m", "input": "one"}))[-1]["type"] == "response.completed"


async def test_a_message_comes_in_pieces_and_a_ping_is_answered_between_them(upstream: Upstream) -> None:
    upstream.script("m", lambda request: Reply(text="ok"))
    first, second = b'{"type":"response.create","model":"m",', b'"input":"one"}'
    async with serve(create_app(make_config(upstream.url))) as url, websocket(url) as socket:
        data = client_frame(TEXT, first, final=False) + client_frame(PING, b"?") + client_frame(0x0, second)
        for at in range(len(data)):
            await socket.send_raw(data[at : at + 1])
        assert await socket.frame() == (PONG, b"?")
        assert (await socket.message())["type"] == "response.created"


async def test_the_end_of_the_server_ends_a_connection_that_asks_nothing(upstream: Upstream) -> None:
    app: Any = create_app(make_config(upstream.url))
    async with serve(app) as url, websocket(url) as socket:
        app.state.manager.begin_draining()
        assert await socket.closing_code() == 1001


@pytest.mark.parametrize("line", ["HEAD /v1/responses HTTP/1.1", "GET /v1/responses HTTP/1.0"])
async def test_a_handshake_is_a_get_of_the_current_version(upstream: Upstream, line: str) -> None:
    fields = "upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\nsec-websocket-key: eA==\r\n"
    async with serve(create_app(make_config(upstream.url))) as url:
        where = urlsplit(url)
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        writer.write(f"{line}\r\nhost: {where.netloc}\r\n{fields}\r\n".encode())
        assert b" 405 " in await reader.readline()
        writer.close()


async def test_a_get_without_a_handshake_is_a_405(upstream: Upstream) -> None:
    async with serve(create_app(make_config(upstream.url))) as url, http_client(url) as client:
        plain = await client.get("/v1/responses")
        assert (plain.status_code, plain.json()["error"]["code"]) == (405, "method_not_supported")


@pytest.mark.parametrize("body", [b"content-length: 4\r\n\r\nGET ", b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n"])
async def test_a_handshake_with_a_body_is_refused(upstream: Upstream, body: bytes) -> None:
    handshake = (
        b"GET /v1/responses HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
        b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    )
    async with serve(create_app(make_config(upstream.url))) as url:
        to = urlsplit(url)
        reader, writer = await asyncio.open_connection(to.hostname, to.port)
        writer.write(handshake + body)
        assert (await reader.readline()).split()[1] == b"400"
        writer.close()
