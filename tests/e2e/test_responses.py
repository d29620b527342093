"""`POST /v1/responses` with the official client: the same conversation as a chat, in items."""

import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from callgate.access.keys import hash_key
from callgate.application import create_app
from tests.harness.clients import http_client, openai_client
from tests.harness.configs import make_config
from tests.harness.responses import check_events, raw_events, responded
from tests.harness.served import served_to_openai
from tests.harness.server import serve
from tests.scripted_upstream import Call, Cut, Reply, Upstream

pytestmark = pytest.mark.anyio

BOTH = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
LOOK: dict[str, Any] = {
    "type": "function",
    "name": "look",
    "parameters": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
}
OURS = [{"type": "mcp", "server_label": "callgate"}]
ADD = Call("add", {"a": 1, "b": 2})
KEYS = [{"name": name, "hash": hash_key(f"cg-{name}")} for name in ("alice", "bob")]


def kinds(response: Any) -> list[str]:
    return [item.type for item in response.output]


def messages_sent(upstream: Upstream, at: int = -1) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = upstream.requests[at].body["messages"]
    return messages


def output(call: Any, text: str = "yes") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call.call_id, "output": text}


# Our calls, and the client's -----------------------------------------------------------------------------------------


@BOTH
async def test_a_call_of_ours_is_an_mcp_call_between_what_the_model_says(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(text="Let me see.", calls=[ADD], reasoning="Sum it."), Reply(text="It is 3.")])
    async with served_to_openai(upstream, "add") as client:
        given: dict[str, Any] = {"model": "m", "input": "1+2?", "instructions": "Be brief.", "tools": OURS}
        given["reasoning"] = {"summary": "auto"}
        response = await responded(client, stream=stream, **given)
    assert kinds(response) == ["mcp_list_tools", "reasoning", "message", "mcp_call", "message"]
    _, thought, _, call, _ = response.output
    assert [part.text for part in thought.summary] == ["Sum it."]
    assert (call.name, json.loads(call.arguments), call.output) == ("add", {"a": 1, "b": 2}, "3")
    assert (call.server_label, call.status, call.error) == ("callgate", "completed", None)
    assert response.output_text == "Let me see.It is 3."
    assert (response.status, response.usage.total_tokens > 0) == ("completed", True)
    assert messages_sent(upstream)[0] == {"role": "system", "content": "Be brief."}
    assert [message["role"] for message in messages_sent(upstream)] == ["system", "user", "assistant", "tool"]


@BOTH
async def test_a_tool_that_fails_is_a_failed_mcp_call(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(calls=[Call("send_mail", {"to": "a", "text": "b"})]), Reply(text="It failed.")])
    async with served_to_openai(upstream, "send_mail") as client:
        response = await responded(client, stream=stream, model="m", input="try", tools=OURS)
    call = response.output[1]
    assert (call.status, call.output) == ("failed", None)
    assert "mailbox is full" in json.dumps(call.to_dict(warnings=False)["error"])
    assert response.output_text == "It failed."


@pytest.mark.parametrize(
    ("section", "entry", "key"),
    [
        ({"tools_shown": "hidden"}, {}, {}),
        ({}, {"responses": {"tools_shown": "hidden"}}, {}),
        ({}, {}, {"responses": {"tools_shown": "hidden"}}),
    ],
)
async def test_server_side_calls_are_hidden_by_config_model_or_key(
    upstream: Upstream, section: Any, entry: Any, key: Any
) -> None:
    upstream.script("m", [Reply(calls=[ADD]), Reply(text="3"), Reply(calls=[ADD]), Reply(text="3")])
    keys = [{**KEYS[0], **key}]
    config = make_config(upstream.url, tools=["add"], entry=entry, responses=section, auth="keys", keys=keys)
    async with serve(create_app(config)) as url, openai_client(url, api_key="cg-alice") as client:
        for stream in (True, False):
            asked = {"model": "m", "input": "1+2?", "tools": OURS}
            assert kinds(await responded(client, stream=stream, **asked)) == ["message"]


