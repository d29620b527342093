"""What servers that requests name may lead to, and how much they may cost: no address of this network, no flood, nothing that is left."""

import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pytest

from callgate.application import create_app
from callgate.runtime import client_servers
from callgate.tools.kinds.http import client as http_of_tools
from tests.chaos.scale import LONG
from tests.e2e.test_client_servers import asking, client_of, config_for, host_of, named, offered, posted
from tests.harness.server import serve
from tests.scripted_upstream import Call, Reply, Upstream
from tests.tools.servers.http_mcp import Asked, HttpMcp

pytestmark = pytest.mark.anyio

METADATA = "169.254.169.254"
LITERALS = """
127.0.0.1 127.0.0.2 127.255.255.254 0.0.0.0 10.0.0.1 10.255.255.255 172.16.0.1 172.31.255.255 192.168.1.1 169.254.169.254 169.254.170.2
169.254.0.1 100.64.0.1 100.100.100.200 168.63.129.16 192.0.0.192 192.0.2.1 198.18.0.1 198.51.100.1 203.0.113.1 224.0.0.1 240.0.0.1
255.255.255.255 [::1] [::] [::ffff:127.0.0.1] [::ffff:7f00:1] [::ffff:0:127.0.0.1] [::127.0.0.1] [64:ff9b::7f00:1] [64:ff9b:1::7f00:1]
[2002:7f00:1::1] [2001:0:7f00:1::] [fe80::1] [fc00::1] [fd00:ec2::254] [fec0::1] [ff02::1] [2001:db8::1] [100::1]
""".split()
"""Addresses as they are usually written, which the guard refuses when it is to connect."""
ODD = """
2130706433 0x7f000001 017700000001 127.1 127.0.1 0177.0.0.1 0x7f.0.0.1 127.0.0.1. 1.1.1.1.1 4294967296 ① １２７.0.0.1 127。0。0。1
localhost. evil\\@127.0.0.1 a@127.0.0.1 a:b@127.0.0.1 127.0.0.1%2f [::1%25lo] [fe80::1%eth0] %6c%6fcalhost a..b -a.example a-.example
127.0.0.1\\t 127.0.0.1\\n [::1 ::1 [127.0.0.1] localhost\\x00.example.com ｌocalhost loｃalhost
""".split()
"""Others that some reader takes for an address, which are refused as they are read."""
NAMES = {
    "private.example.com": ["10.0.0.1"],
    "loopback.example.com": ["127.0.0.1"],
    "mapped.example.com": ["::ffff:127.0.0.1"],
    "metadata.example.com": [METADATA],
    "several.example.com": ["127.0.0.1", "192.168.0.1"],
}
connected: list[Any] = []
"""The addresses to which sockets were connected, while that is watched."""
watching: list[bool] = []


def note_connect(event: str, arguments: tuple[Any, ...]) -> None:
    if watching and event in ("socket.connect", "socket.sendto"):
        connected.append(arguments[1])


sys.addaudithook(note_connect)


@pytest.fixture
def connections() -> Iterator[list[Any]]:
    connected.clear()
    watching.append(True)
    yield connected
    watching.clear()


def besides(connections: Sequence[Any], *urls: str) -> list[Any]:
    """Those that went to none of these."""
    known = {("127.0.0.1", urlsplit(url).port) for url in urls}
    return [address for address in connections if tuple(address[:2]) not in known]


