"""What a client gets of what an application sends: framing, endings, and never half an answer that looks whole."""

import asyncio
import json
import re
from typing import Any

import pytest

from tests.harness.wire import raw_connection
from tests.server.bare import GET, POST, answer, begin, behind_the_edge, connected, gone, part, read_body

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """uvloop is what serves. Its clock stands still for a turn of the loop, and its transports write at once."""
    return "asyncio", {"use_uvloop": request.param}


HEAD = GET.replace(b"GET", b"HEAD")
OLD = GET.replace(b"1.1", b"1.0")


async def test_what_is_announced_is_counted_and_what_is_not_goes_in_chunks() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/counted":
            await begin(send, headers=[(b"Content-Length", b"4"), (b"X-Case", b"Kept")])
        else:
            await begin(send)
        await part(send, b"ab")
        await part(send, b"")
        await part(send, b"cd", more=False)

    async with connected(app) as connection:
        await connection.send(GET.replace(b"/ ", b"/counted ", 1))
        counted = await connection.answer()
        connection.received.clear()
        await connection.send(GET)
        chunked = await connection.answer()
    assert (counted.body, counted.headers["x-case"], "transfer-encoding" in counted.headers) == (b"abcd", "Kept", False)
    assert (chunked.parts, chunked.ended) == ((b"ab", b"cd"), "complete")
    assert "connection" not in counted.headers


@pytest.mark.parametrize("size", [1, 100, 16_384, 16_385, 5_000_000])
@pytest.mark.parametrize("counted", [True, False])
async def test_parts_of_any_size_arrive_as_they_were_sent(size: int, counted: bool) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await begin(send, headers=[(b"content-length", b"%d" % (2 * size))] if counted else ())
        await part(send, b"a" * size)
        await part(send, b"b" * size, more=False)

    async with connected(app) as connection:
        for _ in range(2):
            connection.received.clear()
            await connection.send(GET)
            got = await connection.answer()
            assert got.body == b"a" * size + b"b" * size
            assert len(got.raw.partition(b"\r\n\r\n")[0]) < 200


async def test_parts_that_come_in_a_burst_keep_their_order_and_their_last_does_not_wait() -> None:
    numbers = b"".join(b"%d," % number for number in range(5000))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await begin(send)
        for number in range(5000):
            await part(send, b"%d," % number)
            if not number % 700:
                await asyncio.sleep(0.002 if number % 1400 else 0)
        await part(send, b"", more=False)

    async with connected(app) as connection:
        for _ in range(3):
            connection.received.clear()
            await connection.send(GET)
            got = await connection.answer()
            assert (got.body, got.ended) == (numbers, "complete")


async def test_what_was_gathered_goes_out_though_nothing_follows() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await begin(send)
        for _ in range(3):
            await part(send, b"word ")
        await read_body(receive)
        assert (await receive())["type"] == "http.disconnect"

    async with connected(app) as connection:
        await connection.send(GET)
        await connection.until(b"word ", 3)


async def test_what_was_gathered_goes_out_before_a_broken_answer_is_cut() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await begin(send)
        for _ in range(3):
            await part(send, b"word ")
        raise RuntimeError("broken")

    async with connected(app) as connection:
        await connection.send(GET)
        assert (await connection.answer()).body == b"word " * 3


