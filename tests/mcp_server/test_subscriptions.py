"""`subscriptions/listen`: a client hears when its own list has changed, and no other."""

import asyncio
import contextlib
from typing import Any

import pytest

from callgate.access.keys import mint_key
from callgate.application import create_app
from callgate.config.schema.whole import Config
from tests.harness.clients import http_client
from tests.harness.configs import config_dict
from tests.harness.server import serve
from tests.mcp_server.mcp_client import McpClient

pytestmark = pytest.mark.anyio

NOWHERE = "http://127.0.0.1:9"
ALICE, ALICE_HASH = mint_key()
BOB, BOB_HASH = mint_key()
TOOLS = {"notifications": {"toolsListChanged": True}}
ID = "io.modelcontextprotocol/subscriptionId"


def config_of(*tools: str, keys: Any = None) -> Config:
    both = [{"name": "alice", "hash": ALICE_HASH}, {"name": "bob", "hash": BOB_HASH, "tools": ["add"]}]
    return Config.model_validate(config_dict(NOWHERE, tools=tools, auth="keys", keys=keys or both))


async def test_only_those_hear_of_a_change_whose_list_has_changed() -> None:
    app = create_app(config_of("add"))
    async with serve(app) as url, http_client(url) as http, contextlib.AsyncExitStack() as stack:
        alice = McpClient(http, ALICE)
        bob = McpClient(http, BOB)
        to_alice = await stack.enter_async_context(alice.streamed("subscriptions/listen", TOOLS))
        to_bob = await stack.enter_async_context(bob.streamed("subscriptions/listen", TOOLS))
        acknowledged = [await anext(to_alice), await anext(to_bob)]
        await app.state.manager.apply(config_of("add", "echo"))
        changed = await anext(to_alice)
        app.state.manager.begin_draining()
        ends = [[message async for message in messages] for messages in (to_alice, to_bob)]
    for message in acknowledged:
        assert message["method"] == "notifications/subscriptions/acknowledged"
        assert message["params"] == {"notifications": {"toolsListChanged": True}, "_meta": {ID: 1}}
    assert (changed["method"], changed["params"]) == ("notifications/tools/list_changed", {"_meta": {ID: 1}})
    assert [[message["result"] for message in end] for end in ends] == [
        [{"resultType": "complete", "_meta": {ID: 1}}],
        [{"resultType": "complete", "_meta": {ID: 1}}],
    ]


async def test_what_was_not_wanted_is_not_sent() -> None:
    app = create_app(config_of("add"))
    async with serve(app) as url, http_client(url) as http:
        prompts = {"notifications": {"promptsListChanged": True}}
        async with McpClient(http, ALICE).streamed("subscriptions/listen", prompts) as messages:
            first = await anext(messages)
            await app.state.manager.apply(config_of("add", "echo"))
            app.state.manager.begin_draining()
            others = [message async for message in messages]
    assert first["params"]["notifications"] == {}
    assert [message.get("method") for message in others] == [None]


async def test_one_key_has_twenty_and_those_who_leave_make_room() -> None:
    app = create_app(config_of("add"))
    async with serve(app) as url, http_client(url) as http:
        alice = McpClient(http, ALICE)
        async with contextlib.AsyncExitStack() as stack:
            streams = []  # one that nobody holds is closed
            for _ in range(20):
                streams.append(await stack.enter_async_context(alice.streamed("subscriptions/listen", TOOLS)))
                await anext(streams[-1])
            refused = await alice.post("subscriptions/listen", TOOLS)
            bobs = await stack.enter_async_context(McpClient(http, BOB).streamed("subscriptions/listen", TOOLS))
            await anext(bobs)
            listed = await alice.names()  # subscriptions take no place among the running requests
        async with asyncio.timeout(30):
            while True:
                after = await alice.post("tools/list")
                answer = alice.streamed("subscriptions/listen", TOOLS)
                with contextlib.suppress(AssertionError):
                    async with answer as messages:
                        await anext(messages)
                        break
                await asyncio.sleep(0.01)
    assert (refused.status_code, refused.json()["error"]["data"]["error_code"]) == (429, "too_many_subscriptions")
    assert listed == ["add", "read_more"]
    assert after.status_code == 200


async def test_a_key_that_is_gone_hears_no_more() -> None:
    app = create_app(config_of("add"))
    async with serve(app) as url, http_client(url) as http:
        messages = McpClient(http, BOB).streamed("subscriptions/listen", TOOLS)
        async with messages as heard:
            await anext(heard)
            await app.state.manager.apply(config_of("add", keys=[{"name": "alice", "hash": ALICE_HASH}]))
            async with asyncio.timeout(60):  # it is told in a moment, or never
                last = [message async for message in heard][-1]
    assert last["error"]["data"]["status"] == 401


async def test_a_subscription_needs_a_client_that_takes_streams() -> None:
    async with serve(create_app(config_of("add"))) as url, http_client(url) as http:
        answer = await McpClient(http, ALICE).post("subscriptions/listen", TOOLS, accept="application/json")
        older = await McpClient(http, ALICE).older().post("subscriptions/listen", TOOLS)
    assert answer.status_code == 406
    assert older.json()["error"]["code"] == -32601