async def test_no_address_of_this_network_is_ever_connected_to(
    upstream: Upstream, connections: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key may name any host at the port of a server that listens, so that nothing but the guard is in the way."""
    upstream.script("m", lambda request: Reply(text="done"))

    async def resolve(host: str, port: int) -> Sequence[str]:
        return NAMES[host]

    monkeypatch.setattr(http_of_tools, "system_resolver", resolve)
    async with HttpMcp().running() as far:
        port = urlsplit(far.url).port
        config = config_for(upstream, client_mcp={"hosts": [f"http://*:{port}", f"*:{port}"], "max_servers": 100})
        async with serve(create_app(config)) as url, client_of(url) as http:
            hosts = [*LITERALS, *NAMES]
            assert len(hosts) >= 40
            addresses = [f"http{'s' * (at % 2)}://{host}:{port}/mcp" for at, host in enumerate(hosts)]
            servers = [{"label": f"s{at}", "url": url, "wish": "never"} for at, url in enumerate(addresses)]
            answer = await posted(http, "responses", asking("responses", *servers))
            assert answer.status_code == 200, answer.text
            lists = [item for item in answer.json()["output"] if item["type"] == "mcp_list_tools"]
            assert {item["error"] for item in lists} == {"it cannot be reached from here"}
            assert len(lists) == len(servers)
            for host in ODD:
                odd = {"label": "odd", "url": f"http://{host}:{port}/mcp", "wish": "never"}
                answer = await posted(http, "responses", asking("responses", odd))
                assert answer.status_code == 400, (host, answer.text)
            assert not far.asked
            assert not besides(connections, url, upstream.url)


async def test_a_name_that_is_another_host_at_the_next_lookup_is_refused_there(
    upstream: Upstream, connections: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream.script("m", [Reply(calls=[Call("far_echo", {})]), Reply(text="done")])
    lookups: list[str] = []

    async def resolve(host: str, port: int) -> Sequence[str]:
        lookups.append(host)
        return ["127.0.0.1"] if len(lookups) == 1 else [METADATA]

    monkeypatch.setattr(http_of_tools, "system_resolver", resolve)

    async with HttpMcp().running() as far:
        port = urlsplit(far.url).port
        config = config_for(upstream, client_mcp={"hosts": [f"http://*.internal:{port}"]})
        server = {"label": "far", "url": f"http://tools.internal:{port}/mcp", "wish": "never"}
        async with serve(create_app(config)) as url, client_of(url) as http:
            answer = await posted(http, "chat", asking("chat", server))
            assert answer.status_code == 200, answer.text
            assert len(lookups) > 1
            assert not far.calls(), "the call is on a connection of its own"
            assert not besides(connections, url, upstream.url, far.url)


def always(answer: bytes, asked: Asked) -> bytes:
    return answer


async def test_a_redirect_is_not_followed(upstream: Upstream, connections: list[Any]) -> None:
    upstream.script("m", lambda request: Reply(text="done"))
    for target in (f"http://{METADATA}/latest/meta-data/", "http://127.0.0.1:1/", "//127.0.0.1:1/", "/elsewhere"):
        connections.clear()
        redirect = f"HTTP/1.1 307 Temporary Redirect\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n".encode()
        far = HttpMcp(instead=partial(always, redirect))
        async with far.running(), serve(create_app(config_for(upstream, far))) as url, client_of(url) as http:
            answer = await posted(http, "responses", asking("responses", named(far)))
            [listed, _] = answer.json()["output"]
            assert "not followed" in listed["error"]
            assert {asked.path for asked in far.asked} == {"/mcp"}
            assert not besides(connections, url, upstream.url, far.url)


async def test_this_server_itself_is_refused(upstream: Upstream, connections: list[Any]) -> None:
    """By the port of its config, and by the one at which the client found it."""
    upstream.script("m", lambda request: Reply(text="done"))
    async with HttpMcp().running() as far:
        port = urlsplit(far.url).port
        config = config_for(upstream, far, server={"port": port})
        async with serve(create_app(config)) as url, client_of(url) as http:
            answer = await posted(http, "responses", asking("responses", named(far)))
            assert answer.json()["output"][0]["error"] == "it cannot be reached from here"
            assert not far.asked
            assert not besides(connections, url, upstream.url)


async def test_no_proxy_of_the_environment_is_asked(
    upstream: Upstream, connections: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream.script("m", lambda request: Reply(text="done"))
    async with HttpMcp().running() as proxy, HttpMcp().running() as far:
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, host_of(proxy.url))
        config = config_for(upstream, far)
        async with serve(create_app(config)) as url, client_of(url) as http:
            await posted(http, "responses", asking("responses", named(far)))
        assert far.asked
        assert not [asked for asked in proxy.asked if "/mcp" in asked.path]


# Hostile servers ------------------------------------------------------------------------------------------------------------


def http_answer(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def page(asked: Asked, tools: list[dict[str, Any]], cursor: str | None = None) -> bytes:
    result = {"tools": tools} | ({} if cursor is None else {"nextCursor": cursor})
    return http_answer(json.dumps({"jsonrpc": "2.0", "id": asked.message["id"], "result": result}).encode())


def many(asked: Asked) -> bytes:
    return page(asked, [{"name": f"t{at}", "inputSchema": {"type": "object"}} for at in range(10_000)])


def some(asked: Asked) -> bytes:
    return page(asked, [{"name": f"t{at}", "inputSchema": {"type": "object"}} for at in range(65)])


def large(asked: Asked) -> bytes:
    return page(asked, [{"name": "t", "description": "x" * 50_000_000, "inputSchema": {"type": "object"}}])


def endless(asked: Asked) -> bytes:
    cursor = int((asked.message.get("params") or {}).get("cursor", 0))
    tool = {"name": f"t{cursor}", "description": "x" * 20_000, "inputSchema": {"type": "object"}}
    return page(asked, [tool], cursor=str(cursor + 1))


def events_without_end(asked: Asked) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: " + b"x" * 3_000_000


def nonsense(asked: Asked) -> bytes:
    return http_answer(b'{"jsonrpc":"2.0","id":' + json.dumps(asked.message["id"]).encode() + b',"result":{"tools":7}}')


LISTS = {
    "10,000 tools": (many, "25,000 values"),
    "65 tools": (some, "name them in `allowed_tools`"),
    "50 MB": (large, "1000000 bytes"),
    "endless pages": (endless, "1,000,000 bytes"),
    "endless events": (events_without_end, ""),
    "no list": (nonsense, ""),
}


@pytest.mark.parametrize("how", LISTS)
async def test_a_list_without_measure_costs_its_server_its_tools(upstream: Upstream, how: str) -> None:
    upstream.script("m", lambda request: Reply(text="done"))
    make, words = LISTS[how]
    far = HttpMcp(instead=lambda asked: make(asked) if asked.message.get("method") == "tools/list" else None)
    async with far.running(), serve(create_app(config_for(upstream, far))) as url, client_of(url) as http:
        answer = await posted(http, "responses", asking("responses", named(far)))
        assert answer.status_code == 200, answer.text
        [listed, message] = answer.json()["output"]
        assert listed["error"], "it is said"
        assert words in listed["error"]
        assert not listed["tools"]
        assert message["type"] == "message", "and the answer goes on"
    assert offered(upstream) == []
    assert len(far.said("tools/list")) <= 60


async def test_tools_with_schemas_that_cannot_be_used_are_left_out(upstream: Upstream) -> None:
    upstream.script("m", lambda request: Reply(text="done"))
    deep: dict[str, Any] = {}
    for _ in range(20):
        deep = {"type": "object", "properties": {"a": deep}}
    tools = [
        {"name": "good", "inputSchema": {"type": "object"}},
        {"name": "far", "inputSchema": {"$ref": "http://169.254.169.254/x"}},
        {"name": "odd", "inputSchema": {"type": "object", "required": 5}},
        {"name": "text", "inputSchema": {"type": "string"}},
        {"name": "pattern", "inputSchema": {"type": "object", "properties": {"a": {"pattern": "(("}}}},
        {"name": "deep", "inputSchema": deep},
    ]
    far = HttpMcp(instead=lambda asked: page(asked, tools) if asked.message.get("method") == "tools/list" else None)
    async with far.running(), serve(create_app(config_for(upstream, far))) as url, client_of(url) as http:
        answer = await posted(http, "responses", asking("responses", named(far)))
        assert answer.status_code == 200, answer.text
        names = {tool["name"] for tool in answer.json()["output"][0]["tools"]}
    assert "good" in names
    assert names.isdisjoint({"far", "odd", "text", "pattern"})
    assert {name.removeprefix("far_") for name in offered(upstream) if name.startswith("far_")} == names


async def test_a_server_that_never_answers_holds_nobody_longer_than_the_bound(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is silent until the test ends; the bound is 10 s for all servers of a request together, and shorter here."""
    monkeypatch.setattr(client_servers, "OPEN_SECONDS", 0.2)
    upstream.script("m", lambda request: Reply(text="done"))

    async def be_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(be_silent, "127.0.0.1", 0)
    try:
        address = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}/mcp"
        config = config_for(upstream, client_mcp={"hosts": [host_of(address)]})
        async with serve(create_app(config)) as url, client_of(url) as http:
            servers = [{"label": f"mute{at}", "url": address, "wish": "never"} for at in range(4)]
            answer = await posted(http, "responses", asking("responses", *servers))
            assert answer.status_code == 200, answer.text
            *lists, message = answer.json()["output"]
            assert [listed["error"] for listed in lists] == ["no answer within 0.2 s"] * 4
            assert message["type"] == "message"
    finally:
        silent.close()
        await silent.wait_closed()


