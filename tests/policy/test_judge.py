"""What a request may name is the same on every API, every route and every lane, and `docs/security.md` shows the table."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from callgate.access.keys import mint_key
from callgate.api.chat_request import OURS_IN_CHATS
from callgate.application import create_app
from callgate.callers.caller import Caller
from callgate.models.routes import PATHS
from callgate.policy.judge import NamedThings, judge_chat_fast, judge_named
from callgate.policy.nameable import (
    ADDRESS,
    HOSTED_TOOL,
    OPERATORS,
    OTHER_MODEL,
    PLAIN,
    RULES,
    SELECTORS,
    SWITCHES,
    Rule,
)
from callgate.responses.request import NOT_CARRIED
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.harness.websocket import websocket
from tests.models.wire import Request, Wire, raw_provider
from tests.scripted_upstream import Reply, Upstream

pytestmark = [pytest.mark.anyio, pytest.mark.leaves("litellm", why="litellm keeps its thread for logging")]

KEY, HASH = mint_key()
SECURITY = Path(__file__).parents[2] / "docs" / "security.md"
LANES: dict[str, dict[str, Any]] = {
    "direct": {"lane": "direct"},
    "responses": {"lane": "responses"},
    "claude": {"lane": "translated", "provider": "anthropic"},
    "gemini": {"lane": "translated", "provider": "gemini"},
    "cohere": {"lane": "translated", "provider": "cohere"},
    "litellm": {"lane": "litellm"},
}
CHAT = {"messages": [{"role": "user", "content": "hi"}]}
APIS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/openai/deployments/m/chat/completions": CHAT,
    "/chat/completions": {**CHAT, "functions": [{"name": "f", "parameters": {"type": "object"}}]},
    "/v1/responses": {"input": "hi"},
    "/v1/responses/input_tokens": {"input": "hi"},
    "/v1/messages": {**CHAT, "max_tokens": 9},
    "/v1/messages/count_tokens": CHAT,
}
ADDRESSED = (
    {"type": "mcp", "server_label": "x", "server_url": "https://attacker.example/mcp"},
    {"type": "url", "name": "x", "url": "https://attacker.example/mcp"},
    {"type": " MCP ", "server_label": "x"},
    {"type": "anything", "server_url": "https://attacker.example/mcp"},
    {"type": "anything", "connector_id": "connector_gmail"},
    {"type": "web_search", "name": "web_search", "tunnel_id": "t"},
)
RUN_BY_PROVIDERS = (
    {"type": "web_search", "name": "web_search"},
    {"type": "code_execution_20250522", "name": "code_execution"},
    {"type": "web_fetch", "googleSearch": {}},
)
NAMED: list[tuple[Rule, dict[str, Any], str]] = [
    *((OTHER_MODEL, {name: ["dear"]}, name) for name in sorted(SELECTORS)),
    (OPERATORS, {"conversation": "conv_1"}, "conversation"),
    (OPERATORS, {"prompt": {"id": "pmpt_1"}}, "prompt.id"),
    (OPERATORS, {"container": "cntr_1"}, "container"),
    (OPERATORS, {"vector_store_ids": ["vs_1"]}, "vector_store_ids"),
    (OPERATORS, {"cached_content": "c/1"}, "cached_content"),
    (OPERATORS, {"extra": {"inner": [{"file_ids": ["f"]}]}}, "extra.inner[0].file_ids"),
    *((ADDRESS, {"tools": [tool]}, "tools[0]") for tool in ADDRESSED),
    *((HOSTED_TOOL, {name: {"on": 1}}, name) for name in sorted(SWITCHES)),
    *((HOSTED_TOOL, {"tools": [tool]}, "tools[0]") for tool in RUN_BY_PROVIDERS),
]


def is_left_out(path: str, rule: Rule, named: Mapping[str, Any]) -> bool:
    """True for tools on the Responses API that nobody here runs: they are left out, and no provider hears of them."""
    return rule is HOSTED_TOOL and path.startswith("/v1/responses") and "tools" in named


def is_ours(path: str, named: Mapping[str, Any]) -> bool:
    """True for a conversation on the Responses API, which keeps them here."""
    return path.startswith("/v1/responses") and "conversation" in named


def place_of(path: str, param: str) -> str:
    """The same place in the words of an API."""
    if path.startswith("/v1/messages"):
        return param.replace("[", ".").replace("]", "")
    return param


def named_in_error(path: str, answer: Any) -> tuple[int, str | None, str]:
    """The status, the code and the place in the answer of an API; Anthropic's has its place in the message."""
    error = answer.json().get("error") or {}
    if path.startswith("/v1/messages"):
        return answer.status_code, error.get("details", {}).get("error_code"), error.get("message", "")
    return answer.status_code, error.get("code"), error.get("param") or ""