async def test_a_head_goes_out_with_the_first_of_its_body_and_not_before() -> None:
    """Until then an error can still be a status."""
    begun, go = asyncio.Event(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await begin(send)
        begun.set()
        await go.wait()
        await part(send, b"")
        await receive()
        await receive()

    async with connected(app) as connection:
        await connection.send(GET)
        await begun.wait()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await connection.reader.read(1)
        go.set()
        assert b"transfer-encoding: chunked\r\n\r\n" in await connection.until(b"\r\n\r\n")


async def test_the_answer_to_head_has_no_body_and_the_connection_is_kept() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope["method"] = "GET"  # as the middleware does
        if scope["path"] == "/":
            await answer(send, b"hello")
        else:
            await begin(send)
            await part(send, b"x" * 100_000)
            await part(send, b"world", more=False)

    async with connected(app) as connection:
        await connection.send(HEAD + HEAD.replace(b"/ ", b"/b ", 1) + GET)
        data = await connection.until(b"hello")
    first, second, third, body = data.split(b"\r\n\r\n")
    assert b"content-length: 5" in first
    assert b"transfer-encoding" not in second
    assert (b"content-length: 5" in third, body) == (True, b"hello")


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_that_has_no_body_has_no_framing_either(status: int) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await begin(send, status)
        await part(send, b"", more=False)

    async with connected(app) as connection:
        await connection.send(GET * 2)
        data = await connection.until(b"\r\n\r\n", 2)
    assert data.count(b"HTTP/1.1 %d" % status) == 2
    assert b"transfer-encoding" not in data


async def test_a_client_of_http_1_0_gets_no_chunks_and_reads_until_the_end() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["http_version"] == "1.0"
        await begin(send, headers=[(b"transfer-encoding", b"chunked")])
        await part(send, b"ab")
        await part(send, b"cd", more=False)

    async with connected(app) as connection:
        await connection.send(OLD.replace(b"\r\n\r\n", b"\r\nconnection: keep-alive\r\n\r\n"))
        head, _, body = (await gone(connection)).partition(b"\r\n\r\n")
    assert body == b"abcd"
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head


async def test_a_client_of_http_1_0_can_see_that_an_answer_was_broken_off(caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await begin(send)
        await part(send, b"ab")
        await asyncio.sleep(0)
        raise RuntimeError("broken")

    async with connected(app) as connection:
        await connection.send(OLD)
        with pytest.raises(ConnectionError):
            await connection.reader.read()


@pytest.mark.parametrize("by", ["the client", "the application"])
async def test_either_side_can_ask_for_the_end_of_the_connection(by: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, headers=[(b"Connection", b"Close")] if by == "the application" else ())

    async with connected(app) as connection:
        asked = GET if by == "the application" else GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        await connection.send(asked + GET)
        data = await gone(connection)
    assert data.count(b"HTTP/1.1 200") == 1
    assert data.lower().count(b"connection: close") == 1


async def test_every_answer_is_dated_and_the_date_is_written_once_a_second() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(send)

    async with behind_the_edge(app) as bare, raw_connection(bare.url) as connection:
        bare_headers = [(b"date", b"Mon, 01 Jan 2001 00:00:00 GMT"), (b"x-also", b"y")]
        await connection.send(GET)
        assert "date" in (await connection.answer()).headers
        bare.state.default_headers = bare_headers
        connection.received.clear()
        await connection.send(GET)
        got = await connection.answer()
        assert (got.headers["date"], got.headers["x-also"]) == ("Mon, 01 Jan 2001 00:00:00 GMT", "y")
        assert bare.factory.standing_lines.of(bare_headers) is bare.factory.standing_lines.of(bare_headers)


async def broken_at_once(scope: Any, receive: Any, send: Any) -> None:
    raise RuntimeError("broken")


async def broken_after_its_head(scope: Any, receive: Any, send: Any) -> None:
    await begin(send)
    raise RuntimeError("broken")


async def silent(scope: Any, receive: Any, send: Any) -> None:
    """Ends without an answer."""


async def cancelled(scope: Any, receive: Any, send: Any) -> None:
    raise asyncio.CancelledError


async def too_short(scope: Any, receive: Any, send: Any) -> None:
    await begin(send, headers=[(b"content-length", b"5")])
    await part(send, b"four", more=False)


async def too_long(scope: Any, receive: Any, send: Any) -> None:
    await begin(send, headers=[(b"content-length", b"3")])
    await part(send, b"four", more=False)


async def no_status(scope: Any, receive: Any, send: Any) -> None:
    await begin(send, 42)


async def injected(scope: Any, receive: Any, send: Any) -> None:
    await answer(send, headers=[(b"x", b"y\r\nset-cookie: z")])


@pytest.mark.parametrize(
    "app", [broken_at_once, broken_after_its_head, silent, cancelled, too_short, too_long, no_status, injected]
)
@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
async def test_an_application_that_breaks_before_anything_went_out_is_a_500_in_shape(app: Any, method: bytes) -> None:
    async with behind_the_edge(app) as bare, raw_connection(bare.url) as connection:
        if app in (too_short, too_long) and method == b"HEAD":
            return  # nothing is counted where nothing is sent
        await connection.send(GET.replace(b"GET", method))
        head, _, body = (await gone(connection)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 500 ")
        assert b"connection: close" in head
        assert b"set-cookie" not in head + body
        if method == b"GET":
            assert json.loads(body)["error"]["type"] == "server_error"
        else:
            assert body == b""
        assert not bare.state.tasks


async def in_chunks(scope: Any, receive: Any, send: Any) -> None:
    await begin(send)
    await part(send, b"abc")
    raise RuntimeError("broken")


async def counted(scope: Any, receive: Any, send: Any) -> None:
    await begin(send, headers=[(b"content-length", b"6")])
    await part(send, b"abc")
    raise RuntimeError("broken")


async def stopped(scope: Any, receive: Any, send: Any) -> None:
    await begin(send)
    await part(send, b"abc")


async def cancelled_in_the_middle(scope: Any, receive: Any, send: Any) -> None:
    await stopped(scope, receive, send)
    raise asyncio.CancelledError


async def overlong(scope: Any, receive: Any, send: Any) -> None:
    await begin(send, headers=[(b"content-length", b"6")])
    await part(send, b"abc")
    await part(send, b"defg", more=False)


@pytest.mark.parametrize("app", [in_chunks, counted, stopped, cancelled_in_the_middle, overlong])
async def test_an_answer_that_breaks_off_is_never_taken_for_whole(app: Any) -> None:
    async with behind_the_edge(app) as bare, raw_connection(bare.url) as connection:
        await connection.send(GET * 2)
        got = await connection.answer()
        assert (got.status, got.body, got.ended) == (200, b"abc", "eof")
        assert not got.raw.endswith(b"0\r\n\r\n")
        assert not bare.state.tasks


async def test_messages_out_of_order_are_the_applications_own_mistake() -> None:
    mistakes: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        async def wrong(message: Any) -> None:
            with pytest.raises(RuntimeError) as raised:
                await send(message)
            mistakes.append(str(raised.value))

        await wrong({"type": "http.response.body", "body": b"x"})
        await begin(send)
        await wrong({"type": "http.response.start", "status": 200, "headers": []})
        await part(send, b"ok", more=False)
        await wrong({"type": "http.response.body", "body": b"x"})
        assert (await receive())["type"] == "http.disconnect"

    async with connected(app) as connection:
        await connection.send(GET)
        assert (await connection.answer()).body == b"ok"
    assert ["start" in mistakes[0], "body" in mistakes[1], "completed" in mistakes[2]] == [True] * 3


async def test_an_application_waits_for_a_client_that_is_slow_to_take_its_answer() -> None:
    sent, total = 0, 200

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal sent
        await begin(send)
        for _ in range(total):
            await part(send, bytes(100_000))
            sent += 1
        await part(send, b"", more=False)

    async with behind_the_edge(app) as bare, raw_connection(bare.url) as connection:
        connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await connection.send(GET)
        while not bare.factory.connections or next(iter(bare.factory.connections)).full is None:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        held = sent
        assert held < total
        await asyncio.sleep(0.05)
        assert sent == held
        connection.writer.transport.resume_reading()  # type: ignore[attr-defined]
        taken = 0
        while taken < total * 100_000:
            taken += len(await connection.reader.read(1_000_000))
        assert sent == total


async def test_what_runs_is_known_to_the_server_until_it_ends() -> None:
    go, ended = asyncio.Event(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await read_body(receive)
        await answer(send)
        await go.wait()
        ended.set()

    async with behind_the_edge(app) as bare, raw_connection(bare.url) as connection:
        for _ in range(2):
            connection.received.clear()
            await connection.send(POST + b"content-length: 2\r\n\r\nhi")
            await connection.answer()
        assert (len(bare.state.tasks), len(bare.state.connections), bare.state.total_requests) == (2, 1, 2)
        go.set()
        await ended.wait()
        await asyncio.sleep(0)
        assert not bare.state.tasks


async def test_an_application_that_was_cancelled_before_it_began_does_not_hold_up_the_end() -> None:
    began = False

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal began
        began = True

    async with behind_the_edge(app) as bare, raw_connection(bare.url) as connection:
        await connection.send(GET)
        while not (bare.states and bare.state.tasks):  # noqa: ASYNC110 - uvicorn's set has no event of ours
            await asyncio.sleep(0)
        [task] = bare.state.tasks
        task.cancel()
        await asyncio.wait([task])
        assert not began
        [still_open] = bare.factory.connections
        still_open.shutdown()
        assert await gone(connection) == b""


class WholeResponse:
    """Sends a response in one piece, or as the two messages of ASGI."""

    def __init__(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body
        self.at_once = True

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await read_body(receive)
        start = {"type": "http.response.start", "status": self.status, "headers": self.headers}
        if self.at_once:
            await send.__self__.send_whole(start, self.body)
        else:
            await send(start)
            await send({"type": "http.response.body", "body": self.body})


COUNTED_HEADERS = [(b"x-first", b"1"), (b"Content-Length", b"2")]


REST = b"content-length: 2\r\n\r\nhi"
REQUESTS = {
    "usual": POST + REST,
    "last": POST + b"connection: close\r\n" + REST,
    "expects": POST + b"expect: 100-continue\r\n" + REST,
    "old": POST.replace(b"1.1", b"1.0") + REST,
    "head": HEAD,
}


@pytest.mark.parametrize("request_bytes", REQUESTS.values(), ids=[*REQUESTS])
@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        (200, COUNTED_HEADERS, b"ok"),
        (404, COUNTED_HEADERS, b"ok"),
        (200, [(b"content-length", b"0")], b""),
        (200, [], b"ok"),
        (200, [], b""),
        (204, [], b""),
        (304, [(b"etag", b"1")], b""),
        (200, [*COUNTED_HEADERS, (b"connection", b"close")], b"ok"),
        (200, [(b"content-length", b"3")], b"ok"),
        (200, [(b"content-length", b"1")], b"ok"),
        (200, [(b"content-length", b"x")], b"ok"),
        (200, [*COUNTED_HEADERS, (b"x-forged", b"a\r\nb: c")], b"ok"),
        (200, [(b"content-length", b"40000")], b"x" * 40_000),
        (999, COUNTED_HEADERS, b"ok"),
    ],
)
async def test_a_response_at_once_is_that_of_two_messages(
    request_bytes: bytes, status: int, headers: list[tuple[bytes, bytes]], body: bytes
) -> None:
    app = WholeResponse(status, headers, body)
    answers = []
    async with behind_the_edge(app) as bare:
        for app.at_once in (True, False):
            async with raw_connection(bare.url) as connection:
                await connection.send(request_bytes)
                if request_bytes is HEAD or status in (204, 304):
                    answers.append(undated(await connection.until(b"\r\n\r\n")))
                else:
                    answers.append(undated((await connection.answer()).raw))
    assert answers[0] == answers[1]


class Echo:
    """Answers with the body of a request, which it takes at once where it can, or as messages of ASGI, and waits until the client leaves."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.at_once = True
        self.were_at_once: list[bool] = []
        self.last: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = None
        if self.at_once:
            body = receive.__self__.whole_body_fast(self.most)
            self.were_at_once.append(body is not None)
        if body is None:
            body = await read_body(receive)
        assert receive.__self__.whole_body_fast(self.most) is None
        await begin(send)
        await part(send, b"<%b>" % body)
        self.last.set_result((await receive())["type"])


@pytest.mark.parametrize(
    ("pieces", "is_at_once"),
    [
        ([POST + b"content-length: 4\r\n\r\nbody"], True),
        ([POST + b"content-length: 4\r\n\r\nbo", b"dy"], False),
        ([POST + b"content-length: 4\r\n\r\n", b"body"], False),
        ([POST + b"content-length: 5\r\n\r\nbodyx"], False),
        ([POST + b"transfer-encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n"], True),
        ([POST + b"transfer-encoding: chunked\r\n\r\n2\r\nbo\r\n2\r\ndy\r\n0\r\n\r\n"], False),
        ([POST + b"content-length: 0\r\n\r\n"], False),
        ([GET], False),
    ],
    ids=["whole", "in two", "behind its head", "too long", "one chunk", "two chunks", "empty", "none"],
)
async def test_a_body_taken_at_once_is_that_of_its_messages(pieces: list[bytes], is_at_once: bool) -> None:
    answers = []
    for at_once in (True, False):
        app = Echo(most=4)
        app.at_once = at_once
        async with behind_the_edge(app) as bare:
            async with raw_connection(bare.url) as connection:
                for piece in pieces:
                    await connection.send(piece)
                    await asyncio.sleep(0)
                answers.append(undated(await connection.until(b">")))
            assert await app.last == "http.disconnect"
        if at_once and len(pieces) == 1:
            assert app.were_at_once == [is_at_once]
    assert answers[0] == answers[1]


class PiecedResponse:
    """Sends a body in pieces, each as bytes or as a message of ASGI."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces
        self.as_bytes = True

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await read_body(receive)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-first", b"1")]})
        send_piece = send.__self__.piece_sender(is_masked=False)
        for piece in self.pieces:
            if self.as_bytes:
                await send_piece(piece)
            else:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


@pytest.mark.parametrize("request_bytes", REQUESTS.values(), ids=[*REQUESTS])
@pytest.mark.parametrize(
    "pieces", [[], [b"a"], [b"a", b"", b"b"], [b"", b"a"], [b"x" * 40_000, b"a", b"y" * 40_000]], ids=len
)
async def test_pieces_of_a_body_are_sent_as_their_messages_would_be(request_bytes: bytes, pieces: list[bytes]) -> None:
    app = PiecedResponse(pieces)
    answers = []
    async with behind_the_edge(app) as bare:
        for app.as_bytes in (True, False):
            async with raw_connection(bare.url) as connection:
                await connection.send(request_bytes)
                if request_bytes is HEAD:
                    answers.append(undated(await connection.until(b"\r\n\r\n")))
                else:
                    answers.append(undated((await connection.answer()).raw))
    assert answers[0] == answers[1]


def undated(raw: bytes) -> bytes:
    """An answer without what differs from second to second, and from one refusal to the next."""
    return re.sub(rb"date: [^\r]*|req_[a-z]+", b"", raw)
