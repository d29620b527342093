"""Logging in anew as somebody else: nothing that was of the one before is used for the next."""

import asyncio
from typing import Any

import pytest

from tests.mcp_server.mcp_client import McpClient
from tests.scripted_upstream import Call, Upstream
from tests.tools.kinds.mcp.test_login_routes import Gate, gate

pytestmark = pytest.mark.anyio

WHO = Call("notes_whoami", {}, id="call_1")
KEPT: dict[str, dict[str, Any]] = {
    "server": {"safety": "read_only", "cache_seconds": 600, "cache_shared": True},
    "key": {"safety": "read_only", "cache_seconds": 600},
}
PER = pytest.mark.parametrize(("per", "key"), [("server", "boss"), ("key", "ann")])


def sessions(it: Gate) -> list[str]:
    return [asked.headers["mcp-session-id"] for asked in it.server.calls()]


@PER
async def test_who_logs_in_anew_gets_a_session_and_results_of_his_own(upstream: Upstream, per: str, key: str) -> None:
    async with gate(upstream, per=per, entry=KEPT[per]) as it:
        await it.log_in(key, "one")
        assert [await it.ask(key, WHO) for _ in range(2)] == ['{"subject": "one"}'] * 2
        assert len(it.server.calls()) == 1  # the second is a kept result
        await it.log_in(key, "two")
        assert [await it.ask(key, WHO) for _ in range(2)] == ['{"subject": "two"}'] * 2
        assert len(set(sessions(it))) == 2


@PER
async def test_no_result_is_kept_beyond_a_logout(upstream: Upstream, per: str, key: str) -> None:
    async with gate(upstream, per=per, entry=KEPT[per]) as it:
        await it.log_in(key, "one")
        assert await it.ask(key, WHO) == '{"subject": "one"}'
        gone = await it.client.delete("/v1/logins/notes", headers=it.by(key))
        assert gone.json()["logged_out"]
        assert "wants a login" in await it.ask(key, WHO)


async def test_a_call_under_way_ends_in_its_own_session_and_the_list_is_another(upstream: Upstream) -> None:
    async with gate(upstream) as it:
        it.server.at_once = 2
        await it.log_in("boss", "boss")
        await it.log_in("ann", "one")
        await it.ask("ann", WHO)
        asking = asyncio.create_task(it.ask("ann", Call("notes_together", {}, id="call_2")))
        while not it.server.together:  # noqa: ASYNC110 - the server has no other sign of it
            await asyncio.sleep(0.01)
        it.server.listed_for["two"] = ("whoami",)
        await it.log_in("ann", "two")
        it.server.all_there.set()
        assert await asking == '{"subject": "one"}'
        ann = McpClient(it.client, it.keys["ann"])
        assert await ann.call("notes_whoami")
        assert await ann.names() == ["notes_whoami", "read_more"]
        assert len(set(sessions(it))) == 2
