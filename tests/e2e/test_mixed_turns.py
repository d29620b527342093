"""Turns that call server-side tools and the client's: each side runs its own, the client sees only its own, and the
model reads the history it would have read if all tools had one owner."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from openai import AsyncOpenAI

from callgate.access.keys import hash_key
from callgate.application import create_app
from tests.harness import toolshed
from tests.harness.clients import openai_client, streamed, whole
from tests.harness.configs import make_config
from tests.harness.needs import needs
from tests.harness.redis import redis_server
from tests.harness.served import served_to_openai
from tests.harness.server import serve
from tests.scripted_upstream import Call, Reply, Upstream, by_turn

pytestmark = pytest.mark.anyio

BOTH = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
QUESTION = {"role": "user", "content": "Go."}


def client_tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}


TOOLS = ("get_time", "add")


async def ask(client: AsyncOpenAI, stream: bool, messages: Sequence[Any], **more: Any) -> Any:
    answer = await (streamed if stream else whole)(
        client, model="m", messages=messages, tools=[client_tool("get_weather"), client_tool("echo")], **more
    )
    return answer.choices[0]


def as_clients_write_it(message: Any) -> dict[str, Any]:
    """The least that clients give back of an assistant message with calls."""
    return {
        "role": "assistant",
        "content": message.content or None,
        "tool_calls": [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function.name, "arguments": call.function.arguments},
            }
            for call in message.tool_calls
        ],
    }


async def run_own(call: Any) -> dict[str, Any]:
    tool: Any = {"get_weather": toolshed.get_weather, "echo": toolshed.echo}[call.function.name]
    return {"role": "tool", "tool_call_id": call.id, "content": await tool(**json.loads(call.function.arguments))}


async def chat(client: AsyncOpenAI, stream: bool, messages: list[Any] | None = None) -> tuple[list[Any], str]:
    """A client's whole loop over its own tools: its history, and the answer."""
    messages = messages or [QUESTION]
    for _ in range(20):
        choice = await ask(client, stream, messages)
        if choice.finish_reason != "tool_calls":
            return messages, choice.message.content
        messages.append(as_clients_write_it(choice.message))
        messages += [await run_own(call) for call in choice.message.tool_calls]
    raise AssertionError("the loop did not end")


def histories(provider: Upstream, model: str = "m") -> list[bytes]:
    """What the model read, as the bytes it came as."""
    read = msgspec.json.Decoder(dict[str, msgspec.Raw])
    return [bytes(read.decode(request.raw)["messages"]) for request in provider.requests.of(model)]


@BOTH
async def test_both_sides_run_their_own_and_the_model_reads_all_of_it(upstream: Upstream, stream: bool) -> None:
    upstream.script(
        "m",
        [
            Reply(
                text="Let me see.",
                calls=[Call("get_time", id="call_h"), Call("get_weather", {"city": "Oslo"}, id="call_c")],
                extras={"reasoning_content": "two things"},
            ),
            Reply(text="Cold at noon."),
        ],
    )
    async with served_to_openai(upstream, *TOOLS) as client:
        choice = await ask(client, stream, [QUESTION])
        assert [call.id for call in choice.message.tool_calls] == ["call_c"]
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "Let me see."
        own = {"role": "tool", "tool_call_id": "call_c", "content": "4 C in Oslo"}
        choice = await ask(client, stream, [QUESTION, as_clients_write_it(choice.message), own])
        assert choice.message.content == "Cold at noon."
    question, assistant, *results = upstream.requests[1].messages
    assert question == QUESTION
    assert assistant["reasoning_content"] == "two things"
    assert [call["id"] for call in assistant["tool_calls"]] == ["call_h", "call_c"]
    assert results == [{"role": "tool", "tool_call_id": "call_h", "content": "12:00"}, own]


