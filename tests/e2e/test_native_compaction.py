"""Compaction of a provider that has it itself: asked for in the client's words, its items handed out sealed and given back."""

import json
from typing import Any

import pytest

from callgate.application import create_app
from tests.harness.clients import openai_client
from tests.harness.configs import make_config
from tests.harness.responses import responded
from tests.harness.server import serve
from tests.models.wire import Request, Wire, raw_provider

pytestmark = pytest.mark.anyio

BOTH = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
MODEL = "responses/gpt-5-pro"
ITEM = {"type": "compaction", "id": "cmp_theirs", "encrypted_content": "sealed by the provider"}
TEXT = {"type": "output_text", "text": "Fine.", "annotations": []}
SAID = {"type": "message", "id": "msg_x", "role": "assistant", "status": "completed", "content": [TEXT]}
USAGE = {"input_tokens": 3, "output_tokens": 5, "total_tokens": 8}
MANAGEMENT: Any = [{"type": "compaction", "compact_threshold": 50_000}]


@BOTH
async def test_its_items_go_back_to_it_as_they_came(stream: bool) -> None:
    asked: list[dict[str, Any]] = []

    async def answer(request: Request, wire: Wire) -> None:
        asked.append(request.body)
        response = {"id": "resp_p", "object": "response", "model": "gpt-5-pro", "status": "completed", "usage": USAGE}
        whole = {**response, "output": [ITEM, SAID]}
        if not request.body["stream"]:
            await wire.whole(json.dumps(whole))
            return
        events: list[dict[str, Any]] = [{"type": "response.created", "response": {**whole, "output": []}}]
        for at, item in enumerate((ITEM, SAID)):
            events.append({"type": "response.output_item.added", "output_index": at, "item": item})
            if item is SAID:
                place = {"output_index": at, "content_index": 0}
                events.append({"type": "response.output_text.delta", **place, "delta": "Fine."})
            events.append({"type": "response.output_item.done", "output_index": at, "item": item})
        events.append({"type": "response.completed", "response": whole})
        await wire.head(200)
        await wire.send("".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events))
        wire.writer.close()

    async with raw_provider(answer) as provider:
        config = make_config(provider.url, models=[MODEL], lane="responses")
        async with serve(create_app(config)) as url, openai_client(url) as client:
            request: Any = {"model": MODEL, "context_management": MANAGEMENT}
            first = await responded(client, stream=stream, input="hi", **request)
            output = [item.to_dict() for item in first.output]
            question = {"role": "user", "content": "Go on."}
            await responded(client, stream=stream, input=[question, *output, question], **request)
    assert [item["type"] for item in output] == ["compaction", "message"]
    assert "sealed by the provider" not in json.dumps(output)
    assert asked[0]["context_management"] == MANAGEMENT
    kinds = [item["type"] for item in asked[1]["input"]]
    assert kinds == ["message", "compaction", "message", "message"]
    assert asked[1]["input"][1]["encrypted_content"] == ITEM["encrypted_content"]
