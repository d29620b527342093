"""A hook for requests is asked about all of a request that a model may see, and what it cannot be shown is refused."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from callgate.application import create_app
from callgate.config.schema.whole import Config
from tests.e2e.test_other_routes import Provider, passing
from tests.guardrails import hooks_of_tests
from tests.guardrails.test_kinds import function
from tests.guardrails.test_three_ways import BLOCKS, MASKS, hook
from tests.harness.cards import CARD, shows_card
from tests.harness.clients import http_client
from tests.harness.configs import config_dict
from tests.harness.served import served
from tests.harness.server import serve
from tests.scripted_upstream import Reply, Upstream

pytestmark = pytest.mark.anyio

PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}


def body(api: str, **more: Any) -> dict[str, Any]:
    if api == "responses":
        return {"model": "m", "input": "go", **more}
    limit = {"max_tokens": 100} if api == "messages" else {}
    return {"model": "m", "messages": [{"role": "user", "content": "go"}], **limit, **more}


def tool(api: str, schema: Mapping[str, Any], name: str = "look", description: str = "Looks.") -> dict[str, Any]:
    if api == "messages":
        return {"name": name, "description": description, "input_schema": schema}
    tool = {"name": name, "description": description, "parameters": schema}
    if api == "responses":
        return {"type": "function", **tool}
    return {"type": "function", "function": tool}


def schema_of(**field: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"card": {"type": "string", **field}}}


@pytest.mark.parametrize("api", PATHS)
async def test_what_a_clients_tool_says_of_itself_is_masked(upstream: Upstream, api: str) -> None:
    upstream.script("m", lambda request: Reply(text="hello"))
    tools = [tool(api, schema_of(description=f"As in {CARD}."), description=f"Looks for {CARD}.")]
    async with served(upstream, guardrails=[hook(["request"], MASKS)]) as url, http_client(url) as client:
        answer = await client.post(PATHS[api], json=body(api, tools=tools))
    assert answer.status_code == 200, answer.text
    sent = json.dumps(upstream.requests[0].body)
    assert not shows_card(sent)
    assert sent.count("[CARD]") == 2


FORMS: dict[str, dict[str, Any]] = {
    "a name of a field": {"tools": [tool("chat", {"type": "object", "properties": {CARD: {"type": "string"}}})]},
    "a value to choose": {"tools": [tool("chat", schema_of(enum=[CARD]))]},
    "a number to choose": {"tools": [tool("chat", schema_of(enum=[4111111111111111]))]},
    "a default": {"tools": [tool("chat", schema_of(default=CARD))]},
    "a field of a tool that nobody knows": {"tools": [{**tool("chat", schema_of()), "note": CARD}]},
    "a format of the answer": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema_of(const=CARD)}}
    },
    "a legacy function": {"functions": [{"name": "look", "parameters": schema_of(pattern=CARD)}]},
    "a word to stop at": {"stop": [CARD]},
    "who asks": {"user": CARD},
    "who asks, for safety": {"safety_identifier": CARD},
    "a key of a cache": {"prompt_cache_key": CARD},
    "a name of metadata": {"metadata": {CARD: "a"}},
    "who asks, in metadata": {"metadata": {"user_id": CARD}},
    "a field that nobody knows": {"chat_template_kwargs": {"note": CARD}},
    "a setting that is none": {"reasoning_effort": f"as of {CARD}"},
    "the messages in other letters": {"Messages": [{"role": "user", "content": CARD}]},
    "a name of a field of the body": {CARD: 1},
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("what", [BLOCKS, MASKS], ids=["block", "mask"])
async def test_what_nothing_can_stand_for_blocks_the_request(
    upstream: Upstream, name: str, what: Mapping[str, Any]
) -> None:
    upstream.script("m", lambda request: Reply(text="hello"))
    async with served(upstream, guardrails=[hook(["request"], what)]) as url, http_client(url) as client:
        answer = await client.post(PATHS["chat"], json=body("chat", **FORMS[name]))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "content_filter"), answer.text
    assert not shows_card(answer.text)
    assert not upstream.requests


@pytest.mark.parametrize("api", PATHS)
async def test_metadata_are_masked(upstream: Upstream, api: str) -> None:
    upstream.script("m", lambda request: Reply(text="hello"))
    async with served(upstream, guardrails=[hook(["request"], MASKS)]) as url, http_client(url) as client:
        answer = await client.post(PATHS[api], json=body(api, metadata={"note": f"of {CARD}"}))
    assert answer.status_code == 200, answer.text
    assert not shows_card(answer.text + json.dumps(upstream.requests[0].body))


TWICE = {
    "chat": '{"model":"m","messages":[{"role":"user","content":"4111 1111 1111 1111","content":"go"}]}',
    "responses": '{"model":"m","input":[{"role":"user","content":"4111 1111 1111 1111","content":"go"}]}',
    "messages": '{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"4111 1111 1111 1111","content":"go"}]}',
}


@pytest.mark.parametrize("api", PATHS)
async def test_a_field_that_is_there_twice_is_refused(upstream: Upstream, api: str) -> None:
    upstream.script("m", lambda request: Reply(text="hello"))
    sent = TWICE[api]
    escaped = sent.replace('"content":"go"', '"\\u0063ontent":"go"')
    turned = sent.replace('4111 1111 1111 1111","content":"go', 'go","content":"4111 1111 1111 1111')
    async with served(upstream, guardrails=[hook(["request"], MASKS)]) as url, http_client(url) as client:
        for text in (sent, escaped, turned):
            answer = await client.post(PATHS[api], content=text, headers={"content-type": "application/json"})
            assert answer.status_code == 400, answer.text
            assert "twice" in answer.text
    assert not upstream.requests


async def test_arguments_with_a_field_twice_are_read_as_they_stand(upstream: Upstream) -> None:
    upstream.script("m", lambda request: Reply(text="hello"))
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": f'{{"a":"{CARD}","a":"b"}}'}}
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "seen"},
    ]
    async with served(upstream, guardrails=[hook(["request"], MASKS)]) as url, http_client(url) as client:
        answer = await client.post(PATHS["chat"], json=body("chat") | {"messages": messages})
    assert answer.status_code == 200, answer.text
    assert not shows_card(json.dumps(upstream.requests[0].body))


@pytest.mark.parametrize(
    "part",
    [
        {"type": "text", "text": "go", "cache_control": {"type": "ephemeral", "note": CARD}},
        {"type": f"text {CARD}", "text": "go"},
        {"type": "text", "text": 4111111111111111},
    ],
    ids=["beside a text", "for a type", "a number for a text"],
)
async def test_words_where_programs_have_theirs_are_words(upstream: Upstream, part: dict[str, Any]) -> None:
    upstream.script("m", lambda request: Reply(text="hello"))
    messages = [{"role": "user", "content": [part]}]
    async with served(upstream, guardrails=[hook(["request"], BLOCKS)]) as url, http_client(url) as client:
        answer = await client.post(PATHS["chat"], json=body("chat") | {"messages": messages})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "content_filter"), answer.text


async def test_the_hooks_of_a_fallback_look_at_what_it_may_be_asked(upstream: Upstream) -> None:
    upstream.script("m", lambda request: Reply(status=500))
    upstream.script("other", lambda request: Reply(text=f"It is {CARD}."))
    hooks = [hook(["request", "answer"], {**MASKS, "models": ["other"]})]
    config = config_dict(upstream.url, guardrails=hooks, models=["m", "other"])
    config["model_list"][0]["fallbacks"] = ["other"]
    async with serve(create_app(Config.model_validate(config))) as url, http_client(url) as client:
        asked = body("chat") | {"messages": [{"role": "user", "content": CARD}]}
        answer = await client.post(PATHS["chat"], json=asked)
    assert answer.status_code == 200, answer.text
    assert not shows_card(json.dumps([request.body for request in upstream.requests]) + answer.text)
    assert {request.model for request in upstream.requests} == {"m", "other"}


WAYS = ("previous response", "conversation", "reference")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("what", [BLOCKS, MASKS], ids=["block", "mask"])
async def test_what_was_stored_past_a_hook_is_looked_at_when_it_comes_back(
    upstream: Upstream, way: str, what: Mapping[str, Any]
) -> None:
    for model in ("m", "other"):
        upstream.script(model, lambda request: Reply(text="hello"))
    hooks = [hook(["request"], {**what, "models": ["other"]})]
    async with (
        served(upstream, guardrails=hooks, models=["m", "other"]) as url,
        http_client(url) as client,
    ):
        more: dict[str, Any] = {"input": "go on"}
        if way == "conversation":
            more["conversation"] = (await client.post("/v1/conversations", json={})).json()["id"]
        said = {"role": "user", "content": f"of {CARD}"}
        begun = {**more, "model": "m", "input": [said]}
        first = (await client.post(PATHS["responses"], json=begun)).json()
        assert shows_card(json.dumps(upstream.requests[0].body))
        if way == "previous response":
            more["previous_response_id"] = first["id"]
        if way == "reference":
            listed = (await client.get(f"/v1/responses/{first['id']}/input_items")).json()["data"]
            more["input"] = [{"type": "item_reference", "id": listed[0]["id"]}, {"role": "user", "content": "go on"}]
        answer = await client.post(PATHS["responses"], json={**more, "model": "other"})
        if what is BLOCKS:
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "content_filter"), answer.text
            assert len(upstream.requests) == 1
            return
        assert answer.status_code == 200, answer.text
        sent = json.dumps(upstream.requests[1].body)
        assert not shows_card(sent)
        assert "[CARD]" in sent
        on = await client.post(
            PATHS["responses"], json={"model": "other", "input": "on", "previous_response_id": answer.json()["id"]}
        )
        assert on.status_code == 200, on.text
        assert not shows_card(json.dumps(upstream.requests[2].body))


async def test_the_hooks_of_who_writes_summaries_look_at_requests(upstream: Upstream) -> None:
    upstream.script("m", lambda request: Reply(text="hello"))
    hooks = [hook(["request"], {**MASKS, "models": ["other"]})]
    async with (
        served(upstream, guardrails=hooks, models=["m", "other"], compaction={"model": "other"}) as url,
        http_client(url) as client,
    ):
        asked = body("chat") | {"messages": [{"role": "user", "content": CARD}]}
        assert (await client.post(PATHS["chat"], json=asked)).status_code == 200
    assert not shows_card(json.dumps(upstream.requests[0].body))


async def test_a_form_is_read_but_for_its_files() -> None:
    files = {"file": ("a.wav", b"x")}
    provider = Provider()
    async with passing(provider, guardrails=[hook(["request"], MASKS)]) as url, http_client(url) as client:
        fields = {"model": "m", "language": CARD}
        refused = await client.post("/v1/audio/transcriptions", data=fields, files=files)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "content_filter"), refused.text
        named = {"prompt": ("a.txt", CARD.encode()), **files}
        answer = await client.post("/v1/audio/transcriptions", data={"model": "m"}, files=named)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_type"), answer.text
        assert not provider.bodies
        fields = {"model": "m", "prompt": f"of {CARD}"}
        await client.post("/v1/audio/transcriptions", data=fields, files=files)
    [sent] = provider.bodies
    assert b"[CARD]" in sent
    assert not shows_card(sent.decode())


@pytest.mark.parametrize("path", ["embeddings", "completions"])
async def test_tokens_are_refused_because_nobody_can_read_them(path: str) -> None:
    provider = Provider()
    field = "input" if path == "embeddings" else "prompt"
    async with passing(provider, guardrails=[hook(["request"])]) as url, http_client(url) as client:
        for tokens in ([7, 8], [[7, 8]], ["go", [7]]):
            answer = await client.post(f"/v1/{path}", json={"model": "m", field: tokens})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, field), answer.text
    assert not provider.bodies


async def test_credentials_for_servers_are_not_shown_to_hooks(upstream: Upstream) -> None:
    hooks_of_tests.events.clear()
    entry = {"type": "mcp", "server_label": "far", "server_url": "https://far.example/mcp", "authorization": "planted"}
    server = {"type": "url", "name": "far", "url": "https://far.example/mcp", "authorization_token": "planted"}
    async with served(upstream, guardrails=[function("notes", ["request"])]) as url, http_client(url) as client:
        await client.post(PATHS["responses"], json=body("responses", tools=[entry]))
        await client.post(PATHS["messages"], json=body("messages", mcp_servers=[server]))
    assert len(hooks_of_tests.events) == 2
    assert "planted" not in str(hooks_of_tests.events)
    assert "far.example" not in str(hooks_of_tests.events)


async def test_a_hook_is_shown_no_words_that_every_request_has(upstream: Upstream) -> None:
    upstream.script("m", lambda request: Reply(text="hello"))
    hooks_of_tests.events.clear()
    more = {"tools": [tool("chat", schema_of(description="Whose?"))], "tool_choice": "auto", "temperature": 0.5}
    async with served(upstream, guardrails=[function("notes", ["request"])]) as url, http_client(url) as client:
        await client.post(PATHS["chat"], json=body("chat", **more))
    [event] = hooks_of_tests.events
    assert list(event.texts) == ["go", "look", "Looks.", "card", "Whose?"]


async def test_what_has_no_model_or_none_that_can_be_read_is_looked_at_by_all_hooks(upstream: Upstream) -> None:
    hooks = [hook(["request"], {**BLOCKS, "models": ["other"]})]
    items = [{"role": "user", "content": CARD}]
    async with (
        served(upstream, guardrails=hooks, models=["m", "other"]) as url,
        http_client(url) as client,
    ):
        for named in ({}, {"model": 5}, {"model": None}):
            answer = await client.post("/v1/conversations", json={"items": items, **named})
            assert answer.status_code == 400, answer.text
