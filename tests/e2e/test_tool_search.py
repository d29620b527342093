"""Tools that a model searches for, through the APIs as their clients use them."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.harness.messages import put_together
from tests.harness.responses import responded
from tests.harness.served import served_to_http, served_to_openai
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = pytest.mark.anyio

TOOLS = ("get_weather", "search_docs", "get_time", "add")
ON = {"tool_search": "on"}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "How warm is Oslo?"}]}
OWN = ["read_more", "find_tools", "call_tool"]
CLIENTS: dict[str, Any] = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
}


def finds_and_calls(name: str = "get_weather", arguments: Any = None) -> Callable[[Any], Reply]:
    """A model that searches, calls what it wanted if it is among what it found, and says what came of it."""

    def model(request: Any) -> Reply:
        last = request.body["messages"][-1]
        if last["role"] == "user":
            return Reply(calls=[Call("find_tools", {"query": "weather in a city"})])
        if name in last["content"] and '"found"' in last["content"]:
            return Reply(calls=[Call("call_tool", {"name": name, "arguments": arguments or {"city": "Oslo"}})])
        return Reply(text=f"Answer: {last['content']}")

    return model


def offered(request: Any) -> list[str]:
    return [tool["function"]["name"] for tool in request.body["tools"]]


def calls_in(report: Any) -> list[dict[str, Any]]:
    return [call for turn in report["turns"] for call in turn["calls"]]


async def asked(client: httpx.AsyncClient, body: Any, **headers: str) -> Any:
    answer = await client.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_model_finds_a_tool_and_calls_it_by_the_bridge(upstream: Upstream):
    upstream.script("m", finds_and_calls())
    async with served_to_http(upstream, *TOOLS, entry=ON) as client:
        answer = await asked(client, CHAT)
    assert answer["choices"][0]["message"]["content"] == "Answer: 4 C in Oslo"
    assert [offered(request) for request in upstream.requests] == [OWN, OWN, OWN]
    find, call = calls_in(answer["x_callgate"])
    assert (find["name"], find["verdict"]) == ("find_tools", "ready")
    assert (call["name"], call["verdict"], call["bridged"]) == ("get_weather", "ready", True)
    assert answer["x_callgate"]["tool_search"] == {"offered": 4, "shown": 0, "found": 1, "bridged": 1}


async def test_the_model_reads_its_own_call_of_the_bridge_in_the_history(upstream: Upstream):
    upstream.script("m", finds_and_calls())
    async with served_to_http(upstream, *TOOLS, entry=ON) as client:
        await asked(client, CHAT)
    calls = [message["tool_calls"][0]["function"] for message in upstream.requests[-1].body["messages"][1::2]]
    assert [call["name"] for call in calls] == ["find_tools", "call_tool"]
    assert json.loads(calls[1]["arguments"]) == {"name": "get_weather", "arguments": {"city": "Oslo"}}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_response_shows_the_calls_under_the_tools_own_names(upstream: Upstream, stream: bool):
    upstream.script("m", finds_and_calls())
    ours = [{"type": "mcp", "server_label": "callgate", "require_approval": "never"}]
    async with served_to_openai(upstream, *TOOLS, entry=ON) as client:
        response = await responded(client, stream=stream, model="m", input="How warm is Oslo?", tools=ours)
    shown = [(item.name, item.server_label) for item in response.output if item.type == "mcp_call"]
    assert shown == [("find_tools", "callgate"), ("get_weather", "callgate")]
    assert json.loads(response.output[2].arguments) == {"city": "Oslo"}
    assert response.output_text == "Answer: 4 C in Oslo"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_message_is_answered_with_what_the_found_tool_returned(upstream: Upstream, stream: bool):
    upstream.script("m", finds_and_calls())
    question = {"model": "m", "max_tokens": 100, "stream": stream, "messages": CHAT["messages"]}
    async with served_to_http(upstream, *TOOLS, entry=ON) as client:
        answer = await client.post("/v1/messages", json=question)
    message = put_together(answer.text) if stream else answer.json()
    assert [block.get("text") for block in message["content"]] == ["Answer: 4 C in Oslo"]


async def test_a_stream_has_the_same_answer_and_no_call_of_ours(upstream: Upstream):
    upstream.script("m", finds_and_calls())
    async with served_to_openai(upstream, *TOOLS, entry=ON) as client:
        chunks = [chunk async for chunk in await client.chat.completions.create(**CHAT, stream=True)]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Answer: 4 C in Oslo"
    assert not any(chunk.choices[0].delta.tool_calls for chunk in chunks if chunk.choices)


async def test_each_of_several_choices_searches_for_itself(upstream: Upstream):
    upstream.script("m", finds_and_calls())
    async with served_to_http(upstream, *TOOLS, entry=ON) as client:
        answer = await asked(client, {**CHAT, "n": 3})
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["Answer: 4 C in Oslo"] * 3


HERMES = '<tool_call>\n{"name": "call_tool", "arguments": {"name": "get_weather", "arguments": {"city": "Oslo"}}}\n</tool_call>'
QWEN = (
    "<tool_call>\n<function=call_tool>\n<parameter=name>\nget_weather\n</parameter>\n"
    '<parameter=arguments>\n{"city": "Oslo"}\n</parameter>\n</function>\n</tool_call>'
)
JSON = '{"name": "call_tool", "arguments": {"name": "get_weather", "arguments": {"city": "Oslo"}}}'


@pytest.mark.parametrize(
    ("form", "call"), [("hermes", HERMES), ("qwen3_coder", QWEN), ("json", JSON)], ids=["hermes", "qwen", "json"]
)
async def test_a_model_that_writes_its_calls_as_text_calls_by_the_bridge_too(upstream: Upstream, form: str, call: str):
    upstream.script("m", [Reply(text=call), Reply(text="Cold.")])
    async with served_to_http(upstream, *TOOLS, entry={**ON, "tool_calling": form}) as client:
        answer = await asked(client, CHAT)
    (made,) = calls_in(answer["x_callgate"])
    assert (made["name"], made["verdict"], made["outcome"]) == ("get_weather", "ready", "returned")
    assert "find_tools" in json.dumps(upstream.requests[0].body)
    assert "get_weather" not in json.dumps(upstream.requests[0].body)


async def test_half_a_call_inside_the_bridge_runs_nothing_and_the_model_is_told(upstream: Upstream):
    half = '{"name": "get_weather", "arguments": {"city": "Os'
    upstream.script("m", [Reply(calls=[Call("call_tool", half)]), Reply(text="Sorry.")])
    async with served_to_http(upstream, *TOOLS, entry=ON) as client:
        answer = await asked(client, CHAT)
    (call,) = calls_in(answer["x_callgate"])
    assert (call["verdict"], call["flaw"]) == ("broken", "truncated")


async def test_a_hidden_tool_that_is_called_directly_runs_and_else_the_model_is_told_its_schema(upstream: Upstream):
    wrong = Call("get_weather", {"town": "Oslo"})
    upstream.script("m", [Reply(calls=[wrong]), Reply(calls=[Call("get_weather", {"city": "Oslo"})]), Reply(text="4")])
    async with served_to_http(upstream, *TOOLS, entry=ON) as client:
        answer = await asked(client, CHAT)
    assert [call["verdict"] for call in calls_in(answer["x_callgate"])] == ["broken", "ready"]
    told = json.loads(upstream.requests[1].body["messages"][-1]["content"])["error"]
    assert told["schema"]["required"] == ["city"]
    assert "unit" in told["schema"]["properties"]


async def test_an_unknown_name_in_the_bridge_is_answered_with_the_nearest_tools(upstream: Upstream):
    upstream.script("m", [Reply(calls=[Call("call_tool", {"name": "weather", "arguments": {}})]), Reply(text="Oh.")])
    async with served_to_http(upstream, *TOOLS, entry=ON) as client:
        await asked(client, CHAT)
    told = json.loads(upstream.requests[1].body["messages"][-1]["content"])["error"]
    assert told["code"] == "unknown_tool"
    assert "get_weather" in told["note"]
    assert sorted(told["tools"]) == sorted(OWN)


async def test_clients_tools_are_never_hidden_and_nothing_leads_to_them(upstream: Upstream):
    upstream.script("m", [Reply(calls=[Call("call_tool", {"name": "look", "arguments": {}})]), Reply(text="Oh.")])
    async with served_to_http(upstream, *TOOLS, entry=ON) as client:
        answer = await asked(client, {**CHAT, "tools": [CLIENTS]})
    assert offered(upstream.requests[0]) == ["look", *OWN]
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert [call["flaw"] for call in calls_in(answer["x_callgate"])] == ["unknown_tool"]


async def test_a_client_may_have_tools_of_these_names_and_keeps_them(upstream: Upstream):
    clients = [{"type": "function", "function": {**CLIENTS["function"], "name": name}} for name in OWN]
    upstream.script("m", [Reply(calls=[Call("callgate__find_tools", {"query": "weather"})]), Reply(text="Fine.")])
    async with served_to_http(upstream, *TOOLS, entry=ON) as client:
        await asked(client, {**CHAT, "tools": clients})
    assert offered(upstream.requests[0]) == [*OWN, *(f"callgate__{name}" for name in OWN)]
    assert "get_weather" in upstream.requests[1].body["messages"][-1]["content"]
    described = upstream.requests[0].body["tools"][4]["function"]["description"]
    assert "callgate__call_tool" in described


@pytest.mark.parametrize(
    ("request_fields", "headers"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "get_weather"}}}, {}),
        ({}, {"X-Callgate-Tools": "get_weather, *"}),
    ],
    ids=["choice", "header"],
)
async def test_tools_that_a_request_names_are_shown(upstream: Upstream, request_fields, headers):
    upstream.script("m", [Reply(text="Fine.")])
    async with served_to_http(upstream, *TOOLS, entry=ON) as client:
        await asked(client, {**CHAT, **request_fields}, **headers)
    assert offered(upstream.requests[0]) == ["get_weather", *OWN]


async def test_tools_that_are_all_named_are_not_searched(upstream: Upstream):
    upstream.script("m", [Reply(text="Fine.")])
    async with served_to_http(upstream, *TOOLS, entry=ON) as client:
        answer = await asked(client, CHAT, **{"X-Callgate-Tools": "get_weather,add"})
    assert offered(upstream.requests[0]) == ["add", "get_weather", "read_more"]
    assert "tool_search" not in answer["x_callgate"]


async def test_a_request_that_demands_a_call_is_met_by_a_search(upstream: Upstream):
    upstream.script("m", finds_and_calls())
    async with served_to_http(upstream, *TOOLS, entry=ON) as client:
        answer = await asked(client, {**CHAT, "tool_choice": "required"})
    assert upstream.requests[0].body["tool_choice"] == "required"
    assert answer["choices"][0]["message"]["content"] == "Answer: 4 C in Oslo"


async def test_found_tools_are_added_to_the_list_where_they_are_revealed_and_stay_there(upstream: Upstream):
    def model(request: Any) -> Reply:
        last = request.body["messages"][-1]
        if last["role"] == "user" and len(request.body["messages"]) == 1:
            return Reply(calls=[Call("find_tools", {"query": "weather"}, id="call_find")])
        if '"found"' in str(last["content"]):
            return Reply(calls=[Call("get_weather", {"city": "Oslo"}), Call("look", {}, id="call_look")])
        return Reply(text="Fine.")

    upstream.script("m", model)
    async with served_to_http(upstream, *TOOLS, entry={"tool_search": {"mode": "on", "way": "reveal"}}) as client:
        first = await asked(client, {**CHAT, "tools": [CLIENTS]})
        message = first["choices"][0]["message"]
        answered = {"role": "tool", "tool_call_id": "call_look", "content": "seen"}
        await asked(client, {"model": "m", "messages": [*CHAT["messages"], message, answered], "tools": [CLIENTS]})
    without = ["look", "read_more", "find_tools"]
    assert [offered(request) for request in upstream.requests] == [
        without,
        [*without, "get_weather"],
        [*without, "get_weather"],
    ]


async def test_auto_searches_beyond_its_limit_and_else_the_request_is_as_it_was(upstream: Upstream):
    upstream.script("m", [Reply(text="Fine.")] * 3)
    below = {"tool_search": {"over": {"tokens": 10_000, "share": 1.0}}}
    for entry in ({}, below, {"tool_search": {"over": {"tokens": 50}}}):
        async with served_to_http(upstream, *TOOLS, entry=entry) as client:
            await asked(client, CHAT)
    plain, same, searched = (request.raw for request in upstream.requests)
    assert plain == same
    assert searched != plain
    assert offered(upstream.requests[2]) == OWN


async def test_the_share_of_the_context_counts_where_it_is_known(upstream: Upstream):
    upstream.script("m", [Reply(text="Fine.")] * 2)
    for context in (100_000, 1000):
        entry = {"tool_search": "auto", "model_info": {"max_input_tokens": context}}
        async with served_to_http(upstream, *TOOLS, entry=entry) as client:
            await asked(client, CHAT)
    assert offered(upstream.requests[0]) == ["add", "get_time", "get_weather", "search_docs", "read_more"]
    assert offered(upstream.requests[1]) == OWN


async def test_pinned_tools_stand_in_the_prompt(upstream: Upstream):
    upstream.script("m", [Reply(text="Fine.")])
    async with served_to_http(upstream, *TOOLS, entry={"tool_search": {"mode": "on", "pin": ["get_*"]}}) as client:
        await asked(client, CHAT)
    assert offered(upstream.requests[0]) == ["get_time", "get_weather", *OWN]


async def test_the_list_of_tools_says_what_is_hidden_and_what_searching_would_save(upstream: Upstream):
    saved = []
    for entry in (ON, {"model_info": {"max_input_tokens": 100}}, {}):
        async with served_to_http(upstream, *TOOLS, entry=entry) as client:
            (facts,) = (await client.get("/v1/tools?models=1")).json()["models"]
            saved.append({name: facts[name] for name in facts if name not in ("id", "tools", "prompt_tokens")})
    on, off, few = saved
    assert on["hidden"] == 4
    assert off == {"search_would_save": on["search_saves"]}
    assert few == {}


async def test_searches_are_counted(upstream: Upstream):
    upstream.script("m", finds_and_calls())
    async with served_to_http(upstream, *TOOLS, entry=ON) as client:
        await asked(client, CHAT)
        metrics = (await client.get("/metrics")).text
    assert 'callgate_tool_searches_total{result="found"} 1.0' in metrics


async def test_a_search_that_finds_nothing_names_the_servers_and_its_repetition_gets_nowhere(upstream: Upstream):
    again = Reply(calls=[Call("find_tools", {"query": "pizza"})])
    upstream.script("m", [again, again, again, again, Reply(text="I cannot.")])
    async with served_to_http(upstream, *TOOLS, entry=ON) as client:
        answer = await asked(client, CHAT)
    results = [json.loads(message["content"]) if message["content"][0] == "{" else message["content"]
               for message in upstream.requests[-1].body["messages"] if message["role"] == "tool"]  # fmt: skip
    assert results[0]["servers"] == [{"server": "callgate", "tools": 4}]
    assert [call["outcome"] for call in calls_in(answer["x_callgate"])] == ["returned", "refused", "refused", "refused"]
    assert answer["x_callgate"]["note"] == "failed_turns"


@pytest.mark.parametrize("way", ["previous_response_id", "items"])
async def test_a_later_response_knows_what_was_found_and_called(upstream: Upstream, way: str):
    upstream.script("m", finds_and_calls())
    ours = [{"type": "mcp", "server_label": "callgate", "require_approval": "never"}]
    async with served_to_openai(upstream, *TOOLS, entry=ON) as client:
        first = await responded(client, stream=False, model="m", input="How warm is Oslo?", tools=ours)
        more: dict[str, Any] = {"input": "And now?", "previous_response_id": first.id}
        if way == "items":
            sent_back = [item.to_dict(warnings=False) for item in first.output]
            question = {"role": "user", "content": "How warm is Oslo?"}
            more = {"input": [question, *sent_back, {"role": "user", "content": "And now?"}], "store": False}
        upstream.script("m", [Reply(text="Still cold.")])
        second = await responded(client, stream=False, model="m", tools=ours, **more)
    assert second.output_text == "Still cold."
    history = upstream.requests[-1].body["messages"]
    results = [message["content"] for message in history if message["role"] == "tool"]
    assert [result[:9] for result in results] == ['{"found":', "4 C in Os"]
    assert offered(upstream.requests[-1]) == OWN


async def test_a_call_that_waits_for_the_client_waits_under_its_own_name_and_runs_when_it_comes_back(
    upstream: Upstream,
):
    upstream.script("m", finds_and_calls())
    ours = [{"type": "mcp", "server_label": "callgate", "require_approval": "always"}]
    async with served_to_openai(upstream, *TOOLS, entry=ON) as client:
        first = await responded(client, stream=False, model="m", input="How warm is Oslo?", tools=ours)
        (request,) = [item for item in first.output if item.type == "mcp_approval_request"]
        assert (request.name, json.loads(request.arguments)) == ("get_weather", {"city": "Oslo"})
        answer = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
        second = await responded(
            client, stream=False, model="m", input=[answer], previous_response_id=first.id, tools=ours
        )
    assert second.output_text == "Answer: 4 C in Oslo"
