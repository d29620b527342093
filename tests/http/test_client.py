"""The HTTP client under models and tool servers, over real sockets."""

import asyncio
import contextlib
import socket
import ssl

import pytest

from callgate.http.client import HttpClient
from callgate.http.interface import Broken, ConnectFailed, Deadlines, TimedOut, TooLarge
from tests.models.wire import QUICK, closing, raw_provider

pytestmark = pytest.mark.anyio


@pytest.fixture
async def client():
    client = HttpClient()
    yield client
    await client.close()


async def until_drained(client):
    """Wait until what was left of a settled answer has been read aside."""
    while any(connection._draining for connection in client._all):  # noqa: ASYNC110 -- a state, not an event
        await asyncio.sleep(0)


async def read_all(client, url, deadlines=QUICK):
    async with asyncio.timeout(30), client.post(url, {}, b"{}", deadlines) as response:
        return b"".join([part async for part in response.chunks()])


async def test_status_headers_and_body_come_through(client):
    async def serve(request, wire):
        await wire.whole("hello", 418, "X-Thing: A", kind="text/plain")

    async with (
        raw_provider(serve) as server,
        client.post(f"{server.url}/v1/x", {"X-Key": "k"}, b"body", QUICK) as response,
    ):
        assert response.status == 418
        assert response.headers()["x-thing"] == "A"
        assert await response.read(100) == b"hello"
    request = server.requests[0]
    assert request.target == "/v1/x"
    assert request.raw == b"body"
    assert request.headers["x-key"] == "k"
    assert request.headers["accept-encoding"] == "identity"


async def test_a_connection_whose_answer_was_read_is_used_again(client):
    async def serve(request, wire):
        await wire.whole("x")

    async with raw_provider(serve) as server:
        for _ in range(3):
            assert await read_all(client, server.url) == b"x"
    assert server.connections == 1


async def test_after_settling_the_rest_is_drained_and_the_connection_kept(client):
    ask_for_end = asyncio.Event()
    drained = asyncio.Event()

    async def serve(request, wire):
        await wire.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n")
        if len(server.requests) == 1:
            await ask_for_end.wait()
        await wire.send("0\r\n\r\n")
        drained.set()

    async with raw_provider(serve) as server, asyncio.timeout(30):
        async with client.post(server.url, {}, b"", QUICK) as response:
            assert await anext(response.chunks()) == b"first"
            response.settle()
        ask_for_end.set()
        await drained.wait()
        await until_drained(client)
        assert await read_all(client, server.url) == b"first"
    assert server.connections == 1


async def test_leaving_before_the_end_closes_the_connection_at_once(client):
    left = asyncio.Event()

    async def serve(request, wire):
        await wire.head()
        await wire.send("data: 1\n\n")
        await wire.peer_left()
        left.set()

    async with raw_provider(serve) as server, asyncio.timeout(30):
        async with client.post(server.url, {}, b"", QUICK) as response:
            await anext(response.chunks())
        async with asyncio.timeout(30):
            await left.wait()


@pytest.mark.parametrize("when", ["before_headers", "mid_body"])
async def test_cancelling_closes_the_connection_at_once(client, when):
    arrived, left = asyncio.Event(), asyncio.Event()

    async def serve(request, wire):
        if when == "mid_body":
            await wire.head()
            await wire.send("x")
        arrived.set()
        await wire.peer_left()
        left.set()

    async with raw_provider(serve) as server, asyncio.timeout(30):
        task = asyncio.create_task(read_all(client, server.url))
        await arrived.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        async with asyncio.timeout(30):
            await left.wait()


async def test_a_closed_port_is_a_failed_connection(client):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectFailed):
            await read_all(client, f"http://127.0.0.1:{taken.getsockname()[1]}")


@pytest.mark.parametrize("url", ["not a url", "ftp://127.0.0.1/x", "http://"])
async def test_an_address_that_is_none_is_a_failed_connection(client, url):
    with pytest.raises(ConnectFailed):
        await read_all(client, url)


