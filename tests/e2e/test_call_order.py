"""The order of effects: calls that change something run in the model's order, whichever way the request came; and one call of a
turn is done where the request asks for that."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness import toolshed
from tests.harness.clients import http_client, openai_client, streamed, whole
from tests.harness.configs import tool_entry
from tests.harness.messages import MessagesClient, calls_of
from tests.harness.responses import responded
from tests.harness.served import served
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = pytest.mark.anyio

BOTH = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
APIS = pytest.mark.parametrize("api", ["chat", "responses", "messages"])
IN_ORDER = ["+a", "-a", "+b", "-b", "+c", "-c"]


@pytest.fixture(autouse=True)
def _no_steps() -> None:
    toolshed.steps.clear()


def steps(*labels: str, tool: str = "step") -> list[Call]:
    return [Call(tool, {"label": label}, id=f"call_{label}") for label in labels]


TOOLS = ("step", "look")


def body_for(api: str, *, stream: bool, **more: Any) -> tuple[str, dict[str, Any]]:
    """The route of an API, and a request to it."""
    fields: dict[str, Any] = {"model": "m", "stream": stream, **more}
    if api == "responses":
        return "/v1/responses", {"input": "go", **fields}
    fields["messages"] = [{"role": "user", "content": "go"}]
    if api == "messages":
        return "/v1/messages", {"max_tokens": 100, **fields}
    return "/v1/chat/completions", fields


async def post(
    url: str, api: str, *, stream: bool = False, headers: Mapping[str, str] | None = None, **more: Any
) -> Any:
    path, body = body_for(api, stream=stream, **more)
    async with http_client(url) as client:
        answer: httpx.Response = await client.post(path, json=body, headers=dict(headers or {}))
    assert answer.status_code == 200, answer.text
    return answer


# The order ------------------------------------------------------------------------------------------------------------


@BOTH
@APIS
async def test_calls_that_write_run_in_the_models_order(upstream: Upstream, api: str, stream: bool) -> None:
    upstream.script("m", [Reply(calls=steps("a", "b", "c")), Reply(text="done")])
    async with served(upstream, *TOOLS) as url:
        await post(url, api, stream=stream)
    assert toolshed.steps == IN_ORDER


@pytest.mark.parametrize("lane", ["direct", "translated", "litellm"])
async def test_the_order_holds_on_every_lane(upstream: Upstream, lane: str) -> None:
    upstream.script("m", [Reply(calls=steps("a", "b", "c")), Reply(text="done")])
    provider = "deepseek" if lane == "translated" else "openai"
    async with served(upstream, *TOOLS, lane="litellm" if lane == "litellm" else "auto", provider=provider) as url:
        await post(url, "chat")
    assert toolshed.steps == IN_ORDER


async def test_the_order_holds_for_calls_written_as_text(upstream: Upstream) -> None:
    text = "\n".join(tag_call("step", label=label) for label in "abc")
    upstream.script("m", [Reply(text=text), Reply(text="done")])
    async with served(upstream, *TOOLS, entry={"tool_calling": "hermes"}) as url:
        await post(url, "chat")
    assert toolshed.steps == IN_ORDER


def tag_call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


async def test_calls_that_read_overlap_between_those_that_write(upstream: Upstream) -> None:
    calls = [*steps("a"), *steps("b", "c", tool="look"), *steps("d")]
    upstream.script("m", [Reply(calls=calls), Reply(text="done")])
    async with served(upstream, *TOOLS) as url:
        await post(url, "chat")
    assert toolshed.steps == ["+a", "-a", "+b", "+c", "-b", "-c", "+d", "-d"]


async def test_four_calls_that_read_run_at_the_same_time(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=steps("a", "b", "c", "d", tool="look")), Reply(text="done")])
    async with served(upstream, *TOOLS) as url:
        await post(url, "chat")
    assert toolshed.steps[:4] == ["+a", "+b", "+c", "+d"]


async def test_a_tool_that_is_taken_out_of_the_order_runs_beside_others(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=steps("a", "b", "c")), Reply(text="done")])
    async with served(upstream, tool_entry("step") | {"in_order": "off"}) as url:
        await post(url, "chat")
    assert toolshed.steps[:3] == ["+a", "+b", "+c"]


async def test_a_tool_whose_safety_is_not_known_counts_as_one_that_writes(upstream: Upstream) -> None:
    unknown = {name: value for name, value in tool_entry("step").items() if name != "safety"}
    upstream.script("m", [Reply(calls=steps("a", "b", "c")), Reply(text="done")])
    async with served(upstream, unknown) as url:
        await post(url, "chat")
    assert toolshed.steps == IN_ORDER


@BOTH
async def test_the_order_holds_in_each_of_several_choices(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", lambda request: Reply(text="done") if request.turn else Reply(calls=steps("a", "b")))
    async with served(upstream, *TOOLS) as url:
        await post(url, "chat", stream=stream, n=2)
    assert len(toolshed.steps) == 8
    # Each choice runs its second call after its first, so that no second one is ahead of as many first ones.
    for place in range(len(toolshed.steps)):
        so_far = toolshed.steps[: place + 1]
        assert so_far.count("+b") <= so_far.count("-a")


@APIS
async def test_the_order_holds_in_a_run_that_is_stored(upstream: Upstream, api: str, tmp_path: Path) -> None:
    upstream.script("m", [Reply(calls=steps("a", "b", "c")), Reply(text="done")])
    async with served(upstream, *TOOLS, data_dir=str(tmp_path)) as url:
        await post(url, api, headers={"idempotency-key": "order-1"})
    assert toolshed.steps == IN_ORDER


async def test_the_order_holds_in_the_background(upstream: Upstream, tmp_path: Path) -> None:
    upstream.script("m", [Reply(calls=steps("a", "b", "c")), Reply(text="done")])
    async with served(upstream, *TOOLS, data_dir=str(tmp_path)) as url, openai_client(url) as client:
        begun = await client.responses.create(model="m", input="go", background=True)
        async with await client.responses.retrieve(begun.id, stream=True) as events:
            async for _ in events:
                pass
    assert toolshed.steps == IN_ORDER


async def test_approvals_of_a_turn_are_asked_for_together_and_its_calls_run_in_order(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=steps("a", "b", "c")), Reply(text="done")])
    async with served(upstream, *TOOLS, require_approval={"always": ["step"]}) as url, http_client(url) as operator:
        asking = asyncio.create_task(post(url, "chat"))
        async with asyncio.timeout(30):
            while len(waiting := (await operator.get("/v1/approvals")).json()["data"]) < 3:
                pass
        assert toolshed.steps == []
        for waits in reversed(waiting):
            await operator.post(f"/v1/approvals/{waits['id']}", json={"decision": "approve", "hash": waits["hash"]})
        await asking
    assert toolshed.steps == IN_ORDER, "whatever the order of the decisions was"


@pytest.mark.parametrize("ended", ["failed", "refused"])
async def test_a_call_behind_a_failed_one_runs(upstream: Upstream, ended: str) -> None:
    mail = Call("send_mail", {"to": "a@b.c", "text": "hi"})
    upstream.script("m", [Reply(calls=[mail, *steps("a")]), Reply(text="done")])
    options: dict[str, Any] = {"require_approval": {"always": ["send_mail"]}, "approvals": {"timeout_seconds": 0.05}}
    async with served(upstream, "send_mail", "step", **(options if ended == "refused" else {})) as url:
        await post(url, "chat")
    assert toolshed.steps == ["+a", "-a"]


# One call a turn ------------------------------------------------------------------------------------------------------

OURS, THEIRS = "step", "lookup"
"""Our tool, and the client's."""


