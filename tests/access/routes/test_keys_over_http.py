"""Keys over HTTP: made, limited and revoked, and never more than the key that asks has itself."""

import asyncio
import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from callgate.access.key_store import FILE
from callgate.access.keys import mint_key
from tests.harness.served import served_to_http
from tests.scripted_upstream import Reply, Upstream

pytestmark = pytest.mark.anyio

PRICED = {"model_info": {"input_cost_per_token": 0.001, "output_cost_per_token": 0.002}}
QUESTION = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def with_keys(**keys: dict[str, Any]) -> tuple[dict[str, dict[str, str]], dict[str, Any]]:
    """Headers by the names of the keys, and the sections of a config that knows them."""
    headers, entries = {}, []
    for name, more in keys.items():
        key, hash = mint_key()
        headers[name] = {"authorization": f"Bearer {key}"}
        entries.append({"name": name, "hash": hash, **more})
    return headers, {"auth": "keys", "keys": entries}


async def status_with(client: httpx.AsyncClient, key: str) -> int:
    answer = await client.post("/v1/chat/completions", json=QUESTION, headers={"authorization": f"Bearer {key}"})
    return answer.status_code


async def test_a_key_is_made_limited_and_revoked(upstream: Upstream, tmp_path: Path) -> None:
    upstream.script("m", [Reply(text="hi")], repeat_last=True)
    headers, auth = with_keys(boss={"admin": True})
    boss = headers["boss"]
    async with served_to_http(upstream, data_dir=str(tmp_path), **auth) as client:
        with capture_logs() as lines:
            made = await client.post("/admin/keys", headers=boss, json={"name": "alice", "budget_per_day": 5})
        key = made.json()["key"]
        first = await status_with(client, key)
        own = (await client.get("/v1/key", headers={"authorization": f"Bearer {key}"})).json()
        limited = await client.patch(
            "/admin/keys/alice", headers=boss, json={"parallel": 2, "budget_per_day": None, "requests_per_minute": 2}
        )
        rates = [await status_with(client, key) for _ in range(2)]
        listed = await client.get("/admin/keys", headers=boss)
        revoked = await client.delete("/admin/keys/alice", headers=boss)
        after = await status_with(client, key)
        again = await client.post("/admin/keys", headers=boss, json={"name": "alice"})
        gone = await client.delete("/admin/keys/alice", headers=boss)

    assert (made.status_code, first, revoked.status_code, after) == (201, 200, 204, 401)
    assert made.json()["limits"] == {"budget_per_day": 5}
    assert own["limits"] == {"budget_per_day": 5}
    assert own["left"] == {"budget_per_day": 5 - own["spent"]["day"]}
    assert limited.json()["limits"] == {"parallel": 2, "requests_per_minute": 2}
    assert rates == [200, 429]
    assert key not in listed.text + json.dumps(lines, default=str)
    assert (again.status_code, again.json()["error"]["code"]) == (409, "key_name_taken")
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "key_not_found")
    assert [line["by"] for line in lines if line["event"] == "key_made"] == ["boss"]


@pytest.mark.parametrize("method", ["POST", "PATCH", "DELETE"])
async def test_a_key_without_admin_changes_no_key(upstream: Upstream, tmp_path: Path, method: str) -> None:
    headers, auth = with_keys(alice={"see": "all", "approve": True})
    path = "/admin/keys" if method == "POST" else "/admin/keys/alice"
    async with served_to_http(upstream, data_dir=str(tmp_path), **auth) as client:
        answer = await client.request(method, path, headers=headers["alice"], json={"name": "bob"})

    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "admin_not_allowed")


