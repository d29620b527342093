"""Runs of every API are asked again as chats."""

from typing import Any

import pytest

from callgate.application import create_app
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = pytest.mark.anyio

TURNS = [Reply(calls=[Call("add", {"a": 2, "b": 3}, id="call_add")]), Reply(text="It is 5.")]
FACES: dict[str, dict[str, Any]] = {
    "/v1/responses": {"model": "m", "input": "2 + 3?", "instructions": "Be short.", "store": False},
    "/v1/messages": {
        "model": "m",
        "max_tokens": 100,
        "system": "Be short.",
        "messages": [{"role": "user", "content": "2 + 3?"}],
    },
}


@pytest.mark.parametrize("path", FACES)
async def test_a_run_of_another_api_is_asked_again(upstream: Upstream, path: str) -> None:
    config = make_config(upstream.url, tools=["add"], record={"content": True, "wire": "on"})
    async with serve(create_app(config)) as url, http_client(url) as client:
        upstream.script("m", TURNS)
        answer = await client.post(path, json=FACES[path])
        assert answer.status_code == 200
        run = answer.headers["x-callgate-run"]
        asked = [request.body["messages"] for request in upstream.requests]
        upstream.script("m", TURNS)
        replayed = (await client.post(f"/v1/runs/{run}/replay", json={})).json()
        wire = (await client.get(f"/v1/runs/{run}/wire/0")).json()
        recording = await client.get(f"/v1/runs/{run}/export", params={"as": "recording"})
        facts = (await client.get(f"/v1/runs/{run}")).json()

    assert facts["route"] == path.removeprefix("/v1/")
    assert replayed["answer"]["choices"][0]["message"]["content"] == "It is 5."
    assert [request.body["messages"] for request in upstream.requests[2:]] == asked
    assert "call_add" in wire["data"][0]
    assert recording.json()["expect"]["results"] == {"call_add": "5"}
