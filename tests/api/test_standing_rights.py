"""Streams that stay open end when their key is revoked or may see less: rights are asked again at each event."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from callgate.application import create_app
from callgate.auth.keys import mint_key
from callgate.runtime.manager import RuntimeManager
from tests.harness import toolshed
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = pytest.mark.anyio

(BOSS, BOSS_HASH), (EVE, EVE_HASH), (_, OTHER_HASH) = mint_key(), mint_key(), mint_key()
QUESTION = {"model": "m", "messages": [{"role": "user", "content": "?"}]}
TURNS = [Reply(calls=[Call("wait_for_gate", {})]), Reply(text="done")]


def by(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@dataclass
class Served:
    client: httpx.AsyncClient
    manager: RuntimeManager
    upstream: Upstream

    async def change_eve(self, **eve: Any) -> None:
        await self.manager.apply(config(self.upstream, **eve))

    async def revoke_eve(self) -> None:
        await self.manager.apply(config(self.upstream, name=None))


def config(upstream: Upstream, *, name: str | None = "eve", **eve: Any) -> Any:
    keys = [{"name": "boss", "hash": BOSS_HASH, "see": "all"}]
    if name is not None:
        keys.append({"name": name, "hash": EVE_HASH, "see": "all", **eve})
    return make_config(upstream.url, tools=["wait_for_gate"], auth="keys", keys=keys)


@contextlib.asynccontextmanager
async def serving(upstream: Upstream) -> AsyncIterator[Served]:
    app = create_app(config(upstream))
    async with serve(app) as url, http_client(url) as client:
        yield Served(client, app.state.manager, upstream)


CHANGES: dict[str, Callable[[Served], Any]] = {
    "revoked": lambda served: served.revoke_eve(),
    "of another key now": lambda served: served.change_eve(hash=OTHER_HASH),
    "may see none": lambda served: served.change_eve(see="none"),
    "may see its own": lambda served: served.change_eve(see="own"),
    "expired": lambda served: served.change_eve(expires="2001-01-01"),
}


async def all_lines(response: httpx.Response) -> list[str]:
    return [line async for line in response.aiter_lines() if line and not line.startswith(":")]


@pytest.mark.parametrize("change", [name for name in CHANGES if name != "may see its own"])
async def test_a_feed_ends_with_the_rights_of_its_key(upstream: Upstream, change: str) -> None:
    upstream.script("m", [Reply(text="hi")])
    async with asyncio.timeout(20), serving(upstream) as served:  # noqa: SIM117 - the second needs the first
        async with served.client.stream("GET", "/v1/feed?kinds=runs", headers=by(EVE)) as feed:
            await CHANGES[change](served)
            answer = await served.client.post("/v1/chat/completions", json=QUESTION, headers=by(BOSS))
            assert answer.status_code == 200
            assert await all_lines(feed) == []


async def test_a_feed_of_a_key_that_may_see_less_has_less(upstream: Upstream) -> None:
    upstream.script("m", lambda _: Reply(text="hi"))
    async with asyncio.timeout(20), serving(upstream) as served:  # noqa: SIM117 - the second needs the first
        async with served.client.stream("GET", "/v1/feed?kinds=runs", headers=by(EVE)) as feed:
            await served.change_eve(see="own")
            for key in (BOSS, EVE):
                await served.client.post("/v1/chat/completions", json=QUESTION, headers=by(key))
            lines = feed.aiter_lines()
            async for line in lines:
                if line.startswith("data: "):
                    assert '"key":"eve"' in line
                    break


async def test_a_silent_feed_ends_too(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callgate.api.feed.KEEP_ALIVE_SECONDS", 0.05)
    async with asyncio.timeout(20), serving(upstream) as served:  # noqa: SIM117 - the second needs the first
        async with served.client.stream("GET", "/v1/feed?kinds=runs", headers=by(EVE)) as feed:
            await served.revoke_eve()
            assert await all_lines(feed) == []


@pytest.mark.parametrize("change", CHANGES)
async def test_a_run_that_is_followed_is_told_no_longer(upstream: Upstream, change: str) -> None:
    upstream.script("m", TURNS)
    async with asyncio.timeout(20), toolshed.held() as running, serving(upstream) as served:
        asking = asyncio.create_task(served.client.post("/v1/chat/completions", json=QUESTION, headers=by(BOSS)))
        await running.started.wait()
        [run] = (await served.client.get("/v1/runs", headers=by(BOSS))).json()["data"]
        live = {"Accept": "text/event-stream", **by(EVE)}
        async with served.client.stream("GET", f"/v1/runs/{run['id']}", headers=live) as followed:
            lines = followed.aiter_lines()
            async for line in lines:
                if "call_started" in line:
                    break
            await CHANGES[change](served)
            running.gate.set()
            await asking
            told = [line async for line in lines if line.startswith("data: ") and "call_started" not in line]
        assert told == []


async def test_a_response_that_is_streamed_again_is_sent_no_longer(upstream: Upstream) -> None:
    upstream.script("m", TURNS)
    async with asyncio.timeout(20), toolshed.held() as running, serving(upstream) as served:
        body = {"model": "m", "input": "?", "background": True, "stream": False}
        begun = await served.client.post("/v1/responses", json=body, headers=by(EVE))
        await running.started.wait()
        path = f"/v1/responses/{begun.json()['id']}?stream=true"
        async with served.client.stream("GET", path, headers=by(EVE)) as again:
            lines = again.aiter_lines()
            async for line in lines:
                if "response.in_progress" in line:
                    break
            await served.revoke_eve()
            running.gate.set()
            told = [line async for line in lines]
        assert [line for line in told if line.startswith("event: ") and "in_progress" not in line] == []


PUBLIC = {"auth": "off", "server": {"host": "0.0.0.0"}}


async def test_with_auth_off_on_a_public_address_nobody_approves_and_nothing_waits(upstream: Upstream) -> None:
    call = Call("send_mail", {"to": "bob", "text": "hi"})
    upstream.script("m", [Reply(calls=[call]), Reply(text="ok")])
    public = make_config(upstream.url, tools=["send_mail"], require_approval="always", **PUBLIC)
    async with asyncio.timeout(20), serve(create_app(public)) as url, http_client(url) as client:
        answer = await client.post("/v1/chat/completions", json=QUESTION)
        listed = await client.get("/v1/approvals")
        decided = await client.post("/v1/approvals/apr_1", json={"decision": "approve"})
        rights = (await client.get("/v1/key")).json()
        feed = await client.get("/v1/feed?kinds=approvals")
    assert answer.json()["choices"][0]["message"]["content"] == "ok"
    assert "nobody can be asked" in upstream.requests[-1].body["messages"][-1]["content"]
    assert [each.status_code for each in (listed, decided, feed)] == [403, 403, 403]
    assert "Nobody may decide about calls without a key" in listed.text
    assert rights["approve"] is False
