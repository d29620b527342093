"""`/mcp`: what MCP clients of each revision are answered."""

import asyncio
import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from callgate.access.keys import mint_key
from callgate.config.schema.whole import Config
from callgate.tools.kinds.python.authoring import Context
from tests.harness import toolshed
from tests.harness.configs import config_dict
from tests.mcp_server.mcp_client import LEGACY, MODERN, McpClient, last_of, messages_of, served_mcp

pytestmark = pytest.mark.anyio

NOWHERE = "http://127.0.0.1:9"
ALICE, ALICE_HASH = mint_key()
BOB, BOB_HASH = mint_key()
PROGRESS = {"progressToken": "p1"}


def config_of(*tools: Any, **sections: Any) -> Config:
    return Config.model_validate(config_dict(NOWHERE, tools=tools, **sections))


def keyed(*tools: Any, alice: dict[str, Any] | None = None, bob: dict[str, Any] | None = None, **more: Any) -> Config:
    keys = [{"name": "alice", "hash": ALICE_HASH, **(alice or {})}, {"name": "bob", "hash": BOB_HASH, **(bob or {})}]
    return config_of(*tools, auth="keys", keys=keys, **more)


@pytest.fixture(params=["modern", "older"])
def age(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def of_age(client: McpClient, age: str) -> McpClient:
    return client if age == "modern" else client.older()


async def test_a_client_of_today_asks_who_this_is() -> None:
    async with served_mcp(config_of("add")) as client:
        found = await client.result("server/discover")
    assert found["supportedVersions"] == [MODERN]
    assert found["capabilities"]["tools"] == {"listChanged": True}
    assert found["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "callgate"
    assert (found["resultType"], found["cacheScope"]) == ("complete", "private")


@pytest.mark.parametrize(("wanted", "given"), [("2025-06-18", "2025-06-18"), ("1999-01-01", LEGACY)])
async def test_an_older_client_is_told_its_revision_and_no_session(wanted: str, given: str) -> None:
    async with served_mcp(config_of("add")) as client:
        answer = await client.older().post("initialize", {"protocolVersion": wanted, "capabilities": {}})
        pong = await client.older().result("ping")
        initialized = await client.http.post(
            "/mcp",
            json={"jsonrpc": "2.0", "method": "notifications/initialized"},
            headers={"accept": "application/json", "mcp-protocol-version": LEGACY},
        )
    assert answer.json()["result"]["protocolVersion"] == given
    assert "mcp-session-id" not in answer.headers
    assert pong == {}
    assert (initialized.status_code, initialized.content) == (202, b"")


async def test_a_list_names_what_a_client_has_to_know_and_our_policy(age: str) -> None:
    async with served_mcp(config_of("add", "send_mail")) as client:
        listed = await of_age(client, age).result("tools/list")
        again = await of_age(client, age).result("tools/list")
    by_name = {tool["name"]: tool for tool in listed["tools"]}
    assert [*by_name] == ["add", "read_more", "send_mail"]
    assert listed == again
    assert by_name["add"]["annotations"] == {"readOnlyHint": True}
    assert by_name["send_mail"]["annotations"] == {"readOnlyHint": False, "destructiveHint": False}
    assert by_name["add"]["inputSchema"]["required"] == ["a", "b"]
    assert by_name["add"]["_meta"] == {"io.callgate/source": "config"}
    fresh = {"ttlMs": 60_000, "cacheScope": "private", "resultType": "complete"}
    assert {key: value for key, value in listed.items() if key != "tools"} == (fresh if age == "modern" else {})


async def test_a_call_is_a_run_and_a_row_of_the_ledger(tmp_path: Path, age: str) -> None:
    async with served_mcp(config_of("add", data_dir=str(tmp_path))) as client:
        result = await of_age(client, age).call("add", {"a": 2, "b": 3})
        run = (await client.http.get(f"/v1/runs/{result['_meta']['io.callgate/run']}")).json()
    assert (result["content"], result["isError"]) == ([{"type": "text", "text": "5"}], False)
    assert (run["route"], run["state"], run["calls"]) == ("mcp", "answered", 1)
    with contextlib.closing(sqlite3.connect(tmp_path / "ledger.sqlite3")) as ledger:
        assert ledger.execute("SELECT tool, state FROM calls").fetchall() == [("add", "done")]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ('{"a": 2, "b": "three"}', "schema_mismatch"),
        ('{"a": 2, "a": 3, "b": 1}', "invalid_json"),
        ("[]", "not_an_object"),
    ],
)
async def test_a_call_that_is_not_whole_is_not_run_and_the_model_is_told(
    tmp_path: Path, arguments: str, code: str
) -> None:
    async with served_mcp(config_of("add", data_dir=str(tmp_path))) as client:
        message = client.message("tools/call", {"name": "add", "arguments": "HERE"})
        body = json.dumps(message).replace('"HERE"', arguments)
        result = last_of(await client.http.post("/mcp", content=body, headers=client.headers(message)))["result"]
    assert result["isError"]
    assert code in result["content"][0]["text"]
    with contextlib.closing(sqlite3.connect(tmp_path / "ledger.sqlite3")) as ledger:
        assert ledger.execute("SELECT * FROM calls").fetchall() == []


