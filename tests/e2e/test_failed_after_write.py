"""A failure behind a tool that may change something says why it failed and what had been started, to keys that may see runs: on all
APIs, streamed and whole, with an `Idempotency-Key` and without. Others are told nothing more than before."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from callgate.access.keys import hash_key
from callgate.application import create_app
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.scripted_upstream import Call, Cut, Reply, Upstream

pytestmark = pytest.mark.anyio

BOTH = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
APIS = pytest.mark.parametrize("api", PATHS)
MAIL = Reply(text="I write.", calls=[Call("send_mail", {"to": "a", "text": "b"})])
FAILURES: Mapping[str, tuple[Reply, Mapping[str, Any]]] = {
    "an error of the provider": (
        Reply(status=500),
        {"code": "upstream_error", "status": 502, "provider_status": 500},
    ),
    "too many requests": (
        Reply(status=429, headers={"retry-after": "30"}),
        {"code": "rate_limit_exceeded", "status": 429, "provider_status": 429},
    ),
    "a cut answer": (
        Reply(text="It is done, and so on.", fault=Cut(after=4)),
        {"code": "upstream_broke_off", "status": 502, "provider_status": 200},
    ),
}
KEYS = {"seeing": "key-that-sees-its-runs", "blind": "key-that-sees-none"}


def request_body(api: str, *, stream: bool) -> dict[str, Any]:
    asked: dict[str, Any] = {"model": "m", "stream": stream}
    if api == "responses":
        return {**asked, "input": "hi"}
    return {
        **asked,
        "messages": [{"role": "user", "content": "hi"}],
        **({"max_tokens": 99} if api == "messages" else {}),
    }


def errors_in(text: str) -> list[dict[str, Any]]:
    """The objects that clients read as the error of an answer."""
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: {")]
    bodies = [json.loads(line) for line in lines] if lines else [json.loads(text)]
    errors = [body.get("error") or (body.get("response") or {}).get("error") for body in bodies]
    return [error for error in errors if error]


def config_for(upstream: Upstream, folder: Path | None = None) -> Any:
    keys = [
        {"hash": hash_key(KEYS["seeing"]), "name": "seeing", "see": "own", "tools": ["*"]},
        {"hash": hash_key(KEYS["blind"]), "name": "blind", "see": "none", "tools": ["*"]},
    ]
    more: dict[str, Any] = {} if folder is None else {"data_dir": str(folder)}
    return make_config(
        upstream.url,
        tools=["send_mail"],
        auth="keys",
        keys=keys,
        upstream={"retries": 0},
        **more,
    )


@BOTH
@APIS
@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "plain"])
async def test_a_key_that_may_see_runs_is_told_the_cause_and_what_was_started(
    upstream: Upstream, tmp_path: Path, api: str, stream: bool, failure: str, keyed: bool
) -> None:
    reply, cause = FAILURES[failure]
    if failure == "a cut answer" and not stream:
        cause = {"code": "upstream_error", "status": 502}
    upstream.script("m", [MAIL, reply], repeat_last=True)
    headers = {"authorization": f"Bearer {KEYS['seeing']}"}
    if keyed:
        headers["idempotency-key"] = "one"
    config = config_for(upstream, tmp_path)
    async with serve(create_app(config)) as url, http_client(url) as client:
        answer = await client.post(PATHS[api], json=request_body(api, stream=stream), headers=headers)
        errors = errors_in(answer.text)
        [run] = (await client.get("/v1/runs", headers=headers)).json()["data"]
    assert answer.headers.get("x-should-retry") == "false" or stream
    for error in errors:
        report = {"run": run["id"], "cause": cause, "started": ["send_mail"]}
        assert error.get("x_callgate") == (None if api == "messages" else report)
        assert "rate" not in error["message"]
        assert "upstream" not in error["message"]
    assert errors
    assert run["error"] == f"failed_after_write: {cause['code']}"


@BOTH
@APIS
async def test_another_key_is_told_nothing_more(upstream: Upstream, api: str, stream: bool) -> None:
    upstream.script("m", [MAIL, Reply(status=500)], repeat_last=True)
    headers = {"authorization": f"Bearer {KEYS['blind']}"}
    async with serve(create_app(config_for(upstream))) as url, http_client(url) as client:
        answer = await client.post(PATHS[api], json=request_body(api, stream=stream), headers=headers)
    errors = errors_in(answer.text)
    assert errors
    assert "send_mail" not in json.dumps(errors)
    assert not any("x_callgate" in error for error in errors)


@APIS
async def test_a_failure_before_anything_was_started_has_no_such_field(upstream: Upstream, api: str) -> None:
    upstream.script("m", [Reply(status=500)], repeat_last=True)
    headers = {"authorization": f"Bearer {KEYS['seeing']}"}
    async with serve(create_app(config_for(upstream))) as url, http_client(url) as client:
        answer = await client.post(PATHS[api], json=request_body(api, stream=False), headers=headers)
    assert answer.status_code >= 500
    assert not any("x_callgate" in error for error in errors_in(answer.text))
