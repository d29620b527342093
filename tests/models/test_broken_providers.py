"""Answers of providers, or of servers that speak like them, that are broken: nothing runs that was not written whole."""

import itertools
import json
import struct
import zlib
from typing import Any

import msgspec
import pytest

from callgate.calls.states import ReadyCall
from callgate.conversation.errors import BrokenOff, ChatError
from callgate.conversation.events import StreamEnd
from callgate.conversation.ports import NO_FIELDS, ModelRequest
from callgate.conversation.turn import TurnBuilder
from callgate.http.client import HttpClient
from callgate.models.catalogue import Catalogue
from callgate.models.resolve import ModelConfig
from callgate.models.retry import RetryPolicy
from tests.corpus.judge import offer_of
from tests.lanes.matrix import KEY, MODELS
from tests.models.through_litellm import MARKS
from tests.models.wire import QUICK, Request, Wire, closing, raw_provider

pytestmark = MARKS

PROPERTIES = {"path": {"type": "string"}, "n": {"type": "number"}}
TOOL = {"type": "function", "function": {"name": "act", "parameters": {"type": "object", "properties": PROPERTIES}}}
GIVEN = {"path": "/a", "n": 3}
TEXT = json.dumps(GIVEN)


async def executed(provider: str, body: bytes, *, stream: bool = True) -> list[dict[str, Any]]:
    """The arguments of the calls that would run of an answer with this body."""

    async def serve(_: Request, wire: Wire) -> None:
        await wire.head(200, "text/event-stream" if stream else "application/json")
        await wire.send(body)

    model, more = MODELS[provider]
    client, count = HttpClient(), itertools.count()
    building = TurnBuilder(offer=offer_of([TOOL]), ids=lambda: f"made_{next(count)}")
    tools, end = [msgspec.Raw(json.dumps(TOOL).encode())], StreamEnd.DONE
    try:
        async with raw_provider(closing(serve)) as server:
            key = {} if provider in {"bedrock", "vertex_ai"} else {"api_key": KEY}
            entry = ModelConfig("m", {"model": model, "api_base": server.url, **key, **more}, ("*",), deadlines=QUICK)
            asked = ModelRequest([{"role": "user", "content": "hi"}], tools, None, NO_FIELDS, stream)
            answering = Catalogue([entry], client, policy=RetryPolicy(tries=1)).model("m")
            async with answering.send(asked) as answer:
                try:
                    async for batch in answer:
                        building.feed(batch)
                except BrokenOff as error:
                    end = StreamEnd.ERROR if error.transport_error else StreamEnd.EOF
    except ChatError:
        return []
    finally:
        await client.close()
    return [dict(call.arguments) for call in building.finish(end).calls if isinstance(call, ReadyCall)]


def sse(*events: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)


MESSAGE = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": []}
START = {"type": "message_start", "message": {**MESSAGE, "usage": {"input_tokens": 1, "output_tokens": 1}}}
STOP = {"type": "message_stop"}


def block(index: int, given: Any = None) -> dict[str, Any]:
    call = {"type": "tool_use", "id": f"t{index}", "name": "act", "input": {} if given is None else given}
    return {"type": "content_block_start", "index": index, "content_block": call}


