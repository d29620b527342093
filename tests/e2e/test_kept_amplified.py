"""What a few bytes bring in of what was kept here: no more than a request may that is sent whole."""

from typing import Any

import httpx
import pytest

from callgate.application import create_app
from tests.chaos.scale import held_to
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.loop_probe import LoopProbe
from tests.harness.server import serve
from tests.scripted_upstream import Reply, Upstream

pytestmark = pytest.mark.anyio

BYTES = 400_000
MOST = 0.25
"""Seconds of the processor for one turn of the loop; it was three and a half before."""


def config_of(upstream: Upstream) -> Any:
    upstream.script("m", lambda _: Reply(text="ok"))
    return make_config(upstream.url, limits={"body_bytes": BYTES})


async def post_response(client: httpx.AsyncClient, input: Any, **fields: Any) -> httpx.Response:
    return await client.post("/v1/responses", json={"model": "m", "input": input, **fields})


def refused(answer: httpx.Response) -> tuple[int, str, str]:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["param"]


async def reference_to(client: httpx.AsyncClient, input: Any) -> dict[str, Any]:
    """Has an input kept, and returns a reference to its first item."""
    response = (await post_response(client, input)).json()["id"]
    [item] = (await client.get(f"/v1/responses/{response}/input_items?limit=1")).json()["data"]
    return {"type": "item_reference", "id": item["id"]}


async def test_references_come_to_no_more_than_a_whole_request(upstream: Upstream) -> None:
    async with serve(create_app(config_of(upstream))) as url, http_client(url) as client:
        references = [await reference_to(client, f"{number}" + "x" * (BYTES // 2 - 1000)) for number in range(3)]
        assert (await post_response(client, references[:1])).status_code == 200
        before = len(upstream.requests)
        assert refused(await post_response(client, references)) == (413, "request_too_large", "input")
        assert len(upstream.requests) == before


async def test_a_reference_that_is_repeated_counts_once(upstream: Upstream) -> None:
    async with serve(create_app(config_of(upstream))) as url, http_client(url) as client:
        reference = await reference_to(client, "x" * (BYTES // 2 - 1000))
        assert (await post_response(client, [reference] * 2000)).status_code == 200
        assert len(upstream.requests[-1].body["messages"]) == 1


async def test_references_to_many_items_of_one_response_read_it_once(upstream: Upstream) -> None:
    async with serve(create_app(config_of(upstream))) as url, http_client(url) as client:
        messages = [{"role": "user", "content": f"{number} " + "x" * 100} for number in range(1500)]
        response = (await post_response(client, messages)).json()["id"]
        references: list[dict[str, Any]] = []
        while len(references) < len(messages):
            after = f"&after={references[-1]['id']}" if references else ""
            page = (await client.get(f"/v1/responses/{response}/input_items?limit=100&order=asc{after}")).json()
            references += [{"type": "item_reference", "id": item["id"]} for item in page["data"]]
        async with LoopProbe() as probe:
            answer = await post_response(client, references)
        assert answer.status_code == 200
        assert len(upstream.requests[-1].body["messages"]) == len(messages)
        held_to(MOST, "references to many items keep the loop, of the processor", probe.longest)


async def test_values_that_references_bring_in_are_counted(upstream: Upstream) -> None:
    upstream.script("m", lambda _: Reply(text="ok"))
    async with serve(create_app(make_config(upstream.url))) as url, http_client(url) as client:
        parts = [{"type": "input_text", "text": ""}] * 20_000
        references = [await reference_to(client, [{"role": "user", "content": parts}]) for _ in range(3)]
        assert refused(await post_response(client, references))[:2] == (400, "too_many_values")


async def test_a_chain_of_responses_comes_to_no_more_than_a_whole_request(upstream: Upstream) -> None:
    async with serve(create_app(config_of(upstream))) as url, http_client(url) as client:
        first = (await post_response(client, "x" * (BYTES // 2))).json()["id"]
        second = await post_response(client, "y" * (BYTES // 4), previous_response_id=first)
        assert second.status_code == 200
        third = await post_response(client, "z" * (BYTES // 3), previous_response_id=second.json()["id"])
        assert refused(third) == (413, "request_too_large", "previous_response_id")
        assert (await post_response(client, "short", previous_response_id=second.json()["id"])).status_code == 200


async def test_a_thread_of_messages_comes_to_no_more_than_a_whole_request(upstream: Upstream) -> None:
    async with serve(create_app(config_of(upstream))) as url, http_client(url) as client:

        async def say(size: int, **thread: str) -> httpx.Response:
            messages = [{"role": "user", "content": "x" * size}]
            body = {"model": "m", "max_tokens": 9, "messages": messages, "thread": thread}
            return await client.post("/v1/messages", json=body)

        first = await say(BYTES // 2, type="create")
        assert first.status_code == 200
        second = await say(BYTES // 2, type="continue", previous_message_id=first.json()["id"])
        assert second.status_code == 413
        assert second.json()["error"]["type"] == "request_too_large"
        third = await say(100, type="continue", previous_message_id=first.json()["id"])
        assert third.status_code == 200


async def test_a_thread_is_no_response(upstream: Upstream) -> None:
    """They are kept side by side."""
    async with serve(create_app(config_of(upstream))) as url, http_client(url) as client:
        body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
        kept = (await client.post("/v1/messages", json={**body, "thread": {"type": "create"}})).json()["id"]
        for method, rest in (("GET", ""), ("GET", "/input_items"), ("GET", "?stream=true"), ("POST", "/cancel")):
            answer = await client.request(method, f"/v1/responses/thread%00{kept}{rest}")
            assert answer.status_code == 404, (method, rest)