class Asking:
    """A client of one API with a tool of its own, that wants one call a turn."""

    def __init__(self, url: str, api: str, *, stream: bool) -> None:
        self._url, self._api, self._stream = url, api, stream
        self._history: list[Any] = []

    async def ask(self) -> list[str]:
        """Ask, and return the names of the calls that the client gets. It answers them in its next request."""
        if self._api == "chat":
            return await self._chat()
        if self._api == "responses":
            return await self._responses()
        return await self._messages()

    async def _chat(self) -> list[str]:
        self._history = self._history or [{"role": "user", "content": "go"}]
        function = {"name": THEIRS, "parameters": {"type": "object"}}
        async with openai_client(self._url) as client:
            answer = await (streamed if self._stream else whole)(
                client,
                model="m",
                messages=self._history,
                tools=[{"type": "function", "function": function}],
                parallel_tool_calls=False,
            )
        message = answer.choices[0].message
        calls = message.tool_calls or []
        self._history.append(message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}))
        self._history += [{"role": "tool", "tool_call_id": call.id, "content": "a bird"} for call in calls]
        return [call.function.name for call in calls]  # type: ignore[union-attr]

    async def _responses(self) -> list[str]:
        self._history = self._history or [{"role": "user", "content": "go"}]
        async with openai_client(self._url) as client:
            answer = await responded(
                client,
                stream=self._stream,
                model="m",
                input=self._history,
                tools=[{"type": "function", "name": THEIRS, "parameters": {"type": "object"}}],
                parallel_tool_calls=False,
            )
        calls = [item for item in answer.output if item.type == "function_call"]
        self._history += [item.to_dict(mode="json") for item in answer.output]
        self._history += [
            {"type": "function_call_output", "call_id": call.call_id, "output": "a bird"} for call in calls
        ]
        return [call.name for call in calls]

    async def _messages(self) -> list[str]:
        self._history = self._history or [{"role": "user", "content": "go"}]
        async with http_client(self._url) as http:
            message = await MessagesClient(http).ask(
                stream=self._stream,
                messages=self._history,
                tools=[{"name": THEIRS, "input_schema": {"type": "object"}}],
                tool_choice={"type": "auto", "disable_parallel_tool_use": True},
            )
        calls = calls_of(message)
        self._history.append({"role": "assistant", "content": message["content"]})
        results = [{"type": "tool_result", "tool_use_id": call["id"], "content": "a bird"} for call in calls]
        self._history.append({"role": "user", "content": results})
        return [call["name"] for call in calls]


