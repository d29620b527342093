"""A model behind the Responses API, asked by clients of each face: its turns go back to it as it made them, sealed thinking with
them, and nothing is kept at its provider."""

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from openai import AsyncOpenAI

from callgate.application import create_app
from tests.harness.clients import http_client, openai_client
from tests.harness.configs import make_config
from tests.harness.messages import MessagesClient, text_of
from tests.harness.responses import responded
from tests.harness.server import serve
from tests.models.wire import Request, Server, Wire, raw_provider

pytestmark = pytest.mark.anyio

BOTH = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
MODEL = "responses/gpt-5-pro"
LOOK = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}}
USAGE = {"input_tokens": 3, "output_tokens": 5, "total_tokens": 8}


def thought(name: str) -> dict[str, Any]:
    return {"type": "reasoning", "id": f"rs_{name}", "summary": [], "encrypted_content": f"sealed {name}"}


def call(name: str, **arguments: Any) -> dict[str, Any]:
    made = {"call_id": f"call_{name}1x2", "name": name, "arguments": json.dumps(arguments)}
    return {"type": "function_call", "id": f"fc_{name}", "status": "completed", **made}


def message_item(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": "msg_x", "role": "assistant", "status": "completed", "content": [part]}


TURNS = (
    [thought("one"), call("add", a=1, b=2)],
    [thought("two"), call("look", q="x")],
    [thought("three"), message_item("It is 3.")],
)


def streamed(response: Mapping[str, Any]) -> str:
    begun = {**response, "status": "in_progress", "output": []}
    events: list[dict[str, Any]] = [{"type": "response.created", "response": begun}]
    for at, item in enumerate(response["output"]):
        events.append({"type": "response.output_item.added", "output_index": at, "item": {**item, "arguments": ""}})
        if item["type"] == "function_call":
            events.append(
                {"type": "response.function_call_arguments.delta", "output_index": at, "delta": item["arguments"]}
            )
        if item["type"] == "message":
            delta = {"output_index": at, "content_index": 0, "delta": item["content"][0]["text"]}
            events.append({"type": "response.output_text.delta", **delta})
        events.append({"type": "response.output_item.done", "output_index": at, "item": item})
    events.append({"type": f"response.{response['status']}", "response": response})
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)


async def answer(request: Request, wire: Wire) -> None:
    asked = request.body
    assert (request.target, asked["store"]) == ("/v1/responses", False)
    answered = sum(item["type"] == "function_call_output" for item in asked["input"])
    response = {"id": "resp_p", "object": "response", "model": "gpt-5-pro", "status": "completed", "usage": USAGE}
    whole = {**response, "output": TURNS[min(answered, len(TURNS) - 1)]}
    if asked["stream"]:
        await wire.head(200)
        await wire.send(streamed(whole))
        wire.writer.close()
    else:
        await wire.whole(json.dumps(whole))


@contextlib.asynccontextmanager
async def provided(**options: Any) -> AsyncIterator[tuple[Server, str]]:
    async with raw_provider(answer) as provider:
        config = make_config(f"{provider.url}/v1", models=[MODEL], tools=["add"], lane="auto", **options)
        async with serve(create_app(config)) as url:
            yield provider, url


def items(server: Server, at: int = -1) -> list[str]:
    """What was asked, item by item, in short."""
    short = {"reasoning": "encrypted_content", "function_call": "name", "function_call_output": "output"}
    return [str(item.get(short.get(item["type"], "role"))) for item in server.requests[at].body["input"]]


WHOLE = ["user", "sealed one", "add", "3", "sealed two", "look", "found"]


@BOTH
@pytest.mark.parametrize("way", ["previous_response_id", "items"])
async def test_thinking_goes_on_between_the_turns_of_a_response(stream: bool, way: str) -> None:
    async with provided() as (server, url), openai_client(url) as client:
        asked: Any = {"model": MODEL, "tools": [LOOK], "stream": stream, "include": ["reasoning.encrypted_content"]}
        first = await responded(client, input="1+2?", **asked)
        assert [item.type for item in first.output] == ["reasoning", "mcp_call", "reasoning", "function_call"]
        result = {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "found"}
        if way == "items":
            before = [{"role": "user", "content": "1+2?"}, *(item.to_dict(warnings=False) for item in first.output)]
            last = await responded(client, input=[*before, result], store=False, **asked)
        else:
            last = await responded(client, input=[result], previous_response_id=first.id, **asked)
    assert (last.output_text, last.usage.total_tokens) == ("It is 3.", 8)
    assert items(server) == WHOLE
    assert server.requests[0].body["include"] == ["reasoning.encrypted_content"]


