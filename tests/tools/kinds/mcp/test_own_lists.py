"""Every place that shows tools shows those that their servers list for who asks, and none of those that others were listed."""

from typing import Any

import pytest

from tests.mcp_server.mcp_client import McpClient
from tests.scripted_upstream import Call, Upstream
from tests.tools.kinds.mcp.test_login_routes import Gate, gate

pytestmark = pytest.mark.anyio

SECRET = "notes_secret_plans"
FIRST = Call("notes_whoami", {}, id="call_1")
COUNTED: dict[str, dict[str, Any]] = {
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "hello"}]},
    "/v1/responses/input_tokens": {"input": "hello"},
}


async def two_who_were_listed(it: Gate) -> None:
    """Log in two keys, of which the server lists one a tool more."""
    it.server.listed_for = {"ann": ("whoami",), "bob": ("whoami", "secret_plans")}
    for who in ("ann", "bob"):
        await it.log_in(who, who)
        await it.ask(who, FIRST)


async def test_an_mcp_client_is_listed_its_own_tools(upstream: Upstream) -> None:
    async with gate(upstream) as it:
        await two_who_were_listed(it)
        ann, bob = (McpClient(it.client, it.keys[who]) for who in ("ann", "bob"))
        assert SECRET in await bob.names()
        assert SECRET not in await ann.names()
        assert (await ann.error("tools/call", {"name": SECRET, "arguments": {}}))[
            "message"
        ] == f"Unknown tool: {SECRET}"
        assert (await bob.call(SECRET))["content"][0]["text"] == '{"subject": "bob"}'


async def test_the_list_of_tools_is_the_keys_own_and_an_operators_whole(upstream: Upstream) -> None:
    async with gate(upstream) as it:
        await two_who_were_listed(it)
        seen = {
            who: {tool["name"] for tool in (await it.client.get("/v1/tools", headers=it.by(who))).json()["data"]}
            for who in ("ann", "bob", "boss")
        }
        assert SECRET in seen["bob"] & seen["boss"]
        assert SECRET not in seen["ann"]
        assert (await it.client.get(f"/v1/tools/{SECRET}", headers=it.by("ann"))).status_code == 404
        assert (await it.client.get(f"/v1/tools/{SECRET}", headers=it.by("bob"))).status_code == 200


@pytest.mark.parametrize("path", COUNTED)
async def test_tokens_are_counted_of_the_tools_that_who_asks_is_listed(upstream: Upstream, path: str) -> None:
    async with gate(upstream) as it:
        await two_who_were_listed(it)
        tokens: dict[str, int] = {}
        for who in ("ann", "bob"):
            answer = await it.client.post(path, json={"model": "m", **COUNTED[path]}, headers=it.by(who))
            assert answer.status_code == 200, answer.text
            tokens[who] = answer.json()["input_tokens"]
        assert tokens["ann"] < tokens["bob"]