WAYS = pytest.mark.parametrize("way", ["native", "hermes"])


def turn(way: str, *calls: Call) -> Reply:
    if way == "native":
        return Reply(calls=list(calls))
    return Reply(text="\n".join(tag_call(call.name, **dict(call.arguments)) for call in calls))  # type: ignore[arg-type]


def told(upstream: Upstream) -> str:
    """All that the model was sent last, as text."""
    return json.dumps(upstream.requests[-1].messages)


OUR_CALL = Call(OURS, {"label": "a"}, id="call_ours")
OUR_SECOND = Call(OURS, {"label": "b"}, id="call_ours2")
THEIR_CALL = Call(THEIRS, {"word": "crane"}, id="call_theirs")
THEIR_SECOND = Call(THEIRS, {"word": "heron"}, id="call_theirs2")


@BOTH
@APIS
@WAYS
async def test_of_our_calls_only_the_first_runs(upstream: Upstream, api: str, stream: bool, way: str) -> None:
    upstream.script("m", [turn(way, OUR_CALL, OUR_SECOND), Reply(text="done")])
    async with served(upstream, "step", entry={"tool_calling": way}) as url:
        assert await Asking(url, api, stream=stream).ask() == []
    assert toolshed.steps == ["+a", "-a"]
    assert told(upstream).count("one at a time") == 1


