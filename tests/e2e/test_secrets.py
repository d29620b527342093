"""Six secrets are planted and everything that can go wrong is made to go wrong; none of them may be found anywhere."""

import asyncio
import contextlib
import json
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from callgate.access.keys import hash_key
from callgate.application import create_app
from callgate.config import redaction
from callgate.config.redaction import Redactor
from callgate.config.schema.whole import Config
from callgate.state.responses import ResponseStore, StoredResponse
from tests.chaos.load import chat_body, shoot
from tests.harness.clients import http_client
from tests.harness.configs import as_yaml, config_dict
from tests.harness.process import Child, serving_command
from tests.harness.server import serve
from tests.scripted_upstream import Call, Cut, ErrorEvent, Hang, Html, Malformed, Reply, Reset, Shape, Upstream, by_turn

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

CLIENT_KEY = "canary-client-4f1c9e7a2b"
UPSTREAM_KEY = "canary-upstream-93be07d1c5"
TOOL_HEADER = "canary-header-5a8d22e6f0"
IN_ENVIRONMENT = "canary-environment-b17c40a9d3"
IN_CONFIG = "canary-config-e0625f8c1a"
IN_MESSAGE = "canary-message-7d94ab31fe"
CANARIES = (CLIENT_KEY, UPSTREAM_KEY, TOOL_HEADER, IN_ENVIRONMENT, IN_CONFIG, IN_MESSAGE)

LEAKY = f"Incorrect API key provided: {UPSTREAM_KEY}. Sent headers: Authorization: Bearer {UPSTREAM_KEY}"
"""What a provider's error may look like."""
BROKEN_REPLIES: dict[str, Reply] = {
    "401": Reply(
        status=401, body={"error": {"message": LEAKY, "type": "invalid_request_error", "code": "invalid_api_key"}}
    ),
    "400": Reply(status=400, body={"error": {"message": LEAKY, "type": "invalid_request_error", "code": None}}),
    "404": Reply(status=404, body=LEAKY),
    "429": Reply(status=429, body={"error": {"message": LEAKY, "type": "rate_limit_error", "code": None}}),
    "500": Reply(status=500, body=LEAKY),
    "503": Reply(status=503, body={"error": LEAKY}),
    "200 with an error": Reply(body={"error": {"message": LEAKY}}),
    "an error inside": Reply(text="hello there", fault=ErrorEvent(after=2, message=LEAKY)),
    "cut": Reply(text="hello there", fault=Cut(after=2)),
    "reset": Reply(text="hello there", fault=Reset(after=1)),
    "html": Reply(fault=Html()),
    "malformed": Reply(text="hello there", fault=Malformed(after=1)),
}
TOOLS: dict[str, Call] = {
    "good": Call("lookup", {"q": "plain"}),
    "fails": Call("gone", {"q": "plain"}),
    "refused": Call("private", {}),
    "raises": Call("send_mail", {"to": "somebody", "text": "something"}),
    "broken": Call("lookup", '{"q": "pla'),
    "command": Call("child", {}),
    "unknown": Call("nobody", {}),
}


def http_tool(name: str, url: str, **more: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"q": {"type": "string"}}}
    headers = {"Authorization": f"Bearer {TOOL_HEADER}", "X-Config": IN_CONFIG}
    return {
        "kind": "http",
        "name": name,
        "description": "d",
        "url": url,
        "headers": headers,
        "parameters": parameters,
        **more,
    }


@contextlib.asynccontextmanager
async def started(upstream: Upstream, folder: Path) -> AsyncIterator[Child]:
    tools: list[Any] = [
        http_tool("lookup", f"{upstream.root}/nowhere", allow_private=True),
        http_tool("gone", "http://127.0.0.1:1/", allow_private=True),
        http_tool("private", "http://169.254.169.254/"),
        {"kind": "command", "name": "child", "description": "d", "argv": ["false"], "env": {"TOKEN": "${CANARY}"}},
        "send_mail",
    ]
    config = config_dict(
        upstream.url,
        models=[*BROKEN_REPLIES, *TOOLS, "hang"],
        tools=tools,
        auth="keys",
        keys=[{"name": "alice", "hash": hash_key(CLIENT_KEY), "requests_per_minute": 10_000}],
        data_dir=str(folder / "data"),
        upstream={"retries": 0, "first_byte_seconds": 1},
        logging={"level": "debug", "format": "json"},
    )
    for entry in config["model_list"]:
        entry["litellm_params"]["api_key"] = UPSTREAM_KEY
    file = folder / "config.yaml"
    file.write_text(as_yaml(config))
    async with serving_command(file, environment={"CANARY": IN_ENVIRONMENT}) as child:
        yield child