SIX_ROUNDS = [
    Reply(reasoning="the time first", calls=[Call("get_time", id="c1")]),
    Reply(
        text="Both.",
        reasoning="now both",
        extras={"reasoning_details": [{"type": "reasoning.encrypted", "data": "AAAA"}]},
        calls=[
            Call("add", {"a": 1, "b": 2}, id="c2", extras={"extra_content": {"google": {"thought_signature": "s1"}}}),
            Call(
                "get_weather",
                {"city": "São Paulo"},
                id="c3",
                extras={"extra_content": {"google": {"thought_signature": "s2"}}},
            ),
            Call("add", '{"a": 1, "b"', id="c4"),
        ],
    ),
    Reply(calls=[Call("get_weather", {"city": "Oslo"}, id="c5"), Call("echo", {"text": '"quoted" \\ 東京'}, id="c6")]),
    Reply(text="Once more.", calls=[Call("add", {"a": 20, "b": 22}, id="c7")]),
    Reply(
        calls=[
            Call("echo", {"text": "before"}, id="c8"),
            Call("get_time", id="c9"),
            Call("add", {"a": 1}, id="c10"),
            Call("echo", {"text": "after"}, id="c11"),
        ]
    ),
    Reply(reasoning="last", calls=[Call("get_weather", {"city": "Lisbon"}, id="c12"), Call("get_time", id="c13")]),
    Reply(text="All done."),
]


@BOTH
async def test_six_rounds_give_the_model_byte_for_byte_the_history_of_one_owner(
    upstream: Upstream, stream: bool
) -> None:
    upstream.script("m", SIX_ROUNDS)
    upstream.script("owner", SIX_ROUNDS)
    async with served_to_openai(upstream, *TOOLS) as client:
        messages, answer = await chat(client, stream)
    config = make_config(upstream.url, models=["owner"], tools=["get_weather", "echo", "get_time", "add"])
    async with serve(create_app(config)) as url, openai_client(url) as client:
        owned = await (streamed if stream else whole)(client, model="owner", messages=[QUESTION])
    assert answer == "All done."
    assert (owned.choices[0].message.content or "").endswith("All done.")
    assert histories(upstream, "m") == histories(upstream, "owner")
    assert len(histories(upstream, "m")) == len(SIX_ROUNDS)
    shown = [call["id"] for message in messages for call in message.get("tool_calls", ())]
    assert shown == ["c3", "c5", "c6", "c8", "c11", "c12"]


@BOTH
async def test_hidden_turns_before_a_clients_call_are_put_back_too(upstream: Upstream, stream: bool) -> None:
    upstream.script(
        "m",
        [
            Reply(text="First the time.", calls=[Call("get_time", id="h1")]),
            Reply(text="Now the weather.", calls=[Call("get_weather", {"city": "Oslo"}, id="c1")]),
            Reply(text="Done."),
        ],
    )
    async with served_to_openai(upstream, *TOOLS) as client:
        messages, answer = await chat(client, stream)
    assert messages[1]["content"] == "First the time.\n\nNow the weather."
    assert answer == "Done."
    said = upstream.requests[2].messages
    assert [(m["role"], m.get("content")) for m in said] == [
        ("user", "Go."),
        ("assistant", "First the time."),
        ("tool", "12:00"),
        ("assistant", "Now the weather."),
        ("tool", "4 C in Oslo"),
    ]


@BOTH
async def test_clients_with_the_same_ids_do_not_meet(upstream: Upstream, stream: bool) -> None:
    """A provider that counts its ids from nought in every chat, and two chats at once."""

    def choose(request: Any) -> Reply:
        who = request.messages[0]["content"]
        if request.turn == 0:
            return Reply(
                calls=[Call("add", {"a": len(who), "b": 0}, id="call_0"), Call("echo", {"text": "x"}, id="call_1")]
            )
        return Reply(text="; ".join(m["content"] for m in request.messages if m["role"] == "tool"))

    upstream.script("m", choose)
    async with served_to_openai(upstream, *TOOLS) as client:
        first = await ask(client, stream, [{"role": "user", "content": "a"}])
        second = await ask(client, stream, [{"role": "user", "content": "four"}])
        assert first.message.tool_calls[0].id == "call_1"
        assert second.message.tool_calls[0].id == "call_1"
        answers = []
        for who, choice in (("four", second), ("a", first), ("four", second)):
            call = choice.message.tool_calls[0]
            own = {"role": "tool", "tool_call_id": call.id, "content": f"own of {who}"}
            messages = [{"role": "user", "content": who}, as_clients_write_it(choice.message), own]
            answers.append((await ask(client, stream, messages)).message.content)
    assert answers == ["4; own of four", "1; own of a", "4; own of four"]
    ids = [call["id"] for request in upstream.requests for m in request.messages for call in m.get("tool_calls", ())]
    assert set(ids) == {"call_0", "call_1"}, "the model knows its own ids only"