@BOTH
async def test_calls_of_the_clients_are_handed_out_and_answered(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(calls=[Call("look", {"q": "a"}), Call("look", {"q": "b"})]), Reply(text="Seen.")])
    async with served_to_openai(upstream) as client:
        first = await responded(client, stream=stream, model="m", input="look", tools=[LOOK])
        assert kinds(first) == ["function_call", "function_call"]
        assert [call.status for call in first.output] == ["completed", "completed"]
        answers = [output(call, call.arguments) for call in reversed(first.output)]
        items = [{"role": "user", "content": "look"}, *(item.to_dict() for item in first.output), *answers]
        second = await responded(client, stream=stream, model="m", input=items, tools=[LOOK])
    assert second.output_text == "Seen."
    said = messages_sent(upstream)
    assert [message["role"] for message in said] == ["user", "assistant", "tool", "tool"]
    assert [json.loads(message["content"])["q"] for message in said[2:]] == ["a", "b"]


@BOTH
@pytest.mark.parametrize("way", ["chain", "items", "items_without_ours", "references"])
async def test_what_we_ran_beside_a_clients_call_stands_in_the_history_once(
    upstream: Upstream, stream: bool, way: str
) -> None:
    turns = [
        Reply(text="First.", calls=[Call("add", {"a": 4, "b": 5})], reasoning="One."),
        Reply(calls=[ADD, Call("look", {"q": "x"})], reasoning="Two."),
        Reply(text="Done."),
    ]
    upstream.script("m", turns)
    async with served_to_openai(upstream, "add") as client:
        first = await responded(client, stream=stream, model="m", input="go", tools=[LOOK])
        call = first.output[-1]
        given: dict[str, Any] = {"input": [output(call)]}
        if way == "chain":
            given["previous_response_id"] = first.id
        else:
            shown = [item.to_dict() for item in first.output if way != "items_without_ours" or item.type != "mcp_call"]
            if way == "references":
                shown = [{"type": "item_reference", "id": item["id"]} for item in shown]
            given["input"] = [{"role": "user", "content": "go"}, *shown, output(call)]
        response = await responded(client, stream=stream, model="m", tools=[LOOK], **given)
    assert response.output_text == "Done."
    said = messages_sent(upstream)
    assert [message["role"] for message in said] == ["user", "assistant", "tool", "assistant", "tool", "tool"]
    assert [message["content"] for message in said if message["role"] == "tool"] == ["9", "3", "yes"]
    assert [message.get("reasoning_content") for message in said if message["role"] == "assistant"] == ["One.", "Two."]


async def test_an_mcp_call_that_comes_back_without_anything_kept_is_a_round_of_the_history(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="ok")])
    shown = {"type": "mcp_call", "id": "mcp_1", "name": "add", "server_label": "callgate", "arguments": '{"a":1,"b":2}'}
    items = [{"role": "user", "content": "go"}, {**shown, "output": "3"}, {"role": "assistant", "content": "It is 3."}]
    async with served_to_openai(upstream, "add") as client:
        await client.responses.create(model="m", input=[*items, {"role": "user", "content": "sure?"}])
    said = messages_sent(upstream)
    assert [message["role"] for message in said] == ["user", "assistant", "tool", "assistant", "user"]
    assert said[1]["tool_calls"][0]["function"]["name"] == "add"
    assert said[2]["content"] == "3"


async def test_no_more_of_our_tools_run_than_the_request_allows(upstream: Upstream) -> None:
    calls = [Call("add", {"a": n, "b": 1}) for n in range(3)]
    upstream.script("m", [Reply(calls=calls), Reply(calls=calls[:1]), Reply(text="Enough.")])
    async with served_to_openai(upstream, "add") as client:
        response = await client.responses.create(model="m", input="go", max_tool_calls=2, tools=OURS)
    assert kinds(response) == ["mcp_list_tools", "mcp_call", "mcp_call", "message"]
    assert [call.output for call in response.output[1:3]] == ["1", "2"]
    assert sum("max_tool_calls" in str(message["content"]) for message in messages_sent(upstream)) == 2


# Tools that a chat does not have -------------------------------------------------------------------------------------


