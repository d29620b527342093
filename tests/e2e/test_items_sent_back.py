"""Items of a response that a client sends back in another shape than it got them in: what ran stands in the history once, where it
ran."""

from typing import Any

import openai
import pytest

from tests.harness.responses import responded
from tests.harness.served import served_to_openai
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = pytest.mark.anyio

BOTH = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
ADD = Call("add", {"a": 1, "b": 2})
LOOK: dict[str, Any] = {"type": "function", "name": "look", "parameters": {"type": "object"}}
GO: dict[str, Any] = {"role": "user", "content": "go"}


TOOLS = ("add",)


def as_functions(items: list[dict[str, Any]], *, named: bool = False) -> list[dict[str, Any]]:
    """The items as some clients send them back: our calls as calls of the client's, with their outputs."""
    sent: list[dict[str, Any]] = []
    outputs: list[dict[str, Any]] = []
    for item in items:
        if item["type"] != "mcp_call":
            sent.append(item)
            continue
        name = item["name"] if named else "unknown_tool"
        call = {"type": "function_call", "call_id": item["id"], "name": name, "arguments": item["arguments"]}
        sent.append(call)
        outputs.append({"type": "function_call_output", "call_id": item["id"], "output": item["output"]})
    return [*sent, *outputs]


def answers_to(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The client's answers to its own calls."""
    return [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "seen"}
        for item in items
        if item["type"] == "function_call" and not item["call_id"].startswith("mcp_")
    ]


def dumped(response: Any) -> list[dict[str, Any]]:
    return [item.to_dict() for item in response.output]


def called(upstream: Upstream) -> list[tuple[str, str]]:
    """Role and what was called or answered, of the last request's messages."""
    return [
        (
            message["role"],
            ",".join(call["function"]["name"] for call in message.get("tool_calls") or ()) or message["content"],
        )
        for message in upstream.requests[-1].body["messages"]
    ]


@BOTH
@pytest.mark.parametrize("store", [True, False], ids=["stored", "not stored"])
async def test_a_house_call_sent_back_as_a_function_is_that_call(upstream: Upstream, stream: bool, store: bool) -> None:
    upstream.script("m", [Reply(calls=[ADD]), Reply(text="It is 3."), Reply(text="Sure.")])
    async with served_to_openai(upstream, *TOOLS) as client:
        first = await responded(client, stream=stream, model="m", input="go", tools=[LOOK], store=store)
        sent = [GO, *as_functions(dumped(first), named=not store), {"role": "user", "content": "sure?"}]
        second = await responded(client, stream=stream, model="m", input=sent, store=store)
    assert second.output_text == "Sure."
    assert called(upstream) == [
        ("user", "go"), ("assistant", "add"), ("tool", "3"), ("assistant", "It is 3."), ("user", "sure?"),
    ]  # fmt: skip


@BOTH
@pytest.mark.parametrize("store", [True, False], ids=["stored", "not stored"])
@pytest.mark.parametrize("order", ["first", "last", "between"])
async def test_a_mixed_turn_sent_back_as_functions_is_restored_once(
    upstream: Upstream, stream: bool, store: bool, order: str
) -> None:
    upstream.script("m", [Reply(calls=[ADD, Call("look", {})]), Reply(text="Done.")])
    async with served_to_openai(upstream, *TOOLS) as client:
        first = await responded(client, stream=stream, model="m", input="go", tools=[LOOK], store=store)
        items = dumped(first)
        sent = as_functions(items, named=not store)
        outputs = [item for item in sent if item["type"].endswith("_output")]
        calls = [item for item in sent if not item["type"].endswith("_output")]
        own = answers_to(items)
        orders = {
            "first": [*calls, *outputs, *own],
            "last": [*calls, *own, *outputs],
            "between": [calls[0], *outputs, *calls[1:], *own],
        }
        second = await responded(
            client, stream=stream, model="m", input=[GO, *orders[order]], tools=[LOOK], store=store
        )
    assert second.output_text == "Done."
    assert called(upstream) == [("user", "go"), ("assistant", "add,look"), ("tool", "3"), ("tool", "seen")]