async def test_each_key_has_its_own_list_and_a_tool_of_anothers_is_unknown(age: str) -> None:
    config = keyed("add", "send_mail", "echo", alice={"tools": ["*"]}, bob={"tools": ["echo"]})
    async with served_mcp(config) as client:
        alice = of_age(client.as_key(ALICE), age)
        bob = of_age(client.as_key(BOB), age)
        lists = [await alice.names(), await bob.names()]
        refused = await bob.post("tools/call", {"name": "add", "arguments": {"a": 1, "b": 1}})
        nothing = await bob.post("tools/call", {"name": "no_such_tool", "arguments": {}})
    assert lists == [["add", "echo", "read_more", "send_mail"], ["echo", "read_more"]]
    assert refused.json()["error"] == {"code": -32602, "message": "Unknown tool: add"}
    assert nothing.json()["error"] == {"code": -32602, "message": "Unknown tool: no_such_tool"}
    assert refused.status_code == (400 if age == "modern" else 200)


async def test_three_keys_and_three_hundred_tools_give_lists_as_rights_are() -> None:
    tools = [
        {
            "kind": "http",
            "name": f"t{number:03}",
            "description": "x",
            "url": f"{NOWHERE}/{number}",
            "safety": "read_only",
        }
        for number in range(300)
    ]
    carol, carol_hash = mint_key()
    keys = [
        {"name": "alice", "hash": ALICE_HASH},
        {"name": "bob", "hash": BOB_HASH, "tools": ["t0*"]},
        {"name": "carol", "hash": carol_hash, "tools": []},
    ]
    async with served_mcp(config_of(*tools, auth="keys", keys=keys)) as client:
        lists = [await client.as_key(key).names() for key in (ALICE, BOB, carol)]
    assert [len(names) for names in lists] == [301, 101, 0]
    assert lists[1] == ["read_more", *(f"t{number:03}" for number in range(100))]


async def test_a_long_list_comes_in_pages_and_a_cursor_of_another_list_is_refused() -> None:
    tools = [
        {
            "kind": "http",
            "name": f"t{number:04}",
            "description": "x",
            "url": f"{NOWHERE}/{number}",
            "safety": "read_only",
        }
        for number in range(1001)
    ]
    async with served_mcp(config_of(*tools)) as client:
        first = await client.result("tools/list")
        second = await client.result("tools/list", {"cursor": first["nextCursor"]})
        third = await client.result("tools/list", {"cursor": second["nextCursor"]})
        wrong = await client.error("tools/list", {"cursor": "1-0000000000000000"})
    names = [tool["name"] for page in (first, second, third) for tool in page["tools"]]
    assert [len(page["tools"]) for page in (first, second, third)] == [500, 500, 2]
    assert names == sorted(set(names))
    assert "nextCursor" not in third
    assert wrong["code"] == -32602


async def test_tools_that_are_searched_for_are_not_listed_and_can_be_called() -> None:
    config = config_of("add", "send_mail", mcp={"tool_search": {"mode": "on", "pin": ["send_*"]}})
    async with served_mcp(config) as client:
        names = await client.names()
        found = await client.call("find_tools", {"query": "add two numbers"})
        bridged = await client.call("call_tool", {"name": "add", "arguments": {"a": 1, "b": 2}})
    assert names == ["call_tool", "find_tools", "read_more", "send_mail"]
    assert "add" in found["content"][0]["text"]
    assert bridged["content"][0]["text"] == "3"


