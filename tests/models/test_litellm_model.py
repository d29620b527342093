"""The litellm lane against a real server on loopback, and one contract test for each fact about litellm relied upon.

A contract test that fails after an update of litellm says which workaround has to be looked at again.
"""

import asyncio
import gc
import json
import sys
import typing
from contextlib import aclosing
from typing import Any

import msgspec
import pytest
import typing_extensions
from msgspec.structs import replace

from callgate.conversation.errors import BrokenOff, ChatError
from callgate.conversation.events import CallDelta, CallWritten, Finished, ProviderError
from callgate.conversation.ports import ModelRequest
from callgate.conversation.usage import Usage
from callgate.models import litellm_model
from callgate.models.litellm_lane.model import LiteLLMModel
from callgate.models.params import NAMED
from callgate.models.resolve import LiteLLMSettings, ModelConfig
from callgate.policy.litellm_settings import without_settings
from tests.models.reading import events_until_broken_off, text_of
from tests.models.through_litellm import MARKS
from tests.models.wire import QUICK, SSE, asking, chunk, closing, completion, raw_provider, tool

pytestmark = MARKS


@pytest.fixture
async def litellm():
    return await litellm_model.loaded()


class _Growing(str):
    """The name of a module, beside which another one is imported while it is looked at."""

    __slots__ = ()

    def startswith(self, *prefix):
        sys.modules[f"{self}_and_{len(sys.modules)}"] = sys
        return super().startswith(*prefix)


async def test_it_is_prepared_while_other_threads_import(litellm, monkeypatch):
    monkeypatch.setattr(sys, "modules", {_Growing("litellm_of_a_test"): sys, **sys.modules})
    litellm_model._load()


async def test_its_objects_are_not_looked_through_for_garbage(litellm, monkeypatch):
    def library():
        enabled.append(gc.isenabled())
        return litellm

    monkeypatch.setattr("callgate.models.litellm_seam.library", library)
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(gc.isenabled()))
    for was_enabled in (True, False):
        enabled: list[bool] = []
        frozen: list[bool] = []
        if not was_enabled:
            gc.disable()
        try:
            litellm_model._load()
            assert gc.isenabled() == was_enabled
        finally:
            gc.enable()
        assert enabled[0] is False
        assert frozen == [False]


def at(server, deadlines=QUICK, **more):
    arguments = {"model": "openai/m", "api_base": f"{server.url}/v1", "api_key": "sk-planted-key-000111222", **more}
    return LiteLLMModel("m", LiteLLMSettings(arguments, ("sk-planted-key-000111222",)), deadlines, trusts_litellm=True)


async def events(model, request):
    async with asyncio.timeout(60), model.send(request) as answer:
        return [event async for batch in answer for event in batch]


def reasons_of(found):
    return [event.reason for event in found if isinstance(event, Finished)]


def streaming(*payloads, done=True):
    async def serve(request, wire):
        await wire.head()
        for payload in payloads:
            await wire.event(payload)
        if done:
            await wire.event("[DONE]")

    return closing(serve)


def whole(body, status=200, *headers):
    async def serve(request, wire):
        await wire.whole(body, status, *headers)

    return serve


CALL = {"index": 0, "id": "c1", "type": "function", "function": {"name": "t", "arguments": '{"a":1}'}}
WHOLE_CALL = {"id": "c1", "type": "function", "function": {"name": "t", "arguments": '{"a":1}'}}


# The lane -----------------------------------------------------------------------------------------


