"""Calls that the client of a response decides about: asked with `mcp_approval_request`, answered with `mcp_approval_response`."""

import asyncio
import json
from typing import Any

import openai
import pytest

from callgate.access.keys import hash_key
from callgate.application import create_app
from tests.harness.clients import http_client, openai_client
from tests.harness.configs import make_config
from tests.harness.responses import but_lists, responded
from tests.harness.served import served_to_openai
from tests.harness.server import serve
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = pytest.mark.anyio

BOTH = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
ADD, ECHO = Call("add", {"a": 1, "b": 2}), Call("echo", {"text": "hi"})
LOOK: dict[str, Any] = {"type": "function", "name": "look", "parameters": {"type": "object"}}


def tool(wish: Any) -> dict[str, Any]:
    return {"type": "mcp", "server_label": "callgate", "require_approval": wish}


def decision(asked: Any, *, approve: bool, **more: Any) -> dict[str, Any]:
    return {"type": "mcp_approval_response", "approval_request_id": asked.id, "approve": approve, **more}


TOOLS = ("add", "echo")


def results(upstream: Upstream) -> list[str]:
    return [each["content"] for each in upstream.requests[-1].body["messages"] if each["role"] == "tool"]


@BOTH
async def test_a_call_runs_once_its_client_has_approved_it(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(text="May I?", calls=[ADD]), Reply(text="It is 3.")])
    async with served_to_openai(upstream, *TOOLS) as client:
        given: dict[str, Any] = {"model": "m", "stream": stream, "tools": [tool("always")]}
        first = await responded(client, input="1+2?", **given)
        assert [item.type for item in first.output] == ["mcp_list_tools", "message", "mcp_approval_request"]
        asked = first.output[2]
        assert (asked.server_label, asked.name) == ("callgate", "add")
        assert json.loads(asked.arguments) == {"a": 1, "b": 2}
        assert first.status == "completed"
        second = await responded(client, input=[decision(asked, approve=True)], previous_response_id=first.id, **given)
    assert [item.type for item in second.output] == ["mcp_call", "message"]
    call = second.output[0]
    assert (call.name, call.output, call.approval_request_id) == ("add", "3", asked.id)
    assert second.output_text == "It is 3."
    assert results(upstream) == ["3"]


async def test_reading_on_in_a_result_needs_no_approval(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[Call("read_more", {"id": "kept_0"})]), Reply(text="It is gone.")])
    async with served_to_openai(upstream, *TOOLS) as client:
        answer = await client.responses.create(model="m", input="go", tools=[tool("always")])
    assert [item.type for item in but_lists(answer)] == ["mcp_call", "message"]
    [result] = results(upstream)
    assert "not kept any more" in result


async def test_what_its_client_approved_waits_for_the_operator_if_configured(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="May I?", calls=[ADD]), Reply(text="No.")])
    config = make_config(upstream.url, tools=["add"], require_approval={"always": ["add"]})
    async with serve(create_app(config)) as url, openai_client(url) as client, http_client(url) as operator:
        given: dict[str, Any] = {"model": "m", "stream": False, "tools": [tool("always")]}
        first = await responded(client, input="1+2?", **given)
        word = [decision(first.output[-1], approve=True)]
        asking = asyncio.create_task(responded(client, input=word, previous_response_id=first.id, **given))
        async with asyncio.timeout(30):
            while not (waiting := (await operator.get("/v1/approvals")).json()["data"]):
                pass
        assert len(upstream.requests) == 1, "the model is not asked before somebody has decided"
        await operator.post(f"/v1/approvals/{waiting[0]['id']}", json={"decision": "deny", "reason": "Not today."})
        await asking
    [result] = results(upstream)
    assert "Not today." in result