def piece(index: int, **delta: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": "input_json_delta", **delta}}


def closed(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def reason(word: Any = "tool_use") -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": word}, "usage": {"output_tokens": 5}}


TEXT_BLOCK = {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}}
CLAUDE: dict[str, tuple[list[Any], list[Any]]] = {
    "pieces go to the block they name": (
        [block(0), block(1), piece(0, partial_json=TEXT), piece(1, partial_json='{"n": 1}'), closed(0), closed(1)],
        [GIVEN, {"n": 1}],
    ),
    "a text block between": ([block(0), TEXT_BLOCK, piece(0, partial_json=TEXT), closed(1), closed(0)], [GIVEN]),
    "given at once and never closed": ([block(0, GIVEN)], [GIVEN]),
    "two given at once": ([block(0, GIVEN), block(1, {"n": 1}), closed(0), closed(1)], [GIVEN, {"n": 1}]),
    "given at once and in pieces": ([block(0, {"path": "/x"}), piece(0, partial_json='{"n": 1}'), closed(0)], []),
    "pieces under another name": ([block(0), piece(0, input=TEXT), closed(0)], []),
    "a piece with text beside": ([block(0), piece(0, partial_json=TEXT, text=""), closed(0)], [GIVEN]),
    "a piece behind the end": (
        [block(0), piece(0, partial_json='{"path": "/a"}'), closed(0), piece(0, partial_json=', "n": 3}')],
        [],
    ),
}


@pytest.mark.parametrize("case", CLAUDE)
async def test_claudes_calls_run_with_what_was_written_for_them_or_not_at_all(case: str) -> None:
    events, expected = CLAUDE[case]
    assert await executed("anthropic", sse(START, *events, reason(), STOP)) == expected


@pytest.mark.parametrize("word", ["max_tokens", "MAX_TOKENS", {"type": "max_tokens"}])
async def test_an_object_given_at_once_under_the_length_limit_does_not_run(word: Any) -> None:
    assert await executed("anthropic", sse(START, block(0, GIVEN), closed(0), reason(word), STOP)) == []


ERRORS = [
    {"error": {"message": "x"}}, {"error": "x"}, {"detail": "x"}, {"code": 500, "message": "x"},
    {"object": "error", "message": "x"}, {"type": "error", "message": "x"}, {"errors": ["x"]}, {"fault": "x"},
    {"delta": {"error": "x"}}, [{"error": {"code": 500, "message": "x"}}],
]  # fmt: skip


def gemini(call: Any, word: Any = None, **more: Any) -> dict[str, Any]:
    candidate = {"content": {"role": "model", "parts": [{"functionCall": call}]}, "index": 0, **more}
    return {"candidates": [candidate if word is None else {**candidate, "finishReason": word}]}


def cohere(kind: str, index: Any, **call: Any) -> dict[str, Any]:
    return {"type": f"tool-call-{kind}", "index": index, "delta": {"message": {"tool_calls": call}}}


COHERE = [
    {"type": "message-start", "id": "x"},
    cohere("start", 0, id="t", type="function", function={"name": "act", "arguments": TEXT}),
]
COHERE_END = {"type": "message-end", "delta": {"finish_reason": "TOOL_CALL"}}


@pytest.mark.parametrize("error", ERRORS, ids=str)
async def test_an_error_of_any_shape_in_a_translated_stream_fails_its_turn(error: Any) -> None:
    call = {"name": "act", "args": GIVEN}
    for fault in ([], [error]):
        expected = [] if fault else [GIVEN]
        stop = [closed(0), *fault, reason(), STOP]
        assert await executed("anthropic", sse(START, block(0), piece(0, partial_json=TEXT), *stop)) == expected
        assert (
            await executed("gemini", sse(gemini(call), *fault, {"candidates": [{"finishReason": "STOP"}]})) == expected
        )
        assert await executed("cohere", sse(*COHERE, *fault, COHERE_END)) == expected


PARTIAL = {"partialArgs": [{"jsonPath": "$.path", "stringValue": "/a"}]}


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("call", [PARTIAL, {"willContinue": True}, {"args": []}, {"args": False}, {"args": 0}], ids=str)
async def test_geminis_calls_in_parts_or_without_an_object_do_not_run(call: Any, stream: bool) -> None:
    answer = gemini({"name": "act", **call}, "STOP")
    body = sse(answer) if stream else json.dumps(answer).encode()
    assert await executed("gemini", body, stream=stream) == []


async def test_another_candidates_reason_is_not_the_answers() -> None:
    [other] = gemini({"name": "act", "args": {"n": 9}}, "STOP", index=1)["candidates"]
    [first] = gemini({"name": "act", "args": GIVEN}, "SAFETY")["candidates"]
    assert await executed("gemini", sse({"candidates": [other, first]})) == []


async def test_coheres_pieces_in_a_list_and_numbers_as_text_are_read() -> None:
    start = cohere("start", "0", id="t", type="function", function={"name": "act", "arguments": ""})
    listed = cohere("delta", 0.0, function={"arguments": TEXT})
    listed["delta"]["message"]["tool_calls"] = [listed["delta"]["message"]["tool_calls"]]
    assert await executed("cohere", sse(COHERE[0], start, listed, COHERE_END)) == [GIVEN]


def frame(kind: str, payload: Any) -> bytes:
    names = {":message-type": "event", ":event-type": kind}
    head = b"".join(
        bytes([len(name)]) + name.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()
        for name, value in names.items()
    )
    body = json.dumps(payload).encode()
    prelude = struct.pack(">II", 16 + len(head) + len(body), len(head))
    message = prelude + struct.pack(">I", zlib.crc32(prelude)) + head + body
    return message + struct.pack(">I", zlib.crc32(message))


def bedrock(*between: bytes, word: Any = "tool_use", given: Any = None, deltas: tuple[Any, ...] = ()) -> bytes:
    use = {"toolUseId": "t", "name": "act", **({} if given is None else {"input": given})}
    pieces = [{"contentBlockIndex": 0, "delta": {"toolUse": {"input": delta}}} for delta in deltas]
    return b"".join([
        frame("messageStart", {"role": "assistant"}),
        frame("contentBlockStart", {"contentBlockIndex": 0, "start": {"toolUse": use}}),
        *(frame("contentBlockDelta", each) for each in pieces),
        *between,
        frame("messageStop", {"stopReason": word}),
        frame("metadata", {"usage": {}}),
    ])  # fmt: skip


async def test_bedrocks_arguments_count_in_whatever_shape_they_come() -> None:
    assert await executed("bedrock", bedrock(deltas=(TEXT[:9], TEXT[9:]))) == [GIVEN]
    assert await executed("bedrock", bedrock(deltas=(GIVEN,))) == [GIVEN]
    assert await executed("bedrock", bedrock(given=GIVEN)) == [GIVEN]
    for odd in ([1], 3, True, False):
        assert await executed("bedrock", bedrock(deltas=(odd,))) == [], odd


@pytest.mark.parametrize(
    "fault",
    [
        frame("internalServerException", {"message": "x"}),
        frame("chunk", {"throttlingException": {"message": "x"}}),
        frame("contentBlockDelta", {"error": {"message": "x"}}),
    ],
    ids=["event", "field", "error"],
)
async def test_an_exception_that_calls_itself_an_event_fails_bedrocks_turn(fault: bytes) -> None:
    assert await executed("bedrock", bedrock(fault, deltas=(TEXT,))) == []


@pytest.mark.parametrize("given", [[], False, 0], ids=str)
async def test_bedrocks_whole_calls_without_an_object_do_not_run(given: Any) -> None:
    content = [{"toolUse": {"toolUseId": "t", "name": "act", "input": given}}]
    body = {"output": {"message": {"role": "assistant", "content": content}}, "stopReason": "tool_use"}
    assert await executed("bedrock", json.dumps(body).encode(), stream=False) == []


def _call(arguments: str = TEXT, reason: str = "tool_calls") -> bytes:
    """A whole stream of an OpenAI-shaped provider, with what is given in the place of these two."""
    body = json.dumps({"index": 0, "id": "c1", "type": "function", "function": {"name": "act", "arguments": "ARGS"}})
    chunk = '{"choices":[{"index":0,"delta":{"tool_calls":[CALL]},"finish_reason":null}]}'.replace("CALL", body)
    end = '{"choices":[{"index":0,"delta":{},"finish_reason":"REASON"}]}'
    text = f"data: {chunk}\n\ndata: {end}\n\ndata: [DONE]\n\n"
    return text.replace('"ARGS"', arguments).replace('"REASON"', reason).encode()


@pytest.mark.parametrize("provider", ["openai", "groq"])
@pytest.mark.parametrize(
    ("arguments", "reason", "runs"),
    [
        (json.dumps(TEXT), '"tool_calls"', True),
        (json.dumps('{"path": "/a", "n": 3, "x": "\\"arguments\\": 1"}'), '"tool_calls"', True),
        (json.dumps('{"path": "/b", "n": 1}') + ',"arguments":' + json.dumps(TEXT), '"tool_calls"', False),
        (json.dumps(TEXT) + ',"name":"act"', '"tool_calls"', False),
        (json.dumps(TEXT), '"error","finish_reason":"tool_calls"', False),
        (json.dumps(TEXT), '"tool_calls","finish_reason":"error"', False),
        (json.dumps(TEXT), '"tool_calls"}],"error":{"message":"x"},"error":null,"more":[{"a":1', False),
    ],
)
async def test_a_call_does_not_run_where_its_provider_names_a_field_twice(
    provider: str, arguments: str, reason: str, runs: bool
) -> None:
    assert bool(await executed(provider, _call(arguments, reason))) is runs


@pytest.mark.parametrize(("twice", "runs"), [("", True), (',"arguments":"{}"', False), (',"name":"other"', False)])
async def test_nor_in_a_whole_answer(twice: str, runs: bool) -> None:
    function = '{"name":"act","arguments":' + json.dumps(TEXT) + twice + "}"
    message = (
        '{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":' + function + "}]}"
    )
    body = '{"id":"x","choices":[{"index":0,"message":' + message + ',"finish_reason":"tool_calls"}]}'
    assert bool(await executed("openai", body.encode(), stream=False)) is runs
