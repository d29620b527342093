"""What people who have signed in share, decide and lose."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from callgate.application import create_app
from callgate.runtime.manager import RuntimeManager
from tests.harness import toolshed
from tests.harness.clients import http_client
from tests.harness.configs import as_yaml, config_dict, make_config
from tests.harness.issuer import TestIssuer, auth_of
from tests.harness.process import serving_command
from tests.harness.server import serve
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = pytest.mark.anyio

ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "?"}], "max_tokens": 10}
MAIL = Call("send_mail", {"to": "bob", "text": "hi"})
BOSS = {"approve": True, "see": "all", "admin": True}
PRICE = {"input_cost_per_token": 0.01, "output_cost_per_token": 0.01}
USED = {"prompt_tokens": 50, "completion_tokens": 50, "total_tokens": 100}


@dataclass
class Served:
    issuer: TestIssuer
    client: httpx.AsyncClient
    manager: RuntimeManager
    upstream: Upstream
    options: dict[str, Any]

    def by(self, subject: str, *groups: str, **claims: Any) -> dict[str, str]:
        return {"authorization": f"Bearer {self.issuer.token(subject, *groups, **claims)}"}

    async def ask(self, subject: str, *groups: str, **body: Any) -> httpx.Response:
        return await self.client.post("/v1/chat/completions", json=ASK | body, headers=self.by(subject, *groups))

    async def change(self, groups: dict[str, Any]) -> None:
        config = make_config(self.upstream.url, **self.options, auth=auth_of(self.issuer, groups))
        await self.manager.apply(config)

    def let_pass(self, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have tokens be that much older."""
        people = self.manager.current.access._keys._people  # type: ignore[attr-defined]
        monkeypatch.setattr(people, "_clock", lambda: time.time() + seconds)


@contextlib.asynccontextmanager
async def served_to_people(upstream: Upstream, groups: dict[str, Any], **options: Any) -> AsyncIterator[Served]:
    options = {"tools": ["wait_for_gate", "send_mail"], **options}
    async with TestIssuer().served() as issuer:
        app = create_app(make_config(upstream.url, **options, auth=auth_of(issuer, groups)))
        async with asyncio.timeout(60), serve(app) as url, http_client(url) as client:
            yield Served(issuer, client, app.state.manager, upstream, options)


# What a group shares ----------------------------------------------------------------------------


async def test_two_people_share_the_budget_of_their_group(upstream: Upstream) -> None:
    upstream.script("m", lambda _: Reply(text="hi", usage=USED))
    groups = {"dev": {"budget_per_day": 1.5}, "ops": {"budget_per_day": 1.5}}
    async with served_to_people(upstream, groups, entry={"model_info": PRICE}) as served:
        statuses = [(await served.ask(who, "dev")).status_code for who in ("ada", "bob", "ada", "bob")]
        of_others = await served.ask("eve", "ops")
        refused = await served.ask("zoe", "dev")
        [spent] = [(await served.client.get("/v1/key", headers=served.by(who, "dev"))).json() for who in ("zoe",)]
    assert statuses == [200, 200, 429, 429]  # a dollar each
    assert of_others.status_code == 200
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "insufficient_quota")
    assert spent["spent"]["day"] == pytest.approx(2.0)
    assert spent["left"]["budget_per_day"] == 0


async def test_each_member_has_limits_beside_those_of_the_group(upstream: Upstream) -> None:
    upstream.script("m", lambda _: Reply(text="hi"))
    groups = {"dev": {"requests_per_minute": 5, "per_member": {"requests_per_minute": 2}}}
    async with served_to_people(upstream, groups) as served:
        ada = [await served.ask("ada") for _ in range(4)]
        bob = [await served.ask("bob") for _ in range(2)]
        zoe = [await served.ask("zoe") for _ in range(2)]
    assert [answer.status_code for answer in ada] == [200, 200, 429, 429]
    assert [answer.status_code for answer in bob] == [200, 200]
    assert [answer.status_code for answer in zoe] == [200, 429]  # what was refused to ada was taken from nobody
    assert ada[0].headers["x-ratelimit-limit-requests"] == "2"
    assert zoe[0].headers["x-ratelimit-limit-requests"] == "5"
    assert zoe[0].headers["x-ratelimit-remaining-requests"] == "0"