@BOTH
async def test_tools_in_a_namespace_and_custom_tools_come_back_as_they_were_named(
    upstream: Upstream, stream: bool
) -> None:
    patch = Call("patch", {"input": "*** Begin"})
    upstream.script("m", [Reply(calls=[Call("files__look", {"q": "x"}), patch]), Reply(text="ok")])
    tools = [{"type": "namespace", "name": "files", "tools": [LOOK]}, {"type": "custom", "name": "patch"}]
    async with served_to_openai(upstream) as client:
        # The accumulator of the official client knows no namespaces in streams yet, so both are read from the wire.
        body = {"model": "m", "input": "go", "tools": tools, "stream": False}
        http: httpx.AsyncClient
        async with http_client(str(client.base_url).removesuffix("/v1/")) as http:
            if stream:
                events = await raw_events(http, body)
                check_events(events)
                items = events[-1]["response"]["output"]
            else:
                items = (await http.post("/v1/responses", json=body)).json()["output"]
            call, custom = items
            assert (call["type"], call["name"], call["namespace"]) == ("function_call", "look", "files")
            assert (custom["type"], custom["name"], custom["input"]) == ("custom_tool_call", "patch", "*** Begin")
            answers = [
                {"type": "function_call_output", "call_id": call["call_id"], "output": "seen"},
                {"type": "custom_tool_call_output", "call_id": custom["call_id"], "output": "patched"},
            ]
            again = await http.post(
                "/v1/responses", json={**body, "input": [{"role": "user", "content": "go"}, *items, *answers]}
            )
            assert again.status_code == 200, again.text
    names = [call["function"]["name"] for call in messages_sent(upstream)[1]["tool_calls"]]
    assert names == ["files__look", "patch"]


async def test_unsupported_tool_types_are_left_out_with_a_warning(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="ok")])
    tools: list[Any] = [{"type": "web_search"}, {"type": "tool_search"}, LOOK]
    async with served_to_openai(upstream) as client:
        answer = await client.responses.with_raw_response.create(model="m", input="go", tools=tools)
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(
                model="m", input="go", tools=tools, tool_choice={"type": "web_search_preview"}
            )
    assert "web_search" in answer.headers["x-callgate-warning"]
    assert [tool["function"]["name"] for tool in upstream.requests[0].body["tools"]] == ["look"]
    assert caught.value.param == "tool_choice"
    assert len(upstream.requests) == 1


async def test_a_server_side_tool_replaces_a_hosted_type_if_configured(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[ADD]), Reply(text="ok")])
    async with served_to_openai(upstream, "add", hosted_tools={"web_search": "add"}) as client:
        answer = await client.responses.with_raw_response.create(
            model="m",
            input="go",
            tools=[{"type": "web_search"}],
            tool_choice={"type": "web_search"},
        )
    assert "x-callgate-warning" not in answer.headers
    assert upstream.requests[0].body["tool_choice"] == {"type": "function", "function": {"name": "add"}}


async def test_an_mcp_entry_narrows_what_is_on_offer_and_names_no_address(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="ok"), Reply(text="ok")])
    async with served_to_openai(upstream, "add", "echo") as client:
        entry: dict[str, Any] = {"type": "mcp", "server_label": "callgate"}
        await client.responses.create(model="m", input="go", tools=[{**entry, "allowed_tools": ["echo"]}])
        await client.responses.create(model="m", input="go", tools=[entry])
        for field in ("server_url", "connector_id", "tunnel_id"):
            with pytest.raises(openai.BadRequestError) as caught:
                await client.responses.create(model="m", input="go", tools=[{**entry, field: "http://evil"}])
            assert caught.value.param == f"tools[0].{field}"
    offered = [[tool["function"]["name"] for tool in request.body["tools"]] for request in upstream.requests]
    assert offered == [["echo", "read_more"], ["add", "echo", "read_more"]]


# State ---------------------------------------------------------------------------------------------------------------


