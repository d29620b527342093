"""A result that is too long, read on by the model through the chat."""

import base64
import re
from typing import Any

import pytest

from callgate.application import create_app
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = pytest.mark.anyio

LONG = "".join(f"{number:05d} " for number in range(500))
CLIENT_TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
POINTER = re.compile(r'read_more \{"id": "(kept_[0-9a-f]{24})", "offset": (\d+)\}')


def offered(request: Any) -> list[str]:
    return [tool["function"]["name"] for tool in request.body["tools"]]


def last(request: Any) -> str:
    return str(request.body["messages"][-1]["content"])


async def test_the_model_is_offered_the_rest_and_gets_it(upstream: Upstream) -> None:
    def reads_on(request: Any) -> Reply:
        said = last(request)
        if request.body["messages"][-1]["role"] == "user":
            return Reply(calls=[Call("echo", {"text": LONG})])
        if found := POINTER.search(said):
            return Reply(calls=[Call("read_more", {"id": found[1], "offset": int(found[2])})])
        if found := re.search(r"read on with offset (\d+)", said):
            id = POINTER.search(str(request.body["messages"]))
            assert id is not None
            return Reply(calls=[Call("read_more", {"id": id[1], "offset": int(found[1])})])
        return Reply(text="All read.")

    upstream.script("m", reads_on)
    config = make_config(upstream.url, tools=["echo"], limits={"tool_result_bytes": 1000}, loop={"max_iterations": 20})
    async with serve(create_app(config)) as url, http_client(url) as client:
        question = {"model": "m", "messages": [{"role": "user", "content": "go"}]}
        answer = (await client.post("/v1/chat/completions", json=question)).json()
    assert answer["choices"][0]["message"]["content"] == "All read."
    assert {tuple(offered(request)) for request in upstream.requests} == {("echo", "read_more")}
    results = [m["content"] for m in upstream.requests[-1].body["messages"] if m["role"] == "tool"]
    found = POINTER.search(results[0])
    assert found is not None
    pages = [result.rpartition("\n[Bytes ")[0] for result in results[1:]]
    assert "".join(pages) == LONG[int(found[2]) :]
    assert all(len(result.encode()) <= 1000 for result in results)


async def test_after_a_mixed_turn_the_rest_can_still_be_read(upstream: Upstream) -> None:
    upstream.script(
        "m",
        [
            Reply(calls=[Call("echo", {"text": LONG}, id="call_ours"), Call("look", {}, id="call_theirs")]),
            Reply(text="Fine."),
        ],
    )
    config = make_config(upstream.url, tools=["echo"], limits={"tool_result_bytes": 1000})
    async with serve(create_app(config)) as url, http_client(url) as client:
        messages: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
        question = {"model": "m", "tools": [CLIENT_TOOL], "messages": messages}
        message = (await client.post("/v1/chat/completions", json=question)).json()["choices"][0]["message"]
        [call] = message["tool_calls"]
        messages += [message, {"role": "tool", "tool_call_id": call["id"], "content": "seen"}]
        await client.post("/v1/chat/completions", json=question)
    assert offered(upstream.requests[0]) == ["look", "echo", "read_more"]
    assert offered(upstream.requests[1]) == ["look", "echo", "read_more"]


async def test_a_file_in_a_result_is_described_and_not_kept_to_be_read_on(upstream: Upstream) -> None:
    picture = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(3000)).decode()
    upstream.script("m", [Reply(calls=[Call("echo", {"text": f"before {picture} after"})]), Reply(text="I see.")])
    config = make_config(upstream.url, tools=["echo"], limits={"tool_result_bytes": 1000})
    async with serve(create_app(config)) as url, http_client(url) as client:
        await client.post("/v1/chat/completions", json={"model": "m", "messages": [{"role": "user", "content": "go"}]})
    assert last(upstream.requests[1]) == "before [image/png, 3008 bytes, not shown] after"
    assert "kept_" not in last(upstream.requests[1])


async def test_a_request_that_is_offered_no_tool_of_ours_goes_on_untouched(upstream: Upstream) -> None:
    theirs = {"type": "function", "function": {"name": "read_more", "parameters": {"type": "object", "properties": {}}}}
    upstream.script("m", [Reply(text="Fine."), Reply(text="Fine."), Reply(text="Fine.")])
    config = make_config(upstream.url, tools=["echo"])
    async with serve(create_app(config)) as url, http_client(url) as client:
        question = {"model": "m", "messages": [{"role": "user", "content": "go"}], "tools": [theirs]}
        await client.post("/v1/chat/completions", json=question, headers={"X-Callgate-Tools": "none"})
        await client.post("/v1/chat/completions", json=question)
        listed = (await client.get("/v1/tools?models=1")).json()
    assert upstream.requests[0].body["tools"] == [theirs]
    assert offered(upstream.requests[1]) == ["read_more", "echo", "callgate__read_more"]
    assert [tool["name"] for tool in listed["data"]] == ["echo", "read_more"]
    tokens = sum(tool["prompt_tokens"] for tool in listed["data"])
    assert listed["models"] == [{"id": "m", "tools": 2, "prompt_tokens": tokens}]
