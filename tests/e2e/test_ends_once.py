"""What fails behind the end of a chat does not end it again, and what fails before it loses nothing that a provider has counted."""

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from callgate.api.conversation import Conversation
from callgate.application import create_app
from callgate.responses.stored import StoredResponses
from callgate.tools.read_more import ResultPages
from tests.e2e.test_passed_answers import streamed, whole
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.models.wire import Request, Wire, chunk, completion, raw_provider

pytestmark = pytest.mark.anyio

CALL = {"id": "call_1", "type": "function", "function": {"name": "step", "arguments": '{"label": "a"}'}}
USED = {"prompt_tokens": 3, "completion_tokens": 2}
STREAM = streamed(chunk({"content": "Hi"}), chunk(finish="stop"), chunk(usage=USED), "[DONE]")
COUNTED = {"tokens_in": 3, "tokens_out": 2}
NOTHING = {"tokens_in": 0, "tokens_out": 0}


async def counted(client: httpx.AsyncClient) -> tuple[dict[str, int], list[str]]:
    """Return the tokens that are counted, and the endings of chats."""
    page = (await client.get("/metrics")).text
    tokens = re.findall(r'callgate_key_used_total\{key="anonymous",what="(tokens_\w+)"\} (\d+)', page)
    endings = re.findall(r'callgate_chats_total\{ending="(\w+)"[^}]*\} (\d+)', page)
    return {what: int(count) for what, count in tokens}, [f"{ending} {count}" for ending, count in endings]


@pytest.mark.parametrize("tools", [[], ["step"]], ids=["without tools", "with tools"])
@pytest.mark.parametrize("way", ["short", "general", "streamed"])
async def test_a_client_that_leaves_while_its_answer_is_stored_is_counted_once(
    way: str, tools: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    is_storing = asyncio.Event()

    async def hang(*_: Any) -> None:
        is_storing.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(StoredResponses, "put", hang)
    if way == "general":
        monkeypatch.setattr(Conversation, "_is_plain", lambda conversation: False)
    async with (
        raw_provider(STREAM if way == "streamed" else whole(completion("Hi"))) as provider,
        serve(create_app(make_config(provider.url, tools=tools))) as url,
        http_client(url) as client,
    ):
        body = {"model": "m", "input": "hi", "stream": way == "streamed"}
        asking = asyncio.create_task(client.post("/v1/responses", json=body))
        await is_storing.wait()
        asking.cancel()
        await asyncio.wait([asking])
        async with asyncio.timeout(30):
            while "callgate_requests_total{" not in (await client.get("/metrics")).text:  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # the request ends when the server has noticed
        assert await counted(client) == (COUNTED, ["answered 1"])


async def answer_with_a_call(request: Request, wire: Wire) -> None:
    await wire.whole(completion("", "tool_calls", content=None, tool_calls=[CALL]))


@pytest.mark.parametrize("comes", ["whole", "in part"])
async def test_an_answer_that_has_begun_is_counted_and_closed_where_its_chat_cannot_be_set_up(
    comes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_left = asyncio.Event()

    async def answer_in_part(request: Request, wire: Wire) -> None:
        await wire.head()
        await wire.event(chunk({"content": "Hi"}))
        await wire.peer_left()
        has_left.set()

    async def fail(*_: Any) -> None:
        raise RuntimeError("the store is gone")

    monkeypatch.setattr(ResultPages, "recall", fail)
    async with (
        raw_provider(answer_with_a_call if comes == "whole" else answer_in_part) as provider,
        serve(create_app(make_config(provider.url, tools=["step"], record={"content": True}))) as url,
        http_client(url) as client,
    ):
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 500
        if comes == "in part":
            async with asyncio.timeout(30):
                await has_left.wait()
        tokens, endings = await counted(client)
        [run] = (await client.get("/v1/runs")).json()["data"]
    assert endings == ["failed 1"]
    assert tokens == (COUNTED if comes == "whole" else NOTHING)
    assert (run["turns"], run["tokens_in"]) == (1, tokens["tokens_in"])
