"""Recorded runs asked again, exported and judged again, over the wire."""

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from callgate.access.keys import mint_key
from callgate.application import create_app
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.recordings import load
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = pytest.mark.anyio

QUESTION = {"model": "m", "messages": [{"role": "user", "content": "what is 2 + 3?"}], "temperature": 0.5}
ADD = Call("add", {"a": 2, "b": 3}, id="call_add")
TURNS = [Reply(calls=[ADD]), Reply(text="It is 5.")]
KEPT = {"content": True, "wire": "on"}


@contextlib.asynccontextmanager
async def served_and_recorded(provider: Upstream, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    settings = {"models": ["m", "other"], "tools": ["add", "send_mail"], "record": KEPT, **options}
    async with serve(create_app(make_config(provider.url, **settings))) as url, http_client(url) as client:
        yield client


async def ask(client: httpx.AsyncClient, upstream: Upstream, turns: list[Reply] = TURNS, **more: Any) -> str:
    upstream.script("m", turns)
    answer = await client.post("/v1/chat/completions", json={**QUESTION, **more})
    assert answer.status_code == 200
    return answer.headers["x-callgate-run"]


async def test_a_run_is_asked_again_of_another_model_and_no_tool_runs(upstream: Upstream, tmp_path: Path) -> None:
    async with served_and_recorded(upstream, data_dir=str(tmp_path)) as client:
        run = await ask(client, upstream)
        again = Call("add", '{"b":3, "a":2}', id="call_other")
        upstream.script("other", [Reply(calls=[again]), Reply(text="Five.")])
        answer = await client.post(f"/v1/runs/{run}/replay", json={"model": "other"})
        replayed = answer.json()
        old = (await client.get(f"/v1/runs/{run}")).json()
        new = (await client.get(f"/v1/runs/{replayed['run']}", params={"content": 1})).json()

    assert answer.status_code == 200
    assert (replayed["replay_of"], replayed["model"], replayed["stopped"]) == (run, "other", None)
    assert replayed["answer"]["choices"][0]["message"]["content"] == "Five."
    first, second = upstream.requests[-2:]
    assert first.body["messages"] == QUESTION["messages"]
    assert first.body["temperature"] == 0.5
    assert second.body["messages"][-1]["content"] == "5"
    assert (new["replay_of"], new["model"], new["state"]) == (run, "other", "answered")
    assert old["replays"] == [replayed["run"]]
    with contextlib.closing(sqlite3.connect(tmp_path / "ledger.sqlite3")) as ledger:
        assert ledger.execute("SELECT run_id FROM calls").fetchall() == [(run,)]


async def test_the_link_between_a_run_and_its_replays_survives_a_restart(upstream: Upstream, tmp_path: Path) -> None:
    async with served_and_recorded(upstream, data_dir=str(tmp_path)) as client:
        run = await ask(client, upstream)
        upstream.script("m", TURNS)
        new = (await client.post(f"/v1/runs/{run}/replay", json={})).json()["run"]
    async with served_and_recorded(upstream, data_dir=str(tmp_path)) as client:
        assert (await client.get(f"/v1/runs/{run}")).json()["replays"] == [new]
        await client.delete(f"/v1/runs/{new}")
        assert (await client.get(f"/v1/runs/{run}")).json()["replays"] == []


async def test_a_call_that_is_not_in_the_recording_ends_the_replay(upstream: Upstream) -> None:
    async with served_and_recorded(upstream) as client:
        run = await ask(client, upstream)
        upstream.script("m", [Reply(calls=[Call("add", {"a": 2, "b": 4}), ADD])])
        answer = await client.post(f"/v1/runs/{run}/replay", json={})
        new = (await client.get(f"/v1/runs/{answer.json()['run']}")).json()

    assert answer.status_code == 200
    assert answer.json()["answer"] is None
    assert answer.json()["stopped"].startswith("call not in the recording: add")
    assert (new["state"], new["odd"]) == ("stopped", True)


async def test_a_replay_from_a_turn_begins_with_the_history_as_it_was(upstream: Upstream) -> None:
    async with served_and_recorded(upstream) as client:
        run = await ask(client, upstream)
        before = upstream.requests[-1].body["messages"]
        upstream.script("other", [Reply(text="Five.")])
        replayed = (await client.post(f"/v1/runs/{run}/replay", json={"model": "other", "from_turn": 1})).json()
        beyond = await client.post(f"/v1/runs/{run}/replay", json={"from_turn": 2})

    assert replayed["answer"]["choices"][0]["message"]["content"] == "Five."
    assert upstream.requests[-1].body["messages"] == before
    assert (beyond.status_code, beyond.json()["error"]["code"]) == (409, "run_not_replayable")


async def test_tools_are_run_again_if_asked_for_and_what_writes_waits_for_approval(
    upstream: Upstream, tmp_path: Path
) -> None:
    mail = Call("send_mail", {"to": "bob", "text": "hi"}, id="call_mail")
    turns = [Reply(calls=[ADD, mail]), Reply(text="Done.")]
    async with served_and_recorded(upstream, data_dir=str(tmp_path)) as client:
        run = await ask(client, upstream, turns)
        upstream.script("m", turns)
        replaying = asyncio.create_task(client.post(f"/v1/runs/{run}/replay", json={"tools": "run"}))
        async with asyncio.timeout(30):
            while not (waiting := (await client.get("/v1/approvals")).json()["data"]):  # noqa: ASYNC110 - as in test_approvals
                await asyncio.sleep(0.01)
        assert [asked["tool"] for asked in waiting] == ["send_mail"]
        await client.post(f"/v1/approvals/{waiting[0]['id']}", json={"decision": "deny"})
        replayed = (await replaying).json()

    with contextlib.closing(sqlite3.connect(tmp_path / "ledger.sqlite3")) as ledger:
        rows = ledger.execute(
            "SELECT tool, state FROM calls WHERE run_id = ? ORDER BY tool", (replayed["run"],)
        ).fetchall()
    assert rows == [("add", "done"), ("send_mail", "failed")]


@pytest.mark.parametrize(
    ("record", "why"),
    [({}, "record.content"), ({"content": True, "content_bytes": 256}, "content_bytes")],
)
async def test_a_run_of_which_too_little_is_kept_cannot_be_asked_again(
    upstream: Upstream, record: dict[str, Any], why: str
) -> None:
    async with served_and_recorded(upstream, record=record) as client:
        run = await ask(client, upstream, messages=[{"role": "user", "content": "x" * 1000}])
        asked = len(upstream.requests)
        answers = [
            await client.post(f"/v1/runs/{run}/replay", json={}),
            await client.get(f"/v1/runs/{run}/export", params={"as": "curl"}),
            await client.get(f"/v1/runs/{run}/export", params={"as": "recording"}),
        ]

    assert len(upstream.requests) == asked
    for answer in answers:
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "run_not_replayable")
        assert why in answer.json()["error"]["message"]