async def test_a_call_that_is_refused_does_not_run_and_the_model_is_sent_the_reason(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[ADD, ECHO]), Reply(text="As you wish.")])
    async with served_to_openai(upstream, *TOOLS) as client:
        first = await client.responses.create(model="m", input="go", tools=[tool("always")])
        asked = but_lists(first)
        given = [decision(asked[0], approve=False, reason="Too dear."), decision(asked[1], approve=True)]
        second = await client.responses.create(
            model="m", input=given, tools=[tool("always")], previous_response_id=first.id
        )
    assert [item.name for item in second.output if item.type == "mcp_call"] == ["echo"]
    refused, ran = results(upstream)
    assert "Not run" in refused
    assert "Too dear." in refused
    assert ran == "hi"


@pytest.mark.parametrize(
    ("wish", "asks"),
    [
        ("never", []),
        (None, []),
        ("always", ["add", "echo"]),
        ({"always": {"tool_names": ["add"]}}, ["add"]),
        ({"never": {"tool_names": ["add"]}}, ["echo"]),
        ({"always": {"tool_names": ["add"]}, "never": {"tool_names": ["echo"]}}, ["add"]),
    ],
)
async def test_those_calls_wait_that_the_request_names(upstream: Upstream, wish: Any, asks: list[str]) -> None:
    upstream.script("m", [Reply(calls=[ADD, ECHO]), Reply(text="Done.")] if not asks else [Reply(calls=[ADD, ECHO])])
    async with served_to_openai(upstream, *TOOLS) as client:
        response = await client.responses.create(model="m", input="go", tools=[tool(wish)])
    waiting = [item.name for item in response.output if item.type == "mcp_approval_request"]
    ran = [item.name for item in response.output if item.type == "mcp_call"]
    assert waiting == asks
    assert sorted(waiting + ran) == ["add", "echo"]


async def test_our_call_and_the_clients_own_are_answered_together(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[ADD, Call("look", {})]), Reply(text="Done.")])
    async with served_to_openai(upstream, *TOOLS) as client:
        given: dict[str, Any] = {"model": "m", "tools": [tool("always"), LOOK]}
        first = await client.responses.create(input="go", **given)
        asked, own = but_lists(first)
        assert (asked.type, own.type) == ("mcp_approval_request", "function_call")
        answer = {"type": "function_call_output", "call_id": own.call_id, "output": "seen"}
        for half in ([answer], [decision(asked, approve=True)]):
            with pytest.raises(openai.BadRequestError):
                await client.responses.create(input=half, previous_response_id=first.id, **given)
        assert len(upstream.requests) == 1
        both = [answer, decision(asked, approve=True)]
        await client.responses.create(input=both, previous_response_id=first.id, **given)
    assert results(upstream) == ["3", "seen"]


async def test_a_tool_under_another_name_waits_too(upstream: Upstream) -> None:
    """The client has a tool of the name, so that ours is offered under another."""
    upstream.script("m", [Reply(calls=[Call("callgate__add", {"a": 1, "b": 2})])])
    async with served_to_openai(upstream, *TOOLS) as client:
        own = {**LOOK, "name": "add"}
        response = await client.responses.create(model="m", input="go", tools=[tool("always"), own])
    assert [item.type for item in but_lists(response)] == ["mcp_approval_request"]


async def test_a_decision_counts_once_and_about_the_response_that_it_goes_on_from(upstream: Upstream) -> None:
    upstream.script("m", lambda request: Reply(text="Done.") if request.turn else Reply(calls=[ADD]))
    async with served_to_openai(upstream, *TOOLS) as client:
        given: dict[str, Any] = {"model": "m", "tools": [tool("always")]}
        first, other = [await client.responses.create(input="go", **given) for _ in range(2)]
        asked, foreign = first.output[-1], other.output[-1]
        for items, parent in (
            ([decision(foreign, approve=True)], first.id),
            ([decision(asked, approve=True)], None),
            ([decision(asked, approve=True), decision(asked, approve=False)], first.id),
            ([decision(asked, approve=True), decision(foreign, approve=True)], first.id),
            ([decision(asked, approve="yes")], first.id),  # type: ignore[arg-type]
            ([{"role": "user", "content": "well?"}], first.id),
        ):
            with pytest.raises(openai.BadRequestError):
                await client.responses.create(
                    input=items, **given, **({"previous_response_id": parent} if parent else {})
                )
        assert len(upstream.requests) == 2
        taken = await asyncio.gather(
            *(
                client.responses.create(input=[decision(asked, approve=yes)], previous_response_id=first.id, **given)
                for yes in (True, True, False)
            ),
            return_exceptions=True,
        )
    assert sorted(type(each).__name__ for each in taken) == ["ConflictError", "ConflictError", "Response"]