@BOTH
async def test_a_chat_asks_such_a_model_as_well(stream: bool) -> None:
    function = {"name": "look", "parameters": LOOK["parameters"], "strict": True}
    tools: Any = [{"type": "function", "function": function}]
    async with provided() as (server, url), openai_client(url) as client:
        messages: list[Any] = [{"role": "user", "content": "1+2?"}]
        message = await chatted(client, stream, messages, tools)
        assert "sealed" not in str(message), "what was sealed for its provider is nobody else's"
        [asked] = message["tool_calls"]
        messages += [message, {"role": "tool", "tool_call_id": asked["id"], "content": "found"}]
        message = await chatted(client, stream, messages, tools)
    assert message["content"] == "It is 3."
    assert items(server) == WHOLE


async def chatted(client: AsyncOpenAI, stream: bool, messages: list[Any], tools: Any) -> dict[str, Any]:
    if stream:
        async with client.chat.completions.stream(model=MODEL, messages=messages, tools=tools) as events:
            completion: Any = await events.get_final_completion()
    else:
        completion = await client.chat.completions.create(model=MODEL, messages=messages, tools=tools)
        assert {turn["lane"] for turn in completion.x_callgate["turns"]} == {"responses"}
    return dict(completion.choices[0].message.to_dict())


@BOTH
async def test_messages_ask_such_a_model_as_well(stream: bool) -> None:
    async with provided() as (server, url), http_client(url) as http:
        tool = {"name": "look", "input_schema": LOOK["parameters"]}
        asked: Any = {"model": MODEL, "tools": [tool], "stream": stream}
        client, question = MessagesClient(http), {"role": "user", "content": "1+2?"}
        message = await client.ask(messages=[question], **asked)
        [call_block] = [block for block in message["content"] if block["type"] == "tool_use"]
        result = {"type": "tool_result", "tool_use_id": call_block["id"], "content": "found"}
        history = [
            question,
            {"role": "assistant", "content": message["content"]},
            {"role": "user", "content": [result]},
        ]
        last = await client.ask(messages=history, **asked)
    assert text_of(last) == "It is 3."
    assert items(server) == WHOLE


async def test_a_wish_for_a_summary_reaches_the_provider() -> None:
    async with provided() as (server, url), openai_client(url) as client:
        await client.responses.create(model=MODEL, input="1+2?", reasoning={"summary": "auto", "effort": "high"})
    assert server.requests[0].body["reasoning"] == {"summary": "auto", "effort": "high"}


async def test_a_fallback_that_takes_chats_is_not_sent_what_is_sealed() -> None:
    seen: list[dict[str, Any]] = []

    async def both(request: Request, wire: Wire) -> None:
        if request.target == "/v1/chat/completions":
            seen.append(request.body)
            message = {"role": "assistant", "content": "from afar"}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            await wire.whole(json.dumps({"id": "c", "object": "chat.completion", "model": "m", "choices": [choice]}))
        elif any(item["type"] == "function_call_output" for item in request.body["input"]):
            await wire.whole('{"error": {"message": "busy"}}', 503)
        else:
            await answer(request, wire)

    async with raw_provider(both) as provider:
        config = make_config(f"{provider.url}/v1", models=[MODEL, "m"], tools=["add"], lane="auto")
        entry = config.model_list[0].model_copy(update={"fallbacks": ("m",)})
        config = config.model_copy(update={"model_list": (entry, *config.model_list[1:])})
        async with serve(create_app(config)) as url, openai_client(url) as client:
            response = await client.responses.create(model=MODEL, input="1+2?")
    assert response.output_text == "from afar"
    assert [message["role"] for message in seen[0]["messages"]] == ["user", "assistant", "tool"]
    assert "sealed" not in str(seen)
