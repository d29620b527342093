"""Logins at a real authorization server, oidc-provider, by the commands and as several processes use them."""

import asyncio
import contextlib
import itertools
import json
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.harness.environment import MCP_NODE, OIDC_PROVIDER, ROOT, Environment
from tests.harness.needs import needs
from tests.harness.ports import free_port
from tests.harness.process import Child, child, child_environment, output_of
from tests.tools.servers.jwt_mcp import JwtMcp
from tests.tools.servers.person import log_in

pytestmark = [pytest.mark.anyio, needs(f"environment:{MCP_NODE}", f"environment:{OIDC_PROVIDER}")]

LIFE = 3
"""Seconds that a token is good for."""
CALLS = 100
SECONDS = 7.0
"""For which two processes call at once: a few lives."""
PATIENCE = 120.0


@dataclass(slots=True)
class Place:
    """An authorization server, a tool server that takes its tokens, and a config with that."""

    authority: Child
    server: JwtMcp
    config: Path
    settings: dict[str, Any] = field(default_factory=dict)

    def events(self, event: str, grant: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.authority.lines if line.startswith("{")]
        return [line for line in lines if line["event"] == event and line["grant"] == grant]

    def write(self, **oauth: Any) -> None:
        server = {"url": self.server.resource, "oauth": oauth}
        model = {"model_name": "demo", "litellm_params": {"model": "demo/demo"}, "tools": ["*"]}
        whole = {"data_dir": "data", "mcp_servers": {"tools": server}, "model_list": [model]}
        self.config.write_text(json.dumps(whole), encoding="utf-8")

    async def command(self, *words: str, **environment: str) -> tuple[str, str]:
        """Run `callgate mcp …`; what it printed, and its complaints."""
        output, log = await output_of(
            sys.executable, "-m", "callgate", "mcp", *words, "--config", self.config,
            seconds=PATIENCE, environment=child_environment(environment), folder=ROOT,
        )  # fmt: skip
        return output.decode(), log

    async def paste(self, person: str) -> str:
        """Log in by pasting; what the command printed."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "callgate", "mcp", "login", "tools", "--paste", "--config", str(self.config)),
            cwd=ROOT,
            env=child_environment(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        printed = ""
        try:
            async with asyncio.timeout(PATIENCE):
                while line := (await process.stdout.readline()).decode():
                    printed += line
                    if line.startswith("http"):
                        back = await asyncio.to_thread(log_in, line.strip(), person)
                        process.stdin.write(f"{back}\n".encode())
                        await process.stdin.drain()
                await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return printed


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    server = JwtMcp()
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(server.running())
        server.base = server.url.removesuffix("/mcp")
        server.issuer = f"http://127.0.0.1:{free_port()}"
        words = [server.issuer.rpartition(":")[2], server.resource, str(LIFE)]
        folder = Environment(OIDC_PROVIDER).folder
        script = folder / "oidc_provider.mjs"
        script.write_text((ROOT / "tests" / "tools" / "servers" / "oidc_provider.mjs").read_text("utf-8"), "utf-8")
        command = [str(Environment(MCP_NODE).interpreter), str(script)]
        authority = await stack.enter_async_context(child(words, command=command, folder=folder))
        await authority.line('"up"')
        place = Place(authority, server, tmp_path / "config.yaml")
        place.write()
        yield place


async def test_a_login_by_a_browser_and_then_calls_of_two_processes_over_short_tokens(place: Place) -> None:
    browser = f"{sys.executable} -m tests.tools.servers.person ada %s"
    printed, log = await place.command("login", "tools", DISPLAY=":0", BROWSER=browser, SSH_CONNECTION="")
    assert f"logged in to tools at {place.server.issuer}" in printed, printed + log
    assert "code=" not in printed + log

    callers = await asyncio.gather(
        *(
            output_of(
                sys.executable, "-m", "tests.tools.servers.oauth_caller", place.config, str(CALLS), str(SECONDS),
                seconds=PATIENCE, environment=child_environment(), folder=ROOT,
            )
            for _ in range(2)
        )
    )  # fmt: skip
    for output, log in callers:
        said = json.loads(output.decode().splitlines()[-1])
        assert said["failed"] == [], log
        assert said["calls"] == CALLS
        assert [json.loads(subject)["subject"] for subject in said["subjects"]] == ["ada"]
    renewals = place.events("grant.success", "refresh_token")
    assert place.events("grant.error", "refresh_token") == []
    # A token is renewed in the last tenth of its life, by one process for both: no two come of one expiry.
    issued = sorted(place.server.issued)
    assert 1 <= len(renewals) <= len(issued)
    assert min(later - earlier for earlier, later in itertools.pairwise(issued)) >= LIFE - 1
    sys.stderr.write(f"calls {2 * CALLS}, failed 0, renewals {len(renewals)}, issued at {issued}\n")


async def test_a_login_by_pasting_and_its_end(place: Place) -> None:
    printed = await place.paste("bob")
    assert f"logged in to tools at {place.server.issuer}" in printed, printed
    status, log = await place.command("status", "--json")
    [login] = json.loads(status)["logins"]
    assert (login["server"], login["state"], login["issuer"]) == ("tools", "ok", place.server.issuer), log
    assert login["renewable"]
    printed, log = await place.command("logout", "tools")
    assert printed == "logged out of tools\n", log
    status, _ = await place.command("status")
    assert "needs_login" in status


async def test_callgate_itself_is_logged_in(place: Place) -> None:
    place.write(
        grant="client_credentials",
        issuer=place.server.issuer,
        client_id="machine",
        client_secret="m4chine-m4chine-m4chine-m4chine-m4chine",
        scopes=["tools:read"],
    )
    output, log = await output_of(
        sys.executable, "-m", "tests.tools.servers.oauth_caller", place.config, "3", "0.1",
        seconds=PATIENCE, environment=child_environment(), folder=ROOT,
    )  # fmt: skip
    said = json.loads(output.decode().splitlines()[-1])
    assert said["failed"] == [], log
    assert [json.loads(subject)["subject"] for subject in said["subjects"]] == ["machine"]
    assert "m4chine" not in "\n".join(
        path.read_bytes().decode("latin-1") for path in (place.config.parent / "data").glob("*")
    )
    assert os.environ.get("CALLGATE_SECRET") is None
