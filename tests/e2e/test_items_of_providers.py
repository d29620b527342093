"""Tools that a provider runs on the Responses API: a client of that API sees their items, and no model gets them back."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from callgate.application import create_app
from tests.harness.clients import openai_client
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.models.wire import Request, Wire, raw_provider

pytestmark = pytest.mark.anyio

SEARCH: dict[str, Any] = {
    "type": "web_search_call",
    "id": "ws_theirs",
    "status": "completed",
    "action": {"type": "search", "query": "x"},
}
CODE: dict[str, Any] = {
    "type": "code_interpreter_call",
    "id": "ci_theirs",
    "status": "completed",
    "code": "1",
    "container_id": "cntr_theirs",
    "outputs": [{"type": "logs", "logs": "1"}],
}
SAID = {"type": "output_text", "text": "Found.", "annotations": []}
MESSAGE: dict[str, Any] = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [SAID]}
TOOLS: Any = [{"type": "web_search"}]
KINDS = ["web_search_call", "code_interpreter_call", "message"]


class Provider:
    """Searches, runs a program, and says that it found something."""

    def __init__(self) -> None:
        self.requests: list[Any] = []

    async def answer(self, request: Request, wire: Wire) -> None:
        self.requests.append(request.body)
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        head: dict[str, Any] = {"id": "r", "object": "response", "model": "m", "status": "completed", "usage": usage}
        whole = {**head, "output": [SEARCH, CODE, MESSAGE]}
        if not request.body.get("stream"):
            await wire.whole(whole)
            return
        events: list[dict[str, Any]] = [{"type": "response.created", "response": {**head, "output": []}}]
        for at, item in enumerate((SEARCH, CODE)):
            events.append({"type": "response.output_item.added", "output_index": at, "item": item})
            events.append({"type": f"response.{item['type']}.in_progress", "output_index": at, "item_id": item["id"]})
            events.append({"type": "response.output_item.done", "output_index": at, "item": item})
        delta = {"output_index": 2, "content_index": 0, "delta": "Found."}
        events.append({"type": "response.output_item.added", "output_index": 2, "item": {**MESSAGE, "content": []}})
        events.append({"type": "response.output_text.delta", **delta})
        events.append({"type": "response.completed", "response": whole})
        text = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
        head_lines = f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: {len(text)}\r\n\r\n"
        await wire.send(head_lines + text)


@asynccontextmanager
async def served(provider: Provider) -> AsyncIterator[tuple[str, AsyncOpenAI]]:
    async with raw_provider(provider.answer) as running:
        config = make_config(f"{running.url}/v1", tools=["get_time"], lane="responses")
        async with serve(create_app(config)) as url, openai_client(url) as client:
            yield url, client


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_their_items_are_shown_and_do_not_go_back(stream: bool) -> None:
    provider = Provider()
    async with served(provider) as (_, client):
        response: Any
        if stream:
            async with client.responses.stream(model="m", input="x", tools=TOOLS) as events:
                kinds = [event.type async for event in events]
                response = await events.get_final_response()
            assert "response.web_search_call.completed" in kinds
        else:
            response = await client.responses.create(model="m", input="x", tools=TOOLS)
        assert [item.type for item in response.output] == KINDS
        code = response.output[1].model_dump()
        assert {name: code[name] for name in ("code", "outputs", "status")} == {
            name: CODE[name] for name in ("code", "outputs", "status")
        }
        assert len({item.id for item in response.output}) == len(KINDS)
        again = await client.responses.create(model="m", input="again", previous_response_id=response.id, tools=TOOLS)
    assert [item.type for item in again.output] == KINDS
    assert [item["role"] for item in provider.requests[-1]["input"]] == ["user", "assistant", "user"]
    assert "theirs" not in json.dumps(provider.requests[-1])


async def test_other_apis_show_no_items() -> None:
    provider = Provider()
    async with served(provider) as (url, _), httpx.AsyncClient(base_url=url, timeout=30) as client:
        messages = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
        for path in ("/v1/chat/completions", "/v1/messages"):
            for stream in (True, False):
                answer = await client.post(path, json={**messages, "max_tokens": 9, "stream": stream})
                assert answer.status_code == 200
                assert "Found." in answer.text
                assert "theirs" not in answer.text