async def test_none_is_found_in_logs_metrics_answers_or_files(tmp_path: Path) -> None:
    upstream = Upstream()
    answers: list[bytes] = []
    async with contextlib.AsyncExitStack() as stack:
        await upstream.open()
        stack.push_async_callback(upstream.close)
        for name, reply in BROKEN_REPLIES.items():
            upstream.script(name, [reply], repeat_last=True)
        for name, call in TOOLS.items():
            upstream.script(name, by_turn([Reply(calls=[call]), Reply(text="done")]))
        upstream.script("hang", [Reply(fault=Hang())], repeat_last=True)
        child = await stack.enter_async_context(started(upstream, tmp_path))
        key = {"authorization": f"Bearer {CLIENT_KEY}"}
        for model in (*BROKEN_REPLIES, *TOOLS, "hang", "no such model"):
            for stream in (True, False):
                shot = await shoot(
                    child.url, chat_body(f"my password is {IN_MESSAGE}", model=model, stream=stream), headers=key
                )
                assert shot.status, model
                answers.append(shot.body)
        bad: list[tuple[Any, dict[str, str]]] = [
            (chat_body(IN_MESSAGE, n="x"), key),
            (chat_body(IN_MESSAGE, messages=[{"role": "root", "content": IN_MESSAGE}]), key),
            (chat_body(IN_MESSAGE), {"authorization": f"Bearer {CLIENT_KEY}x"}),
            (chat_body(IN_MESSAGE), {"authorization": f"Basic {CLIENT_KEY}"}),
            (chat_body(IN_MESSAGE), {}),
            ([IN_MESSAGE], key),
        ]
        for body, headers in bad:
            shot = await shoot(child.url, body, headers=headers)
            assert 400 <= shot.status < 500
            answers.append(shot.body)
        for path in ("/metrics", "/v1/models", "/openapi.json", "/health/ready", "/nowhere"):
            answers.append((await shoot(child.url, path=path, headers=key)).body)
        leaving = asyncio.create_task(shoot(child.url, chat_body(IN_MESSAGE, model="hang"), headers=key))
        seen = len(upstream.requests)
        await upstream.requests.wait(seen + 1)
        leaving.cancel()
        await asyncio.wait([leaving])
        child.signal(signal.SIGTERM)
        assert await child.ended() == 0
        sent = [json.dumps(dict(record.headers)) + record.raw.decode(errors="replace") for record in upstream.requests]
    everywhere = {
        "the log": child.log,
        "the answers": "\n".join(answer.decode(errors="replace") for answer in answers),
        "the files": "\n".join(
            file.read_bytes().decode("latin-1") for file in sorted((tmp_path / "data").rglob("*")) if file.is_file()
        ),
    }
    found = [f"{canary} in {place}" for place, text in everywhere.items() for canary in CANARIES if canary in text]
    assert not found
    to_models = "\n".join(sent)
    assert UPSTREAM_KEY in to_models, "the model's own key goes to the model, or this test tests nothing"
    assert IN_MESSAGE in to_models
    assert not [canary for canary in (CLIENT_KEY, TOOL_HEADER, IN_ENVIRONMENT, IN_CONFIG) if canary in to_models]
    lines = [line for line in child.lines if line.startswith("{")]
    assert len(lines) > 50
    for line in lines:
        json.loads(line)


ECHOED = f"I was asked with {UPSTREAM_KEY}."


BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 99},
    "/v1/responses": {"input": "hi"},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tools", [["get_time"], []])
