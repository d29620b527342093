"""Resources of servers: one tool that reads them, links that say so, and what is for the user alone."""

import json
from typing import Any

import pytest

from callgate.tools.executor import Safety
from callgate.tools.kinds.mcp.results import FOR_USER
from callgate.tools.kinds.mcp.session import MAX_TTL_SECONDS, RelistPace
from tests.scripted_upstream import Call, Reply, Upstream
from tests.tools.kinds.mcp.test_elicitation import QUESTION, asking, decide, served
from tests.tools.servers.asking_mcp import AskingMcp, answered, elicitation, input_required

pytestmark = pytest.mark.anyio

GUIDE = {"name": "guide", "title": "The\u200b guide", "uri": "doc://guide"}
READ = Call("tracker_read_resource", {"uri": "doc://guide"}, id="call_read")


def read(params: dict[str, Any]) -> dict[str, Any]:
    if params.get("uri") == "doc://guide":
        contents = [{"uri": "doc://guide", "mimeType": "text/plain", "text": "Be brief."}]
        return {"resultType": "complete", "contents": contents, "ttlMs": 0, "cacheScope": "private"}
    link = {"type": "resource_link", "name": "guide", "uri": "doc://guide"}
    note = {"type": "text", "text": "for your eyes", "annotations": {"audience": ["user"]}}
    both = {"type": "text", "text": "for both", "annotations": {"audience": ["user", "assistant"]}}
    return {"resultType": "complete", "content": [link, note, both]}


def tools_of(upstream: Upstream) -> dict[str, dict[str, Any]]:
    tools = upstream.requests[-1].body.get("tools", [])
    return {each["function"]["name"]: each["function"] for each in tools}


async def test_one_tool_reads_the_resources_of_a_server_and_names_them(upstream: Upstream) -> None:
    server = AskingMcp(resources=[GUIDE], does=read)
    async with served(upstream, server) as client:
        upstream.script("m", [Reply(calls=[READ]), Reply(text="Done.")])
        await client.post("/v1/chat/completions", json=QUESTION)
        listed = (await client.get("/v1/tools")).json()["data"]
        [asked] = server.said("resources/read")
    assert "The guide (doc://guide)" in tools_of(upstream)["tracker_read_resource"]["description"]
    [tool] = [each for each in listed if each["name"] == "tracker_read_resource"]
    assert (tool["safety"], tool["origin"]) == (Safety.READ_ONLY, "tracker/read_resource")
    assert asked.headers["mcp-name"] == "doc://guide"
    assert upstream.requests[-1].body["messages"][-1]["content"] == "[doc://guide]\nBe brief."


@pytest.mark.parametrize(
    ("entry", "resources"),
    [({"resources": "off"}, [GUIDE]), ({"allowed_tools": ["create_*"]}, [GUIDE]), ({}, [])],
    ids=["switched off", "not allowed", "none there"],
)
async def test_there_is_no_such_tool_where_it_may_not_be(
    upstream: Upstream, entry: dict[str, Any], resources: list[dict[str, Any]]
) -> None:
    async with served(upstream, AskingMcp(resources=resources, does=read), entry=entry) as client:
        await client.post("/v1/chat/completions", json=QUESTION)
    assert "tracker_read_resource" not in tools_of(upstream)
    assert "[guide: doc://guide]" in upstream.requests[-1].body["messages"][-1]["content"]


async def test_under_hold_no_words_of_resources_are_shown_that_nobody_accepted(upstream: Upstream) -> None:
    async with served(upstream, AskingMcp(resources=[GUIDE], does=read), entry={"pins": "hold"}) as client:
        await client.post("/v1/chat/completions", json=QUESTION)
    assert "guide" not in tools_of(upstream)["tracker_read_resource"]["description"]


async def test_a_server_with_a_tool_of_that_name_keeps_it(upstream: Upstream) -> None:
    own = {"name": "read_resource", "description": "Its own.", "inputSchema": {"type": "object"}}
    async with served(upstream, AskingMcp(resources=[GUIDE], does=read, more_tools=[own])) as client:
        await client.post("/v1/chat/completions", json=QUESTION)
    tools = tools_of(upstream)
    assert tools["tracker_read_resource"]["description"] == "Its own."
    assert "doc://guide" in tools["tracker_callgate_read_resource"]["description"]


async def test_links_say_what_reads_them_and_what_is_for_the_user_stays_in_the_record(upstream: Upstream) -> None:
    async with served(upstream, AskingMcp(resources=[GUIDE], does=read), record={"content": True}) as client:
        answer = (await client.post("/v1/chat/completions", json=QUESTION)).json()
        run = (await client.get(f"/v1/runs/{answer['x_callgate']['run']}")).text
    told = upstream.requests[-1].body["messages"][-1]["content"]
    assert told == f"[guide: doc://guide; tracker_read_resource reads it]\nfor both\n{FOR_USER}"
    assert "for your eyes" not in json.dumps([each.body for each in upstream.requests])
    assert "for your eyes" in run


async def test_a_resource_that_asks_a_person_is_read_with_the_answer(upstream: Upstream) -> None:
    def asks(params: dict[str, Any]) -> dict[str, Any]:
        return read(params) if "inputResponses" in params else input_required(elicitation())

    async with served(upstream, AskingMcp(resources=[GUIDE], does=asks)) as client:
        upstream.script("m", [Reply(calls=[READ]), Reply(text="Done.")])
        async with asking(client) as question:
            await decide(client, question, "answer", content={"title": "ok"})
    assert "Be brief." in upstream.requests[-1].body["messages"][-1]["content"]


async def test_a_tool_has_its_title_and_a_server_its_introduction(upstream: Upstream) -> None:
    async with served(upstream, AskingMcp(does=lambda params: answered("done"))) as client:
        [tool] = [each for each in (await client.get("/v1/tools")).json()["data"] if each["source"] == "tracker"]
    assert tool["title"] == "Create an issue"


def test_a_list_that_is_fresh_for_long_is_not_asked_for_again_before_but_not_for_ever() -> None:
    pace = RelistPace()
    assert pace.after_list(5.0) == 5.0
    assert pace.after_list(100_000.0) == MAX_TTL_SECONDS
    assert pace.after_list(0.0) == 4.0, "its own pauses grow meanwhile"