async def test_a_listener_that_never_accepts_meets_the_connect_deadline(client):
    # A full backlog: the kernel leaves further handshakes unanswered.
    with socket.socket() as full, contextlib.ExitStack() as fillers:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):
            filler = fillers.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        with pytest.raises(TimedOut) as caught:
            await read_all(client, f"http://127.0.0.1:{full.getsockname()[1]}", Deadlines(0.2, 5, 5, 5))
    assert caught.value.which == "connect"


@pytest.mark.parametrize("answer", ["", "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"])
async def test_no_body_in_time_is_the_first_byte_deadline(client, answer):
    async def serve(request, wire):
        await wire.send(answer)
        await wire.peer_left()

    async with raw_provider(serve) as server:
        with pytest.raises(TimedOut) as caught:
            await read_all(client, server.url, Deadlines(2, 0.2, 5, 5))
    assert caught.value.which == "first_byte"


async def test_silence_in_the_body_is_the_idle_deadline(client):
    async def serve(request, wire):
        await wire.head()
        await wire.send("x")
        await wire.peer_left()

    async with raw_provider(serve) as server:
        with pytest.raises(TimedOut) as caught:
            await read_all(client, server.url, Deadlines(2, 5, 0.2, 5))
    assert caught.value.which == "idle"


async def test_a_slow_drip_passes_every_gap_and_meets_the_total_deadline(client):
    drops = 0

    async def serve(request, wire):
        nonlocal drops
        await wire.head()
        while True:
            await wire.send("x")
            drops += 1
            await asyncio.sleep(0.02)

    async with raw_provider(serve) as server:
        with pytest.raises(TimedOut) as caught:
            await read_all(client, server.url, Deadlines(2, 5, 5, 0.3))
    assert caught.value.which == "total"
    assert drops > 2


async def test_the_time_our_side_takes_with_a_chunk_is_not_the_upstreams(client):
    sent_more = asyncio.Event()

    async def serve(request, wire):
        await wire.head()
        await wire.send("one")
        await sent_more.wait()
        await wire.send("two")

    async with (
        raw_provider(closing(serve)) as server,
        client.post(server.url, {}, b"", Deadlines(2, 5, 0.2, 5)) as response,
    ):
        chunks = response.chunks()
        assert await anext(chunks) == b"one"
        await asyncio.sleep(0.5)  # longer than the idle deadline: this is the slowness under test
        sent_more.set()
        assert await anext(chunks) == b"two"


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "garbage\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nfirst\r\n",
        "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx",
        "HTTP/1.1 200 OK\r\nX: " + "x" * 100_000 + "\r\n\r\n",
    ],
)
async def test_what_is_not_whole_http_is_broken(client, answer):
    async def serve(request, wire):
        await wire.send(answer)

    async with raw_provider(closing(serve)) as server:
        with pytest.raises(Broken):
            await read_all(client, server.url)


async def test_a_reset_is_broken(client):
    async def serve(request, wire):
        await wire.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
        wire.reset()

    async with raw_provider(serve) as server:
        with pytest.raises(Broken):
            await read_all(client, server.url)


async def test_a_body_over_the_limit_is_not_read_on(client):
    left = asyncio.Event()

    async def serve(request, wire):
        await wire.head()
        with contextlib.suppress(ConnectionError):
            while True:
                await wire.send("x" * 65536)
        left.set()

    async with raw_provider(serve) as server, asyncio.timeout(30):
        async with client.post(server.url, {}, b"", QUICK) as response:
            with pytest.raises(TooLarge):
                await response.read(100_000)
        await left.wait()


async def test_an_interim_answer_is_passed_over(client):
    async def serve(request, wire):
        await wire.send("HTTP/1.1 100 Continue\r\nX-Early: 1\r\n\r\n")
        await wire.whole("real")

    async with raw_provider(serve) as server, client.post(server.url, {}, b"", QUICK) as response:
        assert response.status == 200
        assert "x-early" not in response.headers()
        assert await response.read(10) == b"real"


