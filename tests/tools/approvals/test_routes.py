"""Approval over the wire: a chat that waits for a person, and the person."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request

from callgate.access.keys import mint_key
from callgate.application import create_app
from tests.harness import toolshed
from tests.harness.clients import http_client
from tests.harness.configs import make_config, tool_entry
from tests.harness.server import serve
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = pytest.mark.anyio

MAIL = Call("send_mail", {"to": "bob", "text": "hi"}, id="call_mail")
QUESTION = {"model": "m", "messages": [{"role": "user", "content": "mail bob"}]}


@contextlib.asynccontextmanager
async def served_with_approvals(upstream: Upstream, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    tools = ["send_mail", "get_time", "wait_for_gate"]
    settings = {"require_approval": {"always": ["send_*"]}, "tools": tools, **options}
    config = make_config(upstream.url, **settings)
    async with serve(create_app(config)) as url, http_client(url) as client:
        yield client


async def waiting(client: httpx.AsyncClient, **options: Any) -> list[dict[str, Any]]:
    """The list, once something is in it."""
    async with asyncio.timeout(30):
        while True:
            answer = await client.get("/v1/approvals", **options)
            assert answer.status_code == 200
            if listed := answer.json()["data"]:
                return list(listed)
            await asyncio.sleep(0.01)  # the list is all that a client can look at


def tool_result(upstream: Upstream) -> str:
    return str(upstream.requests[-1].body["messages"][-1]["content"])


async def test_a_call_waits_until_it_is_approved_and_then_runs(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[MAIL]), Reply(text="Done.")])
    async with served_with_approvals(upstream) as client:
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=QUESTION))
        [asked] = await waiting(client)
        assert asked["tool"] == "send_mail"
        assert asked["arguments"] == {"to": "bob", "text": "hi"}
        assert asked["call"] == "call_mail"
        assert asked["caller"] == "anonymous"
        assert asked["expires"] - asked["since"] == 300
        decided = await client.post(f"/v1/approvals/{asked['id']}", json={"decision": "approve", "hash": asked["hash"]})
        assert (decided.status_code, decided.json()["decision"]) == (200, "approved")
        answer = (await asking).json()
        assert answer["choices"][0]["message"]["content"] == "Done."
        assert asked["run"] == answer["x_callgate"]["run"]
        again = await client.post(f"/v1/approvals/{asked['id']}", json={"decision": "deny"})
        assert (again.status_code, again.json()["error"]["code"]) == (409, "approval_approved")
    assert "mailbox is full" in tool_result(upstream)


async def test_a_denied_call_is_answered_to_the_model_with_the_reason(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[MAIL]), Reply(text="Not sent.")])
    async with served_with_approvals(upstream) as client:
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=QUESTION))
        [asked] = await waiting(client)
        await client.post(f"/v1/approvals/{asked['id']}", json={"decision": "deny", "reason": "bob is away"})
        answer = (await asking).json()
    assert answer["x_callgate"]["turns"][0]["calls"][0]["outcome"] == "refused"
    assert "bob is away" in tool_result(upstream)


DESTRUCTIVE = {**tool_entry("send_mail"), "safety": "destructive"}


@pytest.mark.parametrize(
    ("rule", "entry", "waits"),
    [
        ({}, {}, True),
        ({"never": ["send_mail"]}, {}, False),
        ({}, {"require_approval": "never"}, False),
        ({}, {"safety": "write"}, False),
    ],
    ids=["no rule", "freed above", "freed in its entry", "a mild one"],
)
async def test_a_destructive_tool_waits_unless_a_rule_frees_it(
    upstream: Upstream, rule: dict[str, Any], entry: dict[str, Any], waits: bool
) -> None:
    upstream.script("m", [Reply(calls=[MAIL]), Reply(text="Done.")])
    approvals = {"timeout_seconds": 0.05}
    tool = DESTRUCTIVE | entry
    async with served_with_approvals(upstream, require_approval=rule, approvals=approvals, tools=[tool]) as client:
        await client.post("/v1/chat/completions", json=QUESTION)
    assert ("nobody gave it" in tool_result(upstream)) == waits
    assert ("mailbox is full" in tool_result(upstream)) != waits


async def test_where_nobody_may_approve_a_destructive_tool_is_refused_with_the_line_to_write(
    upstream: Upstream,
) -> None:
    upstream.script("m", [Reply(calls=[MAIL]), Reply(text="Not sent.")])
    nobody = {"keyless": "nobody"}
    async with served_with_approvals(upstream, require_approval={}, approvals=nobody, tools=[DESTRUCTIVE]) as client:
        await client.post("/v1/chat/completions", json=QUESTION)
    assert "`require_approval: never`" in tool_result(upstream)


async def test_keys_none_of_which_may_approve_have_nothing_wait(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[MAIL]), Reply(text="Not sent.")])
    key, hashed = mint_key()
    keys = [{"name": "eve", "hash": hashed}]
    async with served_with_approvals(upstream, auth="keys", keys=keys) as client:
        async with asyncio.timeout(30):
            await client.post("/v1/chat/completions", json=QUESTION, headers={"Authorization": f"Bearer {key}"})
    assert "nobody can be asked" in tool_result(upstream)


async def test_silence_is_a_no(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[MAIL]), Reply(text="Nobody there.")])
    async with served_with_approvals(upstream, approvals={"timeout_seconds": 0.05}) as client:
        answer = await client.post("/v1/chat/completions", json=QUESTION)
    assert answer.json()["choices"][0]["message"]["content"] == "Nobody there."
    assert "nobody gave it" in tool_result(upstream)


async def test_a_stream_is_kept_alive_by_heartbeats_while_it_waits(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[MAIL]), Reply(text="Done.")])
    pulse = {"first_chunk_seconds": 0.01, "heartbeat_seconds": 0.02}
    async with served_with_approvals(upstream, server=pulse) as client:
        events: list[dict[str, Any]] = []
        async with client.stream("POST", "/v1/chat/completions", json={**QUESTION, "stream": True}) as answer:
            decided = False
            async for line in answer.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                events.append(json.loads(line[6:]))
                if len(events) == 5 and not decided:
                    assert all(event["choices"][0]["delta"].get("content") == "" for event in events)
                    [asked] = await waiting(client)
                    await client.post(f"/v1/approvals/{asked['id']}", json={"decision": "approve"})
                    decided = True
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events if event["choices"]) == "Done."


async def test_a_client_that_asked_for_progress_is_shown_what_is_waited_for(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[MAIL]), Reply(text="Done.")])
    async with served_with_approvals(upstream) as client:
        updates: list[dict[str, Any]] = []
        asking: dict[str, Any] = {"headers": {"X-Callgate-Events": "x"}, "json": {**QUESTION, "stream": True}}
        async with client.stream("POST", "/v1/chat/completions", **asking) as answer:
            async for line in answer.aiter_lines():
                event = json.loads(line[6:]) if line.startswith("data: {") else {}
                if "phase" not in event.get("x_callgate", {}):
                    continue
                updates.append(event["x_callgate"])
                if "approval" in updates[-1]:
                    [asked] = await waiting(client)
                    assert updates[-1]["message"] == f"waiting for approval {asked['id']}"
                    await client.post(f"/v1/approvals/{asked['id']}", json={"decision": "approve"})
    assert [event["phase"] for event in updates] == ["start", "progress", "progress", "error"]
    assert updates[2]["message"] == "approved"


async def test_a_waiting_call_is_in_the_log_the_metrics_and_the_feed(
    upstream: Upstream, capsys: pytest.CaptureFixture[str]
) -> None:
    upstream.script("m", [Reply(calls=[MAIL]), Reply(text="Done.")])
    seen: list[dict[str, Any]] = []
    async with (
        served_with_approvals(upstream) as client,
        asyncio.timeout(30),
        client.stream("GET", "/v1/feed?kinds=approvals") as feed,
    ):
        lines = feed.aiter_lines()
        await anext(lines)
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=QUESTION))
        async for line in lines:
            if line.startswith("data: "):
                seen.append(json.loads(line[6:]))
                if len(seen) == 2:
                    break
                during = (await client.get("/metrics")).text
                await client.post(f"/v1/approvals/{seen[0]['id']}", json={"decision": "approve"})
        await asking
        after = (await client.get("/metrics")).text
    logged = capsys.readouterr()

    assert [(event["object"], event["tool"], event["state"]) for event in seen] == [
        ("approval", "send_mail", "waiting"),
        ("approval", "send_mail", "approved"),
    ]
    assert "callgate_approvals_waiting 1.0" in during
    assert "callgate_approvals_waiting 0.0" in after
    assert 'callgate_approvals_total{decision="approved"} 1.0' in after
    assert "approval_waiting" in logged.out + logged.err


async def test_a_message_is_sent_that_a_call_waits_and_one_that_is_not_taken_is_logged_and_counted(
    upstream: Upstream, capsys: pytest.CaptureFixture[str]
) -> None:
    upstream.script("m", [Reply(calls=[MAIL]), Reply(text="Done.")])
    hook = {"url": f"{upstream.url}/hook", "secret": "x" * 32}  # loopback, which is not allowed
    async with served_with_approvals(upstream, approvals={"webhook": hook}) as client:
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=QUESTION))
        [asked] = await waiting(client)
        async with asyncio.timeout(30):
            while 'approval_webhooks_total{result="failed"} 1.0' not in (await client.get("/metrics")).text:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)
        await client.post(f"/v1/approvals/{asked['id']}", json={"decision": "approve"})
        assert (await asking).status_code == 200
    logged = capsys.readouterr()

    assert "approval_webhook_failed" in logged.out + logged.err


async def test_a_message_with_arguments_has_their_secrets_masked(upstream: Upstream) -> None:
    secret = {"to": "bob", "text": "the key is sk-this-is-not-a-key-at-all, and the other one Bearer abcdefghijklmnop"}
    upstream.script("m", [Reply(calls=[Call("send_mail", secret)]), Reply(text="Done.")])
    got: asyncio.Queue[Any] = asyncio.Queue()
    receiver = FastAPI()

    @receiver.post("/hook")
    async def hook(request: Request) -> None:
        got.put_nowait(await request.json())

    async with serve(receiver) as url:
        webhook = {"url": f"{url}/hook", "secret": "s" * 24, "allow_private": True, "arguments": True}
        async with served_with_approvals(upstream, approvals={"webhook": webhook}) as client:
            asking = asyncio.create_task(client.post("/v1/chat/completions", json=QUESTION))
            async with asyncio.timeout(30):
                sent = (await got.get())["data"]
            [asked] = await waiting(client)
            await client.post(f"/v1/approvals/{asked['id']}", json={"decision": "deny"})
            await asking
    assert sent["arguments"] == {"to": "bob", "text": "the key is ***, and the other one Bearer ***"}
    assert sent["hash"] == asked["hash"]
    assert asked["arguments"] == secret


async def test_a_feed_sends_what_its_key_may_see(upstream: Upstream) -> None:
    rights: dict[str, dict[str, Any]] = {
        "blind": {},
        "decider": {"approve": True},
        "own": {"see": "own"},
        "boss": {"admin": True},
    }
    made = {name: mint_key() for name in rights}
    keys = [{"name": name, "hash": made[name][1], **rights[name]} for name in rights]
    async with served_with_approvals(upstream, auth="keys", keys=keys) as client:

        async def status(name: str, kinds: str) -> int:
            headers = {"authorization": f"Bearer {made[name][0]}"}
            async with client.stream("GET", f"/v1/feed{kinds}", headers=headers) as feed:
                return feed.status_code

        wanted = ("", "?kinds=runs", "?kinds=approvals", "?kinds=servers", "?kinds=wishes")
        codes = {name: [await status(name, kinds) for kinds in wanted] for name in rights}

    assert codes == {
        "blind": [403, 403, 403, 403, 400],
        "decider": [200, 403, 200, 403, 400],
        "own": [200, 200, 403, 403, 400],
        "boss": [200, 200, 403, 200, 400],
    }


async def test_a_client_that_leaves_takes_its_question_back(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[MAIL])])
    async with served_with_approvals(upstream) as client:
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=QUESTION))
        [asked] = await waiting(client)
        asking.cancel()
        await asyncio.wait([asking])
        async with asyncio.timeout(30):
            while (await client.get("/v1/approvals")).json()["data"]:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)
        late = await client.post(f"/v1/approvals/{asked['id']}", json={"decision": "approve"})
        assert late.json()["error"]["code"] == "approval_withdrawn"


async def test_calls_before_one_that_waits_for_approval_run_meanwhile(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[Call("wait_for_gate"), MAIL]), Reply(text="Both.")])
    async with toolshed.held() as running, served_with_approvals(upstream) as client:
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=QUESTION))
        await running.started.wait()
        running.gate.set()
        [asked] = await waiting(client)
        await client.post(f"/v1/approvals/{asked['id']}", json={"decision": "deny"})
        assert (await asking).status_code == 200


async def test_only_keys_that_may_approve_see_and_decide(upstream: Upstream) -> None:
    (worker, worker_hash), (boss, boss_hash) = mint_key(), mint_key()
    keys = [{"name": "worker", "hash": worker_hash}, {"name": "boss", "hash": boss_hash, "approve": True}]
    upstream.script("m", [Reply(calls=[MAIL]), Reply(text="Done.")])
    async with served_with_approvals(upstream, auth="keys", keys=keys) as client:
        as_worker = {"Authorization": f"Bearer {worker}"}
        as_boss = {"Authorization": f"Bearer {boss}"}
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=QUESTION, headers=as_worker))
        [asked] = await waiting(client, headers=as_boss)
        assert asked["caller"] == "worker"
        for refused in (
            await client.get("/v1/approvals", headers=as_worker),
            await client.post(f"/v1/approvals/{asked['id']}", json={"decision": "approve"}, headers=as_worker),
        ):
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "approval_not_allowed")
        decided = await client.post(f"/v1/approvals/{asked['id']}", json={"decision": "approve"}, headers=as_boss)
        assert decided.json()["by"] == "boss"
        assert (await asking).status_code == 200


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"[]", b'{"decision": "maybe"}', b'{"decision": "approve", "and": 1}', b'{"decision": "approve"'],
)
async def test_a_body_that_decides_nothing_is_refused(upstream: Upstream, body: bytes) -> None:
    async with served_with_approvals(upstream) as client:
        answer = await client.post("/v1/approvals/apr_1", content=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_body")


async def test_a_hash_can_be_demanded(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[MAIL]), Reply(text="Done.")])
    async with served_with_approvals(upstream, approvals={"demand_hash": True}) as client:
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=QUESTION))
        [asked] = await waiting(client)
        place = f"/v1/approvals/{asked['id']}"
        assert (await client.post(place, json={"decision": "approve"})).json()["error"]["code"] == "hash_required"
        wrong = {"decision": "approve", "hash": "sha256:0"}
        assert (await client.post(place, json=wrong)).json()["error"]["code"] == "hash_mismatch"
        assert (await client.post(place, json={**wrong, "hash": asked["hash"]})).status_code == 200
        await asking


async def test_a_request_that_ends_while_its_call_waits_may_be_repeated(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[MAIL]), Reply(status=500)], repeat_last=True)
    async with served_with_approvals(upstream, limits={"request_seconds": 1}) as client:
        waited = await client.post("/v1/chat/completions", json=QUESTION)
    upstream.script("m", [Reply(calls=[MAIL]), Reply(status=500)], repeat_last=True)
    async with served_with_approvals(upstream) as client:
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=QUESTION))
        [asked] = await waiting(client)
        await client.post(f"/v1/approvals/{asked['id']}", json={"decision": "deny"})
        denied = await asking

    for answer in (waited, denied):
        assert answer.status_code >= 500
        assert answer.json()["error"]["code"] != "failed_after_write"
        assert answer.headers.get("x-should-retry") != "false"