async def test_an_image_is_an_image_and_a_result_that_was_cut_can_be_read_whole_by_its_key_alone() -> None:
    tools = [
        {"kind": "python", "function": f"{toolshed.__name__}:{name}", "safety": "read_only"} for name in ("photo",)
    ]
    long = {
        "kind": "python",
        "function": f"{toolshed.__name__}:report",
        "safety": "read_only",
        "max_result_bytes": 2000,
    }
    async with served_mcp(keyed(*tools, long)) as client:
        alice = client.as_key(ALICE)
        photo = await alice.call("photo", {"number": 1})
        cut = await alice.call("report", {"number": 7})
        link = cut["content"][-1]
        whole = await alice.result("resources/read", {"uri": link["uri"]})
        another = await client.as_key(BOB).post("resources/read", {"uri": link["uri"]})
        more = await alice.call("read_more", {"id": link["name"], "offset": 30_000})
        foreign = await client.as_key(BOB).call("read_more", {"id": link["name"]})
    assert [part["type"] for part in photo["content"]] == ["image"]
    assert photo["content"][0]["mimeType"] == "image/png"
    assert (link["type"], link["uri"]) == ("resource_link", f"callgate://kept/{link['name']}")
    assert len(whole["contents"][0]["text"]) > 60_000
    assert (another.status_code, another.json()["error"]["code"]) == (400, -32602)
    assert "Report 7" in more["content"][0]["text"]
    assert foreign["isError"]


async def walk(context: Context, steps: int) -> str:
    """Walks, and says how far it is."""
    for step in range(steps + 1):
        context.progress(f"step {step}", step / steps)
        await asyncio.sleep(0)
    return "there"


async def test_progress_is_told_in_order_to_a_client_that_wants_it_and_to_no_other(age: str) -> None:
    tool = {"kind": "python", "function": f"{__name__}:walk", "safety": "read_only"}
    async with served_mcp(config_of(tool)) as client:
        call = {"name": "walk", "arguments": {"steps": 4}}
        messages = messages_of(await of_age(client, age).post("tools/call", call, meta=PROGRESS))
        quiet = await of_age(client, age).post("tools/call", call)
    told = [message["params"] for message in messages[:-1]]
    assert len(told) >= 3
    assert all(message["method"] == "notifications/progress" for message in messages[:-1])
    assert {params["progressToken"] for params in told} == {"p1"}
    assert [params["progress"] for params in told] == sorted({params["progress"] for params in told})
    assert (told[-1]["progress"], told[-1]["total"], told[-1]["message"]) == (100, 100, "step 4")
    assert messages[-1]["result"]["content"][0]["text"] == "there"
    assert quiet.headers["content-type"] == "application/json"


async def test_who_leaves_stops_the_tool() -> None:
    async with toolshed.held() as running, served_mcp(config_of("wait_for_gate")) as client:
        calling = asyncio.create_task(client.call("wait_for_gate"))
        await running.started.wait()
        calling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await calling
        async with asyncio.timeout(10):
            await running.cancelled.wait()


async def test_a_key_without_places_left_is_told_so_as_the_protocol_has_it() -> None:
    config = keyed("add", alice={"requests_per_minute": 1})
    async with served_mcp(config) as client:
        alice = client.as_key(ALICE)
        first = await alice.call("add", {"a": 1, "b": 1})
        second = await alice.post("tools/call", {"name": "add", "arguments": {"a": 1, "b": 1}})
        bob = await client.as_key(BOB).call("add", {"a": 1, "b": 1})
    assert not first["isError"]
    assert not bob["isError"]
    assert second.status_code == 429
    assert second.json()["id"] == 1
    assert second.json()["error"]["data"]["status"] == 429
    assert "retry-after" in second.headers


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"mcp-method": "tools/call"}, -32020),
        ({"mcp-method": "TOOLS/LIST"}, -32020),
        ({"mcp-method": None}, -32020),
        ({"mcp-protocol-version": None}, -32020),
        ({"mcp-protocol-version": "2027-01-01"}, -32020),
    ],
)
async def test_headers_that_are_not_what_the_body_says_are_refused(change: dict[str, str | None], code: int) -> None:
    async with served_mcp(config_of("add")) as client:
        message = client.message("tools/list")
        changed = {**client.headers(message), **change}
        headers = {name: value for name, value in changed.items() if value is not None}
        answer = await client.http.post("/mcp", json=message, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"], answer.json()["id"]) == (400, code, 1)


async def test_the_name_in_a_header_may_be_in_base64_and_has_to_be_the_one_that_is_called() -> None:
    async with served_mcp(config_of("add")) as client:
        call = {"name": "add", "arguments": {"a": 1, "b": 2}}
        wrapped = await client.post("tools/call", call, mcp_name="=?base64?YWRk?=")
        other = await client.post("tools/call", call, mcp_name="echo")
        damaged = await client.post("tools/call", call, mcp_name="=?base64?YWR?=")
        message = client.message("tools/call", call)
        twice = await client.http.post(
            "/mcp", json=message, headers=[*client.headers(message).items(), ("mcp-name", "add")]
        )
    assert wrapped.status_code == 200
    for answer in (other, damaged, twice):
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32020)


