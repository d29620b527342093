"""Callgate at an address of its own, with an MCP server that is logged in to, for tests of the page."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from callgate.application import create_app
from callgate.config.schema.whole import Config
from tests.harness.clients import http_client
from tests.harness.configs import config_dict
from tests.harness.environment import MCP_NODE, OIDC_PROVIDER, ROOT, Environment
from tests.harness.ports import free_port
from tests.harness.process import child
from tests.harness.server import serve
from tests.page.served import keyring
from tests.page.tabs import Tabs
from tests.scripted_upstream import Call, Reply, Upstream
from tests.tools.approvals.test_routes import tool_result
from tests.tools.servers.authority import Authority
from tests.tools.servers.guarded_mcp import GuardedMcp
from tests.tools.servers.jwt_mcp import JwtMcp


class Place:
    """Callgate at an address of its own, and the two servers behind it."""

    def __init__(
        self, url: str, keys: dict[str, str], server: GuardedMcp, authority: Authority, model: Upstream
    ) -> None:
        self.url = url
        self.keys = keys
        self.server = server
        self.authority = authority
        self.model = model

    def logs_in(self, subject: str) -> None:
        """Whom the authorization server takes the next person at it for."""
        token = self.server.let(f"token-of-{subject}", subject)
        self.authority.token_fields = {"access_token": token}

    async def ask(self, call: Call, *, key: str = "ann", **more: Any) -> str:
        self.model.script("m", [Reply(calls=[call]), Reply(text="Done.")])
        question = {"model": "m", "messages": [{"role": "user", "content": "?"}], **more}
        async with http_client(self.url) as client:
            headers = {"Authorization": f"Bearer {self.keys[key]}"}
            assert (await client.post("/v1/chat/completions", json=question, headers=headers)).status_code == 200
        return str(tool_result(self.model))


@contextlib.asynccontextmanager
async def real_place(upstream: Upstream, tabs: Tabs, per: str) -> AsyncIterator[Place]:
    """The same with oidc-provider for the authorization server."""
    server = JwtMcp()
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(server.running())
        server.base = server.url.removesuffix("/mcp")
        server.issuer = f"http://127.0.0.1:{free_port()}"
        folder = Environment(OIDC_PROVIDER).folder
        script = folder / "oidc_provider_of_page.mjs"
        script.write_text((ROOT / "tests" / "tools" / "servers" / "oidc_provider.mjs").read_text("utf-8"), "utf-8")
        words = [server.issuer.rpartition(":")[2], server.resource, "600"]
        command = [str(Environment(MCP_NODE).interpreter), str(script)]
        running = await stack.enter_async_context(child(words, command=command, folder=folder))
        await running.line('"up"')
        yield await stack.enter_async_context(_served(upstream, tabs, per, server, Authority(url=server.issuer)))


@contextlib.asynccontextmanager
async def place(upstream: Upstream, tabs: Tabs, per: str) -> AsyncIterator[Place]:
    server = GuardedMcp()
    authority = Authority()
    async with server.running(), serve(authority.app()) as authority.url:
        server.issuer = authority.url
        async with _served(upstream, tabs, per, server, authority) as made:
            yield made


@contextlib.asynccontextmanager
async def _served(
    upstream: Upstream, tabs: Tabs, per: str, server: GuardedMcp, authority: Authority
) -> AsyncIterator[Place]:
    keys, sections = keyring(ann={}, boss={"admin": True, "see": "all"})
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    notes = {"url": server.url, "oauth": {"per": per}}
    config = config_dict(
        upstream.url,
        entry={"tools": ["*"]},
        mcp_servers={"notes": notes},
        server={"public_url": url},
        **sections,
    )
    async with asyncio.timeout(120), serve(create_app(Config.model_validate(config)), at_port=port):
        try:
            yield Place(url, keys, server, authority, upstream)
        finally:
            await tabs.close()
