"""What one key leaves behind is found by no other, whichever route it asks."""

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from callgate.access.keys import hash_key
from callgate.application import create_app
from tests.e2e.test_every_route import FILLED, routes
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.scripted_upstream import Reply, Upstream

pytestmark = pytest.mark.anyio

SECRET = "the plan of alice"
KEYS = [{"name": name, "hash": hash_key(f"cg-{name}"), "see": "own"} for name in ("alice", "bob")]
PLACE = re.compile(rf"(?<=/){FILLED}(?=/|$)")


async def left_behind(client: httpx.AsyncClient) -> dict[str, str]:
    """An id of each kind of thing that is kept."""
    asked: dict[str, Any] = {"model": "m", "input": SECRET}
    messages = [{"role": "user", "content": SECRET}]
    response = await client.post("/v1/responses", json=asked)
    [item] = (await client.get(f"/v1/responses/{response.json()['id']}/input_items")).json()["data"]
    background = await client.post("/v1/responses", json={**asked, "background": True})
    thread = {"model": "m", "max_tokens": 9, "messages": messages, "thread": {"type": "create"}}
    message = await client.post("/v1/messages", json=thread)
    keyed = {"idempotency-key": "k1"}
    chat = await client.post("/v1/chat/completions", json={"model": "m", "messages": messages}, headers=keyed)
    return {
        "response": response.json()["id"],
        "item": item["id"],
        "background": background.json()["id"],
        "message": message.json()["id"],
        "thread": f"thread%00{message.json()['id']}",
        "chat": chat.json()["id"],
        "run": chat.headers["x-callgate-run"],
    }


async def test_no_route_finds_what_another_key_left(upstream: Upstream, tmp_path: Path) -> None:
    upstream.script("m", lambda _: Reply(text=f"I got {SECRET}"))
    config = make_config(
        upstream.url, tools=("echo",), auth="keys", keys=KEYS, data_dir=str(tmp_path), record={"content": "on"}
    )
    app = create_app(config)
    async with serve(app) as url, http_client(url) as alice, http_client(url) as bob:
        alice.headers["authorization"], bob.headers["authorization"] = "Bearer cg-alice", "Bearer cg-bob"
        ids = await left_behind(alice)
        assert SECRET in (await alice.get(f"/v1/responses/{ids['response']}")).text
        assert SECRET in (await alice.get(f"/v1/chat/completions/{ids['chat']}")).text
        assert SECRET in (await alice.get(f"/v1/runs/{ids['run']}?content=1")).text
        by_id = [(method, path) for method, path in routes(app) if PLACE.search(path)]
        assert ("GET", f"/v1/responses/{FILLED}/input_items") in by_id
        for method, path in by_id:
            for kind, id in ids.items():
                answer = await bob.request(method, PLACE.sub(id, path), content=b"{}" if method == "POST" else None)
                assert answer.status_code in (400, 403, 404, 405), (method, path, kind, answer.text)
                assert SECRET not in answer.text
        listed = ("/v1/runs", "/v1/runs?key=alice", f"/v1/runs?q={SECRET}", "/v1/runs?sort=slowest", "/v1/usage")
        by = ("model", "tool,key", "provider", "flaw", "key&interval=minute", "model&interval=hour")
        for path in (*listed, *(f"/v1/usage?by={names}" for names in by)):
            answer = await bob.get(path)
            assert (answer.status_code, answer.json()["data"]) == (200, []), path
        for path in ("/v1/stats", "/v1/stats?days=30", "/v1/runs/totals", f"/v1/runs/totals?q={SECRET}"):
            answer = await bob.get(path)
            assert answer.status_code == 200, path
            assert "alice" not in answer.text, path
        assert (await bob.get("/v1/runs/totals?key=alice")).json()["runs"] == 0
        assert "alice" not in (await bob.get("/v1/runs/names")).text
        tried: list[dict[str, Any]] = [
            {"input": "on", "previous_response_id": ids["response"]},
            {"input": "on", "previous_response_id": ids["background"]},
            {"input": [{"type": "item_reference", "id": ids["item"]}]},
        ]
        for body in tried:
            answer = await bob.post("/v1/responses", json={"model": "m", **body})
            assert answer.status_code in (400, 404), body
        going_on = {"type": "continue", "previous_message_id": ids["message"]}
        body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "on"}], "thread": going_on}
        assert (await bob.post("/v1/messages", json=body)).status_code == 404
        messages = [{"role": "user", "content": SECRET}]
        asked = {"model": "m", "messages": messages}
        again = await bob.post("/v1/chat/completions", json=asked, headers={"idempotency-key": "k1"})
        assert "idempotent-replayed" not in again.headers
        assert SECRET in (await alice.get(f"/v1/responses/{ids['response']}")).text, "and bob has removed nothing"
