"""A tool that a client declares for its provider is run here where the config says so, and looks to the client as its API's own does."""

import base64
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from callgate.access.keys import hash_key
from callgate.application import create_app
from tests.harness.clients import http_client, openai_client
from tests.harness.configs import make_config
from tests.harness.messages import MessagesClient, calls_of, text_of
from tests.harness.responses import raw_events, responded
from tests.harness.served import served, served_to_http, served_to_messages, served_to_openai
from tests.harness.server import serve
from tests.hosted.stand_ins import EVERY, EVERY_ENTRY, PIXEL, RESULT, entry
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = pytest.mark.anyio

BOTH = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
FIND = Call("find", {"query": "rust 2"})
CLAUDE = "claude-sonnet-4-5"
SAID = "See [Rust 2.0](https://rust.example/2), and https://blog.example/rust. Not https://elsewhere.example/."
SEARCH_BLOCK: dict[str, Any] = {"type": "web_search_20250305", "name": "web_search"}
KEYS = [
    {"name": "narrow", "hash": hash_key("cg-narrow"), "tools": ["get_page"]},
    {"name": "wide", "hash": hash_key("cg-wide")},
]


def offered(upstream: Upstream, at: int = 0) -> list[str]:
    return [name for name in upstream.requests[at].tool_names if name != "read_more"]


def results_of(message: dict[str, Any], name: str) -> list[Any]:
    """The results of the calls of a tool, in the order of the calls; they come as they end."""
    results = {result["tool_use_id"]: result for result in calls_of(message, f"{name}_tool_result")}
    return [results[use["id"]] for use in calls_of(message, "server_tool_use") if use["name"] == name]


# Responses --------------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("kind", ["web_search", "web_search_2025_08_26", "web_search_preview"])
async def test_a_search_is_a_web_search_call_with_sources_and_citations(
    upstream: Upstream, stream: bool, kind: str
) -> None:
    upstream.script("m", [Reply(calls=[FIND]), Reply(text=SAID)])
    async with served_to_openai(upstream, *EVERY_ENTRY, hosted_tools=EVERY) as client:
        response = await responded(
            client,
            stream=stream,
            model="m",
            input="go",
            tools=[{"type": kind}],
            tool_choice={"type": kind},
            include=["web_search_call.action.sources"],
        )
    search, message = response.output
    assert (search.type, search.status, search.action.type) == ("web_search_call", "completed", "search")
    assert search.action.query == "rust 2"
    assert [source.url for source in search.action.sources] == ["https://rust.example/2", "https://blog.example/rust"]
    [part] = message.content
    cited = [(each.type, each.title, part.text[each.start_index : each.end_index]) for each in part.annotations]
    assert cited == [
        ("url_citation", "Rust 2.0", "[Rust 2.0](https://rust.example/2)"),
        ("url_citation", "The Rust blog", "https://blog.example/rust"),
    ]
    assert response.tools[0].type == kind
    assert upstream.requests[0].body["tool_choice"] == {"type": "function", "function": {"name": "find"}}
    assert kind not in offered(upstream)


