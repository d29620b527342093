"""One way in for every route: whatever the application has, now or later, nobody comes in without a key."""

import re

import httpx
import pytest
from fastapi import FastAPI

from callgate.access.keys import mint_key
from callgate.api.middleware import OPEN_PATHS, is_page
from callgate.application import create_app
from callgate.config.schema.whole import Config
from tests.harness.clients import http_client
from tests.harness.server import serve

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ALICE, ALICE_HASH = mint_key()
MODEL = {"model_name": "demo", "litellm_params": {"model": "demo/demo"}}
CONFIG = {"model_list": [MODEL], "keys": [{"name": "alice", "hash": ALICE_HASH, "models": [], "tools": []}]}
FILLED = "x"


def routes(app: FastAPI) -> list[tuple[str, str]]:
    """Every method and path, with something in the place of parameters."""
    found = set()
    for route in _all(app.routes):
        path = re.sub(r"\{[^}]*\}", FILLED, str(getattr(route, "path", "/")))
        found |= {(method, path) for method in getattr(route, "methods", None) or {"GET"}}
    return sorted(found)


def _all(listed):
    for route in listed:
        yield route
        included = getattr(route, "original_router", route)  # FastAPI lists a router that was included as one route
        yield from _all(getattr(included, "routes", None) or ())


@pytest.mark.parametrize("key", [None, "wrong", ALICE[:-1]], ids=["none", "wrong", "shorter"])
async def test_no_route_answers_without_the_right_key(key: str | None) -> None:
    app = create_app(Config.model_validate(CONFIG))
    listed = routes(app)
    assert ("POST", "/v1/chat/completions") in listed
    assert len(listed) > 8
    async with serve(app) as url, http_client(url) as client:
        for method, path in [*listed, ("GET", "/nowhere"), ("POST", "/admin/reload")]:
            if is_page(path):  # files of the package, which say nothing of this server
                continue
            for shown in {path, path + "/", path.upper(), "/" + path, path + "?x=/health/live"} - set(OPEN_PATHS):
                meant = shown.partition("?")[0].rstrip("/")  # a slash at the end makes no difference
                if path in OPEN_PATHS and meant in OPEN_PATHS:
                    continue
                answer = await _asked(client, method, shown, key)
                assert answer.status_code == 401, (method, shown)
                if method != "HEAD":
                    assert _code(answer) in (None, "invalid_api_key"), (method, shown)


UPGRADE = {
    "upgrade": "websocket",
    "connection": "Upgrade",
    "sec-websocket-version": "13",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
}
BOTH_KEYS = [
    {"authorization": "Bearer", "x-api-key": ALICE},
    {"authorization": "Bearer another", "api-key": ALICE},
    {"authorization": f"Bearer {ALICE}", "x-api-key": ""},
]


@pytest.mark.parametrize("keys", BOTH_KEYS, ids=["an empty one", "another", "an empty one behind it"])
async def test_no_route_answers_two_credentials_that_are_not_the_same(keys: dict[str, str]) -> None:
    app = create_app(Config.model_validate(CONFIG))
    listed = [(method, path, keys) for method, path in routes(app) if not is_page(path) and path not in OPEN_PATHS]
    assert {"/mcp", "/v1/messages", "/v1/responses"} <= {path for _, path, _ in listed}
    async with serve(app) as url, http_client(url) as client:
        for method, path, headers in [*listed, ("GET", "/v1/responses", {**keys, **UPGRADE})]:
            answer = await client.request(method, path, headers=headers)
            assert answer.status_code == 401, (method, path)
            if method != "HEAD":
                assert _code(answer) == "invalid_api_key", (method, path)
                assert "Send" in answer.text, (method, path)


async def test_with_another_key_no_route_gives_what_is_not_that_keys(caplog: pytest.LogCaptureFixture) -> None:
    app = create_app(Config.model_validate(CONFIG))
    async with serve(app) as url, http_client(url) as client:
        asked = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}
        chat = await client.post("/v1/chat/completions", json=asked, headers={"authorization": f"Bearer {ALICE}"})
        assert (chat.status_code, chat.json()["error"]["code"]) == (404, "model_not_found")
        one = await _asked(client, "GET", "/v1/models/demo", ALICE)
        assert one.status_code == 404
        assert (await _asked(client, "GET", "/v1/models", ALICE)).json()["data"] == []
        assert (await _asked(client, "POST", "/admin/reload", ALICE)).status_code in {401, 403, 404}


@pytest.mark.parametrize("listening", ["127.0.0.1", "0.0.0.0"])
async def test_without_keys_no_route_answers_under_a_name_that_was_pointed_here(listening: str) -> None:
    """What a web page sends that has the browser take its own name for this server."""
    app = create_app(Config.model_validate({"model_list": [MODEL], "auth": "off", "server": {"host": listening}}))
    async with serve(app) as url, http_client(url) as client:
        for method, path in [*routes(app), ("POST", f"/v1/approvals/{FILLED}"), ("GET", "/")]:
            if path not in OPEN_PATHS:
                answer = await client.request(method, path, headers={"host": "evil.example:8000"})
                assert answer.status_code == 403, (method, path)
                assert method == "HEAD" or _code(answer) == "host_not_allowed"
        assert (await client.get("/v1/models")).status_code == 200


@pytest.mark.parametrize(
    ("rights", "status"),
    [({}, 200), ({"models": ["demo"]}, 403), ({"tools": []}, 403), ({"models": ["demo"], "admin": True}, 200)],
)
async def test_metrics_are_for_keys_that_may_see_every_model_and_tool(rights: dict[str, object], status: int) -> None:
    config = {"model_list": [MODEL], "keys": [{"name": "alice", "hash": ALICE_HASH, **rights}]}
    async with serve(create_app(Config.model_validate(config))) as url, http_client(url) as client:
        answer = await _asked(client, "GET", "/metrics", ALICE)
    assert answer.status_code == status
    assert ("callgate_requests" in answer.text) == (status == 200)


def _code(answer: httpx.Response) -> object:
    """In OpenAI's shape, Anthropic's or that of MCP."""
    error = answer.json()["error"]
    if isinstance(error.get("code"), int):
        return error["data"]["error_code"]
    return error["code"] if "code" in error else error.get("details", {}).get("error_code")


async def _asked(client: httpx.AsyncClient, method: str, path: str, key: str | None) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    address = f"{str(client.base_url).rstrip('/')}{path}"  # whole: a path that begins with two slashes is no host
    return await client.request(method, address, headers=headers, content=b"{}" if method == "POST" else None)
