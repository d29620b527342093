"""A config that allows more is taken only when somebody says so, whoever writes the file and however slowly."""

import asyncio
import contextlib
import json
import os
import re
import signal
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from callgate.access.key_store import KeyStore
from callgate.access.keys import KeyEntry, hash_key, mint_key
from callgate.application import create_app
from callgate.config.load import load
from callgate.runtime.reload import ConfigSource
from callgate.state.cluster.postgres import migrate
from callgate.state.cluster.redis_news import RedisNews
from tests.harness.clients import http_client
from tests.harness.command import run_command
from tests.harness.configs import as_yaml, config_dict, make_config
from tests.harness.needs import needs
from tests.harness.postgres import PostgresServer
from tests.harness.process import Child, serving_command
from tests.harness.redis import redis_server
from tests.harness.served import served_to_http
from tests.harness.server import serve
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = pytest.mark.anyio

USER, USER_HASH = mint_key()
BOSS, BOSS_HASH = mint_key()
KEYS: list[dict[str, Any]] = [
    {"name": "user", "hash": USER_HASH},
    {"name": "boss", "hash": BOSS_HASH, "admin": True, "approve": True},
]
QUESTION = {"model": "m", "messages": [{"role": "user", "content": "?"}]}
BY_BOSS = {"Authorization": f"Bearer {BOSS}"}


def a_config(upstream: Upstream, **sections: Any) -> dict[str, Any]:
    """With what guards at its end, so that half of the file is a config too."""
    return config_dict(upstream.url, auth="keys", tools=["get_time"]) | {"keys": KEYS} | sections


@contextlib.asynccontextmanager
async def served(file: Path, config: dict[str, Any]) -> AsyncIterator[tuple[Child, httpx.AsyncClient]]:
    file.write_text(as_yaml(config))  # noqa: ASYNC240 - a small file, before anything runs
    async with serving_command(file) as child, http_client(child.url) as client:
        yield child, client


def first_half(file: Path, section: str) -> tuple[str, str]:
    whole = file.read_text()
    at = whole.index(f"\n{section}:") + 1
    return whole[:at], whole[at:]


async def metric(client: httpx.AsyncClient, name: str, headers: dict[str, str]) -> float:
    text = (await client.get("/metrics", headers=headers)).text
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} "))


async def test_a_file_whose_keys_are_not_written_yet_lets_nobody_in(upstream: Upstream, tmp_path: Path) -> None:
    upstream.script("m", [Reply(text="hi")])
    file = tmp_path / "config.yaml"
    async with served(file, a_config(upstream)) as (child, client):
        half, end = first_half(file, "keys")
        with file.open("w") as writing:
            writing.write(half)
            writing.flush()
            await child.line("config_not_reloaded.*none is left")
            for method, path in (("POST", "/v1/chat/completions"), ("GET", "/v1/approvals"), ("GET", "/admin/keys")):
                answer = await client.request(method, path, json=QUESTION if method == "POST" else None)
                assert answer.status_code == 401
            assert (await client.get("/health/ready")).json() == {"status": "ok", "config": "refused"}
            assert await metric(client, "callgate_config_refused", BY_BOSS) == 1
            writing.write(end)
        await child.line("config_reloaded")
        assert (await client.get("/health/ready")).json() == {"status": "ok"}
        assert await metric(client, "callgate_config_refused", BY_BOSS) == 0
        answer = await client.post("/v1/chat/completions", json=QUESTION, headers=BY_BOSS)
        assert answer.status_code == 200