async def test_the_events_of_each_item_are_those_of_its_type(upstream: Upstream) -> None:
    calls = [
        FIND,
        Call("get_page", {"url": "https://a.example/"}),
        Call("run_code", {"code": "print(42)"}),
        Call("search_files", {"query": "holidays"}),
        Call("draw", {"prompt": "a dot"}),
    ]
    upstream.script("m", [Reply(calls=calls), Reply(text="Done.")])
    tools = [
        {"type": "web_search"},
        {"type": "web_fetch"},
        {"type": "code_interpreter", "container": {"type": "auto"}},
        {"type": "file_search", "vector_store_ids": ["vs_1"]},
        {"type": "image_generation"},
    ]
    include = ["code_interpreter_call.outputs", "file_search_call.results", "web_search_call.results"]
    async with served_to_http(upstream, *EVERY_ENTRY, hosted_tools=EVERY) as client:
        events = await raw_events(client, {"model": "m", "input": "go", "tools": tools, "include": include})
    kinds = {event["type"] for event in events}
    assert {
        *(f"response.web_search_call.{word}" for word in ("in_progress", "searching", "completed")),
        *(f"response.file_search_call.{word}" for word in ("in_progress", "searching", "completed")),
        *(f"response.code_interpreter_call.{word}" for word in ("in_progress", "interpreting", "completed")),
        *(f"response.code_interpreter_call_code.{word}" for word in ("delta", "done")),
        *(f"response.image_generation_call.{word}" for word in ("in_progress", "generating", "completed")),
    } <= kinds
    search, page, code, files, image, message = events[-1]["response"]["output"]
    assert search["results"][0] == {"type": "text_result", "url": "https://rust.example/2", "title": "Rust 2.0"}
    assert page["action"] == {"type": "open_page", "url": "https://a.example/"}
    assert (code["code"], code["outputs"]) == ("print(42)", [{"type": "logs", "logs": "42\n"}])
    assert (files["queries"], files["results"][0]["text"]) == (["holidays"], "Holidays are booked in the portal.")
    assert base64.b64decode(image["result"]) == PIXEL
    assert message["type"] == "message"
    [warning] = [text for text in events[-1]["response"]["x_callgate"]["warnings"] if "vector_store_ids" in text]
    assert "tools.file_search.vector_store_ids" in warning


@BOTH
async def test_a_search_that_fails_is_a_failed_item(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(calls=[Call("find", {"query": "nothing"})]), Reply(text="I could not search.")])
    async with served_to_openai(upstream, *EVERY_ENTRY, hosted_tools=EVERY) as client:
        response = await responded(client, stream=stream, model="m", input="go", tools=[{"type": "web_search"}])
    assert [(item.type, item.status) for item in response.output] == [
        ("web_search_call", "failed"),
        ("message", "completed"),
    ]


@pytest.mark.parametrize("way", ["items", "stateless", "previous", "references"])
async def test_items_that_come_back_are_the_round_that_they_were(upstream: Upstream, way: str) -> None:
    upstream.script("m", [Reply(calls=[FIND]), Reply(text="Found."), Reply(text="Again.")])
    tools: Any = [{"type": "web_search"}]
    async with served_to_openai(upstream, *EVERY_ENTRY, hosted_tools=EVERY) as client:
        store = way != "stateless"
        first = await client.responses.create(model="m", input="go", tools=tools, store=store)
        asked: Any = {"model": "m", "tools": tools, "store": store}
        user = {"role": "user", "content": "and now?"}
        if way == "previous":
            asked |= {"previous_response_id": first.id, "input": [user]}
        elif way == "references":
            items: list[Any] = [{"type": "item_reference", "id": item.id} for item in first.output]
            asked["input"] = [{"role": "user", "content": "go"}, *items, user]
        else:
            items = [item.to_dict() for item in first.output]
            asked["input"] = [{"role": "user", "content": "go"}, *items, user]
        answer = await client.responses.with_raw_response.create(**asked)
    assert "x-callgate-warning" not in answer.headers
    _, assistant, result, said, _ = upstream.requests[-1].messages
    [call] = assistant["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("find", {"query": "rust 2"})
    assert (result["role"], result["tool_call_id"], result["content"]) == ("tool", call["id"], RESULT)
    assert said["content"] == "Found."


async def test_items_of_calls_that_are_not_kept_say_what_the_client_was_shown(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[FIND]), Reply(text="Found."), Reply(text="Again.")])
    async with served_to_openai(upstream, *EVERY_ENTRY, hosted_tools=EVERY) as client:
        include: Any = ["web_search_call.action.sources"]
        tools: Any = [{"type": "web_search"}]
        first = await client.responses.create(model="m", input="go", tools=tools, include=include, store=False)
        items = [item.to_dict() for item in first.output]
    async with served_to_openai(upstream, *EVERY_ENTRY, hosted_tools=EVERY) as client:
        await client.responses.create(model="m", input=[*items, {"role": "user", "content": "and?"}], tools=tools)
    assistant, result, *_ = upstream.requests[-1].messages
    assert assistant["tool_calls"][0]["function"]["name"] == "find"
    assert result["content"] == "https://rust.example/2\nhttps://blog.example/rust"


