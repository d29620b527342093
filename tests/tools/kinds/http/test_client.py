"""The guard on the wire: real sockets on loopback, and a resolver that says what the test wants."""

import asyncio
import ssl
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import httpx2
import pytest

from callgate.calls.outcome import Failed, FailureKind, Returned
from callgate.tools.kinds.http.addresses import PUBLIC_ONLY, AddressRules, Kind
from callgate.tools.kinds.http.client import AddressRefused, Request, Web, ask
from tests.harness.tls import self_signed

pytestmark = pytest.mark.anyio

PRIVATE = AddressRules(allow_private=True)
OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """Answers every request with the same bytes, and remembers what it was sent."""

    def __init__(self, answer: bytes, *, keep_alive: bool = True) -> None:
        self.answer = answer
        self.keep_alive = keep_alive
        self.heads: list[str] = []
        self.connections = 0
        self.open: set[asyncio.StreamWriter] = set()
        self.port = 0

    def url(self, host: str = "127.0.0.1", path: str = "/") -> httpx2.URL:
        return httpx2.URL(f"http://{host}:{self.port}{path}")

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open.add(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.heads.append(head)
                writer.write(self.answer)
                await writer.drain()
                if not self.keep_alive:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client is done
        finally:
            self.open.discard(writer)
            writer.close()


@asynccontextmanager
async def raw_server(answer: bytes, *, keep_alive: bool = True) -> AsyncIterator[Server]:
    handler = Server(answer, keep_alive=keep_alive)
    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    handler.port = server.sockets[0].getsockname()[1]
    try:
        yield handler
    finally:
        server.close()
        await server.wait_closed()


@asynccontextmanager
async def a_web(*answers: Sequence[str]) -> AsyncIterator[tuple[Web, list[str]]]:
    """A web whose resolver gives one answer after the other, the last one for ever, and the names it was asked for."""
    asked: list[str] = []
    left = list(answers)

    async def resolve(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return left.pop(0) if len(left) > 1 else left[0]

    web = Web(resolve=resolve)
    try:
        async with asyncio.timeout(30):
            yield web, asked
    finally:
        await web.close()


def get(url: httpx2.URL, **headers: str) -> Request:
    return Request("GET", url, headers)


async def test_a_public_name_that_leads_home_is_refused_and_nothing_is_dialled():
    async with raw_server(OK) as server, a_web(["127.0.0.1"]) as (web, asked):
        outcome = await ask(web, PUBLIC_ONLY, get(server.url("rebind.example")), 1000)
        assert isinstance(outcome, Failed)
        assert outcome.kind is FailureKind.REFUSED
        assert "loopback" in outcome.text
        assert "127.0.0.1" not in outcome.text
        assert asked == ["rebind.example"]
        assert server.connections == 0


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::]", "169.254.169.254"]
)
async def test_a_literal_address_is_judged_without_dns(host):
    async with raw_server(OK) as server, a_web(["8.8.8.8"]) as (web, asked):
        outcome = await ask(web, PUBLIC_ONLY, get(server.url(host)), 1000)
        assert isinstance(outcome, Failed)
        assert outcome.kind is FailureKind.REFUSED
        assert asked == []
        assert server.connections == 0


@pytest.mark.parametrize("host", ["2130706433", "0x7f.1", "127.1", "017700000001", "localhost"])
async def test_odd_spellings_of_loopback_are_seen_through(host):
    async with raw_server(OK) as server:
        web = Web()  # the system's own resolver knows these spellings
        outcome = await ask(web, PUBLIC_ONLY, get(server.url(host)), 1000)
        await web.close()
        assert isinstance(outcome, Failed)
        assert server.connections == 0


@pytest.mark.parametrize("address", ["64:ff9b::7f00:1", "2002:7f00:1::1", "::ffff:10.0.0.1", "fd00::1", "fe80::1%1"])
async def test_a_name_that_resolves_to_a_disguised_private_address_is_refused(address):
    async with a_web([address]) as (web, _):
        with pytest.raises(AddressRefused):
            await web.client(PUBLIC_ONLY).get("http://disguised.example/")


