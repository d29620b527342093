"""Proxies of the environment, over real sockets: through them where they are named, past them where a host is exempt."""

import asyncio
import ssl

import pytest

from callgate.http.client import HttpClient
from callgate.http.interface import ConnectFailed, TimedOut
from callgate.http.proxies import Proxies
from tests.harness.proxy import proxying
from tests.models.wire import QUICK, raw_provider

pytestmark = pytest.mark.anyio


async def answer(request, wire):
    await wire.whole("x")


async def post_through(proxies, url, times=1, **options):
    client = HttpClient(proxies=proxies, **options)
    try:
        for _ in range(times):
            async with asyncio.timeout(30), client.post(url, {"X-Key": "k"}, b"body", QUICK) as response:
                assert response.status == 200
                assert await response.read(10) == b"x"
    finally:
        await client.close()


@pytest.fixture
def server_tls(certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


@pytest.fixture
def trusting(certificate):
    return ssl.create_default_context(cafile=certificate)


@pytest.mark.parametrize("credentials", ["", "me:s%20t"])
async def test_a_plain_request_is_sent_to_the_proxy_with_its_whole_address(credentials):
    async with raw_provider(answer) as server, proxying(credentials.replace("%20", " ")) as proxy:
        proxies = Proxies(http=proxy.url.replace(" ", "%20"))
        await post_through(proxies, f"{server.url}/v1/x?a=b", times=2)
    assert proxy.forwarded == [f"{server.url}/v1/x?a=b"] * 2
    assert proxy.refused == 0
    assert proxy.connections == 1
    assert server.requests[0].target == "/v1/x?a=b"
    assert server.requests[0].headers["via"] == "1.1 test"
    assert server.requests[0].headers["x-key"] == "k"
    assert server.requests[0].raw == b"body"


@pytest.mark.needs("module:cryptography")
@pytest.mark.parametrize("credentials", ["", "me:secret"])
async def test_tls_goes_through_a_tunnel_that_is_kept_and_the_proxy_sees_nothing_of_it(
    credentials, server_tls, trusting
):
    async with raw_provider(answer, tls=server_tls) as server, proxying(credentials) as proxy:
        await post_through(Proxies(https=proxy.url), f"{server.url}/v1/x", times=3, tls=trusting)
    assert proxy.tunnels == [server.url.removeprefix("https://")]
    assert proxy.refused == 0
    assert [request.target for request in server.requests] == ["/v1/x"] * 3
    assert all("proxy-authorization" not in request.headers for request in server.requests)


@pytest.mark.needs("module:cryptography")
async def test_a_proxy_may_itself_speak_tls(server_tls, trusting):
    async with raw_provider(answer, tls=server_tls) as server, proxying(tls=server_tls) as proxy:
        await post_through(Proxies(https=proxy.url), server.url, tls=trusting)
    assert len(proxy.tunnels) == len(server.requests) == 1


@pytest.mark.needs("module:cryptography")
async def test_the_server_behind_a_tunnel_must_be_trusted(server_tls):
    async with raw_provider(answer, tls=server_tls) as server, proxying() as proxy:
        with pytest.raises(ConnectFailed, match="CERTIFICATE_VERIFY_FAILED"):
            await post_through(Proxies(https=proxy.url), server.url)
    assert server.requests == []


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize(("given", "says"), [("", "wants credentials"), ("me:wrong@", "takes other credentials")])
async def test_a_proxy_that_wants_other_credentials_is_a_failed_connection_without_them(scheme, given, says):
    async with raw_provider(answer) as server, proxying("me:secret") as proxy:
        address = f"http://{given}{proxy.url.rpartition('@')[2]}"
        with pytest.raises(ConnectFailed, match=rf"{says}.*407") as failed:
            await post_through(Proxies(http=address, https=address), server.url.replace("http", scheme, 1))
    assert "wrong" not in str(failed.value)
    assert proxy.refused == 1
    assert server.requests == []


async def test_a_proxy_that_refuses_a_tunnel_is_named_with_its_status():
    async with proxying(refuses=403) as proxy:
        port = proxy.url.rpartition(":")[2]
        with pytest.raises(ConnectFailed, match=rf"proxy 127.0.0.1:{port} refuses the connection \(403\)"):
            await post_through(Proxies(https=proxy.url), "https://example.invalid/v1")
    assert proxy.tunnels == ["example.invalid:443"]


async def test_a_proxy_that_is_not_there_is_named(free_tcp_port):
    with pytest.raises(ConnectFailed, match=f"through the proxy 127.0.0.1:{free_tcp_port}"):
        await post_through(Proxies(https=f"http://me:secret@127.0.0.1:{free_tcp_port}"), "https://example.invalid/v1")


async def test_a_proxy_that_does_not_answer_meets_the_connect_deadline():
    async def silent(reader, writer):
        silences.append(writer)

    silences: list[asyncio.StreamWriter] = []
    listener = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    client = HttpClient(proxies=Proxies(https=f"http://127.0.0.1:{port}"))
    deadlines = type(QUICK)(connect=0.05)
    with pytest.raises(TimedOut) as late:
        async with client.post("https://example.invalid/v1", {}, b"", deadlines):
            pass
    assert late.value.which == "connect"
    await client.close()
    listener.close()
    for writer in silences:
        writer.close()


@pytest.mark.parametrize("reply", [b"nonsense\r\n\r\n", b"", b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000])
async def test_a_proxy_that_answers_nonsense_or_hangs_up_is_a_failed_connection(reply):
    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    with pytest.raises(ConnectFailed, match="proxy"):
        await post_through(Proxies(https=f"http://127.0.0.1:{port}"), "https://example.invalid/v1")
    listener.close()


async def test_a_host_that_is_exempt_is_asked_past_the_proxy():
    async with raw_provider(answer) as server, proxying() as proxy:
        await post_through(Proxies(http=proxy.url, no_proxy="localhost,127.0.0.0/8"), server.url)
    assert (len(server.requests), proxy.connections) == (1, 0)


@pytest.mark.parametrize(
    ("no_proxy", "host", "port", "exempt"),
    [
        ("*", "anything.example", 443, True),
        ("example.com", "example.com", 443, True),
        ("example.com", "api.example.com", 443, True),
        (".example.com", "api.example.com", 443, True),
        ("*.example.com", "api.example.com", 443, True),
        ("EXAMPLE.com", "Api.Example.COM", 443, True),
        ("example.com.", "example.com", 443, True),
        ("example.com", "notexample.com", 443, False),
        ("example.com", "example.com.evil.org", 443, False),
        ("example.com:8443", "example.com", 8443, True),
        ("example.com:8443", "example.com", 443, False),
        ("a, b c,,example.com", "example.com", 80, True),
        ("10.0.0.0/8", "10.1.2.3", 80, True),
        ("10.0.0.0/8", "11.1.2.3", 80, False),
        ("10.1.2.3", "10.1.2.3", 80, True),
        ("10.1.2.3:81", "10.1.2.3", 80, False),
        ("10.1.2.3:80", "10.1.2.3", 80, True),
        ("1.2.3", "10.1.2.3", 80, False),
        ("::1", "::1", 80, True),
        ("[::1]", "::1", 80, True),
        ("[::1]:81", "::1", 81, True),
        ("[::1]:81", "::1", 80, False),
        ("fd00::/8", "fd12::9", 80, True),
        ("10.0.0.0/8", "::ffff:10.1.2.3", 80, True),
        ("", "example.com", 80, False),
        (",", "example.com", 80, False),
        (".", "example.com", 80, False),
    ],
)
def test_no_proxy_names_hosts_suffixes_addresses_networks_and_ports(no_proxy, host, port, exempt):
    proxies = Proxies(http="http://p:1", https="http://p:1", no_proxy=no_proxy)
    assert (proxies.proxy_for(host, port, secure=False) is None) is exempt


@pytest.mark.parametrize(
    ("environ", "http", "https"),
    [
        ({}, None, None),
        ({"NO_PROXY": "*"}, None, None),
        ({"HTTP_PROXY": "http://p:1"}, ("p", 1), None),
        ({"https_proxy": "p:1"}, None, ("p", 1)),
        ({"HTTPS_PROXY": "http://up:1", "https_proxy": "http://low:2"}, None, ("low", 2)),
        ({"HTTPS_PROXY": "http://up:1", "https_proxy": ""}, None, None),
        ({"ALL_PROXY": "https://p"}, ("p", 443), ("p", 443)),
        ({"all_proxy": "http://p", "HTTP_PROXY": "http://h:3128"}, ("h", 3128), ("p", 80)),
        ({"ALL_PROXY": "http://[::1]:8"}, ("::1", 8), ("::1", 8)),
    ],
)
def test_the_environment_names_proxies_in_either_case(environ, http, https):
    proxies = Proxies.from_environment(environ)

    def place(*, secure):
        proxy = None if proxies is None else proxies.proxy_for("example.com", 443, secure=secure)
        return proxy and (proxy.host, proxy.port)

    assert (place(secure=False), place(secure=True)) == (http, https)


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("socks5://p:1", "ALL_PROXY.*socks5 proxy.*NO_PROXY"),
        ("http://p:notaport", "ALL_PROXY.*is not an address"),
        ("http://", "ALL_PROXY"),
    ],
)
async def test_a_proxy_that_cannot_be_used_is_not_gone_past(address, says):
    proxies = Proxies.from_environment({"ALL_PROXY": address})
    async with raw_provider(answer) as server:
        with pytest.raises(ConnectFailed, match=says):
            await post_through(proxies, server.url)
    assert server.requests == []


def test_credentials_of_a_proxy_are_not_shown():
    proxies = Proxies.from_environment({"HTTPS_PROXY": "http://me:secret@p:1"})
    assert proxies is not None
    proxy = proxies.proxy_for("example.com", 443, secure=True)
    assert "secret" not in f"{proxies!r} {proxy!r} {proxy}"
