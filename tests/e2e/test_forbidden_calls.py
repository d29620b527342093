"""A provider that calls tools although the client forbids calls: no call reaches the client, on any API and lane, and the answer says which
were left out."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from callgate.application import create_app
from tests.e2e.test_responses_lane import streamed
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.messages import put_together
from tests.harness.server import serve
from tests.harness.wire import raw_post
from tests.models.wire import Request, Wire, closing, raw_provider
from tests.scripted_upstream import Call, Cut, Reply, Upstream

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.leaves("litellm", why="litellm keeps its thread for logging"),
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings"),
]

BOTH = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
ASKED = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {}}
LOOK = {"name": "look", "parameters": SCHEMA}
USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
REQUESTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "chat, none": ("chat", {"tool_choice": "none"}),
    "chat, none of its own": ("chat", {"tools": [{"type": "function", "function": LOOK}], "tool_choice": "none"}),
    "chat, an empty list": ("chat", {"tools": [], "tool_choice": "none"}),
    "chat, an empty list alone": ("chat", {"tools": []}),
    "responses, an empty list alone": ("responses", {"tools": []}),
    "messages, an empty list alone": ("messages", {"tools": []}),
    "chat, functions": ("chat", {"function_call": "none"}),
    "chat, none of its functions": ("chat", {"functions": [LOOK], "function_call": "none"}),
    "responses, none": ("responses", {"tool_choice": "none"}),
    "responses, an empty list": ("responses", {"tools": [], "tool_choice": "none"}),
    "responses, none of its own": ("responses", {"tools": [{"type": "function", **LOOK}], "tool_choice": "none"}),
    "messages, none": ("messages", {"tool_choice": {"type": "none"}}),
    "messages, an empty list": ("messages", {"tools": [], "tool_choice": {"type": "none"}}),
    "messages, none of its own": (
        "messages",
        {"tools": [{"name": "look", "input_schema": SCHEMA}], "tool_choice": {"type": "none"}},
    ),
}
FORMS = pytest.mark.parametrize("form", REQUESTS)
LANES: Mapping[str, tuple[str, str, str]] = {
    "direct": ("openai", "direct", ""),
    "litellm": ("openai", "litellm", ""),
    "translated": ("anthropic", "auto", "claude-sonnet-4-5"),
    "gemini": ("gemini", "auto", "gemini-2.5-flash"),
}
LEFT_OUT = [{"name": "delete_file", "reason": "forbidden"}]


def request_body(api: str, *, stream: bool, model: str = "m", **more: Any) -> dict[str, Any]:
    asked: dict[str, Any] = {"model": model, "stream": stream, **more}
    if api == "responses":
        return {**asked, "input": "hi"}
    return {**asked, "messages": ASKED, **({"max_tokens": 99} if api == "messages" else {})}


def come(api: str, text: str, *, stream: bool) -> tuple[str, list[Any], Any, dict[str, Any]]:
    """The text of an answer, its calls, its finish reason and its report."""
    if api == "messages":
        body = put_together(text) if stream else json.loads(text)
        calls = [block for block in body["content"] if block["type"] == "tool_use"]
        said = "".join(block["text"] for block in body["content"] if block["type"] == "text")
        return said, calls, body["stop_reason"], body.get("x_callgate", {})
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")] if stream else []
    if api == "responses":
        body = events[-1]["response"] if stream else json.loads(text)
        calls = [item for item in body["output"] if item["type"] not in {"message", "reasoning"}]
        parts = [part["text"] for item in body["output"] for part in item.get("content") or ()]
        return "".join(parts), calls, body["status"], body["x_callgate"]
    chunks = events if stream else [json.loads(text)]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    deltas = [choice.get("delta") or choice.get("message") or {} for choice in choices]
    calls = [delta for delta in deltas if delta.get("tool_calls") or delta.get("function_call")]
    [reason] = [choice["finish_reason"] for choice in choices if choice.get("finish_reason")]
    [report] = [chunk["x_callgate"] for chunk in chunks if "x_callgate" in chunk]
    return "".join(delta.get("content") or "" for delta in deltas), calls, reason, report


ENDS = {"chat": "stop", "responses": "completed", "messages": "end_turn"}


@BOTH
@FORMS
@pytest.mark.parametrize("tools", [("add",), ()], ids=["with tools of ours", "without"])
async def test_no_call_reaches_the_client_and_the_answer_names_it(
    upstream: Upstream, form: str, stream: bool, tools: tuple[str, ...]
) -> None:
    api, more = REQUESTS[form]
    upstream.script("m", [Reply(text="I tidy up.", calls=[Call("delete_file", {"path": "/a"})], usage=USAGE)])
    config = make_config(upstream.url, tools=tools)
    async with serve(create_app(config)) as url, http_client(url) as client:
        answer = await client.post(PATHS[api], json=request_body(api, stream=stream, **more))
    assert answer.status_code == 200, answer.text
    said, calls, reason, report = come(api, answer.text, stream=stream)
    assert (said, calls, reason) == ("I tidy up.", [], ENDS[api])
    [turn] = report["turns"]
    assert (turn["not_run"], turn["calls"], turn["finish_reason"]) == (LEFT_OUT, [], "tool_calls")
    assert report["ending"] == "answered"
    assert report["usage"]["sum"]["total_tokens"] == 7


@BOTH
@pytest.mark.parametrize("api", PATHS)
@pytest.mark.parametrize("lane", LANES)
async def test_on_every_lane(upstream: Upstream, api: str, stream: bool, lane: str) -> None:
    if (api, lane) == ("messages", "translated"):
        return  # passed through: `test_blocks_behind_a_call_that_was_left_out_move_up`
    provider, setting, name = LANES[lane]
    model = name or "m"
    base = {"anthropic": upstream.root, "gemini": f"{upstream.root}/v1beta"}.get(provider, upstream.url)
    config = make_config(base, models=[model], provider=provider, lane=setting)
    upstream.script(model, [Reply(text="I tidy up.", calls=[Call("delete_file", {"path": "/a"})])])
    none = {"type": "none"} if api == "messages" else "none"
    async with serve(create_app(config)) as url, http_client(url) as client:
        answer = await client.post(PATHS[api], json=request_body(api, stream=stream, model=model, tool_choice=none))
    assert answer.status_code == 200, answer.text
    said, calls, reason, report = come(api, answer.text, stream=stream)
    assert (said, calls, reason) == ("I tidy up.", [], ENDS[api])
    assert report["turns"][0]["not_run"] == LEFT_OUT


@BOTH
@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "plain"])
async def test_several_choices_and_runs_with_a_key(upstream: Upstream, stream: bool, keyed: bool) -> None:
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "delete_file", "arguments": "{}"}}
    if stream:
        chunks = [
            chunk(0, {"role": "assistant", "content": "a"}),
            chunk(1, {"role": "assistant", "tool_calls": [call]}),
            chunk(0, {}, "stop"),
            chunk(1, {}, "tool_calls"),
        ]
        reply = Reply(chunks=chunks)
    else:
        messages: list[dict[str, Any]] = [{"content": "a"}, {"content": None, "tool_calls": [call]}]
        ends = ["stop", "tool_calls"]
        choices = [
            {"index": at, "message": {"role": "assistant", **message}, "finish_reason": end}
            for at, (message, end) in enumerate(zip(messages, ends, strict=True))
        ]
        reply = Reply(body={"id": "x", "object": "chat.completion", "model": "m", "choices": choices, "usage": USAGE})
    upstream.script("m", lambda _: reply)
    headers = {"idempotency-key": "one"} if keyed else {}
    async with serve(create_app(make_config(upstream.url))) as url, http_client(url) as client:
        answer = await client.post(
            PATHS["chat"], json=request_body("chat", stream=stream, n=2, tool_choice="none"), headers=headers
        )
    bodies = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    parts = bodies if stream else [answer.json()]
    said = [(choice, choice.get("delta") or choice.get("message")) for part in parts for choice in part["choices"]]
    assert not any(message.get("tool_calls") for _, message in said if message)
    assert {choice["index"]: choice["finish_reason"] for choice, _ in said if choice["finish_reason"]} == dict.fromkeys(
        (0, 1), "stop"
    )
    [report] = [part["x_callgate"] for part in parts if "x_callgate" in part]
    assert '"not_run": [{"name": "delete_file"' in json.dumps(report)


def chunk(choice: int, delta: Mapping[str, Any], finish: str | None = None) -> dict[str, Any]:
    choices = [{"index": choice, "delta": delta, "finish_reason": finish}]
    return {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices}


async def test_a_stream_keeps_all_else_as_it_came(upstream: Upstream) -> None:
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "delete_file", "arguments": ""}}
    more = {"index": 0, "function": {"arguments": '{"path": "/a"}'}}
    before = [chunk(0, {"role": "assistant", "content": ""}), chunk(0, {"content": "data: one\n\ntwo"})]
    behind = [chunk(0, {"content": "\n\ndata: three", "tool_calls": None, "odd": [1]}), chunk(0, {}, "tool_calls")]
    calls = [chunk(0, {"tool_calls": [call]}), chunk(0, {"tool_calls": [more]})]
    upstream.script("m", [Reply(chunks=[*before, *calls, *behind])])
    async with serve(create_app(make_config(upstream.url))) as url:
        answer = await raw_post(url, request_body("chat", stream=True, tool_choice="none"))
    *come_first, last = answer.chunks
    assert come_first == [*before, chunk(0, {"content": "\n\ndata: three", "odd": [1]} | {"tool_calls": None})]
    report = last.pop("x_callgate")
    assert last == chunk(0, {}, "stop")
    assert report["turns"][0]["not_run"] == LEFT_OUT
    assert answer.data[-1] == "[DONE]"


async def test_words_and_empty_fields_that_look_like_calls_are_passed_as_they_came(upstream: Upstream) -> None:
    said = 'my_call: "tool_calls": [{"a": 1}] "function_call":{'
    chunks = [
        chunk(0, {"role": "assistant", "content": said, "tool_calls": [], "function_call": None}),
        chunk(0, {"tool_calls": None}, "stop"),
    ]
    upstream.script("m", [Reply(chunks=chunks)])
    async with serve(create_app(make_config(upstream.url))) as url:
        answer = await raw_post(url, request_body("chat", stream=True, tool_choice="none"))
    assert answer.chunks == chunks


async def test_a_stream_that_breaks_off_behind_such_a_call_is_an_error(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="I tidy.", calls=[Call("delete_file", {"path": "/a"})], fault=Cut(after=5))])
    async with serve(create_app(make_config(upstream.url))) as url:
        answer = await raw_post(url, request_body("chat", stream=True, tool_choice="none"))
    assert b'"upstream_broke_off"' in answer.body
    assert b"delete_file" not in answer.body


@BOTH
@pytest.mark.parametrize("own", [{}, {"tools": [{"type": "function", "function": LOOK}]}], ids=["no tools", "its own"])
async def test_where_calls_are_not_forbidden_they_are_passed_on_as_they_came(
    upstream: Upstream, stream: bool, own: Mapping[str, Any]
) -> None:
    upstream.script("m", [Reply(calls=[Call("look", {})])])
    async with serve(create_app(make_config(upstream.url))) as url:
        answer = await raw_post(url, request_body("chat", stream=stream, **own))
    assert b'"look"' in answer.body
    assert b"x_callgate" not in answer.body


@BOTH
@pytest.mark.parametrize("api", PATHS)
async def test_of_a_model_on_the_responses_api_too(api: str, stream: bool) -> None:
    call = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "delete_file", "arguments": "{}"}
    part = {"type": "output_text", "text": "I tidy up.", "annotations": []}
    text = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}
    output = [text, {**call, "status": "completed"}]

    async def respond(request: Request, wire: Wire) -> None:
        response = {"id": "resp_1", "object": "response", "model": "gpt-5-pro", "status": "completed", "output": output}
        if not request.body["stream"]:
            await wire.whole(json.dumps(response))
            return
        await wire.head(200)
        await wire.send(streamed(response))
        wire.writer.close()

    none = {"type": "none"} if api == "messages" else "none"
    async with raw_provider(respond) as provider:
        config = make_config(f"{provider.url}/v1", models=["responses/gpt-5-pro"], lane="auto")
        asked = request_body(api, stream=stream, model="responses/gpt-5-pro", tool_choice=none)
        async with serve(create_app(config)) as url, http_client(url) as client:
            answer = await client.post(PATHS[api], json=asked)
    assert answer.status_code == 200, answer.text
    said, calls, reason, report = come(api, answer.text, stream=stream)
    assert (said, calls, reason) == ("I tidy up.", [], ENDS[api])
    assert report["turns"][0]["not_run"] == LEFT_OUT


@BOTH
async def test_calls_of_anthropics_own_tools_are_passed_on(stream: bool) -> None:
    """Tools that only Anthropic's API has stand in the client's own request alone."""

    async def serve_claude(request: Request, wire: Wire) -> None:
        await claude_says(wire, [{"type": "tool_use", "id": "toolu_1", "name": "computer", "input": {}}], stream=stream)

    computer = {"type": "computer_20250124", "name": "computer", "display_width_px": 9, "display_height_px": 9}
    async with raw_provider(closing(serve_claude)) as provider:
        config = make_config(provider.url, models=["claude-sonnet-4-5"], provider="anthropic", lane="auto")
        asked = request_body("messages", stream=stream, model="claude-sonnet-4-5", tools=[computer])
        async with serve(create_app(config)) as url, http_client(url) as client:
            answer = await client.post(PATHS["messages"], json=asked)
    assert answer.status_code == 200, answer.text
    assert [call["name"] for call in come("messages", answer.text, stream=stream)[1]] == ["computer"]


@BOTH
async def test_blocks_behind_a_call_that_was_left_out_move_up(stream: bool) -> None:
    """Anthropic's clients put each block at its index."""

    async def serve_claude(request: Request, wire: Wire) -> None:
        call = {"type": "tool_use", "id": "toolu_1", "name": "delete_file", "input": {}}
        texts = [{"type": "text", "text": said} for said in ("one", "two", "three")]
        await claude_says(wire, [texts[0], call, texts[1], {**call, "id": "toolu_2"}, texts[2]], stream=stream)

    async with raw_provider(closing(serve_claude)) as provider:
        config = make_config(provider.url, models=["claude-sonnet-4-5"], provider="anthropic", lane="auto")
        asked = request_body("messages", stream=stream, model="claude-sonnet-4-5", tool_choice={"type": "none"})
        async with serve(create_app(config)) as url, http_client(url) as client:
            answer = await client.post(PATHS["messages"], json=asked)
    assert answer.status_code == 200, answer.text
    said, calls, reason, report = come("messages", answer.text, stream=stream)
    assert (said.replace("\n", ""), calls, reason) == ("onetwothree", [], "end_turn")
    assert report["turns"][0]["not_run"] == LEFT_OUT * 2


async def claude_says(wire: Wire, blocks: Sequence[Mapping[str, Any]], *, stream: bool) -> None:
    usage = {"input_tokens": 1, "output_tokens": 1, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5", "usage": usage}
    if not stream:
        await wire.head(200, "application/json")
        ended = {**message, "content": blocks, "stop_reason": "tool_use", "stop_sequence": None}
        await wire.send(json.dumps(ended).encode())
        return
    begun = {**message, "content": [], "stop_reason": None, "stop_sequence": None}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": begun}]
    for at, block in enumerate(blocks):
        is_text = block["type"] == "text"
        delta = {"type": "input_json_delta", "partial_json": "{}"}
        if is_text:
            delta = {"type": "text_delta", "text": block["text"]}
        events += [
            {"type": "content_block_start", "index": at, "content_block": {**block, "text": ""} if is_text else block},
            {"type": "content_block_delta", "index": at, "delta": delta},
            {"type": "content_block_stop", "index": at},
        ]
    end = {"stop_reason": "tool_use", "stop_sequence": None}
    events += [{"type": "message_delta", "delta": end, "usage": usage}, {"type": "message_stop"}]
    await wire.head(200, "text/event-stream")
    for event in events:
        await wire.send(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
