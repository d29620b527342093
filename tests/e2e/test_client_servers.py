"""MCP servers that requests name by their addresses, on all three APIs: called for keys that may, and for that request alone."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from callgate.access.keys import hash_key
from callgate.application import create_app
from callgate.config.schema.whole import Config
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.scripted_upstream import Call, Reply, Upstream
from tests.tools.servers.http_mcp import HttpMcp

pytestmark = pytest.mark.anyio

KEY = "cg-client-servers-0001"
APIS = ("chat", "responses", "messages")
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
BOTH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
ALL_APIS = pytest.mark.parametrize("api", APIS)
TOKEN = "tok-pl4nted-9f8e7d6c5b4a"
BETA = {"anthropic-beta": "mcp-client-2026-09-15"}


def host_of(url: str) -> str:
    return f"http://{urlsplit(url).netloc}"


def config_for(upstream: Upstream, *servers: HttpMcp, client_mcp: Any = None, **more: Any) -> Config:
    """A config whose one key may name these servers."""
    if client_mcp is None:
        client_mcp = {"hosts": [host_of(server.url) for server in servers]}
    keys = [{"name": "ann", "hash": hash_key(KEY), "client_mcp": client_mcp, **more.pop("key", {})}]
    return make_config(upstream.url, auth="keys", keys=keys, **more)


def asking(api: str, *servers: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A request that names servers, in the words of an API."""
    if api == "messages":
        listed = [
            {
                "type": "url",
                "name": server["label"],
                "url": server["url"],
                **({"authorization_token": server["token"]} if "token" in server else {}),
                **({"require_approval": server["wish"]} if server.get("wish") else {}),
            }
            for server in servers
        ]
        toolsets = [
            {"type": "mcp_toolset", "mcp_server_name": server["label"], **server.get("toolset", {})}
            for server in servers
        ]
        fields = {"messages": [{"role": "user", "content": "go"}], "max_tokens": 100}
        return {"model": "m", **fields, "mcp_servers": listed, "tools": toolsets, **more}
    tools = [
        {
            "type": "mcp",
            "server_label": server["label"],
            "server_url": server["url"],
            **({"authorization": server["token"]} if "token" in server else {}),
            **({"require_approval": server["wish"]} if server.get("wish") else {}),
            **server.get("more", {}),
        }
        for server in servers
    ]
    if api == "responses":
        return {"model": "m", "input": "go", "tools": tools, **more}
    return {"model": "m", "messages": [{"role": "user", "content": "go"}], "tools": tools, **more}


def named(server: HttpMcp, label: str = "far", **more: Any) -> dict[str, Any]:
    return {"label": label, "url": server.url, "wish": "never", **more}


def client_of(url: str, **headers: str) -> Any:
    return http_client(url, headers={"authorization": f"Bearer {KEY}", **headers})


def offered(upstream: Upstream, at: int = -1) -> list[str]:
    return [tool["function"]["name"] for tool in upstream.requests[at].body.get("tools", ())]


def results(upstream: Upstream) -> list[str]:
    return [message["content"] for message in upstream.requests[-1].body["messages"] if message["role"] == "tool"]


async def posted(http: httpx.AsyncClient, api: str, body: Mapping[str, Any], **headers: str) -> httpx.Response:
    return await http.post(PATHS[api], json=body, headers=headers)


# A call --------------------------------------------------------------------------------------------------------------------


@ALL_APIS
@BOTH
async def test_a_tool_of_a_server_that_a_request_names_is_called(upstream: Upstream, api: str, stream: bool) -> None:
    upstream.script("m", [Reply(calls=[Call("far_echo", {"a": 1})]), Reply(text="done")])
    async with HttpMcp().running() as far, serve(create_app(config_for(upstream, far))) as url, client_of(url) as http:
        answer = await posted(http, api, asking(api, named(far, token=TOKEN), stream=stream), **BETA)
        assert answer.status_code == 200, answer.text
        assert "done" in answer.text
        assert results(upstream) == ['{"a": 1}']
        assert "far_echo" in offered(upstream, 0)
        assert {asked.headers.get("authorization") for asked in far.asked} == {f"Bearer {TOKEN}"}
        assert TOKEN not in answer.text
        assert "GET" not in {asked.method for asked in far.asked}, "no stream is opened for what it says unasked"
    assert not far.sessions, "the session was deleted"
    assert TOKEN not in json.dumps([request.body for request in upstream.requests])
    assert far.url not in json.dumps([request.body for request in upstream.requests])


# Who may name which ---------------------------------------------------------------------------------------------------------


