"""Clients made for Azure OpenAI, at our address: the model is in the path, the key in `api-key`."""

from typing import Any

import pytest
from openai import AsyncAzureOpenAI, BadRequestError, NotFoundError

from callgate.access.keys import mint_key
from callgate.application import create_app
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = pytest.mark.anyio

KEY, HASH = mint_key()
WRONG: Any = "x"
ASK: Any = [{"role": "user", "content": "go"}]


@pytest.mark.parametrize("name", ["m", "openai/m"])
async def test_azure_s_own_client_is_answered_with_tools_run_whole_and_streamed(upstream: Upstream, name: str) -> None:
    replies = [Reply(calls=[Call("add", {"a": 1, "b": 2})]), Reply("It is 3.")]
    upstream.script("m", [*replies, *replies])
    config = make_config(
        upstream.url, models=["m"], entry={"model_name": name}, tools=["add"], auth="keys",
        keys=[{"name": "k", "hash": HASH}],
    )  # fmt: skip
    async with serve(create_app(config)) as url:
        client = AsyncAzureOpenAI(azure_endpoint=url, api_key=KEY, api_version="2024-10-21", max_retries=0)
        async with client:
            whole = await client.chat.completions.create(model=name, messages=ASK)
            assert (whole.choices[0].message.content, whole.model) == ("It is 3.", name)
            stream: Any = await client.chat.completions.create(model=name, messages=ASK, stream=True)
            text = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
            assert "".join(text) == "It is 3."
            with pytest.raises(NotFoundError):
                await client.chat.completions.create(model="gone", messages=ASK)
            with pytest.raises(BadRequestError, match="messages"):
                await client.chat.completions.create(model=name, messages=WRONG)


async def test_the_model_of_the_path_counts_and_the_body_is_read_as_strictly_as_ever(upstream: Upstream) -> None:
    upstream.script("m", [Reply("yes")])
    path = "/openai/deployments/m/chat/completions"
    async with serve(create_app(make_config(upstream.url))) as url, http_client(url) as client:
        answer = await client.post(f"{path}/?api-version=x", json={"model": "other", "messages": ASK})
        assert answer.json()["choices"][0]["message"]["content"] == "yes"
        twice = await client.post(path, content=b'{"messages": [], "messages": []}')
        assert (twice.status_code, twice.json()["error"]["type"]) == (400, "invalid_request_error")
        assert (await client.post(path, content=b"[]")).status_code == 400


async def test_content_is_null_beside_a_refusal_and_audio_as_openai_has_it(upstream: Upstream) -> None:
    refusal = "I cannot help with that."
    upstream.script(
        "m", [Reply(refusal=refusal), Reply(extras={"audio": {"id": "audio_1", "data": "", "transcript": "hi"}})]
    )
    async with serve(create_app(make_config(upstream.url, tools=["add"]))) as url, http_client(url) as client:
        for field in ("refusal", "audio"):
            answer = (await client.post("/v1/chat/completions", json={"model": "m", "messages": ASK})).json()
            message = answer["choices"][0]["message"]
            assert message["content"] is None, message
            assert message[field]
