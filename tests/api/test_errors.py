"""Errors by path: each API's clients get them in the shape that they can read, whoever refuses."""

from typing import Any

import httpx
import pytest

from callgate.access.keys import hash_key
from callgate.api import errors
from callgate.application import create_app
from callgate.conversation.errors import ChatError
from callgate.server.refusals import not_http, refusal
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.scripted_upstream import Reply, Upstream

pytestmark = pytest.mark.anyio


def other_shape(error: ChatError, request_id: str) -> Any:
    return {"type": "error", "error": {"type": error.type, "message": error.message}, "request_id": request_id}


@pytest.mark.parametrize(
    ("method", "key", "size", "status"),
    [("POST", "cg-a", 2, 404), ("DELETE", "cg-a", 2, 404), ("POST", "wrong", 2, 401), ("POST", "cg-a", 2000, 413)],
)
async def test_every_refusal_has_the_shape_of_its_path(
    monkeypatch: pytest.MonkeyPatch, method: str, key: str, size: int, status: int
) -> None:
    monkeypatch.setattr(errors, "SHAPES", {"/v1/other": other_shape})
    keys = [{"name": "a", "hash": hash_key("cg-a")}]
    config = make_config("http://127.0.0.1:9", auth="keys", keys=keys, limits={"body_bytes": 1024})
    given = {"authorization": f"Bearer {key}", "x-request-id": "req-7"}
    async with serve(create_app(config)) as url, httpx.AsyncClient() as client:
        content = b" " * size
        shaped = await client.request(method, url + "/v1/other/thing", headers=given, content=content)
        usual = await client.request(method, url + "/v1/elsewhere", headers=given, content=content)
    assert (shaped.status_code, usual.status_code) == (status, status)
    body = shaped.json()
    assert set(body) == {"type", "error", "request_id"}
    assert (body["type"], body["request_id"]) == ("error", "req-7")
    assert set(usual.json()["error"]) == {"message", "type", "param", "code"}


def test_calls_side_by_side_that_meet_the_same_error_are_one_error() -> None:
    taken = [ChatError(503, "Another process carries this run on.", code="run_taken_over") for _ in range(2)]
    assert errors.as_chat_error(BaseExceptionGroup("two", taken)) is taken[0]
    assert errors.as_chat_error(BaseExceptionGroup("two", [taken[0], ValueError("ours")])).status == 500


REFUSED = [
    ("POST", "/v1/chat/completions", {"model": "m", "messages": "no list"}, 400),
    ("POST", "/v1/chat/completions", {"model": "nobody", "messages": [{"role": "user", "content": "hi"}]}, 404),
    ("POST", "/openai/deployments/nobody/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}, 404),
    ("POST", "/v1/responses", {"model": "m", "input": 5}, 400),
    ("POST", "/v1/responses", {"model": "m", "input": "hi", "background": True, "tools": [{"type": "mcp"}]}, 400),
    ("POST", "/v1/responses", {"model": "nobody", "input": "hi"}, 404),
    ("GET", "/v1/responses/resp_1", None, 404),
    ("POST", "/v1/messages", {"model": "m"}, 400),
    (
        "POST",
        "/v1/messages",
        {"model": "nobody", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]},
        404,
    ),
    ("POST", "/v1/messages/count_tokens", {"model": "nobody", "messages": [{"role": "user", "content": "hi"}]}, 404),
    ("POST", "/v1/embeddings", {"model": "nobody", "input": "hi"}, 404),
    ("GET", "/v1/models/nobody", None, 404),
    ("GET", "/v1/nowhere", None, 404),
    ("DELETE", "/v1/chat/completions", None, 405),
]


@pytest.mark.parametrize(("method", "path", "body", "status"), REFUSED, ids=lambda value: str(value)[:60])
async def test_what_no_repetition_can_mend_says_so_on_every_route(
    method: str, path: str, body: Any, status: int
) -> None:
    keys = [{"name": "a", "hash": hash_key("cg-a")}]
    config = make_config("http://127.0.0.1:9", auth="keys", keys=keys)
    async with serve(create_app(config)) as url, httpx.AsyncClient(base_url=url) as client:
        right = await client.request(method, path, headers={"authorization": "Bearer cg-a"}, json=body)
        keyed = {"authorization": "Bearer cg-a", "idempotency-key": "once"}
        again = await client.request(method, path, headers=keyed, json=body)
        wrong = await client.request(method, path, headers={"authorization": "Bearer cg-b"}, json=body)
        none = await client.request(method, path, json=body)
    assert (right.status_code, right.headers.get("x-should-retry")) == (status, "false")
    assert (again.status_code, again.headers.get("x-should-retry")) == (status, "false")
    assert (wrong.status_code, wrong.headers.get("x-should-retry")) == (401, "false")
    assert (none.status_code, none.headers.get("x-should-retry")) == (401, "false")


async def test_a_request_of_a_foreign_page_and_one_that_is_no_http_are_not_repeated() -> None:
    config = make_config("http://127.0.0.1:9", auth="off")
    async with serve(create_app(config)) as url, httpx.AsyncClient(base_url=url) as client:
        foreign = await client.get("/v1/models", headers={"host": "evil.example"})
    assert (foreign.status_code, foreign.headers["x-should-retry"]) == (403, "false")
    assert b"\r\nx-should-retry: false\r\n" in refusal(not_http())


@pytest.mark.parametrize(
    ("status", "code", "retry_after", "says"),
    [
        (400, "invalid_value", None, "false"),
        (422, "config_invalid", None, "false"),
        (408, "request_timeout", None, None),
        (409, "idempotency_key_in_use", 1.0, None),
        (409, "run_cancelled", None, "false"),
        (429, "rate_limit_exceeded", 3.0, None),
        (429, "insufficient_quota", None, "false"),
        (500, None, None, None),
        (502, "upstream_auth", None, "false"),
        (503, "over_capacity", 1.0, None),
    ],
)
def test_only_what_stays_as_it_is_is_not_to_be_repeated(
    status: int, code: str | None, retry_after: float | None, says: str | None
) -> None:
    error = ChatError(status, "no", code=code, retry_after=retry_after)
    assert errors.error_headers(error).get("x-should-retry") == says


ASKED = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("tools", [["add"], []], ids=["with tools of ours", "passed through"])
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": ASKED}),
        ("/v1/responses", {"input": "hi"}),
        ("/v1/messages", {"messages": ASKED, "max_tokens": 9}),
    ],
    ids=["chat", "responses", "messages"],
)
@pytest.mark.parametrize(
    ("reply", "status", "says"),
    [
        (Reply(status=400, body={"error": {"message": "no", "type": "invalid_request_error"}}), 400, "false"),
        (Reply(status=401, body={"error": {"message": "no"}}), 502, "false"),
        (Reply(status=500, body={"error": {"message": "boom"}}), 502, None),
    ],
    ids=["refused", "the operator's key", "a failure"],
)
async def test_what_a_provider_refuses_is_not_repeated_either(
    upstream: Upstream, path: str, body: Any, stream: bool, tools: Any, reply: Reply, status: int, says: str | None
) -> None:
    upstream.script("m", lambda _: reply)
    config = make_config(upstream.url, tools=tools, upstream={"retries": 0})
    async with serve(create_app(config)) as url, httpx.AsyncClient(base_url=url) as client:
        answer = await client.post(path, json={"model": "m", "stream": stream, **body})
    assert (answer.status_code, answer.headers.get("x-should-retry")) == (status, says)