async def test_an_output_beside_the_item_or_its_reference_says_nothing_new(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[ADD]), Reply(text="It is 3."), *[Reply(text="Sure.")] * 3])
    async with served_to_openai(upstream, *TOOLS) as client:
        first = await client.responses.create(model="m", input="go", tools=[LOOK])
        item, said = dumped(first)
        output = {"type": "function_call_output", "call_id": item["id"], "output": "4"}
        reference = {"type": "item_reference", "id": item["id"]}
        for shape in ([item, output], [reference, output], [output]):
            await client.responses.create(model="m", input=[GO, *shape, said, {"role": "user", "content": "sure?"}])
            assert called(upstream)[1:3] == [("assistant", "add"), ("tool", "3")], shape
            assert len(called(upstream)) == 5


async def test_an_output_of_a_call_that_nobody_knows_is_refused(upstream: Upstream) -> None:
    output = {"type": "function_call_output", "call_id": "mcp_" + "0" * 28, "output": "4"}
    async with served_to_openai(upstream, *TOOLS) as client:
        with pytest.raises(openai.BadRequestError, match="No tool call found"):
            await client.responses.create(model="m", input=[GO, output])
    assert not upstream.requests


async def test_behind_a_previous_response_what_it_ran_is_not_said_again(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[ADD, Call("look", {})]), Reply(text="Done.")])
    async with served_to_openai(upstream, *TOOLS) as client:
        first = await client.responses.create(model="m", input="go", tools=[LOOK])
        sent = [item for item in as_functions(dumped(first)) if item["type"].endswith("_output")]
        sent = [*sent, *answers_to(dumped(first))]
        await client.responses.create(model="m", input=sent, tools=[LOOK], previous_response_id=first.id)
    assert called(upstream) == [("user", "go"), ("assistant", "add,look"), ("tool", "3"), ("tool", "seen")]


@BOTH
async def test_the_same_reference_twice_counts_once(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(calls=[ADD, Call("look", {})]), Reply(text="Done."), Reply(text="Sure.")])
    async with served_to_openai(upstream, *TOOLS) as client:
        first = await responded(client, stream=stream, model="m", input="go", tools=[LOOK])
        items = dumped(first)
        references = [{"type": "item_reference", "id": item["id"]} for item in items]
        sent = [GO, references[0], *references, items[0], *answers_to(items)]
        second = await responded(client, stream=stream, model="m", input=sent, tools=[LOOK])
        more = [*sent, *dumped(second), *references, {"role": "user", "content": "sure?"}]
        await responded(client, stream=stream, model="m", input=more, tools=[LOOK])
    assert called(upstream) == [
        ("user", "go"), ("assistant", "add,look"), ("tool", "3"), ("tool", "seen"),
        ("assistant", "Done."), ("user", "sure?"),
    ]  # fmt: skip


@BOTH
@pytest.mark.parametrize("shape", ["items", "functions", "references"])
async def test_the_same_call_made_in_two_turns_is_restored_in_each(
    upstream: Upstream, stream: bool, shape: str
) -> None:
    upstream.script(
        "m",
        [
            Reply(calls=[ADD]),
            Reply(text="It is 3."),
            Reply(calls=[ADD, Call("look", {})]),
            Reply(calls=[ADD]),
            Reply(calls=[Call("look", {"again": True})]),
            Reply(text="Done."),
        ],
    )

    def back(response: Any) -> list[dict[str, Any]]:
        items = dumped(response)
        if shape == "references":
            return [{"type": "item_reference", "id": item["id"]} for item in items]
        return as_functions(items) if shape == "functions" else items

    async with served_to_openai(upstream, *TOOLS) as client:
        given: dict[str, Any] = {"stream": stream, "model": "m", "tools": [LOOK]}
        first = await responded(client, input=[GO], **given)
        sent = [GO, *back(first), {"role": "user", "content": "and again"}]
        for _ in range(2):
            turn = await responded(client, input=sent, **given)
            sent = [*sent, *back(turn), *answers_to(dumped(turn))]
        last = await responded(client, input=sent, **given)
    assert last.output_text == "Done."
    assert called(upstream) == [
        ("user", "go"), ("assistant", "add"), ("tool", "3"), ("assistant", "It is 3."),
        ("user", "and again"), ("assistant", "add,look"), ("tool", "3"), ("tool", "seen"),
        ("assistant", "add"), ("tool", "3"), ("assistant", "look"), ("tool", "seen"),
    ]  # fmt: skip
