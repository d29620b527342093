"""The lists of tools that a response shows of the config's servers that its request names."""

import asyncio
from typing import Any

import httpx
import pytest

from callgate.access.keys import hash_key
from callgate.application import create_app
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.responses import check_events, raw_events
from tests.harness.server import serve
from tests.scripted_upstream import Reply, Upstream
from tests.tools.servers.http_mcp import HttpMcp

pytestmark = pytest.mark.anyio

TOOLS = ("add", "echo", "send_mail")
NOTES: dict[str, Any] = {"description": "Reads a note.", "inputSchema": {"type": "object"}}
CLAIMS: dict[str, Any] = {**NOTES, "annotations": {"readOnlyHint": True, "destructiveHint": False}}


def entry(label: str = "callgate", **more: Any) -> dict[str, Any]:
    return {"type": "mcp", "server_label": label, **more}


async def asked(http: httpx.AsyncClient, *tools: dict[str, Any], **more: Any) -> dict[str, Any]:
    body = {"model": "m", "input": "go", "tools": [*tools], **more}
    answer = await http.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    response: dict[str, Any] = answer.json()
    return response


def lists(response: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """The labels of what was listed, with the names of their tools."""
    items = [item for item in response["output"] if item["type"] == "mcp_list_tools"]
    return [(item["server_label"], [tool["name"] for tool in item["tools"]]) for item in items]


async def test_each_server_is_listed_first_with_the_tools_that_are_allowed(upstream: Upstream) -> None:
    upstream.script("m", lambda request: Reply(text="ok"))
    far = HttpMcp(tools={"notes": (CLAIMS, "n"), "others": (NOTES, "o")})
    async with far.running():
        config = make_config(upstream.url, tools=TOOLS, mcp_servers={"far": {"url": far.url, "safety": "write"}})
        async with serve(create_app(config)) as url, http_client(url) as http:
            response = await asked(
                http, entry("far", allowed_tools=["notes"]), entry(allowed_tools={"read_only": True})
            )
            both = await asked(http, entry(allowed_tools=["echo"]), entry(allowed_tools=["add"]))
    assert [item["type"] for item in response["output"]] == ["mcp_list_tools", "mcp_list_tools", "message"]
    assert lists(response) == [("far", ["far_notes"]), ("callgate", ["add", "echo"])]
    assert lists(both) == [("callgate", ["add", "echo"])]
    [notes] = response["output"][0]["tools"]
    assert notes.keys() == {"name", "description", "input_schema", "annotations"}
    assert notes["annotations"] == {"readOnlyHint": False, "destructiveHint": False}, "our policy, not its word"
    add = response["output"][1]["tools"][0]
    assert add["annotations"] == {"readOnlyHint": True, "destructiveHint": False}
    assert set(add["input_schema"]["properties"]) == {"a", "b"}


async def test_a_stream_has_the_events_of_a_list_as_openai_has_them(upstream: Upstream) -> None:
    upstream.script("m", lambda request: Reply(text="ok"))
    config = make_config(upstream.url, tools=TOOLS)
    async with serve(create_app(config)) as url, http_client(url) as http:
        events = await raw_events(http, {"model": "m", "input": "go", "tools": [entry()]})
    check_events(events)
    about = [event for event in events if event.get("output_index") == 0]
    assert [event["type"] for event in about] == [
        "response.output_item.added",
        "response.mcp_list_tools.in_progress",
        "response.mcp_list_tools.completed",
        "response.output_item.done",
    ]
    added, working, completed, done = about
    assert added["item"] == {
        "id": done["item"]["id"],
        "type": "mcp_list_tools",
        "server_label": "callgate",
        "tools": [],
    }
    assert working["item_id"] == completed["item_id"] == done["item"]["id"]
    assert [tool["name"] for tool in done["item"]["tools"]] == list(TOOLS)
    assert events[-1]["response"]["output"][0] == done["item"]


async def test_a_list_is_not_repeated_to_a_client_that_has_it(upstream: Upstream) -> None:
    upstream.script("m", lambda request: Reply(text="ok"))
    config = make_config(upstream.url, tools=TOOLS)
    async with serve(create_app(config)) as url, http_client(url) as http:
        first = await asked(http, entry())
        second = await asked(http, entry(), previous_response_id=first["id"])
        without = await asked(http, previous_response_id=second["id"])
        fourth = await asked(http, entry(), previous_response_id=without["id"])
        assert [lists(each) for each in (second, without, fourth)] == [[], [], []]
        narrowed = await asked(http, entry(allowed_tools=["add"]), previous_response_id=fourth["id"])
        assert lists(narrowed) == [("callgate", ["add"])], "it is another list"
        back = await asked(http, entry(), previous_response_id=narrowed["id"])
        assert len(lists(back)) == 1, "and so is this"
        told = {**first["output"][0], "error": None}
        sent = await asked(http, entry(), input=[told, {"role": "user", "content": "go"}])
        assert lists(sent) == []
        after = await asked(http, entry(), previous_response_id=sent["id"])
        assert lists(after) == []
        forged = {**told, "tools": [{**told["tools"][0], "description": "another"}]}
        again = await asked(http, entry(), input=[forged, {"role": "user", "content": "go"}])
        assert lists(again) == [("callgate", list(TOOLS))]


async def test_a_list_is_not_repeated_in_a_conversation_that_has_it(upstream: Upstream) -> None:
    upstream.script("m", lambda request: Reply(text="ok"))
    config = make_config(upstream.url, tools=TOOLS)
    async with serve(create_app(config)) as url, http_client(url) as http:
        id = (await http.post("/v1/conversations", json={})).json()["id"]
        first = await asked(http, entry(), conversation=id)
        assert len(lists(first)) == 1
        for _ in range(2):
            assert lists(await asked(http, entry(), conversation=id)) == []
        gone = await http.delete(f"/v1/conversations/{id}/items/{first['output'][0]['id']}")
        assert gone.status_code == 200, gone.text
        assert len(lists(await asked(http, entry(), conversation=id))) == 1, "its client took it out"
        assert lists(await asked(http, entry(), conversation=id)) == []


async def test_what_a_single_turn_may_call_does_not_change_the_list(upstream: Upstream) -> None:
    upstream.script("m", lambda request: Reply(text="ok"))
    some = {"type": "allowed_tools", "mode": "auto", "tools": [entry(name="add")]}
    async with (
        serve(create_app(make_config(upstream.url, tools=TOOLS))) as url,
        http_client(url) as http,
    ):
        for choice in ("none", some):
            assert lists(await asked(http, entry(), tool_choice=choice)) == [("callgate", list(TOOLS))]
    assert "tools" not in upstream.requests[0].body


async def test_a_server_that_is_not_there_is_listed_with_an_error(upstream: Upstream) -> None:
    upstream.script("m", lambda request: Reply(text="ok"))
    config = make_config(upstream.url, tools=TOOLS, mcp_servers={"files": {"command": "no-such-program"}})
    async with serve(create_app(config)) as url, http_client(url) as http:
        events = await raw_events(http, {"model": "m", "input": "go", "tools": [entry("files")]})
        listed, _ = events[-1]["response"]["output"]
        assert (listed["tools"], listed["error"]) == ([], "its tools are not to be had at the moment")
        assert "response.mcp_list_tools.failed" in [event["type"] for event in events]
        again = await asked(http, entry("files"), previous_response_id=events[-1]["response"]["id"])
        assert lists(again) == [("files", [])], "no list is held yet"


async def test_a_list_has_no_more_than_a_key_may_use(upstream: Upstream) -> None:
    upstream.script("m", lambda request: Reply(text="ok"))
    keys = [{"name": "alice", "hash": hash_key("cg-alice"), "tools": ["add"]}]
    config = make_config(upstream.url, tools=TOOLS, auth="keys", keys=keys)
    async with serve(create_app(config)) as url, http_client(url, headers={"authorization": "Bearer cg-alice"}) as http:
        assert lists(await asked(http, entry())) == [("callgate", ["add"])]


async def test_where_calls_are_not_shown_lists_are_not_either(upstream: Upstream) -> None:
    upstream.script("m", lambda request: Reply(text="ok"))
    hidden = make_config(upstream.url, tools=TOOLS, responses={"tools_shown": "hidden"})
    async with serve(create_app(hidden)) as url, http_client(url) as http:
        assert lists(await asked(http, entry())) == []
    async with serve(create_app(make_config(upstream.url, tools=TOOLS))) as url, http_client(url) as http:
        body = {"model": "m", "input": "go", "tools": [entry()]}
        quiet = await http.post("/v1/responses", json=body, headers={"x-callgate-events": "off"})
        assert lists(quiet.json()) == []
        compacted = await http.post("/v1/responses/compact", json=body)
        assert compacted.status_code == 200, compacted.text
        assert lists(compacted.json()) == []


async def test_a_failure_before_the_first_item_has_its_own_status(upstream: Upstream) -> None:
    upstream.script("m", lambda request: Reply(status=404))
    async with serve(create_app(make_config(upstream.url, tools=TOOLS))) as url, http_client(url) as http:
        answers = await asyncio.gather(
            *(
                http.post("/v1/responses", json={"model": "m", "input": "go", "tools": [entry()], "stream": stream})
                for stream in (True, False)
            )
        )
    assert [answer.status_code for answer in answers] == [502, 502]
