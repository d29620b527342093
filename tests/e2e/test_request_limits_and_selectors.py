"""What a request may not choose, and what is refused before it is read."""

import json
from typing import Any

import pytest

from callgate.application import create_app
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.harness.wire import raw_connection, raw_post
from tests.scripted_upstream import Reply, Upstream

pytestmark = pytest.mark.anyio

ASKING: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
SELECTORS = pytest.mark.parametrize(
    "field", ["models", "fallback_models", "route", "provider", "preset", "user_config"]
)
TOOLS = pytest.mark.parametrize("tools", [(), ("get_time",)], ids=["passed", "with_our_tools"])


@SELECTORS
@TOOLS
async def test_a_request_cannot_choose_another_model_behind_its_name(
    upstream: Upstream, field: str, tools: tuple[str, ...]
) -> None:
    upstream.script("m", [Reply(text="never")])
    async with serve(create_app(make_config(upstream.url, tools=tools))) as url:
        answer = await raw_post(url, {**ASKING, field: ["dear"]})
    assert answer.status == 400
    assert json.loads(answer.body)["error"]["param"] == field
    assert not upstream.requests


@SELECTORS
async def test_an_entry_may_let_requests_choose(upstream: Upstream, field: str) -> None:
    upstream.script("m", [Reply(text="chosen")])
    config = make_config(upstream.url, entry={"provider_selectors": True})
    async with serve(create_app(config)) as url:
        answer = await raw_post(url, {**ASKING, field: ["dear"]})
    assert answer.status == 200
    assert upstream.requests[0].body[field] == ["dear"]


@SELECTORS
async def test_other_routes_hold_to_it_as_well(upstream: Upstream, field: str) -> None:
    async with serve(create_app(make_config(upstream.url))) as url:
        answer = await raw_post(url, {"model": "m", "input": "x", field: "dear"}, path="/v1/embeddings")
    assert answer.status == 400
    assert json.loads(answer.body)["error"]["param"] == field


async def test_a_wildcard_takes_no_addresses(upstream: Upstream) -> None:
    config = make_config(upstream.url, models=["up/*"])
    async with serve(create_app(config)) as url:
        answer = await raw_post(url, {**ASKING, "model": "up/http://127.0.0.1:1/x"})
    assert answer.status == 404
    assert not upstream.requests


async def test_a_body_of_a_terabyte_is_refused_before_any_of_it_comes(upstream: Upstream) -> None:
    async with serve(create_app(make_config(upstream.url))) as url, raw_connection(url) as connection:
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 1099511627776\r\n\r\n"
        await connection.send(head.encode())
        assert b" 413 " in await connection.until(b"request_too_large")
