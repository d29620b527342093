"""Tools whose names a provider does not take: litellm renames them in the request, and clients are told the names they sent."""

from contextlib import asynccontextmanager
from typing import Any

import pytest

from callgate.calls.states import ReadyCall
from callgate.http.client import HttpClient
from callgate.http.interface import Deadlines
from callgate.models.catalogue import Catalogue
from callgate.models.resolve import ModelConfig
from callgate.models.retry import RetryPolicy
from tests.lanes.exchanges import OPENAI, PROVIDERS
from tests.lanes.matrix import KEY
from tests.lanes.wires import openai_stream, openai_whole, wire_event
from tests.models.through_litellm import MARKS, both_ways, refused, turn_of
from tests.models.wire import asking, chunk, raw_provider, tool

pytestmark = [*MARKS, pytest.mark.leaves("aws-signing", why="litellm keeps its thread for signing")]

NAMES = ("fs.write", "fs-write", "1st", "x" * 64)
"""Anthropic takes no dots, and Bedrock no digit at the beginning."""


def names_in(body):
    """The names of the tools of a request, by the names that the client sent: each tool has its own as its description."""
    names = {}
    waiting = [body]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if "name" in value and "description" in value:
                names[value["description"]] = value["name"]
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return names


def calling(tool_names, form):
    """Serves calls of these tools, by the names that were received for them."""

    async def serve(request, wire):
        sent_names = names_in(request.body)
        calls = [
            {"id": f"c{at}", "type": "function", "function": {"name": sent_names[name], "arguments": '{"path":"/a"}'}}
            for at, name in enumerate(tool_names)
        ]
        stream = "stream" in request.target or bool(request.body.get("stream"))
        case: dict[str, Any]
        if stream:
            pieces = [chunk({"tool_calls": [{"index": at, **call}]}) for at, call in enumerate(calls)]
            case = {"chunks": [*pieces, chunk(finish="tool_calls")]}
        else:
            message = {"role": "assistant", "content": None, "tool_calls": calls}
            case = {"message": message, "finish_reason": "tool_calls"}
        if form is OPENAI:
            body = (openai_stream if stream else openai_whole)(case)
        else:
            body = (form.stream if stream else form.whole)(wire_event(case))
        await wire.head(200, form.kind if stream else "application/json", f"Content-Length: {len(body)}")
        await wire.send(body)
        wire.writer.close()

    return serve


@asynccontextmanager
async def model_of(name, lane, *tool_names):
    provider = PROVIDERS[name]
    client = HttpClient()
    try:
        async with raw_provider(calling(tool_names, provider.form)) as server:
            at = f"{server.url}{provider.path}"
            params = {"model": provider.model, "api_base": at, "api_key": KEY, **provider.more}
            if name in {"bedrock", "sagemaker_chat"}:
                del params["api_key"]
            if "sagemaker_base_url" in params:
                params["sagemaker_base_url"] = at
            entry = ModelConfig("m", params, tools=("*",), lane=lane, deadlines=Deadlines())
            yield Catalogue([entry], client, policy=RetryPolicy(tries=1)).model("m"), server
    finally:
        await client.close()


def question(stream, *names):
    return asking(stream=stream, tools=[tool(name, path={"type": "string"}) for name in names])


@both_ways
@pytest.mark.parametrize("lane", ["litellm", "auto"])
@pytest.mark.parametrize("name", PROVIDERS)
async def test_calls_come_with_the_names_that_the_client_sent(name, lane, stream):
    async with model_of(name, lane, *NAMES) as (model, _):
        turn, broke, _ = await turn_of(model, question(stream, *NAMES))
    assert broke is None
    assert [(type(call), call.name) for call in turn.calls] == [(ReadyCall, name) for name in NAMES]


@both_ways
@pytest.mark.parametrize("lane", ["litellm", "auto"])
async def test_names_that_become_the_same_at_anthropic_are_told_apart(lane, stream):
    names = ("fs.write", "fs/write", "fs_write")
    async with model_of("anthropic", lane, *reversed(names)) as (model, server):
        turn, _, _ = await turn_of(model, question(stream, *names))
    assert names_in(server.requests[0].body) == {
        "fs.write": "fs_write_2", "fs/write": "fs_write_3", "fs_write": "fs_write"
    }  # fmt: skip
    assert [call.name for call in turn.calls] == [*reversed(names)]


@both_ways
@pytest.mark.parametrize("lane", ["litellm", "auto"])
async def test_names_that_become_the_same_at_bedrock_are_refused(lane, stream):
    """Whose call it is cannot be known."""
    async with model_of("bedrock", lane, "fs_write") as (model, server):
        error = await refused(model, question(stream, "now", "fs.write", "fs_write"))
    assert (error.status, error.param) == (400, "tools[2].function.name")
    assert "'fs.write' and 'fs_write'" in error.message
    assert len(server.requests) == (1 if lane == "litellm" else 0), "on litellm's lane the answer says which wire it is"
