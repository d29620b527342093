"""What reaches a provider counts against the limits of its key, before the provider is asked: counted tokens, and every answer of
a request for several."""

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from callgate.access.keys import mint_key
from callgate.application import create_app
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.scripted_upstream import Reply, Upstream

pytestmark = [pytest.mark.anyio, pytest.mark.leaves("litellm", why="litellm keeps its thread for logging")]

KEY, HASH = mint_key()
MESSAGES = [{"role": "user", "content": "hello"}]
PRICED = {"model_info": {"input_cost_per_token": 0.01, "output_cost_per_token": 0.02}}
HI = Reply(text="hi", usage={"prompt_tokens": 30, "completion_tokens": 10, "total_tokens": 40})
COUNTING: dict[str, dict[str, Any]] = {
    "/v1/messages/count_tokens": {"model": "m", "messages": MESSAGES},
    "/v1/responses/input_tokens": {"model": "m", "input": "hello"},
}


class Provider:
    """Counts what it is asked, and gives the same answer to everything."""

    def __init__(self, answer: Any) -> None:
        self.asked: list[str] = []
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        await Request(scope, receive).body()
        self.asked.append(scope["path"])
        response: Response = JSONResponse(self._answer)
        await response(scope, receive, send)


@contextlib.asynccontextmanager
async def limited(base: str, limits: dict[str, Any], **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    keys = [{"name": "alice", "hash": HASH, **limits}]
    config = make_config(base, auth="keys", keys=keys, **options)
    async with serve(create_app(config)) as url, http_client(url) as client:
        client.headers["authorization"] = f"Bearer {KEY}"
        yield client


def codes(answers: list[httpx.Response]) -> list[tuple[int, str]]:
    return [(answer.status_code, (answer.json().get("error") or {}).get("code") or "") for answer in answers]


# Counted tokens -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", COUNTING)
async def test_counting_tokens_is_a_request_to_the_provider_and_counts_as_one(path: str) -> None:
    provider = Provider({"input_tokens": 42})
    async with serve(provider) as there:
        options = {"provider": "anthropic", "models": ["claude-sonnet-4-5"], "lane": "auto"}
        async with limited(there, {"requests_per_minute": 3}, **options) as client:
            body = {**COUNTING[path], "model": "claude-sonnet-4-5"}
            answers = [await client.post(path, json=body) for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
    assert len(provider.asked) <= 3, "those of the Responses API are estimated here"
    assert answers[0].headers["x-ratelimit-remaining-requests"] == "2"
    assert int(answers[3].headers["retry-after"]) >= 1


async def test_counted_tokens_count() -> None:
    path = "/v1/messages/count_tokens"
    provider = Provider({"input_tokens": 42})
    async with serve(provider) as there:
        options = {"provider": "anthropic", "models": ["claude-sonnet-4-5"], "lane": "auto"}
        async with limited(there, {"tokens_per_minute": 100}, **options) as client:
            body = {**COUNTING[path], "model": "claude-sonnet-4-5"}
            answers = [await client.post(path, json=body) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 429, 429]
    assert len(provider.asked) == 2


@pytest.mark.parametrize("path", COUNTING)
async def test_no_tokens_are_counted_once_the_budget_is_spent_and_counting_spends_nothing(
    upstream: Upstream, path: str
) -> None:
    upstream.script("m", lambda _: HI)
    async with limited(upstream.url, {"budget_per_day": 0.4}, entry=PRICED) as client:
        before = [await client.post(path, json=COUNTING[path]) for _ in range(3)]
        chat = await client.post("/v1/chat/completions", json={"model": "m", "messages": MESSAGES, "max_tokens": 5})
        after = await client.post(path, json=COUNTING[path])
    assert [answer.status_code for answer in (*before, chat)] == [200] * 4
    assert after.status_code == 429


# Several answers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tools", [[], ["get_time"]], ids=["passed_through", "with_tools"])
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_each_of_several_answers_is_a_request(upstream: Upstream, stream: bool, tools: list[str]) -> None:
    upstream.script("m", lambda _: HI)
    asking = {"model": "m", "messages": MESSAGES, "stream": stream, "n": 3}
    async with limited(upstream.url, {"requests_per_minute": 7}, tools=tools) as client:
        answers = [await client.post("/v1/chat/completions", json=asking) for _ in range(3)]
        one = await client.post("/v1/chat/completions", json={**asking, "n": 1})
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[1].headers["x-ratelimit-remaining-requests"] == "1"
    assert one.status_code == 200, "one more fits"


async def test_answers_of_which_the_best_is_given_count_too(upstream: Upstream) -> None:
    upstream.script("m", lambda _: HI, lax=True)
    asking = {"model": "m", "messages": MESSAGES}
    async with limited(upstream.url, {"requests_per_minute": 7}) as client:
        answers = [await client.post("/v1/chat/completions", json={**asking, "best_of": 3}) for _ in range(3)]
        wrong = [await client.post("/v1/chat/completions", json={**asking, "best_of": it}) for it in ("3", 3.0, True)]
        none = await client.post("/v1/chat/completions", json={**asking, "best_of": None})
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert codes(wrong) == [(400, "invalid_type")] * 3
    assert none.status_code == 200


async def test_more_answers_than_a_minute_allows_are_never_asked_for(upstream: Upstream) -> None:
    async with limited(upstream.url, {"requests_per_minute": 3}) as client:
        answer = await client.post("/v1/chat/completions", json={"model": "m", "messages": MESSAGES, "n": 8})
    assert codes([answer]) == [(429, "rate_limit_exceeded")]
    assert "counts as 8" in answer.json()["error"]["message"]
    assert answer.headers["x-should-retry"] == "false"
    assert not upstream.requests


@pytest.mark.parametrize(
    "limits", [{"budget_per_day": 0.00001}, {"budget_per_month": 0.00001}, {"tokens_per_minute": 10}], ids=str
)
async def test_several_answers_have_to_fit_into_what_is_left(upstream: Upstream, limits: dict[str, Any]) -> None:
    upstream.script("m", lambda _: HI)
    async with limited(upstream.url, limits, entry=PRICED) as client:
        eight = await client.post("/v1/chat/completions", json={"model": "m", "messages": MESSAGES, "n": 8})
        one = await client.post("/v1/chat/completions", json={"model": "m", "messages": MESSAGES})
    assert eight.status_code == 429
    assert one.status_code == 200, "a single one may exceed what is left, as ever"
    assert len(upstream.requests) == 1


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/images/generations", {"prompt": "a crane", "n": 3}),
        ("/v1/completions", {"prompt": "hi", "n": 3}),
        ("/v1/completions", {"prompt": "hi", "best_of": 3}),
        ("/v1/completions", {"prompt": ["a", "b", "c"]}),
        ("/v1/completions", {"prompt": [[1, 2], [3, 4], [5]]}),
    ],
)
async def test_routes_that_are_proxied_count_each_answer(path: str, fields: dict[str, Any]) -> None:
    provider = Provider({"data": []})
    async with serve(provider) as there, limited(f"{there}/v1", {"requests_per_minute": 7}) as client:
        answers = [await client.post(path, json={"model": "m", **fields}) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert provider.asked == [path] * 2


async def test_a_form_counts_each_picture() -> None:
    provider = Provider({"data": []})
    async with serve(provider) as there, limited(f"{there}/v1", {"requests_per_minute": 7}) as client:
        files = {"image": ("a.png", b"\x89PNG", "image/png")}
        form = {"model": "m", "prompt": "a crane", "n": "3"}
        answers = [await client.post("/v1/images/edits", data=form, files=files) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]


async def test_the_largest_of_several_numbers_in_a_form_counts() -> None:
    provider = Provider({"data": []})
    part = '--x\r\nContent-Disposition: form-data; name="{}"\r\n\r\n{}\r\n'
    form = (
        "".join(part.format(*field) for field in [("model", "m"), ("prompt", "p"), ("n", "1"), ("n", "3")])
        + "--x--\r\n"
    )
    async with serve(provider) as there, limited(f"{there}/v1", {"requests_per_minute": 3}) as client:
        headers = {"content-type": "multipart/form-data; boundary=x"}
        answers = [await client.post("/v1/images/edits", content=form, headers=headers) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]


@pytest.mark.parametrize("name", ["n", "best_of"])
@pytest.mark.parametrize("number", ["3", 3.0, "3.0", " 3", "+3", "many", [3], True, {"n": 3}], ids=json.dumps)
async def test_what_a_provider_may_take_for_a_number_is_refused(name: str, number: Any) -> None:
    provider = Provider({"choices": []})
    async with serve(provider) as there, limited(f"{there}/v1", {"requests_per_minute": 1}) as client:
        answer = await client.post("/v1/completions", json={"model": "m", "prompt": "x", name: number})
        assert codes([answer]) == [(400, "invalid_type")]
        form = {"model": "m", "prompt": "x", "n": "3.0"}
        answer = await client.post("/v1/images/edits", data=form, files={"image": ("a.png", b"\x89PNG", "image/png")})
        assert codes([answer]) == [(400, "invalid_type")]
    assert provider.asked == []


@pytest.mark.parametrize(
    "fields", [{"prompt": [1, 2, 3]}, {"prompt": "x", "n": None}, {"prompt": "x", "n": -1}], ids=json.dumps
)
async def test_what_is_no_number_of_answers_counts_as_one(fields: dict[str, Any]) -> None:
    provider = Provider({"choices": []})
    async with serve(provider) as there, limited(f"{there}/v1", {"requests_per_minute": 1}) as client:
        answers = [await client.post("/v1/completions", json={"model": "m", **fields}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]


# Tools that providers run ---------------------------------------------------------------------------------------------

HOSTED: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"tools": [{"type": "web_search"}]}),
    "chat, switched on": ("/v1/chat/completions", {"web_search_options": {}}),
    "chat, by a plugin": ("/v1/chat/completions", {"plugins": [{"id": "web"}]}),
    "messages": ("/v1/messages", {"tools": [{"type": "web_search_20250305", "name": "web_search"}], "max_tokens": 9}),
    "counting": ("/v1/messages/count_tokens", {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
}


@pytest.mark.parametrize("case", HOSTED)
async def test_a_tool_that_the_provider_runs_needs_the_right_of_the_key(case: str) -> None:
    path, fields = HOSTED[case]
    body = {"model": "claude-sonnet-4-5", "messages": MESSAGES, **fields}
    provider = Provider({"input_tokens": 42})
    async with serve(provider) as there:
        options: dict[str, Any] = {"provider": "anthropic", "models": ["claude-sonnet-4-5"], "lane": "auto"}
        if case.startswith("chat"):
            options = {"models": ["claude-sonnet-4-5"]}
        for tools in ([], ["web*", "provider:code_execution"]):
            async with limited(there, {"tools": tools}, **options) as client:
                assert codes([await client.post(path, json=body)])[0][0] == 403
        assert not provider.asked
        for tools in (["provider:web_search*", "provider:plugins"], ["*"]):
            async with limited(there, {"tools": tools}, **options) as client:
                assert (await client.post(path, json=body)).status_code != 403
        assert len(provider.asked) >= 2


WEB_SEARCH = {"type": "web_search_20250305", "name": "web_search"}
SEARCHED = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
CHAT_ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}],
    "usage": SEARCHED,
}
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-5",
    "content": [{"type": "text", "text": "hi"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 3, "output_tokens": 1, "server_tool_use": {"web_search_requests": 3}},
}
TEXT = {"type": "output_text", "text": "hi", "annotations": []}
RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "status": "completed",
    "model": "m",
    "output": [
        *({"type": "web_search_call", "id": f"ws_{number}", "status": "completed"} for number in range(3)),
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [TEXT]},
    ],
    "usage": {"input_tokens": 3, "output_tokens": 1, "total_tokens": 4},
}
ON_CLAUDE = {"provider": "anthropic", "models": ["m"], "lane": "auto"}
USES: dict[str, tuple[str, dict[str, Any], dict[str, Any], Any, int]] = {
    "chat, told": (
        "/v1/chat/completions",
        {"messages": MESSAGES, "web_search_options": {}},
        {},
        CHAT_ANSWER | {"usage": SEARCHED | {"server_tool_use": {"web_search_requests": 3}}},
        3,
    ),
    "chat, not told": ("/v1/chat/completions", {"messages": MESSAGES, "web_search_options": {}}, {}, CHAT_ANSWER, 1),
    "chat, without": ("/v1/chat/completions", {"messages": MESSAGES}, {}, CHAT_ANSWER, 0),
    "messages": (
        "/v1/messages",
        {"messages": MESSAGES, "tools": [WEB_SEARCH], "max_tokens": 9},
        ON_CLAUDE,
        MESSAGE,
        3,
    ),
    "responses": (
        "/v1/responses",
        {"input": "?", "tools": [{"type": "web_search"}]},
        {"lane": "responses"},
        RESPONSE,
        3,
    ),
}


@pytest.mark.parametrize("case", USES)
async def test_each_use_of_a_tool_that_the_provider_runs_is_a_request_and_has_a_price(case: str) -> None:
    path, fields, options, answer, uses = USES[case]
    body = {"model": "m", **fields}
    free = {"input_cost_per_token": 0.0, "search_context_cost_per_query": {"search_context_size_medium": 0.5}}
    async with serve(Provider(answer)) as there:
        async with limited(there, {"requests_per_minute": 10}, **options) as client:
            answers = [await client.post(path, json=body) for _ in range(2)]
            assert [one.status_code for one in answers] == [200, 200], answers[0].text
            assert answers[1].headers["x-ratelimit-remaining-requests"] == str(8 - uses)
        async with limited(there, {"budget_per_day": 1.2}, entry={"model_info": free}, **options) as client:
            answers = [await client.post(path, json=body) for _ in range(2)]
            assert [one.status_code for one in answers] == [200, 429 if uses == 3 else 200]