@pytest.mark.parametrize("model", ["openai/m", "anthropic/m"])
@pytest.mark.parametrize("path", BODIES)
async def test_a_provider_that_echoes_its_key_in_an_answer_does_not_show_it(
    upstream: Upstream, stream: bool, tools: list[str], model: str, path: str
) -> None:
    pieces = (100, 6, 1)
    upstream.script("m", [Reply(text=ECHOED, shape=Shape(piece=piece)) for piece in pieces])
    params = {
        "model": model,
        "api_base": upstream.url if model.startswith("openai") else upstream.url.removesuffix("/v1"),
    }
    entry = {"model_name": "m", "litellm_params": {**params, "api_key": UPSTREAM_KEY}, "tools": ["*"] if tools else []}
    config = Config.model_validate({**config_dict(upstream.url, tools=tools), "model_list": [entry]})
    body = {"model": "m", "stream": stream, **BODIES[path]}
    async with serve(create_app(config)) as url, http_client(url) as client:
        answers = [await client.post(path, json=body) for _ in pieces]
    for answer in answers:
        assert answer.status_code == 200
        assert UPSTREAM_KEY not in answer.text
        said = "".join(re.findall(r'"(?:content|text|delta)":\s?"((?:[^"\\]|\\.)*)"', answer.text))
        assert UPSTREAM_KEY not in said
        assert "*" * len(UPSTREAM_KEY) in said


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/completions", "/v1/responses"])
async def test_nor_on_the_routes_that_pass_it_on(upstream: Upstream, path: str) -> None:
    upstream.script("m", [Reply(body={"echo": ECHOED})])
    params = {"model": "openai/m", "api_base": upstream.url, "api_key": UPSTREAM_KEY}
    config = Config.model_validate({"model_list": [{"model_name": "m", "litellm_params": params}]})
    async with serve(create_app(config)) as url, http_client(url) as client:
        answer = await client.post(path, json={"model": "m", "input": "x", "prompt": "x"})
    assert UPSTREAM_KEY not in answer.text
    assert answer.status_code != 200 or "*" * len(UPSTREAM_KEY) in answer.text


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_is_kept_without_it(upstream: Upstream, monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    secret = "canary-of-a-tool-0123456789"
    monkeypatch.setattr(redaction, "current", Redactor([secret]))
    put = ResponseStore.put
    kept: list[bytes] = []

    async def put_noted(store: ResponseStore, owner: str, id: str, response: StoredResponse) -> None:
        kept.append(bytes(response.response))
        await put(store, owner, id, response)

    monkeypatch.setattr(ResponseStore, "put", put_noted)
    upstream.script("m", [Reply(text=f"it is {secret}", shape=Shape(piece=4))])
    async with serve(create_app(Config.model_validate(config_dict(upstream.url)))) as url, http_client(url) as client:
        answer = await client.post("/v1/responses", json={"model": "m", "input": "hi", "stream": stream})
    assert answer.status_code == 200
    assert kept
    assert secret.encode() not in b"".join(kept)
    assert b"*" * len(secret) in kept[-1]


LANES: dict[str, dict[str, str]] = {
    "direct": {"lane": "direct"},
    "litellm": {"lane": "litellm"},
    "trusted": {"lane": "litellm", "trust_litellm": "on"},
}


@pytest.mark.leaves("litellm", why="litellm keeps its thread for logging")
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
async def test_nor_in_pieces_of_reasoning_and_text_that_take_turns_nor_on_disk(
    upstream: Upstream, tmp_path: Path
) -> None:
    entries = []
    for name, lane in LANES.items():
        upstream.script(name, [Reply(chunks=alternating(), body=with_key_everywhere())], repeat_last=True)
        params = {"model": f"openai/{name}", "api_base": upstream.url, "api_key": UPSTREAM_KEY}
        entries.append({"model_name": name, "litellm_params": params, "tools": ["*"], **lane})
    sections: dict[str, Any] = {"data_dir": str(tmp_path), "record": {"content": True, "wire": True, "passed": "all"}}
    config = {**config_dict(upstream.url, tools=["get_time"], **sections), "model_list": entries}
    answers: dict[str, httpx.Response] = {}
    async with serve(create_app(Config.model_validate(config))) as url, http_client(url) as client:
        for model in LANES:
            for path, body in BODIES.items():
                for stream in (True, False):
                    asked = {**body, "model": model, "stream": stream}
                    answers[f"{model} {path} {stream}"] = await client.post(path, json=asked)
    for name, answer in answers.items():
        assert answer.status_code == 200, (name, answer.text)
        texts = answer.text + "\n".join(streamed_texts(answer.text))
        assert UPSTREAM_KEY not in texts, name
        assert "*" * len(UPSTREAM_KEY) in texts, name
        assert not re.search(r'"token":\s?"[^*"]|"bytes":\s?\[\s*\d', answer.text), name
    files = contents_of(tmp_path)
    assert {"ledger.sqlite3", "runs.sqlite3"} <= set(files)
    assert not [name for name, data in files.items() if UPSTREAM_KEY.encode() in data]


def contents_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def with_key_everywhere() -> dict[str, Any]:
    message = {"role": "assistant", "content": ECHOED, "reasoning_content": ECHOED}
    tokens = [one for piece in in_threes() for one in as_token(piece)["content"]]
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": {"content": tokens}}
    return {"id": f"chatcmpl-{UPSTREAM_KEY}", "model": UPSTREAM_KEY, "object": "chat.completion", "choices": [choice]}


def alternating() -> list[dict[str, Any]]:
    """The key in small pieces, of text and of reasoning in turn."""
    choices: list[dict[str, Any]] = []
    for piece in in_threes():
        choices += [
            {"delta": {"content": piece}, "logprobs": as_token(piece)},
            {"delta": {"reasoning_content": piece}},
        ]
    choices.append({"delta": {}, "finish_reason": "stop"})
    whole = {**with_key_everywhere(), "object": "chat.completion.chunk"}
    return [{**whole, "choices": [{"index": 0, "finish_reason": None, **choice}]} for choice in choices]


def in_threes() -> list[str]:
    return [UPSTREAM_KEY[at : at + 3] for at in range(0, len(UPSTREAM_KEY), 3)]


def as_token(piece: str) -> dict[str, Any]:
    token = {"token": piece, "logprob": -0.5, "bytes": list(piece.encode())}
    return {"content": [{**token, "top_logprobs": [token]}]}


def streamed_texts(stream: str) -> list[str]:
    """Join the pieces of text in a stream, of each kind of event and field."""
    joined: dict[tuple[str, ...], str] = {}
    for line in stream.splitlines():
        kinds = re.findall(r'"type":\s?"([^"]*)"', line)
        for name, text in re.findall(
            r'"(content|reasoning_content|text|thinking|delta|token)":\s?"((?:[^"\\]|\\.)*)"', line
        ):
            joined[(*kinds, name)] = joined.get((*kinds, name), "") + text
    return [*joined.values()]
