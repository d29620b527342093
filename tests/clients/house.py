"""The product and its provider, served once for all clients: as in life, one house has many guests."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from app.auth.keys import hash_key
from app.main import create_app
from tests.clients.behaviours import HOUSE_TOOLS, KEY, MODELS
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.upstream import Upstream

HEARTBEAT = 0.2
"""Seconds; short, because a test waits for two."""


@dataclass(frozen=True, slots=True)
class House:
    """The running product, and the provider behind it."""

    url: str
    provider: Upstream

    @contextlib.asynccontextmanager
    async def free(self) -> AsyncIterator[Upstream]:
        """The provider with nothing remembered; what it had to complain of fails the test that caused it."""
        self.provider.requests.clear()
        self.provider.problems.clear()
        yield self.provider
        self.provider.check()


@contextlib.asynccontextmanager
async def opened() -> AsyncIterator[House]:
    """Keys are on and everything that a behaviour needs is on offer. Only clients repeat what failed."""
    async with Upstream() as provider:
        config = make_config(
            provider.url,
            models=MODELS,
            tools=HOUSE_TOOLS,
            auth="keys",
            keys=[{"name": "tester", "hash": hash_key(KEY)}],
            upstream={"retries": 0},
            server={"heartbeat_seconds": HEARTBEAT},
        )
        async with serve(create_app(config)) as url:
            yield House(url, provider)