async def test_the_address_that_was_judged_is_the_one_that_is_dialled():
    """The name is asked for once a connection; there is no second answer that could differ from the judged one."""
    async with raw_server(OK, keep_alive=False) as server, a_web(["127.0.0.1"], ["10.255.255.1"]) as (web, asked):
        rules = AddressRules.of(allow=["127.0.0.1/32"])
        first = await ask(web, rules, get(server.url("flips.example")), 1000)
        assert first == Returned("ok")
        assert asked == ["flips.example"]
        second = await ask(web, rules, get(server.url("flips.example")), 1000)
        assert isinstance(second, Failed)
        assert second.kind is FailureKind.REFUSED
        assert asked == ["flips.example"] * 2


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8 without setting it up")
async def test_exactly_the_resolved_address_is_dialled():
    server = await asyncio.start_server(_nothing, "127.0.0.77", 0)
    port = server.sockets[0].getsockname()[1]
    async with a_web(["127.0.0.77"], ["127.0.0.78"]) as (web, _):
        there = await ask(web, PRIVATE, get(httpx2.URL(f"http://a.example:{port}/")), 1000)
        not_there = await ask(web, PRIVATE, get(httpx2.URL(f"http://a.example:{port}/")), 1000)
    server.close()
    await server.wait_closed()
    assert isinstance(there, Failed)
    assert "connection failed" not in there.text  # it was reached, and hung up
    assert isinstance(not_there, Failed)
    assert "connection failed" in not_there.text