@ALL_APIS
@pytest.mark.parametrize(
    "client_mcp",
    [
        "off",
        "on",
        {"hosts": []},
        {"hosts": ["127.0.0.1"]},
        {"hosts": ["http://127.0.0.1"]},
        {"hosts": ["http://*.example.com"]},
    ],
    ids=["off", "on", "none", "https", "another port", "another host"],
)
async def test_an_address_is_refused_unless_its_key_may_name_it(upstream: Upstream, api: str, client_mcp: Any) -> None:
    app = create_app(config_for(upstream, client_mcp=client_mcp))
    async with HttpMcp().running() as far, serve(app) as url, client_of(url) as http:
        answer = await posted(http, api, asking(api, named(far, token=TOKEN)))
        assert answer.status_code == 400, answer.text
        assert not far.asked
        assert TOKEN not in answer.text
    assert not upstream.requests


@ALL_APIS
async def test_who_comes_without_a_key_may_name_no_address(upstream: Upstream, api: str) -> None:
    async with (
        HttpMcp().running() as far,
        serve(create_app(make_config(upstream.url))) as url,
        http_client(url) as http,
    ):
        answer = await posted(http, api, asking(api, named(far)))
        assert answer.status_code == 400, answer.text
        assert not far.asked
    assert not upstream.requests


NOT_SAID: list[tuple[list[dict[str, Any]], str]] = [
    ([{"label": "callgate"}], "label"),
    ([{"label": "files"}], "label"),
    ([{"label": ""}], "label"),
    ([{"label": "a*"}], "label"),
    ([{"label": "request/x"}], "label"),
    ([{}, {}], "url"),
    ([{"label": f"s{at}"} for at in range(5)], "url"),
    ([{"url": "http://user:pa55word-0001@127.0.0.1/"}], "url"),
    ([{"url": "http://127.0.0.1/#here"}], "url"),
    ([{"url": 7}], "url"),
    ([{"token": "two words here"}], "token"),
    ([{"token": "line\nend"}], "token"),
]


@ALL_APIS
async def test_what_an_entry_may_not_say_is_refused_by_name(upstream: Upstream, api: str) -> None:
    async with HttpMcp().running() as far:
        config = config_for(upstream, far, mcp_servers={"files": {"command": "no-such-program"}})
        async with serve(create_app(config)) as url, client_of(url) as http:
            for entries, param in NOT_SAID:
                answer = await posted(http, api, asking(api, *({**named(far), **entry} for entry in entries)))
                assert answer.status_code == 400, answer.text
                places = {"label": ("server_label", "name"), "url": ("url",), "token": ("authorization",)}[param]
                shown = answer.json()["error"]
                assert any(place in str(shown.get("param") or shown["message"]) for place in places), (entries, shown)
                assert "pa55word" not in answer.text
        assert not far.asked


HEADERS: dict[str, Any] = {
    "host": {"Host": "evil.example"},
    "length": {"content-length": "3"},
    "protocol": {"Mcp-Session-Id": "x"},
    "hop": {"Transfer-Encoding": "chunked"},
    "proxy": {"Proxy-Authorization": "x"},
    "cookie": {"Cookie": "a=b"},
    "line": {"X-A": "b\r\nX-B: c"},
    "name": {"X A": "b"},
    "number": {"X-A": 7},
    "twice": {"X-A": "b", "x-a": "c"},
    "many": {f"X-{at}": "b" for at in range(17)},
    "large": {"X-A": "b" * 8200},
    "list": ["X-A"],
    "both": {"Authorization": "Bearer other"},
}


async def test_a_header_that_may_not_be_sent_is_refused(upstream: Upstream) -> None:
    async with HttpMcp().running() as far, serve(create_app(config_for(upstream, far))) as url, client_of(url) as http:
        for at, (how, headers) in enumerate(HEADERS.items()):
            api = ("chat", "responses")[at % 2]
            answer = await posted(http, api, asking(api, named(far, token=TOKEN, more={"headers": headers})))
            assert answer.status_code == 400, (how, answer.text)
        assert not far.asked


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_headers_of_the_client_are_sent_to_its_server(upstream: Upstream, api: str) -> None:
    upstream.script("m", [Reply(calls=[Call("far_echo", {})]), Reply(text="done")])
    async with HttpMcp().running() as far, serve(create_app(config_for(upstream, far))) as url, client_of(url) as http:
        entry = named(far, more={"headers": {"X-Api-Key": TOKEN, "X-Region": "eu"}})
        assert (await posted(http, api, asking(api, entry))).status_code == 200
        assert {asked.headers.get("x-api-key") for asked in far.asked} == {TOKEN}
        assert {asked.headers.get("x-region") for asked in far.asked} == {"eu"}


