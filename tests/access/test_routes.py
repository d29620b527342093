"""What an operator asks of a running server."""

from pathlib import Path
from typing import Any

import pytest

from callgate.access.key_store import KeyStore
from callgate.access.keys import KeyEntry, mint_key
from callgate.application import create_app
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.scripted_upstream import Reply, Upstream

pytestmark = pytest.mark.anyio


async def test_a_key_can_read_its_name_and_rights(upstream: Upstream) -> None:
    (alice, alices), (boss, bosses) = mint_key(), mint_key()
    keys = [
        {"name": "alice", "hash": alices, "see": "own", "models": ["m"], "tools": ["get_*"], "approve": True},
        {"name": "boss", "hash": bosses, "admin": True},
    ]
    async with serve(create_app(make_config(upstream.url, auth="keys", keys=keys))) as url, http_client(url) as client:
        answers = [
            (await client.get("/v1/key", headers={"authorization": f"Bearer {key}"})).json() for key in (alice, boss)
        ]
        refused = await client.get("/v1/key")
    async with serve(create_app(make_config(upstream.url))) as url, http_client(url) as client:
        nobody = (await client.get("/v1/key")).json()

    assert answers[0] == {
        "object": "key", "name": "alice", "anonymous": False, "see": "own", "approve": True, "admin": False,
        "models": ["m"], "tools": ["get_*"], "limits": {}, "spent": {"day": 0.0, "month": 0.0}, "left": {},
    }  # fmt: skip
    assert [answers[1][right] for right in ("see", "approve", "admin")] == ["all", False, True]
    assert [nobody[right] for right in ("name", "anonymous", "see", "admin")] == ["anonymous", True, "all", True]
    assert refused.status_code == 401


async def test_an_operator_sees_every_key_with_what_it_has_spent_and_no_hash(
    upstream: Upstream, tmp_path: Path
) -> None:
    (boss, boss_hash), (_, stored_hash) = mint_key(), mint_key()
    store = KeyStore(tmp_path)
    store.add(KeyEntry("gone", stored_hash, see="own"))
    store.revoke("gone")
    store.close()
    key = {"name": "boss", "hash": boss_hash, "admin": True, "budget_per_day": 5.0}
    price = {"input_cost_per_token": 0.001, "output_cost_per_token": 0.002}
    config = make_config(upstream.url, auth="keys", keys=[key], data_dir=str(tmp_path), entry={"model_info": price})
    upstream.script("m", [Reply(text="hi")])
    async with serve(create_app(config)) as url, http_client(url) as client:
        by: dict[str, Any] = {"headers": {"authorization": f"Bearer {boss}"}}
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
        usage = (await client.post("/v1/chat/completions", json=body, **by)).json()["usage"]
        answer = await client.get("/admin/keys", **by)
    first, second = answer.json()["data"]

    assert (first["name"], first["kept_in"], first["admin"], first["limits"]) == (
        "boss", "config", True, {"budget_per_day": 5.0},
    )  # fmt: skip
    cost = usage["prompt_tokens"] * 0.001 + usage["completion_tokens"] * 0.002
    assert first["spent"] == {"day": pytest.approx(cost), "month": pytest.approx(cost)}
    assert (second["name"], second["kept_in"], second["see"], second["spent"]) == (
        "gone",
        "store",
        "own",
        {"day": 0.0, "month": 0.0},
    )
    assert second["revoked_at"] is not None
    assert "sha256" not in answer.text
    assert boss not in answer.text


async def test_only_an_operator_sees_the_keys(upstream: Upstream) -> None:
    key, digest = mint_key()
    config = make_config(upstream.url, auth="keys", keys=[{"name": "user", "hash": digest, "see": "all"}])
    async with serve(create_app(config)) as url, http_client(url) as client:
        answer = await client.get("/admin/keys", headers={"authorization": f"Bearer {key}"})

    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "admin_not_allowed")