@pytest.mark.parametrize("method", ["initialize", "ping", "logging/setLevel", "resources/subscribe", "unknown/method"])
async def test_methods_that_are_not_served_are_not_found(method: str) -> None:
    async with served_mcp(config_of("add")) as client:
        answer = await client.post(method, {})
    assert (answer.status_code, answer.json()["error"]["code"], answer.json()["id"]) == (404, -32601, 1)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("[]", -32600),
        ("{", -32700),
        ("\xff", -32700),
        ('{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600),
        ('{"jsonrpc":"2.0","id":1.5,"method":"ping"}', -32600),
        ('{"id":1,"method":"ping"}', -32600),
        ('{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/list"}', -32600),
        ('{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}', -32600),
        ('{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"add","name":"echo"}}', -32602),
        ('{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":{"progressToken":[]},"name":"add"}}', -32602),
        ("[" * 2000 + "]" * 2000, -32600),
    ],
)
async def test_what_is_no_message_is_refused(body: str, code: int) -> None:
    async with served_mcp(config_of("add", "echo")) as client:
        headers = {"content-type": "application/json", "mcp-protocol-version": LEGACY}
        answer = await client.http.post("/mcp", content=body.encode("latin-1"), headers=headers)
    assert answer.json()["error"]["code"] == code
    assert answer.status_code in {200, 400}


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT"])
async def test_only_messages_are_taken(method: str) -> None:
    async with served_mcp(config_of("add")) as client:
        answer = await client.http.request(method, "/mcp")
    assert answer.status_code == 405
    if method != "PUT":
        assert answer.headers["allow"] == "POST"


async def test_it_is_gone_where_it_is_switched_off() -> None:
    async with served_mcp(config_of("add", mcp="off")) as client:
        answers = [await client.post("tools/list"), await client.http.get("/mcp")]
    assert [answer.status_code for answer in answers] == [404, 404]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({"content-type": "multipart/form-data; boundary=x"}, 415),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"host": "evil.example"}, 403),
        ({"sec-fetch-site": "cross-site", "origin": "http://localhost:1"}, 403),
    ],
)
async def test_a_web_page_cannot_call_it(headers: dict[str, str], status: int) -> None:
    async with toolshed.held() as running, served_mcp(config_of("wait_for_gate")) as client:
        message = client.message("tools/call", {"name": "wait_for_gate", "arguments": {}})
        answer = await client.http.post(
            "/mcp", content=json.dumps(message), headers={**client.headers(message), **headers}
        )
    assert answer.status_code == status
    assert not running.started.is_set()


async def test_others_call_it_without_a_key_only_where_the_operator_says_so() -> None:
    """The request comes from this machine; what counts is where the server listens."""
    for serving, status in (("auto", 403), ("on", 200)):
        config = config_of("add", server={"host": "0.0.0.0"}, mcp=serving)
        async with served_mcp(config) as client:
            answer = await client.post("tools/list")
        assert answer.status_code == status


async def test_results_of_a_tool_whose_words_are_anybodys_say_so() -> None:
    untrusted = {"kind": "python", "function": f"{toolshed.__name__}:echo", "safety": "read_only", "untrusted": True}
    async with served_mcp(config_of(untrusted, "get_time")) as client:
        marked = await client.call("echo", {"text": "hello"})
        plain = await client.call("get_time")
    assert marked["_meta"]["io.callgate/untrusted"] is True
    assert "io.callgate/untrusted" not in plain["_meta"]


