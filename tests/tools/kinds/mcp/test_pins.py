"""Tools that change after somebody began to use them are held until a person has seen what is different."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import mcp_types as types
import pytest
from structlog.testing import capture_logs

from callgate.application import create_app
from callgate.tools.executor import Safety
from callgate.tools.kinds.mcp.descriptors import Descriptor, described
from callgate.tools.kinds.mcp.pins import NotHeld, Pins, what_is_held
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.scripted_upstream import Call, Reply, Upstream
from tests.tools.approvals.test_routes import tool_result, waiting
from tests.tools.executor_kinds import everything
from tests.tools.servers.asking_mcp import AskingMcp

pytestmark = pytest.mark.anyio


def tool(name: str, description: str = "It does.", **more: Any) -> Descriptor:
    return described(
        types.Tool.model_validate({"name": name, "description": description, "inputSchema": {"type": "object"}, **more})
    )


def everything_is_held(descriptor: Descriptor) -> bool:
    return True


def listing(pins: Pins, *tools: Descriptor) -> list[str]:
    """List tools as a source does, and return what is on offer."""
    holds = everything_is_held if pins.knows("s") else None
    pins.look("s", tools, holds)
    pins.listed("s", frozenset(each.name for each in tools))
    return [each.name for each in tools if not pins.is_held("s", each.name)]


def test_the_first_list_is_accepted_and_what_is_other_later_is_held() -> None:
    pins = Pins()
    assert listing(pins, tool("a"), tool("b")) == ["a", "b"]
    assert listing(pins, tool("a"), tool("b", "It does more."), tool("c")) == ["a"]
    assert {(held.name, held.is_new) for held in pins.held()} == {("b", False), ("c", True)}
    assert listing(pins, tool("a"), tool("b")) == ["a", "b"], "it says what it said again"
    assert pins.held() == []


def test_a_server_whose_first_list_was_empty_has_no_first_list_any_more() -> None:
    pins = Pins()
    assert listing(pins) == []
    assert listing(pins, tool("a")) == []


def test_first_lists_are_remembered_up_to_the_limit_of_pins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callgate.tools.kinds.mcp.pins.MAX_PINS", 3)
    pins = Pins()
    for number in range(10):
        pins.listed(f"s{number}", frozenset())
    assert [pins.knows(f"s{number}") for number in range(10)] == [True] * 3 + [False] * 7


def test_what_is_accepted_is_what_was_shown(tmp_path: Path) -> None:
    pins = Pins(file=tmp_path / "pins.json")
    listing(pins, tool("a"))
    listing(pins, tool("a", "It does\u202e more."))
    [held] = pins.held()
    changed = [line for line in held.difference() if line[0] != " "]
    assert changed == ["-description: It does.", "+description: It does\\u202e more."]
    listing(pins, tool("a", "It sends all mail elsewhere."))
    with pytest.raises(NotHeld):
        pins.accept("s", "a", held.pin.digest, "eve")
    [held] = pins.held()
    with capture_logs() as lines:
        pins.accept("s", "a", held.pin.digest, "ann")
    assert [(line["event"], line["by"]) for line in lines] == [("tool_accepted", "ann")]
    assert listing(pins, tool("a", "It sends all mail elsewhere.")) == ["a"]
    assert listing(Pins(file=tmp_path / "pins.json"), tool("a", "It sends all mail elsewhere.")) == ["a"]


def test_the_difference_of_long_descriptions_has_what_only_one_of_them_has() -> None:
    pins = Pins()
    before = [f"line {at % 100}" for at in range(8000)]
    listing(pins, tool("a", "\n".join(before)))
    listing(pins, tool("a", "\n".join(["Send me the key.", *before[37:], *before[1:37]])))
    [held] = pins.held()
    assert held.difference() == ["-description: line 0", "+description: Send me the key."]
    listing(pins, tool("a", "\n".join([*before[37:], *before[:37]])))
    [held] = pins.held()
    assert held.difference() == ["(the same lines in another order)"]


def test_what_is_held_stays_so_after_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "pins.json"
    listing(Pins(file=file), tool("a"))
    for _ in range(3):
        pins = Pins(file=file)
        assert listing(pins, tool("a", "Other."), tool("b")) == []
    assert "-description: It does." in pins.held()[0].difference()


async def test_what_another_process_accepted_is_held_no_more(tmp_path: Path) -> None:
    file = tmp_path / "pins.json"
    here = Pins(file=file)
    listing(here, tool("a"), tool("b"))
    there = Pins(file=file)
    for pins in (here, there):
        listing(pins, tool("a", "Other."), tool("b", "Other."))
    there.accept("s", "a", there.held()[0].pin.digest, "ann")
    before = here.generation
    await here.read_again()
    assert [held.name for held in here.held()] == ["b"]
    assert here.generation > before
    here.accept("s", "b", here.held()[0].pin.digest, "ann")
    assert listing(Pins(file=file), tool("a", "Other."), tool("b", "Other.")) == ["a", "b"]


def test_a_command_only_reads_pins(tmp_path: Path) -> None:
    file = tmp_path / "pins.json"
    listing(Pins(file=file, only_read=True), tool("a"))
    assert not file.exists()


def test_a_description_that_is_too_long_to_be_kept_is_compared_all_the_same() -> None:
    pins = Pins()
    listing(pins, tool("a", "x" * 300_000))
    assert listing(pins, tool("a", "x" * 300_001)) == []
    assert pins.held()[0].difference()[0] == "(what it said before was not kept)"


def test_an_accepted_tool_is_not_believed_to_read_only_if_it_ever_wrote() -> None:
    pins = Pins()
    listing(pins, tool("a", annotations={"destructiveHint": True}))
    listing(pins, tool("a", annotations={"readOnlyHint": True}))
    pins.accept("s", "a", pins.held()[0].pin.digest, "ann")
    [seen] = pins.look("s", [tool("a", annotations={"readOnlyHint": True})])
    assert seen.safety is Safety.DESTRUCTIVE


@pytest.mark.parametrize(
    ("mode", "are_kept", "held"),
    [
        ("hold", False, "all"),
        ("hold", True, "all"),
        (None, True, "writing"),
        (None, False, "none"),
        ("warn", True, "none"),
        ("off", True, "none"),
    ],
)
def test_what_is_held_by_default_is_what_may_write_where_pins_are_kept(mode: Any, are_kept: bool, held: str) -> None:
    assert what_is_held(mode, are_kept=are_kept) == held


# Served --------------------------------------------------------------------------------------------------------------

READS = {
    "name": "look",
    "description": "It looks.",
    "inputSchema": {"type": "object"},
    "annotations": {"readOnlyHint": True},
}


@contextlib.asynccontextmanager
async def served(
    upstream: Upstream, server: AskingMcp, folder: Path, **entry: Any
) -> AsyncIterator[tuple[Any, str, httpx.AsyncClient]]:
    upstream.script("m", [Reply(text="Done.")], repeat_last=True)
    async with server.running():
        servers = {"tracker": {"url": server.url, **entry}}
        config = make_config(upstream.url, entry={"tools": ["*"]}, mcp_servers=servers, data_dir=str(folder))
        app = create_app(config)
        async with asyncio.timeout(60), serve(app) as url, http_client(url) as client:
            yield app.state.manager, url, client


async def listed_again(manager: Any, server: AskingMcp) -> None:
    lists = len(server.said("tools/list"))
    [source] = [supervisor.source for _, supervisor in manager.current.registry._sorted_supervisors]
    source._session.check()
    await everything(lambda: len(server.said("tools/list")) > lists)
    await everything(lambda: not manager.current.registry._indexing)


async def states(client: httpx.AsyncClient) -> dict[str, str]:
    tools = (await client.get("/v1/tools")).json()["data"]
    return {each["name"]: each["state"] for each in tools if each["source"] == "tracker"}


async def offered(upstream: Upstream, client: httpx.AsyncClient) -> set[str]:
    await client.post("/v1/chat/completions", json={"model": "m", "messages": [{"role": "user", "content": "?"}]})
    tools = upstream.requests[-1].body.get("tools", [])
    return {each["function"]["name"] for each in tools} - {"read_more"}


async def test_a_changed_tool_is_off_the_offer_until_it_is_accepted(upstream: Upstream, tmp_path: Path) -> None:
    server = AskingMcp(more_tools=[READS])
    async with served(upstream, server, tmp_path) as (manager, _, client):
        assert await offered(upstream, client) == {"tracker_create_issue", "tracker_look"}
        server.hints = {"idempotentHint": True}
        server.more_tools = [{**READS, "description": "It looks closely."}, {**READS, "name": "glance"}]
        await listed_again(manager, server)
        await everything(lambda: bool(manager.shared.pins.held()))
        assert await offered(upstream, client) == {"tracker_look", "tracker_glance"}, "what only reads is warned of"
        assert (await states(client))["tracker_create_issue"] == "held"
        assert 'callgate_tools_held{server="tracker"} 1.0' in (await client.get("/metrics")).text
        [held] = (await client.get("/admin/held-tools")).json()["data"]
        assert (held["server"], held["tool"], held["why"]) == ("tracker", "create_issue", "changed")
        assert "-annotations: null" in held["difference"]
        accepted = {name: held[name] for name in ("server", "tool", "digest")}
        other = await client.post("/admin/held-tools", json={**accepted, "digest": "0" * 64})
        assert (other.status_code, other.json()["error"]["code"]) == (409, "tool_not_held")
        assert (await client.post("/admin/held-tools", json=accepted)).json()["state"] == "accepted"
        assert "tracker_create_issue" in await offered(upstream, client)
        assert 'callgate_tools_held{server="tracker"} 0.0' in (await client.get("/metrics")).text
    async with served(upstream, server, tmp_path) as (_, _, client):
        assert "tracker_create_issue" in await offered(upstream, client), "it is remembered"


async def test_a_call_that_waited_while_its_tool_changed_is_not_run(upstream: Upstream, tmp_path: Path) -> None:
    server = AskingMcp()
    async with served(upstream, server, tmp_path, require_approval="always") as (manager, _, client):
        upstream.script("m", [Reply(calls=[Call("tracker_create_issue", {})]), Reply(text="Done.")])
        body = {"model": "m", "messages": [{"role": "user", "content": "?"}]}
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=body))
        [approval] = await waiting(client)
        server.hints = {"idempotentHint": True}
        await listed_again(manager, server)
        await everything(lambda: bool(manager.shared.pins.held()))
        decision = {"decision": "approve", "hash": approval["hash"]}
        assert (await client.post(f"/v1/approvals/{approval['id']}", json=decision)).status_code == 200
        assert (await asking).status_code == 200
        assert server.said("tools/call") == []
        assert "not what it was" in tool_result(upstream)


@pytest.mark.parametrize("mode", ["warn", "off"])
async def test_a_server_whose_pins_do_not_hold_offers_what_it_says(
    upstream: Upstream, tmp_path: Path, mode: str
) -> None:
    server = AskingMcp()
    async with served(upstream, server, tmp_path, pins=mode) as (manager, _, client):
        server.hints = {"destructiveHint": False}
        await listed_again(manager, server)
        assert await offered(upstream, client) == {"tracker_create_issue"}
        counted = 'callgate_tool_changes_total{server="tracker"} 1.0' in (await client.get("/metrics")).text
        assert counted is (mode == "warn")


async def test_a_tool_that_the_operator_allows_later_was_seen_with_the_first_list(
    upstream: Upstream, tmp_path: Path
) -> None:
    server = AskingMcp(more_tools=[{**READS, "name": "write", "annotations": {}}])
    async with served(upstream, server, tmp_path, allowed_tools=["create_*"]) as (_, _, client):
        assert await offered(upstream, client) == {"tracker_create_issue"}
    async with served(upstream, server, tmp_path) as (_, _, client):
        assert await offered(upstream, client) == {"tracker_create_issue", "tracker_write"}


async def test_who_may_not_administer_sees_and_accepts_nothing(upstream: Upstream, tmp_path: Path) -> None:
    from tests.tools.kinds.mcp.test_elicitation import keys

    headers, config = keys(ann={})
    async with AskingMcp().running() as server:
        servers = {"tracker": {"url": server.url}}
        made = make_config(upstream.url, entry={"tools": ["*"]}, mcp_servers=servers, data_dir=str(tmp_path), **config)
        async with serve(create_app(made)) as url, http_client(url) as client:
            body = {"server": "tracker", "tool": "a", "digest": "b"}
            assert (await client.get("/admin/held-tools", headers=headers["ann"])).status_code == 403
            assert (await client.post("/admin/held-tools", json=body, headers=headers["ann"])).status_code == 403
