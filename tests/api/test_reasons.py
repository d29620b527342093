"""What a provider said stands in the answer where who asks is who operates the server, and nowhere else."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from callgate.access.keys import mint_key
from tests.harness.served import served_to_http
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = pytest.mark.anyio

REFUSED = Reply(status=401, body={"error": {"message": "No such account: acme-corp.", "type": "invalid_request_error"}})
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
RESPONSE = {"model": "m", "input": "hello"}
MESSAGE = {**CHAT, "max_tokens": 9}
ALONE = {"auth": "keys"}
FACES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", CHAT),
    ("/v1/responses", RESPONSE),
    ("/v1/messages", MESSAGE),
]


async def refused(client: httpx.AsyncClient, upstream: Upstream, path: str, body: Any, **options: Any) -> str:
    upstream.script("m", [REFUSED], repeat_last=True)
    answer = await client.post(path, json=body, **options)
    return answer.text


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("tools", [(), ("add",)], ids=["passed through", "with tools"])
@pytest.mark.parametrize(("path", "body"), FACES, ids=["chat", "responses", "messages"])
async def test_a_server_for_one_person_says_the_providers_reason(
    upstream: Upstream, path: str, body: dict[str, Any], tools: tuple[str, ...], stream: bool
) -> None:
    async with served_to_http(upstream, *tools, **ALONE) as client:
        said = await refused(client, upstream, path, {**body, "stream": stream})

    assert said.count("No such account: acme-corp.") == 1
    assert "refused this proxy's credentials" in said


async def test_an_address_where_nothing_listens_is_named(upstream: Upstream) -> None:
    entry = {"litellm_params": {"model": "openai/m", "api_base": "http://127.0.0.1:1", "api_key": "sk-x"}}
    async with served_to_http(upstream, entry=entry, upstream={"retries": 0}, **ALONE) as client:
        answer = await client.post("/v1/chat/completions", json=CHAT)

    assert "cannot be reached" in answer.json()["error"]["message"]
    assert "refused" in answer.json()["error"]["message"].lower()


@pytest.fixture(params=["a key", "everyone", "a public address"])
async def others(request: pytest.FixtureRequest, upstream: Upstream) -> AsyncIterator[tuple[httpx.AsyncClient, Any]]:
    """A client of a server that others reach, and its headers."""
    key, hash = mint_key()
    ways: dict[str, dict[str, Any]] = {
        "a key": {"auth": "keys", "keys": [{"name": "alice", "hash": hash, "admin": True}]},
        "everyone": {"auth": "off"},
        "a public address": {"auth": "keys", "server": {"public_url": "https://llm.example.com"}},
    }
    async with served_to_http(upstream, **ways[request.param]) as client:
        yield client, {"headers": {"authorization": f"Bearer {key}"}}


@pytest.mark.parametrize(("path", "body"), FACES, ids=["chat", "responses", "messages"])
async def test_others_are_not_told(
    upstream: Upstream, others: tuple[httpx.AsyncClient, Any], path: str, body: dict[str, Any]
) -> None:
    client, options = others
    said = await refused(client, upstream, path, body, **options)

    assert "acme-corp" not in said
    assert "refused this proxy's credentials" in said


async def test_after_a_write_the_reason_stays_out_of_the_message(upstream: Upstream) -> None:
    async with served_to_http(upstream, "send_mail", **ALONE) as client:
        upstream.script("m", [Reply(calls=[Call("send_mail", {"to": "a", "text": "b"})]), REFUSED], repeat_last=True)
        error = (await client.post("/v1/chat/completions", json=CHAT)).json()["error"]

    assert error["code"] == "failed_after_write"
    assert "acme-corp" not in error["message"]