async def test_a_round_before_a_call_of_the_clients_comes_back_once(upstream: Upstream) -> None:
    look: Any = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}, "strict": None}
    upstream.script("m", [Reply(calls=[FIND]), Reply(calls=[Call("look", {})]), Reply(text="Done.")])
    async with served_to_openai(upstream, *EVERY_ENTRY, hosted_tools=EVERY) as client:
        tools: Any = [{"type": "web_search"}, look]
        first = await client.responses.create(model="m", input="go", tools=tools, store=False)
        items = [item.to_dict() for item in first.output]
        output = {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "seen"}
        await client.responses.create(
            model="m", input=[{"role": "user", "content": "go"}, *items, output], tools=tools, store=False
        )
    messages = upstream.requests[-1].messages
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant", "tool"]
    assert [message["content"] for message in messages if message["role"] == "tool"] == [RESULT, "seen"]


# Messages ---------------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("kind", ["web_search_20250305", "web_search_20260209"])
async def test_a_search_is_a_server_tool_use_with_its_result(upstream: Upstream, stream: bool, kind: str) -> None:
    upstream.script("m", [Reply(text="Let me see.", calls=[FIND]), Reply(text=SAID)])
    async with served_to_messages(upstream, *EVERY_ENTRY, hosted_tools=EVERY) as client:
        message = await client.ask(
            stream=stream,
            tools=[{"type": kind, "name": "web_search"}],
            tool_choice={"type": "tool", "name": "web_search"},
        )
    before, use, result, after = message["content"]
    assert (before["text"], after["text"].strip()) == ("Let me see.", SAID)
    assert (use["type"], use["name"], use["input"]) == ("server_tool_use", "web_search", {"query": "rust 2"})
    assert (result["type"], result["tool_use_id"]) == ("web_search_tool_result", use["id"])
    assert use["id"].startswith("srvtoolu_")
    assert result["content"][0] == {
        "type": "web_search_result",
        "url": "https://rust.example/2",
        "title": "Rust 2.0",
        "encrypted_content": "",
        "page_age": None,
    }
    assert message["usage"]["server_tool_use"] == {"web_search_requests": 1, "web_fetch_requests": 0}
    assert message["stop_reason"] == "end_turn"
    assert upstream.requests[0].body["tool_choice"] == {"type": "function", "function": {"name": "find"}}


@BOTH
async def test_pages_and_programs_have_blocks_of_their_own(upstream: Upstream, stream: bool) -> None:
    calls = [Call("get_page", {"url": "https://a.example/"}), Call("run_code", {"code": "print(42)"})]
    upstream.script("m", [Reply(calls=[*calls, Call("run_code", {"code": "raise"})]), Reply(text="Done.")])
    tools = [
        {"type": "web_fetch_20250910", "name": "web_fetch"},
        {"type": "code_execution_20250825", "name": "code_execution"},
    ]
    async with served_to_messages(upstream, *EVERY_ENTRY, hosted_tools=EVERY) as client:
        message = await client.ask(stream=stream, tools=tools)
    uses = calls_of(message, "server_tool_use")
    assert [(use["name"], use["input"]) for use in uses] == [
        ("web_fetch", {"url": "https://a.example/"}),
        ("code_execution", {"code": "print(42)"}),
        ("code_execution", {"code": "raise"}),
    ]
    [page] = calls_of(message, "web_fetch_tool_result")
    assert page["content"]["content"]["source"]["data"] == "The page at https://a.example/"
    good, bad = (result["content"] for result in results_of(message, "code_execution"))
    assert (good["stdout"], good["return_code"]) == ("42\n", 0)
    assert (bad["stderr"], bad["return_code"]) == ("Traceback: boom", 1)