async def test_a_certificate_is_trusted_that_the_environment_names(tmp_path, monkeypatch):
    certificate = self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = await asyncio.start_server(_ok, "127.0.0.1", 0, ssl=context)
    url = httpx2.URL(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
    async with server:
        strangers = Web()
        refused = await ask(strangers, PRIVATE, get(url), 1000)
        await strangers.close()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        friends = Web()
        answered = await ask(friends, PRIVATE, get(url), 1000)
        await friends.close()
    assert isinstance(refused, Failed)
    assert refused.text == "127.0.0.1 cannot be reached (its certificate is not trusted)."
    assert answered == Returned("ok")


async def test_of_several_addresses_only_allowed_ones_are_dialled():
    async with raw_server(OK) as server, a_web(["10.255.255.1", "127.0.0.1"]) as (web, _):
        rules = AddressRules.of(allow=["127.0.0.0/8"])
        assert await ask(web, rules, get(server.url("mixed.example")), 1000) == Returned("ok")


async def test_an_address_that_does_not_answer_gives_way_to_the_next():
    async with raw_server(OK) as server, a_web(["127.0.0.2", "127.0.0.1"]) as (web, _):
        assert await ask(web, PRIVATE, get(server.url("two.example")), 1000) == Returned("ok")


async def test_a_connection_is_not_lent_to_a_tool_with_stricter_rules():
    async with raw_server(OK) as server, a_web(["127.0.0.1"]) as (web, _):
        assert await ask(web, PRIVATE, get(server.url("home.example")), 1000) == Returned("ok")
        outcome = await ask(web, PUBLIC_ONLY, get(server.url("home.example")), 1000)
        assert isinstance(outcome, Failed)
        assert outcome.kind is FailureKind.REFUSED
        assert len(server.heads) == 1


async def test_tools_with_the_same_rules_share_connections():
    async with raw_server(OK) as server, a_web(["127.0.0.1"]) as (web, _):
        for _ in range(3):
            await ask(web, AddressRules(allow_private=True), get(server.url("home.example")), 1000)
        assert server.connections == 1


@pytest.mark.parametrize(
    "answer",
    [OK, b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"],
)
async def test_bytes_behind_an_answer_are_not_the_answer_to_another_request(answer):
    async with raw_server(answer + OK.replace(b"ok", b"no")) as server, a_web(["127.0.0.1"]) as (web, _):
        for _ in range(3):
            answered = await ask(web, PRIVATE, get(server.url("home.example")), 1000)
            assert isinstance(answered, Returned)
            assert answered.text == "ok"
        assert server.connections == 3


async def test_a_redirect_is_reported_and_not_followed():
    moved = b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/latest\r\nContent-Length: 0\r\n\r\n"
    async with raw_server(moved) as server, a_web(["127.0.0.1"]) as (web, asked):
        outcome = await ask(web, PRIVATE, get(server.url("moved.example")), 1000)
        assert isinstance(outcome, Failed)
        assert "302" in outcome.text
        assert asked == ["moved.example"]
        assert len(server.heads) == 1


async def test_cookies_and_the_environments_proxies_and_passwords_are_ignored(monkeypatch, tmp_path):
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password secret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    cookie = b"HTTP/1.1 200 OK\r\nSet-Cookie: session=1; Path=/\r\nContent-Length: 2\r\n\r\nok"
    async with raw_server(cookie) as server, a_web(["127.0.0.1"]) as (web, _):
        for _ in range(2):
            assert await ask(web, PRIVATE, get(server.url()), 1000) == Returned("ok")
        for head in server.heads:
            assert "cookie" not in head.lower()
            assert "authorization" not in head.lower()


async def test_only_identity_is_asked_for_and_anything_else_is_refused():
    packed = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\n\x1f\x8b\x08"
    async with raw_server(packed) as server, a_web(["127.0.0.1"]) as (web, _):
        outcome = await ask(web, PRIVATE, get(server.url(), **{"Accept-Encoding": "gzip"}), 1000)
        assert isinstance(outcome, Failed)
        assert "gzip" in outcome.text
        assert "accept-encoding: identity" in server.heads[0].lower()
        assert server.heads[0].lower().count("accept-encoding") == 1


async def test_what_is_not_read_is_counted_where_its_length_was_announced():
    body = b"x" * 5000
    long = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5000\r\n\r\n" + body
    async with raw_server(long) as server, a_web(["127.0.0.1"]) as (web, _):
        outcome = await ask(web, PRIVATE, get(server.url()), 1000)
        assert outcome == Returned("x" * 1000, cut_bytes=4000)


async def test_a_character_cut_in_two_is_left_out():
    body = "é".encode() * 10
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n" + body
    async with raw_server(answer) as server, a_web(["127.0.0.1"]) as (web, _):
        outcome = await ask(web, PRIVATE, get(server.url()), 7)
        assert isinstance(outcome, Returned)
        assert outcome.text == "ééé"


@pytest.mark.parametrize(
    "content_type, body, text",
    [
        ("text/plain; charset=iso-8859-1", "Grüße".encode("latin-1"), "Grüße"),
        ("text/html", "Grüße".encode("cp1252"), "Grüße"),
        ("text/plain; charset=utf-16", "Grüße".encode("utf-16"), "Grüße"),
        ("application/json; charset=rot13", b'{"a":1}', '{"a":1}'),
        ("", b"plain", "plain"),
        ("image/svg+xml", b"<svg/>", "<svg/>"),
        ("application/pdf", b"%PDF-\xff\x00", "[application/pdf, 7 bytes, not shown]"),
    ],
)
async def test_text_is_read_by_its_charset_and_the_rest_is_described(content_type, body, text):
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    async with raw_server(head.encode() + body) as server, a_web(["127.0.0.1"]) as (web, _):
        assert await ask(web, PRIVATE, get(server.url()), 1000) == Returned(text)


async def test_an_image_comes_as_an_image():
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nContent-Length: 4\r\n\r\n\x89PNG"
    async with raw_server(answer) as server, a_web(["127.0.0.1"]) as (web, _):
        outcome = await ask(web, PRIVATE, get(server.url()), 1000)
        assert isinstance(outcome, Returned)
        assert [(one.mime_type, one.data) for one in outcome.images] == [("image/png", "iVBORw==")]
        assert outcome.text == ""


@pytest.mark.parametrize("status, kind", [(404, FailureKind.RAISED), (503, FailureKind.UNAVAILABLE)])
async def test_an_error_status_is_reported_with_an_excerpt(status, kind):
    body = b"no such city " * 1000
    answer = f"HTTP/1.1 {status} Oh\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    async with raw_server(answer) as server, a_web(["127.0.0.1"]) as (web, _):
        outcome = await ask(web, PRIVATE, get(server.url()), 100_000)
        assert isinstance(outcome, Failed)
        assert outcome.kind is kind
        assert outcome.text.startswith(f"HTTP {status} Oh: no such city")
        assert len(outcome.text) < 3000


async def test_a_server_that_is_not_there_is_unavailable():
    async with raw_server(OK) as server:
        port = server.port
    async with a_web(["127.0.0.1"]) as (web, _):
        outcome = await ask(web, PRIVATE, get(httpx2.URL(f"http://gone.example:{port}/")), 1000)
        assert isinstance(outcome, Failed)
        assert outcome.kind is FailureKind.UNAVAILABLE
        assert "127.0.0.1" not in outcome.text


async def test_a_name_that_does_not_resolve_is_unavailable():
    async def resolve(host: str, port: int) -> Sequence[str]:
        raise OSError("no such name")

    web = Web(resolve=resolve)
    outcome = await ask(web, PUBLIC_ONLY, get(httpx2.URL("http://nowhere.example/")), 1000)
    await web.close()
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.UNAVAILABLE


@pytest.mark.parametrize("method, kind", [("GET", FailureKind.UNAVAILABLE), ("POST", FailureKind.UNKNOWN)])
async def test_a_lost_connection_says_whether_something_may_have_happened(method, kind):
    half = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"
    async with raw_server(half, keep_alive=False) as server, a_web(["127.0.0.1"]) as (web, _):
        outcome = await ask(web, PRIVATE, Request(method, server.url()), 1000)
        assert isinstance(outcome, Failed)
        assert outcome.kind is kind


async def test_closing_closes_idle_connections():
    async with raw_server(OK) as server, a_web(["127.0.0.1"]) as (web, _):
        await ask(web, PRIVATE, get(server.url()), 1000)
        assert server.open
        await web.close()
        while server.open:  # noqa: ASYNC110 - bounded by a_web's timeout
            await asyncio.sleep(0.001)


async def test_tls_is_made_with_the_name_and_not_with_the_address():
    names: list[str | None] = []
    offered = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    def reads(connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> int:
        names.append(name)
        return ssl.ALERT_DESCRIPTION_ACCESS_DENIED

    offered.sni_callback = reads
    server = await asyncio.start_server(_nothing, "127.0.0.1", 0, ssl=offered)
    port = server.sockets[0].getsockname()[1]
    async with a_web(["127.0.0.1"]) as (web, _):
        outcome = await ask(web, PRIVATE, get(httpx2.URL(f"https://secure.example:{port}/")), 1000)
    server.close()
    await server.wait_closed()
    assert isinstance(outcome, Failed)
    assert names == ["secure.example"]


async def test_unix_sockets_are_not_for_tools():
    async with a_web(["127.0.0.1"]) as (web, _):
        transport = web.client(PRIVATE)._transport
        with pytest.raises(Exception, match="unix"):
            await transport._pool._network_backend.connect_unix_socket("/var/run/docker.sock")  # type: ignore[attr-defined]


async def test_a_refusal_names_the_kind_of_address():
    assert str(AddressRefused("a.example", Kind.METADATA)) == "a.example has a cloud metadata address"


async def _ok(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(OK)
    await writer.drain()
    writer.close()


async def _nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()
