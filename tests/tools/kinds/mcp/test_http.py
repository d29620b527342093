"""Servers over HTTP on loopback: sessions, addresses, headers, and everything a server may do in the middle."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

from callgate.calls.outcome import Failed, FailureKind, Outcome, Returned
from callgate.conversation.ports import ProgressReport
from callgate.tools.kinds.http.addresses import AddressRules
from callgate.tools.kinds.http.client import Web
from callgate.tools.kinds.mcp.http import HttpSpec, rules_for
from callgate.tools.kinds.mcp.sdk_streams import MAX_REQUESTS
from callgate.tools.kinds.mcp.server import McpSource, ServerSpec
from callgate.tools.registry import Registry
from callgate.tools.source_supervisor import SourceState, SourceStatus
from callgate.tools.toolbox import RequestToolbox, ToolSet
from tests.harness.server import serve
from tests.tools.executor_kinds import everything, ready
from tests.tools.servers.http_mcp import STREAM, Asked, HttpMcp, event

pytestmark = pytest.mark.anyio

HOME = AddressRules(allow_private=True)
MANY = 500
BOTH = pytest.mark.parametrize("events", [False, True], ids=["json", "events"])


@dataclass(slots=True)
class RuntimeManager:
    registry: Registry
    server: McpSource
    statuses: list[SourceStatus]
    progress: list[tuple[str, float | None]] = field(default_factory=list)

    def names(self) -> list[str]:
        return [tool.name for tool in self.registry.tools()]

    async def run(self, name: str, **arguments: Any) -> Outcome:
        box = RequestToolbox(server_tools=ToolSet(self.registry.tools()), run_id="run_1", limits=self.registry.limits)
        return await box.run(ready(name, **arguments), self._report)

    async def state(self, state: SourceState) -> SourceStatus:
        await everything(lambda: self.registry.sources()[0].state is state)
        return self.registry.sources()[0]

    async def was_down(self) -> None:
        await everything(lambda: any(status.state is SourceState.DOWN for status in self.statuses))

    async def _report(self, progress: ProgressReport) -> None:
        self.progress.append((progress.message, progress.fraction))


@contextlib.asynccontextmanager
async def opened_server(
    url: str,
    *,
    rules: AddressRules = HOME,
    headers: dict[str, str] | None = None,
    sse: bool | None = None,
    web: Web | None = None,
    delay: Callable[[int], float] = lambda failures: 0.01,
) -> AsyncIterator[RuntimeManager]:
    web = web or Web()
    spec = HttpSpec(url, headers or {}, sse=sse, rules=rules)
    server = McpSource(ServerSpec("there", spec, prefix=""), web)
    statuses: list[SourceStatus] = []
    registry = Registry(delay=delay, on_status=statuses.append)
    registry.add_source(server)
    async with asyncio.timeout(40):
        await registry.open()
        try:
            yield RuntimeManager(registry, server, statuses)
        finally:
            await registry.close()
            await web.close()


# The call past the SDK ----------------------------------------------------------------------------


@BOTH
async def test_a_call_is_one_request_in_the_session_that_was_opened(events: bool) -> None:
    async with (
        HttpMcp(events=events).running() as http,
        opened_server(http.url, headers={"Authorization": "Bearer b"}) as it,
    ):
        assert await it.run("echo", a=1) == Returned('{"a": 1}')
        [call] = http.calls()
        assert call.headers["mcp-session-id"] in http.sessions
        assert call.headers["mcp-protocol-version"] == "2025-06-18"
        assert {asked.headers.get("authorization") for asked in http.asked} == {"Bearer b"}
        assert {asked.headers.get("accept-encoding") for asked in http.asked} == {"identity"}


async def test_progress_comes_through_while_the_tool_runs() -> None:
    async with HttpMcp().running() as http, opened_server(http.url) as it:
        assert await it.run("progresses") == Returned("done")
        assert it.progress == [("step 1", 0.5), ("step 2", 1.0)]


async def test_a_server_that_asks_for_a_completion_in_the_middle_is_answered_no() -> None:
    async with HttpMcp().running() as http, opened_server(http.url) as it:
        assert await it.run("asks") == Returned("never mind")
        [reply] = [asked.message for asked in http.asked if "method" not in asked.message and asked.method == "POST"]
        assert reply["id"] == 9
        assert reply["error"]["code"] == -32601


async def most_tasks_until(done: Callable[[], bool]) -> int:
    most = 0
    while not done():
        most = max(most, len(asyncio.all_tasks()))
        await asyncio.sleep(0)
    return most


async def test_a_server_that_asks_faster_than_it_is_answered_is_not_answered_each_time() -> None:
    pings = b"".join(event({"jsonrpc": "2.0", "id": id, "method": "ping"}) for id in range(MANY))

    def in_an_answer(asked: Asked) -> bytes | None:
        if asked.message.get("method") != "tools/call":
            return None
        answer = {"jsonrpc": "2.0", "id": asked.message["id"], "result": {"content": []}}
        return STREAM + pings + event(answer)

    async with HttpMcp().running() as http, opened_server(http.url) as it:
        await everything(lambda: bool(http.streams))
        before = len(asyncio.all_tasks())
        [stream] = http.streams
        stream.write(pings + event({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}))
        assert await most_tasks_until(lambda: len(http.said("tools/list")) > 1) < before + 2 * MAX_REQUESTS
        http.instead = in_an_answer
        calling = asyncio.create_task(it.run("echo"))
        assert await most_tasks_until(calling.done) < before + 2 * MAX_REQUESTS
        assert calling.result() == Returned("")


async def test_an_answer_whose_stream_ended_early_is_fetched_where_the_server_says() -> None:
    async with HttpMcp().running() as http:
        ids: list[str] = []

        def instead(asked: Asked) -> bytes | None:
            if asked.message.get("method") == "tools/call":
                ids.append(asked.message["id"])
            if asked.headers.get("last-event-id") == "place-1":
                said = {"content": [{"type": "text", "text": "the rest"}]}
                return STREAM + event({"jsonrpc": "2.0", "id": ids[0], "result": said})
            return None

        http.instead = instead
        async with opened_server(http.url) as it:
            assert await it.run("resumes") == Returned("the rest")
        assert len(http.calls()) == 1


async def test_an_event_that_answers_no_request_by_its_id_is_no_answer_to_a_call() -> None:
    said: dict[str, Any] = {"jsonrpc": "2.0", "result": {"content": [{"type": "text", "text": "to somebody"}]}}
    strays = [said, {**said, "id": None}, {**said, "id": "c999"}]

    def instead(asked: Asked) -> bytes | None:
        return STREAM + event(strays.pop()) if asked.message.get("method") == "tools/call" else None

    async with HttpMcp().running() as http, opened_server(http.url) as it:
        http.instead = instead
        outcomes = [await it.run("echo") for _ in strays[:]]
    assert [isinstance(outcome, Failed) and outcome.kind for outcome in outcomes] == [FailureKind.UNKNOWN] * 3


@pytest.mark.parametrize(
    "answer, message",
    [
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 4\r\n\r\nhi!\n", "text/html"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n[]", "not the protocol's"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
            "encoded",
        ),
        (b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n", "HTTP 202"),
        (b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n", "HTTP 401"),
        (b"HTTP/1.1 307 Temporary\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n", "a redirect"),
        (b"HTTP/1.1 500 Oh\r\nContent-Length: 5\r\n\r\nno...", "HTTP 500"),
    ],
)
async def test_an_odd_answer_is_reported_and_affects_no_other_call(answer: bytes, message: str) -> None:
    async with HttpMcp().running() as http, opened_server(http.url) as it:
        http.instead = lambda asked: answer if asked.message.get("method") == "tools/call" else None
        outcome = await it.run("echo")
        assert isinstance(outcome, Failed)
        assert message in outcome.text
        http.instead = lambda asked: None
        assert await it.run("echo") == Returned("{}")
        assert it.registry.sources()[0].failures == 0


async def test_an_error_of_the_protocol_counts_whatever_the_status() -> None:
    async with HttpMcp().running() as http, opened_server(http.url) as it:
        body = b'{"jsonrpc":"2.0","id":"c1","error":{"code":-32602,"message":"no such city"}}'
        head = b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        http.instead = lambda asked: head + body if asked.message.get("method") == "tools/call" else None
        assert await it.run("echo") == Failed("no such city")


async def test_a_list_that_is_too_long_keeps_the_server_down_and_our_memory_free() -> None:
    async with HttpMcp().running() as http:
        body = b'{"jsonrpc":"2.0","id":3,"result":{"tools":[],"x":"' + b"x" * (9 * 1024 * 1024) + b'"}}'
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        http.instead = lambda asked: head + body if asked.message.get("method") == "tools/list" else None
        async with opened_server(http.url, delay=lambda failures: 60) as it:
            status = await it.state(SourceState.DOWN)
            assert "more than 8388608 bytes" in status.error


async def test_a_call_given_up_in_the_newest_protocol_is_hung_up_on() -> None:
    server, _ = sdk_server()
    begun, stopped = asyncio.Event(), asyncio.Event()

    @server.tool()
    async def wait() -> str:
        """Waits for ever."""
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return ""

    async with serve(server.streamable_http_app()) as base, opened_server(f"{base}/mcp") as it:
        call = asyncio.create_task(it.run("wait"))
        await begun.wait()
        call.cancel()
        await asyncio.wait([call], timeout=60)
        assert call.cancelled()
        await stopped.wait()


async def test_a_server_is_asked_no_more_at_once_than_it_is_thought_to_bear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callgate.tools.kinds.mcp.http.MAX_CONNECTIONS", 1)
    async with HttpMcp().running() as http, opened_server(http.url) as it:
        first = asyncio.create_task(it.run("hangs", city="Oslo"))
        await http.begun.wait()
        second = asyncio.create_task(it.run("echo"))
        await asyncio.wait([second], timeout=0.1)
        calls = [asked.message["params"]["name"] for asked in http.asked if asked.message.get("method") == "tools/call"]
        assert calls == ["hangs"]
        first.cancel()
        assert await second == Returned("{}")
        await asyncio.wait([first])


@pytest.mark.parametrize(
    "status, kind",
    [
        ("429 Slow", FailureKind.UNAVAILABLE),
        ("503 Busy", FailureKind.UNAVAILABLE),
        ("502 Bad", FailureKind.UNKNOWN),
        ("504 Late", FailureKind.UNKNOWN),
    ],
)
async def test_a_server_that_is_busy_was_not_reached_and_one_behind_a_gateway_may_have_been(
    status: str, kind: FailureKind
) -> None:
    async with HttpMcp().running() as http, opened_server(http.url) as it:
        busy = f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode()
        http.instead = lambda asked: busy if asked.message.get("method") == "tools/call" else None
        outcome = await it.run("echo")
        assert isinstance(outcome, Failed)
        assert outcome.kind is kind


async def test_an_answer_that_cannot_be_fetched_on_may_have_had_its_effect() -> None:
    async with HttpMcp().running() as http, opened_server(http.url) as it:
        gone = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
        http.instead = lambda asked: gone if "last-event-id" in asked.headers else None
        outcome = await it.run("resumes")
        assert isinstance(outcome, Failed)
        assert outcome.kind is FailureKind.UNKNOWN
        assert len(http.calls()) == 1


async def test_a_tool_whose_arguments_are_headers_too_is_called_through_the_sdk() -> None:
    http = HttpMcp(
        tools={"headed": ({"type": "object", "properties": {"a": {"type": "string", "x-mcp-header": "A"}}}, "x")}
    )
    async with http.running(), opened_server(http.url) as it:
        assert await it.run("headed", a="b") == Returned('{"a": "b"}')
        [call] = http.calls()
        assert isinstance(call.message["id"], int), "the SDK's ids are numbers, and ours are not"


async def test_a_server_without_tools_is_open_all_the_same() -> None:
    async with HttpMcp().running() as http:
        body = b'{"jsonrpc":"2.0","id":3,"error":{"code":-32601,"message":"Method not found"}}'
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        http.instead = lambda asked: head + body if asked.message.get("method") == "tools/list" else None
        async with opened_server(http.url) as it:
            await it.state(SourceState.READY)
            assert it.names() == []


# Sessions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("old_manners", [False, True], ids=["404", "400"])
async def test_a_forgotten_session_is_made_again_and_the_call_repeated_on_it(old_manners: bool) -> None:
    async with HttpMcp().running() as http, opened_server(http.url) as it:
        if old_manners:
            body = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: No valid session ID"}}'
            head = b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(
                body
            )
            dead = set(http.sessions)
            http.instead = lambda asked: head + body if asked.headers.get("mcp-session-id") in dead else None
        http.sessions.clear()
        assert await it.run("echo", a=1) == Returned('{"a": 1}')
        assert len(http.said("initialize")) == 2


async def test_calls_that_are_refused_one_after_another_for_a_forgotten_session_all_run_on_the_next() -> None:
    async with HttpMcp().running() as http, opened_server(http.url) as it:
        first_refused = asyncio.Event()

        async def refusing(asked: Asked) -> None:
            if asked.message["params"]["arguments"] == {"a": 0}:
                first_refused.set()
                return
            await first_refused.wait()
            for _ in range(200):  # the first is refused, and the session given up, meanwhile
                await asyncio.sleep(0)

        http.refusing = refusing
        http.sessions.clear()
        calls = await asyncio.gather(*(it.run("echo", a=at) for at in range(2)))
        assert calls == [Returned('{"a": 0}'), Returned('{"a": 1}')]
        assert len(http.said("initialize")) == 2


async def test_a_call_between_a_forgotten_session_and_the_next_waits_for_it() -> None:
    async with HttpMcp().running() as http, opened_server(http.url) as it:
        late = asyncio.Event()

        async def refusing(asked: Asked) -> None:
            late.set()

        http.refusing = refusing
        http.sessions.clear()
        first = asyncio.create_task(it.run("echo", a=0))
        await late.wait()
        calls = [asyncio.create_task(it.run("echo", a=1))]
        while not first.done():
            await asyncio.sleep(0)
            calls.append(asyncio.create_task(it.run("echo", a=1)))
        assert await first == Returned('{"a": 0}')
        assert set(await asyncio.gather(*calls)) == {Returned('{"a": 1}')}


async def test_a_server_that_keeps_forgetting_its_session_is_no_failure_and_keeps_its_tools() -> None:
    async with HttpMcp().running() as http, opened_server(http.url) as it:
        offered = it.names()
        for _ in range(5):
            http.sessions.clear()
            calls = asyncio.gather(*(it.run("echo", a=at) for at in range(3)))
            while not calls.done():
                assert it.names() == offered
                await asyncio.sleep(0)
            assert await calls == [Returned(f'{{"a": {at}}}') for at in range(3)]
        [status] = it.registry.sources()
        assert (status.state, status.failures) == (SourceState.READY, 0)


async def test_a_session_is_given_back_when_the_registry_closes() -> None:
    async with HttpMcp().running() as http:
        async with opened_server(http.url):
            assert len(http.sessions) == 1
        assert http.sessions == set()


async def test_a_server_killed_in_a_call_fails_it_and_comes_back_with_its_tools() -> None:
    http = HttpMcp()
    await http.start()
    port = int(http.url.split(":")[2].split("/")[0])
    async with opened_server(http.url) as it:
        running = asyncio.create_task(it.run("hangs", city="Oslo"))
        await http.begun.wait()
        await http.stop()
        outcome = await running
        assert isinstance(outcome, Failed)
        assert outcome.kind is FailureKind.UNKNOWN
        await it.was_down()
        assert "answers" in it.names()
        http.sessions.clear()
        async with http.running(port):
            await it.state(SourceState.READY)
            assert await it.run("echo", a=2) == Returned('{"a": 2}')
            await it.registry.close()


async def test_one_broken_connection_fails_one_call_and_no_other() -> None:
    async with HttpMcp().running() as http, opened_server(http.url) as it:
        hanging = asyncio.create_task(it.run("hangs", city="Oslo"))
        await http.begun.wait()
        http.instead = lambda asked: b"" if asked.message.get("method") == "tools/call" else None
        outcome = await it.run("echo")
        assert isinstance(outcome, Failed)
        assert outcome.kind is FailureKind.UNKNOWN
        http.instead = lambda asked: None
        assert await it.run("echo") == Returned("{}")
        assert not hanging.done()
        assert len(http.said("initialize")) == 1
        hanging.cancel()
        await asyncio.wait([hanging])


async def test_through_lost_sessions_and_connections_every_call_ends() -> None:
    async with HttpMcp().running() as http, opened_server(http.url) as it:
        over = False
        ends: Counter[str] = Counter()

        async def caller() -> None:
            while not over:
                if "echo" in it.names():
                    ends[type(await it.run("echo")).__name__] += 1
                await asyncio.sleep(0)

        callers = [asyncio.create_task(caller()) for _ in range(20)]
        for trouble in ["sessions", "connections"] * 4:
            before = ends["Returned"]
            await everything(lambda before=before: ends["Returned"] > before)  # type: ignore[misc]
            http.sessions.clear()
            if trouble == "connections":
                for writer in list(http.connections):
                    writer.transport.abort()
        over = True
        await asyncio.gather(*callers)
        await it.state(SourceState.READY)
        async with asyncio.timeout(30):  # the last trouble may not have been seen yet
            while await it.run("echo") != Returned("{}"):
                await it.state(SourceState.READY)


async def test_a_server_that_is_down_does_not_stop_the_start_and_is_tried_again() -> None:
    http = HttpMcp()
    await http.start()
    url, port = http.url, int(http.url.split(":")[2].split("/")[0])
    await http.stop()
    async with opened_server(url) as it:
        await it.was_down()
        assert "cannot be reached" in it.statuses[-1].error
        async with http.running(port):
            await it.state(SourceState.READY)
            assert await it.run("echo") == Returned("{}")
            await it.registry.close()


async def test_tools_are_listed_again_after_list_changed_on_the_servers_stream() -> None:
    async with HttpMcp().running() as http, opened_server(http.url) as it:
        await everything(lambda: bool(http.streams))
        http.tools["fresh"] = ({"type": "object"}, "New.")
        await http.notify({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        await everything(lambda: "fresh" in it.names())


@pytest.mark.parametrize("sse", [False, None], ids=["said", "not said"])
async def test_a_server_that_takes_no_post_and_speaks_no_sse_is_reported_with_its_first_failure(
    sse: bool | None,
) -> None:
    async with HttpMcp().running() as http:
        http.instead = lambda asked: b"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n"
        async with opened_server(http.url, sse=sse, delay=lambda failures: 60) as it:
            status = await it.state(SourceState.DOWN)
            assert "HTTP 405" in status.error
        assert ("GET" in {asked.method for asked in http.asked}) is (sse is None)


async def test_a_refused_connection_attempt_is_shown_with_its_status() -> None:
    async with HttpMcp().running() as http:
        http.instead = lambda asked: b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"
        async with opened_server(http.url, delay=lambda failures: 60) as it:
            status = await it.state(SourceState.DOWN)
            assert "HTTP 401 Unauthorized" in status.error


# Addresses ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url, allow_private, address, allowed",
    [
        ("http://127.0.0.1:9/mcp", None, "127.0.0.1", True),
        ("http://localhost:9/mcp", None, "127.0.0.1", True),
        ("http://[::1]:9/mcp", None, "::1", True),
        ("http://10.1.2.3/mcp", None, "10.1.2.3", True),
        ("http://tickets/mcp", None, "10.1.2.3", True),
        ("http://tickets.internal/mcp", None, "10.1.2.3", True),
        ("https://mcp.example.com/mcp", None, "10.1.2.3", False),
        ("https://mcp.example.com/mcp", None, "1.1.1.1", True),
        ("https://mcp.example.com/mcp", True, "10.1.2.3", True),
        ("http://localhost:9/mcp", False, "127.0.0.1", False),
        ("http://169.254.169.254/mcp", None, "169.254.169.254", False),
        ("http://169.254.169.254/mcp", True, "169.254.169.254", False),
        ("http://metadata.internal/mcp", None, "169.254.169.254", False),
    ],
)
def test_what_a_url_may_lead_to(url: str, allow_private: bool | None, address: str, allowed: bool) -> None:
    import ipaddress
    from urllib.parse import urlsplit

    rules = rules_for(url, allow_private=allow_private)
    host = urlsplit(url).hostname or ""
    assert (rules.refusal(host, ipaddress.ip_address(address)) is None) is allowed
    assert rules.refusal("elsewhere.example.com", ipaddress.ip_address("10.9.9.9")) is not None


async def test_a_public_name_that_leads_home_is_refused_before_anything_is_sent() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    async with HttpMcp().running() as http:
        url = http.url.replace("127.0.0.1", "mcp.example.com")
        async with opened_server(url, rules=rules_for(url), web=Web(resolve=resolve), delay=lambda failures: 60) as it:
            status = await it.state(SourceState.DOWN)
            assert "mcp.example.com has a loopback address" in status.error
        assert http.asked == []


async def test_a_name_that_changes_its_mind_gains_nothing() -> None:
    found = ["127.0.0.1"]

    async def resolve(host: str, port: int) -> list[str]:
        return found

    def last_answer(asked: Asked) -> bytes | None:
        if asked.message.get("method") != "tools/call":
            return None
        body = b'{"jsonrpc":"2.0","id":"%b","result":{"content":[]}}' % asked.message["id"].encode()
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
        return head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)

    async with HttpMcp().running() as http:
        url = http.url.replace("127.0.0.1", "localhost")
        http.instead = last_answer
        async with opened_server(url, rules=rules_for(url), web=Web(resolve=resolve), delay=lambda failures: 60) as it:
            assert isinstance(await it.run("echo"), Returned)
            found[:] = ["169.254.169.254"]
            assert isinstance(await it.run("echo"), Failed)
            status = await it.state(SourceState.DOWN)
            assert "localhost has a cloud metadata address" in status.error
        assert [asked.message.get("method") for asked in http.asked].count("tools/call") == 1


async def test_a_redirect_is_followed_nowhere_not_even_at_home() -> None:
    async with HttpMcp().running() as http:
        where = b"HTTP/1.1 308 Moved\r\nLocation: " + http.url.encode() + b"/\r\nContent-Length: 0\r\n\r\n"
        http.instead = lambda asked: where if asked.path == "/mcp" else None
        async with opened_server(http.url, delay=lambda failures: 60) as it:
            status = await it.state(SourceState.DOWN)
            assert "a redirect to" in status.error
            assert "not followed" in status.error
        assert {asked.path for asked in http.asked} == {"/mcp"}


# Real servers of the SDK's, in both of its eras and over SSE ---------------------------------------


def sdk_server() -> tuple[MCPServer, asyncio.Event]:
    server = MCPServer("sdk")
    change = asyncio.Event()

    @server.tool()
    async def add(a: int, b: int, context: Context) -> int:
        """Adds two numbers."""
        await context.report_progress(1, 2, "half way")
        return a + b

    @server.tool()
    async def fail() -> str:
        """Fails."""
        raise ValueError("never shown")

    return server, change


async def test_a_server_of_the_newest_protocol_is_called_past_the_sdk_too() -> None:
    server, _ = sdk_server()
    async with serve(server.streamable_http_app()) as base, opened_server(f"{base}/mcp") as it:
        assert it.names() == ["add", "fail"]
        assert await it.run("add", a=1, b=41) == Returned("42")
        assert ("half way", 0.5) in it.progress
        outcome = await it.run("fail")
        assert isinstance(outcome, Failed)
        assert outcome.kind is FailureKind.RAISED


async def test_a_new_tool_of_a_server_of_the_newest_protocol_is_noticed() -> None:
    server, _ = sdk_server()

    @server.tool()
    async def grow(context: Context) -> str:
        """Adds a tool."""

        async def grown() -> str:
            return "grown"

        server.add_tool(grown, "grown", description="It was not there before.")
        await context.notify_tools_changed()
        return "ok"

    async with serve(server.streamable_http_app()) as base, opened_server(f"{base}/mcp") as it:
        assert await it.run("grow") == Returned("ok")
        await everything(lambda: "grown" in it.names())
        assert await it.run("grown") == Returned("grown")


@pytest.mark.parametrize("sse", [True, None], ids=["said", "found out"])
async def test_a_server_over_sse_is_called_through_the_sdk(sse: bool | None) -> None:
    server, _ = sdk_server()
    async with serve(server.sse_app()) as base, opened_server(f"{base}/sse", sse=sse) as it:
        assert await it.run("add", a=1, b=41) == Returned("42")
        assert it.progress == [("half way", 0.5)]
        await it.registry.close()
    for task in asyncio.all_tasks():
        if getattr(task.get_coro(), "__name__", "") == "_shutdown_watcher":
            task.cancel()  # sse_starlette's, which would wait for a signal to the whole process
