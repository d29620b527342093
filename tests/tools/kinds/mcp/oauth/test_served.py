"""Logins as a running server has them: what it says of them, and what a login in another process changes."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from callgate.cli.doctor import _logins
from callgate.cli.own_logins import opened_logins
from callgate.config.load import Loaded, load
from callgate.tools.kinds.mcp.authorization import OPERATOR
from callgate.tools.kinds.mcp.oauth import service
from tests.harness.served import served_to_http
from tests.harness.server import serve
from tests.scripted_upstream import Upstream
from tests.tools.servers.authority import CALLBACK, Authority, browse
from tests.tools.servers.guarded_mcp import GuardedMcp
from tests.tools.servers.http_mcp import Asked, _send

pytestmark = pytest.mark.anyio

METADATA = "/.well-known/oauth-protected-resource/mcp"


@dataclass(slots=True)
class AuthorityMcp(GuardedMcp):
    """A tool server that takes the tokens of an authority."""

    authority: Authority = field(default_factory=Authority)

    async def _answer(self, asked: Asked, reader: Any, writer: Any) -> bool:
        base = self.url.removesuffix("/mcp")
        if asked.path.startswith("/.well-known/"):
            document = {"resource": f"{base}/mcp", "authorization_servers": [self.authority.url]}
            return await _send(writer, json.dumps(document).encode())
        self.subjects = dict.fromkeys(self.authority.valid, "ada")
        if asked.headers.get("authorization", "").removeprefix("Bearer ") not in self.subjects:
            challenge = f'Bearer resource_metadata="{base}{METADATA}"'
            return await _send(writer, b"", "401 Unauthorized", more=f"WWW-Authenticate: {challenge}\r\n")
        return await GuardedMcp._answer(self, asked, reader, writer)


@contextlib.asynccontextmanager
async def tool_server() -> AsyncIterator[AuthorityMcp]:
    server = AuthorityMcp()
    async with server.running(), serve(server.authority.app()) as server.authority.url:
        yield server


def loaded(server: AuthorityMcp, folder: Path) -> Loaded:
    """The same config, as a command reads it."""
    whole = {
        "data_dir": str(folder),
        "mcp_servers": {"notes": {"url": f"{server.url.removesuffix('/mcp')}/mcp", "oauth": {}}},
        "model_list": [{"model_name": "m", "litellm_params": {"model": "demo/demo"}}],
    }
    return load(None, flags={}, text=json.dumps(whole))


async def test_a_login_by_a_command_opens_the_server_of_a_running_callgate(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "FOLLOW_SECONDS", 0.05)
    async with tool_server() as server:
        config = loaded(server, tmp_path)
        entry = {"url": f"{server.url.removesuffix('/mcp')}/mcp", "oauth": {}}
        options: dict[str, Any] = {"data_dir": str(tmp_path), "mcp_servers": {"notes": entry}}
        async with served_to_http(upstream, **options) as client:

            async def facts() -> dict[str, Any]:
                answer = (await client.get("/v1/tools?servers=1")).json()
                return next(status for status in answer["servers"] if status["name"] == "notes")

            before = await facts()
            assert "wants a login" in before["error"]
            assert [login["state"] for login in before["logins"]] == ["needs_login"]
            assert 'callgate_mcp_logins_lacking{server="notes"} 1.0' in (await client.get("/metrics")).text
            [check] = await _logins(config)
            assert (check["status"], check["todo"]) == ("warn", "callgate mcp login notes")

            async with opened_logins(config) as logins:
                begun = await logins.begin("notes", OPERATOR, CALLBACK)
                back = await browse(begun.address)
                await logins.finish(back["state"], back, browser=begun.browser)
            async with asyncio.timeout(60):
                while (await facts())["state"] != "ready":  # noqa: ASYNC110 - it looks by itself
                    await asyncio.sleep(0.05)

            after = await facts()
            assert [login["state"] for login in after["logins"]] == ["ok"]
            assert not [token for token in server.authority.valid if token in json.dumps(after)]
            assert 'callgate_mcp_logins_lacking{server="notes"} 0.0' in (await client.get("/metrics")).text
            answer = await client.post("/v1/tools/notes_whoami/call", json={"arguments": {}})
            assert "ada" in answer.text
        [check] = await _logins(config)
        assert (check["status"], check["todo"]) == ("ok", None)
        assert "acts as this login" in check["detail"]