async def test_a_stream_comes_as_events():
    payloads = [chunk({"role": "assistant", "content": "He"}), chunk({"content": "llo"}), chunk({"tool_calls": [CALL]})]
    usage = chunk(usage={"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}, choices=[])
    async with raw_provider(streaming(*payloads, chunk(finish="tool_calls"), usage)) as server:
        found = await events(at(server), asking(tools=[tool("t")]))
    assert text_of(found) == "Hello"
    calls = [event for event in found if isinstance(event, CallDelta)]
    assert (calls[0].index, calls[0].id, calls[0].name) == (0, "c1", "t")
    assert "".join(event.arguments or "" for event in calls) == '{"a":1}'
    assert reasons_of(found) == ["tool_calls"]
    assert [event.report["total_tokens"] for event in found if isinstance(event, Usage)] == [5]
    sent = server.requests[0].body
    assert sent["stream_options"] == {"include_usage": True}
    assert sent["tools"] == [tool("t")]


async def test_a_whole_answer_comes_as_events():
    async with raw_provider(whole(completion("Hi", finish="tool_calls", tool_calls=[WHOLE_CALL]))) as server:
        found = await events(at(server), asking(stream=False, tools=[tool("t")]))
    assert text_of(found) == "Hi"
    assert [(event.id, event.name, event.arguments) for event in found if isinstance(event, CallWritten)] == [
        ("c1", "t", '{"a":1}')
    ]
    assert reasons_of(found) == ["tool_calls"]


async def test_what_came_as_bytes_is_read_for_litellm():
    ask = ModelRequest(
        [msgspec.Raw(b'{"role":"user","content":"hi"}')],
        [msgspec.Raw(json.dumps(tool("t")).encode())],
        tool_choice=msgspec.Raw(b'"required"'),
        params=without_settings({"temperature": msgspec.Raw(b"0.5"), "top_k": msgspec.Raw(b"3"), "stop": ["x"]}),
    )
    async with raw_provider(streaming(chunk({"content": "x"}), chunk(finish="stop"))) as server:
        await events(at(server), ask)
    sent = server.requests[0].body
    assert sent["messages"] == [{"role": "user", "content": "hi"}]
    assert (sent["temperature"], sent["top_k"], sent["stop"], sent["tool_choice"]) == (0.5, 3, ["x"], "required")


@pytest.mark.parametrize("stream", [True, False])
async def test_nothing_a_client_sends_chooses_where_or_as_whom(stream):
    evil = {
        "api_base": "http://127.0.0.1:1/evil", "base_url": "http://127.0.0.1:1/evil", "api_key": "evil",
        "extra_headers": {"X": "evil"}, "headers": {"X": "evil"}, "mock_response": "evil", "mock_timeout": True,
        "mock_tool_calls": ["evil"], "client": "evil", "timeout": 0.0001, "model_list": ["evil"], "deployment_id": "evil",
        "success_callback": ["evil"], "custom_llm_provider": "anthropic", "fallbacks": ["evil"], "num_retries": 9,
        "organization": "evil", "extra_body": {"model": "evil"}, "litellm_call_id": "evil", "metadata": {"evil": "evil"},
    }  # fmt: skip
    serve = streaming(chunk({"content": "good"}), chunk(finish="stop")) if stream else whole(completion("good"))
    async with raw_provider(serve) as server:
        found = await events(at(server), asking(stream=stream, params=evil))
    assert text_of(found) == "good"
    assert len(server.requests) == 1
    request = server.requests[0]
    assert b"evil" not in request.raw
    assert "evil" not in json.dumps(request.headers)
    assert request.headers["authorization"] == "Bearer sk-planted-key-000111222"


@pytest.mark.parametrize("ending", ["eof", "done"])
async def test_a_finish_reason_that_was_not_sent_is_not_passed_on(ending):
    async with raw_provider(streaming(chunk({"tool_calls": [CALL]}), done=ending == "done")) as server:
        got, caught = await events_until_broken_off(at(server), asking(tools=[tool("t")]))
    assert not caught.transport_error
    assert reasons_of(got) == []
    assert [event.name for event in got if isinstance(event, CallDelta)] == ["t"]


async def test_a_connection_lost_in_the_middle_is_broken_off():
    async def serve(request, wire):
        await wire.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for part in ("Hello ", "there "):
            event = f"data: {json.dumps(chunk({'content': part}))}\n\n"
            await wire.send(f"{len(event):x}\r\n{event}\r\n")

    async with raw_provider(closing(serve)) as server:
        with pytest.raises(BrokenOff) as caught:
            await events(at(server), asking())
    assert caught.value.transport_error


async def test_after_a_finish_reason_a_lost_connection_means_nothing():
    async def serve(request, wire):
        await wire.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for payload in (chunk({"content": "Hi"}), chunk(finish="stop")):
            event = f"data: {json.dumps(payload)}\n\n"
            await wire.send(f"{len(event):x}\r\n{event}\r\n")

    async with raw_provider(closing(serve)) as server:
        found = await events(at(server), asking())
    assert text_of(found) == "Hi"
    assert reasons_of(found) == ["stop"]


async def test_an_error_event_in_the_middle_is_part_of_the_turn_and_scrubbed():
    error = {"error": {"message": "overloaded, key sk-planted-key-000111222", "type": "server_error", "code": 500}}
    async with raw_provider(streaming(chunk({"content": "Hi"}), error)) as server:
        found = await events(at(server), asking())
    (reported,) = [event for event in found if isinstance(event, ProviderError)]
    assert "planted" not in f"{reported}"


@pytest.mark.parametrize(
    ("finishes", "expected"),
    [
        (["MALFORMED_FUNCTION_CALL"], ["MALFORMED_FUNCTION_CALL"]),
        (["tool_calls", "stop"], ["tool_calls", "stop"]),
        (["stop", "stop"], ["stop"]),
        (["end_turn"], ["end_turn"]),
    ],
)
async def test_a_streams_finish_reasons_are_the_providers_own(finishes, expected):
    chunks = [chunk({"content": "x"}), *(chunk(finish=finish) for finish in finishes)]
    async with raw_provider(streaming(*chunks)) as server:
        assert reasons_of(await events(at(server), asking())) == expected


async def test_a_whole_answer_keeps_the_providers_own_finish_reason():
    async with raw_provider(whole(completion("x", finish="insufficient_system_resource"))) as server:
        assert reasons_of(await events(at(server), asking(stream=False))) == ["insufficient_system_resource"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("body", ["", "<html>", '{"error": {"message": "no"}}', '{"choices": []}', "data: [DONE]\n\n"])
async def test_a_200_that_is_no_answer_is_a_5xx(body, stream):
    async def serve(request, wire):
        await wire.whole(body, kind=SSE if stream else "application/json")

    async with raw_provider(serve) as server:
        with pytest.raises(ChatError) as caught:
            await events(at(server), asking(stream=stream))
    assert caught.value.status in {502, 503}
    assert caught.value.retryable


async def test_a_hundred_equal_chunks_are_an_answer():
    async with raw_provider(streaming(*[chunk({"content": "----"})] * 130, chunk(finish="stop"))) as server:
        assert text_of(await events(at(server), asking())) == "----" * 130


async def test_an_entry_of_no_known_provider_is_the_operators_to_mend():
    model = LiteLLMModel("m", LiteLLMSettings({"model": "nobody-knows-this"}), QUICK)
    with pytest.raises(ChatError) as caught:
        await events(model, asking())
    assert (caught.value.status, caught.value.code) == (502, "upstream_error")


async def test_a_provider_with_a_shape_of_its_own_is_reached():
    """Anthropic's wire, as far as a whole call needs it; what only it knows travels, what nobody knows does not."""
    answer = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x", "stop_reason": "tool_use",
        "content": [{"type": "text", "text": "Hm."}, {"type": "tool_use", "id": "toolu_1", "name": "t", "input": {"a": 1}}],
        "usage": {"input_tokens": 3, "output_tokens": 2},
    }  # fmt: skip
    async with raw_provider(whole(answer)) as server:
        way = LiteLLMSettings({"model": "anthropic/claude-x", "api_base": server.url, "api_key": "k"})
        found = await events(
            LiteLLMModel("m", way, QUICK, trusts_litellm=True),
            asking(stream=False, tools=[tool("t")], top_k=3, odd_thing=1),
        )
    assert text_of(found) == "Hm."
    assert [event.name for event in found if isinstance(event, CallWritten)] == ["t"]
    assert server.requests[0].body["top_k"] == 3
    assert "odd_thing" not in server.requests[0].body


@pytest.mark.parametrize("stream", [True, False])
async def test_what_litellm_knows_of_a_model_is_not_asked_for_each_request(litellm, monkeypatch, stream):
    """Its look at a model takes as long as a fifth of the request."""

    def counting(name, looked_up):
        def look_up(*arguments, **named):
            if sys._getframe(1).f_globals["__name__"].startswith("callgate."):
                looks.append(name)
            return looked_up(*arguments, **named)

        return look_up

    looks: list[str] = []
    for name in ("get_supported_openai_params", "get_llm_provider"):
        monkeypatch.setattr(litellm, name, counting(name, getattr(litellm, name)))
    left_out: list[str] = []
    request = replace(asking(stream=stream, metadata={"a": "b"}), leave_out=left_out.append)
    async with raw_provider(sending(OPENING, HELLO, ENDING) if stream else whole(CLAUDES_ANSWER)) as server:
        model = claude_at(server)
        for _ in range(3):
            await events(model, request)
    assert looks == ["get_llm_provider"]
    assert left_out == ["metadata"] * 3


CLAUDES_ANSWER = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x", "stop_reason": "end_turn",
    "content": [{"type": "text", "text": "Hm."}], "usage": {"input_tokens": 3, "output_tokens": 2},
}  # fmt: skip


def named_event(kind, **data):
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n"


OPENING = named_event(
    "message_start",
    message={
        "id": "msg_1", "type": "message", "role": "assistant", "model": "c", "content": [], "stop_reason": None,
        "usage": {"input_tokens": 3, "output_tokens": 1},
    },
)  # fmt: skip
HELLO = (
    named_event("content_block_start", index=0, content_block={"type": "text", "text": ""})
    + named_event("content_block_delta", index=0, delta={"type": "text_delta", "text": "Hello"})
    + named_event("content_block_stop", index=0)
)
TOOL_USE = (
    named_event(
        "content_block_start", index=1, content_block={"type": "tool_use", "id": "tu1", "name": "t", "input": {}}
    )
    + named_event("content_block_delta", index=1, delta={"type": "input_json_delta", "partial_json": '{"a":'})
    + named_event("content_block_delta", index=1, delta={"type": "input_json_delta", "partial_json": "1}"})
    + named_event("content_block_stop", index=1)
)
ENDING = named_event("message_delta", delta={"stop_reason": "tool_use"}, usage={"output_tokens": 9}) + named_event(
    "message_stop"
)


def claude_at(server):
    return LiteLLMModel(
        "m",
        LiteLLMSettings({"model": "anthropic/claude-x", "api_base": server.url, "api_key": "k"}),
        QUICK,
        trusts_litellm=True,
    )


def sending(*texts):
    async def serve(request, wire):
        await wire.head()
        for text in texts:
            await wire.send(text)

    return closing(serve)


async def test_a_stream_of_another_shape_comes_as_the_same_events():
    async with raw_provider(sending(OPENING, HELLO, TOOL_USE, ENDING)) as server:
        found = await events(claude_at(server), asking(tools=[tool("t")]))
    calls = [event for event in found if isinstance(event, CallDelta)]
    assert text_of(found) == "Hello"
    assert [(calls[0].id, calls[0].name)] == [("tu1", "t")]
    assert "".join(call.arguments for call in calls) == '{"a":1}'
    assert reasons_of(found) == ["tool_calls"]
    assert [event.report["total_tokens"] for event in found if isinstance(event, Usage)] == [12]


async def test_a_stream_of_another_shape_that_is_cut_is_broken_off():
    async with raw_provider(sending(OPENING, HELLO, TOOL_USE)) as server:
        got, _ = await events_until_broken_off(claude_at(server), asking(tools=[tool("t")]))
    assert text_of(got) == "Hello"
    assert reasons_of(got) == []


@pytest.mark.parametrize("how", ["leaves", "is_cancelled"])
async def test_who_leaves_a_stream_of_another_shape_closes_its_connection(how):
    left, arrived = asyncio.Event(), asyncio.Event()

    async def serve(request, wire):
        await wire.head()
        await wire.send(OPENING + HELLO)
        await wire.peer_left()
        left.set()

    async def listen(server):
        async with claude_at(server).send(asking()) as answer:
            async for batch in answer:
                if text_of(batch):
                    arrived.set()
                    if how == "leaves":
                        return

    async with raw_provider(serve) as server, asyncio.timeout(60):
        task = asyncio.create_task(listen(server))
        await arrived.wait()
        if how == "is_cancelled":
            task.cancel()
        await asyncio.wait([task])
        async with asyncio.timeout(60):
            await left.wait()


# What litellm does, one test per fact --------------------------------------------------------------


async def raw_stream(litellm, server, **more):
    return await litellm.acompletion(
        model="openai/m", api_base=f"{server.url}/v1", api_key="k", messages=[{"role": "user", "content": "x"}],
        stream=True, max_retries=0, num_retries=0, **more,
    )  # fmt: skip


async def test_fact_a_stream_without_finish_reason_is_given_an_invented_stop(litellm):
    async with (
        raw_provider(streaming(chunk({"content": "x"}), done=False)) as server,
        aclosing(await raw_stream(litellm, server)) as stream,
    ):
        reasons = [part.choices[0].finish_reason async for part in stream]
        assert reasons[-1] == "stop"
        assert stream.received_finish_reason is None
        assert stream.intermittent_finish_reason is None


async def test_fact_the_chunk_with_the_usage_is_the_last_of_a_stream_and_is_known_by_it(litellm):
    usage = chunk(usage={"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}, choices=[])
    async with (
        raw_provider(streaming(chunk({"content": "x"}), chunk(finish="stop"), usage)) as server,
        aclosing(await raw_stream(litellm, server, stream_options={"include_usage": True})) as stream,
    ):
        seen = [(stream.sent_stream_usage, "usage" in part.model_fields_set) async for part in stream]
        assert [known for known, _ in seen] == [*[False] * (len(seen) - 1), True]
        assert stream.sent_stream_usage


async def test_fact_a_finish_reason_that_was_sent_is_remembered_before_its_chunk_is_given_out(litellm):
    async with (
        raw_provider(streaming(chunk({"content": "x"}), chunk(finish="length"))) as server,
        aclosing(await raw_stream(litellm, server)) as stream,
    ):
        async for part in stream:
            if part.choices[0].finish_reason:
                assert stream.received_finish_reason == "length"
                return
    pytest.fail("no finish reason came")


async def test_fact_a_whole_answers_stop_with_calls_is_rewritten_without_a_trace(litellm):
    async with raw_provider(whole(completion("x", finish="stop", tool_calls=[WHOLE_CALL]))) as server:
        answer = await litellm.acompletion(
            model="openai/m",
            api_base=f"{server.url}/v1",
            api_key="k",
            messages=[{"role": "user", "content": "x"}],
            max_retries=0,
        )
    assert answer.choices[0].finish_reason == "tool_calls"
    assert "native_finish_reason" not in answer.choices[0].provider_specific_fields


async def test_fact_an_unknown_reason_in_a_stream_is_rewritten_and_the_stream_keeps_what_it_was(litellm):
    """A failed turn looks like one that stopped, and its calls would run."""
    async with (
        raw_provider(streaming(chunk({"content": "x"}), chunk(finish="MALFORMED_FUNCTION_CALL"))) as server,
        aclosing(await raw_stream(litellm, server)) as stream,
    ):
        reasons = [part.choices[0].finish_reason async for part in stream]
        assert stream.received_finish_reason == "MALFORMED_FUNCTION_CALL"
    assert reasons[-1] == "stop"


async def test_fact_a_whole_answer_keeps_the_reason_it_mapped_aside(litellm):
    async with raw_provider(whole(completion("x", finish="eos"))) as server:
        answer = await litellm.acompletion(
            model="openai/m",
            api_base=f"{server.url}/v1",
            api_key="k",
            messages=[{"role": "user", "content": "x"}],
            max_retries=0,
        )
    choice = answer.choices[0]
    assert choice.finish_reason == "stop"
    assert choice.provider_specific_fields["native_finish_reason"] == "eos"


async def test_fact_a_whole_answer_without_reason_is_given_an_invented_stop(litellm):
    async with raw_provider(whole(completion("x", finish=None))) as server:
        answer = await litellm.acompletion(
            model="openai/m",
            api_base=f"{server.url}/v1",
            api_key="k",
            messages=[{"role": "user", "content": "x"}],
            max_retries=0,
        )
    assert answer.choices[0].finish_reason == "stop"


async def test_fact_breaking_off_the_loop_leaves_the_connection_open_and_aclose_closes_it(litellm):
    left = asyncio.Event()

    async def serve(request, wire):
        await wire.head()
        await wire.event(chunk({"content": "x"}))
        await wire.event(chunk({"content": "y"}))
        await wire.peer_left()
        left.set()

    async with raw_provider(serve) as server, asyncio.timeout(60):
        stream = await raw_stream(litellm, server)
        async for _ in stream:
            break
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await left.wait()
        await stream.aclose()
        async with asyncio.timeout(60):
            await left.wait()


async def test_fact_max_retries_zero_means_one_request(litellm):
    async with raw_provider(whole({"error": {"message": "x"}}, 500)) as server:
        with pytest.raises(litellm.exceptions.InternalServerError):
            await raw_stream(litellm, server)
        assert len(server.requests) == 1


async def test_fact_an_error_holds_the_providers_body_and_its_headers_beside_the_response(litellm):
    async with raw_provider(whole({"error": {"message": "planted sk-abc"}}, 429, "Retry-After: 7")) as server:
        with pytest.raises(litellm.exceptions.RateLimitError) as caught:
            await raw_stream(litellm, server)
    assert "planted sk-abc" in str(caught.value)
    assert caught.value.litellm_response_headers["retry-after"] == "7"


async def test_fact_the_equal_chunk_limit_is_read_when_it_is_needed(litellm, monkeypatch):
    monkeypatch.setattr(litellm, "REPEATED_STREAMING_CHUNK_LIMIT", 5)
    async with (
        raw_provider(streaming(*[chunk({"content": "----"})] * 20, chunk(finish="stop"))) as server,
        aclosing(await raw_stream(litellm, server)) as stream,
    ):
        with pytest.raises(litellm.exceptions.MidStreamFallbackError, match="repeating"):
            async for _ in stream:
                pass


def types_in(annotation, known):
    """All types that a type of OpenAI's SDK is made of."""
    if annotation in known:
        return
    known.append(annotation)
    if typing.is_typeddict(annotation) or typing_extensions.is_typeddict(annotation):
        for inner in typing.get_type_hints(annotation, include_extras=True).values():
            types_in(inner, known)
    for inner in (*typing.get_args(annotation), *getattr(annotation, "__metadata__", ())):
        types_in(inner, known)


async def test_fact_the_sdks_walk_through_a_question_would_change_nothing(litellm):
    from openai._utils import PropertyInfo
    from openai.types.chat import completion_create_params

    known: list[Any] = []
    types_in(completion_create_params.CompletionCreateParamsStreaming, known)
    assert len(known) > 100
    assert not [one for one in known if isinstance(one, PropertyInfo)]


async def test_the_sdk_does_not_walk_through_a_question(monkeypatch):
    async def never(*_):
        raise AssertionError("it walks")

    monkeypatch.setattr("openai._utils._transform._async_transform_recursive", never)
    asked = []

    async def serve(request, wire):
        asked.append(request.body)
        await wire.whole(completion("ok", "stop"))

    parts: Any = [
        {"type": "text", "text": "x"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
    ]
    async with raw_provider(closing(serve)) as server:
        assert text_of(await events(at(server), asking(parts, stream=False))) == "ok"
    assert asked[0] == {"model": "m", "messages": [{"role": "user", "content": parts}]}


async def test_fact_all_settings_of_its_own_are_kept_from_it(litellm):
    """No name that litellm reads as a setting may be among those a client's field becomes an argument under."""
    from litellm.types.utils import all_litellm_params

    assert not (litellm_model.COMMON_EXTRAS | set(NAMED)) & (set(all_litellm_params) - {"cache_control"})


# Lanes and knowledge ------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["llamafile/x", "zai/glm-x"])
async def test_a_provider_whose_shapes_litellm_leaves_alone_is_vouched_for(model):
    endpoint = await litellm_model.vouched_endpoint(ModelConfig("m", {"model": model, "api_key": "k"}))
    assert endpoint is not None
    assert endpoint.model == model.partition("/")[2]
    assert endpoint.url.endswith("/chat/completions")
    assert endpoint.headers["Authorization"] == "Bearer k"


@pytest.mark.parametrize(
    "model", ["anthropic/claude-x", "mistral/m", "groq/x", "gemini/g", "deepseek/d", "azure/x", "bedrock/x", "nobody"]
)
async def test_a_provider_with_translations_of_its_own_is_not(model):
    assert (
        await litellm_model.vouched_endpoint(
            ModelConfig("m", {"model": model, "api_key": "k", "api_base": "http://x/v1"})
        )
        is None
    )


@pytest.mark.parametrize("model, name", [("mystery/x", "mystery/x"), ("groq/x", "x")])
async def test_an_operator_may_vouch_for_an_address_with_the_direct_lane(model, name):
    entry = ModelConfig("m", {"model": model, "api_base": "http://127.0.0.1:9/v1"}, lane="direct")
    endpoint = await litellm_model.vouched_endpoint(entry)
    assert endpoint is not None
    assert (endpoint.url, endpoint.model) == ("http://127.0.0.1:9/v1/chat/completions", name)


async def test_what_is_known_of_function_calling_is_returned_and_the_unknown_is_none():
    async def asked(model):
        return await litellm_model.can_call_functions(ModelConfig("m", {"model": model}))

    assert await asked("openai/gpt-4o") is True
    assert await asked("deepseek/deepseek-reasoner") is False
    assert await asked("hosted_vllm/no-such-model") is None
    assert await asked("azure/o3-mini") is None, "an entry without a word on it says nothing"