async def test_a_key_asks_only_its_own_runs_again_and_only_models_that_it_may_ask(upstream: Upstream) -> None:
    made = {name: mint_key() for name in ("mine", "other", "blind")}
    see = {"mine": "own", "other": "own", "blind": "none"}
    keys = [{"name": name, "hash": made[name][1], "see": see[name], "models": ["m"]} for name in made]

    def by(name: str) -> dict[str, Any]:
        return {"headers": {"authorization": f"Bearer {made[name][0]}"}}

    async with served_and_recorded(upstream, auth="keys", keys=keys) as client:
        upstream.script("m", TURNS)
        run = (await client.post("/v1/chat/completions", json=QUESTION, **by("mine"))).headers["x-callgate-run"]
        asked = len(upstream.requests)
        codes = {
            name: (await client.post(f"/v1/runs/{run}/replay", json={}, **by(name))).status_code
            for name in ("other", "blind")
        }
        wrong_model = await client.post(f"/v1/runs/{run}/replay", json={"model": "other"}, **by("mine"))
        foreign = [
            (await client.get(f"/v1/runs/{run}/{path}", **by("other"))).status_code for path in ("wire/0", "export")
        ]

    assert codes == {"other": 404, "blind": 403}
    assert wrong_model.status_code == 404
    assert foreign == [404, 404]
    assert len(upstream.requests) == asked


@pytest.mark.parametrize("body", ['{"models": "m"}', '{"from_turn": "one"}', '{"tools": "all"}', "[]"])
async def test_a_body_with_other_fields_is_refused(upstream: Upstream, body: str) -> None:
    async with served_and_recorded(upstream) as client:
        run = await ask(client, upstream)
        answer = await client.post(f"/v1/runs/{run}/replay", content=body)

    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_body")