@BOTH
async def test_max_uses_is_kept_and_the_model_is_told(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(calls=[FIND, Call("find", {"query": "more"})]), Reply(text="Done.")])
    async with served_to_messages(upstream, *EVERY_ENTRY, hosted_tools=EVERY) as client:
        message = await client.ask(stream=stream, tools=[{**SEARCH_BLOCK, "max_uses": 1}])
    good, bad = results_of(message, "web_search")
    assert isinstance(good["content"], list)
    assert bad["content"] == {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"}
    assert message["usage"]["server_tool_use"]["web_search_requests"] == 1
    assert "no further use" in [*upstream.requests[-1].tool_results.values()][-1]


@pytest.mark.parametrize("kept", [True, False])
async def test_blocks_that_come_back_are_the_round_that_they_were(upstream: Upstream, kept: bool) -> None:
    upstream.script("m", [Reply(text="So.", calls=[FIND]), Reply(text="Found."), Reply(text="Again.")])
    tools = [SEARCH_BLOCK]
    async with served_to_messages(upstream, *EVERY_ENTRY, hosted_tools=EVERY) as client:
        first = await client.ask(tools=tools)
        user = {"role": "user", "content": "hi"}
        messages = [user, {"role": "assistant", "content": first["content"]}, {"role": "user", "content": "and now?"}]
        if kept:
            again = await client.ask(tools=tools, messages=messages)
    if not kept:
        async with served_to_messages(upstream, *EVERY_ENTRY, hosted_tools=EVERY) as client:
            again = await client.ask(tools=tools, messages=messages)
    assert text_of(again) == "Again."
    assert "warnings" not in again["x_callgate"]
    _, assistant, result, said, _ = upstream.requests[-1].messages
    [call] = assistant["tool_calls"]
    assert assistant["content"] == "So."
    assert json.loads(call["function"]["arguments"]) == {"query": "rust 2"}
    assert result["tool_call_id"] == call["id"]
    if kept:
        assert result["content"] == RESULT
    else:
        assert result["content"] == "Rust 2.0\nhttps://rust.example/2\nThe Rust blog\nhttps://blog.example/rust"
    assert said["content"].strip() == "Found."


async def test_a_round_before_a_call_of_the_clients_comes_back_once_in_messages(upstream: Upstream) -> None:
    look = {"name": "look", "input_schema": {"type": "object", "properties": {}}}
    upstream.script("m", [Reply(calls=[FIND]), Reply(calls=[Call("look", {})]), Reply(text="Done.")])
    async with served_to_messages(upstream, *EVERY_ENTRY, hosted_tools=EVERY) as client:
        tools = [SEARCH_BLOCK, look]
        first = await client.ask(tools=tools)
        [use] = calls_of(first)
        answer = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use["id"], "content": "seen"}]}
        said = {"role": "assistant", "content": first["content"]}
        await client.ask(tools=tools, messages=[{"role": "user", "content": "hi"}, said, answer])
    messages = upstream.requests[-1].messages
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant", "tool"]
    assert [message["content"] for message in messages if message["role"] == "tool"] == [RESULT, "seen"]


async def test_half_a_round_of_blocks_is_answered_all_the_same(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[FIND]), Reply(text="Found."), Reply(text="Again.")])
    async with served_to_messages(upstream, *EVERY_ENTRY, hosted_tools=EVERY) as client:
        first = await client.ask(tools=[SEARCH_BLOCK])
        use, result, *_ = first["content"]
        half = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": [use]}]
        again = await client.ask(tools=[SEARCH_BLOCK], messages=[*half, {"role": "user", "content": "and?"}])
        lone = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": [result]}]
        refused = await client.ask(tools=[SEARCH_BLOCK], messages=[*lone, {"role": "user", "content": "and?"}])
    assert text_of(again) == "Again."
    assert [message["role"] for message in upstream.requests[-1].messages] == ["user", "assistant", "tool", "user"]
    assert refused["error"]["type"] == "invalid_request_error"


