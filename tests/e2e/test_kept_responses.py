"""How much is kept of one key's responses, wherever they are kept."""

from pathlib import Path
from typing import Any

import pytest

from callgate.access.keys import hash_key
from callgate.application import create_app
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.needs import needs
from tests.harness.redis import redis_server
from tests.harness.server import serve
from tests.scripted_upstream import Reply, Upstream

pytestmark = pytest.mark.anyio

KEYS = [{"name": name, "hash": hash_key(f"cg-{name}")} for name in ("alice", "bob")]
BYTES = 20_000


async def hold_to_it(config: Any) -> None:
    async with serve(create_app(config)) as url, http_client(url) as client:

        async def ask(name: str, text: str) -> dict[str, Any]:
            headers = {"authorization": f"Bearer cg-{name}"}
            answer = await client.post("/v1/responses", json={"model": "m", "input": text}, headers=headers)
            given: dict[str, Any] = answer.json()
            return given

        async def found(name: str, response: dict[str, Any]) -> int:
            headers = {"authorization": f"Bearer cg-{name}"}
            return (await client.get(f"/v1/responses/{response['id']}", headers=headers)).status_code

        of_bob = await ask("bob", "hi")
        of_alice = [await ask("alice", "x" * 2000) for _ in range(10)]
        states = [await found("alice", response) for response in of_alice]
        assert await found("bob", of_bob) == 200
        assert states == sorted(states, reverse=True), "the oldest went"
        assert (states[0], states[-1]) == (404, 200)
        too_large = await ask("alice", "x" * BYTES)
        assert (too_large["status"], too_large["store"]) == ("completed", False)
        assert [await found("alice", response) for response in of_alice] == states


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
async def test_a_key_that_keeps_too_much_forgets_its_own_oldest(
    upstream: Upstream, tmp_path: Path, on_disk: bool
) -> None:
    upstream.script("m", lambda request: Reply(text="ok"))
    folder = {"data_dir": str(tmp_path)} if on_disk else {}
    await hold_to_it(make_config(upstream.url, auth="keys", keys=KEYS, store={"response_bytes": BYTES}, **folder))


@needs("redis-server", "module:redis")
async def test_a_key_that_keeps_too_much_in_redis_forgets_its_own_oldest(upstream: Upstream, tmp_path: Path) -> None:
    upstream.script("m", lambda request: Reply(text="ok"))
    async with redis_server(tmp_path) as address:
        store = {"response_bytes": BYTES, "redis_url": address}
        await hold_to_it(make_config(upstream.url, auth="keys", keys=KEYS, store=store))
