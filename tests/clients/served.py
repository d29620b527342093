"""The product and its provider, served once for all clients: one server has many clients."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from callgate.access.keys import hash_key
from callgate.application import create_app
from callgate.config.schema.whole import Config
from tests.clients.behaviours import BARE, KEY, MODELS, SERVER_TOOLS, TEXTUAL
from tests.harness.configs import as_yaml, config_dict
from tests.harness.process import serving_command
from tests.harness.server import serve
from tests.scripted_upstream import Upstream

HEARTBEAT = 0.2
"""Seconds; short, because a test waits for two."""


@dataclass(frozen=True, slots=True)
class Served:
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
async def opened() -> AsyncIterator[Served]:
    """Served in the loop of the tests, which can look into its tools."""
    async with Upstream() as provider, serve(create_app(Config.model_validate(_config(provider)))) as url:
        yield Served(url, provider)


@contextlib.asynccontextmanager
async def commanded(folder: Path) -> AsyncIterator[Served]:
    """Served by the command in a child, as users run it: its own server, its own guarded edge."""
    async with Upstream() as provider:
        path = folder / "config.yaml"
        path.write_text(as_yaml(_config(provider)), encoding="utf-8")
        async with serving_command(path) as running:
            yield Served(running.url, provider)


def _config(provider: Upstream) -> dict[str, Any]:
    """Keys are on and everything that a behaviour needs is on offer. Only clients repeat what failed."""
    config = config_dict(
        provider.url,
        models=MODELS,
        tools=SERVER_TOOLS,
        auth="keys",
        keys=[{"name": "tester", "hash": hash_key(KEY)}],
        upstream={"retries": 0},
        server={"heartbeat_seconds": HEARTBEAT},
    )
    for entry in config["model_list"]:
        entry["tools"] = [] if entry["model_name"] == BARE else ["*"]
        entry["tool_calling"] = "xml" if entry["model_name"] == TEXTUAL else "native"
    return config