@BOTH
@APIS
@WAYS
async def test_if_ours_is_first_it_runs_and_the_clients_are_not_handed_out(
    upstream: Upstream, api: str, stream: bool, way: str
) -> None:
    upstream.script("m", [turn(way, OUR_CALL, THEIR_CALL, THEIR_SECOND), turn(way, THEIR_CALL), Reply(text="done")])
    async with served(upstream, "step", entry={"tool_calling": way}) as url:
        client = Asking(url, api, stream=stream)
        assert await client.ask() == [THEIRS], "those of the second turn"
        assert await client.ask() == []
    assert toolshed.steps == ["+a", "-a"]
    assert len(upstream.requests) == 3
    assert told(upstream).count("one at a time") == 2, "they stay answered when the client returns"
    assert told(upstream).count("a bird") == 1


@BOTH
@APIS
@WAYS
async def test_if_the_clients_is_first_it_alone_is_handed_out_and_ours_are_answered(
    upstream: Upstream, api: str, stream: bool, way: str
) -> None:
    upstream.script("m", [turn(way, THEIR_CALL, OUR_CALL, THEIR_SECOND), turn(way, OUR_CALL), Reply(text="done")])
    async with served(upstream, "step", entry={"tool_calling": way}) as url:
        client = Asking(url, api, stream=stream)
        assert await client.ask() == [THEIRS]
        assert toolshed.steps == []
        assert await client.ask() == []
    assert toolshed.steps == ["+a", "-a"], "only in the second turn"
    assert told(upstream).count("one at a time") == 2
    assert told(upstream).count("a bird") == 1


@BOTH
async def test_the_model_reads_every_call_and_an_answer_to_each(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [turn("native", THEIR_CALL, OUR_CALL, THEIR_SECOND), Reply(text="done")])
    async with served(upstream, "step") as url:
        client = Asking(url, "chat", stream=stream)
        await client.ask()
        await client.ask()
    _, assistant, *results = upstream.requests[-1].messages
    assert [call["id"] for call in assistant["tool_calls"]] == ["call_theirs", "call_ours", "call_theirs2"]
    assert [result["tool_call_id"] for result in results] == ["call_theirs", "call_ours", "call_theirs2"]
    assert results[0]["content"] == "a bird"
    assert all("one at a time" in result["content"] for result in results[1:])


async def test_a_whole_call_behind_a_broken_one_is_the_first(upstream: Upstream) -> None:
    broken = Call(OURS, '{"label": ', id="call_broken")
    upstream.script("m", [Reply(calls=[broken, OUR_CALL, OUR_SECOND]), Reply(text="done")])
    async with served(upstream, "step") as url:
        await post(url, "chat", parallel_tool_calls=False)
    assert toolshed.steps == ["+a", "-a"]


async def test_diagnostics_tell_which_calls_were_not_run_and_why(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[OUR_CALL, OUR_SECOND]), Reply(text="done")])
    async with served(upstream, "step") as url:
        answer = (await post(url, "chat", parallel_tool_calls=False)).json()
    first, second = answer["x_callgate"]["turns"][0]["calls"]
    assert (first["id"], first["outcome"]) == ("call_ours", "returned")
    assert (second["id"], second["outcome"], second["reason"]) == ("call_ours2", "not_run", "one_at_a_time")


@BOTH
async def test_one_call_a_turn_holds_in_each_of_several_choices_and_in_a_stored_run(
    upstream: Upstream, stream: bool, tmp_path: Path
) -> None:
    upstream.script("m", lambda request: Reply(text="done") if request.turn else Reply(calls=[OUR_CALL, OUR_SECOND]))
    async with served(upstream, "step", data_dir=str(tmp_path)) as url:
        await post(url, "chat", stream=stream, n=2, parallel_tool_calls=False)
        await post(url, "chat", stream=stream, parallel_tool_calls=False, headers={"idempotency-key": "k"})
    assert (toolshed.steps.count("+a"), toolshed.steps.count("+b")) == (3, 0)