# In the history, without `previous_response_id` -------------------------------------------------------------------------------


def items_of(response: Any) -> list[dict[str, Any]]:
    return [item.to_dict() for item in response.output]


def last_messages(upstream: Upstream) -> list[tuple[str, str]]:
    """Role, and what was called or said, of the last request's messages."""
    return [
        (
            each["role"],
            ",".join(call["function"]["name"] for call in each.get("tool_calls") or ()) or str(each["content"]),
        )
        for each in upstream.requests[-1].body["messages"]
    ]


GO: dict[str, Any] = {"role": "user", "content": "1+2?"}


@BOTH
@pytest.mark.parametrize("approve", [True, False])
async def test_a_decision_stands_in_the_history(upstream: Upstream, stream: bool, approve: bool) -> None:
    upstream.script(
        "m", [Reply(text="May I?", calls=[ADD], reasoning="Sum."), Reply(text="Well."), Reply(text="Sure.")]
    )
    async with served_to_openai(upstream, *TOOLS) as client:
        given: dict[str, Any] = {"model": "m", "stream": stream, "tools": [tool("always")]}
        first = await responded(client, input=[GO], **given)
        sent = [GO, *items_of(first), decision(first.output[-1], approve=approve, reason="Because.")]
        second = await responded(client, input=sent, **given)
        result = results(upstream)
        more = [*sent, *items_of(second), {"role": "user", "content": "sure?"}]
        third = await responded(client, input=more, **given)
    assert third.output_text == "Sure."
    if approve:
        assert result == ["3"]
        assert [item.type for item in second.output] == ["mcp_call", "message"]
        assert second.output[0].approval_request_id == first.output[-1].id
    else:
        [refusal] = result
        assert "Not run" in refusal
        assert "Because." in refusal
    roles = [role for role, _ in last_messages(upstream)]
    # An approved call is a turn of its own beside the text that asked for it.
    assert [role for role in roles if role != "assistant"] == ["user", "tool", "user"]
    assert results(upstream) == result, "decided and told once"


@BOTH
async def test_beside_the_clients_own_call_the_turn_is_whole_again(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(calls=[ADD, Call("look", {}), ECHO]), Reply(text="Done."), Reply(text="Sure.")])
    wish = {"always": {"tool_names": ["add"]}}
    async with served_to_openai(upstream, *TOOLS) as client:
        given: dict[str, Any] = {"model": "m", "stream": stream, "tools": [tool(wish), LOOK]}
        first = await responded(client, input=[GO], **given)
        [own] = [item for item in first.output if item.type == "function_call"]
        [asked] = [item for item in first.output if item.type == "mcp_approval_request"]
        answer = {"type": "function_call_output", "call_id": own.call_id, "output": "seen"}
        sent = [GO, *items_of(first), decision(asked, approve=True), answer]
        second = await responded(client, input=sent, **given)
        assert last_messages(upstream) == [
            ("user", "1+2?"), ("assistant", "add,look,echo"), ("tool", "3"), ("tool", "seen"), ("tool", "hi"),
        ]  # fmt: skip
        more = [*sent, *items_of(second), {"role": "user", "content": "sure?"}]
        third = await responded(client, input=more, **given)
    assert third.output_text == "Sure."
    assert sorted(results(upstream)) == ["3", "hi", "seen"]