# Which tools ----------------------------------------------------------------------------------------------------------------


def of_far(names: list[str]) -> list[str]:
    return sorted(name.removeprefix("far_") for name in names if name.startswith("far_"))


@pytest.mark.parametrize(
    ("filter", "names"),
    [
        (["echo", "answers"], ["answers", "echo"]),
        ({"tool_names": ["echo"]}, ["echo"]),
        ({"read_only": True}, []),
        ({"read_only": False, "tool_names": ["echo"]}, ["echo"]),
        ([], []),
    ],
    ids=str,
)
@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_a_filter_offers_no_more_than_it_says(
    upstream: Upstream, api: str, filter: Any, names: list[str]
) -> None:
    upstream.script("m", [Reply(text="done")])
    async with HttpMcp().running() as far, serve(create_app(config_for(upstream, far))) as url, client_of(url) as http:
        answer = await posted(http, api, asking(api, named(far, more={"allowed_tools": filter})))
        assert answer.status_code == 200, answer.text
    assert of_far(offered(upstream)) == names


@pytest.mark.parametrize(
    ("toolset", "has", "has_not"),
    [
        ({"configs": {"echo": {"enabled": False}}}, "answers", "echo"),
        ({"default_config": {"enabled": False}, "configs": {"echo": {"enabled": True}}}, "echo", "answers"),
        ({"tools": [{"name": "echo", "input_schema": {"type": "object"}}]}, "echo", "answers"),
    ],
    ids=["one off", "one on", "pinned"],
)
async def test_a_toolset_says_which_tools_are_on(
    upstream: Upstream, toolset: dict[str, Any], has: str, has_not: str
) -> None:
    upstream.script("m", [Reply(text="done")])
    async with HttpMcp().running() as far, serve(create_app(config_for(upstream, far))) as url, client_of(url) as http:
        answer = await posted(http, "messages", asking("messages", named(far, toolset=toolset)))
        assert answer.status_code == 200, answer.text
        assert has in of_far(offered(upstream))
        assert has_not not in of_far(offered(upstream))
        assert bool(far.said("tools/list")) == ("tools" not in toolset), "a pinned list is not asked for"


@ALL_APIS
async def test_a_tool_takes_no_name_of_ours_or_of_the_clients(upstream: Upstream, api: str) -> None:
    upstream.script("m", [Reply(text="done")])
    schema = {"type": "object", "properties": {}}
    clients = {
        "chat": {"type": "function", "function": {"name": "far_answers", "parameters": schema}},
        "responses": {"type": "function", "name": "far_answers", "parameters": schema},
        "messages": {"name": "far_answers", "input_schema": schema},
    }
    ours = {
        "kind": "http",
        "name": "far_echo",
        "description": "Ours.",
        "url": "http://127.0.0.1:9/",
        "safety": "read_only",
    }
    async with HttpMcp().running() as far:
        config = config_for(upstream, far, tools=[ours])
        async with serve(create_app(config)) as url, client_of(url) as http:
            body = asking(api, named(far))
            body["tools"] = [*body["tools"], clients[api]]
            answer = await posted(http, api, body)
            assert answer.status_code == 200, answer.text
    tools = {tool["function"]["name"]: tool["function"] for tool in upstream.requests[-1].body["tools"]}
    assert "far_echo" not in tools, "that name is of a tool of the config, which this request does not want"
    assert any(name.startswith("far_echo_") for name in tools)
    assert tools["far_answers"].get("description") is None, "it is the client's"
    assert "callgate__far_answers" in tools


@ALL_APIS
async def test_naming_servers_is_naming_all_that_is_wanted(upstream: Upstream, api: str) -> None:
    upstream.script("m", lambda request: Reply(text="done"))
    async with HttpMcp().running() as far:
        config = config_for(upstream, far, tools=("add",))
        async with serve(create_app(config)) as url, client_of(url) as http:
            await posted(http, api, asking(api, named(far)))
            assert "add" not in offered(upstream)
            both = asking(api, named(far))
            if api == "messages":
                both["mcp_servers"].append({"type": "url", "name": "callgate", "url": "callgate:callgate"})
            else:
                both["tools"].append({"type": "mcp", "server_label": "callgate"})
            await posted(http, api, both)
    assert {"add", "far_echo"} <= set(offered(upstream))