@BOTH
async def test_a_response_is_gone_on_from_without_its_instructions(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", lambda request: Reply(text=f"answer {request.turn}"))
    async with served_to_openai(upstream) as client:
        first = await responded(client, stream=stream, model="m", input="one", instructions="First.")
        second = await responded(
            client, stream=stream, model="m", input="two", instructions="Second.", previous_response_id=first.id
        )
        fork = await responded(client, stream=stream, model="m", input="three", previous_response_id=first.id)
        kept = await client.responses.retrieve(second.id)
        items = await client.responses.input_items.list(second.id)
    assert (kept.id, kept.output_text, kept.previous_response_id) == (second.id, second.output_text, first.id)
    assert [item.content[0].text for item in items.data] == ["two"]
    texts = [[message["content"] for message in request.body["messages"]] for request in upstream.requests]
    assert texts[1] == ["Second.", "one", first.output_text, "two"]
    assert texts[2] == ["one", first.output_text, "three"]
    assert fork.previous_response_id == first.id


async def test_a_deleted_response_is_gone_and_its_children_live_on(upstream: Upstream) -> None:
    upstream.script("m", lambda request: Reply(text="ok"))
    async with served_to_openai(upstream) as client:
        first = await client.responses.create(model="m", input="one")
        second = await client.responses.create(model="m", input="two", previous_response_id=first.id)
        await client.responses.delete(first.id)
        for gone in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
            with pytest.raises(openai.NotFoundError):
                await gone(first.id)
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(model="m", input="three", previous_response_id=first.id)
        await client.responses.create(model="m", input="three", previous_response_id=second.id)
    assert (caught.value.code, caught.value.param) == ("previous_response_not_found", "previous_response_id")
    assert [message["content"] for message in messages_sent(upstream)] == ["one", "ok", "two", "ok", "three"]


async def test_what_is_not_to_be_stored_cannot_be_asked_for(upstream: Upstream) -> None:
    upstream.script("m", lambda request: Reply(text="ok"))
    async with served_to_openai(upstream) as client:
        response = await client.responses.create(model="m", input="one", store=False)
        assert response.to_dict()["store"] is False
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(response.id)
        with pytest.raises(openai.BadRequestError):
            await client.responses.create(model="m", input="two", previous_response_id=response.id)


@pytest.mark.parametrize("where", ["memory", "disk"])
async def test_a_response_outlives_the_process_where_there_is_a_folder_for_it(
    upstream: Upstream, tmp_path: Path, where: str
) -> None:
    upstream.script("m", lambda request: Reply(text="ok"))
    options = {"data_dir": str(tmp_path)} if where == "disk" else {}
    async with served_to_openai(upstream, **options) as client:
        response = await client.responses.create(model="m", input="one")
    async with served_to_openai(upstream, **options) as client:
        if where == "disk":
            assert (await client.responses.retrieve(response.id)).output_text == "ok"
            return
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(response.id)


async def test_a_response_expires(upstream: Upstream) -> None:
    upstream.script("m", lambda request: Reply(text="ok"))
    async with served_to_openai(upstream, store={"conversation_seconds": 0.001}) as client:
        response = await client.responses.create(model="m", input="one")
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(response.id)


@BOTH
async def test_a_response_is_kept_before_its_last_event_goes_out(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", lambda request: Reply(text="ok"))
    async with served_to_openai(upstream) as client:
        if not stream:
            response = await client.responses.create(model="m", input="one")
            assert (await client.responses.retrieve(response.id)).id == response.id
            return
        async with await client.responses.create(model="m", input="one", stream=True) as events:
            async for event in events:
                if event.type == "response.completed":
                    assert (await client.responses.retrieve(event.response.id)).id == event.response.id


@BOTH
async def test_thinking_comes_back_sealed_and_goes_to_the_model_that_thought_it(
    upstream: Upstream, stream: bool
) -> None:
    upstream.script("m", lambda request: Reply(text="ok", reasoning="Deep."))
    upstream.script("other", lambda request: Reply(text="ok"))
    async with served_to_openai(upstream, models=["m", "other"]) as client:
        given: dict[str, Any] = {"store": False, "include": ["reasoning.encrypted_content"]}
        first = await responded(client, stream=stream, model="m", input="one", **given)
        thought = first.output[0].to_dict()
        assert thought["summary"] == []
        assert thought["encrypted_content"]
        items = [item.to_dict() for item in first.output]
        again = [{"role": "user", "content": "one"}, *items, {"role": "user", "content": "two"}]
        await client.responses.create(model="m", input=again, **given)
        await client.responses.create(model="other", input=again, **given)
        foreign = [{**item, "encrypted_content": "gAAAA"} if item["type"] == "reasoning" else item for item in items]
        await client.responses.create(model="m", input=[*foreign, {"role": "user", "content": "two"}], **given)
    thoughts = [
        [message.get("reasoning_content") for message in request.body["messages"]] for request in upstream.requests
    ]
    assert thoughts[1:] == [[None, "Deep.", None], [None, None, None], [None, None]]


async def test_input_tokens_are_counted_with_what_was_kept_and_what_is_on_offer(upstream: Upstream) -> None:
    upstream.script("m", lambda request: Reply(text="ok"))
    async with served_to_openai(upstream, "add") as client:
        first = await client.responses.create(model="m", input="a rather long question about nothing at all " * 20)
        asked = len(upstream.requests)
        few = await client.responses.input_tokens.count(model="m", input="hi")
        more = await client.responses.input_tokens.count(model="m", input="hi", previous_response_id=first.id)
        none = await client.responses.input_tokens.count(
            model="m", input="hi", extra_headers={"x-callgate-tools": "none"}
        )
        with pytest.raises(openai.BadRequestError):
            await client.responses.input_tokens.count(model="m", input=[{"type": "nonsense"}])
    assert none.input_tokens < few.input_tokens < more.input_tokens - 100
    assert few.object == "response.input_tokens"
    assert len(upstream.requests) == asked


# Whose they are ------------------------------------------------------------------------------------------------------


def fields_with(response_id: str, item_id: str) -> list[dict[str, Any]]:
    user = {"role": "user", "content": "mine now"}
    return [
        {"previous_response_id": response_id},
        {"input": [{"type": "item_reference", "id": item_id}, user]},
        {"conversation": response_id},
        {"conversation": {"id": "conv_1"}},
        {"prompt": {"id": "pmpt_1"}},
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "file_1"}]}]},
        {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "file_1"}]}]},
    ]


