"""Callgate with a configuration of a test, served on loopback, and a client for it.

    async with served_to_openai(upstream, "get_time") as client: ...

The options are those of `make_config`; the tools stand in front of them.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from callgate.application import create_app
from tests.harness.clients import http_client, openai_client
from tests.harness.configs import make_config
from tests.harness.messages import MessagesClient
from tests.harness.server import serve
from tests.scripted_upstream import Upstream


@asynccontextmanager
async def served(upstream: Upstream, /, *tools: Any, **options: Any) -> AsyncIterator[str]:
    """The base URL, without `/v1`."""
    async with serve(create_app(make_config(upstream.url, tools=tools, **options))) as url:
        yield url


@asynccontextmanager
async def served_to_http(upstream: Upstream, /, *tools: Any, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client that hides nothing."""
    async with served(upstream, *tools, **options) as url, http_client(url) as client:
        yield client


@asynccontextmanager
async def served_to_openai(upstream: Upstream, /, *tools: Any, **options: Any) -> AsyncIterator[Any]:
    """The official client; untyped, because its types are unions of thirty."""
    async with served(upstream, *tools, **options) as url, openai_client(url) as client:
        yield client


@asynccontextmanager
async def served_to_messages(upstream: Upstream, /, *tools: Any, **options: Any) -> AsyncIterator[MessagesClient]:
    """A client of the Messages API that asserts what a stream may hold."""
    async with served(upstream, *tools, **options) as url, http_client(url) as client:
        yield MessagesClient(client)
