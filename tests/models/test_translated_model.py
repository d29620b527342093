"""The translated lane over Anthropic's API: what is asked, what is read, and the same answers through litellm alone.

A test here that fails after an update of litellm says what the lane relied upon; `lane: litellm` goes on working.
"""

import asyncio
import json
from dataclasses import replace

import msgspec
import pytest
import structlog

from callgate.calls.states import BrokenCall, Finding, Flaw, ReadyCall
from callgate.conversation.errors import BrokenOff, ChatError
from callgate.conversation.events import ProviderError
from callgate.conversation.ports import Message, ModelRequest
from callgate.conversation.usage import NO_USAGE
from callgate.http.interface import Deadlines
from callgate.models import resolve
from callgate.models.catalogue import Catalogue
from callgate.models.direct.model import ANSWER_BYTES
from callgate.models.inspection import whereabouts
from callgate.models.litellm_lane.model import LiteLLMModel
from callgate.models.resolve import LaneError, ModelConfig
from callgate.models.translated import translation
from callgate.models.translated.model import TranslatedModel
from callgate.policy.litellm_settings import without_settings
from tests.models.through_litellm import MARKS, both_ways, refused, turn_of
from tests.models.wire import QUICK, asking, tool
from tests.scripted_upstream.script import Call, Cut, ErrorEvent, Hang, Hold, Html, Malformed, Pace, Reply, Reset, Shape

pytestmark = MARKS

KEY = "sk-ant-planted-key-000111222"
MODEL = "claude-sonnet-4-5"
PATH = tool("fs/write", path={"type": "string"}, mode={"type": "string"})
NOTHING = tool("now")
BAD = {"type": "error", "error": {"type": "invalid_request_error", "message": "temperature: must be at most 1"}}


@pytest.fixture
def lanes(upstream, client):
    """The same deployment on both lanes: ours and litellm's."""

    def make(deadlines=QUICK, answer_bytes=ANSWER_BYTES, **more):
        upstream.key = KEY
        way = resolve.litellm_settings(entry(upstream, **more))
        through = LiteLLMModel("m", way, deadlines, trusts_litellm=True)
        return TranslatedModel("m", way, client, deadlines, answer_bytes=answer_bytes), through

    return make


def entry(upstream, lane="translated", **more):
    params = {"model": f"anthropic/{MODEL}", "api_base": upstream.root, "api_key": KEY, **more}
    return ModelConfig("m", params, lane=lane)


def request_with_tools(stream, **more):
    return asking(stream=stream, tools=[PATH, NOTHING], **more)


def counts(turn):
    # litellm puts a price into the usage of streams, and of streams alone.
    return {name: value for name, value in (turn.usage or NO_USAGE).report.items() if name != "cost"}


def likeness(turn):
    """What both lanes can see of a turn."""
    calls = [(type(call), call.id, call.name, getattr(call, "arguments", None)) for call in turn.calls]
    return turn.text, turn.reasoning, calls, turn.winner, counts(turn), turn.extra_fields.get("thinking_blocks")


WRITE = Call("fs/write", {"path": "/a", "mode": "w"}, id="toolu_1")


# The same answers as through litellm alone ----------------------------------------------------------------------------