# Chat -------------------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("n", [1, 2])
async def test_a_chat_that_asks_for_a_search_gets_citations(upstream: Upstream, stream: bool, n: int) -> None:
    upstream.script("m", [*[Reply(calls=[FIND])] * n, *[Reply(text=SAID)] * n])
    async with served_to_openai(upstream, *EVERY_ENTRY, hosted_tools=EVERY) as client:
        asked: Any = {"model": "m", "messages": [{"role": "user", "content": "go"}], "n": n, "web_search_options": {}}
        if stream:
            texts = [""] * n
            annotations: list[list[Any]] = [[] for _ in range(n)]
            async for chunk in await client.chat.completions.create(**asked, stream=True):
                for choice in chunk.choices:
                    texts[choice.index] += choice.delta.content or ""
                    annotations[choice.index] += getattr(choice.delta, "annotations", None) or []
        else:
            answer = await client.chat.completions.create(**asked)
            texts = [choice.message.content for choice in answer.choices]
            annotations = [choice.message.model_dump()["annotations"] for choice in answer.choices]
    for text, cited in zip(texts, annotations, strict=True):
        inner = [each["url_citation"] for each in cited]
        assert [text[each["start_index"] : each["end_index"]] for each in inner] == [
            "[Rust 2.0](https://rust.example/2)",
            "https://blog.example/rust",
        ]
        assert [each["title"] for each in inner] == ["Rust 2.0", "The Rust blog"]
    assert all("web_search_options" not in request.body for request in upstream.requests)


async def test_tools_of_hosted_types_in_a_chat_are_mapped_as_well(upstream: Upstream) -> None:
    look = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    upstream.script("m", [Reply(text="ok")] * 2)
    async with served_to_openai(upstream, *EVERY_ENTRY, hosted_tools=EVERY) as client:
        asked: Any = {"model": "m", "messages": [{"role": "user", "content": "go"}]}
        await client.chat.completions.create(**asked, tools=[{"type": "web_search"}, look])
        await client.chat.completions.create(**asked, tools=[{"type": "web_search"}])
    assert sorted(offered(upstream)) == sorted(["look", *EVERY.values()])
    assert sorted(offered(upstream, 1)) == sorted(EVERY.values())


# What the request says of them ------------------------------------------------------------------------------------------


async def test_domains_reach_a_tool_that_takes_them_and_bound_what_the_model_names(upstream: Upstream) -> None:
    named = Call("find_within", {"query": "x", "allowed_domains": ["a.example", "b.example"]})
    upstream.script("m", [Reply(calls=[named]), Reply(text="ok")] * 2)
    where = {"type": "approximate", "country": "PT", "city": "Lisbon"}
    hosted = {"web_search": "find_within"}
    async with served(upstream, entry("find_within"), hosted_tools=hosted) as url:
        async with openai_client(url) as client:
            filters = {"allowed_domains": ["example.org", "b.example"]}
            tools: Any = [{"type": "web_search", "filters": filters, "user_location": where}]
            await client.responses.create(model="m", input="go", tools=tools)
        async with http_client(url) as http:
            tools = [{**SEARCH_BLOCK, "blocked_domains": ["c.example"]}]
            await MessagesClient(http).ask(tools=tools)
    allowed, blocked = (next(iter(request.tool_results.values())) for request in upstream.requests[1::2])
    assert allowed == "allowed ['b.example'] blocked None country PT"
    assert blocked == "allowed ['a.example', 'b.example'] blocked ['c.example'] country "