@pytest.mark.parametrize("stream", [False, True])
async def test_the_bodies_of_a_providers_answers_are_kept_as_they_came(upstream: Upstream, stream: bool) -> None:
    async with served_and_recorded(upstream, upstream={"retries": 1}) as client:
        run = await ask(client, upstream, [Reply(status=500), *TURNS], stream=stream)
        first = (await client.get(f"/v1/runs/{run}/wire/0")).json()["data"]
        second = (await client.get(f"/v1/runs/{run}/wire/1")).json()["data"]
        beyond = await client.get(f"/v1/runs/{run}/wire/2")

    assert len(first) == 2
    assert "call_add" in first[1]
    assert first[1].startswith("data: {") == stream
    assert "It is 5." in second[0] or stream
    assert beyond.json()["error"]["code"] == "wire_not_kept"


async def test_the_wire_is_kept_only_of_runs_that_did_not_simply_answer(upstream: Upstream) -> None:
    async with served_and_recorded(upstream, record={"content": True, "wire": "on_error"}) as client:
        plain = await ask(client, upstream)
        odd = await ask(client, upstream, [Reply(calls=[Call("add", {"a": 2})]), Reply(text="Sorry.")])
        kept = {run: (await client.get(f"/v1/runs/{run}/wire/0")).status_code for run in (plain, odd)}

    assert list(kept.values()) == [404, 200]


@pytest.mark.needs("curl", "bash")
@pytest.mark.parametrize("stream", [False, True])
async def test_an_exported_line_pasted_into_a_shell_gives_the_same_answer(upstream: Upstream, stream: bool) -> None:
    async with served_and_recorded(upstream) as client:
        run = await ask(client, upstream, stream=stream, messages=[{"role": "user", "content": 'it\'s $HOME `ls` "x"'}])
        line = (await client.get(f"/v1/runs/{run}/export", params={"as": "curl"})).text
        asked = upstream.requests[-2].body["messages"]
        upstream.script("m", TURNS)
        process = await asyncio.create_subprocess_exec(
            "bash", "-c", line, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
        async with asyncio.timeout(30):
            out, _ = await process.communicate()

    assert "$CALLGATE_KEY" in line
    assert upstream.requests[-2].body["messages"] == asked
    assert ("It is 5." in out.decode()) or (stream and b"data: [DONE]" in out)


@pytest.mark.parametrize("record", [KEPT, {"content": True}], ids=["with the wire", "without it"])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_exported_recording_is_read_and_played_as_the_tests_play_theirs(
    upstream: Upstream, tmp_path: Path, record: dict[str, Any], stream: bool
) -> None:
    turns = [Reply(calls=[ADD, Call("add", {"a": 1}, id="call_broken")]), Reply(text="It is 5.")]
    async with served_and_recorded(upstream, record=record) as client:
        run = await ask(client, upstream, turns, stream=stream)
        exported = (await client.get(f"/v1/runs/{run}/export", params={"as": "recording"})).json()
        (tmp_path / "it.json").write_text(json.dumps(exported))
        recording = load(tmp_path / "it.json")
        recording.play_on(upstream, "m")
        body = {"model": "m", **recording.request}
        answer = (await client.post("/v1/chat/completions", json=body)).json()

    assert answer["choices"][0]["message"]["content"] == recording.expect.content == "It is 5."
    assert recording.house_tools == ["add", "send_mail", "read_more"]
    assert recording.expect.results == {"call_add": "5", "call_broken": {"flaw": "schema_mismatch"}}
    assert recording.expect.ran == [{"name": "add", "arguments": {"a": 2, "b": 3}}]
    assert recording.expect.requests == 2
    verdicts = [call["verdict"] for call in answer["x_callgate"]["turns"][0]["calls"]]
    assert sorted(verdicts) == ["broken", "ready"]


async def test_what_is_exported_as_json_is_all_that_is_kept(upstream: Upstream) -> None:
    async with served_and_recorded(upstream) as client:
        run = await ask(client, upstream)
        exported = (await client.get(f"/v1/runs/{run}/export")).json()
        spans = (await client.get(f"/v1/runs/{run}/export", params={"as": "otlp"})).json()
        other = await client.get(f"/v1/runs/{run}/export", params={"as": "pdf"})

    assert exported["content"]["turn.1.text"] == "It is 5."
    assert [event["kind"] for event in exported["events"]][-1] == "ended"
    names = [span["name"] for span in spans["resourceSpans"][0]["scopeSpans"][0]["spans"]]
    assert sorted({*names} - {"POST"}) == ["chat m", "execute_tool add", "invoke_agent callgate"]
    assert other.json()["error"]["param"] == "as"