@both_ways
@pytest.mark.parametrize(
    "reply, reason",
    [
        (Reply(text="Grüße, Welt"), "end_turn"),
        (Reply(text="I look.", calls=[WRITE]), "tool_use"),
        (
            Reply(calls=[WRITE, Call("now", {}, id="toolu_2"), Call("fs/write", {"path": "/b", "mode": "a"})]),
            "tool_use",
        ),
        (Reply(reasoning="Let me think.", text="Done."), "end_turn"),
        (Reply(reasoning="Let me think.", calls=[WRITE]), "tool_use"),
        (Reply(text="Once upon a", finish="length"), "max_tokens"),
        (Reply(text="I will not.", finish="content_filter"), "refusal"),
        (Reply(text="Bytes", shape=Shape(split="bytes")), "end_turn"),
        (Reply(text="Odd", calls=[WRITE], shape=Shape(crlf=True, comments=True, bare_colon=True)), "tool_use"),
    ],
    ids=["text", "call", "parallel", "thinking", "thinking-call", "length", "refusal", "bytes", "framing"],
)
async def test_an_answer_is_the_same_on_both_lanes_but_for_the_providers_own_reason(
    upstream, lanes, stream, reply, reason
):
    calls = [replace(call, id=call.id or "toolu_9") for call in reply.calls]
    upstream.script(MODEL, [replace(reply, calls=calls)], repeat_last=True)
    ours, litellms = lanes()
    turn, broke, raw = await turn_of(ours, request_with_tools(stream))
    theirs, _, theirs_raw = await turn_of(litellms, request_with_tools(stream))
    assert broke is None
    assert likeness(turn) == likeness(theirs)
    assert (turn.reasons, raw, theirs_raw) == ((reason,), True, False)
    assert [call.arguments for call in turn.calls if isinstance(call, ReadyCall)] == [dict(c.arguments) for c in calls]