async def test_a_result_is_cut_at_the_bound_of_the_key(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[Call("far_floods", {"city": "x"})]), Reply(text="done")])
    async with HttpMcp().running() as far:
        client_mcp = {"hosts": [host_of(far.url)], "result_bytes": 2000}
        config = config_for(upstream, client_mcp=client_mcp)
        async with serve(create_app(config)) as url, client_of(url) as http:
            answer = await posted(http, "chat", asking("chat", named(far)))
            assert answer.status_code == 200, answer.text
    [result] = [each["content"] for each in upstream.requests[-1].body["messages"] if each["role"] == "tool"]
    assert len(result) < 3000


# Nothing is left ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [200 if LONG else 40])
async def test_requests_leave_no_session_task_or_socket(upstream: Upstream, count: int) -> None:
    """Those that end well, that fail, that are refused, and whose clients leave. In `make chaos` there are two hundred."""

    def answer(request: Any) -> Reply:
        if any(message["role"] == "tool" for message in request.body["messages"]):
            return Reply(text="done")
        return Reply(calls=[Call("far_echo", {}), Call("far_raises", {"city": "x"})])

    upstream.script("m", answer)
    upstream.script("hangs", lambda request: Reply(calls=[Call("far_hangs", {"city": "x"})]))
    async with HttpMcp().running() as gone:
        address = gone.url
    async with HttpMcp().running() as far:
        client_mcp = {"hosts": [host_of(far.url), host_of(address)]}
        config = config_for(upstream, client_mcp=client_mcp, models=("m", "hangs"))
        app = create_app(config)
        async with serve(app) as url, client_of(url) as http:
            down = {"label": "gone", "url": address, "wish": "never"}
            bodies = [
                asking("responses", named(far)),
                asking("responses", named(far), down),
                asking("responses", named(far), tool_choice={"type": "mcp", "server_label": "far", "name": "nothing"}),
                asking("responses", named(far), stream=True),
            ]

            async def ask(at: int) -> int:
                if at % 5 == 4:
                    return await leave()
                return int((await posted(http, "responses", bodies[at % 5])).status_code)

            async def leave() -> int:
                """Begin a call that hangs, and go away."""
                body = asking("responses", named(far), model="hangs", stream=True)
                async with http.stream("POST", "/v1/responses", json=body) as response:
                    await far.begun.wait()
                    return int(response.status_code)

            await ask(0)
            await everything_closed(far)
            for start in range(0, count, 10):
                statuses = await asyncio.gather(*map(ask, range(start, start + 10)))
                assert set(statuses) <= {200, 400}
            await everything_closed(far)
            assert not far.sessions
            assert not far.connections
            assert len(far.said("initialize")) >= count // 2
            assert not [task for task in asyncio.all_tasks() if is_of_servers(task)]


def is_of_servers(task: "asyncio.Task[Any]") -> bool:
    return any(words in task.get_name() for words in ("of a request", "tool server"))


async def everything_closed(far: HttpMcp) -> None:
    async with asyncio.timeout(30):
        while far.sessions or far.connections or any(map(is_of_servers, asyncio.all_tasks())):  # noqa: ASYNC110 - nobody holds them
            await asyncio.sleep(0.001)