async def test_no_key_reaches_what_is_anothers_and_unknown_ids_look_the_same(upstream: Upstream) -> None:
    upstream.script("m", lambda request: Reply(text="the secret is cobalt"))
    config = make_config(upstream.url, auth="keys", keys=KEYS)
    async with (
        serve(create_app(config)) as url,
        openai_client(url, api_key="cg-alice") as alice,
        http_client(url, headers={"authorization": "Bearer cg-bob"}) as bob,
    ):
        response = await alice.responses.create(model="m", input="tell")
        item = str(response.output[0].id)
        made_up = response.id[:-4] + "beef"
        unknown_item = item.replace(response.id[5:], made_up[5:])
        before = len(upstream.requests)
        for mine, nobodys in zip(fields_with(response.id, item), fields_with(made_up, unknown_item), strict=True):
            answers = [
                await bob.post("/v1/responses", json={"model": "m", "input": "x"} | it) for it in (mine, nobodys)
            ]
            assert [answer.status_code in (400, 404) for answer in answers] == [True, True]
            assert _error_without_ids(answers[0], response.id, item) == _error_without_ids(
                answers[1], made_up, unknown_item
            )
        for method, path in (("GET", ""), ("GET", "/input_items"), ("POST", "/cancel"), ("DELETE", "")):
            answers = [await bob.request(method, f"/v1/responses/{id}{path}") for id in (response.id, made_up)]
            assert [answer.status_code for answer in answers] == [404, 404]
            assert _error_without_ids(answers[0], response.id, item) == _error_without_ids(
                answers[1], made_up, unknown_item
            )
        assert len(upstream.requests) == before
        assert (await alice.responses.retrieve(response.id)).id == response.id


def _error_without_ids(answer: httpx.Response, *ids: str) -> Any:
    text = answer.text
    for id in ids:
        text = text.replace(id, "ID")
    return json.loads(text)


# How they end --------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    ("reason", "expected"), [("length", "max_output_tokens"), ("content_filter", "content_filter")]
)
async def test_an_answer_that_was_cut_is_incomplete(
    upstream: Upstream, stream: bool, reason: str, expected: str
) -> None:
    upstream.script("m", [Reply(text="half", finish=reason)])
    async with served_to_openai(upstream) as client:
        response = await responded(client, stream=stream, model="m", input="go")
    assert (response.status, response.incomplete_details.reason) == ("incomplete", expected)
    assert response.output_text == "half"


@BOTH
async def test_a_call_that_did_not_come_whole_is_never_handed_out(upstream: Upstream, stream: bool) -> None:
    whole, cut = Call("look", {"q": "a"}), Call("look", '{"q": "b')
    for calls, status in (([whole, cut], "incomplete"), ([cut], "incomplete")):
        upstream.script("m", [Reply(calls=calls, finish="length")] * 2)
        async with served_to_openai(upstream) as client:
            response = await responded(client, stream=stream, model="m", input="go", tools=[LOOK])
        assert response.status == status
        assert [json.loads(item.arguments) for item in response.output] == [{"q": "a"}] * (len(calls) - 1)
    upstream.script("m", [Reply(calls=[cut], finish="tool_calls")])
    async with served_to_openai(upstream) as client:
        response = await responded(client, stream=stream, model="m", input="go", tools=[LOOK])
    assert (response.status, response.output) == ("failed", [])


