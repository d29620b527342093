"""A request that has waited between its head and its chat runs nothing for a key that ended meanwhile."""

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from callgate.access.key_store import KeyStore
from callgate.access.keys import KeyEntry, mint_key
from callgate.application import create_app
from callgate.callers.admission import CapacityLimiter
from tests.harness import toolshed
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.harness.wire import raw_connection
from tests.models.wire import Request, Wire, completion, raw_provider

pytestmark = pytest.mark.anyio

(BOSS, BOSS_HASH), (EVE, EVE_HASH) = mint_key(), mint_key()
BY_BOSS = {"Authorization": f"Bearer {BOSS}"}
BY_EVE = {"Authorization": f"Bearer {EVE}"}
BOSS_KEY = {"name": "boss", "hash": BOSS_HASH, "see": "all"}
EVE_KEY = {"name": "eve", "hash": EVE_HASH}
QUESTION = {"model": "m", "messages": [{"role": "user", "content": "?"}]}
WAYS: dict[str, dict[str, Any]] = {
    "whole": {},
    "streamed": {"stream": True},
    "with tools by name": {"metadata": {"tools": "step"}},
    "without tools": {"metadata": {"tools": "none"}},
}
CALL = {"id": "call_1", "type": "function", "function": {"name": "step", "arguments": '{"label": "a"}'}}


class Provider:
    """Answers the boss's question when it is told to, and everybody else's with a call."""

    def __init__(self) -> None:
        self.was_asked = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def hold(self, request: Request, wire: Wire) -> None:
        self.was_asked.set()
        await self.may_answer.wait()
        await wire.whole(completion("held"))

    @staticmethod
    async def call(request: Request, wire: Wire) -> None:
        if len(request.body["messages"]) > 1:
            await wire.whole(completion("done"))
        else:
            await wire.whole(completion("", "tool_calls", content=None, tool_calls=[CALL]))


async def gone(client: httpx.AsyncClient) -> None:
    """Wait until eve's key is not taken any more."""
    while (await client.get("/v1/models", headers=BY_EVE)).status_code != 401:  # noqa: ASYNC110
        await asyncio.sleep(0.01)  # a server looks at the store now and then


@pytest.mark.parametrize("body", WAYS.values(), ids=WAYS)
async def test_where_it_waited_for_a_place_of_its_model(
    body: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolshed.steps.clear()
    is_waiting = asyncio.Event()
    enter = CapacityLimiter.enter

    def enter_noted(self: CapacityLimiter, wait_seconds: float) -> Any:
        if not self.places - self.running:
            is_waiting.set()
        return enter(self, wait_seconds)

    monkeypatch.setattr(CapacityLimiter, "enter", enter_noted)
    provider = Provider()
    with contextlib.closing(KeyStore(tmp_path)) as store:
        store.add(KeyEntry("eve", EVE_HASH))
        async with raw_provider(provider.hold, provider.call) as server:
            entry = {"concurrency": 1}
            settings = make_config(
                server.url,
                tools=["step"],
                auth="keys",
                keys=[BOSS_KEY],
                data_dir=str(tmp_path),
                entry=entry,
                limits={"queue_seconds": 20},
            )
            app = create_app(settings)
            async with asyncio.timeout(30), serve(app) as url, http_client(url) as client:
                holding = asyncio.create_task(client.post("/v1/chat/completions", json=QUESTION, headers=BY_BOSS))
                await provider.was_asked.wait()
                asking = asyncio.create_task(
                    client.post("/v1/chat/completions", json={**QUESTION, **body}, headers=BY_EVE)
                )
                await is_waiting.wait()
                store.revoke("eve")
                await gone(client)
                provider.may_answer.set()
                assert (await holding).status_code == 200
                answer = await asking
    assert (answer.status_code, toolshed.steps, len(server.requests)) == (401, [], 1), answer.text


@pytest.mark.parametrize("body", WAYS.values(), ids=WAYS)
async def test_where_its_body_came_while_the_config_changed(body: dict[str, Any]) -> None:
    toolshed.steps.clear()
    provider = Provider()
    async with raw_provider(provider.call) as server:

        def settings(*keys: Any) -> Any:
            return make_config(server.url, tools=["step"], auth="keys", keys=[BOSS_KEY, *keys])

        app = create_app(settings(EVE_KEY))
        async with asyncio.timeout(30), serve(app) as url, raw_connection(url) as slow:
            content = json.dumps({**QUESTION, **body}).encode()
            await slow.send(head_of(content) + content[:5])
            while not app.state.manager.current.admission.all.running:  # noqa: ASYNC110
                await asyncio.sleep(0)
            await app.state.manager.apply(settings())
            await slow.send(content[5:])
            answer = await slow.answer()
    assert (answer.status, toolshed.steps, server.requests) == (401, [], []), answer.body


async def test_where_its_body_came_slowly_and_nobody_else_has_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callgate.api.middleware.SLOW_BODY_SECONDS", 0.0)
    monkeypatch.setattr("callgate.access.key_store.LOOK_SECONDS", 0.0)
    toolshed.steps.clear()
    with contextlib.closing(KeyStore(tmp_path)) as store:
        store.add(KeyEntry("eve", EVE_HASH))
        async with raw_provider(Provider.call) as server:
            app = create_app(
                make_config(server.url, tools=["step"], auth="keys", keys=[BOSS_KEY], data_dir=str(tmp_path))
            )
            async with asyncio.timeout(30), serve(app) as url, raw_connection(url) as slow:
                content = json.dumps(QUESTION).encode()
                await slow.send(head_of(content) + content[:5])
                while not app.state.manager.current.admission.all.running:  # noqa: ASYNC110
                    await asyncio.sleep(0)
                store.revoke("eve")
                await slow.send(content[5:])
                answer = await slow.answer()
    assert (answer.status, toolshed.steps, server.requests) == (401, [], []), answer.body


def head_of(content: bytes) -> bytes:
    lines = ["POST /v1/chat/completions HTTP/1.1", "host: 127.0.0.1", f"authorization: Bearer {EVE}"]
    return "\r\n".join([*lines, f"content-length: {len(content)}", "", ""]).encode()