@pytest.mark.parametrize("lane", LANES)
async def test_naming_a_thing_comes_to_the_same_on_every_api_and_lane(upstream: Upstream, lane: str) -> None:
    keys = [{"name": "alice", "hash": HASH, "tools": ["get_time"]}]
    config = make_config(upstream.url, auth="keys", keys=keys, tools=("get_time",), **LANES[lane])
    wrong = []
    async with serve(create_app(config)) as url, http_client(url) as client:
        client.headers["authorization"] = f"Bearer {KEY}"
        for path, plain in APIS.items():
            for rule, named, param in NAMED:
                if is_left_out(path, rule, named) or is_ours(path, named):
                    continue
                answer = await client.post(path, json={"model": "m", **plain, **named})
                status, code, place = named_in_error(path, answer)
                if (status, code) != (rule.status, rule.code) or place_of(path, param) not in place:
                    wrong.append((path, named, status, code, place))
    assert wrong == []
    assert not upstream.requests


async def test_naming_a_thing_comes_to_the_same_over_a_websocket(upstream: Upstream) -> None:
    keys = [{"name": "alice", "hash": HASH, "tools": ["get_time"]}]
    config = make_config(upstream.url, auth="keys", keys=keys, tools=("get_time",))
    wrong = []
    path = "/v1/responses"
    async with serve(create_app(config)) as url:
        for rule, named, param in NAMED:
            if is_left_out(path, rule, named) or is_ours(path, named):
                continue
            async with websocket(url, authorization=f"Bearer {KEY}") as socket:
                [said] = await socket.turn({"model": "m", "input": "hi", **named})
            error = said.get("error", {})
            is_named = param in (error.get("param") or "")
            if (said.get("status"), error.get("code"), is_named) != (rule.status, rule.code, True):
                wrong.append((named, said))
    assert wrong == []
    assert not upstream.requests


HEADERS = """
    openai-organization openai-project openai-beta anthropic-beta x-goog-user-project x-goog-api-key cookie x-forwarded-host
    helicone-auth x-title http-referer x-stainless-lang
""".split()
OF_THE_CLIENT = dict.fromkeys(HEADERS, "of-the-client") | {"api-key": KEY, "x-api-key": KEY}


@pytest.mark.parametrize("lane", LANES)
async def test_no_header_of_a_client_reaches_a_provider(lane: str) -> None:
    async def refuse(_: Request, wire: Wire) -> None:
        await wire.send(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}")

    keys = [{"name": "alice", "hash": HASH}]
    async with raw_provider(refuse) as provider:
        config = make_config(provider.url, auth="keys", keys=keys, upstream={"retries": 0}, **LANES[lane])
        async with serve(create_app(config)) as url, http_client(url) as client:
            client.headers["authorization"] = f"Bearer {KEY}"
            for path, plain in APIS.items():
                await client.post(path, json={"model": "m", **plain}, headers=OF_THE_CLIENT)
    assert provider.requests
    reached = {
        name
        for request in provider.requests
        for name, value in request.headers.items()
        if "of-the-client" in value or KEY in value
    }
    # A beta is how Anthropic's own API names a feature of a body.
    assert reached <= ({"anthropic-beta"} if lane == "claude" else set())


KEPT_AT = (
    "gs://bucket/of-the-operator.png",
    "s3://bucket/of-the-operator.png",
    "FILE:///etc/passwd",
    "https://generativelanguage.googleapis.com/v1beta/files/of-another",
)


