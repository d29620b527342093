"""What an application receives of the bytes of a connection, and in which order they are answered."""

import asyncio
import contextlib
import contextvars
import json
import math
from typing import Any

import pytest

from callgate.api.middleware import CALLER_MEMORY, CONNECTION, TEXT_HEADERS
from tests.harness.wire import raw_connection
from tests.server.bare import GET, POST, answer, behind_the_edge, connected, gone, part, read_body

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """uvloop is what serves. Its clock stands still for a turn of the loop, and its transports write at once."""
    return "asyncio", {"use_uvloop": request.param}


async def echo(scope: Any, receive: Any, send: Any) -> None:
    await answer(send, await read_body(receive))


class Scopes:
    """Answers, and keeps what was asked."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.seen.append(scope)
        await answer(send)


async def test_a_request_is_described_as_asgi_has_it() -> None:
    app = Scopes()
    async with connected(app) as connection:
        here = connection.writer.get_extra_info("sockname")
        there = connection.writer.get_extra_info("peername")
        await connection.send(
            b"PATCH /a%20b/%C3%A9?q=1%202&r HTTP/1.1\r\nHost: localhost\r\nX-Twice: One\r\nx-twice:   two\r\nX-None:\r\n\r\n"
        )
        await connection.answer()
    [scope] = app.seen
    assert scope == {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "server": there,
        "client": here,
        "scheme": "http",
        "root_path": "",
        "method": "PATCH",
        "path": "/a b/é",
        "raw_path": b"/a%20b/%C3%A9",
        "query_string": b"q=1%202&r",
        "headers": [(b"host", b"localhost"), (b"x-twice", b"One"), (b"x-twice", b"two"), (b"x-none", b"")],
        "state": {},
        CONNECTION: scope[CONNECTION],
        TEXT_HEADERS: {"host": "localhost", "x-twice": "two", "x-none": ""},
    }


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"/", "/", b""),
        (b"/?", "/", b""),
        (b"/a?b?c", "/a", b"b?c"),
        (b"//a", "//a", b""),
        (b"/a#b?c", "/a", b""),
        (b"/a?b#c", "/a", b"b"),
        (b"http://localhost/a?b", "/a", b"b"),
        (b"http://localhost", "/", b""),
        (b"/%ff%00", "/\ufffd\x00", b""),
        (b"/../a", "/../a", b""),
    ],
)
async def test_what_is_asked_for_is_taken_apart(target: bytes, path: str, query: bytes) -> None:
    app = Scopes()
    async with connected(app) as connection:
        await connection.send(b"GET " + target + b" HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert (await connection.answer()).status == 200
    assert (app.seen[0]["path"], app.seen[0]["query_string"]) == (path, query)


async def test_requests_over_one_connection_share_nothing() -> None:
    scopes = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scopes.append((scope["path"], scope["method"], len(scope["headers"]), dict(scope["state"]), "mark" in scope))
        scope["mark"] = scope["state"]["mark"] = 1
        scope["path"] = scope["method"] = "changed"
        scope["headers"].append((b"x", b"y"))
        await answer(send)

    async with connected(app) as connection:
        for asked in (GET, GET, GET.replace(b"/ ", b"/b ", 1), GET.replace(b"GET", b"PUT"), GET):
            connection.received.clear()
            await connection.send(asked)
            assert (await connection.answer()).status == 200
    asked_for = [("/", "GET"), ("/", "GET"), ("/b", "GET"), ("/", "PUT"), ("/", "GET")]
    assert scopes == [(path, method, 1, {}, False) for path, method in asked_for]


async def test_each_request_has_a_context_of_its_own() -> None:
    mark = contextvars.ContextVar("mark", default="none")
    found: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        found.append(mark.get())
        mark.set("left behind")
        await read_body(receive)
        await answer(send)
        await asyncio.sleep(0)

    async with connected(app) as connection:
        await connection.send(POST + b"content-length: 3\r\n\r\n")
        await connection.send(b"abc" + GET * 3)
        await connection.until(b"\r\n\r\nok", 4)
        await connection.send(GET)
        await connection.until(b"\r\n\r\nok", 5)
    assert found == ["none"] * 5


BODY = json.dumps({"text": "x" * 40}).encode()
COUNTED = POST + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n" + b"".join(
    b"%x;why\r\n%b\r\n" % (len(piece), piece) for piece in (BODY[:1], BODY[1:20], BODY[20:])
) + b"0\r\nx-trailer: y\r\n\r\n"  # fmt: skip


@pytest.mark.parametrize("request_bytes", [COUNTED, CHUNKED], ids=["counted", "chunked"])
async def test_however_a_request_is_cut_the_application_receives_the_same(request_bytes: bytes) -> None:
    handled: list[tuple[Any, bytes]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = await read_body(receive)
        scope.pop(CALLER_MEMORY, None)
        handled.append((scope, body))
        await answer(send, body)

    async with behind_the_edge(app) as bare, raw_connection(bare.url) as connection:
        for cut in range(1, len(request_bytes)):
            connection.received.clear()
            before = len(handled)
            await connection.send(request_bytes[:cut])
            await asyncio.sleep(0)
            await connection.send(request_bytes[cut:])
            assert (await connection.answer()).body == BODY
            assert len(handled) == before + 1
        connection.received.clear()
        for at in range(len(request_bytes)):
            await connection.send(request_bytes[at : at + 1])
        assert (await connection.answer()).body == BODY
    assert all(scope == handled[0][0] for scope, _ in handled)


async def test_pipelined_requests_are_handled_one_after_another_and_answered_in_order() -> None:
    running = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal running
        running += 1
        assert running == 1
        body = await read_body(receive)
        for _ in range(10 if body == b"slow" else 0):
            await asyncio.sleep(0)
        running -= 1
        await answer(send, b"<%b>" % body)

    bodies = [b"slow", b"quick", b"", b"slow", b"end"]
    async with connected(app) as connection:
        await connection.send(b"".join(POST + b"content-length: %d\r\n\r\n%b" % (len(each), each) for each in bodies))
        data = await connection.until(b">", len(bodies))
    assert [piece.partition(b">")[0] for piece in data.split(b"<")[1:]] == bodies


async def test_a_client_that_sends_more_than_is_read_is_made_to_wait() -> None:
    go = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await go.wait()
        await answer(send, b"%d" % len(await read_body(receive)))

    size = 30_000_000
    async with behind_the_edge(app) as bare, raw_connection(bare.url) as connection:
        connection.writer.write(POST + b"content-length: %d\r\n\r\n" % size + bytes(size))
        while not bare.factory.connections or not next(iter(bare.factory.connections)).is_holding_back:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        waiting = connection.writer.transport.get_write_buffer_size()
        assert waiting > size // 2
        await asyncio.sleep(0.05)
        assert connection.writer.transport.get_write_buffer_size() == waiting
        go.set()
        assert (await connection.answer()).body == b"%d" % size


async def test_only_a_client_with_more_of_a_large_body_to_send_is_made_to_wait() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, b"%d" % len(await read_body(receive)))

    async with behind_the_edge(app) as bare, raw_connection(bare.url) as connection:
        await connection.send(GET)
        await connection.answer()
        (server_side,) = bare.factory.connections
        for sent, size in ((100_000, 100_000), (100_000, 200_000)):
            connection.received.clear()
            server_side.data_received(POST + b"content-length: %d\r\n\r\n" % size + bytes(sent))
            assert server_side.is_holding_back == (sent < size)
            if sent < size:
                await connection.send(bytes(size - sent))
            assert (await connection.answer()).body == b"%d" % size


async def test_requests_sent_ahead_are_held_back_until_it_is_their_turn() -> None:
    go = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await go.wait()
        await answer(send)

    async with behind_the_edge(app) as bare, raw_connection(bare.url) as connection:
        await connection.send(GET * 2)
        while not bare.factory.connections or not next(iter(bare.factory.connections)).is_holding_back:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await connection.send(GET)
        go.set()
        await connection.until(b"\r\n\r\nok", 3)
        assert not next(iter(bare.factory.connections)).is_holding_back


@pytest.mark.parametrize("ahead", [1, 2, 5])
async def test_a_client_that_leaves_after_it_has_sent_requests_ahead_is_noticed(ahead: int) -> None:
    began = asyncio.Event()
    left: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert not began.is_set()
        await read_body(receive)
        receive.__self__.when_left = lambda: left.set_result(True)
        began.set()
        await left

    async with behind_the_edge(app, body_seconds=0.1) as bare:
        async with raw_connection(bare.url) as connection:
            await connection.send(GET)
            await began.wait()
            for _ in range(ahead):
                await connection.send(GET)
            while not next(iter(bare.factory.connections)).is_holding_back:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            assert not left.done()
        assert await left


async def test_the_rest_of_a_body_is_not_waited_for_after_the_answer_which_arrives() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, b"no", 401)

    async with behind_the_edge(app) as bare, raw_connection(bare.url) as connection:
        await connection.send(POST + b"content-length: 1000000\r\n\r\n{")
        while not bare.factory.lingering:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.001)
        await connection.send(b"x" * 999_999)
        refused = await connection.answer()
        assert (refused.status, refused.body, refused.headers["connection"]) == (401, b"no", "close")
        assert await gone(connection) == b""


async def test_a_large_body_with_part_of_a_next_request_behind_it_is_no_large_head() -> None:
    async with connected(echo, header_bytes=1000) as connection:
        body = b"x" * 5000
        await connection.send(POST + b"content-length: 5000\r\n\r\n" + body + GET[:-4])
        assert (await connection.answer()).body == body
        connection.received.clear()
        await connection.send(GET[-4:])
        assert (await connection.answer()).status == 200


@pytest.mark.parametrize("cut", [10, 30, 900, 1030])
async def test_a_head_beyond_the_limit_is_refused_however_it_is_cut(cut: int) -> None:
    ahead = POST + b"content-length: 0\r\n\r\n"
    large = GET[:-2] + b"x: " + b"a" * 1000 + b"\r\n\r\n"
    async with connected(echo, header_bytes=1000) as connection:
        await connection.send(ahead + large[:cut])
        await connection.until(b"content-length: 0\r\n\r\n" if cut < len(large) - 2 else b"431")
        with contextlib.suppress(ConnectionError):
            await connection.send(large[cut:])
        assert b"HTTP/1.1 431" in bytes(connection.received) + await gone(connection)


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
async def test_a_client_that_expects_100_continue_gets_it_when_the_body_is_read(version: bytes) -> None:
    async with connected(echo) as connection:
        await connection.send(POST.replace(b"1.1", version) + b"expect: 100-Continue\r\ncontent-length: 2\r\n\r\n")
        if version == b"1.1":
            assert await connection.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            connection.received.clear()
        await connection.send(b"hi")
        assert (await connection.answer()).body == b"hi"
    assert b"100 Continue" not in bytes(connection.received)


async def test_a_client_that_sends_its_body_at_once_gets_no_100_continue() -> None:
    async with connected(echo) as connection:
        await connection.send(POST + b"expect: 100-continue\r\ncontent-length: 2\r\n\r\nhi")
        assert (await connection.answer()).raw.startswith(b"HTTP/1.1 200")


async def test_the_connection_closes_where_no_100_continue_was_sent() -> None:
    """It may send the body or not: what comes next could be either, and one would be taken for the other."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, b"no", 401)

    async with connected(app) as connection:
        await connection.send(POST + b"expect: 100-continue\r\ncontent-length: 50\r\n\r\n")
        refused = await connection.answer()
        assert (refused.status, refused.headers["connection"]) == (401, "close")
        assert await gone(connection) == b""


