"""The translated lane over Google AI Studio's API: what is asked, what is read, and the same answers through litellm alone."""

import json
from dataclasses import replace

import msgspec
import pytest

from callgate.calls.states import BrokenCall, ReadyCall
from callgate.conversation.errors import BrokenOff
from callgate.conversation.events import CallNotRun, CallWritten
from callgate.conversation.ports import Message, ModelRequest
from callgate.conversation.usage import NO_USAGE
from callgate.models import resolve
from callgate.models.catalogue import Catalogue
from callgate.models.inspection import whereabouts
from callgate.models.litellm_lane.model import LiteLLMModel
from callgate.models.resolve import ModelConfig
from callgate.models.translated import gemini
from callgate.models.translated.model import TranslatedModel
from callgate.policy.litellm_settings import without_settings
from tests.models.through_litellm import MARKS, both_ways, refused, turn_of
from tests.models.wire import QUICK, asking, tool
from tests.scripted_upstream.script import Call, Cut, ErrorEvent, Malformed, Reply, Reset, Shape

pytestmark = MARKS

KEY = "AIza-planted-key-000111222"
MODEL = "gemini-2.5-flash"
WRITE = Call("now", {"path": "/a", "mode": "w"}, id="c1")
PATH = tool("now", path={"type": "string"}, mode={"type": "string"})
OTHER = tool("later")


@pytest.fixture
def lanes(upstream, client):
    """The same deployment on both lanes: ours and litellm's."""

    def make(**more):
        upstream.key = KEY
        way = resolve.litellm_settings(entry(upstream, **more))
        through = LiteLLMModel("m", way, QUICK, trusts_litellm=True)
        return TranslatedModel("m", way, client, QUICK), through

    return make


def entry(upstream, lane="auto", **more):
    params = {"model": f"gemini/{MODEL}", "api_base": f"{upstream.root}/v1beta", "api_key": KEY, **more}
    return ModelConfig("m", params, lane=lane)


def question(stream, **more):
    return asking(stream=stream, tools=[PATH, OTHER], **more)


def likeness(turn):
    """What both lanes can see of a turn; where Google names no id, litellm makes one up."""
    calls = [(type(call), call.name, getattr(call, "arguments", None)) for call in turn.calls]
    # litellm adds up the details of a stream's usage once more, and finds others.
    counts = [
        (turn.usage or NO_USAGE).report.get(name) for name in ("prompt_tokens", "completion_tokens", "total_tokens")
    ]
    return turn.text, turn.reasoning, calls, counts


@both_ways
@pytest.mark.parametrize(
    "reply, reason",
    [
        (Reply(text="Grüße, Welt"), "STOP"),
        (Reply(text="I look.", calls=[WRITE]), "STOP"),
        (Reply(calls=[WRITE, Call("later", {}), Call("now", {"path": "/b", "mode": "a"})]), "STOP"),
        (Reply(reasoning="Let me think.", text="Done."), "STOP"),
        (Reply(calls=[replace(WRITE, extras={"thoughtSignature": "c2lnbmVk"})]), "STOP"),
        (Reply(text="Once upon a", finish="length"), "MAX_TOKENS"),
        (Reply(text="Bytes", shape=Shape(split="bytes")), "STOP"),
        (Reply(text="Odd", calls=[WRITE], shape=Shape(crlf=True, bare_colon=True)), "STOP"),
    ],
    ids=["text", "call", "parallel", "thinking", "signed-call", "length", "bytes", "framing"],
)
async def test_an_answer_is_the_same_on_both_lanes_but_for_the_providers_own_reason(
    upstream, lanes, stream, reply, reason
):
    upstream.script(MODEL, [reply], repeat_last=True)
    ours, litellms = lanes()
    turn, broke, raw = await turn_of(ours, question(stream))
    theirs, _, theirs_raw = await turn_of(litellms, question(stream))
    assert broke is None
    assert likeness(turn) == likeness(theirs)
    assert (turn.reasons, raw, theirs_raw) == ((reason,), True, False)
    assert [call.arguments for call in turn.calls] == [dict(call.arguments) for call in reply.calls]
    assert len({call.id for call in turn.calls}) == len(reply.calls)