async def test_domains_that_a_tool_cannot_keep_are_refused_by_name_on_every_api(upstream: Upstream) -> None:
    async with served(upstream, *EVERY_ENTRY, hosted_tools=EVERY) as url:
        async with openai_client(url) as client:
            tools: Any = [{"type": "web_search", "filters": {"allowed_domains": ["a.example"]}}]
            with pytest.raises(openai.BadRequestError) as caught:
                await client.responses.create(model="m", input="go", tools=tools)
            assert caught.value.param == "tools[0].filters.allowed_domains"
        async with http_client(url) as http:
            refused = await MessagesClient(http).ask(tools=[{**SEARCH_BLOCK, "allowed_domains": ["a.example"]}])
            both = {**SEARCH_BLOCK, "allowed_domains": ["a.example"], "blocked_domains": ["b.example"]}
            twice = await MessagesClient(http).ask(tools=[both])
    assert refused["error"]["message"].startswith("tools.0.allowed_domains: ")
    assert twice["error"]["message"].startswith("tools.0.blocked_domains: ")
    assert len(upstream.requests) == 0


async def test_addresses_to_fetch_are_held_to_the_domains(upstream: Upstream) -> None:
    pages = ["https://a.example/", "https://evil.example/a.example", "https://sub.a.example/x"]
    upstream.script("m", [Reply(calls=[Call("get_page", {"url": page}) for page in pages]), Reply(text="ok")])
    fetch = {"type": "web_fetch_20250910", "name": "web_fetch", "allowed_domains": ["a.example"]}
    async with served_to_messages(upstream, *EVERY_ENTRY, hosted_tools=EVERY) as client:
        message = await client.ask(tools=[fetch])
    kinds = [result["content"].get("error_code") for result in results_of(message, "web_fetch")]
    assert kinds == [None, "url_not_allowed", None]


async def test_what_a_call_is_about_is_the_models_alone(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[Call("get_page", {"url": "https://a.example/"})]), Reply(text="ok")])
    fetch = {"type": "web_fetch", "filters": {"allowed_domains": ["a.example"]}, "url": "https://evil.example/"}
    async with served_to_http(upstream, *EVERY_ENTRY, hosted_tools=EVERY) as client:
        answer = (await client.post("/v1/responses", json={"model": "m", "input": "go", "tools": [fetch]})).json()
    assert upstream.requests[1].messages[-1]["content"] == "The page at https://a.example/"
    assert "tools.web_fetch.url" in str(answer["x_callgate"]["warnings"])


@BOTH
async def test_what_nobody_heeds_is_named(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(text="ok")] * 3)
    where = {"type": "approximate", "city": "Lisbon"}
    async with served(upstream, *EVERY_ENTRY, hosted_tools=EVERY) as url:
        async with openai_client(url) as client:
            tools: Any = [{"type": "web_search", "search_context_size": "high", "user_location": where}]
            response = await responded(client, stream=stream, model="m", input="go", tools=tools)
            chat = await client.chat.completions.with_raw_response.create(
                model="m",
                messages=[{"role": "user", "content": "go"}],
                web_search_options={"search_context_size": "low"},
            )
        async with http_client(url) as http:
            message = await MessagesClient(http).ask(stream=stream, tools=[{**SEARCH_BLOCK, "user_location": where}])
    named = "left out, because nothing here heeds it for this model: "
    assert response.x_callgate["warnings"] == [
        f"{named}tools.web_search.search_context_size, tools.web_search.user_location"
    ]
    assert chat.headers["x-callgate-warning"] == f"{named}tools.web_search.search_context_size"
    assert message["x_callgate"]["warnings"] == [f"{named}tools.web_search.user_location"]


# Whose it is ------------------------------------------------------------------------------------------------------------


async def test_a_key_that_may_not_use_the_tool_gets_what_it_got_without_it(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="ok")])
    async with served(upstream, *EVERY_ENTRY, hosted_tools=EVERY, auth="keys", keys=KEYS) as url:
        async with openai_client(url, api_key="cg-narrow") as client:
            tools: Any = [{"type": "web_search"}]
            answer = await client.responses.with_raw_response.create(model="m", input="go", tools=tools)
            with pytest.raises(openai.PermissionDeniedError):
                await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": "go"}], web_search_options={}
                )
        async with http_client(url) as http:
            refused = await MessagesClient(http, authorization="Bearer cg-narrow").ask(tools=[SEARCH_BLOCK])
    assert "web_search" in answer.headers["x-callgate-warning"]
    assert offered(upstream) == ["get_page"]
    assert refused["error"]["type"] == "permission_error"
    assert len(upstream.requests) == 1


