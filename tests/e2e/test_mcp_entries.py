"""Entries of `tools` about servers, on all three APIs: they choose among the tools of the operator's servers, and name no other."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from callgate.api.mcp_entries import without_stored_credentials
from callgate.application import create_app
from callgate.chat.legacy import without_legacy_fields
from callgate.conversation.ports import ModelRequest
from callgate.models.translated.responses_request import body_of as question_of
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = pytest.mark.anyio

BOTH = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
LANES = pytest.mark.parametrize(
    "lane",
    [
        {},
        {"lane": "litellm"},
        {"lane": "responses"},
        {"provider": "anthropic", "lane": "translated"},
    ],
    ids=["direct", "litellm", "responses", "translated"],
)
ADD, MAIL = Call("add", {"a": 1, "b": 2}), Call("send_mail", {"to": "a@b", "text": "x"})
ALL = ("add", "echo", "send_mail")
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}


def entry(**more: Any) -> dict[str, Any]:
    return {"type": "mcp", "server_label": "callgate", **more}


def body_of(api: str, allowed: Any, **more: Any) -> dict[str, Any]:
    """A request that chooses among our tools."""
    if api == "messages":
        server = {"type": "url", "url": "callgate:callgate", "name": "callgate"}
        chosen: dict[str, Any] = {"mcp_servers": [{**server, "tool_configuration": {"allowed_tools": allowed}}]}
        return {"model": "m", "messages": [{"role": "user", "content": "go"}], "max_tokens": 100, **chosen, **more}
    tools = [entry(allowed_tools=allowed)]
    if api == "responses":
        return {"model": "m", "input": "go", "tools": tools, **more}
    return {"model": "m", "messages": [{"role": "user", "content": "go"}], "tools": tools, **more}


def offered(upstream: Upstream) -> list[str]:
    return [tool["function"]["name"] for tool in upstream.requests[-1].body.get("tools", ())]


async def posted(http: httpx.AsyncClient, api: str, body: Mapping[str, Any]) -> httpx.Response:
    return await http.post(PATHS[api], json=body)


@pytest.mark.parametrize("api", PATHS)
@pytest.mark.parametrize(
    ("allowed", "names"),
    [
        (None, list(ALL)),
        (["add"], ["add"]),
        ({"tool_names": ["add", "send_mail"]}, ["add", "send_mail"]),
        ({"read_only": True}, ["add", "echo"]),
        ({"read_only": False}, ["send_mail"]),
        ({"read_only": True, "tool_names": ["add", "send_mail"]}, ["add"]),
        ({}, list(ALL)),
        (["no.such,add"], []),
        ([], []),
    ],
    ids=str,
)
async def test_a_filter_offers_what_it_says_and_nothing_else(
    upstream: Upstream, api: str, allowed: Any, names: list[str]
) -> None:
    upstream.script("m", [Reply(text="ok")])
    config = make_config(upstream.url, tools=ALL)
    async with serve(create_app(config)) as url, http_client(url) as http:
        answer = await posted(http, api, body_of(api, allowed))
    assert answer.status_code == 200, answer.text
    assert [name for name in offered(upstream) if name != "read_more"] == names
    assert ("read_more" in offered(upstream)) == bool(names)


@pytest.mark.parametrize("api", PATHS)
@pytest.mark.parametrize(
    "allowed", [{"readonly": True}, {"read_only": "yes"}, {"tool_names": "add"}, {"tool_names": [7]}, "add", 7], ids=str
)
async def test_a_filter_that_is_not_understood_is_refused(upstream: Upstream, api: str, allowed: Any) -> None:
    config = make_config(upstream.url, tools=ALL)
    async with serve(create_app(config)) as url, http_client(url) as http:
        answer = await posted(http, api, body_of(api, allowed))
    assert answer.status_code == 400, answer.text
    assert not upstream.requests


# Chat Completions ---------------------------------------------------------------------------------------------------------


@LANES
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize(
    "tool",
    [
        entry(server_url="https://attacker.example/mcp", require_approval="never"),
        {"type": "mcp", "server_label": "elsewhere"},
        {"type": "mcp"},
        entry(connector_id="connector_gmail"),
        {"type": "url", "url": "https://attacker.example/mcp", "name": "x"},
        {"type": "mcp_toolset", "mcp_server_name": "x"},
        {"type": "namespace", "name": "n", "tools": [{"type": "url", "name": "x", "url": "https://attacker.example"}]},
        {"type": "namespace", "name": "n", "tools": [{"type": "mcp", "name": "x", "server_url": "https://a.example"}]},
    ],
    ids=["mcp", "label", "nothing", "connector", "url", "toolset", "nested url", "nested mcp"],
)
async def test_no_address_of_a_chat_reaches_a_provider(
    upstream: Upstream, lane: dict[str, Any], tool: dict[str, Any], stream: bool
) -> None:
    for tools in (ALL, ()):
        config = make_config(upstream.url, tools=tools, **lane)
        async with serve(create_app(config)) as url, http_client(url) as http:
            answer = await posted(http, "chat", body_of("chat", None, tools=[tool], stream=stream))
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"].startswith("tools[0]")
    assert not upstream.requests


async def test_an_entry_without_tools_of_ours_on_offer_does_not_travel_on(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="ok")])
    async with serve(create_app(make_config(upstream.url))) as url, http_client(url) as http:
        answer = await posted(http, "chat", body_of("chat", None))
    assert answer.status_code == 200, answer.text
    assert "tools" not in upstream.requests[0].body


@BOTH
async def test_a_chats_entry_asks_the_operator_first_and_excludes_the_rest(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(calls=[ADD, MAIL]), Reply(text="done")])
    config = make_config(upstream.url, tools=ALL)
    async with serve(create_app(config)) as url, http_client(url) as http, http_client(url) as operator:
        tools = [entry(allowed_tools=["add"], require_approval="always")]
        asking = asyncio.create_task(posted(http, "chat", body_of("chat", None, tools=tools, stream=stream)))
        async with asyncio.timeout(30):
            while not (waiting := (await operator.get("/v1/approvals")).json()["data"]):
                pass
        assert [each["tool"] for each in waiting] == ["add"]
        assert len(upstream.requests) == 1, "nothing runs before somebody has decided"
        await operator.post(f"/v1/approvals/{waiting[0]['id']}", json={"decision": "deny", "reason": "Not today."})
        assert (await asking).status_code == 200
    results = [each["content"] for each in upstream.requests[-1].body["messages"] if each["role"] == "tool"]
    assert "Not today." in results[0]
    assert "unknown_tool" in results[1]


@pytest.mark.parametrize(
    ("wish", "asks"),
    [
        ({"never": {"read_only": True}}, ["send_mail"]),
        ({"always": {"read_only": False}}, ["send_mail"]),
        ({"always": {"tool_names": ["add"]}}, ["add"]),
        ({"never": {"tool_names": ["add"]}}, ["send_mail"]),
    ],
    ids=str,
)
@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_a_filter_of_approvals_counts_for_reading_too(
    upstream: Upstream, api: str, wish: Any, asks: list[str]
) -> None:
    upstream.script("m", [Reply(calls=[ADD, MAIL]), Reply(text="done")])
    config = make_config(upstream.url, tools=ALL, approvals={"timeout_seconds": 1})
    async with serve(create_app(config)) as url, http_client(url) as http:
        answer = (await posted(http, api, body_of(api, None, tools=[entry(require_approval=wish)]))).json()
    if api == "responses":
        assert [item["name"] for item in answer["output"] if item["type"] == "mcp_approval_request"] == asks
        return
    results = [each["content"] for each in upstream.requests[-1].body["messages"] if each["role"] == "tool"]
    waited = [name for name, result in zip(("add", "send_mail"), results, strict=True) if "Not run" in result]
    assert waited == asks


async def test_an_entry_of_a_chat_and_the_header_are_not_given_together(upstream: Upstream) -> None:
    config = make_config(upstream.url, tools=ALL)
    async with serve(create_app(config)) as url, http_client(url, headers={"x-callgate-tools": "add"}) as http:
        answer = await posted(http, "chat", body_of("chat", None))
    assert answer.status_code == 400
    assert not upstream.requests


# Credentials ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("name", ["authorization", "headers"])
async def test_credentials_beside_a_label_are_refused_and_neither_echoed_nor_stored(
    upstream: Upstream, tmp_path: Path, api: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    upstream.script("m", lambda request: Reply(text="ok"))
    config = make_config(upstream.url, tools=ALL, data_dir=str(tmp_path), record={"runs": "all", "content": "on"})
    secret = {"authorization": "tok-s3cr3t-1234", "headers": {"X-Api": "hdr-s3cr3t-1234"}}[name]
    async with serve(create_app(config)) as url, http_client(url, headers={"idempotency-key": "k-1"}) as http:
        answer = await posted(http, api, body_of(api, None, tools=[entry(**{name: secret})]))
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == f"tools[0].{name}"
        plain = await posted(http, api, body_of(api, None, tools=[entry(**{name: None})]))
        assert plain.status_code in (200, 400, 409), plain.text
    texts = [answer.text, plain.text, *stored_in(tmp_path)]
    texts += [capsys.readouterr().out, json.dumps([request.body for request in upstream.requests])]
    assert not [text for text in texts if "s3cr3t" in text]


def stored_in(folder: Path) -> list[str]:
    return [file.read_bytes().decode(errors="replace") for file in folder.rglob("*") if file.is_file()]


# Names with dots -----------------------------------------------------------------------------------------------------------


def clients_tool(api: str, name: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    if api == "messages":
        return {"name": name, "input_schema": schema}
    if api == "responses":
        return {"type": "function", "name": name, "parameters": schema}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def request_with(api: str, tools: list[Any], history: list[Any], **more: Any) -> dict[str, Any]:
    name = "input" if api == "responses" else "messages"
    needed = {"max_tokens": 100} if api == "messages" else {}
    return {"model": "m", name: [{"role": "user", "content": "go"}, *history], "tools": tools, **needed, **more}


def handed(api: str, answer: dict[str, Any]) -> tuple[str, str, list[Any]]:
    """The name and id of the call that was handed out, and the history that answers it."""
    if api == "messages":
        [call] = [block for block in answer["content"] if block["type"] == "tool_use"]
        result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call["id"], "content": "seen"}]}
        return call["name"], call["id"], [{"role": "assistant", "content": answer["content"]}, result]
    if api == "responses":
        [call] = [item for item in answer["output"] if item["type"] == "function_call"]
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "seen"}
        return call["name"], call["call_id"], [*answer["output"], result]
    message = answer["choices"][0]["message"]
    [call] = message["tool_calls"]
    result = {"role": "tool", "tool_call_id": call["id"], "content": "seen"}
    return call["function"]["name"], call["id"], [message, result]


@pytest.mark.parametrize("api", PATHS)
@pytest.mark.parametrize("ours", [(), ALL], ids=["alone", "beside ours"])
async def test_a_clients_name_with_dots_is_made_legal_and_its_own_again(
    upstream: Upstream, api: str, ours: tuple[str, ...]
) -> None:
    legal = "fs_read"

    def answer(request: Any) -> Reply:
        names = [tool["function"]["name"] for tool in request.body["tools"]]
        name = next(name for name in names if name.startswith(legal))
        assert all("." not in each for each in names)
        called = [call["function"]["name"] for it in request.body["messages"] for call in it.get("tool_calls") or ()]
        assert called in ([], [name])
        return Reply(text="done") if called else Reply(calls=[Call(name, {"path": "/a"})])

    upstream.script("m", answer)
    config = make_config(upstream.url, tools=ours)
    tools = [clients_tool(api, "fs.read"), clients_tool(api, "plain")]
    async with serve(create_app(config)) as url, http_client(url) as http:
        first = await posted(http, api, request_with(api, tools, []))
        assert first.status_code == 200, first.text
        name, _, history = handed(api, first.json())
        assert name == "fs.read"
        second = await posted(http, api, request_with(api, tools, history))
        assert second.status_code == 200, second.text
        assert "done" in second.text
        streamed = await posted(http, api, request_with(api, tools, [], stream=True))
    assert '"fs.read"' in streamed.text
    assert legal + "_" not in streamed.text.replace('"x_callgate"', "\0").partition("\0")[0]


async def test_a_demanded_name_with_dots_is_the_legal_one(upstream: Upstream) -> None:
    upstream.script("m", lambda request: Reply(calls=[Call(request.body["tool_choice"]["function"]["name"], {})]))
    wishes = {
        "chat": {"type": "function", "function": {"name": "fs.read"}},
        "responses": {"type": "function", "name": "fs.read"},
        "messages": {"type": "tool", "name": "fs.read"},
    }
    async with serve(create_app(make_config(upstream.url))) as url, http_client(url) as http:
        for api, wish in wishes.items():
            body = request_with(api, [clients_tool(api, "fs.read")], [], tool_choice=wish)
            answer = await posted(http, api, body)
            assert answer.status_code == 200, answer.text
            assert handed(api, answer.json())[0] == "fs.read"


ELSEWHERE = "http://evil.example"
INNER = {"name": "f", "parameters": {"type": "object"}, "server_url": ELSEWHERE, "server_label": "x", "type": "mcp"}
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
SMUGGLED: dict[str, dict[str, Any]] = {
    "another type": {"tools": [{"type": "remote_mcp", "server_label": "x", "server_url": ELSEWHERE}]},
    "another case": {"tools": [{"type": "MCP", "server_label": "x", "server_url": ELSEWHERE}]},
    "a connector": {"tools": [{"type": "MCP", "server_label": "x", "connector_id": ELSEWHERE}]},
    "beside a function": {"tools": [{**FUNCTION, "server_url": ELSEWHERE}]},
    "a field of the body": {"mcp_servers": [{"type": "url", "url": ELSEWHERE, "name": "x"}]},
    "the same beside tools": {"tools": [FUNCTION], "mcp_servers": [{"type": "url", "url": ELSEWHERE, "name": "x"}]},
}
FLATTENED: dict[str, dict[str, Any]] = {
    "a function": {"tools": [{"type": "function", "function": INNER}]},
    "a legacy function": {"functions": [{**INNER, "vector_store_ids": ["vs_1"]}]},
    "a custom tool": {"tools": [{"type": "custom", "custom": {**INNER, "format": {"type": "text"}}}]},
    "a demanded function": {"tools": [FUNCTION], "tool_choice": {"type": "function", "function": INNER}},
    "an allowed entry": {
        "tools": [FUNCTION],
        "tool_choice": {
            "type": "allowed_tools",
            "allowed_tools": {
                "mode": "auto",
                "tools": [FUNCTION, {"type": "mcp", "server_label": "x", "server_url": ELSEWHERE}],
            },
        },
    },
}


@pytest.mark.leaves("litellm", why="litellm keeps its thread for logging")
@LANES
@pytest.mark.parametrize("ours", [(), ALL], ids=["alone", "beside ours"])
@pytest.mark.parametrize("how", SMUGGLED)
async def test_no_address_reaches_a_provider_under_another_word(
    upstream: Upstream, lane: dict[str, Any], ours: tuple[str, ...], how: str
) -> None:
    upstream.script("m", lambda request: Reply(text="ok"), lax=True)
    base = upstream.root if lane.get("provider") == "anthropic" else upstream.url
    async with serve(create_app(make_config(base, tools=ours, **lane))) as url, http_client(url) as http:
        await posted(http, "chat", {"model": "m", "messages": [{"role": "user", "content": "go"}], **SMUGGLED[how]})
    sent = json.dumps([request.body for request in upstream.requests])
    assert ELSEWHERE not in sent
    upstream.problems.clear()


@pytest.mark.parametrize("how", FLATTENED)
def test_a_function_stays_one_where_its_fields_go_up_a_level(how: str) -> None:
    asked = {"messages": [{"role": "user", "content": "go"}], **FLATTENED[how]}
    fields = without_legacy_fields({name: msgspec.Raw(msgspec.json.encode(value)) for name, value in asked.items()})
    raw = [msgspec.Raw(msgspec.json.encode(tool)) for tool in msgspec.json.decode(fields["tools"])]
    ask = ModelRequest(messages=[{"role": "user", "content": "go"}], tools=raw, tool_choice=fields.get("tool_choice"))
    body = question_of(ask, "m", "it", {})
    assert {tool["type"] for tool in body["tools"]} <= {"function", "custom"}
    assert not any(word in json.dumps(body) for word in (ELSEWHERE, "vs_1", "mcp"))


def test_credentials_are_not_stored_however_they_are_written() -> None:
    body = rb'{"model":"m","tools":[{"type":"\u006dcp","server_label":"callgate","authoriz\u0061tion":"hidden"}]}'
    assert b"hidden" not in without_stored_credentials(body)
    assert b"server_label" in without_stored_credentials(body)