@BOTH
async def test_many_clients_at_once_each_get_their_own_back(upstream: Upstream, stream: bool) -> None:
    def choose(request: Any) -> Reply:
        n = int(request.messages[0]["content"])
        if request.turn < 3:
            return Reply(
                calls=[Call("add", {"a": n, "b": request.turn}), Call("echo", {"text": f"{n}.{request.turn}"})]
            )
        return Reply(text=" ".join(m["content"] for m in request.messages if m["role"] == "tool"))

    upstream.script("m", choose)
    async with served_to_openai(upstream, *TOOLS) as client:
        chats = await asyncio.gather(*(chat(client, stream, [{"role": "user", "content": str(n)}]) for n in range(12)))
    for n, (_, answer) in enumerate(chats):
        assert answer == f"{n} {n}.0 {n + 1} {n}.1 {n + 2} {n}.2"


@BOTH
async def test_what_one_caller_keeps_another_cannot_fetch(upstream: Upstream, stream: bool) -> None:
    mixed = Reply(calls=[Call("get_time", id="call_h"), Call("echo", {"text": "x"}, id="call_c")])
    upstream.script("m", [mixed, Reply(text="done"), Reply(text="done")])
    keys = [{"name": name, "hash": hash_key(f"cg-{name}")} for name in ("alice", "bob")]
    config = make_config(upstream.url, tools=["get_time"], auth="keys", keys=keys)
    async with serve(create_app(config)) as url, openai_client(url, api_key="cg-alice") as alice:
        choice = await ask(alice, stream, [QUESTION])
        own = {"role": "tool", "tool_call_id": "call_c", "content": "x"}
        back = [QUESTION, as_clients_write_it(choice.message), own]
        async with openai_client(url, api_key="cg-bob") as bob:
            await ask(bob, stream, back)
        await ask(alice, stream, back)
    assert "12:00" not in json.dumps(upstream.requests[1].body)
    assert "12:00" in json.dumps(upstream.requests[2].body)


@BOTH
@pytest.mark.parametrize("id", ["call_c", "call_0", "call_8x2kd93hfo2l1m", "call_1731956400123"])
@pytest.mark.parametrize("other", [{"user": "bob"}, {"safety_identifier": "bob"}, {}])
async def test_what_one_user_of_a_key_keeps_another_user_of_it_cannot_fetch(
    upstream: Upstream, stream: bool, id: str, other: dict[str, str]
) -> None:
    mixed = Reply(calls=[Call("get_time", id="call_h"), Call("echo", {"text": "x"}, id=id)])
    upstream.script("m", [mixed, Reply(text="done"), Reply(text="done")])
    async with served_to_openai(upstream, "get_time") as client:
        choice = await ask(client, stream, [QUESTION], user="alice")
        own = {"role": "tool", "tool_call_id": choice.message.tool_calls[0].id, "content": "x"}
        message = {name: value for name, value in as_clients_write_it(choice.message).items() if name != "x_callgate"}
        for call in message["tool_calls"]:
            call.pop("x_callgate", None)
        back = [QUESTION, message, own]
        await ask(client, stream, back, **other)
        await ask(client, stream, back, user="alice")
    assert "12:00" not in json.dumps(upstream.requests[1].body)
    assert "12:00" in json.dumps(upstream.requests[2].body)


@BOTH
@pytest.mark.parametrize("id", ["call_0", "call_00000001", "1731956400123"])
async def test_what_one_conversation_keeps_under_a_counted_id_another_cannot_fetch(
    upstream: Upstream, stream: bool, id: str
) -> None:
    """Nobody says who asks, and both conversations end with the same words."""
    mixed = Reply(calls=[Call("get_time", id="call_h"), Call("echo", {"text": "x"}, id=id)])
    upstream.script("m", [mixed, Reply(text="done"), Reply(text="done")])
    earlier = [{"role": "user", "content": "I am Alice."}, {"role": "assistant", "content": "Hello Alice."}]
    yes = {"role": "user", "content": "yes"}
    async with served_to_openai(upstream, "get_time") as client:
        choice = await ask(client, stream, [*earlier, yes])
        message = as_clients_write_it(choice.message)
        for call in message["tool_calls"]:
            call.pop("x_callgate", None)
        turn = [message, {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "x"}]
        await ask(client, stream, [{"role": "user", "content": "I am Bob."}, earlier[1], yes, *turn])
        await ask(client, stream, [*earlier, yes, *turn])
    assert "12:00" not in json.dumps(upstream.requests[1].body)
    assert "12:00" in json.dumps(upstream.requests[2].body)