async def test_the_round_of_another_key_is_not_read(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[FIND]), Reply(text="Found."), Reply(text="Again.")])
    keys = [{"name": name, "hash": hash_key(f"cg-{name}")} for name in ("alice", "bob")]
    async with served(upstream, *EVERY_ENTRY, hosted_tools=EVERY, auth="keys", keys=keys) as url:
        async with openai_client(url, api_key="cg-alice") as client:
            tools: Any = [{"type": "web_search"}]
            first = await client.responses.create(model="m", input="go", tools=tools, store=False)
        async with openai_client(url, api_key="cg-bob") as client:
            items: list[Any] = [item.to_dict() for item in first.output]
            await client.responses.create(model="m", input=[*items, {"role": "user", "content": "and?"}], tools=tools)
    assert [*upstream.requests[-1].tool_results.values()] == ["[Its result is not kept any more.]"]


async def test_a_request_that_narrows_the_tool_away_is_told(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="ok")])
    async with served_to_openai(upstream, *EVERY_ENTRY, hosted_tools=EVERY) as client:
        answer = await client.responses.with_raw_response.create(
            model="m", input="go", tools=[{"type": "web_search"}], extra_headers={"X-Callgate-Tools": "get_page"}
        )
    assert "web_search" in answer.headers["x-callgate-warning"]


async def test_the_clients_own_tool_keeps_its_name_beside_ours(upstream: Upstream) -> None:
    find: Any = {"type": "function", "name": "find", "parameters": {"type": "object", "properties": {}}, "strict": None}
    upstream.script("m", [Reply(calls=[Call("callgate__find", {"query": "x"}), Call("find", {})])])
    async with served_to_openai(upstream, *EVERY_ENTRY, hosted_tools=EVERY) as client:
        tools: Any = [{"type": "web_search"}, find]
        choice: Any = {"type": "web_search"}
        response = await client.responses.create(model="m", input="go", tools=tools, tool_choice=choice)
    assert [item.type for item in response.output] == ["web_search_call", "function_call"]
    assert upstream.requests[0].body["tool_choice"]["function"]["name"] == "callgate__find"


async def test_an_entry_leaves_a_type_to_its_provider_or_maps_it_alone(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="ok")] * 3)
    asked: Any = {"model": "m", "messages": [{"role": "user", "content": "go"}], "web_search_options": {}}
    cases: list[dict[str, Any]] = [
        {"hosted_tools": EVERY, "entry": {"hosted_tools": {"web_search": "off"}}},
        {"hosted_tools": {}},
    ]
    for settings in cases:
        async with served_to_openai(upstream, *EVERY_ENTRY, **settings) as client:
            await client.chat.completions.create(**asked)
    async with served_to_openai(upstream, *EVERY_ENTRY, entry={"hosted_tools": {"web_search": "find"}}) as client:
        await client.chat.completions.create(**asked)
    assert ["web_search_options" in request.body for request in upstream.requests] == [True, True, False]


async def test_calls_of_declared_tools_wait_for_approval_as_all_do(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[FIND]), Reply(text="Then not.")])
    tool = entry("find", require_approval={"always": ["find"]})
    async with served_to_messages(
        upstream, tool, hosted_tools={"web_search": "find"}, approvals={"keyless": "nobody"}
    ) as client:
        message = await client.ask(tools=[SEARCH_BLOCK])
    [result] = calls_of(message, "web_search_tool_result")
    assert result["content"]["error_code"] == "unavailable"
    assert text_of(message).strip() == "Then not."


