"""Context editing and compaction of the Messages API, behind a model of chats and behind Anthropic's own API."""

from typing import Any

import pytest

from callgate.application import create_app
from callgate.conversation.context import CLEARED, PROMPT
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.messages import put_together, text_of
from tests.harness.served import served_to_http, served_to_messages
from tests.harness.server import serve
from tests.scripted_upstream import Call, Reply, RequestRecord, Upstream

pytestmark = [pytest.mark.anyio, pytest.mark.leaves("litellm", why="litellm keeps its thread for logging")]

BOTH = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
LONG = "A long line of a file. " * 400
SUMMARY = "The user looks for a crane; two files were read."
LOOK = {"name": "look", "input_schema": {"type": "object"}}
READ = {"name": "read", "input_schema": {"type": "object"}}
USAGE = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
THINKING: dict[str, Any] = {"thinking": {"type": "adaptive"}}


def use(id: str, name: str, thought: str = "") -> list[dict[str, Any]]:
    thinking = [{"type": "thinking", "thinking": thought, "signature": "callgate.unsigned.0"}] if thought else []
    call = {"type": "tool_use", "id": id, "name": name, "input": {"path": f"of {id}"}}
    result = {"type": "tool_result", "tool_use_id": id, "content": f"{id}: {LONG}"}
    return [
        {"role": "assistant", "content": [*thinking, call]},
        {"role": "user", "content": [result]},
    ]


HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "Find the crane."},
    *use("call_a", "read", "First."),
    *use("call_b", "look", "Second."),
    *use("call_c", "read", "Third."),
    *use("call_d", "look"),
]
TOOLS: dict[str, Any] = {"tools": [LOOK, READ]}


def clearing(**more: Any) -> dict[str, Any]:
    trigger = {"trigger": {"type": "input_tokens", "value": 5000}}
    return {"context_management": {"edits": [{"type": "clear_tool_uses_20250919", **trigger, **more}]}}


def results(request: RequestRecord) -> dict[str, str]:
    return {m["tool_call_id"]: m["content"] for m in request.messages if m["role"] == "tool"}


def cleared(request: RequestRecord) -> list[str]:
    return [id for id, content in results(request).items() if content == CLEARED]


def is_asked_for_summary(request: RequestRecord) -> bool:
    return PROMPT in str(request.messages[-1]["content"])


def said(text: str = "Here it is.") -> Any:
    return lambda request: Reply(text=SUMMARY if is_asked_for_summary(request) else text, usage=USAGE)


@BOTH
@pytest.mark.parametrize(
    ("more", "ids"),
    [
        ({}, ["call_a"]),
        ({"keep": {"type": "tool_uses", "value": 1}}, ["call_a", "call_b", "call_c"]),
        ({"keep": {"type": "tool_uses", "value": 0}, "exclude_tools": ["look"]}, ["call_a", "call_c"]),
        ({"trigger": {"type": "tool_uses", "value": 3}}, ["call_a"]),
        ({"trigger": {"type": "tool_uses", "value": 4}}, []),
        ({"trigger": {"type": "input_tokens", "value": 50_000}}, []),
        ({"clear_at_least": {"type": "input_tokens", "value": 20_000}}, []),
    ],
    ids=["usual", "keep", "exclude", "uses", "too few uses", "too few tokens", "too little"],
)
async def test_old_results_are_cleared_as_the_client_wants(
    upstream: Upstream, stream: bool, more: dict[str, Any], ids: list[str]
) -> None:
    upstream.script("m", said())
    async with served_to_messages(upstream) as client:
        message = await client.ask(stream=stream, model="m", messages=HISTORY, **TOOLS, **clearing(**more))
    [request] = upstream.requests
    assert cleared(request) == ids
    assert "context_management" not in request.body
    assert "warnings" not in message["x_callgate"], "what is done is not named as left out"
    assert list(results(request)) == ["call_a", "call_b", "call_c", "call_d"], "no call loses its result"
    applied = message["context_management"]["applied_edits"]
    assert [edit["cleared_tool_uses"] for edit in applied] == [len(ids)] * bool(ids)
    if ids:
        assert applied[0]["type"] == "clear_tool_uses_20250919"
        assert len(ids) * 2000 < applied[0]["cleared_input_tokens"] < len(ids) * 2500
    assert text_of(message) == "Here it is."


async def test_the_inputs_of_calls_are_cleared_too(upstream: Upstream) -> None:
    upstream.script("m", said())
    async with served_to_messages(upstream) as client:
        for inputs in (True, ["look"], False):
            more: Any = {"keep": {"type": "tool_uses", "value": 2}, "clear_tool_inputs": inputs}
            await client.ask(stream=False, model="m", messages=HISTORY, **TOOLS, **clearing(**more))
    arguments = [
        [call["function"]["arguments"] for m in request.messages for call in m.get("tool_calls") or ()]
        for request in upstream.requests
    ]
    empty = [[place for place, text in enumerate(texts) if text == "{}"] for texts in arguments]
    assert empty == [[0, 1], [1], []]


