"""Conversations: items that a client keeps here, and that responses go on with and add to."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from callgate.access.keys import hash_key
from callgate.application import create_app
from callgate.conversation.context import MARK, PROMPT
from tests.e2e.test_client_servers import stored_in
from tests.harness.clients import openai_client
from tests.harness.configs import make_config
from tests.harness.responses import responded
from tests.harness.served import served_to_http, served_to_openai
from tests.harness.server import serve
from tests.scripted_upstream import Call, Hold, Pace, Reply, RequestRecord, Upstream

pytestmark = pytest.mark.anyio

BOTH = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
KEYS: list[Any] = [{"name": name, "hash": hash_key(f"cg-{name}")} for name in ("alice", "bob")]
LOOK: Any = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}


def roles(upstream: Upstream) -> list[str]:
    return [message["role"] for message in upstream.requests[-1].messages]


def texts(upstream: Upstream) -> list[str]:
    return [str(message["content"]) for message in upstream.requests[-1].messages]


async def items_of(client: Any, id: str) -> list[dict[str, Any]]:
    page = await client.conversations.items.list(id, order="asc", limit=100)
    return [item.to_dict(warnings=False) for item in page.data]


async def test_the_sdk_makes_reads_changes_and_deletes_one(upstream: Upstream) -> None:
    async with served_to_openai(upstream) as client:
        made = await client.conversations.create(
            items=[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}],
            metadata={"topic": "a"},
        )
        read = await client.conversations.retrieve(made.id)
        changed = await client.conversations.update(made.id, metadata={"topic": "b"})
        added = await client.conversations.items.create(made.id, items=[{"role": "user", "content": "more"}])
        newest = await client.conversations.items.list(made.id, limit=1)
        everything = [item.id async for item in client.conversations.items.list(made.id, limit=2, order="asc")]
        one = await client.conversations.items.retrieve(added.data[0].id, conversation_id=made.id)
        after = await client.conversations.items.delete(everything[0], conversation_id=made.id)
        left = await items_of(client, made.id)
        gone = await client.conversations.delete(made.id)
        for call in (client.conversations.retrieve, client.conversations.delete, client.conversations.items.list):
            with pytest.raises(openai.NotFoundError) as missing:
                await call(made.id)
    assert (made.object, made.metadata) == ("conversation", {"topic": "a"})
    assert read == made
    assert (changed.id, changed.metadata) == (made.id, {"topic": "b"})
    assert added.data[0].content[0].text == "more"
    assert (newest.data[0].id, newest.has_more) == (added.data[0].id, True)
    assert (len(everything), everything[-1], one.id) == (3, added.data[0].id, added.data[0].id)
    assert after.id == made.id
    assert [item["role"] for item in left] == ["assistant", "user"]
    assert left[0]["content"][0] == {"type": "output_text", "text": "hello"}
    assert (gone.deleted, gone.object) == (True, "conversation.deleted")
    assert missing.value.code == "conversation_not_found"
    assert not upstream.requests


@BOTH
async def test_a_response_goes_on_with_one_and_adds_to_it(upstream: Upstream, stream: bool) -> None:
    def answer(request: Any) -> Reply:
        if request.messages[-1]["role"] == "user" and "time" in str(request.messages[-1]["content"]):
            return Reply(calls=[Call("get_time")], reasoning="I look.")
        return Reply(text=f"Answer {len(request.messages)}.")

    upstream.script("m", answer)
    async with served_to_openai(upstream, "get_time") as client:
        made = await client.conversations.create(items=[{"role": "user", "content": "My name is Ada."}])
        asked: Any = {"model": "m", "conversation": made.id, "tools": [LOOK]}
        first = await responded(client, stream=stream, input="What time is it?", **asked)
        second = await responded(
            client, stream=stream, input="And now?", **{**asked, "conversation": {"id": made.id}}, store=False
        )
        kept = await items_of(client, made.id)
    assert first.conversation == {"id": made.id} or first.conversation.id == made.id
    assert second.status == "completed"
    kinds = [item["type"] for item in kept]
    assert kinds == ["message", "message", "reasoning", "mcp_call", "message", "message", "message"]
    assert len({item["id"] for item in kept}) == len(kept)
    assert roles(upstream) == ["user", "user", "assistant", "tool", "assistant", "user"]
    assert upstream.requests[-1].messages[2]["reasoning_content"] == "I look.", "nothing of its turns is lost"


async def test_a_call_of_the_client_is_answered_in_it(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[Call("look"), Call("get_time")]), Reply(text="Seen.")])
    async with served_to_openai(upstream, "get_time") as client:
        made = await client.conversations.create()
        asked: Any = {"model": "m", "conversation": made.id, "tools": [LOOK]}
        first = await client.responses.create(input="Look.", **asked)
        [call] = [item for item in first.output if item.type == "function_call"]
        output: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "a tree"}]
        second = await client.responses.create(input=output, **asked)
    assert second.output_text == "Seen."
    assert roles(upstream) == ["user", "assistant", "tool", "tool"]
    assert sorted(texts(upstream)[2:]) == ["12:00", "a tree"]


async def test_items_that_a_client_adds_or_removes_count(upstream: Upstream) -> None:
    upstream.script("m", lambda _: Reply(text="Fine."))
    async with served_to_openai(upstream) as client:
        made = await client.conversations.create()
        asked: Any = {"model": "m", "conversation": made.id}
        await client.responses.create(input="one", **asked)
        await client.conversations.items.create(made.id, items=[{"role": "user", "content": "two"}])
        await client.responses.create(input="three", **asked)
        assert texts(upstream) == ["one", "Fine.", "two", "three"]
        first = (await items_of(client, made.id))[0]["id"]
        await client.conversations.items.delete(first, conversation_id=made.id)
        await client.responses.create(input="four", **asked)
        assert texts(upstream) == ["Fine.", "two", "three", "Fine.", "four"]


async def test_items_that_are_exchanged_during_a_response_count(upstream: Upstream) -> None:
    asked, gate = asyncio.Event(), asyncio.Event()

    def answer(request: RequestRecord) -> Reply:
        asked.set()
        return Reply(text="Yes.", pace=Pace(hold=Hold(gate, None)))

    upstream.script("m", answer)
    async with served_to_openai(upstream) as client:
        made = await client.conversations.create(items=[{"role": "user", "content": "The old word."}])
        [old] = await items_of(client, made.id)
        task = asyncio.ensure_future(client.responses.create(model="m", input="hi", conversation=made.id))
        await asked.wait()
        await client.conversations.items.delete(old["id"], conversation_id=made.id)
        await client.conversations.items.create(made.id, items=[{"role": "user", "content": "The new word."}])
        gate.set()
        await task
        await client.responses.create(model="m", input="Go on.", conversation=made.id)
    assert texts(upstream) == ["The new word.", "hi", "Yes.", "Go on."]


async def test_nobody_reaches_the_conversation_of_another_key(upstream: Upstream, tmp_path: Path) -> None:
    upstream.script("m", lambda _: Reply(text="Fine."))
    config = make_config(upstream.url, auth="keys", keys=KEYS, data_dir=str(tmp_path))
    async with (
        serve(create_app(config)) as url,
        openai_client(url, api_key="cg-alice") as alice,
        openai_client(url, api_key="cg-bob") as bob,
    ):
        made = await alice.conversations.create(items=[{"role": "user", "content": "secret"}])
        item = (await items_of(alice, made.id))[0]["id"]
        items = bob.conversations.items
        attempts: list[Any] = [
            lambda: bob.conversations.retrieve(made.id),
            lambda: bob.conversations.update(made.id, metadata={}),
            lambda: bob.conversations.delete(made.id),
            lambda: items.list(made.id),
            lambda: items.retrieve(item, conversation_id=made.id),
            lambda: items.delete(item, conversation_id=made.id),
            lambda: items.create(made.id, items=[{"role": "user", "content": "mine"}]),
            lambda: bob.responses.create(model="m", input="hi", conversation=made.id),
        ]
        for attempt in attempts:
            with pytest.raises(openai.NotFoundError):
                await attempt()
        assert len(await items_of(alice, made.id)) == 1
    assert not upstream.requests
    async with serve(create_app(config)) as url, openai_client(url, api_key="cg-alice") as alice:
        assert len(await items_of(alice, made.id)) == 1, "it outlives the process"


async def post(client: httpx.AsyncClient, path: str, body: Any) -> tuple[int, str | None]:
    answer = await client.post(path, json=body)
    return answer.status_code, answer.json()["error"]["param"]


async def test_what_is_wrong_is_refused_by_its_place(upstream: Upstream) -> None:
    async with served_to_http(upstream) as client:
        made = (await client.post("/conversations")).json()["id"]
        items = f"/v1/conversations/{made}/items"
        assert await post(client, items, {"items": [{"role": "user", "content": "x"}] * 21}) == (400, "items")
        assert await post(client, items, {"items": ["x"]}) == (400, "items[0]")
        assert await post(client, items, {"items": [{"id": "x"}]}) == (400, "items[0].type")
        assert await post(client, items, {"items": [{"type": "item_reference", "id": "x"}]}) == (400, "items[0].type")
        assert await post(client, items, {"items": [{"role": "user", "content": None}]}) == (400, "items[0].content")
        assert await post(client, items, {"items": [{"role": 7, "content": "x"}]}) == (400, "items[0].role")
        assert await post(client, "/v1/conversations", {"metadata": {"a": 1}}) == (400, "metadata.a")
        both = {"model": "m", "input": "hi", "conversation": made, "previous_response_id": "resp_1"}
        assert await post(client, "/v1/responses", both) == (400, "conversation")
        assert await post(client, "/v1/responses", {"model": "m", "input": "hi", "conversation": 7}) == (
            400,
            "conversation",
        )
        assert await post(client, "/v1/responses", {"model": "m", "input": "", "conversation": made}) == (400, "input")


async def test_one_that_outgrows_the_share_of_its_key_is_refused_and_not_lost(upstream: Upstream) -> None:
    upstream.script("m", lambda _: Reply(text="x" * 3000))
    async with served_to_http(upstream, store={"response_bytes": 4096}) as client:
        made = (await client.post("/v1/conversations", json={})).json()["id"]
        long = {"items": [{"role": "user", "content": "y" * 5000}]}
        refused = await client.post(f"/v1/conversations/{made}/items", json=long)
        body = {"model": "m", "input": "hi", "conversation": made}
        answer = (await client.post("/v1/responses", json=body)).json()
        kept = (await client.get(f"/v1/conversations/{made}/items")).json()["data"]
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "conversation_too_large")
    assert (answer["status"], answer["conversation"], kept) == ("completed", None, [])


async def test_many_at_once_add_all_their_items(upstream: Upstream) -> None:
    async with served_to_openai(upstream) as client:
        made = await client.conversations.create()
        adding = [
            client.conversations.items.create(made.id, items=[{"role": "user", "content": str(number)}])
            for number in range(12)
        ]
        await asyncio.gather(*adding)
        kept = await items_of(client, made.id)
    assert sorted(int(item["content"][0]["text"]) for item in kept) == list(range(12))


async def test_a_response_in_the_background_compacts_and_adds_to_its_conversation(
    upstream: Upstream, tmp_path: Path
) -> None:
    def answer(request: Any) -> Reply:
        return Reply(text="In short." if PROMPT in str(request.messages[-1]["content"]) else "Done.")

    upstream.script("m", answer)
    async with served_to_openai(upstream, data_dir=str(tmp_path)) as client:
        made = await client.conversations.create(
            items=[{"role": "user", "content": "A long line. " * 600}, {"role": "assistant", "content": "Yes."}]
        )
        management: Any = [{"type": "compaction", "compact_threshold": 1000}]
        asked: Any = {"model": "m", "conversation": made.id, "context_management": management, "background": True}
        response = await client.responses.create(input="Go on.", stream=True, **asked)
        events = [event async for event in response]
        kept = await items_of(client, made.id)
        await client.responses.create(model="m", conversation=made.id, input="And now?")
    assert events[-1].type == "response.completed"
    assert [item["type"] for item in kept] == ["message", "message", "message", "compaction", "message"]
    assert [text[:9] for text in texts(upstream)] == [MARK[:9], "Done.", "And now?"]


async def test_credentials_for_servers_of_a_request_are_kept_in_no_conversation(
    upstream: Upstream, tmp_path: Path
) -> None:
    secret = "tok-pl4nted-0815"
    entry = {"type": "mcp", "server_label": "far", "server_url": "https://mcp.example.com/mcp", "authorization": secret}
    item = {"type": "additional_tools", "role": "developer", "tools": [entry]}
    async with served_to_http(upstream, data_dir=str(tmp_path)) as client:
        made = await client.post("/v1/conversations", json={"items": [item]})
        assert made.status_code == 200, made.text
        kept = await client.get(f"/v1/conversations/{made.json()['id']}/items")
        assert [tool["server_label"] for tool in kept.json()["data"][0]["tools"]] == ["far"]
    assert secret not in kept.text
    assert not [text for text in stored_in(tmp_path) if secret in text]