async def test_an_error_in_a_stream_is_an_event_and_then_a_failed_response(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="Once upon a time", fault=Cut(after=2))])
    async with served_to_openai(upstream) as client, http_client(str(client.base_url).removesuffix("/v1/")) as http:
        events = await raw_events(http, {"model": "m", "input": "go"})
    check_events(events)
    error, failed = events[-2:]
    assert (error["type"], error["code"]) == ("error", "server_error")
    flat = {name: error[name] for name in ("code", "message", "param")}
    assert error["error"] == {"type": "server_error", **flat}, "clients read one or the other"
    assert set(error) == {"type", "sequence_number", "error", *flat}
    assert failed["response"]["error"] == {"code": "server_error", "message": error["message"]}


@BOTH
async def test_after_a_tool_that_writes_an_error_is_one_that_clients_do_not_repeat(
    upstream: Upstream, stream: bool
) -> None:
    upstream.script("m", [Reply(calls=[ADD]), *[Reply(status=400, body={"error": {"message": "no"}})]])
    tool = {"kind": "python", "function": "tests.harness.toolshed:add", "safety": "write"}
    async with (
        served_to_openai(upstream, tool) as client,
        http_client(str(client.base_url).removesuffix("/v1/")) as http,
    ):
        if stream:
            events = await raw_events(http, {"model": "m", "input": "go"})
            assert [event["code"] for event in events if event["type"] == "error"] == ["invalid_prompt"]
            assert events[-1]["response"]["error"]["code"] == "invalid_prompt"
        else:
            answer = await http.post("/v1/responses", json={"model": "m", "input": "go"})
            assert (answer.status_code >= 400, answer.headers["x-should-retry"]) == (True, "false")


async def test_a_response_with_a_key_for_idempotency_is_made_once(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="once")])
    async with served_to_openai(upstream) as client:
        headers = {"idempotency-key": "k-1"}
        first, second = [await client.responses.create(model="m", input="go", extra_headers=headers) for _ in range(2)]
    assert first.id == second.id
    assert len(upstream.requests) == 1


async def test_the_fields_of_a_request_reach_the_model_as_those_of_a_chat(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text='{"a":1}')])
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    async with served_to_openai(upstream) as client:
        response = await client.responses.create(
            model="m",
            input=[
                {"role": "developer", "content": "d"},
                {"role": "user", "content": [{"type": "input_text", "text": "u"}]},
            ],
            text={"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}, "verbosity": "low"},
            reasoning={"effort": "low"},
            max_output_tokens=50,
            temperature=0.5,
            metadata={"k": "v"},
            service_tier="flex",
            safety_identifier="u-1",
            prompt_cache_key="p",
            truncation="auto",
        )
    sent = upstream.requests[0].body
    assert sent["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": schema, "strict": True},
    }
    wanted = {"reasoning_effort": "low", "verbosity": "low", "max_completion_tokens": 50, "temperature": 0.5}
    assert {name: sent[name] for name in wanted} == wanted
    assert [message["content"] for message in sent["messages"]] == ["d", "u"]
    shown = response.to_dict()
    assert (shown["metadata"], shown["max_output_tokens"], shown["truncation"]) == ({"k": "v"}, 50, "auto")
    assert "previous_response_id" not in sent


async def test_a_phase_that_no_chat_has_a_place_for_is_left_out_and_reported(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="ok")])
    said = {"type": "message", "role": "assistant", "phase": "commentary", "content": "I look."}
    async with serve(create_app(make_config(upstream.url))) as url, http_client(url) as http:
        answer = await http.post(
            "/v1/responses", json={"model": "m", "input": [said, {"role": "user", "content": "go"}]}
        )
    assert answer.status_code == 200
    assert "`phase`" in answer.headers["x-callgate-warning"]
    assert messages_sent(upstream)[0] == {"role": "assistant", "content": "I look."}


@BOTH
async def test_a_refusal_alone_is_no_empty_text(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(refusal="I cannot."), Reply(refusal="No.", text="So it is.")])
    async with served_to_openai(upstream) as client:
        response = await responded(client, stream=stream, model="m", input="go")
        parts = [part.to_dict(warnings=False) for part in response.output[0].content]
        both = await responded(client, stream=stream, model="m", input="go")
    assert parts == [{"type": "refusal", "refusal": "I cannot."}]
    assert sorted(part.type for part in both.output[0].content) == ["output_text", "refusal"]


@BOTH
async def test_a_message_that_was_cut_is_marked_incomplete(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(text="And th", finish="length")])
    async with served_to_openai(upstream) as client:
        response = await responded(client, stream=stream, model="m", input="go")
    assert (response.status, response.output[0].status) == ("incomplete", "incomplete")
