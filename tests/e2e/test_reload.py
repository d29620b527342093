"""A reload under load: requests that run do not notice."""

import asyncio
import json
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from callgate.access.keys import mint_key
from callgate.application import create_app
from callgate.config.load import load
from callgate.runtime.manager import RuntimeManager
from callgate.runtime.reload import ConfigSource
from tests.chaos.scale import scaled
from tests.harness.clients import http_client
from tests.harness.configs import as_yaml, config_dict
from tests.harness.leftovers import children
from tests.harness.needs import needs
from tests.harness.process import serving_command
from tests.harness.redis import redis_server
from tests.harness.server import serve
from tests.harness.wire import raw_post
from tests.scripted_upstream import Call, Reply, Upstream
from tests.tools.executor_kinds import RAW_MCP

pytestmark = pytest.mark.anyio

WORKERS = scaled(8, 20)
RELOADS = scaled(6, 200)
"""200 is the number we promise."""
WATCHING = pytest.mark.leaves("AnyIO worker thread", why="watchfiles waits in one; they are kept")


def server(**more: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-S", str(RAW_MCP)], "prefix": "", **more}


def asks_the_server(request: Any) -> Reply:
    """Calls the tool that names its process, and answers with what it said."""
    last = request.body["messages"][-1]
    return Reply(text=last["content"]) if last["role"] == "tool" else Reply(calls=[Call("pid", {})])


@dataclass
class Fleet:
    """Clients that ask without a pause until they are stopped."""

    answers: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    enough: bool = False

    async def ask(self, client: Any, number: int) -> None:
        question = {"model": "m", "stream": bool(number % 2), "messages": [{"role": "user", "content": "who?"}]}
        while not self.enough:
            answer = await client.post("/v1/chat/completions", json=question)
            if answer.status_code != 200 or "error" in answer.text:
                self.failures.append(answer.text)
            else:
                self.answers.append(said_in(answer.text) if number % 2 else whole(answer.json()))


def said_in(stream: str) -> str:
    events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    return "".join(c["delta"].get("content") or "" for event in events for c in event["choices"])


def whole(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


def the_config(upstream: Upstream, turn: int) -> dict[str, Any]:
    """Something is different every time; the first server never, the second every fifth time."""
    servers = {"steady": server(), "fickle": server(prefix="fickle", env={"TURN": str(turn // 5)})}
    return config_dict(
        upstream.url,
        tools=["get_time"] if turn % 2 else ["get_time", "add"],
        entry={"tools": ["*"]},
        mcp_servers=servers,
        loop={"max_iterations": 5 + turn % 3},
    )


@pytest.mark.timeout(600)
async def test_many_reloads_under_a_steady_load_fail_no_request_and_leave_nothing(
    upstream: Upstream, tmp_path: Path
) -> None:
    upstream.script("m", asks_the_server)
    file = tmp_path / "config.yaml"
    file.write_text(as_yaml(the_config(upstream, 0)))
    app = create_app(load(file, environ={}).config, ConfigSource(lambda: load(file, environ={})))
    manager: RuntimeManager = app.state.manager
    before = children()
    fleet = Fleet()
    async with serve(app) as url, http_client(url) as client:
        tasks_before = len(asyncio.all_tasks())
        async with asyncio.TaskGroup() as group:
            for number in range(WORKERS):
                group.create_task(fleet.ask(client, number))
            for turn in range(1, RELOADS + 1):
                file.write_text(as_yaml(the_config(upstream, turn)))
                moved = await manager.reload()
                assert moved.kept_sources == (("steady",) if turn % 5 == 0 else ("fickle", "steady"))
                seen = len(fleet.answers)
                while len(fleet.answers) < seen + WORKERS and not fleet.failures:  # noqa: ASYNC110 - let the load through
                    await asyncio.sleep(0.005)
            fleet.enough = True
        assert fleet.failures == []
        assert len(fleet.answers) >= RELOADS * WORKERS
        assert len(set(fleet.answers)) == 1, "the server whose entry never changed was never restarted"
        async with asyncio.timeout(30):
            while len(children() - before) > 2 or len(manager._background):  # noqa: ASYNC110 - old ones take a moment to end
                await asyncio.sleep(0.02)
        assert len(manager.shared.sources) == 2
        assert len(asyncio.all_tasks()) <= tasks_before + WORKERS, "only the clients' kept connections may be more"
    assert children() == before


async def test_a_chat_that_began_before_a_reload_offers_what_it_began_with_and_calls_nothing_that_is_gone(
    upstream: Upstream, tmp_path: Path
) -> None:
    reached, go_on = asyncio.Event(), asyncio.Event()

    def turns(request: Any) -> Reply:
        last = request.body["messages"][-1]
        if last["role"] == "tool":
            return Reply(text=f"{last['content']}; offered: {len(request.body['tools'])}")
        reached.set()
        return Reply(calls=[Call("get_time")])

    upstream.script("m", turns)
    file = tmp_path / "config.yaml"
    file.write_text(as_yaml(config_dict(upstream.url, tools=["get_time", "add"], require_approval="always")))
    app = create_app(load(file, environ={}).config, ConfigSource(lambda: load(file, environ={})))
    async with serve(app) as url, http_client(url) as client:
        question = {"model": "m", "messages": [{"role": "user", "content": "?"}]}
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=question))
        await reached.wait()
        file.write_text(as_yaml(config_dict(upstream.url, tools=["echo"])))
        assert (await client.post("/admin/reload", json={"widen": True})).status_code == 200
        approvals = app.state.manager.shared.approvals
        while not approvals.waiting():
            await approvals.changed()
        [asked] = (await client.get("/v1/approvals")).json()["data"]
        await client.post(f"/v1/approvals/{asked['id']}", json={"decision": "approve"})
        go_on.set()
        assert whole((await asking).json()) == "Not run: this tool may not be used any more.; offered: 3"


async def test_the_route_answers_what_has_changed_and_what_is_wrong(upstream: Upstream, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(as_yaml(config_dict(upstream.url)))
    app = create_app(load(file, environ={}).config, ConfigSource(lambda: load(file, environ={})))
    async with serve(app) as url, http_client(url) as client:
        file.write_text(as_yaml(config_dict(upstream.url, tools=["echo"], server={"port": 1})))
        answer = (await client.post("/admin/reload")).json()
        assert answer == {
            "object": "reload",
            "changed": ["server", "model_list", "tools"],
            "kept": [],
            "opened": [],
            "needs_restart": ["server.port"],
            "widened": [],
        }
        file.write_text("loop:\n  max_iteration: 1\n")
        answer = await client.post("/admin/reload")
        assert answer.status_code == 422
        error = answer.json()["error"]
        assert error["code"] == "config_invalid"
        assert f"{file}:2:3: loop.max_iteration: unknown key" in error["message"]
        assert (await client.get("/v1/models")).status_code == 200


async def test_only_a_key_with_admin_may_reload(upstream: Upstream, tmp_path: Path) -> None:
    (user, user_hash), (admin, admin_hash) = mint_key(), mint_key()
    keys = [{"name": "user", "hash": user_hash}, {"name": "admin", "hash": admin_hash, "admin": True}]
    file = tmp_path / "config.yaml"
    file.write_text(as_yaml({**config_dict(upstream.url, keys=keys), "auth": "keys"}))
    app = create_app(load(file, environ={}).config, ConfigSource(lambda: load(file, environ={})))
    async with serve(app) as url, http_client(url) as client:
        statuses = [
            (await client.post("/admin/reload", headers=headers)).status_code
            for headers in ({}, {"Authorization": f"Bearer {user}"}, {"Authorization": f"Bearer {admin}"})
        ]
    assert statuses == [401, 403, 200]


# The command ----------------------------------------------------------------------------------------------------------


async def test_the_command_reloads_on_sighup_and_when_the_file_changes(upstream: Upstream, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(as_yaml(config_dict(upstream.url, models=["one"], reload={"watch": False})))
    async with serving_command(file) as child, http_client(child.url) as client:

        async def names() -> list[str]:
            return [model["id"] for model in (await client.get("/v1/models")).json()["data"]]

        assert await names() == ["one"]
        file.write_text(as_yaml(config_dict(upstream.url, models=["two"], reload={"watch": False})))
        child.signal(signal.SIGHUP)
        await child.line("config_reloaded")
        assert await names() == ["two"]

        file.write_text("model_list: 3\n")
        child.signal(signal.SIGHUP)
        refused = await child.line("config_not_reloaded")
        assert f"{file}:1:13: model_list" in refused.string
        assert await names() == ["two"]
        child.signal(signal.SIGTERM)
        assert await child.ended() == 0


async def test_the_command_notices_that_a_mounted_file_was_turned_to_another(
    upstream: Upstream, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(as_yaml(config_dict(upstream.url, models=[name])))
    (tmp_path / "..data").symlink_to("one")
    (tmp_path / "config.yaml").symlink_to("..data/config.yaml")
    async with serving_command(tmp_path / "config.yaml") as child, http_client(child.url) as client:
        assert (await client.get("/health/ready")).status_code == 200
        (tmp_path / "..tmp").symlink_to("two")
        (tmp_path / "..tmp").replace(tmp_path / "..data")
        await child.line("config_reloaded")
        assert [model["id"] for model in (await client.get("/v1/models")).json()["data"]] == ["two"]


async def test_a_new_secret_never_stands_in_the_log(upstream: Upstream, tmp_path: Path) -> None:
    file, secret = tmp_path / "config.yaml", tmp_path / "token"
    secret.write_text("first-secret-value")

    def with_tool(module: str) -> dict[str, Any]:
        tool = {"kind": "http", "name": "x", "description": "d", "url": "http://127.0.0.1:1/"}
        tool["headers"] = {"Authorization": "file:./token"}  # type: ignore[assignment]
        return config_dict(upstream.url, tools=[tool, {"kind": "python", "module": module}])

    file.write_text(as_yaml(with_tool("callgate.tools.builtin")))
    async with serving_command(file) as child:
        secret.write_text("second-secret-value")
        file.write_text(as_yaml(with_tool("second-secret-value".replace("-", "_"))))
        child.signal(signal.SIGHUP)
        await child.line("config_(not_)?reloaded")
        assert "second-secret-value" not in child.log


@needs("redis-server", "module:redis")
async def test_asked_over_http_all_processes_of_one_redis_read_their_config_again(tmp_path: Path) -> None:
    def write(models: list[str]) -> None:
        file.write_text(
            as_yaml(
                config_dict("http://127.0.0.1:1", models=models, store={"redis_url": redis}, reload={"watch": False})
            )
        )

    file = tmp_path / "config.yaml"
    async with redis_server(tmp_path) as redis:
        write(["m"])
        async with serving_command(file) as one, serving_command(file) as other:
            write(["m", "n"])
            answer = await raw_post(one.url, {}, path="/admin/reload")
            assert answer.status == 200
            await other.line("config_reloaded")
            async with http_client(other.url) as client:
                listed = [each["id"] for each in (await client.get("/v1/models")).json()["data"]]
    assert listed == ["m", "n"]