@pytest.mark.parametrize(
    ("wanted", "param"),
    [
        ({"approve": True}, "approve"),
        ({"models": ["*"]}, "models"),
        ({"models": ["gpt-*"]}, "models"),
        ({"tools": ["get_time", "send_mail"]}, "tools"),
        ({"budget_per_day": 11}, "budget_per_day"),
        ({"budget_per_day": None}, "budget_per_day"),
        ({"expires": "2099-01-01"}, "expires"),
        ({"expires": None}, "expires"),
    ],
)
async def test_a_key_gives_no_more_than_it_has(
    upstream: Upstream, tmp_path: Path, wanted: dict[str, Any], param: str
) -> None:
    own = {"admin": True, "models": ["m", "[gm]"], "tools": ["get_*"], "budget_per_day": 10, "expires": "2098-01-01"}
    headers, auth = with_keys(boss=own)
    less = {"name": "alice", "models": ["m", "g"], "tools": ["get_time"], "budget_per_day": 10, "see": "all"} | {
        "expires": "2097-01-01"
    }
    async with served_to_http(
        upstream, "get_time", "send_mail", data_dir=str(tmp_path), entry=PRICED, **auth
    ) as client:
        refused = await client.post("/admin/keys", headers=headers["boss"], json=less | wanted)
        made = await client.post("/admin/keys", headers=headers["boss"], json=less)
        raised = await client.patch("/admin/keys/alice", headers=headers["boss"], json={"budget_per_day": None})

    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "key_gives_more")
    assert refused.json()["error"]["param"] == param
    assert made.status_code == 201
    assert ["`g`" in note or "'g'" in note for note in made.json()["notes"]] == [True]
    assert raised.json()["error"]["code"] == "key_gives_more"


@pytest.mark.parametrize(
    ("body", "status", "code", "says"),
    [
        ({"name": "boss"}, 409, "key_in_config", "change it there"),
        ({"name": "no spaces"}, 400, "invalid_value", "`name`"),
        ({"name": "alice", "expires": "soon"}, 400, "invalid_value", "`expires`"),
        ({"name": "alice", "budget_per_day": -1}, 400, "invalid_value", "`budget_per_day`"),
        ({"name": "alice", "rights": "all"}, 400, None, "rights"),
    ],
)
async def test_what_cannot_be_a_key_is_refused_with_its_reason(
    upstream: Upstream, tmp_path: Path, body: dict[str, Any], status: int, code: str | None, says: str
) -> None:
    headers, auth = with_keys(boss={"admin": True})
    async with served_to_http(upstream, data_dir=str(tmp_path), **auth) as client:
        answer = await client.post("/admin/keys", headers=headers["boss"], json=body)

    assert answer.status_code == status
    assert code in (None, answer.json()["error"]["code"])
    assert says in answer.json()["error"]["message"]


async def test_without_a_key_store_it_says_what_to_add(upstream: Upstream) -> None:
    headers, auth = with_keys(boss={"admin": True})
    async with served_to_http(upstream, **auth) as client:
        answer = await client.post("/admin/keys", headers=headers["boss"], json={"name": "alice"})

    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "no_key_store")
    assert "data_dir" in answer.json()["error"]["message"]


async def test_a_key_of_the_config_is_not_changed_and_none_revokes_itself(upstream: Upstream, tmp_path: Path) -> None:
    headers, auth = with_keys(boss={"admin": True}, alice={})
    async with served_to_http(upstream, data_dir=str(tmp_path), **auth) as client:
        of_config = await client.delete("/admin/keys/alice", headers=headers["boss"])
        made = await client.post("/admin/keys", headers=headers["boss"], json={"name": "second", "admin": True})
        second = {"authorization": f"Bearer {made.json()['key']}"}
        itself = await client.delete("/admin/keys/second", headers=second)

    assert of_config.json()["error"]["code"] == "key_in_config"
    assert itself.json()["error"]["code"] == "key_revokes_itself"


async def test_the_first_key_locks_nobody_out(upstream: Upstream, tmp_path: Path) -> None:
    async with served_to_http(upstream, auth="keys", data_dir=str(tmp_path)) as client:
        refused = await client.post("/admin/keys", json={"name": "alice"})
        made = await client.post("/admin/keys", json={"name": "alice", "admin": True, "approve": True})
        without = await client.get("/v1/models")
        second = await client.post(
            "/admin/keys", json={"name": "bob"}, headers={"authorization": f"Bearer {made.json()['key']}"}
        )

    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "first_key_needs_admin")
    assert made.json()["first"] is True
    assert (without.status_code, second.status_code) == (401, 201)


async def test_a_file_that_another_program_has_locked_holds_no_other_request(
    upstream: Upstream, tmp_path: Path
) -> None:
    headers, auth = with_keys(boss={"admin": True})
    async with served_to_http(upstream, data_dir=str(tmp_path), **auth) as client:
        with contextlib.closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            making = asyncio.create_task(client.post("/admin/keys", headers=headers["boss"], json={"name": "alice"}))
            for _ in range(20):
                assert (await client.get("/health/live")).status_code == 200
            assert not making.done()
            other.execute("ROLLBACK")
        assert (await making).status_code == 201