@both_ways
async def test_the_request_is_the_one_litellm_would_send(upstream, lanes, stream):
    upstream.script(MODEL, [Reply(text="ok")], repeat_last=True)
    history = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Write."},
        {
            "role": "assistant",
            "content": None,
            "thinking_blocks": [{"type": "thinking", "thinking": "Hm.", "signature": "c2lnbmVk"}],
            "tool_calls": [
                {"id": "toolu_1", "type": "function", "function": {"name": "fs/write", "arguments": '{"path":"/a"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "toolu_1", "content": "written"},
    ]
    messages = [msgspec.Raw(msgspec.json.encode(message)) for message in history]
    params = {
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "max_tokens": msgspec.Raw(b"4096"),
        "stop": "END",
        "parallel_tool_calls": False,
        "user": "u-1",
        "top_k": 5,
        "api_base": "http://elsewhere.example",
        "extra_headers": {"X-Not": "this"},
    }
    ask = ModelRequest(messages, [msgspec.Raw(msgspec.json.encode(PATH))], "auto", without_settings(params), stream)
    translated, through = lanes(extra_headers={"X-Team": "blue"}, temperature=1)
    for lane in (translated, translated, through):
        await turn_of(lane, ask)
    ours, again, theirs = upstream.requests
    assert ours.body == {**theirs.body, "stream": stream}
    assert again.body == ours.body, "the second time its fields are remembered"
    assert ours.body["messages"][1]["content"][0] == {
        "type": "thinking", "thinking": "Hm.", "signature": "c2lnbmVk",
    }  # fmt: skip
    same = ("x-api-key", "anthropic-version", "x-team", "anthropic-beta", "content-type")
    assert [ours.headers.get(name) for name in same] == [theirs.headers.get(name) for name in same]
    assert ours.headers["user-agent"] == "callgate", "it went by our own client"
    assert "x-not" not in ours.headers


async def test_each_request_is_asked_with_its_own_fields_however_many_are_remembered(upstream, lanes, monkeypatch):
    monkeypatch.setattr(translation, "REMEMBERED_BYTES", 1200)
    upstream.script(MODEL, [Reply(text="ok")], repeat_last=True)
    translated, _ = lanes()
    given = [
        ({"temperature": 0.1}, [PATH]),
        ({"temperature": 0.2}, [PATH]),
        ({"temperature": 0.1}, [NOTHING]),
        ({}, []),
    ]
    for params, tools in [*given, *given]:
        await turn_of(translated, asking(tools=tools, params=params))
    found = [
        (it.body.get("temperature"), [each["name"] for each in it.body.get("tools", ())]) for it in upstream.requests
    ]
    assert found == 2 * [(0.1, ["fs_write"]), (0.2, ["fs_write"]), (0.1, ["now"]), (None, [])]


async def test_the_history_is_left_as_it_was(upstream, lanes):
    upstream.script(MODEL, [Reply(text="ok")], repeat_last=True)
    # litellm writes a role into a message that has none.
    messages: list[Message] = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}, {"content": "Hello."}]
    before = json.dumps(messages)
    await turn_of(lanes()[0], ModelRequest(messages))
    assert json.dumps(messages) == before


@both_ways
async def test_thinking_with_its_signature_goes_back_as_it_came(upstream, lanes, stream):
    upstream.script(MODEL, [Reply(reasoning="Let me think.", calls=[WRITE]), Reply(text="ok")])
    model, _ = lanes()
    turn, _, _ = await turn_of(model, request_with_tools(stream))
    assert "provider_specific_fields" not in turn.extra_fields, "a second copy would go back beside the first"
    result = {"role": "tool", "tool_call_id": "toolu_1", "content": "written"}
    messages = [{"role": "user", "content": "hi"}, turn.assistant_message(), result]
    await turn_of(model, msgspec.structs.replace(request_with_tools(stream), messages=messages))
    assert upstream.requests[1].body["messages"][1]["content"] == [
        {"type": "thinking", "thinking": "Let me think.", "signature": "c2lnbmVk"},
        {"type": "tool_use", "id": "toolu_1", "name": "fs_write", "input": {"path": "/a", "mode": "w"}},
    ]


@both_ways
async def test_a_format_that_litellm_asks_for_as_a_call_is_text_again(upstream, lanes, stream):
    upstream.script("claude-3-haiku-20240307", [Reply(calls=[Call("json_tool_call", {"a": 1})])], repeat_last=True)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    for model in lanes(model="anthropic/claude-3-haiku-20240307"):
        turn, _, _ = await turn_of(model, asking(stream=stream, response_format=wanted))
        assert (json.loads(turn.text), turn.calls) == ({"a": 1}, ())
        assert Finding.FINISH_WITHOUT_TOOL_CALLS not in turn.findings
        assert turn.reasons in {("end_turn",), ("stop",)}


async def test_a_format_that_is_asked_for_as_a_call_leaves_tools_to_be_called(upstream, lanes):
    upstream.script("claude-3-haiku-20240307", [Reply(calls=[Call("now")])])
    wanted = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object", "properties": {}}}}
    ours, _ = lanes(model="anthropic/claude-3-haiku-20240307")
    turn, _, _ = await turn_of(ours, request_with_tools(stream=True, response_format=wanted))
    assert upstream.requests[0].body["tool_choice"] == {"type": "any"}
    assert "json_tool_call" in [tool["name"] for tool in upstream.requests[0].body["tools"]]
    assert [call.name for call in turn.calls] == ["now"]


# Calls that are no calls ----------------------------------------------------------------------------------------------


def stream_of(*events):
    """A stream spelled out; its opening is the usual one."""
    opening = {"id": "msg_1", "model": MODEL, "usage": {"input_tokens": 3, "output_tokens": 1}}
    return Reply(chunks=[{"type": "message_start", "message": opening}, *events])


def begun(name, given=None):
    block = {"type": "tool_use", "id": "toolu_1", "name": name, "input": given or {}}
    return {"type": "content_block_start", "index": 0, "content_block": block}


def piece(text):
    return {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": text}}


def stopped(reason):
    ended = {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 9}}
    return [{"type": "content_block_stop", "index": 0}, ended, {"type": "message_stop"}]


async def test_a_call_cut_behind_its_name_is_truncated_and_not_an_empty_call(upstream, lanes):
    upstream.script(MODEL, [stream_of(begun("fs_write"), piece(""), *stopped("max_tokens"))])
    turn, _, _ = await turn_of(lanes()[0], request_with_tools(True))
    [call] = turn.calls
    assert isinstance(call, BrokenCall)
    assert (call.flaw, call.text, turn.reasons) == (Flaw.TRUNCATED, "", ("max_tokens",))


async def test_a_call_cut_in_its_arguments_is_truncated(upstream, lanes):
    cut = piece('{"path":"/a","mo')
    upstream.script(MODEL, [stream_of(begun("fs_write"), cut, *stopped("max_tokens"))])
    turn, _, _ = await turn_of(lanes()[0], request_with_tools(True))
    assert [getattr(call, "flaw", None) for call in turn.calls] == [Flaw.TRUNCATED]


@pytest.mark.parametrize("reason", ["max_tokens", "model_context_window_exceeded"])
async def test_the_last_call_of_a_whole_message_that_was_cut_never_runs(upstream, lanes, reason):
    calls = [replace(WRITE, id="toolu_0"), WRITE]
    upstream.script(MODEL, [Reply(calls=calls, finish=reason)])
    turn, _, _ = await turn_of(lanes()[0], request_with_tools(False))
    assert [getattr(call, "flaw", "ready") for call in turn.calls] == ["ready", Flaw.TRUNCATED]
    assert turn.reasons == (reason,)


@pytest.mark.parametrize("pieces", [(), (piece(""),)], ids=["none", "empty"])
async def test_a_call_without_arguments_is_a_call(upstream, lanes, pieces):
    upstream.script(MODEL, [stream_of(begun("now"), *pieces, *stopped("tool_use"))])
    turn, _, _ = await turn_of(lanes()[0], request_with_tools(True))
    assert [(type(call), call.arguments) for call in turn.calls] == [(ReadyCall, {})]


async def test_arguments_that_come_with_the_start_of_a_call_are_not_lost(upstream, lanes):
    given = {"path": "/a", "mode": "w"}
    upstream.script(MODEL, [stream_of(begun("fs_write", given), *stopped("tool_use"))])
    turn, _, _ = await turn_of(lanes()[0], request_with_tools(True))
    assert [(call.name, call.arguments) for call in turn.calls] == [("fs/write", given)]


@pytest.mark.parametrize("fault", [Cut(after=5), Reset(after=5), Malformed(after=5)], ids=["cut", "reset", "malformed"])
async def test_a_stream_that_breaks_off_in_a_call_runs_nothing(upstream, lanes, fault):
    upstream.script(MODEL, [Reply(calls=[WRITE], fault=fault)])
    turn, broke, _ = await turn_of(lanes()[0], request_with_tools(True))
    assert isinstance(broke, BrokenOff)
    assert turn.calls
    assert all(isinstance(call, BrokenCall) for call in turn.calls)


@pytest.mark.parametrize(
    "call",
    [begun("fs_write", {"path": "/a", "mode": "w"}), begun("now")],
    ids=["written", "without arguments"],
)
async def test_of_a_stream_that_ends_in_order_behind_its_reason_all_calls_are_whole(upstream, lanes, call):
    everything = stream_of(call, *stopped("tool_use"))
    upstream.script(MODEL, [replace(everything, chunks=everything.chunks[:-1])])
    turn, broke, _ = await turn_of(lanes()[0], request_with_tools(True))
    assert [type(call) for call in turn.calls] == [ReadyCall]
    assert broke is None


async def test_an_error_in_the_middle_fails_the_turn(upstream, lanes):
    upstream.script(MODEL, [Reply(calls=[WRITE], fault=ErrorEvent(after=5, message="Overloaded"))])
    turn, _, _ = await turn_of(lanes()[0], request_with_tools(True))
    assert turn.error == ProviderError("Overloaded", turn.error.body)
    assert [type(call) for call in turn.calls] == [BrokenCall]


# Errors ---------------------------------------------------------------------------------------------------------------


@both_ways
@pytest.mark.parametrize("status, kind, ours", [
    (400, "invalid_request_error", 400), (401, "authentication_error", 502), (429, "rate_limit_error", 429),
    (500, "api_error", 502), (529, "overloaded_error", 503),
])  # fmt: skip
async def test_a_refusal_means_the_same_on_both_lanes(upstream, lanes, stream, status, kind, ours):
    body = {"type": "error", "error": {"type": kind, "message": "temperature: must be at most 1"}}
    upstream.script(MODEL, [Reply(status=status, body=body, headers={"retry-after": "7"})], repeat_last=True)
    mine, theirs = [await refused(model, request_with_tools(stream)) for model in lanes()]
    assert (mine.status, mine.type, mine.retryable) == (ours, theirs.type, theirs.retryable)
    if status != 529:  # litellm makes a 500 of it, so that it cannot be told from a fault, nor when to ask again
        assert (mine.status, mine.code, mine.retry_after) == (theirs.status, theirs.code, theirs.retry_after)
    assert KEY not in f"{mine.message}{mine.detail}"
    assert len(upstream.requests) == 2, "neither lane asks again by itself"


@both_ways
async def test_a_clients_mistake_is_answered_with_the_providers_message(upstream, lanes, stream):
    upstream.script(MODEL, [Reply(status=400, body=BAD)])
    error = await refused(lanes()[0], request_with_tools(stream))
    assert (error.status, "temperature" in error.message) == (400, True)


@both_ways
async def test_an_error_before_anything_else_is_the_requests(upstream, lanes, stream):
    upstream.script(MODEL, [Reply(text="x", fault=ErrorEvent(after=0))])
    error = await refused(lanes()[0], request_with_tools(stream))
    assert (error.status, error.code, error.retryable) == (503, "upstream_overloaded", True)


@both_ways
@pytest.mark.parametrize("fault", [Html(), Cut(after=0), Reset(after=None)], ids=["page", "cut", "reset"])
async def test_what_is_no_answer_is_an_error(upstream, lanes, stream, fault):
    upstream.script(MODEL, [Reply(text="x", fault=fault)])
    error = await refused(lanes()[0], request_with_tools(stream))
    assert (error.status, error.retryable) == (502, True)


async def test_a_provider_that_hangs_is_left_in_time(upstream, lanes):
    upstream.script(MODEL, [Reply(text="x", fault=Hang())])
    error = await refused(lanes(Deadlines(connect=2, first_byte=0.2, idle=5, total=10))[0], request_with_tools(True))
    assert (error.status, error.code) == (504, "upstream_timeout")
    await upstream.requests[0].closed.wait()


async def test_a_stream_that_falls_silent_in_a_call_runs_nothing(upstream, lanes):
    upstream.script(MODEL, [Reply(calls=[WRITE], fault=Hang(after=5))])
    turn, broke, _ = await turn_of(
        lanes(Deadlines(connect=2, first_byte=5, idle=0.2, total=10))[0], request_with_tools(True)
    )
    assert isinstance(broke, BrokenOff)
    assert [type(call) for call in turn.calls] == [BrokenCall]


async def test_an_answer_that_is_longer_than_allowed_is_an_error_that_is_not_asked_again(upstream, lanes):
    upstream.script(MODEL, [Reply(text="word " * 400)])
    with pytest.raises(ChatError, match="longer than 4096 bytes") as caught:
        await turn_of(lanes(answer_bytes=4096)[0], request_with_tools(True))
    assert not caught.value.retryable


async def test_leaving_an_answer_closes_its_connection(upstream, lanes):
    gate = asyncio.Event()
    upstream.script(MODEL, [Reply(text="a long story", pace=Pace(hold=Hold(gate, after=4)))])
    async with asyncio.timeout(60):
        async with lanes()[0].send(asking()) as answer:
            await anext(aiter(answer))
        await upstream.requests[0].closed.wait()
    assert upstream.requests[0].outcome == "client_disconnected"


async def test_a_failure_of_the_caller_closes_the_connection(upstream, lanes):
    gate = asyncio.Event()
    upstream.script(MODEL, [Reply(text="a long story", pace=Pace(hold=Hold(gate, after=4)))])
    patient = Deadlines(connect=2, first_byte=60, idle=60, total=60)

    async def failing():
        async with lanes(patient)[0].send(asking()) as answer:
            await anext(aiter(answer))
            raise ZeroDivisionError

    async with asyncio.timeout(60):
        with pytest.raises(ZeroDivisionError):
            await failing()
        await upstream.requests[0].closed.wait()
    assert upstream.requests[0].outcome == "client_disconnected"


# Where litellm cannot translate ---------------------------------------------------------------------------------------


async def test_a_request_that_cannot_be_worded_is_refused_as_litellm_would_and_harms_no_other(upstream, lanes):
    upstream.script(MODEL, [Reply(text="ok")])
    model, litellms = lanes()
    with structlog.testing.capture_logs() as logged:
        errors = [await refused(each, asking(n=2)) for each in (model, model, litellms)]
    assert len({(error.status, error.code) for error in errors}) == 1
    assert [line["event"] for line in logged] == ["translation_failed"] * 2
    turn, _, raw = await turn_of(model, asking())
    assert (turn.text, raw) == ("ok", True)


@both_ways
async def test_an_answer_that_cannot_be_read_is_an_error_and_the_next_takes_the_same_lane(
    upstream, lanes, monkeypatch, stream
):
    from litellm.llms.anthropic.chat.handler import ModelResponseIterator
    from litellm.llms.anthropic.chat.transformation import AnthropicConfig

    def broken(*_, **__):
        raise KeyError("secret words of a chat")

    upstream.script(MODEL, [Reply(text="ok")], repeat_last=True)
    model, _ = lanes()
    with structlog.testing.capture_logs() as logged, monkeypatch.context() as patched:
        await refused(model, asking(n=2))  # what went wrong with a request hides nothing of this
        patched.setattr(ModelResponseIterator, "chunk_parser", broken)
        patched.setattr(AnthropicConfig, "transform_parsed_response", broken)
        error = await refused(model, asking(stream=stream))
    assert (error.status, error.retryable) == (502, True)
    assert {line["event"] for line in logged} == {"translation_failed"}
    assert [line["what"] for line in logged] == ["request", "answer"]
    assert (logged[1]["model"], logged[1]["error"]) == ("m", "KeyError")
    assert "secret words" not in str(logged)
    turn, _, raw = await turn_of(model, asking(stream=stream))
    assert (turn.text, raw) == ("ok", True)


async def test_without_a_key_no_request_is_sent(upstream, lanes, monkeypatch):
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    error = await refused(lanes(api_key=None)[0], asking())
    assert (error.status, error.code, len(upstream.requests)) == (502, "upstream_auth", 0)


# Which deployments take it --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lane, taken", [("auto", "translated"), ("translated", "translated"), ("litellm", "litellm")])
async def test_claude_takes_the_lane_unless_configured_otherwise(upstream, client, lane, taken):
    upstream.script(MODEL, [Reply(text="ok")])
    upstream.key = KEY
    model = Catalogue([entry(upstream, lane)], client).model("m")
    turn, _, is_raw = await turn_of(model, asking())
    assert (turn.text, turn.reasons, is_raw) == ("ok", ("end_turn",), True)
    assert (await whereabouts(entry(upstream, lane))).lane == taken


async def test_a_setting_that_only_litellm_knows_keeps_a_model_with_litellm(upstream, client):
    upstream.script(MODEL, [Reply(text="ok")])
    model = Catalogue([entry(upstream, "auto", ssl_verify=False)], client).model("m")
    assert (await turn_of(model, asking()))[2] is True
    place = await whereabouts(entry(upstream, "auto", ssl_verify=False))
    assert (place.lane, place.why) == ("litellm", "only the litellm lane can honour ssl_verify")
    assert (await whereabouts(entry(upstream, "litellm", ssl_verify=False))).why is None, "it was not left to us"


@pytest.mark.parametrize(
    "params, word",
    [
        ({"model": "bedrock/invoke/anthropic.claude-x"}, "Converse"),
        ({"model": "openai/gpt-4o"}, "directly"),
        ({"model": "vertex_ai/mistral-large"}, "Gemini and Claude"),
        ({"model": "nlp_cloud/x"}, "none that is read"),
        ({"model": "anthropic/claude-x", "aws_region_name": "x"}, "aws_region_name"),
    ],
)
async def test_what_is_not_vouched_for_is_refused_at_load(params, word):
    with pytest.raises(LaneError, match=word):
        resolve.check(ModelConfig("m", params, lane="translated"))
    resolve.check(ModelConfig("m", params, lane="litellm"))


async def test_a_wildcard_of_claudes_is_taken():
    resolve.check(ModelConfig("claude-*", {"model": "anthropic/claude-*"}, lane="translated"))
    resolve.check(ModelConfig("c", {"model": "claude-x", "custom_llm_provider": "anthropic"}, lane="translated"))
