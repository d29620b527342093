"""A chat that runs asks for its rights before each turn of its model and each call of its tools."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from callgate.access.key_store import KeyStore
from callgate.access.keys import KeyEntry, mint_key
from callgate.application import create_app
from callgate.callers.rights import Access
from callgate.runtime.manager import RuntimeManager
from tests.harness import toolshed
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.models.wire import Request, Wire, completion, raw_provider
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = pytest.mark.anyio

(BOSS, BOSS_HASH), (EVE, EVE_HASH), (_, OTHER_HASH) = mint_key(), mint_key(), mint_key()
BY_EVE = {"Authorization": f"Bearer {EVE}"}
BY_BOSS = {"Authorization": f"Bearer {BOSS}"}
QUESTION = {"model": "m", "messages": [{"role": "user", "content": "?"}], "max_tokens": 10}
MAIL = Call("send_mail", {"to": "bob", "text": "hi"})
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": QUESTION,
    "/v1/messages": QUESTION,
    "/v1/responses": {"model": "m", "input": "?"},
}


@dataclass
class Served:
    client: httpx.AsyncClient
    manager: RuntimeManager
    upstream: Upstream
    settings: dict[str, Any]

    async def change(self, *, eve: dict[str, Any] | None = None, **settings: Any) -> None:
        """Reload with another key of eve (None: with none), or with other settings."""
        await self.manager.apply(config(self.upstream, eve=eve, **{**self.settings, **settings}))


def config(upstream: Upstream, *, eve: dict[str, Any] | None, **settings: Any) -> Any:
    keys: list[dict[str, Any]] = [{"name": "boss", "hash": BOSS_HASH, "approve": True, "see": "all"}]
    if eve is not None:
        keys.append({"name": "eve", "hash": EVE_HASH, **eve})
    tools = settings.pop("tools", ["wait_for_gate", "send_mail"])
    return make_config(upstream.url, tools=tools, auth="keys", keys=keys, **settings)


@contextlib.asynccontextmanager
async def served_to_eve(upstream: Upstream, **settings: Any) -> AsyncIterator[Served]:
    app = create_app(config(upstream, eve={}, **settings))
    async with asyncio.timeout(30), serve(app) as url, http_client(url) as client:
        yield Served(client, app.state.manager, upstream, settings)


ENDS: dict[str, Callable[[Served], Any]] = {
    "revoked": lambda served: served.change(),
    "of another secret": lambda served: served.change(eve={"hash": OTHER_HASH}),
    "expired": lambda served: served.change(eve={"expires": "2001-01-01"}),
    "may not ask the model": lambda served: served.change(eve={"models": ["other"]}, models=("m", "other")),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", BODIES)
async def test_no_turn_follows_the_end_of_a_key(upstream: Upstream, path: str, stream: bool) -> None:
    upstream.script("m", [Reply(calls=[Call("wait_for_gate", {})]), Reply(text="secret")])
    async with toolshed.held() as running, served_to_eve(upstream) as served:
        body = {**BODIES[path], "stream": stream}
        asking = asyncio.create_task(served.client.post(path, json=body, headers=BY_EVE))
        await running.started.wait()
        await served.change()
        running.gate.set()
        answer = await asking
    assert len(upstream.requests) == 1
    assert "Incorrect API key" in answer.text
    assert stream or answer.status_code == 401


@pytest.mark.parametrize("end", ENDS)
async def test_every_way_to_lose_a_model_ends_its_chat(upstream: Upstream, end: str) -> None:
    upstream.script("m", [Reply(calls=[Call("wait_for_gate", {})]), Reply(text="secret")])
    async with toolshed.held() as running, served_to_eve(upstream) as served:
        asking = asyncio.create_task(served.client.post("/v1/chat/completions", json=QUESTION, headers=BY_EVE))
        await running.started.wait()
        await ENDS[end](served)
        running.gate.set()
        answer = await asking
    assert len(upstream.requests) == 1
    assert answer.status_code in (401, 404)


async def test_a_background_run_ends_with_its_key_and_says_why(upstream: Upstream, tmp_path: Path) -> None:
    upstream.script("m", [Reply(calls=[Call("wait_for_gate", {})]), Reply(text="secret")])
    async with toolshed.held() as running, served_to_eve(upstream, data_dir=str(tmp_path)) as served:
        body = {"model": "m", "input": "?", "background": True}
        response = (await served.client.post("/v1/responses", json=body, headers=BY_EVE)).json()
        await running.started.wait()
        await served.change()
        running.gate.set()
        while not (runs := (await served.client.get("/v1/runs", headers=BY_BOSS)).json()["data"])[0]["status"]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # the list is all that a client can look at
        await served.change(eve={})
        url = f"/v1/responses/{response['id']}"
        while (told := (await served.client.get(url, headers=BY_EVE)).json())["status"] == "in_progress":  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # it is stored after the run is recorded
    assert len(upstream.requests) == 1
    assert runs[0]["error"] == "invalid_api_key"
    assert told["status"] == "failed"
    assert "no key any more" in told["error"]["message"]


@pytest.mark.parametrize("is_reloaded", [False, True], ids=["in the key store", "by a reload"])
async def test_no_call_is_run_for_a_key_that_ended_while_the_model_was_asked(is_reloaded: bool, tmp_path: Path) -> None:
    toolshed.steps.clear()
    was_asked = asyncio.Event()
    is_revoked = asyncio.Event()
    call = {"id": "call_1", "type": "function", "function": {"name": "step", "arguments": '{"label": "a"}'}}

    async def answer_late(request: Request, wire: Wire) -> None:
        was_asked.set()
        await is_revoked.wait()
        await wire.whole(completion("", "tool_calls", content=None, tool_calls=[call]))

    async def say_done(request: Request, wire: Wire) -> None:
        await wire.whole(completion("done"))

    key, hash = mint_key()
    boss = {"name": "boss", "hash": BOSS_HASH, "see": "all"}
    with contextlib.closing(KeyStore(tmp_path)) as store:
        store.add(KeyEntry("mallory", hash))
        async with raw_provider(answer_late, say_done) as provider:
            settings = make_config(provider.url, tools=["step"], auth="keys", keys=[boss], data_dir=str(tmp_path))
            app = create_app(settings)
            async with asyncio.timeout(30), serve(app) as url, http_client(url) as client:
                by_mallory = {"Authorization": f"Bearer {key}"}
                asking = asyncio.create_task(client.post("/v1/chat/completions", json=QUESTION, headers=by_mallory))
                await was_asked.wait()
                store.revoke("mallory")
                if is_reloaded:
                    await app.state.manager.apply(settings)
                while (await client.get("/v1/models", headers=by_mallory)).status_code != 401:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)  # a server looks at the store now and then
                is_revoked.set()
                answer = await asking
                [run] = (await client.get("/v1/runs", headers=BY_BOSS)).json()["data"]
    assert (answer.status_code, toolshed.steps, len(provider.requests)) == (401, [], 1)
    assert (run["turns"], run["error"]) == (1, "invalid_api_key")


CALLS: dict[str, Callable[[Served], Any]] = {
    "the key has fewer tools": lambda served: served.change(eve={"tools": ["wait_for_gate"]}),
    "the model is offered fewer": lambda served: served.change(eve={}, entry={"tools": ["wait_for_gate"]}),
    "the tool is gone": lambda served: served.change(eve={}, tools=["wait_for_gate"]),
    "the key is gone": lambda served: served.change(),
}


@pytest.mark.parametrize("change", CALLS)
async def test_a_call_that_was_approved_is_not_run_where_it_is_not_allowed_any_more(
    upstream: Upstream, change: str
) -> None:
    upstream.script("m", [Reply(calls=[MAIL]), Reply(text="ok")])
    async with served_to_eve(upstream, require_approval="always") as served:
        asking = asyncio.create_task(served.client.post("/v1/chat/completions", json=QUESTION, headers=BY_EVE))
        while not (waiting := (await served.client.get("/v1/approvals", headers=BY_BOSS)).json()["data"]):  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # the list is all that a client can look at
        await CALLS[change](served)
        approve = {"decision": "approve"}
        await served.client.post(f"/v1/approvals/{waiting[0]['id']}", json=approve, headers=BY_BOSS)
        answer = (await asking).json()
        [run] = (await served.client.get("/v1/runs", headers=BY_BOSS)).json()["data"]
        events = (await served.client.get(f"/v1/runs/{run['id']}", headers=BY_BOSS)).json()
    assert "mailbox is full" not in json.dumps(events) + json.dumps(upstream.requests[-1].body)
    if change == "the key is gone":
        assert "Incorrect API key" in answer["error"]["message"]
    else:
        assert "may not be used any more" in upstream.requests[-1].body["messages"][-1]["content"]


async def test_a_call_that_has_to_be_approved_by_now_is_not_run_without(upstream: Upstream) -> None:
    calls = [Call("wait_for_gate", {}), MAIL]
    upstream.script("m", [Reply(calls=calls), Reply(text="ok")])
    async with toolshed.held() as running, served_to_eve(upstream) as served:
        asking = asyncio.create_task(served.client.post("/v1/chat/completions", json=QUESTION, headers=BY_EVE))
        await running.started.wait()
        await served.change(eve={}, require_approval={"always": ["send_mail"]})
        running.gate.set()
        await asking
    assert "needs approval by now" in upstream.requests[-1].body["messages"][-1]["content"]


async def test_a_chat_goes_on_over_a_reload_that_takes_nothing_from_it(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[Call("wait_for_gate", {}), MAIL]), Reply(text="ok")])
    async with toolshed.held() as running, served_to_eve(upstream) as served:
        asking = asyncio.create_task(served.client.post("/v1/chat/completions", json=QUESTION, headers=BY_EVE))
        await running.started.wait()
        await served.change(eve={"requests_per_minute": 100})
        running.gate.set()
        answer = (await asking).json()
    assert answer["choices"][0]["message"]["content"] == "ok"
    assert "mailbox is full" in upstream.requests[-1].body["messages"][-1]["content"]


async def test_a_body_that_came_slowly_is_read_under_the_keys_of_then(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callgate.api.middleware.SLOW_BODY_SECONDS", 0.0)
    upstream.script("m", [Reply(text="secret")])
    admitted = asyncio.Event()
    admit = Access.admit

    def admit_noted(self: Access, headers: Any) -> Any:
        admitted.set()
        return admit(self, headers)

    monkeypatch.setattr(Access, "admit", admit_noted)
    async with served_to_eve(upstream) as served:

        async def body() -> AsyncIterator[bytes]:
            whole = json.dumps(QUESTION).encode()
            yield whole[:10]
            await admitted.wait()
            await served.change()
            yield whole[10:]

        answer = await served.client.post("/v1/chat/completions", content=body(), headers=BY_EVE)
    assert answer.status_code == 401
    assert len(upstream.requests) == 0


SLOW: dict[str, dict[str, Any]] = {
    "/mcp": {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "step", "arguments": {"label": "a"}},
    },
    "/v1/tools/step/call": {"arguments": {"label": "a"}},
    "/v1/embeddings": {"model": "m", "input": "?"},
    "/v1/messages/count_tokens": QUESTION,
    "/v1/responses/input_tokens": BODIES["/v1/responses"],
    "/v1/conversations": {},
    "/v1/approvals/apr_1": {"decision": "approve"},
    "/admin/keys": {"name": "mallory", "admin": True},
    "/admin/reload": {"widen": True},
    "/admin/record": {"content": "on"},
    "/admin/held-tools": {"server": "s", "tool": "t", "digest": "d"},
    "/v1/logins": {"server": "s"},
}


@pytest.mark.parametrize("path", SLOW)
async def test_nothing_is_done_for_a_key_that_ended_while_its_body_came(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch, path: str, tmp_path: Path
) -> None:
    toolshed.steps.clear()
    monkeypatch.setattr("callgate.api.middleware.SLOW_BODY_SECONDS", 0.0)
    admitted = asyncio.Event()
    admit = Access.admit

    def admit_noted(self: Access, headers: Any) -> Any:
        admitted.set()
        return admit(self, headers)

    monkeypatch.setattr(Access, "admit", admit_noted)
    async with served_to_eve(upstream, tools=["step"], data_dir=str(tmp_path)) as served:
        await served.change(eve={"admin": True, "approve": True, "see": "all"})

        async def body() -> AsyncIterator[bytes]:
            whole = json.dumps(SLOW[path]).encode()
            yield whole[:1]
            await admitted.wait()
            await served.change()
            yield whole[1:]

        headers = {**BY_EVE, "content-type": "application/json"}
        answer = await served.client.post(path, content=body(), headers=headers)
        listed = await served.client.get("/v1/models", headers=BY_BOSS)
    assert (answer.status_code, listed.status_code) == (401, 200), answer.text
    assert toolshed.steps == []
    assert len(upstream.requests) == 0
