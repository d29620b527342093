"""What is no chat is passed on to the model's provider or is a 404; every route refuses strangers; browsers are sent
what their pages may do."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import openai
import pytest

from callgate.access.keys import hash_key
from callgate.application import create_app
from callgate.models.routes import PATHS, usage_in
from tests.harness.clients import http_client, openai_client
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.harness.wire import raw_connection, raw_post

pytestmark = pytest.mark.anyio

KEYS = [{"name": "alice", "hash": hash_key("cg-alice")}]


@dataclass
class Provider:
    """An API that takes what it is sent and answers as it was set to."""

    status: int = 200
    content_type: str = "application/json"
    parts: tuple[bytes, ...] = (b"{}",)
    gate: asyncio.Event | None = None
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for kind in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{kind}.complete"})
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        self.paths.append(scope["path"])
        self.headers.append({name.decode(): value.decode() for name, value in scope["headers"]})
        self.bodies.append(body)
        head = [(b"content-type", self.content_type.encode()), (b"x-secret", b"internal")]
        await send({"type": "http.response.start", "status": self.status, "headers": head})
        for part in self.parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        if self.gate is not None:
            while (await receive())["type"] != "http.disconnect":
                pass
            self.left.set()
        await send({"type": "http.response.body", "body": b""})

    @property
    def asked(self) -> Any:
        return json.loads(self.bodies[-1])


@contextlib.asynccontextmanager
async def passing(provider: Provider, **options: Any) -> AsyncIterator[str]:
    entry = {"litellm_params": {"model": "openai/provider-name", "api_base": "PUT", "api_key": "sk-operator"}}
    async with serve(provider) as upstream:
        entry["litellm_params"]["api_base"] = f"{upstream}/v1"
        config = make_config("unused", entry=entry, **options)
        async with serve(create_app(config)) as url:
            yield url


# Passed on ------------------------------------------------------------------------------------------------------------


async def test_embeddings_go_to_the_models_provider_under_its_name_and_with_its_key() -> None:
    answer = {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}],
        "model": "provider-name",
        "usage": {"prompt_tokens": 3, "total_tokens": 3},
    }
    provider = Provider(parts=(json.dumps(answer).encode(),))
    async with passing(provider) as url, openai_client(url) as client:
        found = await client.embeddings.create(model="m", input="hello", encoding_format="float", dimensions=2)
    assert found.data[0].embedding == [0.5, 0.25]
    assert provider.paths == ["/v1/embeddings"]
    assert provider.asked == {"model": "provider-name", "input": "hello", "encoding_format": "float", "dimensions": 2}
    assert provider.headers[0]["authorization"] == "Bearer sk-operator"
    assert "sk-test" not in json.dumps(provider.headers)


@pytest.mark.parametrize(
    ("path", "field"),
    [("embeddings", "input"), ("completions", "prompt"), ("completions", "suffix"), ("rerank", "query"),
     ("images/generations", "prompt"), ("audio/speech", "input")],
)  # fmt: skip
@pytest.mark.parametrize("then", ["mask", "block"])
async def test_what_is_passed_on_is_judged_as_a_request(path: str, field: str, then: str) -> None:
    provider = Provider()
    cards = {"name": "cards", "kind": "patterns", "find": ["cards"], "at": ["request"], "then": then}
    async with passing(provider, guardrails=[cards]) as url, http_client(url) as client:
        answer = await client.post(f"/v1/{path}", json={"model": "m", field: "card 4111 1111 1111 1111"})
        plain = await client.post(f"/v1/{path}", json={"model": "m", field: "hello"})
    assert plain.status_code == 200
    assert json.loads(provider.bodies[-1])[field] == "hello"
    if then == "block":
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "content_filter")
        assert len(provider.bodies) == 1
    else:
        assert json.loads(provider.bodies[0])[field] == "card [CARD]"


async def test_texts_are_not_completed_past_a_guardrail_that_looks_at_answers() -> None:
    provider = Provider()
    cards = {"name": "cards", "kind": "patterns", "find": ["cards"], "at": ["answer"]}
    async with passing(provider, guardrails=[cards]) as url, http_client(url) as client:
        refused = await client.post("/v1/completions", json={"model": "m", "prompt": "hello"})
        vectors = await client.post("/v1/embeddings", json={"model": "m", "input": "hello"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unsupported_route")
    assert vectors.status_code == 200
    assert provider.paths == ["/v1/embeddings"]


async def test_a_stream_is_passed_on_byte_for_byte_as_it_comes() -> None:
    parts = (b'data: {"choices":', b"[]}\n\n", b"data: [DONE]\n\n")
    provider = Provider(content_type="text/event-stream", parts=parts)
    async with passing(provider) as url:
        answer = await raw_post(url, {"model": "m", "prompt": "hi", "stream": True}, path="/v1/completions")
    assert (answer.status, answer.body) == (200, b"".join(parts))
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.headers["x-accel-buffering"] == "no"
    assert "x-secret" not in answer.headers
    assert provider.asked["stream"] is True


async def test_audio_comes_back_as_bytes() -> None:
    provider = Provider(content_type="audio/mpeg", parts=(b"\xff\xfb\x00", b"\x01\x02"))
    async with passing(provider) as url, openai_client(url) as client:
        speech = await client.audio.speech.create(model="m", input="hello", voice="alloy")
    assert speech.content == b"\xff\xfb\x00\x01\x02"
    assert provider.paths == ["/v1/audio/speech"]


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("application/json; charset=utf-8", "application/json; charset=utf-8"),
        ("audio/mpeg", "audio/mpeg"),
        ("text/plain", "text/plain"),
        ("image/png", "image/png"),
        ("image/svg+xml", "application/octet-stream"),
        ("text/xml", "application/octet-stream"),
        ("application/problem+json", "application/problem+json"),
        ("application/json+xml", "application/octet-stream"),
        ("text/javascript", "application/octet-stream"),
        ("multipart/x-mixed-replace; boundary=text/html", "application/octet-stream"),
        ("text/plain, text/html", "application/octet-stream"),
        ("nonsense", "application/octet-stream"),
        ("text/html; charset=utf-8", None),
        (" Text/HTML", None),
        ("application/xhtml+xml", None),
    ],
)
async def test_nothing_of_a_providers_runs_in_a_browser_under_our_address(theirs: str, ours: str | None) -> None:
    page = b"<script>alert(1)</script>"
    async with passing(Provider(content_type=theirs, parts=(page,))) as url, http_client(url) as client:
        answer = await client.post("/v1/embeddings", json={"model": "m", "input": "x"})
    if ours is None:
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_error")
        assert "<script>" not in answer.text
    else:
        assert (answer.status_code, answer.headers["content-type"], answer.content) == (200, ours, page)
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_usage_that_nests_too_deeply_is_none() -> None:
    assert usage_in(b'{"usage": {"a": ' + b"[" * 50_000) is None


async def test_a_form_with_a_file_keeps_all_of_it_but_the_models_name() -> None:
    provider = Provider(parts=(b'{"text": "hello"}',))
    recorded = b'RIFF\r\n--no-boundary\r\n\x00 name="model"\r\n\r\nnot a field'
    async with passing(provider) as url, openai_client(url) as client:
        transcript = await client.audio.transcriptions.create(model="m", file=("a.wav", recorded), language="en")
    assert transcript.text == "hello"
    body = provider.bodies[0]
    assert recorded in body
    assert b'name="model"\r\n\r\nprovider-name\r\n' in body
    assert b'name="language"\r\n\r\nen\r\n' in body


@pytest.mark.parametrize("path", ["completions", "moderations", "rerank", "images/generations"])
async def test_the_others_are_passed_on_too_with_and_without_v1(path: str) -> None:
    provider = Provider()
    async with passing(provider) as url:
        for start in ("/v1/", "/"):
            answer = await raw_post(url, {"model": "m", "prompt": "x"}, path=start + path)
            assert (answer.status, answer.body) == (200, b"{}")
    assert provider.paths == [f"/v1/{path}"] * 2


async def test_nothing_in_the_body_chooses_an_address_or_a_key() -> None:
    provider = Provider()
    async with passing(provider) as url:
        body = {
            "model": "m",
            "input": "x",
            "api_base": "http://evil",
            "api_key": "k",
            "extra_headers": {"a": "b"},
            "user": "u",
        }
        await raw_post(url, body, path="/v1/embeddings")
    assert provider.asked == {"model": "provider-name", "input": "x", "user": "u"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"vector_store_ids": ["vs_1"]}, "vector_store_ids"),
        ({"container": "cntr_1"}, "container"),
        ({"input": [{"type": "input_file", "file_id": "file_1"}]}, "input[0].file_id"),
        ({"tools": [{"type": "x", "inner": {"file_ids": ["file_1"]}}]}, "tools[0].inner.file_ids"),
    ],
)
async def test_nothing_in_the_body_names_what_is_kept_in_the_operators_account(
    fields: dict[str, Any], param: str
) -> None:
    provider = Provider()
    async with passing(provider) as url:
        for path in PATHS:
            answer = await raw_post(url, {"model": "m", "input": "x", **fields}, path=f"/v1{path}")
            assert (answer.status, json.loads(answer.body)["error"]["param"]) == (400, param)
        spelled = b'{"model":"m","input":[{"file\\u005fid":"file_1"}]}'
        assert (await raw_post(url, spelled, path="/v1/embeddings")).status == 400
        async with http_client(url) as client:
            form = {"model": "m", "file_ids[]": "file_1"}
            edited = await client.post("/v1/images/edits", data=form, files={"image": ("a.png", b"x")})
            assert edited.status_code == 400
        text = {"model": "m", "input": 'a text that says {"file_id": "file_1"}', "conversation": None}
        assert (await raw_post(url, text, path="/v1/embeddings")).status == 200
    assert len(provider.bodies) == 1


async def test_a_providers_refusal_is_sent_in_our_shape_without_its_secrets() -> None:
    error = {"error": {"message": "Incorrect API key provided: sk-operator", "type": "x", "param": None, "code": "c"}}
    provider = Provider(status=401, parts=(json.dumps(error).encode(),))
    async with passing(provider) as url, openai_client(url) as client:
        with pytest.raises(openai.InternalServerError) as caught:
            await client.embeddings.create(model="m", input="hello")
    assert "sk-operator" not in str(caught.value)


async def test_what_was_used_is_counted_by_key_and_a_failure_leaves_a_run() -> None:
    usage = b'{"data":[],"usage":{"prompt_tokens":7,"total_tokens":7}}'
    provider, asked = Provider(parts=(usage,)), {"model": "m", "input": "hi"}
    async with passing(provider) as url, http_client(url) as client:
        await client.post("/v1/embeddings", json=asked)
        provider.status = 503
        failed = await client.post("/v1/embeddings", json=asked)
        counted = (await client.get("/metrics")).text
        [run] = (await client.get("/v1/runs")).json()["data"]

    for what, amount in (("requests", 2), ("failed", 1), ("tokens_in", 7)):
        assert f'callgate_key_used_total{{key="anonymous",what="{what}"}} {amount}.0' in counted
    assert (run["state"], run["status"], run["route"]) == ("failed", failed.status_code, "embeddings")
    assert run["request_id"] == failed.headers["x-request-id"]
    assert run["seconds"] > 0


async def test_no_failure_is_recorded_of_a_model_of_which_nothing_is_kept() -> None:
    record = {"less": [{"models": ["m"], "keep": "off"}]}
    async with passing(Provider(status=503), record=record) as url, http_client(url) as client:
        failed = await client.post("/v1/embeddings", json={"model": "m", "input": "hi"})
        runs = (await client.get("/v1/runs")).json()["data"]

    assert failed.status_code >= 500
    assert runs == []


async def test_a_route_that_the_provider_does_not_have_is_a_404() -> None:
    async with passing(Provider(status=404, parts=(b"no",))) as url:
        answer = await raw_post(url, {"model": "m", "query": "x"}, path="/v1/rerank")
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (404, "unsupported_route")


async def test_a_client_that_leaves_closes_the_provider() -> None:
    provider = Provider(content_type="text/event-stream", parts=(b"data: 1\n\n",), gate=asyncio.Event())
    async with passing(provider) as url:
        async with raw_connection(url) as connection:
            await connection.post("/v1/completions", {"model": "m", "prompt": "x", "stream": True})
            await connection.until(b"data: 1")
        async with asyncio.timeout(30):
            await provider.left.wait()


async def test_what_it_cost_counts_against_the_keys_budget() -> None:
    usage = {"object": "list", "data": [], "model": "x", "usage": {"prompt_tokens": 900, "total_tokens": 900}}
    provider = Provider(parts=(json.dumps(usage).encode(),))
    keys = [{**KEYS[0], "tokens_per_minute": 1000}]
    async with passing(provider, auth="keys", keys=keys) as url, openai_client(url, api_key="cg-alice") as client:
        await client.embeddings.create(model="m", input="hello", encoding_format="float")
        with pytest.raises(openai.RateLimitError):
            await client.embeddings.create(model="m", input="hello " * 200, encoding_format="float")


# Not passed on --------------------------------------------------------------------------------------------------------


async def test_a_model_without_such_an_api_is_a_404_with_the_reason() -> None:
    config = make_config("http://127.0.0.1:1", entry={"litellm_params": {"model": "demo/demo"}, "lane": "auto"})
    async with serve(create_app(config)) as url, openai_client(url) as client:
        with pytest.raises(openai.NotFoundError) as caught:
            await client.embeddings.create(model="m", input="hello")
        assert caught.value.code == "unsupported_route"
        with pytest.raises(openai.NotFoundError) as caught:
            await client.embeddings.create(model="nobody", input="hello")
        assert caught.value.code == "model_not_found"


@pytest.mark.parametrize("body", [{}, {"model": 7}, {"model": ""}, [], b"{", b'{"model":"m","model":"n"}'])
async def test_what_is_no_request_is_a_400(body: Any) -> None:
    async with passing(Provider()) as url:
        answer = await raw_post(url, body, path="/v1/embeddings")
    assert answer.status == 400
    assert set(json.loads(answer.body)["error"]) == {"message", "type", "param", "code"}


async def test_fields_are_counted_and_tokens_are_not() -> None:
    async with passing(Provider()) as url, http_client(url) as client:
        tokens = await client.post("/v1/embeddings", json={"model": "m", "input": [[7] * 200_000]})
        assert tokens.status_code == 200
        for body in ({f"k{number}": 1 for number in range(1500)}, {"zz": [{"a": 1}] * 150_000}):
            refused = await client.post("/v1/embeddings", json={"model": "m", **body})
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "too_many_values")


async def test_a_form_without_a_model_is_a_400() -> None:
    async with passing(Provider()) as url, http_client(url) as client:
        answer = await client.post("/v1/audio/transcriptions", files={"file": ("a.wav", b"x")})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")


# Everywhere -----------------------------------------------------------------------------------------------------------

ROUTES = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/chat/completions"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/responses"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/m"),
    ("GET", "/metrics"),
    ("GET", "/openapi.json"),
    ("GET", "/nowhere"),
]


@pytest.mark.parametrize("key", [{}, {"authorization": "Bearer cg-bob"}, {"x-api-key": "cg-alic"}])
@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_every_route_refuses_strangers(method: str, path: str, key: dict[str, str]) -> None:
    async with passing(Provider(), auth="keys", keys=KEYS) as url, http_client(url) as client:
        answer = await client.request(method, path, headers=key)
    assert answer.status_code == 401
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize("path", ["/v1/models/", "/v1/models/m/", "/health/live/"])
async def test_a_slash_at_the_end_means_nothing(path: str) -> None:
    async with passing(Provider()) as url, http_client(url) as client:
        answer = await client.get(path)
        chat = await client.post("/v1/chat/completions/", json={})
    assert answer.status_code == 200
    assert chat.json()["error"]["param"] == "model"


async def test_a_head_is_the_head_of_a_get() -> None:
    async with passing(Provider()) as url, http_client(url) as client:
        head, get = await client.head("/v1/models"), await client.get("/v1/models")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == get.headers["content-type"]


async def test_how_deep_json_may_be_is_a_setting_for_every_route() -> None:
    deep = {"model": "m", "input": "x", "messages": [{"role": "user", "content": "x"}], "x": [[[[[[[[[]]]]]]]]]}
    async with passing(Provider(), limits={"json_depth": 9}) as url:
        for path in ("/v1/chat/completions", "/v1/embeddings"):
            answer = await raw_post(url, deep, path=path)
            assert (answer.status, json.loads(answer.body)["error"]["code"]) == (400, "json_too_deep")
    async with passing(Provider(), limits={"json_depth": 10}) as url:
        assert (await raw_post(url, deep, path="/v1/embeddings")).status == 200


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate"])
async def test_a_compressed_body_is_a_415(encoding: str) -> None:
    async with passing(Provider()) as url:
        for path in ("/v1/chat/completions", "/v1/embeddings"):
            answer = await raw_post(url, b"\x1f\x8b", path=path, headers={"content-encoding": encoding})
            assert (answer.status, json.loads(answer.body)["error"]["code"]) == (415, "unsupported_encoding")


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_json_under_another_name_is_json(content_type: str) -> None:
    provider = Provider()
    async with passing(provider) as url, http_client(url) as client:
        answer = await client.post(
            "/v1/embeddings", content=b'{"model":"m","input":"x"}', headers={"content-type": content_type}
        )
    assert answer.status_code == 200


# Browsers -------------------------------------------------------------------------------------------------------------

PAGE = "https://chat.example.com"
ASKS = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization, x-stainless-lang",
}


async def test_a_preflight_of_an_allowed_page_needs_no_key_and_the_page_can_read_the_answers() -> None:
    options = {"auth": "keys", "keys": KEYS, "server": {"cors_origins": [PAGE]}}
    async with passing(Provider(), **options) as url, http_client(url) as client:
        asked = await client.options("/v1/chat/completions", headers=ASKS)
        models = await client.get("/v1/models", headers={"origin": PAGE, "authorization": "Bearer cg-alice"})
        refused = await client.get("/v1/models", headers={"origin": PAGE})
    assert (asked.status_code, asked.content) == (204, b"")
    assert asked.headers["access-control-allow-origin"] == PAGE
    assert "POST" in asked.headers["access-control-allow-methods"]
    assert asked.headers["access-control-allow-headers"] == ASKS["access-control-request-headers"]
    for answer in (models, refused):
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert "x-request-id" in answer.headers["access-control-expose-headers"]
        assert answer.headers["vary"] == "Origin"
    assert (models.status_code, refused.status_code) == (200, 401)


async def test_any_origin_may_call_if_configured() -> None:
    async with passing(Provider(), server={"cors_origins": ["*"]}) as url, http_client(url) as client:
        asked = await client.options("/v1/chat/completions", headers=ASKS)
        models = await client.get("/v1/models", headers={"origin": PAGE})
    assert asked.headers["access-control-allow-origin"] == "*"
    assert models.headers["access-control-allow-origin"] == "*"


async def test_another_page_is_refused_without_cors_headers() -> None:
    options = {"auth": "keys", "keys": KEYS, "server": {"cors_origins": ["https://other.example.com"]}}
    async with passing(Provider(), **options) as url, http_client(url) as client:
        asked = await client.options("/v1/chat/completions", headers=ASKS)
        models = await client.get("/v1/models", headers={"origin": PAGE, "authorization": "Bearer cg-alice"})
    assert (asked.status_code, asked.json()["error"]["code"]) == (403, "origin_not_allowed")
    assert "access-control-allow-origin" not in {**asked.headers, **models.headers}


async def test_options_without_a_page_says_what_can_be_asked() -> None:
    async with passing(Provider(), auth="keys", keys=KEYS) as url, http_client(url) as client:
        answer = await client.options("/v1/chat/completions")
    assert (answer.status_code, answer.content) == (204, b"")
    assert "POST" in answer.headers["allow"]
