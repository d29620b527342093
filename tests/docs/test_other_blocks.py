"""The blocks of the pages in other languages than those of the other tests: run where their program is here, else named with a reason."""

import asyncio
import contextlib
import json
import re
import shutil
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from callgate.application import create_app
from callgate.config.load import load
from tests.docs.test_pages import ADDRESS, DOCUMENTS
from tests.harness.clients import http_client
from tests.harness.environment import ROOT
from tests.harness.needs import needs
from tests.harness.ports import free_port
from tests.harness.process import child
from tests.harness.server import serve

pytestmark = pytest.mark.anyio

BLOCK = re.compile(r"^( *)```([a-z]*)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
IN_OTHER_TESTS = frozenset({"yaml", "sh", "python", "js", "text"})
RUN_HERE = {"java: Plain", "nginx", "caddyfile"}
"""Languages and, where only some of their blocks are run, the class."""
NOT_RUN = {
    "reverse-proxy.md: toml": "Traefik is on no registry of packages; read as TOML below",
    "guides/other-languages.md: java": "OpenAI's SDK for Java is on Maven Central, and its builder is taken from its README",
    "guides/other-languages.md: go": "OpenAI's SDK for Go is fetched from its repository",
    "guides/other-languages.md: csharp": "OpenAI's SDK for .NET is on NuGet",
    "guides/codex.md: toml": "Codex' own file; written and used in tests/clients/coding_agents.py",
    "guides/opencode.md: json": "opencode's own file; written and used in tests/clients/coding_agents.py",
    "guides/qwen-code.md: json": "Qwen Code's own file; written and used in tests/clients/coding_agents.py",
    "guides/zed.md: json": "Zed is a program with a window; read as JSON below",
    "docker.md: dockerfile": "needs a container engine; tests/deploy",
    "scaling.md: sql": "rights of a role in Postgres; tests/fleet/worker/test_worker.py",
    "mcp.md: json": "read in tests/tools/kinds/mcp/test_mcp_page.py",
    "mcp-server.md: json": "settings of other programs; read in tests/mcp_server/test_page.py",
    "errors.md: json": "a part of an answer",
    "reload.md: json": "a part of an answer",
    "tools.md: json": "an answer",
    "vision.md: json": "a request with a picture that is left out",
}


def blocks(page: str, language: str) -> list[str]:
    text = DOCUMENTS[page].read_text("utf-8")
    return [found[3] for found in BLOCK.finditer(text) if found[2] == language]


def test_every_block_is_run_somewhere_or_says_why_not():
    found = {
        f"{name}: {block[2]}"
        for name, page in DOCUMENTS.items()
        for block in BLOCK.finditer(page.read_text("utf-8"))
        if block[2] not in IN_OTHER_TESTS
    }
    run = {block for block in found if block.rpartition(" ")[2] in RUN_HERE}
    assert found - run == set(NOT_RUN)


@pytest.mark.parametrize("why", [pytest.param(why, id=block) for block, why in NOT_RUN.items()])
def test_a_block_is_not_run_here(why: str):
    """So that the end of a run counts them, with their reasons."""
    pytest.skip(why)


def test_every_snippet_of_a_guide_is_run():
    for name, page in DOCUMENTS.items():
        text = page.read_text("utf-8")
        if name.startswith("guides/"):
            snippets = re.findall(r"^```(?:python|js)\b", text, re.MULTILINE)
            assert len(snippets) == len(re.findall(r"<!-- runs in: \S+ -->\n```(?:python|js)\n", text)), name


def test_files_for_other_programs_can_be_read():
    [file] = blocks("guides/zed.md", "json")
    [provider] = json.loads(file)["language_models"]["openai_compatible"].values()
    assert provider["api_url"] == f"{ADDRESS}/v1"
    [file] = blocks("reverse-proxy.md", "toml")
    [server] = tomllib.loads(file)["http"]["services"]["callgate"]["loadBalancer"]["servers"]
    assert server["url"] == ADDRESS


@needs("java")
@pytest.mark.slow
async def test_java_asks_without_a_library(tmp_path: Path):
    [program] = [text for text in blocks("guides/other-languages.md", "java") if "class Plain" in text]
    async with serve(create_app(load(ROOT / "config.yaml").config)) as url:
        (tmp_path / "Plain.java").write_text(program.replace(ADDRESS, url), "utf-8")
        async with child(["Plain.java"], command=["java"], folder=tmp_path) as ran:
            assert await ran.ended(60) == 0, ran.log
    assert "42" in ran.log


# Reverse proxies ------------------------------------------------------------------------------------------------------


class SlowStream:
    """A server whose second piece comes only when somebody has read the first."""

    def __init__(self) -> None:
        self.first_was_read = asyncio.Event()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if length := re.search(rb"content-length: (\d+)", head, re.IGNORECASE):
            await reader.readexactly(int(length[1]))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"d\r\ndata: first\n\n\r\n")
        await writer.drain()
        await self.first_was_read.wait()
        writer.write(b"e\r\ndata: second\n\n\r\n0\r\n\r\n")
        await writer.drain()
        writer.close()

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self.answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            yield f"127.0.0.1:{port}"
            self.first_was_read.set()


async def streams_through(port: int, upstream: SlowStream) -> None:
    """Ask through the proxy. One that gathers pieces never lets the first through, and the test runs out of time."""
    async with (
        asyncio.timeout(30),
        http_client(f"http://127.0.0.1:{port}") as client,
        client.stream("POST", "/v1/chat/completions", content=b"{}") as answer,
    ):
        pieces = answer.aiter_text()
        assert await anext(pieces) == "data: first\n\n"
        upstream.first_was_read.set()
        assert "".join([piece async for piece in pieces]) == "data: second\n\n"


@needs("nginx")
@pytest.mark.slow
async def test_the_configuration_of_nginx_passes_a_stream_on_as_it_comes(tmp_path: Path):
    [text] = blocks("reverse-proxy.md", "nginx")
    port = free_port()
    text = re.sub(r"listen 443 ssl;", f"listen 127.0.0.1:{port};", re.sub(r"^ *ssl_.*\n", "", text, flags=re.MULTILINE))
    upstream = SlowStream()
    async with upstream.serving() as address:
        folders = "".join(
            f"{kind}_temp_path {tmp_path}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        file = tmp_path / "nginx.conf"
        file.write_text(
            f"daemon off; worker_processes 1; pid {tmp_path}/pid; error_log stderr notice; events {{}}\n"
            f"http {{ access_log off; {folders}\n{text.replace('127.0.0.1:8000', address)}\n}}\n"
        )
        program = shutil.which("nginx") or "nginx"
        async with child(["-p", str(tmp_path), "-e", "stderr", "-c", str(file)], command=[program]) as proxy:
            await proxy.line("start worker process ")
            await streams_through(port, upstream)


@needs("caddy")
@pytest.mark.slow
async def test_the_configuration_of_caddy_passes_a_stream_on_as_it_comes(tmp_path: Path):
    [text] = blocks("reverse-proxy.md", "caddyfile")
    port = free_port()
    upstream = SlowStream()
    async with upstream.serving() as address:
        file = tmp_path / "Caddyfile"
        ours = text.replace("127.0.0.1:8000", address).replace("llm.example.com", f"http://127.0.0.1:{port}")
        file.write_text(f"{{\n  admin off\n  auto_https off\n}}\n{ours}")
        options = ["run", "--config", str(file), "--adapter", "caddyfile"]
        async with child(
            options, command=["caddy"], environment={"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
        ) as proxy:
            await proxy.line("serving initial configuration")
            await streams_through(port, upstream)