@both_ways
async def test_the_request_is_the_one_litellm_would_send(upstream, lanes, stream):
    upstream.script(MODEL, [Reply(text="ok")], repeat_last=True)
    call = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": '{"path":"/a"}'}}
    history = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Write."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "written"},
    ]
    messages = [msgspec.Raw(msgspec.json.encode(message)) for message in history]
    params = {
        "temperature": 0.5,
        "max_tokens": msgspec.Raw(b"4096"),
        "stop": "END",
        "seed": 7,
        "top_k": 5,
        "api_base": "http://elsewhere.example",
        "extra_headers": {"X-Not": "this"},
    }
    ask = ModelRequest(messages, [msgspec.Raw(msgspec.json.encode(PATH))], "auto", without_settings(params), stream)
    translated, through = lanes(extra_headers={"X-Team": "blue"}, top_p=0.9)
    for lane in (translated, translated, through):
        await turn_of(lane, ask)
    ours, again, theirs = upstream.requests
    assert ours.body == theirs.body
    assert again.body == ours.body, "the second time its fields are remembered"
    assert ours.path == theirs.path
    same = ("x-goog-api-key", "x-team", "content-type", "authorization")
    assert [ours.headers.get(name) for name in same] == [theirs.headers.get(name) for name in same]
    assert ours.headers["user-agent"] == "callgate", "it went by our own client"
    assert "x-not" not in ours.headers


@both_ways
async def test_a_signature_goes_back_with_its_call(upstream, lanes, stream):
    signed = replace(WRITE, extras={"thoughtSignature": "c2lnbmVk"})
    upstream.script(MODEL, [Reply(calls=[signed]), Reply(text="ok")])
    ours, _ = lanes()
    turn, _, _ = await turn_of(ours, question(stream))
    [call] = turn.calls
    sent = {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": '{"path":"/a"}'}}
    history: list[Message] = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [{**sent, **call.extras}]},
        {"role": "tool", "tool_call_id": call.id, "content": "12:00"},
    ]
    await turn_of(ours, ModelRequest(history, question(stream).tools, stream=stream))
    [part] = upstream.requests[1].body["contents"][1]["parts"]
    assert part["thoughtSignature" if "thoughtSignature" in part else "thought_signature"] == "c2lnbmVk"


@both_ways
@pytest.mark.parametrize("word", ["SAFETY", "RECITATION", "PROHIBITED_CONTENT"])
async def test_a_flagged_answer_runs_nothing_and_keeps_its_reason(upstream, lanes, stream, word):
    upstream.script(MODEL, [Reply(text="So", calls=[WRITE], finish=word)])
    turn, _, _ = await turn_of(lanes()[0], question(stream))
    assert turn.reasons == (word,)
    assert [type(call) for call in turn.calls] == [BrokenCall]


@both_ways
async def test_a_failed_turn_keeps_its_reason_and_runs_nothing(upstream, lanes, stream):
    upstream.script(MODEL, [Reply(text="So", calls=[WRITE], finish="MALFORMED_FUNCTION_CALL")])
    turn, _, _ = await turn_of(lanes()[0], question(stream))
    assert turn.reasons == ("MALFORMED_FUNCTION_CALL",)
    assert not any(isinstance(call, ReadyCall) for call in turn.calls)


@both_ways
async def test_a_blocked_prompt_is_a_filtered_answer(upstream, lanes, stream):
    blocked = {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "modelVersion": MODEL, "responseId": "r1"}
    upstream.script(MODEL, [Reply(chunks=[blocked]) if stream else Reply(body=blocked)])
    turn, broke, _ = await turn_of(lanes()[0], question(stream))
    assert (turn.reasons, turn.calls, broke) == (("content_filter",), (), None)


async def test_comments_between_the_events_are_not_part_of_them(upstream, lanes):
    upstream.script(MODEL, [Reply(text="Odd", calls=[WRITE], shape=Shape(comments=True))])
    turn, broke, _ = await turn_of(lanes()[0], question(True))
    assert (turn.text, [type(call) for call in turn.calls], broke) == ("Odd", [ReadyCall], None)


@pytest.mark.parametrize("fault", [Cut(after=1), Reset(after=1), Malformed(after=1)], ids=["cut", "reset", "malformed"])
async def test_a_stream_that_breaks_off_runs_nothing(upstream, lanes, fault):
    upstream.script(MODEL, [Reply(calls=[WRITE, WRITE], fault=fault)])
    turn, broke, _ = await turn_of(lanes()[0], question(True))
    assert isinstance(broke, BrokenOff)
    assert turn.calls
    assert all(isinstance(call, BrokenCall) for call in turn.calls)


