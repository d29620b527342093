"""Schemas in a provider's dialect, as the provider gets them, while the gate keeps to the whole ones."""

from typing import Any

import pytest

from callgate.application import create_app
from callgate.tools.read_more import PARAMETERS as READ_MORE_PARAMETERS
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = pytest.mark.anyio

LIMIT = {"anyOf": [{"type": "integer", "exclusiveMinimum": 0}, {"type": "null"}], "default": None}
PARAMETERS = {"type": "object", "properties": {"limit": LIMIT}, "additionalProperties": False}
TOOL = {"kind": "http", "name": "web", "description": "d", "url": "http://127.0.0.1:1/", "parameters": PARAMETERS}
THEIRS = {"type": "function", "function": {"name": "theirs", "description": "t", "parameters": PARAMETERS}}


async def ask(upstream: Upstream, dialect: str, *, tools: list[Any] | None = None) -> dict[str, Any]:
    config = make_config(upstream.url, tools=[TOOL], entry={"schema_dialect": dialect, "tools": ["*"]})
    async with serve(create_app(config)) as url, http_client(url) as client:
        question = {"model": "m", "messages": [{"role": "user", "content": "?"}], **({"tools": tools} if tools else {})}
        answer: dict[str, Any] = (await client.post("/v1/chat/completions", json=question)).json()
        return answer


def sent(upstream: Upstream) -> dict[str, Any]:
    return {tool["function"]["name"]: tool["function"]["parameters"] for tool in upstream.requests[0].body["tools"]}


async def test_our_tools_are_sent_in_the_providers_dialect_and_the_clients_as_they_came(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="hi")])
    await ask(upstream, "gemini", tools=[THEIRS])
    assert sent(upstream) == {
        "web": {"type": "object", "properties": {"limit": {"type": "integer", "minimum": 1, "nullable": True}}},
        "theirs": PARAMETERS,
        "read_more": READ_MORE_PARAMETERS,
    }


async def test_in_the_full_dialect_schemas_are_sent_unchanged(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="hi")])
    await ask(upstream, "full")
    assert sent(upstream) == {"web": PARAMETERS, "read_more": READ_MORE_PARAMETERS}


async def test_the_gate_goes_on_checking_what_the_dialect_left_out(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[Call("web", {"limit": 1, "more": 2})]), Reply(text="oh")])
    answer = await ask(upstream, "gemini")
    assert answer["x_callgate"]["turns"][0]["calls"][0]["flaw"] == "schema_mismatch"