async def test_max_tool_calls_bounds_declared_tools(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[FIND]), Reply(calls=[Call("find", {"query": "b"})]), Reply(text="Done.")])
    async with served_to_openai(upstream, *EVERY_ENTRY, hosted_tools=EVERY) as client:
        tools: Any = [{"type": "web_search"}]
        response = await client.responses.create(model="m", input="go", tools=tools, max_tool_calls=1)
    assert [item.type for item in response.output] == ["web_search_call", "message"]


# Models behind the same API ---------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def in_front_of_claude(upstream: Upstream, **options: Any) -> AsyncIterator[MessagesClient]:
    config = make_config(
        upstream.root, models=[CLAUDE], provider="anthropic", tools=EVERY_ENTRY, lane="auto", **options
    )
    async with serve(create_app(config)) as url, http_client(url) as http:
        yield MessagesClient(http)


@BOTH
@pytest.mark.leaves("litellm", why="litellm keeps its thread for logging")
async def test_a_model_of_anthropics_is_sent_the_tool_unless_the_config_maps_it(
    upstream: Upstream, stream: bool
) -> None:
    upstream.script(CLAUDE, [Reply(text="ok"), Reply(calls=[FIND]), Reply(text="Found."), Reply(text="Again.")])
    asked: dict[str, Any] = {"model": CLAUDE, "tools": [SEARCH_BLOCK], "stream": stream}
    async with in_front_of_claude(upstream) as client:
        await client.ask(**asked)
    assert SEARCH_BLOCK in upstream.requests[0].body["tools"]
    async with in_front_of_claude(upstream, hosted_tools=EVERY) as client:
        first = await client.ask(**asked)
        said = {"role": "assistant", "content": first["content"]}
        user = {"role": "user", "content": "hi"}
        await client.ask(**asked, messages=[user, said, {"role": "user", "content": "and now?"}])
    assert [use["name"] for use in calls_of(first, "server_tool_use")] == ["web_search"]
    assert all(SEARCH_BLOCK not in request.body["tools"] for request in upstream.requests[1:])
    _, use, result, *_ = upstream.requests[-1].messages
    assert (use["content"][0]["type"], result["content"][0]["type"]) == ("tool_use", "tool_result")
    assert result["content"][0]["content"] == RESULT
    assert "srvtoolu_" not in str([block for block in use["content"] if block["type"] != "tool_use"])


async def test_an_item_that_comes_back_twice_counts_once_and_a_block_is_refused(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[FIND]), Reply(text="Found."), Reply(text="Again.")] * 2)
    async with served(upstream, *EVERY_ENTRY, hosted_tools=EVERY) as url:
        async with openai_client(url) as client:
            tools: Any = [{"type": "web_search"}]
            first = await client.responses.create(model="m", input="go", tools=tools, store=False)
            items: list[Any] = [first.output[0].to_dict()] * 2
            await client.responses.create(model="m", input=[*items, {"role": "user", "content": "and?"}], tools=tools)
        assert [message["role"] for message in upstream.requests[-1].messages] == ["assistant", "tool", "user"]
        async with http_client(url) as http:
            message = await MessagesClient(http).ask(tools=[SEARCH_BLOCK])
            twice = [{"role": "assistant", "content": [*message["content"][:2]] * 2}]
            user = {"role": "user", "content": "hi"}
            refused = await MessagesClient(http).ask(tools=[SEARCH_BLOCK], messages=[user, *twice, user])
            await MessagesClient(http).ask()
    assert "ids must be unique" in refused["error"]["message"]


async def test_what_a_request_declares_is_shown_to_a_model_that_searches_for_its_tools(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="ok")])
    async with served_to_openai(upstream, *EVERY_ENTRY, hosted_tools=EVERY, entry={"tool_search": "on"}) as client:
        tools: Any = [{"type": "web_search"}]
        await client.responses.create(model="m", input="go", tools=tools)
    assert "find" in upstream.requests[0].tool_names
    assert "draw" not in upstream.requests[0].tool_names