def shown(path: str, address: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Images and files at an address, in the words of an API, and where they are named."""
    if path.startswith("/v1/messages"):
        for kind in ("image", "document"):
            block = {"type": kind, "source": {"type": "url", "url": address}}
            yield {"messages": [{"role": "user", "content": [block]}]}, f"messages.0.content.0.{kind}.source"
    elif path.startswith("/v1/responses"):
        for kind, field in (("input_image", "image_url"), ("input_file", "file_url")):
            content = [{"type": kind, field: address}]
            yield (
                {"input": [{"role": "user", "content": content}]},
                f"[0].content[0].{field}",
            )  # in the words of a chat or its own
    else:
        parts = [{"type": "image_url", "image_url": {"url": address}}, {"type": "file", "file": {"file_id": address}}]
        for part, where in zip(parts, ("image_url.url", "file.file_id"), strict=True):
            yield {"messages": [{"role": "user", "content": [part]}]}, f"messages[0].content[0].{where}"


@pytest.mark.parametrize("lane", LANES)
async def test_what_the_operator_keeps_elsewhere_has_no_address_that_a_client_may_name(
    upstream: Upstream, lane: str
) -> None:
    keys = [{"name": "alice", "hash": HASH}]
    config = make_config(upstream.url, auth="keys", keys=keys, **LANES[lane])
    wrong = []
    async with serve(create_app(config)) as url, http_client(url) as client:
        client.headers["authorization"] = f"Bearer {KEY}"
        for path, plain in APIS.items():
            for address in KEPT_AT:
                for named, where in shown(path, address):
                    answer = await client.post(path, json={"model": "m", **plain, **named})
                    status, _, place = named_in_error(path, answer)
                    if status != 400 or where not in place:
                        wrong.append((path, named, status, place))
    assert wrong == []
    assert not upstream.requests


@pytest.mark.parametrize("path", PATHS)
async def test_naming_a_thing_comes_to_the_same_on_routes_that_are_proxied(upstream: Upstream, path: str) -> None:
    keys = [{"name": "alice", "hash": HASH, "tools": []}]
    config = make_config(upstream.url, auth="keys", keys=keys)
    wrong = []
    async with serve(create_app(config)) as url, http_client(url) as client:
        client.headers["authorization"] = f"Bearer {KEY}"
        for rule, named, param in NAMED:
            answer = await client.post(f"/v1{path}", json={"model": "m", "input": "hi", **named})
            if named_in_error(path, answer) != (rule.status, rule.code, param):
                wrong.append((named, answer.text))
        for rule, name in (
            (OTHER_MODEL, "models[]"),
            (OPERATORS, "file_ids[]"),
            (HOSTED_TOOL, "plugins"),
            (ADDRESS, "tools"),
        ):
            form = {"model": "m", name: "x"}
            answer = await client.post(f"/v1{path}", data=form, files={"image": ("a.png", b"\x89PNG", "image/png")})
            if named_in_error(path, answer) != (rule.status, rule.code, name.partition("[")[0]):
                wrong.append((form, answer.text))
        for tools in ({"type": "mcp"}, [["mcp"]], "mcp"):
            answer = await client.post(f"/v1{path}", json={"model": "m", "input": "hi", "tools": tools})
            assert named_in_error(path, answer) == (400, "invalid_type", "tools")
        for kind in (["mcp"], {"mcp": 1}, 7):
            inner: list[Any] = [{"type": kind, "x": 1}]
            for entries in ([{"type": kind}], [{"type": "namespace", "tools": inner}]):
                answer = await client.post(f"/v1{path}", json={"model": "m", "input": "hi", "tools": entries})
                assert named_in_error(path, answer)[:2] == (400, "invalid_type")
    assert wrong == []
    assert not upstream.requests


@pytest.mark.parametrize("path", APIS)
async def test_the_setting_that_allows_a_thing_allows_it_on_every_api(upstream: Upstream, path: str) -> None:
    upstream.script("m", lambda _: Reply(text="fine"))
    named_tools = [f"provider:{name}" for name in (*SWITCHES, "web_search", "code_execution*")]
    keys = [{"name": "alice", "hash": HASH, "tools": named_tools}]
    config = make_config(upstream.url, auth="keys", keys=keys, entry={"provider_selectors": True})
    refused = []
    async with serve(create_app(config)) as url, http_client(url) as client:
        client.headers["authorization"] = f"Bearer {KEY}"
        for rule, named, _ in NAMED:
            answer = await client.post(path, json={"model": "m", **APIS[path], **named})
            if answer.status_code == rule.status and named_in_error(path, answer)[1] == rule.code:
                refused.append((rule, named))
    upstream.problems.clear()  # it knows none of these tools
    if path.startswith("/v1/responses"):
        refused = [(rule, named) for rule, named in refused if not NOT_CARRIED.keys() & named.keys()]
    assert all(rule is ADDRESS or "googleSearch" in json.dumps(named) for rule, named in refused), refused
    assert sum(rule is ADDRESS for rule, _ in refused) == len(ADDRESSED), "no setting allows an address"


def table() -> str:
    """The rows of the page."""
    consents = {"": "nothing", "provider_selectors": "`provider_selectors: on` of the model's entry"}
    consents["tools"] = "`tools` of the key: `provider:NAME`"
    rows = [f"| {rule.what} | {rule.by} | {rule.status} `{rule.code}` | {consents[rule.consent]} |" for rule in RULES]
    return "\n".join(["| a request may not name | by | answer | unless allowed by |", "|---|---|---|---|", *rows])


def test_the_page_on_security_shows_the_table() -> None:
    assert table() in SECURITY.read_text("utf-8"), f"write this into the page:\n{table()}"


FREE, NARROW = Caller("free"), Caller("narrow", tools=("get_time",))


@pytest.mark.parametrize("caller", [FREE, NARROW], ids=lambda caller: caller.name)
@pytest.mark.parametrize(
    "name", sorted({*PLAIN, *SELECTORS, *SWITCHES, "api_base", "metadata", "top_k", "prompt", "file_id"})
)
def test_what_is_judged_fast_comes_to_the_same(name: str, caller: Caller) -> None:
    fields = {"model": msgspec.Raw(b'"m"'), name: msgspec.Raw(b'{"id": "x"}')}
    fast = judge_chat_fast(fields, caller)
    if fast is not None:
        named = NamedThings(fields, may_have_ids=False, ours=OURS_IN_CHATS, tools_are_judged=True)
        assert fast == judge_named(named, caller, may_select=False)
    assert (fast is not None) == (name in PLAIN and caller is FREE)