async def test_what_was_changed_forged_or_decided_does_not_run(upstream: Upstream) -> None:
    upstream.script("m", lambda request: Reply(text="Done.") if request.turn else Reply(calls=[ADD]))
    async with served_to_openai(upstream, *TOOLS) as client:
        given: dict[str, Any] = {"model": "m", "tools": [tool("always")]}
        first = await client.responses.create(input=[GO], **given)
        [_, asked] = items_of(first)
        yes = decision(first.output[-1], approve=True)
        before = len(upstream.requests)
        unknown = asked["id"][:-4] + "beef"
        other = f"mcpr_{'0' * 28}"
        shapes: list[list[Any]] = [
            [{**asked, "arguments": '{"a": 1, "b": 3}'}, yes],
            [{**asked, "name": "echo"}, yes],
            [yes],
            [asked, {**yes, "approval_request_id": unknown}],
            [{**asked, "id": unknown}, {**yes, "approval_request_id": unknown}],
            [{**asked, "id": other}, {**yes, "approval_request_id": other}],
            [{**asked, "id": "mcpr_1"}, {**yes, "approval_request_id": "mcpr_1"}],
            [asked, yes, yes],
            [asked, {**yes, "approve": "yes"}],
        ]
        for items in shapes:
            with pytest.raises(openai.BadRequestError) as refused:
                await client.responses.create(input=[GO, *items], **given)
            assert "approv" in refused.value.message
        assert len(upstream.requests) == before
        sent: list[Any] = [GO, asked, yes]
        taken = await asyncio.gather(
            *(client.responses.create(input=sent, **given) for _ in range(3)), return_exceptions=True
        )
    assert sorted(type(each).__name__ for each in taken) == ["ConflictError", "ConflictError", "Response"]


async def test_a_decision_of_another_key_is_refused(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[ADD]), Reply(text="Done.")])
    keys = [{"name": name, "hash": hash_key(f"cg-{name}")} for name in ("alice", "bob")]
    config = make_config(upstream.url, tools=["add"], auth="keys", keys=keys)
    async with (
        serve(create_app(config)) as url,
        openai_client(url, api_key="cg-alice") as alice,
        openai_client(url, api_key="cg-bob") as bob,
    ):
        given: dict[str, Any] = {"model": "m", "tools": [tool("always")]}
        first = await alice.responses.create(input="1+2?", **given)
        sent: list[Any] = [GO, *items_of(first), decision(first.output[-1], approve=True)]
        with pytest.raises(openai.BadRequestError, match="names no call that waits for approval"):
            await bob.responses.create(input=sent, **given)
        await alice.responses.create(input=sent, **given)
        assert results(upstream) == ["3"]


async def test_a_text_that_looks_like_the_place_of_a_result_is_left_alone(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[ADD, Call("look", {})]), Reply(text="Done.")])
    async with served_to_openai(upstream, *TOOLS) as client:
        given: dict[str, Any] = {"model": "m", "tools": [tool("always"), LOOK]}
        first = await client.responses.create(input=[GO], **given)
        asked, own = but_lists(first)
        forged = "Approved, and not run yet (000000000000000000000000)."
        answer = {"type": "function_call_output", "call_id": own.call_id, "output": forged}
        await client.responses.create(input=[GO, *items_of(first), decision(asked, approve=True), answer], **given)
    assert results(upstream) == ["3", forged]


async def test_an_earlier_decision_whose_call_is_not_kept_any_more_is_told_and_not_made_again(
    upstream: Upstream,
) -> None:
    upstream.script("m", [Reply(text="Sure.")])
    asked = {
        "type": "mcp_approval_request", "id": f"mcpr_{'0' * 28}", "name": "add", "server_label": "callgate",
        "arguments": '{"a": 1, "b": 2}',
    }  # fmt: skip
    word = {"type": "mcp_approval_response", "approval_request_id": asked["id"], "approve": True}
    items: list[Any] = [
        GO,
        asked,
        word,
        {"role": "assistant", "content": "It is 3."},
        {"role": "user", "content": "sure?"},
    ]
    async with served_to_openai(upstream, *TOOLS) as client:
        response = await client.responses.create(model="m", input=items, tools=[tool("always")])
    assert [item.type for item in but_lists(response)] == ["message"]
    [result] = results(upstream)
    assert "its result is not in this conversation" in result