async def test_a_file_whose_approvals_are_not_written_yet_runs_nothing_unasked(
    upstream: Upstream, tmp_path: Path
) -> None:
    upstream.script("m", lambda _: Reply(calls=[Call("get_time", {})]))
    file = tmp_path / "config.yaml"
    config = a_config(upstream, require_approval={"always": ["get_time"]}, approvals={"timeout_seconds": 600})
    async with served(file, config) as (child, client):
        half, end = first_half(file, "require_approval")
        with file.open("w") as writing:
            writing.write(half)
            writing.flush()
            refused = await child.line("config_not_reloaded.*")
            assert "require_approval: would not have `get_time` wait for approval any more" in refused[0]
            assert "tools.get_time.require_approval: would not wait for approval any more" in refused[0]
            asking = asyncio.create_task(client.post("/v1/chat/completions", json=QUESTION, headers=BY_BOSS))
            await child.line("approval_waiting")
            writing.write(end)
        await child.line("config_reloaded")
        asking.cancel()
        await asyncio.wait([asking])


async def test_what_widens_is_taken_when_an_admin_says_so_and_is_an_event(upstream: Upstream, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    async with served(file, a_config(upstream, reload={"watch": False})) as (child, client):
        wider = [{**KEYS[0], "approve": True}, KEYS[1]]
        file.write_text(as_yaml(a_config(upstream, keys=wider, reload={"watch": False})))
        answer = await client.post("/admin/reload", headers=BY_BOSS)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (409, "config_widens")
        assert "keys.user.approve: was `off`, and would be `on`" in error["message"]
        assert f"{file}:" in error["message"]
        child.signal(signal.SIGHUP)
        await child.line("config_not_reloaded.*callgate reload --widen")
        by_user = {"Authorization": f"Bearer {USER}"}
        assert (await client.get("/v1/approvals", headers=by_user)).status_code == 403
        async with client.stream("GET", "/v1/feed?kinds=config", headers=BY_BOSS) as feed:
            lines = feed.aiter_lines()
            assert await anext(lines) == ": connected"
            refused = await asyncio.to_thread(run_command, "reload", "--url", child.url, "--key", BOSS)
            assert refused.returncode == 1
            assert "--widen" in refused.stderr
            taken = await asyncio.to_thread(run_command, "reload", "--widen", "--url", child.url, "--key", BOSS)
            assert "allowed by now: keys.user.approve was `off`" in taken.stdout
            told = await until_taken(lines)
        assert all(each["refused"] for each in told[:-1])
        assert told[-1]["widened"] == ["keys.user.approve was `off`, and would be `on`"]
        line = await child.line("authority_widened.*")
        for named in ("keys.user.approve", "boss", "POST /admin/reload", f"{file}:"):
            assert named in line[0]
        assert (await client.get("/v1/approvals", headers=by_user)).status_code == 200
        assert await metric(client, "callgate_authority_widened_total", BY_BOSS) == 1


async def until_taken(lines: AsyncIterator[str]) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = []
    async for line in lines:
        if line.startswith("data: "):
            told.append(json.loads(line[6:]))
            if not told[-1]["refused"]:
                break
    return told


async def test_what_was_left_out_for_a_moment_does_not_come_back_with_more(upstream: Upstream, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    narrow = [{**KEYS[0], "models": ["m"]}, KEYS[1]]
    guards = {"always": ["get_*"]}
    quiet = {"reload": {"watch": False}}
    whole = a_config(upstream, keys=narrow, **quiet)
    whole["tools"] = [{**tool, "require_approval": guards} for tool in whole["tools"]]
    async with served(file, whole) as (_, client):
        less = whole | {"keys": [KEYS[1]], "tools": [], "model_list": [dict(each) for each in whole["model_list"]]}
        for each in less["model_list"]:
            each.pop("tools", None)
        file.write_text(as_yaml(less))
        assert (await client.post("/admin/reload", headers=BY_BOSS)).status_code == 200
        file.write_text(as_yaml(a_config(upstream, **quiet)))
        answer = await client.post("/admin/reload", headers=BY_BOSS)
        assert answer.status_code == 409
        message = answer.json()["error"]["message"]
        assert "keys.user.models: would also allow `*`" in message
        assert "tools.get_time.require_approval: would not wait for approval any more" in message
        file.write_text(as_yaml(whole))
        assert (await client.post("/admin/reload", headers=BY_BOSS)).status_code == 200


@pytest.mark.parametrize("setting", ["ca_file", "client_certificate", "client_key"])
async def test_a_pipe_in_place_of_a_certificate_does_not_stop_the_server(
    upstream: Upstream, tmp_path: Path, setting: str
) -> None:
    file = tmp_path / "config.yaml"
    async with served(file, a_config(upstream, reload={"watch": False})) as (_, client):
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "certificate").write_text("x")
        named = {"client_certificate": str(tmp_path / "certificate")} if setting == "client_key" else {}
        named[setting] = str(tmp_path / "pipe")
        file.write_text(as_yaml(a_config(upstream, reload={"watch": False}) | {"upstream": named}))
        answer = await client.post("/admin/reload", headers=BY_BOSS)
        assert (answer.status_code, "a pipe or a device" in answer.text) == (422, True)


async def test_a_new_key_model_and_tool_are_ordinary_changes(upstream: Upstream, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    async with served(file, a_config(upstream)) as (child, client):
        more = [*KEYS, {"name": "third", "hash": mint_key()[1], "admin": True}]
        config = config_dict(upstream.url, auth="keys", models=["m", "n"], tools=["get_time", "add"])
        file.write_text(as_yaml(config | {"keys": more}))
        await child.line("config_reloaded")
        names = (await client.get("/v1/models", headers=BY_BOSS)).json()["data"]
        assert [each["id"] for each in names] == ["m", "n"]


async def test_not_even_an_admin_takes_the_last_key_but_auth_off_does(upstream: Upstream, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    quiet = {"reload": {"watch": False}}
    async with served(file, a_config(upstream, **quiet)) as (_, client):
        file.write_text(as_yaml(a_config(upstream, keys=[], **quiet)))
        answer = await client.post("/admin/reload", headers=BY_BOSS, json={"widen": True})
        assert (answer.status_code, "none is left" in answer.text) == (422, True)
        file.write_text(as_yaml(a_config(upstream, keys=[], auth="off", **quiet)))
        assert (await client.post("/admin/reload", headers=BY_BOSS)).status_code == 409
        answer = await client.post("/admin/reload", headers=BY_BOSS, json={"widen": True})
        assert answer.json()["widened"] == ["auth was `keys`, and would be `off`"]
        assert (await client.get("/v1/models")).status_code == 200


async def test_a_server_that_had_keys_does_not_start_without_any(upstream: Upstream, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    async with served(file, a_config(upstream, data_dir=str(tmp_path / "data"))) as (_, client):
        assert (await client.get("/v1/models")).status_code == 401
    file.write_text(as_yaml(a_config(upstream, data_dir=str(tmp_path / "data"), keys=[])))
    for command in ("check", "serve"):
        refused = await asyncio.to_thread(run_command, command, "--config", str(file))
        assert refused.returncode == 2
        assert "had keys, and none is left" in refused.stderr
    file.write_text(as_yaml(a_config(upstream, data_dir=str(tmp_path / "data"), keys=[], auth="off")))
    async with serving_command(file) as child, http_client(child.url) as client:
        assert (await client.get("/v1/models")).status_code == 200


async def test_a_key_store_that_was_emptied_is_no_server_without_keys(upstream: Upstream, tmp_path: Path) -> None:
    file, data = tmp_path / "config.yaml", tmp_path / "data"
    file.write_text(as_yaml(a_config(upstream, data_dir=str(data), keys=[])))
    made = await asyncio.to_thread(run_command, "keys", "create", "ann", "--config", str(file))
    assert made.returncode == 0, made.stderr
    with contextlib.closing(sqlite3.connect(data / "keys.sqlite3")) as store, store:
        store.execute("DELETE FROM keys")
    refused = await asyncio.to_thread(run_command, "serve", "--config", str(file))
    assert (refused.returncode, "had keys, and none is left" in refused.stderr) == (2, True)


async def test_a_pipe_in_place_of_the_config_does_not_hold_a_reload(upstream: Upstream, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    async with served(file, a_config(upstream)) as (child, client):
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "pipe").replace(file)
        await child.line("config_not_reloaded.*a pipe or a device")
        answer = await client.post("/admin/reload", headers=BY_BOSS)
        assert (answer.status_code, "a pipe or a device" in answer.text) == (422, True)
        assert (await client.get("/v1/models", headers=BY_BOSS)).status_code == 200


@needs("redis-server", "module:redis")
async def test_what_one_process_took_the_others_of_its_redis_take_too(upstream: Upstream, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    async with redis_server(tmp_path) as redis:
        shared = {"reload": {"watch": False}, "store": {"redis_url": redis}}
        async with served(file, a_config(upstream, **shared)) as (_, client), serving_command(file) as other:  # noqa: SIM117
            async with http_client(other.url) as there:
                assert (await there.get("/health/ready")).status_code == 200
                wider = [{**KEYS[0], "approve": True}, KEYS[1]]
                file.write_text(as_yaml(a_config(upstream, keys=wider, **shared)))
                answer = await client.post("/admin/reload", headers=BY_BOSS, json={"widen": True})
                assert answer.json()["widened"]
                line = await other.line("authority_widened.*")
                assert "another process" in line[0]
                by_user = {"Authorization": f"Bearer {USER}"}
                assert (await there.get("/v1/approvals", headers=by_user)).status_code == 200


@needs("redis-server", "module:redis")
async def test_what_was_taken_before_a_process_listened_is_taken_when_it_does(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.yaml"
    by_user = {"Authorization": f"Bearer {USER}"}
    async with redis_server(tmp_path) as redis:
        shared = {"reload": {"watch": False}, "store": {"redis_url": redis}}
        file.write_text(as_yaml(a_config(upstream, **shared)))
        first, second = (create_app(load(file, environ={}).config, a_source(file)) for _ in range(2))
        async with serve(first) as url, http_client(url) as client:
            with monkeypatch.context() as deaf:
                deaf.setattr(RedisNews, "open", lambda _: None)
                life = contextlib.AsyncExitStack()
                there = await life.enter_async_context(http_client(await life.enter_async_context(serve(second))))
            async with life:
                wider = [{**KEYS[0], "approve": True}, KEYS[1]]
                file.write_text(as_yaml(a_config(upstream, keys=wider, **shared)))
                assert (await client.post("/admin/reload", headers=BY_BOSS, json={"widen": True})).json()["widened"]
                assert (await there.get("/v1/approvals", headers=by_user)).status_code == 403
                news = second.state.manager._news
                news.open()
                async with asyncio.timeout(30):
                    while (await there.get("/v1/approvals", headers=by_user)).status_code != 200:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
                # Another file is nothing that anybody has taken.
                widest = [{**KEYS[0], "approve": True, "admin": True}, KEYS[1]]
                file.write_text(as_yaml(a_config(upstream, keys=widest, **shared)))
                with capture_logs() as logs:
                    news._on_news("listening")
                    async with asyncio.timeout(30):
                        while "config_not_reloaded" not in [line["event"] for line in logs]:  # noqa: ASYNC110
                            await asyncio.sleep(0.01)


def a_source(file: Path) -> ConfigSource:
    return ConfigSource(lambda: load(file, environ={}), lambda: (file,))


async def test_what_a_restart_widens_is_an_event_too(upstream: Upstream, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    kept: dict[str, Any] = {"data_dir": str(tmp_path / "data"), "reload": {"watch": False}}
    waiting = a_config(upstream, require_approval={"always": ["get_time"]}, **kept)
    async with served(file, waiting) as (_, client):
        assert await metric(client, "callgate_authority_widened_total", BY_BOSS) == 0
    wider = a_config(upstream, keys=[{**KEYS[0], "see": "all"}, KEYS[1]], **kept)
    async with served(file, wider) as (child, client):
        line = (await child.line("authority_widened.*"))[0]
        for named in (
            "keys.user.see was `none`",
            "tools.get_time.require_approval",
            "require_approval would",
            "a restart",
        ):
            assert named in line
        assert re.search(rf"{file}:[0-9]+:[0-9]+", line)
        assert await metric(client, "callgate_authority_widened_total", BY_BOSS) == 3


async def test_a_file_of_what_was_allowed_that_cannot_be_read_is_told_and_the_server_starts(
    upstream: Upstream, tmp_path: Path
) -> None:
    for damaged in (b"[", b"[" * 100_000, b"[" + b"{}," * 300_000 + b"{}]"):
        (tmp_path / "authority.json").write_bytes(damaged)
        app = create_app(make_config(upstream.url, data_dir=str(tmp_path)))
        with capture_logs() as logs:
            async with serve(app) as url, http_client(url) as client:
                assert (await client.get("/health/ready")).status_code == 200
        [told] = [line for line in logs if line["event"] == "authority_widened"]
        assert "cannot be read" in str(told)
        json.loads((tmp_path / "authority.json").read_bytes())


@pytest.mark.parametrize(("keyless", "status"), [("nobody", 403), ("this_machine", 403), ("everybody", 200)])
async def test_without_a_key_the_config_says_who_approves_on_an_open_address(
    upstream: Upstream, keyless: str, status: int
) -> None:
    options = {"auth": "off", "server": {"host": "0.0.0.0"}, "approvals": {"keyless": keyless}}
    async with served_to_http(upstream, **options) as client:
        assert (await client.get("/v1/approvals")).status_code == status


@pytest.mark.parametrize(("keyless", "status"), [({}, 200), ({"keyless": "nobody"}, 403)])
async def test_alone_at_the_machine_one_approves_unless_the_config_says_nobody(
    upstream: Upstream, keyless: dict[str, str], status: int
) -> None:
    async with served_to_http(upstream, approvals=keyless) as client:
        assert (await client.get("/v1/approvals")).status_code == status


async def told_by_start(upstream: Upstream, **sections: Any) -> list[str]:
    """What a start with these settings says that is allowed more."""
    app = create_app(make_config(upstream.url, tools=["get_time"], **sections))
    with capture_logs() as logs:
        async with serve(app) as url, http_client(url) as client:
            assert (await client.get("/health/ready")).status_code == 200
    return [str(line["widened"]) for line in logs if line["event"] == "authority_widened"]


@needs("postgres", "module:asyncpg")
async def test_where_there_is_only_a_ledger_it_holds_what_was_allowed(
    upstream: Upstream, postgres: PostgresServer, schema: str
) -> None:
    await migrate(postgres.url, schema)
    ledger = {"url": postgres.url, "namespace": schema}
    async with asyncio.timeout(60):
        assert await told_by_start(upstream, ledger=ledger, require_approval="always") == []
        [told] = await told_by_start(upstream, ledger=ledger)
        assert "tools.get_time.require_approval would not wait" in told
        assert await told_by_start(upstream, ledger=ledger) == []


async def test_a_key_made_with_rights_is_counted_by_one_of_the_processes_that_see_it(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callgate.access.key_store.LOOK_SECONDS", 0.0)
    config = make_config(upstream.url, data_dir=str(tmp_path), auth="keys", keys=KEYS)
    store = KeyStore(tmp_path)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(asyncio.timeout(60))
        apps = [create_app(config) for _ in range(3)]
        urls = [await stack.enter_async_context(serve(app)) for app in apps]
        clients = [await stack.enter_async_context(http_client(url)) for url in urls]
        feeds = [app.state.manager.recorder.watchers.watch("anonymous") for app in apps]
        with capture_logs() as logs:
            for name in ("eve", "mallory"):
                store.add(KeyEntry(name, hash_key(name), approve=True))
                for client in clients:
                    await client.get("/v1/models", headers=BY_BOSS)
                for feed in feeds:
                    while f"keys.{name} may approve" not in str((await feed.get())[1]):
                        pass
            for app in apps:
                await app.state.manager.shared.widenings.close()
        for app, feed in zip(apps, feeds, strict=True):
            app.state.manager.recorder.watchers.unwatch(feed)
    store.close()
    assert [line["event"] for line in logs if "authority" in line["event"]] == ["authority_widened"] * 2