async def test_a_large_body_goes_out_whole(client):
    async def serve(request, wire):
        await wire.whole("x")

    async with raw_provider(serve) as server, client.post(server.url, {}, b"y" * 3_000_000, QUICK) as response:
        assert await response.read(10) == b"x"
    assert server.requests[0].raw == b"y" * 3_000_000


async def test_a_server_is_made_to_wait_while_its_answer_is_not_read(client):
    size = 20_000_000
    blocked = asyncio.Event()

    async def serve(request, wire):
        await wire.send(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n")
        for _ in range(size // 1_000_000):
            wire.writer.write(b"x" * 1_000_000)
            try:
                async with asyncio.timeout(0.2):
                    await wire.writer.drain()
            except TimeoutError:
                blocked.set()
                await wire.writer.drain()

    async with raw_provider(serve) as server, asyncio.timeout(30), client.post(server.url, {}, b"", QUICK) as response:
        await blocked.wait()
        assert len(await response.read(size)) == size


# Odd answers ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [70_000, 300_000, 3_000_000])
async def test_a_body_that_comes_with_its_head_in_one_read_is_not_taken_for_headers(client, size):
    async def serve(request, wire):
        wire.writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n".encode() + b"x" * size)

    async with raw_provider(serve) as server:
        assert len(await read_all(client, server.url)) == size


async def test_a_connection_that_the_server_closed_meanwhile_is_not_asked_again(client):
    async def serve(request, wire):
        await wire.whole("x")

    async with raw_provider(closing(serve)) as server:
        for _ in range(3):
            assert await read_all(client, server.url) == b"x"
            async with asyncio.timeout(30):
                await server.nobody_connected()
    assert server.connections == 3


async def test_an_answer_that_says_close_is_the_last_on_its_connection(client):
    async def serve(request, wire):
        await wire.whole("x", 200, "Connection: close")

    async with raw_provider(serve) as server:
        for _ in range(2):
            assert await read_all(client, server.url) == b"x"
    assert server.connections == 2


async def test_a_second_answer_to_one_question_is_never_taken_for_the_next(client):
    async def serve(request, wire):
        number = len(server.requests)
        more = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother" if number == 1 else ""
        await wire.send(f"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nright{more}")

    async with raw_provider(serve) as server:
        assert await read_all(client, server.url) == b"right"
        assert await read_all(client, server.url) == b"right"
    assert server.connections == 2


async def test_nor_is_the_beginning_of_one_that_came_with_the_rest_of_a_settled_answer():
    client = HttpClient()
    ask_for_end, drained = asyncio.Event(), asyncio.Event()

    async def serve(request, wire):
        await wire.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nright\r\n")
        if len(server.requests) == 1:
            await ask_for_end.wait()
            await wire.send("0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\noth")
            drained.set()
        else:
            await wire.send("0\r\n\r\n")

    async with raw_provider(serve) as server, asyncio.timeout(30):
        async with client.post(server.url, {}, b"", QUICK) as response:
            assert await anext(response.chunks()) == b"right"
            response.settle()
        ask_for_end.set()
        await drained.wait()
        await until_drained(client)
        assert await read_all(client, server.url) == b"right"
        await client.close()
    assert server.connections == 2


async def test_a_server_that_answers_twice_is_not_given_a_kept_connection_again(client, capsys):
    """The second answer comes when the connection is idle, or when the next request is already on its way."""
    came = asyncio.Event()

    async def serve(request, wire):
        said = request.target.removeprefix("/")
        await wire.whole(said)
        if said == "first":
            await wire.whole(said)
            await wire.peer_left()
            came.set()

    async with raw_provider(serve) as server, asyncio.timeout(30):
        assert await read_all(client, f"{server.url}/first") == b"first"
        await came.wait()
        for number in range(20):
            assert await read_all(client, f"{server.url}/{number}") == b"%d" % number
    assert server.connections == 21
    assert client._idle == {}


async def test_a_server_that_doubles_every_answer_answers_only_its_own_question_once_it_is_known(client):
    async def serve(request, wire):
        await wire.whole(request.target)
        await wire.whole(request.target)

    async def ask(path):
        return await read_all(client, f"{server.url}{path}") == path.encode()

    async with raw_provider(serve) as server:
        assert await ask("/first")
        async with asyncio.timeout(30):
            while client._all:  # noqa: ASYNC110 -- until the second answer was seen
                await asyncio.sleep(0)
        assert all(await asyncio.gather(*(ask(f"/{number}") for number in range(200))))
        assert all([await ask(f"/{number}") for number in range(200)])


async def test_a_goodbye_on_an_idle_connection_is_no_reason_to_distrust_a_server(client):
    idle = asyncio.Event()

    async def serve(request, wire):
        await wire.whole("x")
        if len(server.requests) == 1:
            await idle.wait()
            await wire.send("HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\r\n")
            await wire.peer_left()

    async with raw_provider(closing(serve), serve) as server, asyncio.timeout(30):
        assert await read_all(client, server.url) == b"x"
        idle.set()
        while client._all:  # noqa: ASYNC110 -- until it was closed
            await asyncio.sleep(0)
        for _ in range(3):
            assert await read_all(client, server.url) == b"x"
    assert server.connections == 2


@pytest.mark.parametrize("size", [10, 30_000_000])
async def test_a_connection_with_an_unsent_request_is_not_kept(client, size):
    """The server answers without having read the request. What is left of it would go out before the next one."""
    answered = asyncio.Event()

    async def accept(reader, writer):
        accepted.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx")
        await answered.wait()

    accepted: list[asyncio.StreamWriter] = []
    listener = await asyncio.start_server(accept, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/"
    async with asyncio.timeout(30), client.post(url, {}, b"b" * size, QUICK) as response:
        assert await response.read(10) == b"x"
    assert len([one for idle in client._idle.values() for one in idle]) == (1 if size == 10 else 0)
    answered.set()
    listener.close()
    for writer in accepted:
        writer.close()


async def test_a_trailer_is_no_header(client):
    async def serve(request, wire):
        await wire.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX-Late: 1\r\n\r\n")

    async with raw_provider(serve) as server, client.post(server.url, {}, b"", QUICK) as response:
        assert await response.read(10) == b"x"
        assert "x-late" not in response.headers()


async def test_an_encoding_given_in_two_header_lines_is_still_one_we_cannot_read():
    client = HttpClient()

    async def serve(request, wire):
        lines = "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n"
        await wire.send(f"HTTP/1.1 200 OK\r\n{lines}\r\n1\r\nx\r\n0\r\n\r\n")

    async with raw_provider(closing(serve)) as server:
        with pytest.raises(Broken):
            await read_all(client, server.url)
        await client.close()


async def test_switching_protocols_is_no_answer():
    client = HttpClient()

    async def serve(request, wire):
        await wire.send("HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nabc")

    async with raw_provider(closing(serve)) as server:
        with pytest.raises(Broken):
            await read_all(client, server.url)
        await client.close()


async def test_a_closed_client_fails_requests_at_once():
    asked = asyncio.Event()

    async def serve(request, wire):
        asked.set()
        await wire.peer_left()

    client = HttpClient()
    async with raw_provider(serve) as server, asyncio.timeout(30):
        waiting = asyncio.create_task(read_all(client, server.url))
        await asked.wait()
        await client.close()
        with pytest.raises(Broken):
            await waiting


@pytest.mark.parametrize("value", ["a\r\nX-Other: b", "a\0b", "\u20ac"])
async def test_a_header_that_none_can_be_is_not_sent(value):
    client = HttpClient()
    with pytest.raises(ConnectFailed):
        async with client.post("http://127.0.0.1:9/", {"X": value}, b"", QUICK):
            pass


async def test_an_address_may_hold_a_port_a_query_a_user_and_letters_of_any_kind(client):
    async def serve(request, wire):
        await wire.whole("x")

    async with raw_provider(serve) as server:
        port = server.url.rpartition(":")[2]
        await read_all(client, f"http://me:s%20t@127.0.0.1:{port}/v1/caf\u00e9/x?api-version=2&b=c%20d")
    request = server.requests[0]
    assert request.target == "/v1/caf%C3%A9/x?api-version=2&b=c%20d"
    assert request.headers["host"] == f"127.0.0.1:{port}"
    assert request.headers["authorization"] == "Basic bWU6cyB0"


async def test_a_connection_that_was_free_for_long_is_not_asked_again():
    async def serve(request, wire):
        await wire.whole("x")

    client = HttpClient(keep_alive=0.0)
    async with raw_provider(serve) as server:
        for _ in range(2):
            assert await read_all(client, server.url) == b"x"
        await client.close()
    assert server.connections == 2


async def test_only_what_the_resolver_lets_through_is_dialled_and_it_is_asked_for_every_connection():
    allowed = ["127.0.0.1"]

    class Refused(Exception):
        pass

    async def resolve(host, port):
        hosts.append(host)
        if not allowed:
            raise Refused
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (allowed.pop(), port))]

    async def serve(request, wire):
        await wire.whole("x", 200, "Connection: close")

    hosts: list[str] = []
    client = HttpClient(resolve=resolve)
    async with raw_provider(serve) as server:
        url = server.url.replace("127.0.0.1", "example.com")
        assert await read_all(client, url) == b"x"
        with pytest.raises(Refused):
            await read_all(client, url)
        with pytest.raises(Refused):  # a literal is no way around it
            await read_all(client, server.url)
        await client.close()
    assert hosts == ["example.com", "example.com", "127.0.0.1"]
    assert server.connections == 1


async def test_a_client_that_was_closed_opens_no_connection():
    client = HttpClient()
    async with raw_provider() as server:
        await client.close()
        with pytest.raises(ConnectFailed):
            await read_all(client, server.url)
    assert server.connections == 0


async def test_what_is_got_has_no_body():
    async def serve(request, wire):
        await wire.whole("x")

    client = HttpClient()
    async with raw_provider(serve) as server, client.get(f"{server.url}/a", {"X-Key": "k"}, QUICK) as response:
        assert await response.read(10) == b"x"
    await client.close()
    [request] = server.requests
    assert (request.method, request.target, request.raw) == ("GET", "/a", b"")
    assert request.headers["x-key"] == "k"


async def test_redirects_are_not_followed(client):
    async def serve(request, wire):
        await wire.whole("", 307, f"Location: {server.url}/elsewhere")

    async with raw_provider(serve) as server, client.post(server.url, {}, b"", QUICK) as response:
        assert response.status == 307
    assert len(server.requests) == 1


async def test_cookies_of_one_answer_do_not_go_out_with_the_next_request(client):
    async def serve(request, wire):
        await wire.whole("x", 200, "Set-Cookie: who=me; Path=/")

    async with raw_provider(serve) as server:
        await read_all(client, server.url)
        await read_all(client, server.url)
    assert all("cookie" not in request.headers for request in server.requests)


@pytest.mark.needs("module:cryptography")
async def test_over_tls_a_server_must_be_trusted(client, certificate):
    async def serve(request, wire):
        await wire.whole("secret")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    trusting = HttpClient(tls=ssl.create_default_context(cafile=certificate))
    async with raw_provider(serve, tls=context) as server:
        with pytest.raises(ConnectFailed):
            await read_all(client, server.url)
        try:
            assert await read_all(trusting, server.url) == b"secret"
        finally:
            await trusting.close()
    assert len(server.requests) == 1