@BOTH
async def test_several_mixed_turns_in_one_history_are_all_made_whole_when_asked_on(
    upstream: Upstream, stream: bool
) -> None:
    upstream.script(
        "m",
        by_turn(
            [
                Reply(calls=[Call("get_time"), Call("echo", {"text": "x"})]),
                Reply(text="answered"),
            ]
        ),
    )
    async with served_to_openai(upstream, *TOOLS) as client:
        messages, _ = await chat(client, stream)
        messages += [{"role": "assistant", "content": "answered"}, {"role": "user", "content": "Again."}]
        messages, _ = await chat(client, stream, messages)
    results = [m["content"] for m in upstream.requests[-1].messages if m["role"] == "tool"]
    assert results == ["12:00", "x", "12:00", "x"]


@BOTH
async def test_parallel_calls_that_a_client_writes_one_message_each_restore_once(
    upstream: Upstream, stream: bool
) -> None:
    reply = Reply(
        calls=[Call("get_time", id="h"), Call("echo", {"text": "1"}, id="c1"), Call("echo", {"text": "2"}, id="c2")]
    )
    upstream.script("m", [reply, Reply(text="done")], lax=True)
    async with served_to_openai(upstream, *TOOLS) as client:
        choice = await ask(client, stream, [QUESTION])
        history: list[Any] = [QUESTION]
        for call in choice.message.tool_calls:
            one = as_clients_write_it(choice.message.model_copy(update={"tool_calls": [call]}))
            history += [one, {"role": "tool", "tool_call_id": call.id, "content": call.function.arguments}]
        assert (await ask(client, stream, history)).message.content == "done"
    said = upstream.requests[1].messages
    assert [m["tool_call_id"] for m in said if m["role"] == "tool"] == ["h", "c1", "c2"]
    assert [[call["id"] for call in m["tool_calls"]] for m in said if m["role"] == "assistant"] == [["h", "c1"], ["c2"]]


@BOTH
async def test_arguments_that_a_client_rewrites_are_recognized(upstream: Upstream, stream: bool) -> None:
    upstream.script(
        "m", [Reply(calls=[Call("get_time", id="h"), Call("echo", '{"text":  "1"}', id="c")]), Reply(text="done")]
    )
    async with served_to_openai(upstream, *TOOLS) as client:
        choice = await ask(client, stream, [QUESTION])
        message = as_clients_write_it(choice.message)
        message["tool_calls"][0]["function"]["arguments"] = json.dumps({"text": "1"}, indent=2)
        await ask(client, stream, [QUESTION, message, {"role": "tool", "tool_call_id": "c", "content": "1"}])
    assert upstream.requests[1].tool_results == {"h": "12:00", "c": "1"}


@BOTH
async def test_a_call_of_another_tool_under_a_known_id_is_not_made_into_what_was_kept(
    upstream: Upstream, stream: bool
) -> None:
    upstream.script(
        "m", [Reply(calls=[Call("get_time", id="h"), Call("echo", {"text": "1"}, id="c")]), Reply(text="done")]
    )
    async with served_to_openai(upstream, *TOOLS) as client:
        choice = await ask(client, stream, [QUESTION])
        message = as_clients_write_it(choice.message)
        message["tool_calls"][0]["function"]["name"] = "get_weather"
        await ask(client, stream, [QUESTION, message, {"role": "tool", "tool_call_id": "c", "content": "1"}])
    assert upstream.requests[1].tool_results == {"c": "1"}


@BOTH
async def test_a_server_side_tool_that_fails_beside_a_clients_call_is_reported_to_the_model(
    upstream: Upstream, stream: bool
) -> None:
    calls = [Call("send_mail", {"to": "a", "text": "b"}, id="h"), Call("echo", {"text": "1"}, id="c")]
    upstream.script("m", [Reply(calls=calls), Reply(text="done")])
    async with served_to_openai(upstream, "send_mail") as client:
        await chat(client, stream)
    assert "mailbox is full" in upstream.requests[1].tool_results["h"]


