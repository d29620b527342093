"""Requests to a server that wants a login: each of them asks for what authorizes it, and nothing of that goes anywhere else."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from callgate.calls.outcome import Failed, FailureKind, Outcome, Returned
from callgate.tools.kinds.http.addresses import AddressRules
from callgate.tools.kinds.http.client import Web
from callgate.tools.kinds.mcp.authorization import OPERATOR
from callgate.tools.kinds.mcp.http import HttpSpec
from callgate.tools.kinds.mcp.sender import is_at
from callgate.tools.kinds.mcp.server import McpSource, ServerSpec
from callgate.tools.registry import Registry
from callgate.tools.source_supervisor import SourceState
from callgate.tools.toolbox import RequestToolbox, ToolSet
from tests.fakes import ready, silent
from tests.tools.executor_kinds import everything
from tests.tools.servers.guarded_mcp import CHALLENGE, TOO_LITTLE, GuardedMcp, Tokens
from tests.tools.servers.http_mcp import Asked

pytestmark = pytest.mark.anyio

HOME = AddressRules(allow_private=True)


class Opened:
    def __init__(self, registry: Registry) -> None:
        self.registry = registry

    async def run(self, name: str, **arguments: Any) -> Outcome:
        box = RequestToolbox(server_tools=ToolSet(self.registry.tools()), limits=self.registry.limits)
        return await box.run(ready(name, **arguments), silent)


@contextlib.asynccontextmanager
async def opened(server: GuardedMcp, tokens: Tokens, *, sse: bool | None = None) -> AsyncIterator[Opened]:
    web = Web()
    transport = HttpSpec(server.url, sse=sse, rules=HOME)
    source = McpSource(ServerSpec("there", transport, prefix="", authorization=tokens), web)
    registry = Registry(delay=lambda failures: 0.01)
    registry.add_source(source)
    async with asyncio.timeout(40):
        await registry.open()
        try:
            yield Opened(registry)
        finally:
            await registry.close()
            await web.close()


MODERN = pytest.mark.parametrize("modern", [False, True], ids=["2025", "2026"])


@MODERN
async def test_every_request_of_a_session_has_what_authorizes_it(modern: bool) -> None:
    server = GuardedMcp(modern=modern)
    tokens = Tokens().of_operator(server.let("t1", "ann"))
    async with server.running():
        async with opened(server, tokens) as it:
            assert await it.run("whoami") == Returned('{"subject": "ann"}')
            if not modern:
                await everything(lambda: bool(server.streams))
                calling = asyncio.create_task(it.run("hangs"))
                await server.begun.wait()
                calling.cancel()
                await everything(lambda: bool(server.said("notifications/cancelled")))
        assert {asked.headers.get("authorization") for asked in server.asked} == {"Bearer t1"}
        kinds = {asked.message.get("method") or asked.method for asked in server.asked}
        assert kinds >= {"tools/list", "tools/call"} | (
            {"GET", "DELETE", "notifications/cancelled"} if not modern else set()
        )
        assert not server.refused


@MODERN
async def test_a_token_that_is_replaced_while_a_session_lives_is_used_from_the_next_request_on(modern: bool) -> None:
    server = GuardedMcp(modern=modern)
    tokens = Tokens().of_operator(server.let("t1", "ann"))
    async with server.running(), opened(server, tokens) as it:
        await it.run("whoami")
        del server.subjects["t1"]
        tokens.now[OPERATOR] = server.let("t2", "ann again")
        assert await it.run("whoami") == Returned('{"subject": "ann again"}')
        assert not tokens.refusals


@MODERN
async def test_a_refused_call_is_made_once_more_with_what_is_new(modern: bool) -> None:
    server = GuardedMcp(modern=modern)
    tokens = Tokens().of_operator(server.let("t1", "ann"))
    async with server.running(), opened(server, tokens) as it:
        del server.subjects["t1"]
        tokens.renewals[OPERATOR] = [server.let("t2", "ann")]
        assert await it.run("whoami") == Returned('{"subject": "ann"}')
        [(identity, refusal)] = tokens.refusals
        assert (identity, refusal.status, refusal.authorized_by) == (OPERATOR, 401, "Bearer t1")
        assert refusal.challenges == (CHALLENGE,)
        assert len(server.calls()) == 2


async def test_a_call_that_nobody_can_authorize_fails_with_words_that_name_the_login() -> None:
    server = GuardedMcp()
    tokens = Tokens().of_operator(server.let("t1", "ann"))
    async with server.running(), opened(server, tokens) as it:
        server.subjects.clear()
        refused = await it.run("whoami")
        assert isinstance(refused, Failed)
        assert (refused.kind, "callgate mcp login there" in refused.text) == (FailureKind.REFUSED, True)
        assert "Bearer" not in refused.text
        assert len(server.calls()) == 1


async def test_a_server_that_refuses_what_is_new_as_well_is_asked_twice_and_not_again() -> None:
    server = GuardedMcp()
    tokens = Tokens().of_operator(server.let("t1", "ann"))
    async with server.running(), opened(server, tokens) as it:
        server.subjects.clear()
        tokens.renewals[OPERATOR] = ["t2", "t3", "t4"]
        refused = await it.run("whoami")
        assert isinstance(refused, Failed)
        assert (refused.kind, "callgate mcp login there" in refused.text) == (FailureKind.REFUSED, True)
        assert len(server.calls()) == 2


async def test_a_login_that_does_not_reach_far_enough_is_told_with_its_challenge() -> None:
    server = GuardedMcp()
    tokens = Tokens().of_operator(server.let("t1", "ann"))
    async with server.running(), opened(server, tokens) as it:
        server.too_little.add("ann")
        refused = await it.run("whoami")
        assert isinstance(refused, Failed)
        assert refused.kind is FailureKind.REFUSED
        [(_, refusal)] = tokens.refusals
        assert (refusal.status, refusal.challenges) == (403, (TOO_LITTLE,))
        assert "files:write" not in refused.text  # words of the server


async def test_the_first_list_is_asked_for_again_with_what_is_new() -> None:
    server = GuardedMcp()
    tokens = Tokens().of_operator("old")
    tokens.renewals[OPERATOR] = [server.let("t2", "ann")]
    async with server.running(), opened(server, tokens) as it:
        assert await it.run("whoami") == Returned('{"subject": "ann"}')
        assert len(tokens.refusals) == 1


async def test_a_server_that_nobody_is_logged_in_to_says_so_and_opens_once_somebody_is() -> None:
    server = GuardedMcp()
    tokens = Tokens()
    async with server.running(), opened(server, tokens) as it:
        [status] = it.registry.sources()
        assert status.state in (SourceState.DOWN, SourceState.OPENING)
        assert "callgate mcp login there" in status.error
        assert not server.asked  # without a login nothing is sent
        tokens.now[OPERATOR] = server.let("t1", "ann")
        await everything(lambda: it.registry.sources()[0].state is SourceState.READY)
        assert await it.run("whoami") == Returned('{"subject": "ann"}')


async def test_a_redirect_is_not_followed_with_a_token() -> None:
    server = GuardedMcp()
    elsewhere = GuardedMcp(subjects={"t1": "a thief"})
    tokens = Tokens().of_operator(server.let("t1", "ann"))
    async with server.running(), elsewhere.running(), opened(server, tokens) as it:
        await everything(lambda: bool(server.streams))
        server.redirects_to = elsewhere.url
        refused = await it.run("whoami")
        assert isinstance(refused, Failed)
        await server.notify({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})  # is listed by the SDK
        await everything(lambda: it.registry.sources()[0].failures > 0)
        assert not elsewhere.asked


@pytest.mark.parametrize(
    ("url", "below", "is_there"),
    [
        ("https://mcp.example/a/mcp", False, True),
        ("https://mcp.example/a/mcp?session=1", False, True),
        ("https://mcp.example:443/a/mcp", False, True),
        ("https://mcp.example/a/mcp/more", False, False),
        ("https://mcp.example/a", False, False),
        ("https://mcp.example/a%2Fmcp", False, False),
        ("http://mcp.example/a/mcp", False, False),
        ("https://mcp.example:8443/a/mcp", False, False),
        ("https://mcp.example.evil.example/a/mcp", False, False),
        ("https://evil.example/a/mcp", False, False),
        ("https://mcp.example/a/messages", True, True),
        ("https://mcp.example/b/messages", True, False),
        ("https://mcp.example/a/../b/messages", True, False),
        ("https://evil.example/a/messages", True, False),
    ],
)
def test_tokens_go_to_the_address_of_the_server_alone(url: str, below: bool, is_there: bool) -> None:
    assert is_at(url, "https://mcp.example/a/mcp", below=below) is is_there


async def test_ten_calls_are_under_way_at_once() -> None:
    server = GuardedMcp(at_once=10)
    tokens = Tokens().of_operator(server.let("t1", "ann"))
    async with server.running(), opened(server, tokens) as it:
        outcomes = await asyncio.gather(*(it.run("together") for _ in range(10)))
        assert outcomes == [Returned('{"subject": "ann"}')] * 10
        assert server.most_together == 10


async def test_no_token_stands_in_a_log_line() -> None:
    server = GuardedMcp()
    tokens = Tokens().of_operator(server.let("tok-planted-secret", "ann"))
    with capture_logs() as lines:
        async with server.running(), opened(server, tokens) as it:
            await it.run("whoami")
            server.subjects.clear()
            await it.run("whoami")
    assert "planted" not in repr(lines)


TOKEN = "token-pl4nted-4711"


@pytest.mark.parametrize("how", ["result", "error", "greeting", "list"])
async def test_a_token_that_its_server_repeats_is_shown_to_nobody(how: str) -> None:
    server = GuardedMcp()
    says = f"You are {TOKEN}, are you?"

    def repeating(asked: Asked) -> bytes | None:
        method = asked.message.get("method")
        if method != ("initialize" if how == "greeting" else "tools/call"):
            return None
        said = {"error": {"code": -32000, "message": says}}
        if how == "result":
            said = {"result": {"content": [{"type": "text", "text": says}]}}
        body = json.dumps({"jsonrpc": "2.0", "id": asked.message["id"], **said}).encode()
        return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)

    if how == "list":
        server.described = {"operator": says}
    else:
        server.instead = repeating
    tokens = Tokens().of_operator(server.let(TOKEN, "operator"))
    async with server.running(), opened(server, tokens) as it:
        match how:
            case "greeting":
                text = it.registry.sources()[0].error
            case "list":
                text = it.registry.tools()[0].tool.description
            case _:
                text = (await it.run("hangs")).text
    assert f"You are {'*' * len(TOKEN)}, are you?" in text
    assert TOKEN not in text