@pytest.mark.parametrize(
    ("keep", "thoughts"),
    [
        (None, ["Third."]),
        ({"type": "thinking_turns", "value": 2}, ["Second.", "Third."]),
        ("all", ["First.", "Second.", "Third."]),
        ({"type": "all"}, ["First.", "Second.", "Third."]),
    ],
    ids=["usual", "two", "all", "all in an object"],
)
async def test_old_thinking_is_cleared(upstream: Upstream, keep: Any, thoughts: list[str]) -> None:
    upstream.script("m", said())
    edit = {"type": "clear_thinking_20251015"} | ({} if keep is None else {"keep": keep})
    async with served_to_messages(upstream) as client:
        management = {"edits": [edit]}
        message = await client.ask(
            stream=False, model="m", messages=HISTORY, context_management=management, **TOOLS, **THINKING
        )
    assert [m["reasoning_content"] for m in upstream.requests[0].messages if m.get("reasoning_content")] == thoughts
    turns = [edit["cleared_thinking_turns"] for edit in message["context_management"]["applied_edits"]]
    assert turns == [3 - len(thoughts)] * (len(thoughts) < 3)


async def test_results_of_our_tools_are_cleared_between_turns(upstream: Upstream) -> None:
    def answer(request: RequestRecord) -> Reply:
        done = len(results(request))
        return Reply(calls=[Call("report", {"number": done + 1})]) if done < 3 else Reply(text="Done.")

    upstream.script("m", answer)
    more: Any = {"trigger": {"type": "input_tokens", "value": 20_000}, "keep": {"type": "tool_uses", "value": 1}}
    async with served_to_messages(upstream, "report") as client:
        message = await client.ask(
            stream=False, model="m", messages=[{"role": "user", "content": "Read all."}], **clearing(**more)
        )
    assert len(cleared(upstream.requests[-1])) == 2
    assert message["context_management"]["applied_edits"][0]["cleared_tool_uses"] == 2


