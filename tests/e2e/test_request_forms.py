"""Every form in which clients ask: choices of tools, several answers, old and misplaced words, tools of other kinds."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from callgate.api.choices import CHOICES_AT_ONCE
from callgate.application import create_app
from tests.harness.clients import http_client, openai_client, streamed, whole
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.harness.wire import RawAnswer, raw_post
from tests.scripted_upstream import Call, Hold, Pace, Reply, Upstream, by_turn

pytestmark = pytest.mark.anyio

BOTH = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
ASKING = [{"role": "user", "content": "hello"}]
LOOKUP = {"type": "function", "function": {"name": "lookup", "parameters": {"type": "object"}}}
OTHER = {"type": "function", "function": {"name": "other", "parameters": {"type": "object"}}}
SHELL = {"type": "custom", "custom": {"name": "shell", "description": "Runs a line."}}


@dataclass(frozen=True, slots=True)
class Served:
    url: str
    client: AsyncOpenAI

    async def ask(self, stream: bool, **fields: Any) -> Any:
        question = {"model": "m", "messages": ASKING, **fields}
        return await (streamed if stream else whole)(self.client, **question)

    async def post(self, **fields: Any) -> RawAnswer:
        return await raw_post(self.url, {"model": "m", "messages": ASKING, **fields})


@contextlib.asynccontextmanager
async def served_with_url(provider: Upstream, *tools: str, **options: Any) -> AsyncIterator[Served]:
    config = make_config(provider.url, tools=tools or ("get_time", "add"), **options)
    async with serve(create_app(config)) as url, openai_client(url) as client:
        yield Served(url, client)


# Several answers ------------------------------------------------------------------------------------------------------


@BOTH
async def test_n_answers_are_n_chats_side_by_side(upstream: Upstream, stream: bool) -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11}
    turns = [Reply(calls=[Call("add", {"a": 1, "b": 2})], usage=usage), Reply(text="three", usage=usage)]
    upstream.script("m", by_turn(turns))
    config = make_config(upstream.url, tools=("add",))
    async with serve(create_app(config)) as url, openai_client(url) as client:
        answer = await Served(url, client).ask(stream, n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert {choice.message.content for choice in answer.choices} == {"three"}
    assert {choice.finish_reason for choice in answer.choices} == {"stop"}
    assert answer.usage.total_tokens == 33 * len(turns)
    assert all("n" not in request.body for request in upstream.requests)


async def test_of_many_chats_only_some_are_under_way_at_a_time(upstream: Upstream) -> None:
    gate, arrived = asyncio.Event(), asyncio.Event()

    def answer(request: Any) -> Reply:
        if len(upstream.requests) >= CHOICES_AT_ONCE:
            arrived.set()
        return Reply(text="ok", pace=Pace(hold=Hold(gate, after=None)))

    upstream.script("m", answer)
    config = make_config(upstream.url, tools=("add",))
    async with serve(create_app(config)) as url, openai_client(url) as client, http_client(url) as plain:
        asking = asyncio.create_task(Served(url, client).ask(stream=False, n=3 * CHOICES_AT_ONCE))
        await arrived.wait()
        for _ in range(20):
            await plain.get("/health/live")
        assert len(upstream.requests) == CHOICES_AT_ONCE
        gate.set()
        assert len((await asking).choices) == 3 * CHOICES_AT_ONCE


@BOTH
async def test_without_server_side_tools_n_is_the_providers_to_honour(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", by_turn([Reply(text="three")]))
    async with serve(create_app(make_config(upstream.url, tools=()))) as url, openai_client(url) as client:
        answer = await Served(url, client).ask(stream, n=3)
    assert answer.choices[0].message.content == "three"
    assert [request.body["n"] for request in upstream.requests] == [3]


async def test_a_stream_of_n_answers_has_one_finish_for_each_and_one_end(upstream: Upstream) -> None:
    upstream.script("m", by_turn([Reply(calls=[Call("add", {"a": 1, "b": 2})]), Reply(text="three")]))
    async with served_with_url(upstream) as served:
        answer = await served.post(n=2, stream=True, stream_options={"include_usage": True})
    assert answer.data[-1] == "[DONE]"
    assert answer.data.count("[DONE]") == 1
    finishes = [c["index"] for chunk in answer.chunks for c in chunk["choices"] if c["finish_reason"]]
    assert sorted(finishes) == [0, 1]
    firsts = [chunk["choices"][0]["delta"] for chunk in answer.chunks if chunk["choices"]]
    assert sum("role" in delta for delta in firsts) == 2
    assert [chunk["usage"] is not None for chunk in answer.chunks].index(True) == len(answer.chunks) - 1
    assert [one["ending"] for one in answer.chunks[-1]["x_callgate"]["choices"]] == ["answered", "answered"]


@BOTH
async def test_one_of_n_that_fails_fails_the_request_once(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(status=400, body={"error": {"message": "no", "type": "invalid_request_error"}})] * 3)
    async with served_with_url(upstream) as served:
        with pytest.raises(openai.BadRequestError):
            await served.ask(stream, n=3)


# Which tools ----------------------------------------------------------------------------------------------------------


@BOTH
async def test_allowed_tools_cut_down_the_tools_of_both_sides_and_leave_their_mode(
    upstream: Upstream, stream: bool
) -> None:
    upstream.script("m", [Reply(calls=[Call("add", {"a": 1, "b": 2})]), Reply(text="3")])
    names = [{"type": "function", "function": {"name": name}} for name in ("add", "lookup")]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": names}}
    async with served_with_url(upstream) as served:
        await served.ask(stream, tools=[LOOKUP, OTHER], tool_choice=choice)
    assert [request.tool_names for request in upstream.requests] == [["lookup", "add", "read_more"]] * 2
    assert [request.body["tool_choice"] for request in upstream.requests] == ["required", "auto"]


@BOTH
async def test_allowed_tools_that_name_none_of_ours_go_to_the_provider_as_they_are(
    upstream: Upstream, stream: bool
) -> None:
    upstream.script("m", [Reply(text="hi")])
    names = [{"type": "function", "function": {"name": "lookup"}}]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": names}}
    async with served_with_url(upstream) as served:
        await served.ask(stream, tools=[LOOKUP, OTHER], tool_choice=choice)
    assert upstream.requests[0].tool_names == ["lookup", "other"]
    assert upstream.requests[0].body["tool_choice"] == choice


@BOTH
async def test_none_offers_nothing_of_ours(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(text="hi")])
    async with served_with_url(upstream) as served:
        await served.ask(stream, tools=[LOOKUP], tool_choice="none")
    assert upstream.requests[0].tool_names == ["lookup"]
    assert upstream.requests[0].body["tool_choice"] == "none"


@BOTH
async def test_parameters_given_as_a_text_of_json_reach_the_model_as_a_schema(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(text="hi")])
    tool = {"type": "function", "function": {"name": "lookup", "parameters": json.dumps({"type": "object"})}}
    async with served_with_url(upstream) as served:
        await served.ask(stream, tools=[tool])
    assert upstream.requests[0].body["tools"][0] == LOOKUP


# Custom tools ---------------------------------------------------------------------------------------------------------


def custom_reply(stream: bool) -> Reply:
    text = "ls -l 'it''s {not json'"
    call = {"id": "call_x", "type": "custom", "custom": {"name": "shell", "input": text}}
    time = {"id": "call_t", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
    if not stream:
        message = {"role": "assistant", "content": None, "tool_calls": [time, call]}
        return Reply(body={"id": "c", "object": "chat.completion", "model": "m", "created": 1,
                           "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]})  # fmt: skip
    opener: dict[str, Any] = {"index": 1, **call, "custom": {"name": "shell", "input": text[:5]}}
    deltas: list[Any] = [
        {"role": "assistant", "content": None},
        {"tool_calls": [{"index": 0, **time}]},
        {"tool_calls": [opener]},
        {"tool_calls": [{"index": 1, "custom": {"input": text[5:]}}]},
    ]
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    head = {"id": "c", "object": "chat.completion.chunk", "model": "m", "created": 1}
    return Reply(chunks=[{**head, **chunk} for chunk in chunks])


@BOTH
async def test_a_call_of_a_custom_tool_goes_to_the_client_and_is_put_back(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [custom_reply(stream), Reply(text="done")], lax=True)
    async with served_with_url(upstream) as served:
        answer = await served.post(tools=[SHELL], stream=stream)
        if stream:
            [call] = [c for chunk in answer.chunks for c in chunk["choices"][0]["delta"].get("tool_calls", ())]
            assert call.pop("index") == 0
            finish = [chunk["choices"][0]["finish_reason"] for chunk in answer.chunks][-1]
        else:
            [choice] = answer.chunks[0]["choices"] if answer.chunks else json.loads(answer.body)["choices"]
            [call], finish = choice["message"]["tool_calls"], choice["finish_reason"]
        wanted = {"id": "call_x", "type": "custom", "custom": {"name": "shell", "input": "ls -l 'it''s {not json'"}}
        assert ({**call, "x_callgate": None}, finish) == ({**wanted, "x_callgate": None}, "tool_calls")
        own = {"role": "tool", "tool_call_id": "call_x", "content": "total 0"}
        history = [*ASKING, {"role": "assistant", "content": None, "tool_calls": [call]}, own]
        await served.post(tools=[SHELL], stream=stream, messages=history)
    assert upstream.requests[0].body["tools"][0] == SHELL
    said = upstream.requests[1].messages
    assert said[1]["tool_calls"][1] == wanted
    assert [message["content"] for message in said[2:]] == ["12:00", "total 0"]


# Older and other words ------------------------------------------------------------------------------------------------


FUNCTION = {"name": "lookup", "parameters": {"type": "object"}}


@BOTH
async def test_functions_are_tools_and_their_calls_come_back_as_function_call(upstream: Upstream, stream: bool) -> None:
    upstream.script(
        "m",
        [
            Reply(calls=[Call("get_time", id="h")]),
            Reply(
                text="Let me look.", calls=[Call("add", {"a": 1, "b": 1}, id="h2"), Call("lookup", {"n": 7}, id="c")]
            ),
            Reply(text="Found."),
        ],
    )
    async with served_with_url(upstream) as served:
        answer = await served.ask(stream, functions=[FUNCTION], function_call="auto")
        [choice] = answer.choices
        assert choice.finish_reason == "function_call"
        assert choice.message.tool_calls is None
        called = choice.message.function_call
        assert (called.name, json.loads(called.arguments)) == ("lookup", {"n": 7})
        said = {
            "role": "assistant",
            "content": None,
            "function_call": {"name": called.name, "arguments": called.arguments},
        }
        back = [*ASKING, said, {"role": "function", "name": "lookup", "content": "seven"}]
        answer = await served.ask(stream, functions=[FUNCTION], messages=back)
        assert answer.choices[0].message.content == "Found."
    assert upstream.requests[0].tool_names == ["lookup", "add", "get_time", "read_more"]
    assert upstream.requests[0].body["tool_choice"] == "auto"
    assert upstream.requests[2].tool_results == {"h": "12:00", "h2": "2", "c": "seven"}


@BOTH
async def test_a_named_function_call_is_a_named_choice(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(calls=[Call("lookup", {"n": 7})])])
    async with served_with_url(upstream) as served:
        await served.ask(stream, functions=[FUNCTION], function_call={"name": "lookup"})
    assert upstream.requests[0].body["tool_choice"] == {"type": "function", "function": {"name": "lookup"}}


@BOTH
async def test_a_body_of_the_responses_api_is_rewritten_as_a_chat(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(text="hi")])
    body: dict[str, Any] = {
        "model": "m",
        "stream": stream,
        "instructions": "Be brief.",
        "max_output_tokens": 50,
        "reasoning": {"effort": "low"},
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "look"}]},
            {"type": "function_call", "call_id": "c1", "name": "lookup", "arguments": "{}"},
            {"type": "function_call", "call_id": "c2", "name": "lookup", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "one"},
            {"type": "function_call_output", "call_id": "c2", "output": "two"},
        ],
        "tools": [{"type": "function", "name": "lookup", "parameters": {"type": "object"}}],
    }
    async with served_with_url(upstream) as served:
        answer = await raw_post(served.url, body)
    assert answer.status == 200, answer.body
    request = upstream.requests[0]
    assert [message["role"] for message in request.messages] == ["system", "user", "assistant", "tool", "tool"]
    assert request.messages[1]["content"] == [{"type": "text", "text": "look"}]
    assert [call["id"] for call in request.messages[2]["tool_calls"]] == ["c1", "c2"]
    assert request.body["tools"][0] == LOOKUP
    assert (request.body["max_completion_tokens"], request.body["reasoning_effort"]) == (50, "low")
    assert "input" not in request.body


async def test_what_only_the_responses_api_can_do_is_refused_by_name(upstream: Upstream) -> None:
    async with served_with_url(upstream) as served:
        kept = await raw_post(served.url, {"model": "m", "input": "hi", "previous_response_id": "resp_1"})
        search = await raw_post(served.url, {"model": "m", "input": "hi", "tools": [{"type": "web_search"}]})
    assert (kept.status, json.loads(kept.body)["error"]["param"]) == (400, "previous_response_id")
    assert (search.status, json.loads(search.body)["error"]["param"]) == (400, "tools")


@BOTH
async def test_fields_that_only_some_providers_know_travel_on(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(text="hi")])
    more = {"top_k": 40, "min_p": 0.1, "chat_template_kwargs": {"enable_thinking": False}, "verbosity": "low"}
    async with served_with_url(upstream) as served:
        await served.ask(stream, extra_body=more)
    assert {name: upstream.requests[0].body[name] for name in more} == more


@BOTH
@pytest.mark.parametrize(("provider", "role"), [("openai", "developer"), ("hosted_vllm", "system")])
@pytest.mark.parametrize("tools", [("get_time",), ()], ids=["server-side tools", "none"])
async def test_a_developer_message_is_a_system_message_where_the_provider_has_no_developer_role(
    upstream: Upstream, stream: bool, provider: str, role: str, tools: Any
) -> None:
    upstream.script("m", [Reply(text="hi")])
    said = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": 'Who is a "developer"?'}]
    config = make_config(upstream.url, tools=tools, provider=provider)
    async with serve(create_app(config)) as url, openai_client(url) as client:
        await Served(url, client).ask(stream, messages=said)
    assert upstream.requests[0].messages == [{"role": role, "content": "Be brief."}, said[1]]


# The form of the answer -----------------------------------------------------------------------------------------------

SCHEMA = {"type": "json_schema", "json_schema": {"name": "time", "schema": {"type": "object"}}}


@BOTH
async def test_a_format_goes_to_every_turn_of_a_provider_that_takes_it_beside_tools(
    upstream: Upstream, stream: bool
) -> None:
    upstream.script("m", [Reply(calls=[Call("get_time")]), Reply(text='{"time":"12:00"}')])
    async with served_with_url(upstream) as served:
        answer = await served.ask(stream, response_format=SCHEMA)
    assert answer.choices[0].message.content == '{"time":"12:00"}'
    assert [request.body["response_format"] for request in upstream.requests] == [SCHEMA, SCHEMA]


@BOTH
async def test_text_beside_a_call_of_ours_is_no_part_of_an_answer_in_json(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(text="Let me see.", calls=[Call("get_time")]), Reply(text='{"time":"12:00"}')])
    async with served_with_url(upstream) as served:
        answer = await served.ask(stream, response_format=SCHEMA)
    assert answer.choices[0].message.content == '{"time":"12:00"}'


@BOTH
async def test_a_client_that_wants_no_tools_and_has_none_sends_its_provider_no_choice(
    upstream: Upstream, stream: bool
) -> None:
    upstream.script("m", [Reply(text="hi")])
    async with served_with_url(upstream) as served:
        answer = await served.ask(stream, tool_choice="none")
    assert answer.choices[0].message.content == "hi"
    assert upstream.requests[0].body.keys().isdisjoint({"tools", "tool_choice"})


@BOTH
async def test_where_both_are_refused_the_format_is_for_a_last_turn_without_tools(
    upstream: Upstream, stream: bool
) -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11}
    upstream.script(
        "m",
        [
            Reply(text="Let me see.", calls=[Call("get_time")], usage=usage),
            Reply(text="It is noon.", usage=usage),
            Reply(text='{"time":"12:00"}', usage=usage),
        ],
    )
    async with served_with_url(upstream, entry={"response_format_with_tools": False}) as served:
        answer = await served.ask(stream, response_format=SCHEMA)
    [choice] = answer.choices
    assert (choice.message.content, choice.finish_reason) == ('{"time":"12:00"}', "stop")
    assert answer.usage.total_tokens == 33
    assert [request.body.get("response_format") for request in upstream.requests] == [None, None, SCHEMA]
    assert ["tools" in request.body for request in upstream.requests] == [True, True, False]
    assert [m["role"] for m in upstream.requests[2].messages] == ["user", "assistant", "tool"]


@BOTH
async def test_where_both_are_refused_a_chat_without_a_format_is_as_ever(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(text="hi")])
    async with served_with_url(upstream, entry={"response_format_with_tools": False}) as served:
        answer = await served.ask(stream)
    assert answer.choices[0].message.content == "hi"
    assert len(upstream.requests) == 1