@needs("redis-server", "module:redis")
@BOTH
async def test_with_redis_a_client_may_come_back_to_another_process(
    upstream: Upstream, stream: bool, tmp_path: Path
) -> None:
    upstream.script(
        "m", [Reply(calls=[Call("get_time", id="h"), Call("echo", {"text": "1"}, id="c")]), Reply(text="done")]
    )
    async with redis_server(tmp_path) as redis_url:
        kept: Mapping[str, Any] = {"redis_url": redis_url}
        async with served_to_openai(upstream, *TOOLS, store=kept) as client:
            choice = await ask(client, stream, [QUESTION])
        async with served_to_openai(upstream, *TOOLS, store=kept) as client:
            own = {"role": "tool", "tool_call_id": "c", "content": "1"}
            await ask(client, stream, [QUESTION, as_clients_write_it(choice.message), own])
    assert upstream.requests[1].tool_results == {"h": "12:00", "c": "1"}


@needs("redis-server", "module:redis")
@BOTH
async def test_while_redis_is_away_chats_go_on_with_the_clients_history(
    upstream: Upstream, stream: bool, tmp_path: Path
) -> None:
    upstream.script(
        "m", [Reply(calls=[Call("get_time", id="h"), Call("echo", {"text": "1"}, id="c")]), Reply(text="done")]
    )
    async with redis_server(tmp_path) as redis_url:
        pass
    async with served_to_openai(upstream, *TOOLS, store={"redis_url": redis_url}) as client:
        _, answer = await chat(client, stream)
    assert answer == "done"
    assert upstream.requests[1].tool_results == {"c": "1"}


# When what was kept is gone -------------------------------------------------------------------------------------------


def as_sdks_give_it_back(message: Any) -> dict[str, Any]:
    """All that came, as a client does that appends the message object itself."""
    return {name: value for name, value in message.to_dict().items() if value is not None}


BESIDE_ONE_OF_THE_CLIENTS = [
    Call("get_time", id="read"),
    Call("echo", {"text": "1"}, id="c"),
    Call("wait_for_gate", {"label": "x"}, id="write"),
    Call("add", '{"a": 1, "b"', id="broken"),
]


@BOTH
async def test_in_another_process_what_only_reads_is_run_again_and_the_rest_is_reported_as_lost(
    upstream: Upstream, stream: bool
) -> None:
    upstream.script("m", [Reply(calls=BESIDE_ONE_OF_THE_CLIENTS), Reply(text="one"), Reply(text="two")])
    tools = ("get_time", "wait_for_gate", "add")
    async with toolshed.held() as running:
        running.gate.set()
        async with served_to_openai(upstream, *tools) as client:
            choice = await ask(client, stream, [QUESTION])
        running.started.clear()
        own = {"role": "tool", "tool_call_id": "c", "content": "1"}
        back = [QUESTION, as_sdks_give_it_back(choice.message), own]
        async with served_to_openai(upstream, *tools) as client:
            assert (await ask(client, stream, back)).message.content == "one"
            assert (await ask(client, stream, back)).message.content == "two"
        assert not running.started.is_set(), "what may have changed the world is never done twice"
    for request in upstream.requests[1:]:
        assert [call["id"] for call in request.messages[1]["tool_calls"]] == ["read", "c", "write"]
        assert "x_callgate" not in json.dumps(request.body)
        results = request.tool_results
        assert (results["read"], results["c"]) == ("12:00", "1")
        assert json.loads(results["write"])["error"]["code"] == "result_lost"


@BOTH
async def test_what_has_expired_is_made_again_too(upstream: Upstream, stream: bool) -> None:
    upstream.script(
        "m", [Reply(calls=[Call("get_time", id="h"), Call("echo", {"text": "1"}, id="c")]), Reply(text="x")]
    )
    async with served_to_openai(upstream, *TOOLS, store={"conversation_seconds": 1e-6}) as client:
        choice = await ask(client, stream, [QUESTION])
        own = {"role": "tool", "tool_call_id": "c", "content": "1"}
        await ask(client, stream, [QUESTION, as_sdks_give_it_back(choice.message), own])
    assert upstream.requests[1].tool_results == {"h": "12:00", "c": "1"}


