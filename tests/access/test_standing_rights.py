"""Streams that stay open end when their key is revoked or may see less: rights are asked again at each event."""

import ast
import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

import callgate
from callgate.access.key_store import KeyStore
from callgate.access.keys import KeyEntry, mint_key
from callgate.application import create_app
from callgate.callers.rights import Access
from callgate.runtime.manager import RuntimeManager
from tests.harness import toolshed
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.harness.websocket import websocket
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = pytest.mark.anyio

(BOSS, BOSS_HASH), (EVE, EVE_HASH), (_, OTHER_HASH) = mint_key(), mint_key(), mint_key()
QUESTION = {"model": "m", "messages": [{"role": "user", "content": "?"}]}
SERVER = {"first_chunk_seconds": 0.05}
TURNS = [Reply(calls=[Call("wait_for_gate", {})]), Reply(text="done")]


def by(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@dataclass
class Served:
    url: str
    client: httpx.AsyncClient
    manager: RuntimeManager
    upstream: Upstream
    data_dir: Path | None

    async def change_eve(self, **eve: Any) -> None:
        await self.manager.apply(config(self.upstream, data_dir=self.data_dir, **eve))

    async def revoke_eve(self) -> None:
        await self.manager.apply(config(self.upstream, name=None, data_dir=self.data_dir))


def config(upstream: Upstream, *, name: str | None = "eve", data_dir: Path | None = None, **eve: Any) -> Any:
    keys = [{"name": "boss", "hash": BOSS_HASH, "see": "all"}]
    if name is not None:
        keys.append({"name": name, "hash": EVE_HASH, "see": "all", **eve})
    folder = {} if data_dir is None else {"data_dir": str(data_dir)}
    return make_config(upstream.url, tools=["wait_for_gate"], auth="keys", keys=keys, server=SERVER, **folder)


@contextlib.asynccontextmanager
async def served_with_rights(upstream: Upstream, data_dir: Path | None = None, **eve: Any) -> AsyncIterator[Served]:
    app = create_app(config(upstream, data_dir=data_dir, **eve))
    async with serve(app) as url, http_client(url) as client:
        yield Served(url, client, app.state.manager, upstream, data_dir)


CHANGES: dict[str, Callable[[Served], Any]] = {
    "revoked": lambda served: served.revoke_eve(),
    "of another key now": lambda served: served.change_eve(hash=OTHER_HASH),
    "may see none": lambda served: served.change_eve(see="none"),
    "may see its own": lambda served: served.change_eve(see="own"),
    "expired": lambda served: served.change_eve(expires="2001-01-01"),
}


async def all_lines(response: httpx.Response) -> list[str]:
    return [line async for line in response.aiter_lines() if line and not line.startswith(":")]


def ended(lines: list[str]) -> None:
    """Checks that a stream was told that it may see no more, and nothing else."""
    assert lines[0] == "event: error", lines
    error = json.loads(lines[1].removeprefix("data: "))["error"]
    assert error["type"] in ("invalid_request_error", "permission_error")
    assert lines[2:] == []


@pytest.mark.parametrize("change", [name for name in CHANGES if name != "may see its own"])
async def test_a_feed_ends_with_the_rights_of_its_key(upstream: Upstream, change: str) -> None:
    upstream.script("m", [Reply(text="hi")])
    async with asyncio.timeout(30), served_with_rights(upstream) as served:  # noqa: SIM117 - the second needs the first
        async with served.client.stream("GET", "/v1/feed?kinds=runs", headers=by(EVE)) as feed:
            await CHANGES[change](served)
            answer = await served.client.post("/v1/chat/completions", json=QUESTION, headers=by(BOSS))
            assert answer.status_code == 200
            ended(await all_lines(feed))


async def test_a_feed_of_a_key_that_may_see_less_has_less(upstream: Upstream) -> None:
    upstream.script("m", lambda _: Reply(text="hi"))
    async with asyncio.timeout(30), served_with_rights(upstream) as served:  # noqa: SIM117 - the second needs the first
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
    monkeypatch.setattr("callgate.recorder.routes.feed.KEEP_ALIVE_SECONDS", 0.05)
    async with asyncio.timeout(30), served_with_rights(upstream) as served:  # noqa: SIM117 - the second needs the first
        async with served.client.stream("GET", "/v1/feed?kinds=runs", headers=by(EVE)) as feed:
            await served.revoke_eve()
            ended(await all_lines(feed))


@pytest.mark.parametrize("change", CHANGES)
async def test_a_run_that_is_followed_is_told_no_longer(upstream: Upstream, change: str) -> None:
    upstream.script("m", TURNS)
    async with asyncio.timeout(30), toolshed.held() as running, served_with_rights(upstream) as served:
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
            told = [line async for line in lines if line and "call_started" not in line and not line.startswith("id:")]
        ended(told)


async def test_a_response_that_is_streamed_again_is_sent_no_longer(upstream: Upstream) -> None:
    upstream.script("m", TURNS)
    async with asyncio.timeout(30), toolshed.held() as running, served_with_rights(upstream) as served:
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
        told = [line for line in told if line.startswith(("event: ", "data: ")) and "in_progress" not in line]
        assert [line for line in told if line.startswith("event: ")] == ["event: error"]
        assert "Incorrect API key" in told[1]
        assert told[2:] == ["data: [DONE]"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
async def test_the_stream_of_a_run_that_is_kept_ends_with_its_key(
    upstream: Upstream, tmp_path: Path, path: str
) -> None:
    upstream.script("m", TURNS)
    body = {"model": "m", "messages": QUESTION["messages"], "max_tokens": 10}
    if path == "/v1/responses":
        body = {"model": "m", "input": "?"}
    headers = {**by(EVE), "Idempotency-Key": "k"}
    async with asyncio.timeout(30), toolshed.held() as running, served_with_rights(upstream, tmp_path) as served:
        asking = served.client.stream("POST", path, json={**body, "stream": True}, headers=headers)
        async with asking as answer:
            await running.started.wait()
            await served.revoke_eve()
            running.gate.set()
            text = (await answer.aread()).decode()
    assert "Incorrect API key" in text
    assert '"done"' not in text
    last = text.strip().rpartition("\n\n")[2]
    assert last == "data: [DONE]" or last.startswith("event: error")


async def test_the_response_of_a_websocket_ends_with_its_key_and_so_does_the_connection(upstream: Upstream) -> None:
    upstream.script("m", TURNS)
    async with asyncio.timeout(30), toolshed.held() as running, served_with_rights(upstream) as served:  # noqa: SIM117
        async with websocket(served.url, authorization=f"Bearer {EVE}") as socket:
            await socket.send({"type": "response.create", "model": "m", "input": "?"})
            await running.started.wait()
            await served.revoke_eve()
            running.gate.set()
            while (message := await socket.message())["type"] != "error":
                assert message["type"] != "response.completed"
            assert message["status"] == 401
            assert await socket.closing_code() == 1008


async def test_a_key_that_another_process_revokes_ends_its_streams(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callgate.access.key_store.LOOK_SECONDS", 0.0)
    upstream.script("m", [Reply(text="hi")])
    store = KeyStore(tmp_path)
    store.add(KeyEntry("eve", EVE_HASH, see="all"))
    async with asyncio.timeout(30), served_with_rights(upstream, tmp_path, name=None) as served:  # noqa: SIM117
        async with served.client.stream("GET", "/v1/feed?kinds=runs", headers=by(EVE)) as feed:
            store.revoke("eve")
            await served.client.post("/v1/chat/completions", json=QUESTION, headers=by(BOSS))
            ended(await all_lines(feed))
    store.close()


async def test_keys_are_read_again_only_after_a_change(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    upstream.script("m", lambda _: Reply(text="hi"))
    admissions: list[str] = []
    admit = Access.admit

    def admit_counted(self: Access, headers: Any) -> Any:
        admissions.append(headers["authorization"])
        return admit(self, headers)

    monkeypatch.setattr(Access, "admit", admit_counted)
    async with asyncio.timeout(30), served_with_rights(upstream) as served:  # noqa: SIM117
        async with served.client.stream("GET", "/v1/feed?kinds=runs", headers=by(EVE)) as feed:
            for _ in range(5):
                await served.client.post("/v1/chat/completions", json=QUESTION, headers=by(BOSS))
            lines = feed.aiter_lines()
            for _ in range(5):
                while not (await anext(lines)).startswith("data: "):
                    pass
    assert admissions.count(f"Bearer {EVE}") == 1


def test_every_response_that_is_streamed_by_itself_asks_for_rights() -> None:
    app = Path(callgate.__file__).parent
    streamed = {}
    for file in app.rglob("*.py"):
        source = file.read_text()
        if "Response)" not in source:
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef) and any(ast.unparse(base).endswith("Response") for base in node.bases):
                streamed[node.name] = ast.get_source_segment(source, node) or ""
        assert "StreamingResponse(" not in source.replace("(StreamingResponse)", ""), file
    unasked = {name for name, text in streamed.items() if "def __call__" in text and "send_while_allowed" not in text}
    assert streamed
    assert not unasked


PUBLIC = {"auth": "off", "server": {"host": "0.0.0.0"}}


async def test_with_auth_off_on_a_public_address_nobody_approves_and_nothing_waits(upstream: Upstream) -> None:
    call = Call("send_mail", {"to": "bob", "text": "hi"})
    upstream.script("m", [Reply(calls=[call]), Reply(text="ok")])
    public = make_config(upstream.url, tools=["send_mail"], require_approval="always", **PUBLIC)
    async with asyncio.timeout(30), serve(create_app(public)) as url, http_client(url) as client:
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
