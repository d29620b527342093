"""Who shows a token of the company's issuer is let in with the rights of his group."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from callgate.access.keys import mint_key
from callgate.application import create_app
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.issuer import TestIssuer, auth_of
from tests.harness.server import serve
from tests.scripted_upstream import Reply, Upstream

pytestmark = pytest.mark.anyio

ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
KEY, KEY_HASH = mint_key()
GROUPS: dict[str, Any] = {
    "admins": {"admin": True, "approve": True},
    "readers": {"tools": ["get_time"], "see": "own"},
    "dev": {"models": ["m"]},
}


@contextlib.asynccontextmanager
async def signed_in(
    upstream: Upstream, groups: dict[str, Any] = GROUPS, oidc: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[tuple[TestIssuer, httpx.AsyncClient]]:
    """An issuer, and Callgate that takes its tokens beside one key."""
    async with TestIssuer().served() as issuer:
        keys = [{"name": "script", "hash": KEY_HASH}]
        config = make_config(
            upstream.url,
            tools=["get_time"],
            **{"auth": auth_of(issuer, groups, **(oidc or {})), "keys": keys} | options,
        )
        async with serve(create_app(config)) as url, http_client(url) as client:
            yield issuer, client


async def who(client: httpx.AsyncClient, credential: str) -> httpx.Response:
    return await client.get("/v1/key", headers={"authorization": f"Bearer {credential}"})


async def test_a_token_and_a_key_are_taken_side_by_side(upstream: Upstream) -> None:
    upstream.script("m", lambda _: Reply(text="hi"))
    async with signed_in(upstream) as (issuer, client):
        for credential in (issuer.token("ada", "dev"), KEY):
            answer = await client.post(
                "/v1/chat/completions", json=ASK, headers={"authorization": f"Bearer {credential}"}
            )
            assert answer.json()["choices"][0]["message"]["content"] == "hi"
        nobody = await client.post("/v1/chat/completions", json=ASK)
    assert nobody.status_code == 401
    assert issuer.asked == ["/.well-known/openid-configuration", "/keys"]


async def test_somebody_in_several_groups_has_what_the_first_of_the_config_says(upstream: Upstream) -> None:
    async with signed_in(upstream) as (issuer, client):
        told = (await who(client, issuer.token("ada", "dev", "readers", "unknown"))).json()
    assert told["tools"] == ["get_time"]
    assert told["see"] == "own"
    assert told["name"] == f"ada@{issuer.url}"
    assert told["signed_in"] == {"name": "ada", "group": "readers", "issuer": issuer.url}


async def test_somebody_in_no_group_is_told_so(upstream: Upstream) -> None:
    async with signed_in(upstream) as (issuer, client):
        refused = await who(client, issuer.token("ada", "sales", name="Ada Lovelace"))
        too_many = await who(client, issuer.token("ada", groups=None, _claim_names={"groups": "src1"}))
    assert refused.status_code == too_many.status_code == 403
    assert refused.json()["error"]["code"] == "no_group"
    assert "You are signed in as Ada Lovelace, and none of your groups has rights here" in refused.text
    assert "too many" in too_many.text


async def test_everybody_is_a_group(upstream: Upstream) -> None:
    async with signed_in(upstream, {"admins": {"admin": True}, "*": {"tools": []}}) as (issuer, client):
        told = (await who(client, issuer.token("ada", groups=None))).json()
        boss = (await who(client, issuer.token("eve", "admins"))).json()
    assert (told["admin"], told["tools"]) == (False, [])
    assert boss["admin"] is True