async def test_a_call_with_an_idempotency_key_runs_once_and_has_one_result(tmp_path: Path) -> None:
    toolshed.steps.clear()
    meta = {"io.callgate/idempotency-key": "order 7"}
    call = {"name": "step", "arguments": {"label": "a"}}
    async with served_mcp(keyed("step", data_dir=str(tmp_path))) as client:
        alice = client.as_key(ALICE)
        at_once = await asyncio.gather(*(alice.result("tools/call", call, meta) for _ in range(5)))
        later = await alice.result("tools/call", call, meta)
        other = await alice.error("tools/call", {"name": "step", "arguments": {"label": "b"}}, meta)
        bobs = await client.as_key(BOB).result("tools/call", call, meta)
    assert all(result == later for result in at_once)
    assert bobs["_meta"] != later["_meta"]
    assert other["code"] == -32602
    assert toolshed.steps == ["+a", "-a", "+a", "-a"]


OIDC = {"issuer": "https://login.example.com", "audience": "callgate", "groups": {"*": {}}}
KEY_OF_ALICE = {"name": "alice", "hash": ALICE_HASH}


@pytest.mark.parametrize("public", [None, "https://tools.example.com"], ids=["here", "behind a proxy"])
async def test_a_client_without_a_token_is_told_where_its_user_signs_in(public: str | None) -> None:
    server = {"public_url": public} if public else {}
    config = config_of("add", auth={"oidc": OIDC}, keys=[KEY_OF_ALICE], server=server)
    async with served_mcp(config) as client:
        refused = await client.post("tools/list")
        wrong = await client.as_key("no-such-key").post("tools/list")
        base = public or str(client.http.base_url).rstrip("/")
        documents = [
            await client.http.get(f"/.well-known/oauth-protected-resource{path}") for path in ("", "/mcp", "/other")
        ]
        elsewhere = await client.http.get("/v1/models")
    for answer in (refused, wrong):
        assert answer.status_code == 401
        assert (
            f'resource_metadata="{base}/.well-known/oauth-protected-resource/mcp"' in answer.headers["www-authenticate"]
        )
    assert "resource_metadata" not in elsewhere.headers["www-authenticate"]
    assert [document.status_code for document in documents] == [200, 200, 401]
    assert documents[0].json() == documents[1].json()
    assert documents[0].json()["resource"] == f"{base}/mcp"
    assert documents[0].json()["authorization_servers"] == ["https://login.example.com"]


@pytest.mark.parametrize("host", ["[:]", "[::ffff:1.2.3.4.5]", 'a"b', "a:123456", ""])
async def test_a_host_that_is_none_is_told_to_nobody(host: str) -> None:
    async with served_mcp(config_of("add", auth={"oidc": OIDC}, keys=[KEY_OF_ALICE])) as client:
        path = "/.well-known/oauth-protected-resource/mcp"
        document = await client.http.get(path, headers={"host": host})
        refused = await client.post("tools/list", host=host)
    assert (document.status_code, document.json()["resource"]) == (200, "http://127.0.0.1:8000/mcp")
    assert refused.status_code == 401
    assert f'resource_metadata="http://127.0.0.1:8000{path}"' in refused.headers["www-authenticate"]


async def test_without_an_issuer_there_is_nothing_to_be_told() -> None:
    async with served_mcp(keyed("add")) as client:
        refused = await client.post("tools/list")
        document = await client.http.get("/.well-known/oauth-protected-resource/mcp")
        with_key = await client.http.get(
            "/.well-known/oauth-protected-resource/mcp", headers={"authorization": f"Bearer {ALICE}"}
        )
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert (document.status_code, with_key.status_code) == (401, 404)


async def test_who_has_no_key_is_refused_before_a_body_is_read() -> None:
    async with served_mcp(keyed("add")) as client:
        host = client.http.base_url.host
        reader, writer = await asyncio.open_connection(host, client.http.base_url.port)
        head = (
            b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n"
        )
        writer.write(head)
        async with asyncio.timeout(10):
            status = await reader.readline()
        writer.close()
        await writer.wait_closed()
    assert status.split()[1] == b"401"