async def test_a_member_may_be_limited_where_the_group_is_not(upstream: Upstream) -> None:
    upstream.script("m", lambda _: Reply(text="hi", usage=USED))
    groups = {
        "dev": {"parallel": 9, "per_member": {"budget_per_day": 0.5}},
        "ops": {"per_member": {"budget_per_day": 0.5}},
    }
    async with served_to_people(upstream, groups, entry={"model_info": PRICE}) as served:
        for group in groups:
            statuses = [(await served.ask(f"{who}-{group}", group)).status_code for who in ("ada", "ada", "bob")]
            assert statuses == [200, 429, 200]


@pytest.mark.parametrize("limits", [{"parallel": 1}, {"parallel": 2, "per_member": {"parallel": 1}}], ids=str)
async def test_requests_at_once_are_counted_for_the_group_and_for_each(
    upstream: Upstream, limits: dict[str, Any]
) -> None:
    async with served_to_people(upstream, {"dev": limits}, limits={"queue_seconds": 0}) as served:
        upstream.script("m", [Reply(calls=[Call("wait_for_gate", {})]), Reply(text="hi"), Reply(text="hi")])
        async with toolshed.held() as running:
            first = asyncio.create_task(served.ask("ada"))
            await running.started.wait()
            same = await served.ask("ada")
            running.gate.set()
            assert (await first).status_code == 200
        assert (await served.ask("ada")).status_code == 200
    assert (same.status_code, same.json()["error"]["code"]) == (429, "too_many_parallel_requests")


async def test_two_processes_share_the_limits_of_a_group(upstream: Upstream, tmp_path: Path) -> None:
    async with TestIssuer().served() as issuer:
        issuer.url = issuer.url.replace("127.0.0.1", "localhost")  # the first address in the log is to be the server's
        config = config_dict(
            upstream.url,
            auth=auth_of(issuer, {"dev": {"requests_per_minute": 5, "see": "all"}}),
            server={"workers": 2},
            data_dir=str(tmp_path / "data"),
        )
        file = tmp_path / "config.yaml"
        file.write_text(as_yaml(config))
        upstream.script("m", lambda _: Reply(text="hi"))
        async with asyncio.timeout(60), serving_command(file) as child:

            async def ask(who: str) -> int:
                async with http_client(child.url) as client:  # a connection of its own, to either of the workers
                    headers = {"authorization": f"Bearer {issuer.token(who)}"}
                    return (await client.post("/v1/chat/completions", json=ASK, headers=headers)).status_code

            statuses = await asyncio.gather(*(ask(f"p{number}") for number in range(24)))
    assert sorted(statuses) == [200] * 5 + [429] * 19
    assert issuer.asked.count("/keys") == 2


# Who decided ------------------------------------------------------------------------------------


async def test_an_approval_says_who_asked_and_who_decided(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[MAIL]), Reply(text="Done.")])
    groups = {"boss": BOSS, "dev": {"see": "own"}}
    async with served_to_people(upstream, groups, require_approval="always") as served:
        ada = served.by("ada", "dev", name="Ada Lovelace")
        boss = served.by("0042", "boss", name="Grace\u202e Hopper\n")
        asking = asyncio.create_task(served.client.post("/v1/chat/completions", json=ASK, headers=ada))
        while not (waiting := (await served.client.get("/v1/approvals", headers=boss)).json()["data"]):  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # the list is all that a client can look at
        refused = await served.client.post(
            f"/v1/approvals/{waiting[0]['id']}", json={"decision": "approve"}, headers=ada
        )
        decided = await served.client.post(
            f"/v1/approvals/{waiting[0]['id']}", json={"decision": "deny", "reason": "no"}, headers=boss
        )
        answer = (await asking).json()
        history = (await served.client.get("/v1/approvals/history", headers=boss)).json()["data"]
        run = (await served.client.get(f"/v1/runs/{answer['x_callgate']['run']}", headers=ada)).text
    place = served.issuer.url
    assert waiting[0]["caller"] == f"Ada Lovelace (ada@{place})"
    assert refused.status_code == 403
    assert decided.json()["by"] == history[0]["by"] == f"Grace Hopper (0042@{place})"
    assert f"Grace Hopper (0042@{place})" in run