async def test_a_stream_without_a_reason_is_not_over(upstream, lanes):
    upstream.script(MODEL, [Reply(text="So", calls=[WRITE], finish=None)])
    turn, broke, _ = await turn_of(lanes()[0], question(True))
    assert isinstance(broke, BrokenOff)
    assert not any(isinstance(call, ReadyCall) for call in turn.calls)


async def test_an_error_in_the_middle_fails_the_turn(upstream, lanes):
    upstream.script(MODEL, [Reply(calls=[WRITE], fault=ErrorEvent(after=1, message="Overloaded"))])
    turn, _, _ = await turn_of(lanes()[0], question(True))
    assert turn.error.message == "Overloaded"
    assert [type(call) for call in turn.calls] == [BrokenCall]


@both_ways
@pytest.mark.parametrize("status, ours", [(400, 400), (401, 502), (404, 404), (429, 429), (500, 502), (503, 503)])
async def test_a_refusal_means_the_same_on_both_lanes(upstream, lanes, stream, status, ours):
    body = {"error": {"code": status, "message": "temperature must be at most 2", "status": "INVALID_ARGUMENT"}}
    upstream.script(MODEL, [Reply(status=status, body=body)], repeat_last=True)
    mine, theirs = [await refused(model, question(stream)) for model in lanes()]
    assert (mine.status, mine.type, mine.retryable) == (theirs.status, theirs.type, theirs.retryable)
    assert KEY not in f"{mine.message}{mine.detail}"
    assert len(upstream.requests) == 2, "neither lane asks again by itself"


async def test_an_error_before_anything_else_is_the_requests(upstream, lanes):
    upstream.script(MODEL, [Reply(text="x", fault=ErrorEvent(after=0, message="Overloaded"))])
    error = await refused(lanes()[0], question(True))
    assert (error.status, error.retryable) == (503, True)


async def test_a_message_that_is_to_be_cached_goes_with_the_rest(upstream, lanes):
    upstream.script(MODEL, [Reply(text="ok")])
    part = {"type": "text", "text": "long " * 10, "cache_control": {"type": "ephemeral"}}
    ours, _ = lanes()
    turn, _, raw = await turn_of(ours, ModelRequest([{"role": "user", "content": [part]}], stream=True))
    assert (turn.text, raw) == ("ok", True)
    [asked] = upstream.requests
    assert "cache" not in json.dumps(asked.body)


@both_ways
async def test_a_call_without_args_is_a_call_and_keeps_the_lane(upstream, lanes, stream):
    part = {"functionCall": {"name": "later"}}
    answer = {"candidates": [{"content": {"parts": [part], "role": "model"}, "finishReason": "STOP", "index": 0}]}
    upstream.script(MODEL, [Reply(chunks=[answer]) if stream else Reply(body=answer)], repeat_last=True)
    ours, _ = lanes()
    for _ in range(2):
        turn, broke, raw = await turn_of(ours, question(stream))
        assert [(type(call), call.name, call.arguments) for call in turn.calls] == [(ReadyCall, "later", {})]
        assert (broke, raw) == (None, True)


@pytest.mark.parametrize("lane, taken", [("auto", "translated"), ("translated", "translated"), ("litellm", "litellm")])
async def test_gemini_takes_the_lane_unless_configured_otherwise(upstream, client, lane, taken):
    upstream.script(MODEL, [Reply(text="ok")])
    upstream.key = KEY
    model = Catalogue([entry(upstream, lane)], client).model("m")
    turn, _, is_raw = await turn_of(model, question(True))
    assert (turn.text, turn.reasons, is_raw) == ("ok", ("STOP",), True)
    assert (await whereabouts(entry(upstream, lane))).lane == taken


async def test_a_call_within_thinking_is_no_call() -> None:
    thought = {"thought": True, "functionCall": {"name": "delete_all", "args": {}}}
    said = {"functionCall": {"name": "now", "args": {}}}
    body = {"candidates": [{"content": {"role": "model", "parts": [thought, said]}, "finishReason": "STOP"}]}
    readable = gemini._for_litellm(body)
    assert [part.get("functionCall", {}).get("name") for part in readable["candidates"][0]["content"]["parts"]] == [
        None,
        "now",
    ]
    read = gemini._as_written(body, [CallWritten("now", {})], set())
    assert read == [CallNotRun("delete_all", "thinking"), CallWritten("now", None)]