@BOTH
async def test_beyond_its_trigger_a_conversation_is_summarized_and_goes_on(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", said())
    edit = {
        "type": "compact_20260112",
        "trigger": {"type": "input_tokens", "value": 5000},
        "instructions": "Keep paths.",
    }
    asked: Any = {"model": "m", "context_management": {"edits": [edit]}, **TOOLS}
    async with served_to_messages(upstream) as client:
        message = await client.ask(stream=stream, messages=HISTORY, **asked)
        answer = {"role": "assistant", "content": message["content"]}
        further = [*HISTORY, answer, {"role": "user", "content": "And then?"}]
        await client.ask(stream=stream, messages=further, **asked)
    assert [block["type"] for block in message["content"]] == ["compaction", "text"]
    assert message["content"][0]["content"].startswith(SUMMARY)
    assert message["stop_reason"] == "end_turn"
    summarizing, answering, continued = upstream.requests
    assert str(summarizing.messages[-1]["content"]).endswith("Keep paths.")
    assert "tools" not in summarizing.body
    [told] = answering.messages
    assert told["role"] == "user"
    assert "Find the crane." in told["content"]
    assert [m["role"] for m in continued.messages] == ["user", "assistant", "user"]
    assert continued.messages[0]["content"] == told["content"]
    assert [entry["type"] for entry in message["usage"]["iterations"]] == ["compaction", "message"]
    assert message["usage"]["input_tokens"] == 100, "a summary is told apart"


@BOTH
@pytest.mark.parametrize("way", ["pause", "parameter"])
async def test_it_ends_with_the_summary_where_that_is_wanted(upstream: Upstream, stream: bool, way: str) -> None:
    upstream.script("m", said())
    pausing = {
        "type": "compact_20260112",
        "trigger": {"type": "input_tokens", "value": 5000},
        "pause_after_compaction": True,
    }
    asked: dict[str, Any] = {"context_management": {"edits": [pausing]}}
    if way == "parameter":
        asked = {"compaction": {"type": "summarize", "instructions": f"{PROMPT} In one line."}}
    async with served_to_messages(upstream) as client:
        message = await client.ask(stream=stream, model="m", messages=HISTORY, **TOOLS, **asked)
        kept = [{"role": "assistant", "content": message["content"]}, {"role": "user", "content": "Go on."}]
        await client.ask(stream=stream, model="m", messages=kept, **TOOLS)
    assert [block["type"] for block in message["content"]] == ["compaction"]
    assert message["stop_reason"] == "compaction"
    assert len(upstream.requests) == 2
    assert [m["role"] for m in upstream.requests[-1].messages] == ["user", "user"]
    assert SUMMARY in upstream.requests[-1].messages[0]["content"]


@pytest.mark.parametrize("role", ["user", "assistant"])
async def test_a_summary_is_read_in_either_role(upstream: Upstream, role: str) -> None:
    upstream.script("m", said())
    summary = {"role": role, "content": [{"type": "compaction", "content": SUMMARY}]}
    none = {"role": "assistant", "content": [{"type": "compaction", "content": None}, {"type": "text", "text": "So."}]}
    async with served_to_messages(upstream) as client:
        messages = [{"role": "user", "content": "Forgotten."}, summary, none, {"role": "user", "content": "Go on."}]
        await client.ask(stream=False, model="m", messages=messages)
    first, *others = upstream.requests[0].messages
    assert (first["role"], SUMMARY in first["content"]) == ("user", True)
    assert [message["content"] for message in others] == ["So.", "Go on."]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"context_management": {"edits": [{"type": "clear_all"}]}}, "context_management.edits.0.type"),
        ({"context_management": {"edits": 7}}, "context_management.edits"),
        (clearing(trigger={"type": "words", "value": 9}), "context_management.edits.0.trigger.type"),
        (clearing(keep={"type": "tool_uses", "value": -1}), "context_management.edits.0.keep.value"),
        ({"compaction": {"type": "forget"}}, "compaction.type"),
        ({"compaction": {"type": "summarize"}, **clearing()}, "compaction"),
    ],
)
async def test_what_is_not_known_is_refused(upstream: Upstream, fields: dict[str, Any], param: str) -> None:
    async with served_to_http(upstream) as client:
        body = {"model": "m", "max_tokens": 9, "messages": HISTORY, **TOOLS, **fields}
        answer = await client.post("/v1/messages", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(f"{param}:")
    assert not upstream.requests


async def test_a_count_says_what_it_was_before_the_edits(upstream: Upstream) -> None:
    async with served_to_http(upstream) as client:
        body = {"model": "m", "messages": HISTORY, **TOOLS}
        path = "/v1/messages/count_tokens"
        before = (await client.post(path, json=body)).json()
        after = (await client.post(path, json=body | clearing(keep={"type": "tool_uses", "value": 1}))).json()
    assert after["context_management"] == {"original_input_tokens": before["input_tokens"]}
    assert after["input_tokens"] < before["input_tokens"] / 2


@BOTH
async def test_anthropics_own_api_does_it_itself(upstream: Upstream, stream: bool) -> None:
    upstream.script("claude-x", [Reply(text="Fine.")])
    config = make_config(upstream.root, provider="anthropic", lane="translated", models=["claude-x"])
    block = {"type": "compaction", "content": "So far.", "encrypted_content": "sealed by Anthropic"}
    messages = [*HISTORY, {"role": "assistant", "content": [block]}, {"role": "user", "content": "Go on."}]
    asked = {"model": "claude-x", "max_tokens": 9, "messages": messages, "stream": stream, **TOOLS, **clearing()}
    async with serve(create_app(config)) as url, http_client(url) as client:
        answer = await client.post("/v1/messages", json=asked)
    assert answer.status_code == 200, answer.text
    message = put_together(answer.text) if stream else answer.json()
    assert text_of(message) == "Fine."
    [request] = upstream.requests
    assert request.body["context_management"] == asked["context_management"]
    assert request.body["messages"][-2]["content"] == [block]


async def test_a_summary_that_was_made_here_is_read_by_anthropics_own_api(upstream: Upstream) -> None:
    upstream.script("m", said())
    upstream.script("claude-x", [Reply(text="Fine.")])
    chat = make_config(upstream.url)
    claude = make_config(upstream.root, provider="anthropic", lane="translated", models=["claude-x"])
    asked: Any = {"max_tokens": 9, **TOOLS}
    async with serve(create_app(chat)) as url, http_client(url) as client:
        body = {"model": "m", "messages": HISTORY, "compaction": {"type": "summarize"}, **asked}
        message = (await client.post("/v1/messages", json=body)).json()
    messages = [*HISTORY, {"role": "assistant", "content": message["content"]}, {"role": "user", "content": "Go on."}]
    async with serve(create_app(claude)) as url, http_client(url) as client:
        answer = await client.post("/v1/messages", json={"model": "claude-x", "messages": messages, **asked})
    assert answer.status_code == 200, answer.text
    [turn] = upstream.requests[-1].body["messages"]
    assert turn["role"] == "user"
    assert SUMMARY in str(turn["content"][0])