# What is whose ----------------------------------------------------------------------------------


async def test_what_is_kept_for_one_person_is_nobody_elses(upstream: Upstream) -> None:
    upstream.script("m", lambda _: Reply(text="hi"))
    async with served_to_people(upstream, {"dev": {"see": "own"}}) as served:
        made = (
            await served.client.post("/v1/responses", json={"model": "m", "input": "?"}, headers=served.by("ada"))
        ).json()
        path = f"/v1/responses/{made['id']}"
        own = await served.client.get(path, headers=served.by("ada", name="Another Name"))
        others = await served.client.get(path, headers=served.by("bob", name="ada", preferred_username="ada"))
    assert (own.status_code, others.status_code) == (200, 404)


async def test_runs_name_people_and_metrics_their_group(upstream: Upstream, tmp_path: Path) -> None:
    upstream.script("m", lambda _: Reply(text="hi"))
    async with served_to_people(upstream, {"dev": BOSS}, data_dir=str(tmp_path)) as served:
        for who in ("ada", "bob"):
            await served.ask(who)
        runs = (await served.client.get("/v1/runs", headers=served.by("ada"))).json()["data"]
        metrics = (await served.client.get("/metrics", headers=served.by("ada"))).text
    assert {run["key"] for run in runs} == {f"{who}@{served.issuer.url}" for who in ("ada", "bob")}
    assert 'key="group:dev"' in metrics
    assert "ada" not in metrics


# What ends --------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_no_turn_follows_the_end_of_a_token(
    upstream: Upstream, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream.script("m", [Reply(calls=[Call("wait_for_gate", {}), MAIL]), Reply(text="secret")])
    async with toolshed.held() as running, served_to_people(upstream, {"dev": {}}) as served:
        asking = asyncio.create_task(served.ask("ada", stream=stream))
        await running.started.wait()
        served.let_pass(1000, monkeypatch)
        running.gate.set()
        answer = await asking
    assert len(upstream.requests) == 1
    assert "it has expired" in answer.text
    assert "mailbox is full" not in answer.text
    assert stream or answer.status_code == 401


async def test_a_newer_token_of_the_same_person_carries_his_chat_on(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream.script("m", [Reply(calls=[Call("wait_for_gate", {})]), Reply(text="Done.")])
    async with toolshed.held() as running, served_to_people(upstream, {"dev": {}}) as served:
        asking = asyncio.create_task(served.ask("ada"))
        await running.started.wait()
        served.let_pass(1000, monkeypatch)
        for who in ("ada", "bob"):
            newer = served.by(who, exp=int(time.time()) + 2000)
            assert (await served.client.get("/v1/key", headers=newer)).status_code == 200
        running.gate.set()
        answer = await asking
    assert answer.json()["choices"][0]["message"]["content"] == "Done."


async def test_rights_that_a_reload_takes_from_a_group_end_with_it(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[Call("wait_for_gate", {}), MAIL]), Reply(text="ok")])
    async with toolshed.held() as running, served_to_people(upstream, {"dev": {}}) as served:
        asking = asyncio.create_task(served.ask("ada"))
        await running.started.wait()
        await served.change({"dev": {"tools": ["wait_for_gate"]}})
        running.gate.set()
        await asking
        await served.change({"other": {}})
        assert (await served.ask("ada")).status_code == 403
    assert "may not be used any more" in json.dumps(upstream.requests[1].body["messages"])
    assert served.issuer.asked.count("/keys") == 1


async def test_a_background_run_goes_on_as_its_person(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[Call("wait_for_gate", {})]), Reply(text="Done.")])
    body = {"model": "m", "input": "?", "background": True}
    async with toolshed.held() as running, served_to_people(upstream, {"dev": {}}) as served:
        response = (await served.client.post("/v1/responses", json=body, headers=served.by("ada"))).json()
        await running.started.wait()
        await served.change({"dev": {"see": "own"}})
        running.gate.set()
        path = f"/v1/responses/{response['id']}"
        while (told := (await served.client.get(path, headers=served.by("ada"))).json())["status"] == "in_progress":  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # polling is how a client learns of it
    assert told["status"] == "completed"