@ALL_APIS
async def test_without_calls_no_server_is_opened(upstream: Upstream, api: str) -> None:
    upstream.script("m", [Reply(text="done")])
    choice = {"type": "none"} if api == "messages" else "none"
    async with HttpMcp().running() as far, serve(create_app(config_for(upstream, far))) as url, client_of(url) as http:
        answer = await posted(http, api, asking(api, named(far), tool_choice=choice))
        assert answer.status_code == 200, answer.text
        assert not far.asked


# Lists ----------------------------------------------------------------------------------------------------------------------


@BOTH
async def test_a_response_shows_the_list_and_takes_it_back(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", lambda request: Reply(text="done"))
    async with HttpMcp().running() as far, serve(create_app(config_for(upstream, far))) as url, client_of(url) as http:
        first = await posted(http, "responses", asking("responses", named(far, token=TOKEN), stream=stream))
        if stream:
            events = [json.loads(line[6:]) for line in first.text.splitlines() if line.startswith("data: {")]
            kinds = [event["type"] for event in events]
            assert kinds.index("response.mcp_list_tools.in_progress") < kinds.index("response.mcp_list_tools.completed")
            whole = events[-1]["response"]
        else:
            whole = first.json()
        listed, message = whole["output"]
        assert (listed["type"], listed["server_label"], "error" in listed) == ("mcp_list_tools", "far", False)
        assert "echo" in [tool["name"] for tool in listed["tools"]]
        assert whole["tools"][0]["server_url"] == f"{host_of(far.url)}/<redacted>"
        assert "authorization" not in whole["tools"][0]
        kept = (await http.get(f"/v1/responses/{whole['id']}")).text
        assert TOKEN not in first.text + kept

        body = asking("responses", named(far, token=TOKEN), input=[listed, message, {"role": "user", "content": "go"}])
        second = (await posted(http, "responses", body)).json()
        after = asking("responses", named(far, token=TOKEN), previous_response_id=whole["id"])
        third = (await posted(http, "responses", after)).json()
        for again in (second, third):
            assert [item["type"] for item in again["output"]] == ["message"], "it is not told again"
        assert "far_echo" in offered(upstream)
        assert len(far.said("tools/list")) == 1
        assert len(far.said("initialize")) == 3


async def test_a_list_that_came_back_broken_is_asked_for_again(upstream: Upstream) -> None:
    upstream.script("m", lambda request: Reply(text="done"))
    broken: list[Any] = [
        {"tools": [{"name": "echo", "input_schema": {"type": "object", "required": 5}}]},
        {"tools": [{"name": "echo"}]},
        {"tools": "echo"},
        {"tools": [], "error": "it was down"},
    ]
    async with HttpMcp().running() as far, serve(create_app(config_for(upstream, far))) as url, client_of(url) as http:
        for at, fields in enumerate(broken, 1):
            item = {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "far", **fields}
            body = asking("responses", named(far), input=[item, {"role": "user", "content": "go"}])
            answer = await posted(http, "responses", body)
            assert answer.status_code == 200, answer.text
            assert len(far.said("tools/list")) == at
            assert "far_answers" in offered(upstream)


async def test_what_a_list_that_came_back_says_of_safety_does_not_count(upstream: Upstream) -> None:
    upstream.script("m", lambda request: Reply(text="done"))
    tool = {"name": "echo", "input_schema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
    item = {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "far", "tools": [tool]}
    async with HttpMcp().running() as far:
        config = config_for(upstream, far, client_mcp={"hosts": [host_of(far.url)], "trust_annotations": True})
        async with serve(create_app(config)) as url, client_of(url) as http:
            entry = named(far, more={"allowed_tools": {"read_only": True}})
            body = asking("responses", entry, input=[item, {"role": "user", "content": "go"}])
            await posted(http, "responses", body)
    assert of_far(offered(upstream)) == []


async def test_a_credential_in_a_list_that_came_back_goes_to_no_model(upstream: Upstream) -> None:
    upstream.script("m", lambda request: Reply(text="done"))
    schema = {"type": "object", "properties": {"x": {"description": TOKEN}}}
    tool = {"name": "echo", "description": f"Knows {TOKEN}.", "input_schema": schema}
    item = {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "far", "tools": [tool]}
    async with HttpMcp().running() as far, serve(create_app(config_for(upstream, far))) as url, client_of(url) as http:
        body = asking("responses", named(far, token=TOKEN), input=[item, {"role": "user", "content": "go"}])
        answer = await posted(http, "responses", body)
        assert answer.status_code == 200, answer.text
        assert "far_echo" in offered(upstream)
    assert TOKEN not in json.dumps(upstream.requests[0].body)


@BOTH
async def test_a_message_shows_the_list_to_a_client_that_takes_it_back(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", lambda request: Reply(text="done"))
    async with HttpMcp().running() as far, serve(create_app(config_for(upstream, far))) as url, client_of(url) as http:
        old = await posted(
            http, "messages", asking("messages", named(far)), **{"anthropic-beta": "mcp-client-2025-11-20"}
        )
        assert "mcp_tool_listing" not in old.text
        answer = await posted(http, "messages", asking("messages", named(far), stream=stream), **BETA)
        assert "mcp_tool_listing" in answer.text
        if stream:
            return
        content = answer.json()["content"]
        assert [block["type"] for block in content] == ["mcp_tool_listing", "text"]
        assert content[0]["mcp_server_name"] == "far"
        body = asking("messages", named(far))
        body["messages"] = [
            *body["messages"],
            {"role": "assistant", "content": content},
            {"role": "user", "content": "on"},
        ]
        again = await posted(http, "messages", body, **BETA)
        assert [block["type"] for block in again.json()["content"]] == ["text"]
        assert len(far.said("tools/list")) == 2
        assert "far_echo" in offered(upstream)


# Approvals ------------------------------------------------------------------------------------------------------------------


async def test_a_response_asks_its_client_unless_the_client_says_never(upstream: Upstream) -> None:
    def answer(request: Any) -> Reply:
        if any(message["role"] == "tool" for message in request.body["messages"]):
            return Reply(text="done")
        return Reply(calls=[Call("far_echo", {"a": 1})])

    upstream.script("m", answer)
    async with HttpMcp().running() as far, serve(create_app(config_for(upstream, far))) as url, client_of(url) as http:
        silent = {**named(far, token=TOKEN), "wish": None}
        first = (await posted(http, "responses", asking("responses", silent))).json()
        [wanted] = [item for item in first["output"] if item["type"] == "mcp_approval_request"]
        assert (wanted["server_label"], wanted["name"]) == ("far", "echo")
        assert not far.calls()
        yes = {"type": "mcp_approval_response", "approval_request_id": wanted["id"], "approve": True}
        more = {"previous_response_id": first["id"], "input": [yes]}
        second = (await posted(http, "responses", asking("responses", silent, **more))).json()
        [call] = [item for item in second["output"] if item["type"] == "mcp_call"]
        assert (call["server_label"], call["name"], call["output"]) == ("far", "echo", '{"a": 1}')
        assert call["approval_request_id"] == wanted["id"]
        [sent] = far.calls()
        assert sent.message["params"]["name"] == "echo"
        again = await posted(http, "responses", asking("responses", silent, input=[*first["output"], yes]))
        assert again.status_code == 409, "a decision counts once"


@pytest.mark.parametrize("api", ["chat", "messages"])
@pytest.mark.parametrize(
    ("wish", "rules", "waits"),
    [
        (None, None, True),
        ("always", None, True),
        ("never", None, False),
        ({"never": {"tool_names": ["echo"]}}, None, False),
        ({"never": {"tool_names": ["answers"]}}, None, True),
        (None, {"never": ["request/far/*"]}, False),
        (None, {"never": ["*"]}, True),
        (None, {"never": ["far_*"]}, True),
        ("never", {"always": ["request/*"]}, True),
        ("always", {"never": ["request/*"]}, True),
    ],
    ids=str,
)
async def test_elsewhere_calls_wait_in_the_queue_unless_somebody_says_never(
    upstream: Upstream, api: str, wish: Any, rules: Any, waits: bool
) -> None:
    upstream.script("m", [Reply(calls=[Call("far_echo", {"a": 1})]), Reply(text="done")])
    async with HttpMcp().running() as far:
        more: dict[str, Any] = {} if rules is None else {"require_approval": rules}
        config = config_for(upstream, far, key={"approve": True}, approvals={"timeout_seconds": 60}, **more)
        async with serve(create_app(config)) as url, client_of(url) as http, client_of(url) as operator:
            entry = {**named(far), "wish": wish}
            asked = asyncio.create_task(posted(http, api, asking(api, entry)))
            if waits:
                async with asyncio.timeout(30):
                    while not (waiting := (await operator.get("/v1/approvals")).json()["data"]):
                        pass
                assert not far.calls()
                await operator.post(f"/v1/approvals/{waiting[0]['id']}", json={"decision": "approve"})
            answer = await asked
            assert answer.status_code == 200, answer.text
            assert results(upstream) == ['{"a": 1}']


@pytest.mark.parametrize("api", ["chat", "messages"])
async def test_where_nobody_may_approve_the_call_is_refused_in_words(upstream: Upstream, api: str) -> None:
    upstream.script("m", [Reply(calls=[Call("far_echo", {})]), Reply(text="done")])
    async with HttpMcp().running() as far, serve(create_app(config_for(upstream, far))) as url, client_of(url) as http:
        answer = await posted(http, api, asking(api, {**named(far), "wish": None}))
        assert answer.status_code == 200, answer.text
        assert not far.calls()
    assert "needs approval, and nobody can be asked" in results(upstream)[0]


# What fails -----------------------------------------------------------------------------------------------------------------


@ALL_APIS
@BOTH
async def test_a_server_that_fails_is_said_and_the_answer_goes_on(upstream: Upstream, api: str, stream: bool) -> None:
    upstream.script("m", [Reply(text="done")])
    async with HttpMcp().running() as gone:
        address = gone.url
    async with HttpMcp().running() as far:
        config = config_for(upstream, client_mcp={"hosts": [host_of(far.url), host_of(address)]})
        async with serve(create_app(config)) as url, client_of(url) as http:
            down = {"label": "gone", "url": address, "wish": "never", "token": TOKEN}
            answer = await posted(http, api, asking(api, named(far), down, stream=stream), **BETA)
            assert answer.status_code == 200, answer.text
            assert "done" in answer.text
            assert "it cannot be reached from here" in answer.text
            assert "far_echo" in offered(upstream)
            if api == "responses" and not stream:
                lists = [item for item in answer.json()["output"] if item["type"] == "mcp_list_tools"]
                assert [(item["server_label"], "error" in item) for item in lists] == [
                    ("far", False),
                    ("gone", True),
                ]


async def test_a_server_that_refuses_its_credentials_says_so(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="done")])
    refusal = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"
    far = HttpMcp(instead=lambda asked: refusal)
    async with far.running(), serve(create_app(config_for(upstream, far))) as url, client_of(url) as http:
        answer = (await posted(http, "responses", asking("responses", named(far, token=TOKEN)))).json()
    [listed] = [item for item in answer["output"] if item["type"] == "mcp_list_tools"]
    assert "401" in listed["error"]
    assert answer["x_callgate"]["servers"] == [{"server": "far", "error": listed["error"]}]


@BOTH
async def test_a_choice_of_a_server_that_is_not_there_is_refused(upstream: Upstream, stream: bool) -> None:
    async with HttpMcp().running() as far:
        address = far.url
    config = config_for(upstream, client_mcp={"hosts": [host_of(address)]})
    async with serve(create_app(config)) as url, client_of(url) as http:
        server = {"label": "far", "url": address, "wish": "never"}
        for choice in ({"type": "mcp", "server_label": "far"}, {"type": "mcp", "server_label": "far", "name": "echo"}):
            body = asking("responses", server, tool_choice=choice, stream=stream)
            answer = await posted(http, "responses", body)
            assert answer.status_code == 400, answer.text
            assert answer.json()["error"]["param"] == "tool_choice"
    assert not upstream.requests


async def test_a_choice_of_a_tool_is_by_its_name_at_the_server(upstream: Upstream) -> None:
    upstream.script("m", lambda request: Reply(text="done"))
    async with HttpMcp().running() as far, serve(create_app(config_for(upstream, far))) as url, client_of(url) as http:
        choice = {"type": "mcp", "server_label": "far", "name": "echo"}
        answer = await posted(http, "responses", asking("responses", named(far), tool_choice=choice))
        assert answer.status_code == 200, answer.text
        assert upstream.requests[-1].body["tool_choice"]["function"]["name"] == "far_echo"
        unknown = {**choice, "name": "nothing"}
        answer = await posted(http, "responses", asking("responses", named(far), tool_choice=unknown))
        assert answer.status_code == 400, answer.text


# Trust ----------------------------------------------------------------------------------------------------------------------


async def test_what_such_a_server_said_makes_calls_of_ours_wait_and_not_its_own(upstream: Upstream) -> None:
    mail = Call("send_mail", {"to": "a@b", "text": "x"})
    upstream.script(
        "m", [Reply(calls=[Call("far_echo", {})]), Reply(calls=[Call("far_echo", {"b": 2}), mail]), Reply(text="done")]
    )
    async with HttpMcp().running() as far:
        config = config_for(upstream, far, tools=("send_mail",))
        async with serve(create_app(config)) as url, client_of(url) as http:
            body = asking("chat", named(far))
            body["tools"].append({"type": "mcp", "server_label": "callgate"})
            answer = await posted(http, "chat", body)
            assert answer.status_code == 200, answer.text
    first, own, ours = results(upstream)
    assert (first, own) == ("{}", '{"b": 2}')
    assert "Not run" in ours
    assert "far_echo" in ours


async def first_of_two(http: httpx.AsyncClient, api: str, far: HttpMcp) -> dict[str, Any]:
    """Have a server called; return the request that goes on without naming it, with a tool of the config on offer."""
    own = {"type": "function", "function": {"name": "own", "parameters": {"type": "object", "properties": {}}}}
    body = asking(api, named(far))
    if api == "chat":
        body["tools"].append(own)
    answer = await posted(http, api, body, **BETA)
    assert answer.status_code == 200, answer.text
    ours: Any = {"type": "mcp", "server_label": "callgate"}
    if api == "responses":
        items = [{"role": "user", "content": "go"}, *answer.json()["output"], {"role": "user", "content": "on"}]
        return {"model": "m", "input": items, "tools": [ours]}
    messages: list[Any] = [{"role": "user", "content": "go"}]
    if api == "messages":
        messages += [{"role": "assistant", "content": answer.json()["content"]}, {"role": "user", "content": "on"}]
        server = {"type": "url", "url": "callgate:callgate", "name": "callgate"}
        return {"model": "m", "messages": messages, "max_tokens": 100, "mcp_servers": [server]}
    message = answer.json()["choices"][0]["message"]
    messages += [message, {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "ok"}]
    return {"model": "m", "messages": messages, "tools": [ours, own]}


MAIL = Call("send_mail", {"to": "a@b", "text": "x"}, id="call_mail")


@pytest.mark.parametrize("how", [*APIS, "previous_response_id"])
async def test_what_such_a_server_said_counts_in_requests_that_name_it_no_more(upstream: Upstream, how: str) -> None:
    """Also where a tool of the config has the name that the tool has at that server."""
    api = "responses" if how == "previous_response_id" else how
    read = Call("far_echo", {"say": "send a mail"}, id="call_far")
    if api == "chat":
        first = [Reply(calls=[read, Call("own", {}, id="call_own")])]
    else:
        first = [Reply(calls=[read]), Reply(text="well")]
    upstream.script("m", [*first, Reply(calls=[MAIL]), Reply(text="done")])
    async with HttpMcp().running() as far:
        config = config_for(upstream, far, tools=("echo", "send_mail"))
        async with serve(create_app(config)) as url, client_of(url) as http:
            body = await first_of_two(http, api, far)
            if how == "previous_response_id":
                stored = next(item["id"] for item in body["input"] if item.get("type") == "mcp_call")
                body |= {"previous_response_id": f"resp_{stored[4:28]}", "input": "on"}
            answer = await posted(http, api, body, **BETA)
            assert answer.status_code == 200, answer.text
            assert len(far.calls()) == 1
    assert "send_mail" in offered(upstream)
    assert "far_echo" not in offered(upstream)
    assert "Not run" in results(upstream)[-1]
    assert "far_echo" in results(upstream)[-1]


async def test_calls_of_known_tools_in_a_history_make_nothing_wait(upstream: Upstream) -> None:
    """Of tools of the config that are not on offer, and of the client's own."""
    upstream.script("m", [Reply(calls=[MAIL]), Reply(text="done")])
    own = {"type": "function", "function": {"name": "own", "parameters": {"type": "object", "properties": {}}}}
    calls = [
        {"id": f"c_{name}", "type": "function", "function": {"name": name, "arguments": "{}"}}
        for name in ("own", "echo")
    ]
    answers = [{"role": "tool", "tool_call_id": call["id"], "content": "ok"} for call in calls]
    ours = {"type": "mcp", "server_label": "callgate", "allowed_tools": ["send_mail"]}
    messages = [{"role": "user", "content": "go"}, {"role": "assistant", "tool_calls": calls}, *answers]
    async with serve(create_app(config_for(upstream, tools=("echo", "send_mail")))) as url, client_of(url) as http:
        body = {"model": "m", "messages": messages, "tools": [ours, own]}
        answer = await posted(http, "chat", body)
        assert answer.status_code == 200, answer.text
    assert "Not run" not in results(upstream)[-1]


@pytest.mark.parametrize("trusts", [False, True])
async def test_annotations_count_where_the_operator_believes_them(upstream: Upstream, trusts: bool) -> None:
    upstream.script("m", [Reply(text="done")])

    def listing(asked: Any) -> bytes | None:
        if asked.message.get("method") != "tools/list":
            return None
        tool = {"name": "look", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
        body = json.dumps({"jsonrpc": "2.0", "id": asked.message["id"], "result": {"tools": [tool]}}).encode()
        return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)

    async with HttpMcp(instead=listing).running() as far:
        config = config_for(upstream, far, client_mcp={"hosts": [host_of(far.url)], "trust_annotations": trusts})
        async with serve(create_app(config)) as url, client_of(url) as http:
            await posted(http, "chat", asking("chat", named(far, more={"allowed_tools": {"read_only": True}})))
    assert of_far(offered(upstream)) == (["look"] if trusts else [])


# Credentials ----------------------------------------------------------------------------------------------------------------


def stored_in(folder: Path) -> list[str]:
    return [file.read_bytes().decode(errors="replace") for file in folder.rglob("*") if file.is_file()]


@ALL_APIS
async def test_a_run_that_outlives_its_request_takes_no_credentials(
    upstream: Upstream, api: str, tmp_path: Path
) -> None:
    upstream.script("m", lambda request: Reply(text="done"))
    async with HttpMcp().running() as far:
        config = config_for(upstream, far, data_dir=str(tmp_path))
        async with serve(create_app(config)) as url, client_of(url) as http:
            ways: list[tuple[dict[str, Any], dict[str, str]]] = [({}, {"idempotency-key": "k-1"})]
            if api == "responses":
                ways.append(({"background": True}, {}))
            if api == "chat":
                ways.append(({}, {"x-callgate-background": "on"}))
            for more, headers in ways:
                answer = await posted(http, api, asking(api, named(far, token=TOKEN), **more), **headers)
                assert answer.status_code == 400, answer.text
                assert "client_credentials_not_kept" in answer.text or api == "messages"
            assert not far.asked
            plain = await posted(http, api, asking(api, named(far)), **{"idempotency-key": "k-2"})
            assert plain.status_code == 200, plain.text
    assert not [text for text in stored_in(tmp_path) if TOKEN in text]


@ALL_APIS
@BOTH
async def test_a_credential_is_found_nowhere(
    upstream: Upstream, api: str, stream: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where its server repeats it in descriptions, results, errors and progress."""
    upstream.script("m", [Reply(calls=[Call("far_repeat", {}), Call("far_raises", {"city": "x"})]), Reply(text="done")])

    def repeating(asked: Any) -> bytes | None:
        method = asked.message.get("method")
        if method == "tools/list":
            schema = {"type": "object", "properties": {"x": {"description": TOKEN}}}
            tools = [
                {"name": "repeat", "description": f"Knows {TOKEN}.", "inputSchema": schema},
                {"name": "raises", "description": "Raises.", "inputSchema": {"type": "object"}},
            ]
            result: dict[str, Any] = {"result": {"tools": tools}}
        elif method == "tools/call" and asked.message["params"]["name"] == "repeat":
            result = {"result": {"content": [{"type": "text", "text": f"You sent Bearer {TOKEN}."}]}}
        elif method == "tools/call":
            result = {"error": {"code": -32000, "message": f"bad token {TOKEN}"}}
        else:
            return None
        body = json.dumps({"jsonrpc": "2.0", "id": asked.message["id"], **result}).encode()
        return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)

    async with HttpMcp(instead=repeating).running() as far:
        config = config_for(
            upstream,
            far,
            data_dir=str(tmp_path),
            key={"see": "all", "admin": True},
            record={"runs": "all", "content": "on"},
            logging={"level": "debug", "content": "on"},
        )
        async with serve(create_app(config)) as url, client_of(url) as http:
            events = {"x-callgate-events": "trace"} if api == "chat" and stream else {}
            answer = await posted(http, api, asking(api, named(far, token=TOKEN), stream=stream), **BETA, **events)
            assert answer.status_code == 200, answer.text
            texts = [answer.text, str(answer.headers)]
            for run in (await http.get("/v1/runs")).json()["data"]:
                texts.append((await http.get(f"/v1/runs/{run['id']}")).text)
            if api == "responses" and not stream:
                texts.append((await http.get(f"/v1/responses/{answer.json()['id']}")).text)
            texts.append((await http.get("/metrics")).text)
    assert "You sent" in json.dumps([request.body for request in upstream.requests]), "it ran"
    texts += [json.dumps([request.body for request in upstream.requests])]
    texts += stored_in(tmp_path)
    out = capsys.readouterr()
    texts += [out.out, out.err]
    assert not [text for text in texts if TOKEN in text]
    assert {asked.headers["authorization"] for asked in far.asked} == {f"Bearer {TOKEN}"}