async def test_what_has_expired_is_made_again_in_a_request_with_a_key_too(upstream: Upstream, tmp_path: Path) -> None:
    upstream.script(
        "m", [Reply(calls=[Call("get_time", id="h"), Call("echo", {"text": "1"}, id="c")]), Reply(text="x")]
    )
    async with served_to_openai(
        upstream, *TOOLS, data_dir=str(tmp_path), store={"conversation_seconds": 1e-6}
    ) as client:
        choice = await ask(client, False, [QUESTION], extra_headers={"idempotency-key": "one"})
        own = {"role": "tool", "tool_call_id": "c", "content": "1"}
        back = [QUESTION, as_sdks_give_it_back(choice.message), own]
        for _ in range(2):
            again = await ask(client, False, back, extra_headers={"idempotency-key": "two"})
            assert again.message.content == "x"
    assert len(upstream.requests) == 2
    assert upstream.requests[1].tool_results == {"h": "12:00", "c": "1"}


@BOTH
async def test_what_has_expired_is_made_again_for_clients_that_give_back_the_least(
    upstream: Upstream, stream: bool
) -> None:
    upstream.script("m", [Reply(calls=BESIDE_ONE_OF_THE_CLIENTS), Reply(text="x")])
    tools = ("get_time", "wait_for_gate", "add")
    async with toolshed.held() as running:
        running.gate.set()
        async with served_to_openai(upstream, *tools, store={"conversation_seconds": 1e-6}) as client:
            choice = await ask(client, stream, [QUESTION])
            running.started.clear()
            own = {"role": "tool", "tool_call_id": "c", "content": "1"}
            await ask(client, stream, [QUESTION, as_clients_write_it(choice.message), own])
        assert not running.started.is_set()
    results = upstream.requests[1].tool_results
    assert (results["read"], results["c"]) == ("12:00", "1")
    assert json.loads(results["write"])["error"]["code"] == "result_lost"


@BOTH
async def test_in_another_process_a_client_that_gives_back_no_hint_goes_on_with_its_own_history(
    upstream: Upstream, stream: bool
) -> None:
    upstream.script(
        "m", [Reply(calls=[Call("get_time", id="h"), Call("echo", {"text": "1"}, id="c")]), Reply(text="x")]
    )
    async with served_to_openai(upstream, *TOOLS) as client:
        choice = await ask(client, stream, [QUESTION])
    async with served_to_openai(upstream, *TOOLS) as client:
        own = {"role": "tool", "tool_call_id": "c", "content": "1"}
        await ask(client, stream, [QUESTION, as_clients_write_it(choice.message), own])
    assert upstream.requests[1].tool_results == {"c": "1"}


@BOTH
@pytest.mark.parametrize(
    "marks",
    [
        [[0, "x", "wait_for_gate", '{"label": "forged"}']],
        [[0, "x", "no_such_tool", "{}"]],
        [[0, "x", "echo", '{"text": "the client\'s own"}']],
        [[-5, "x", "get_weather", None]],
        [["first", 1, 2]],
        "nonsense",
        None,
    ],
)
async def test_a_hint_runs_nothing_that_the_model_could_not_have_run(
    upstream: Upstream, stream: bool, marks: Any
) -> None:
    upstream.script("m", [Reply(text="x")])
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "echo", "arguments": "{}"},
        "x_callgate": {"house": marks},
    }
    own = {"role": "tool", "tool_call_id": "c", "content": "1"}
    async with toolshed.held() as running, served_to_openai(upstream, "wait_for_gate", "get_weather") as client:
        running.gate.set()
        await ask(client, stream, [QUESTION, {"role": "assistant", "content": None, "tool_calls": [call]}, own])
        assert not running.started.is_set()
    request = upstream.requests[0]
    assert "x_callgate" not in json.dumps(request.body)
    assert request.tool_results.pop("c") == "1"
    assert all("not run again" in result for id, result in request.tool_results.items() if id != "c")


@BOTH
async def test_without_diagnostics_a_client_is_sent_nothing_of_what_ran_beside(
    upstream: Upstream, stream: bool
) -> None:
    upstream.script("m", [Reply(calls=[Call("get_time", id="h"), Call("echo", {"text": "1"}, id="c")])])
    async with served_to_openai(upstream, *TOOLS, loop={"diagnostics": False}) as client:
        choice = await ask(client, stream, [QUESTION])
    assert "get_time" not in json.dumps(choice.to_dict())
