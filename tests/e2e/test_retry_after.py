"""A provider that says how long to wait: a short wait is waited for, a long one is sent to the client at once."""

import json
from typing import Any

import pytest

from callgate.application import create_app
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.harness.wire import raw_post
from tests.scripted_upstream import Reply, Upstream

pytestmark = pytest.mark.anyio

STREAMS = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
TOOLS = pytest.mark.parametrize("tools", [(), ("get_time",)], ids=["passed", "with_our_tools"])


def chat_body(stream: bool) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": stream}


@STREAMS
@TOOLS
async def test_a_long_retry_after_reaches_the_client_at_once(
    upstream: Upstream, stream: bool, tools: tuple[str, ...]
) -> None:
    upstream.script("m", [Reply(status=429, headers={"retry-after": "30"})])
    async with serve(create_app(make_config(upstream.url, tools=tools))) as url:
        answer = await raw_post(url, chat_body(stream))
    assert answer.status == 429
    assert answer.headers["retry-after"] == "30"
    assert json.loads(answer.body)["error"]["code"] == "rate_limit_exceeded"
    assert len(upstream.requests) == 1


@STREAMS
async def test_a_short_one_is_waited_for(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(status=429, headers={"retry-after-ms": "1"}), Reply(text="there")])
    config = make_config(upstream.url, upstream={"retry_wait_seconds": 5})
    async with serve(create_app(config)) as url:
        answer = await raw_post(url, chat_body(stream))
    assert answer.status == 200
    assert len(upstream.requests) == 2


async def test_the_setting_turns_waiting_off(upstream: Upstream) -> None:
    upstream.script("m", [Reply(status=429, headers={"retry-after": "1"})])
    config = make_config(upstream.url, upstream={"retry_wait_seconds": 0})
    async with serve(create_app(config)) as url:
        answer = await raw_post(url, chat_body(stream=False))
    assert answer.status == 429
    assert len(upstream.requests) == 1