async def test_a_client_that_waits_for_100_continue_does_not_time_out() -> None:
    go = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await go.wait()
        await echo(scope, receive, send)

    async with connected(app, body_seconds=0.4) as connection:
        await connection.send(POST + b"expect: 100-continue\r\ncontent-length: 2\r\n\r\n")
        asyncio.get_running_loop().call_later(0.6, go.set)
        await connection.until(b"100 Continue\r\n\r\n")
        connection.received.clear()
        await connection.send(b"hi")
        assert (await connection.answer()).body == b"hi"


UPGRADE = b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQBAAAAAAIAAAAA\r\n"
"""What Java's clients ask with in every request."""


@pytest.mark.parametrize("size", [0, 37, 300_000])
@pytest.mark.parametrize("framing", ["length", "chunks"])
@pytest.mark.parametrize("cut", [1, 7, 100_000])
async def test_a_request_for_another_protocol_is_served_by_its_own_framing_and_is_the_last(
    size: int, framing: str, cut: int
) -> None:
    bodies: list[bytes] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        bodies.append(await read_body(receive))
        await answer(send)

    said = (b"GET / HTTP/1.1\r\nhost: inside\r\n\r\n" * (size // 32 + 1))[:size]
    if framing == "length":
        request = POST + UPGRADE + b"content-length: %d\r\n\r\n" % size + said
    else:
        chunk = b"%x\r\n%b\r\n" % (size, said) if size else b""
        request = POST + UPGRADE + b"transfer-encoding: chunked\r\n\r\n" + chunk + b"0\r\n\r\n"
    cut = cut if len(request) < 1000 else 100_000
    pieces = [request[at : at + cut] for at in range(0, len(request), cut)]
    async with connected(app) as connection:
        for piece in [*pieces[:-1], pieces[-1] + GET]:
            await connection.send(piece)
        answered = await connection.answer()
        assert (answered.status, answered.headers["connection"], answered.body) == (200, "close", b"ok")
        assert await gone(connection) == b""
    assert bodies == [said]


async def test_after_a_request_for_another_protocol_nothing_is_read_however_odd_it_is() -> None:
    for behind in (GET, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", bytes(50), GET[:-2] + UPGRADE + b"\r\n"):
        app = Scopes()
        async with connected(app) as connection:
            await connection.send(GET[:-2] + UPGRADE + b"\r\n" + behind)
            answered = await connection.answer()
            assert (answered.status, answered.headers["connection"]) == (200, "close")
            assert await gone(connection) == b""
        assert len(app.seen) == 1


async def test_a_body_beside_an_upgrade_that_is_not_framed_properly_is_refused() -> None:
    async with connected(Scopes()) as connection:
        await connection.send(POST + UPGRADE + b"transfer-encoding: chunked\r\n\r\n" + GET)
        refused = await connection.answer()
        assert (refused.status, await gone(connection)) == (400, b"")


@pytest.mark.parametrize(
    "twice",
    [b"host: localhost\r\nhost: localhost", b"Host: a\r\nhost: b", b"authorization: a\r\nx: y\r\nAuthorization: b",
     b"content-length: 0\r\ncontent-length: 0", b"x-api-key: a\r\nX-Api-Key: b",
     b"x-callgate-tools: none\r\nX-Callgate-Tools: a", b"idempotency-key: a\r\nidempotency-key: b", b"origin: a\r\norigin: b"],
)  # fmt: skip
async def test_a_header_that_must_be_unique_is_refused_when_repeated(twice: bytes) -> None:
    app = Scopes()
    async with connected(app) as connection:
        host = b"" if b"host" in twice else b"host: localhost\r\n"
        await connection.send(b"POST / HTTP/1.1\r\n" + host + twice + b"\r\n\r\n")
        refused = await connection.answer()
        assert (refused.status, await gone(connection)) == (400, b"")
    assert not app.seen


async def test_white_space_around_a_value_is_no_part_of_it() -> None:
    app = Scopes()
    async with connected(app) as connection:
        await connection.send(b"GET / HTTP/1.1\r\nhost: localhost \r\nauthorization:\t Bearer  k \t\r\n\r\n")
        assert (await connection.answer()).status == 200
    assert app.seen[0]["headers"] == [(b"host", b"localhost"), (b"authorization", b"Bearer  k")]


@pytest.mark.parametrize(
    ("line", "status"),
    [(b"GET / HTTP/2.0", 505), (b"CONNECT / HTTP/1.1", 405), (b"CONNECT localhost:80 HTTP/1.1", 405)],
)
async def test_another_version_and_a_tunnel_are_refused_before_the_application_sees_them(
    line: bytes, status: int
) -> None:
    app = Scopes()
    async with connected(app) as connection:
        await connection.send(line + b"\r\nhost: localhost\r\n\r\n")
        refused = await connection.answer()
        assert (refused.status, refused.headers["connection"]) == (status, "close")
    assert not app.seen


async def test_other_headers_may_come_several_times() -> None:
    app = Scopes()
    async with connected(app) as connection:
        await connection.send(b"GET / HTTP/1.1\r\nhost: localhost\r\naccept: a\r\naccept: b\r\n\r\n")
        assert (await connection.answer()).status == 200
    assert [value for name, value in app.seen[0]["headers"] if name == b"accept"] == [b"a", b"b"]


async def test_a_request_of_the_current_version_names_its_host() -> None:
    app = Scopes()
    for version, status in ((b"1.1", 400), (b"1.0", 200)):
        async with connected(app) as connection:
            await connection.send(b"GET / HTTP/%b\r\naccept: a\r\n\r\n" % version)
            assert (await connection.answer()).status == status
    assert len(app.seen) == 1


async def test_receive_reports_a_client_that_left_and_send_does_not() -> None:
    began, left = asyncio.Event(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await read_body(receive)
        listening = [asyncio.ensure_future(receive()) for _ in range(2)]
        began.set()
        assert [(await each)["type"] for each in listening] == ["http.disconnect"] * 2
        assert (await receive())["type"] == "http.disconnect"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(1000):
            await part(send, b"x" * 1000)
        left.set()

    async with behind_the_edge(app) as bare:
        async with raw_connection(bare.url) as connection:
            await connection.send(GET)
            await began.wait()
        await left.wait()
        while bare.factory.connections or bare.state.tasks:  # noqa: ASYNC110 - neither has an event
            await asyncio.sleep(0.001)
        assert not bare.state.connections


async def test_a_client_that_leaves_in_the_middle_of_its_body_is_a_disconnect() -> None:
    handled: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    began = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["more_body"]
        began.set()
        handled.set_result((await receive())["type"])

    async with behind_the_edge(app) as bare:
        async with raw_connection(bare.url) as connection:
            await connection.send(POST + b"content-length: 10\r\n\r\nhi")
            await began.wait()
        assert await handled == "http.disconnect"


async def test_clocks_are_looked_at_only_while_there_are_connections() -> None:
    async with behind_the_edge(echo, idle_seconds=0.1) as bare, raw_connection(bare.url) as connection:
        assert bare.factory._sweeping is None or bare.factory.connections
        await connection.send(GET)
        assert await gone(connection)
        while bare.factory.connections:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.001)
        assert bare.factory._sweeping is None


async def test_a_clock_that_fails_does_not_stop_those_of_others() -> None:
    failures: list[Any] = []

    class Failing:
        due, stalled = 0.0, math.inf

        def time_is_up(self, now: float) -> None:
            bare.factory.connections.discard(self)
            raise RuntimeError("broken")

    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context["exception"]))
    async with behind_the_edge(echo, idle_seconds=0.1) as bare, raw_connection(bare.url) as connection:
        await connection.send(GET)
        await connection.answer()
        bare.factory.connections.add(Failing())  # type: ignore[arg-type]
        assert await gone(connection) == b""
    assert [str(failure) for failure in failures] == ["broken"]
