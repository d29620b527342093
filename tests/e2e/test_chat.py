"""The product as its users meet it: the official client, real sockets, a model provider that misbehaves, both modes."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, BadRequestError

from callgate.application import create_app
from tests.harness import toolshed
from tests.harness.clients import openai_client
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.harness.wire import raw_connection, raw_post
from tests.scripted_upstream import Call, Cut, ErrorEvent, Hang, Reply, Reset, Upstream

pytestmark = pytest.mark.anyio

ASKING = [{"role": "user", "content": "hello"}]
BOTH = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])


@dataclass(frozen=True, slots=True)
class Served:
    url: str
    client: AsyncOpenAI


@dataclass(frozen=True, slots=True)
class ModelOutput:
    """An answer, in whichever mode it came."""

    text: str
    finish_reason: str | None
    diagnostics: dict[str, Any]

    @property
    def flaws(self) -> list[str]:
        return [call["flaw"] for turn in self.diagnostics["turns"] for call in turn["calls"] if "flaw" in call]


@contextlib.asynccontextmanager
async def served_with_url(provider: Upstream, /, *tools: Any, **options: Any) -> AsyncIterator[Served]:
    config = make_config(provider.url, tools=tools or ("get_weather", "add", "send_mail", "echo"), **options)
    async with serve(create_app(config)) as url, openai_client(url) as client:
        yield Served(url, client)


async def ask(served: Served, *, stream: bool, **fields: Any) -> ModelOutput:
    question: dict[str, Any] = {"model": "m", "messages": ASKING, **fields}
    if not stream:
        answer = await served.client.chat.completions.create(**question)
        [choice] = answer.choices
        return ModelOutput(choice.message.content or "", choice.finish_reason, (answer.model_extra or {})["x_callgate"])
    text, finish = "", None
    last: dict[str, Any] = {}
    async for chunk in await served.client.chat.completions.create(**question, stream=True):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
            assert not choice.delta.tool_calls, "a call of a server-side tool must never be shown"
        last = chunk.model_extra or {}
    return ModelOutput(text, finish, last["x_callgate"])


# The loop, over the wire ----------------------------------------------------------------------------------------------


@BOTH
async def test_a_chain_of_two_tools(upstream: Upstream, stream: bool) -> None:
    upstream.script(
        "m",
        [
            Reply(calls=[Call("get_weather", {"city": "Oslo"})]),
            Reply(text="So far so cold. ", calls=[Call("add", {"a": 4, "b": 38})]),
            Reply(text="It is 4 C, and 42."),
        ],
    )
    async with served_with_url(upstream) as served:
        answered = await ask(served, stream=stream)
    assert answered.text == "So far so cold. \n\nIt is 4 C, and 42."
    assert answered.finish_reason == "stop"
    results = [m["content"] for m in upstream.requests[2].body["messages"] if m["role"] == "tool"]
    assert results == ["4 C in Oslo", "42"]


@BOTH
async def test_a_request_that_names_a_tool_that_is_none_is_sent_a_near_name(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(text="Hello."), Reply(text="Hello.")])
    async with served_with_url(upstream) as served:
        output = await ask(served, stream=stream, extra_headers={"X-Callgate-Tools": "ad, echo"})
        assert output.diagnostics["warnings"] == ["'ad' names no tool; did you mean 'add'?"]
        asking: dict[str, Any] = {"model": "m", "messages": ASKING, "metadata": {"tools": "ehco\u00e4"}}
        answer = await served.client.chat.completions.with_raw_response.create(**asking)
    assert answer.headers["x-callgate-warning"] == "'ehco\\xe4' names no tool; did you mean 'echo'?"


@BOTH
async def test_a_request_that_names_more_tools_than_there_could_be_is_refused(upstream: Upstream, stream: bool) -> None:
    async with served_with_url(upstream) as served:
        with pytest.raises(BadRequestError) as refused:
            await ask(served, stream=stream, metadata={"tools": ",".join(f"tool_{at}*" for at in range(100_000))})
    assert refused.value.code == "too_many_tool_names"


@BOTH
async def test_five_slow_tools_of_one_turn_run_side_by_side(upstream: Upstream, stream: bool) -> None:
    upstream.script(
        "m",
        [Reply(calls=[Call("wait_for_gate", {"label": str(n)}) for n in range(5)]), Reply(text="all done")],
    )
    async with toolshed.held() as running, served_with_url(upstream, "wait_for_gate") as served:
        asking = asyncio.create_task(ask(served, stream=stream))
        await running.started.wait()
        running.gate.set()
        answered = await asking
    results = [m["content"] for m in upstream.requests[1].body["messages"] if m["role"] == "tool"]
    assert results == [f"waited {n}" for n in range(5)]
    assert answered.text == "all done"


@BOTH
async def test_truncated_arguments_are_never_run_but_reported_and_recovered(upstream: Upstream, stream: bool) -> None:
    upstream.script(
        "m",
        [
            Reply(calls=[Call("get_weather", '{"city": "Os', id="call_cut")]),
            Reply(calls=[Call("get_weather", {"city": "Oslo"})]),
            Reply(text="4 C."),
        ],
    )
    async with served_with_url(upstream) as served:
        answered = await ask(served, stream=stream)
    assert answered.flaws == ["truncated"]
    feedback = json.loads(upstream.requests[1].body["messages"][-1]["content"])
    assert feedback["error"]["code"] == "truncated"
    assert answered.text == "4 C."


@BOTH
async def test_stop_beside_calls_runs_them(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(calls=[Call("add", {"a": 1, "b": 2})], finish="stop"), Reply(text="3")])
    async with served_with_url(upstream) as served:
        answered = await ask(served, stream=stream)
    assert answered.text == "3"
    assert answered.diagnostics["turns"][0]["findings"] == ["tool_calls_with_stop"]
    assert answered.diagnostics["turns"][0]["finish_reason"] == "stop"


@BOTH
async def test_tool_calls_beside_none_is_an_answer(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(text="Nothing to call.", finish="tool_calls")])
    async with served_with_url(upstream) as served:
        answered = await ask(served, stream=stream)
    assert (answered.text, answered.finish_reason) == ("Nothing to call.", "stop")
    assert answered.diagnostics["turns"][0]["findings"] == ["finish_without_tool_calls"]


@BOTH
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
async def test_a_forced_choice_is_honoured_once(upstream: Upstream, stream: bool, choice: Any) -> None:
    upstream.script("m", [Reply(calls=[Call("add", {"a": 1, "b": 2})]), Reply(text="3")])
    async with served_with_url(upstream) as served:
        answered = await ask(served, stream=stream, tool_choice=choice)
    assert answered.text == "3"
    assert [request.body.get("tool_choice") for request in upstream.requests] == [choice, "auto"]


@BOTH
async def test_a_loop_that_never_ends_is_ended_with_an_answer(upstream: Upstream, stream: bool) -> None:
    def endless(request: Any) -> Reply:
        if not request.body.get("tools"):
            return Reply(text="This is what I have.")
        return Reply(calls=[Call("add", {"a": len(request.body["messages"]), "b": 1})])

    upstream.script("m", endless)
    async with served_with_url(upstream) as served:
        answered = await ask(served, stream=stream)
    assert (answered.text, answered.finish_reason) == ("This is what I have.", "stop")
    assert answered.diagnostics["ending"] == "turn_limit"
    ran = [
        call for turn in answered.diagnostics["turns"] for call in turn["calls"] if call.get("outcome") == "returned"
    ]
    assert len(ran) == 10


@BOTH
async def test_a_tool_that_raises_is_an_answer_to_the_model(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(calls=[Call("send_mail", {"to": "a", "text": "b"})]), Reply(text="It is full.")])
    async with served_with_url(upstream) as served:
        answered = await ask(served, stream=stream)
    assert "mailbox is full" in upstream.requests[1].body["messages"][-1]["content"]
    assert answered.diagnostics["turns"][0]["calls"][0]["outcome"] == "raised"


@BOTH
async def test_a_tool_that_hangs_is_stopped_at_its_timeout(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(calls=[Call("wait_for_gate")]), Reply(text="It did not answer.")])
    tool = {"kind": "python", "function": "tests.harness.toolshed:wait_for_gate", "timeout": 0.05}
    async with toolshed.held() as running, served_with_url(upstream, tool) as served:
        answered = await ask(served, stream=stream)
        assert running.cancelled.is_set()
    assert answered.text == "It did not answer."
    assert answered.diagnostics["turns"][0]["calls"][0]["outcome"] == "timeout"


@BOTH
async def test_a_result_of_ten_megabytes_is_cut_with_a_note(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(calls=[Call("big")]), Reply(text="Long.")])
    tool = {"kind": "python", "function": "tests.e2e.test_chat:big", "max_result_bytes": 2000}
    async with served_with_url(upstream, tool) as served:
        answered = await ask(served, stream=stream)
    result = upstream.requests[1].body["messages"][-1]["content"]
    assert len(result) < 3000
    assert result.startswith("0123")
    assert "6789\n[The rest is kept for a while: read_more " in result
    assert answered.text == "Long."


async def big() -> str:
    """Ten megabytes."""
    return "0123456789" * 1_000_000


# Providers that fail --------------------------------------------------------------------------------------------------


@BOTH
async def test_a_refused_upstream_key_is_the_operators_problem_and_not_the_clients(
    upstream: Upstream, stream: bool
) -> None:
    body = {"error": {"message": "Incorrect API key provided: sk-upstream", "type": "x", "param": None, "code": "c"}}
    upstream.script("m", [Reply(status=401, body=body)])
    async with served_with_url(upstream) as served:
        with pytest.raises(openai.InternalServerError) as caught:
            await ask(served, stream=stream)
    assert caught.value.status_code == 502
    assert "sk-upstream" not in str(caught.value)


@BOTH
async def test_too_many_requests_is_a_429_with_the_time_to_wait(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(status=429, headers={"retry-after": "7"})] * 3)
    async with served_with_url(upstream, upstream={"retries": 0}) as served:
        with pytest.raises(openai.RateLimitError) as caught:
            await ask(served, stream=stream)
    assert caught.value.response.headers["retry-after"] == "7"


@BOTH
async def test_a_failing_provider_is_asked_again_and_no_tool_runs_twice(upstream: Upstream, stream: bool) -> None:
    upstream.script(
        "m",
        [
            Reply(calls=[Call("add", {"a": 1, "b": 2})]),
            Reply(status=500),
            Reply(text="3"),
        ],
    )
    async with served_with_url(upstream) as served:
        answered = await ask(served, stream=stream)
    assert answered.text == "3"
    ran = [call for turn in answered.diagnostics["turns"] for call in turn["calls"]]
    assert len(ran) == 1


@BOTH
async def test_a_provider_that_never_answers_is_a_504(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(text="late", fault=Hang())] * 3)
    async with served_with_url(upstream, upstream={"retries": 0, "first_byte_seconds": 0.1}) as served:
        with pytest.raises(openai.InternalServerError) as caught:
            await ask(served, stream=stream)
    assert caught.value.status_code == 504


@BOTH
@pytest.mark.parametrize("fault", [Cut(after=3), Reset(after=3)], ids=["cut", "reset"])
async def test_an_answer_lost_in_the_middle_of_a_call_runs_nothing_and_is_asked_again(
    upstream: Upstream, stream: bool, fault: Any
) -> None:
    call = Call("add", {"a": 1, "b": 2})
    upstream.script("m", [Reply(calls=[call], fault=fault), Reply(calls=[call]), Reply(text="3")])
    async with served_with_url(upstream) as served:
        answered = await ask(served, stream=stream)
    assert answered.text == "3"
    assert sum(len(turn["calls"]) for turn in answered.diagnostics["turns"] if turn["finish_reason"]) == 1


async def test_an_answer_lost_after_its_first_content_is_an_error_in_the_stream(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="Once upon a time there was", fault=Cut(after=4))])
    async with served_with_url(upstream) as served:
        with pytest.raises(openai.APIError) as caught:
            await ask(served, stream=True)
    assert "broke off" in str(caught.value)


async def test_a_failed_stream_ends_with_one_error_and_done(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="Once upon a time there was", fault=ErrorEvent(after=4))])
    async with served_with_url(upstream) as served:
        answer = await raw_post(served.url, {"model": "m", "stream": True, "messages": ASKING})
    assert answer.status == 200
    assert answer.data[-1] == "[DONE]"
    assert set(json.loads(answer.data[-2])["error"]) == {"message", "type", "param", "code"}
    assert sum("error" in chunk for chunk in answer.chunks) == 1


@pytest.mark.parametrize("lane", ["direct", "litellm"])
@pytest.mark.parametrize("calling", ["native", "xml"])
async def test_a_number_beyond_every_range_is_never_an_internal_error(
    upstream: Upstream, lane: str, calling: str
) -> None:
    upstream.script("m", [Reply(text="ok")] * 2, lax=True)
    message = '{"role":"user","content":"hi","odd":1e999}'
    async with served_with_url(upstream, lane=lane, entry={"tool_calling": calling}) as served:
        for fields in ('"top_k":1e999,"messages":[{"role":"user","content":"hi"}]', f'"messages":[{message}]'):
            answer = await raw_post(served.url, f'{{"model":"m",{fields}}}'.encode())
            assert answer.status in (200, 400), answer.body


# Clients that leave ---------------------------------------------------------------------------------------------------


@BOTH
async def test_a_client_that_leaves_while_the_model_speaks_closes_the_upstream(
    upstream: Upstream, stream: bool
) -> None:
    upstream.script("m", [Reply(text="one two three four five", fault=Hang(after=4))])
    async with served_with_url(upstream) as served:
        async with raw_connection(served.url) as connection:
            await connection.post("/v1/chat/completions", {"model": "m", "stream": stream, "messages": ASKING})
            await upstream.requests.wait(1)
            if stream:
                await connection.until(b"one")
        async with asyncio.timeout(30):
            assert await upstream.requests[0].until_closed() == "client_disconnected"


@BOTH
async def test_a_client_that_leaves_while_a_tool_runs_stops_the_tool(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(calls=[Call("wait_for_gate")])])
    async with toolshed.held() as running, served_with_url(upstream, "wait_for_gate") as served:
        async with raw_connection(served.url) as connection:
            await connection.post("/v1/chat/completions", {"model": "m", "stream": stream, "messages": ASKING})
            await running.started.wait()
        async with asyncio.timeout(30):
            await running.cancelled.wait()
        assert len(upstream.requests) == 1


@BOTH
async def test_a_tool_may_be_asked_again_until_something_is_ready_where_the_config_allows_it(upstream, stream):
    waiting = [Reply(calls=[Call("add", {"a": 1, "b": 2})])] * 5
    async with served_with_url(upstream, loop={"max_repeats": 6}) as served:
        upstream.script("m", [*waiting, Reply(text="ready")])
        answered = await ask(served, stream=stream)
    assert (answered.text, len(answered.diagnostics["turns"]), answered.diagnostics.get("note")) == ("ready", 6, None)


@BOTH
async def test_usually_three_times_the_same_is_the_end(upstream, stream):
    waiting = [Reply(calls=[Call("add", {"a": 1, "b": 2})])] * 3
    async with served_with_url(upstream) as served:
        upstream.script("m", [*waiting, Reply(text="still not ready")])
        answered = await ask(served, stream=stream)
    assert (answered.text, answered.diagnostics["note"]) == ("still not ready", "repeated_call")
