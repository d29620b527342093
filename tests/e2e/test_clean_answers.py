"""One clean answer on each face: what JSON was asked for is JSON, nothing is said twice or behind what broke off, and a provider
that says how long to wait is passed on at once."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from callgate.application import create_app
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.harness.wire import RawAnswer, raw_connection, raw_post
from tests.models.wire import Request, Wire, closing, raw_provider
from tests.scripted_upstream import Call, Reply, Reset, Upstream

pytestmark = pytest.mark.anyio

STREAMS = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
FACES = pytest.mark.parametrize("face", PATHS)
SCHEMA = {
    "type": "object",
    "properties": {"hour": {"type": "integer"}},
    "required": ["hour"],
    "additionalProperties": False,
}
FORMATS: Mapping[str, Mapping[str, Any]] = {
    "chat": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}
    },
    "responses": {"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}}},
    "messages": {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
}
NONE: Mapping[str, Any] = {"chat": "none", "responses": "none", "messages": {"type": "none"}}


def request_body(face: str, *, stream: bool, **more: Any) -> dict[str, Any]:
    if face == "responses":
        return {"model": "m", "input": "hi", "stream": stream, **more}
    asked = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": stream, **more}
    return {**asked, "max_tokens": 99} if face == "messages" else asked


def text_of_answer(face: str, answer: RawAnswer, *, stream: bool) -> str:
    """All the text of an answer."""
    if not stream:
        body = json.loads(answer.body)
        if face == "chat":
            return str(body["choices"][0]["message"]["content"])
        blocks = body["content"] if face == "messages" else [p for i in body["output"] for p in i.get("content") or ()]
        return "".join(block["text"] for block in blocks if block["type"] in {"text", "output_text"})
    if face == "chat":
        deltas = [choice["delta"].get("content") for chunk in answer.chunks for choice in chunk["choices"]]
    elif face == "responses":
        deltas = [event["delta"] for event in answer.chunks if event["type"] == "response.output_text.delta"]
    else:
        deltas = [e["delta"].get("text") for e in answer.chunks if e["type"] == "content_block_delta"]
    return "".join(filter(None, deltas))


@FACES
@STREAMS
async def test_on_other_faces_too_text_beside_a_call_of_ours_is_no_part_of_an_answer_in_json(
    upstream: Upstream, face: str, stream: bool
) -> None:
    looking = Reply(text="Let me look.", calls=[Call("get_time")])
    upstream.script("m", [looking, looking, Reply(text='{"hour": 12}')])
    async with serve(create_app(make_config(upstream.url, tools=("get_time",)))) as url:
        answer = await raw_post(url, request_body(face, stream=stream, **FORMATS[face]), PATHS[face])
    assert answer.status == 200
    assert json.loads(text_of_answer(face, answer, stream=stream)) == {"hour": 12}
    assert len(upstream.requests) == 3


@pytest.mark.parametrize("face", ["responses", "messages"])
@STREAMS
async def test_a_long_retry_after_reaches_clients_of_other_faces_at_once(
    upstream: Upstream, face: str, stream: bool
) -> None:
    upstream.script("m", [Reply(status=429, headers={"retry-after": "30"})])
    async with serve(create_app(make_config(upstream.url, tools=("get_time",)))) as url:
        answer = await raw_post(url, request_body(face, stream=stream), PATHS[face])
    assert (answer.status, answer.headers["retry-after"]) == (429, "30")
    assert len(upstream.requests) == 1


SHOWN: Mapping[str, Reply] = {
    "refusal": Reply(refusal="I may not say that.", fault=Reset(after=3)),
    "image": Reply(extras={"images": [{"type": "image_url", "image_url": {"url": "data:,x"}}]}, text="", fault=Reset(after=1)),
    "annotation": Reply(extras={"annotations": [{"type": "url_citation", "url_citation": {"url": "u"}}]}, fault=Reset(after=1)),
    "unknown": Reply(extras={"vendor_note": "half"}, fault=Reset(after=1)),
    "audio": Reply(extras={"audio": {"id": "a", "data": "AAAA"}}, fault=Reset(after=1)),
    "reasoning": Reply(reasoning="I think of a number", fault=Reset(after=2)),
}  # fmt: skip


@FACES
async def test_what_was_shown_of_a_turn_is_not_continued_by_another_attempt(upstream: Upstream, face: str) -> None:
    models = make_config(upstream.url, models=tuple(SHOWN), tools=("get_time",))
    async with serve(create_app(models)) as url:
        for shown, reply in SHOWN.items():
            upstream.script(shown, [reply, Reply(text="Here it is.")])
            before = len(upstream.requests)
            answer = await raw_post(url, {**request_body(face, stream=True), "model": shown}, PATHS[face])
            text = answer.body.decode()
            if len(upstream.requests) == before + 1:
                assert "error" in text
                assert "Here it is." not in text
            else:  # a field that this face has no place for, so that nothing of the first was shown
                assert face != "chat"
                for word in ("I may", "data:,x", "url_citation", "vendor_note", "AAAA", "I think"):
                    assert word not in text


@FACES
async def test_no_choice_is_sent_on_where_there_are_no_tools(upstream: Upstream, face: str) -> None:
    upstream.script("m", [Reply(text="fine")])
    async with serve(create_app(make_config(upstream.url, tools=("get_time",)))) as url:
        answer = await raw_post(url, request_body(face, stream=False, tool_choice=NONE[face]), PATHS[face])
    assert answer.status == 200
    assert "tool_choice" not in upstream.requests[0].body
    assert "tools" not in upstream.requests[0].body


@FACES
@pytest.mark.parametrize("tools", [(), ("get_time",)], ids=["passed", "with_our_tools"])
async def test_json_in_the_place_of_a_stream_is_asked_for_once_and_streamed(face: str, tools: tuple[str, ...]) -> None:
    asked: list[Request] = []

    async def whole(request: Request, wire: Wire) -> None:
        asked.append(request)
        message = {"role": "assistant", "content": "Here it is."}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        await wire.head(200, "application/json")
        await wire.send(json.dumps({"id": "c", "object": "chat.completion", "choices": [choice]}).encode())

    async with raw_provider(closing(whole)) as server, serve(create_app(make_config(server.url, tools=tools))) as url:
        answer = await raw_post(url, request_body(face, stream=True), PATHS[face])
    assert answer.status == 200
    assert text_of_answer(face, answer, stream=True) == "Here it is."
    assert len(asked) == 1


@FACES
async def test_an_upgrade_to_http_2_is_answered_as_a_plain_request(upstream: Upstream, face: str) -> None:
    upstream.script("m", [Reply(text="fine")])
    upgrade = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAMAAABkAAQAoAAAAAIAAAAA"}
    async with serve(create_app(make_config(upstream.url))) as url, raw_connection(url) as connection:
        await connection.post(PATHS[face], request_body(face, stream=True), upgrade)
        answer = await connection.answer()
        assert answer.status == 200
        assert text_of_answer(face, answer, stream=True) == "fine"
        assert await connection.reader.read() == b""  # it is closed behind it
