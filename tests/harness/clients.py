"""The official client, pointed at the product or at the upstream."""

import contextlib
import ssl
from collections.abc import AsyncIterator
from typing import Any

import httpx
from openai import AsyncOpenAI, AsyncStream, DefaultAsyncHttpxClient, OpenAI
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

KEY = "sk-test"
TIMEOUT = 30.0
"""Seconds for a whole answer; a test that waits longer is stuck."""
TLS = ssl.create_default_context()
"""One for all: each client would read all the authorities that there are."""


@contextlib.asynccontextmanager
async def openai_client(base_url: str, *, api_key: str = KEY, **options: Any) -> AsyncIterator[AsyncOpenAI]:
    """An async client that tries once: a test says itself what is tried again."""
    url = base_url if base_url.endswith("/v1") else f"{base_url}/v1"
    options = {"max_retries": 0, "http_client": DefaultAsyncHttpxClient(verify=TLS), **options}
    async with AsyncOpenAI(base_url=url, api_key=api_key, timeout=TIMEOUT, **options) as client:
        yield client


def sync_openai_client(base_url: str, *, api_key: str = KEY, **options: Any) -> OpenAI:
    """The same without an event loop, for tests of a child process; to be closed by the caller."""
    url = base_url if base_url.endswith("/v1") else f"{base_url}/v1"
    return OpenAI(base_url=url, api_key=api_key, timeout=TIMEOUT, **{"max_retries": 0, **options})


@contextlib.asynccontextmanager
async def http_client(base_url: str, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Plain HTTP, for what the SDK would hide."""
    async with httpx.AsyncClient(
        **{"base_url": base_url, "timeout": TIMEOUT, "trust_env": False, "verify": TLS, **options}
    ) as client:
        yield client


async def whole(client: AsyncOpenAI, **asked: Any) -> ChatCompletion:
    """The answer, asked for whole."""
    answer: ChatCompletion = await client.chat.completions.create(stream=False, **asked)
    return answer


async def streamed(client: AsyncOpenAI, *, usage: bool = True, **asked: Any) -> ChatCompletion:
    """The answer asked for as a stream and put together by the official client's own accumulator."""
    if usage:
        asked["stream_options"] = {"include_usage": True}
    stream: AsyncStream[ChatCompletionChunk] = await client.chat.completions.create(stream=True, **asked)
    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    async with stream:
        async for chunk in stream:
            state.handle_chunk(chunk)
    # the snapshot and not `get_final_completion`, which raises where an answer ended as length or content_filter
    return state.current_completion_snapshot
