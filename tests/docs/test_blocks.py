"""Every configuration that a page shows starts, and every command runs: word for word, in their order, as who follows the page
would. What cannot be run here says so with a reason, and is counted as skipped."""

import asyncio
import contextlib
import importlib.util
import os
import re
import shlex
import sqlite3
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from string import Template
from typing import Self

import pytest
import yaml

from callgate.application import create_app
from callgate.config.load import load
from callgate.config.schema.whole import Config
from tests.docs.test_pages import DOCUMENTS, REFERENCE
from tests.harness.clients import http_client
from tests.harness.command import run_command
from tests.harness.needs import POSTGRES, needs
from tests.harness.ports import free_port
from tests.harness.postgres import PostgresServer
from tests.harness.process import Child, child
from tests.harness.redis import redis_server
from tests.harness.server import serve

pytestmark = pytest.mark.anyio

BLOCK = re.compile(r"^( *)```(yaml|sh|python|json)\b[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
VARIABLE = re.compile(r"(?<!\$)\$\{([A-Z_]+)\}")
MODELS = "model_list: [{model_name: demo, litellm_params: {model: demo/demo}, tools: ['*']}]\n"
NAMED = re.compile(r"\A# (\w+\.(?:py|yaml))\n")
SECONDS = 60.0
STORES = re.compile(r"redis://[\w.]+:6379|postgresql://callgate@localhost/|^ledger:", re.MULTILINE)
NEEDS_STORES = needs("postgres", "redis-server", "module:asyncpg", "module:celery", "module:redis")

NO_CONFIGURATION = {
    "docs/guides/librechat.md": "LibreChat's own file",
    "docs/guides/continue.md": "Continue's own file",
    "openapi: 3.1.0": "the document of an example, read in tests/tools/test_tools_page.py",
}
"""YAML that is not Callgate's, by its page or its first line."""
NOT_STARTED = {
    "mcpServers:": "needs the programs and servers of others; read in tests/tools/kinds/mcp/test_mcp_page.py",
    "mcp_config:": "needs the programs and servers of others; read in tests/tools/kinds/mcp/test_mcp_page.py",
    "upstream:": "needs certificates; started with some in tests/runtime/test_tls.py",
}
"""Configurations that are read and not started, by how they begin."""
NOT_RUN = {
    r"make ": "it is what has installed this",
    r"(python -m )?pip install": "asks an index for packages; the wheel is installed in tests/cli",
    r"sudo ": "changes the system",
    r"pg_dump ": "needs a ledger in Postgres that somebody has used; tests/state",
    r"docker ": "needs a container engine; tests/deploy",
    r"claude --model ": "Claude Code; tests/clients/test_compaction.py",
    r'python -c "from litellm\.llms\.github_copilot': "logs in at GitHub",
    r"(copilot$|cline )": "a program of others, which has to be told by its key",
    r"(helm|kubectl) ": "needs a cluster; tests/deploy/test_chart.py",
    r"OPENAI_API_(BASE_URL|KEY)=": "settings of Open WebUI",
    r"(claude|cline|copilot)\b": "a program of others; those that are on the registries are driven in tests/clients",
    r"python -c .from litellm\.llms\.github_copilot": "asks GitHub for a token",
    r"callgate doctor --config my.yaml": "asks a provider",
    r"callgate approvals (approve|deny|answer|decline) ": "needs a call that waits; tests/cli/test_approvals.py",
    r"callgate runs (show|export|replay) ": "needs the id of a run; tests/cli/test_runs.py",
    r"callgate mcp": "needs a server that wants a login; tests/tools/kinds/mcp/oauth/test_real_authority.py",
    r"callgate tools accept": "needs a server whose tools have changed; tests/cli/test_tools_accept.py",
    r"curl .*Bearer \$TOKEN": "needs a token of an issuer; tests/access/oidc",
    r"callgate runs list -f": "goes on for ever; tests/cli/test_runs.py",
}
"""Commands by how they begin, and why they are not run."""
CODES = {
    """callgate tools call lookup '{"wrdo": "oauth"}'""": 3,
    """callgate tools call lookup '{"wrod": "oauth"}'""": 3,
}
"""Exit codes other than 0 that a page shows."""
SHELL = frozenset("$|<>&;*`~(")
"""With one of these a line is a shell's to read; a glob in quotes too, which costs a second."""
READY = {"serve": r"http://127\.0\.0\.1:\d+", "worker": r"worker_ready"}
"""What a command that stays says when it is ready."""
CONFIG_OF = {
    "docs/backup.md": f"{MODELS}data_dir: ./data\n",
    "docs/budgets.md": f"{MODELS}data_dir: ./data\n",
    "docs/guides/librechat.md": f"{MODELS}data_dir: ./data\n",
    "docs/guides/cursor.md": f"{MODELS}data_dir: ./data\n",
    "docs/reverse-proxy.md": MODELS,
    "docs/guides/cline.md": f"{MODELS}data_dir: ./data\n",
    "docs/guides/copilot-cli.md": f"{MODELS}data_dir: ./data\n",
    "docs/operating.md": f"{MODELS}data_dir: ./data\nstore: {{redis_url: 'redis://127.0.0.1:6379/0'}}\n",
    "docs/approvals.md": f"{MODELS}data_dir: ./data\n",
    "docs/runs.md": f"{MODELS}data_dir: ./data\n",
    "docs/guides/open-webui.md": f"{MODELS}data_dir: ./data\n",
}
"""What a page means by the config of its reader, where it shows none that its commands go by."""
ELSEWHERE = {"docs/python-tools.md": "followed command by command in tests/cli/test_python_tools_page.py"}
KEYS = "keys: [{name: hr-ana, hash: 'sha256:%s'}]\n" % ("0" * 64)
MEANT = {
    "docs/long-contexts.md": f"{MODELS.replace('[{', '[{model_name: small, litellm_params: {model: demo/demo}}, {', 1)}",
    "docs/runs.md": f"{MODELS.replace('{model_name', '{model_name: diagnosis, litellm_params: {model: demo/demo}}, {model_name')}{KEYS}",
}
"""What the reader of a page has besides what it shows, where it speaks of more than a model `demo`."""
SERVES = frozenset(
    {
        "README.md",
        "docs/approvals.md",
        "docs/backup.md",
        "docs/guides/curl.md",
        "docs/reverse-proxy.md",
        "docs/runs.md",
        "docs/streaming.md",
    }
)
"""Pages whose commands ask a server that already runs."""
PROVIDERS = re.compile(r"^VERTEX")


def shown(language: str) -> Iterator[tuple[str, int, str]]:
    """Page, number and text of every block in a language."""
    for name, page in DOCUMENTS.items():
        path = name if name == "README.md" else f"docs/{name}"
        for at, found in enumerate(BLOCK.finditer(page.read_text("utf-8"))):
            if found[2] == language:
                yield path, at, undented(found)


def undented(found: "re.Match[str]") -> str:
    return "\n".join(line.removeprefix(found[1]) for line in found[3].split("\n"))


def reason(table: dict[str, str], path: str, text: str) -> str:
    """Why a block is left out; empty where it is not."""
    return next((why for start, why in table.items() if path == start or text.startswith(start)), "")


def test_what_is_shown_of_logins_is_whole_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [text for _, _, text in shown("yaml") if re.search(r"^ *(oauth|oidc):", text, re.MULTILINE)]
    assert len(texts) >= 10
    for text in texts:
        for variable in {*REFERENCE.findall(text), *VARIABLE.findall(text)}:
            monkeypatch.setenv(variable, "x" * 32)
        assert Config.model_validate(yaml.safe_load(text)).model_list, text


def whole(path: str, text: str) -> str:
    """A configuration with models, as the reader has them."""
    return text if re.search(r"^model_list:", text, re.MULTILINE) else MEANT.get(path, MODELS) + text


def files_of(path: str, folder: Path) -> None:
    """Writes the files that a page shows with their names."""
    for language in ("python", "yaml"):
        for page, _, text in shown(language):
            if page == path and (named := NAMED.match(text)):
                (folder / named[1]).write_text(text)
    if path == "README.md":
        files_of("docs/quickstart.md", folder)


# Configurations -------------------------------------------------------------------------------------------------------

YAML = [pytest.param(path, text, id=f"{path}:{at}") for path, at, text in shown("yaml")]


@pytest.mark.parametrize(("path", "text"), YAML)
async def test_every_configuration_starts(
    path: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why := reason(NO_CONFIGURATION, path, text):
        pytest.skip(why)
    if "kind: web_fetch" in text and importlib.util.find_spec("trafilatura") is None:
        pytest.skip("needs what callgate[web] installs")
    text = whole(path, text)
    for variable in {*REFERENCE.findall(text), *VARIABLE.findall(text)}:
        monkeypatch.setenv(variable, "{}" if PROVIDERS.match(variable) else "x" * 32)
    if (why := reason(NOT_STARTED, path, text.removeprefix(MODELS))) or "mcpServers:" in text:
        assert Config.model_validate(yaml.safe_load(text)).model_list
        pytest.skip(why or NOT_STARTED["mcpServers:"])
    if STORES.search(text):
        pytest.skip("started with its stores among the commands, or in tests/state")
    files_of(path, tmp_path)
    if "shop.yaml" in text:
        [document] = [text for _, _, text in shown("yaml") if text.startswith("openapi:")]
        (tmp_path / "shop.yaml").write_text(document)
    (tmp_path / "notes").mkdir()
    file = tmp_path / "config.yaml"
    file.write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    modules = set(sys.modules)
    try:
        async with serve(create_app(load(file).config)) as url, http_client(url) as client:
            assert (await client.get("/health/ready")).status_code == 200
    finally:
        for name in set(sys.modules) - modules:
            if (tmp_path / f"{name}.py").exists():
                del sys.modules[name]


# Commands -------------------------------------------------------------------------------------------------------------


def lines(block: str) -> list[str]:
    return [line for line in block.replace("\\\n", " ").split("\n") if line.strip()]


PAGES = sorted({path for path, _, _ in shown("sh")})
IN_STORES = {"docs/scaling.md", "docs/operating.md"}


class Reader:
    """Somebody who follows a page in an empty folder, with a terminal for each command that stays."""

    def __init__(self, folder: Path, replaced: dict[str, str], environment: dict[str, str]) -> None:
        self.folder, self._replaced = folder, replaced
        self._environment = environment
        self._staying = contextlib.AsyncExitStack()
        self._servers: list[Child] = []
        self.ran = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._staying.aclose()

    def here(self, text: str) -> str:
        """A text with the addresses of this test."""
        for shown, ours in self._replaced.items():
            text = text.replace(shown, ours)
        return text

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(self.here(text))

    async def run(self, line: str) -> None:
        self.ran += 1
        words = re.split(r"\s+", line.partition(" #")[0].strip())
        if words[0] == "export":
            self._export(line)
        elif words[0] == "callgate" and words[1] in READY:
            await self.stay(words[1], line)
        else:
            code, log = await self.end(words[0], self.here(line))
            assert code == CODES.get(line, 0), f"{line}\n{log}"
            assert words[0] != "curl" or '"error"' not in log, log

    async def end(self, program: str, line: str) -> tuple[int, str]:
        """The exit code and the output of a command that ends. Where a shell would only split it into words, Callgate is
        forked with its modules imported, which halves the time of these tests."""
        words = shlex.split(line, comments=True)
        if program == "callgate" and self._needs_no_shell(line.partition(" #")[0]):
            ran = await asyncio.to_thread(run_command, *words[1:], folder=self.folder, environment=self._environment)
            return ran.returncode, ran.stdout + ran.stderr
        async with child(["-c", line], command=["bash"], environment=self._environment, folder=self.folder) as started:
            return await started.ended(SECONDS), started.log

    def _child(self, line: str) -> contextlib.AbstractAsyncContextManager[Child]:
        words = shlex.split(line)
        if words[0] == "callgate" and self._needs_no_shell(line):
            variables = {name: value for name, value in self._environment.items() if name != "PYTHONPATH"}
            return child(words[1:], environment=variables, folder=self.folder)
        return child(["-c", f"exec {line}"], command=["bash"], environment=self._environment, folder=self.folder)

    def _export(self, line: str) -> None:
        """Set the variables of an `export` for all that comes after it, as a shell would."""
        assert "$(" not in line
        assert "`" not in line
        for assignment in shlex.split(line, comments=True)[1:]:
            name, _, value = assignment.partition("=")
            known = {"PWD": str(self.folder), **self._environment}
            self._environment[name] = Template(self.here(value)).substitute(known)

    def _needs_no_shell(self, line: str) -> bool:
        return not SHELL & set(line)

    async def stay(self, kind: str, line: str) -> None:
        """Starts what stays; a server in the place of the one before it."""
        if kind == "serve":
            for server in self._servers:
                server.process.terminate()
                await server.ended(SECONDS)
            self._servers.clear()
        started = await self._staying.enter_async_context(self._child(self.here(line.partition(" #")[0])))
        await started.line(READY[kind], within=SECONDS)
        if kind == "serve":
            self._servers.append(started)


@contextlib.asynccontextmanager
async def stores(folder: Path, postgres: PostgresServer | None) -> AsyncIterator[tuple[dict[str, str], dict[str, str]]]:
    """What the addresses of the pages become, and the variables of Postgres' own commands."""
    if postgres is None:
        yield {}, {}
        return
    async with redis_server(folder) as redis:
        yield (
            {
                "postgresql://callgate@localhost/": f"postgresql://callgate@127.0.0.1:{postgres.port}/",
                "redis://localhost:6379": redis,
                "redis://127.0.0.1:6379": redis,
            },
            {"PGHOST": "127.0.0.1", "PGPORT": str(postgres.port), "PGUSER": "postgres"},
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [pytest.param(path, marks=[NEEDS_STORES] if path in IN_STORES else []) for path in PAGES]
)
async def test_every_command_of_a_page_runs_in_its_order(
    path: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if path in ELSEWHERE:
        pytest.skip(ELSEWHERE[path])
    shim = tmp_path / "bin"
    shim.mkdir()
    (shim / "callgate").write_text(f'#!/bin/sh\nexec {sys.executable} -m callgate "$@"\n')
    (shim / "callgate").chmod(0o755)
    folder = tmp_path / "folder"
    folder.mkdir()
    files_of(path, folder)
    port = str(free_port())
    left_out: list[str] = []
    postgres = request.getfixturevalue("postgres") if path in IN_STORES else None
    async with stores(tmp_path, postgres) as (addresses, variables):
        environment = {
            "PATH": os.pathsep.join((str(shim), str(POSTGRES), os.environ["PATH"])),
            "PYTHONPATH": str(Path(load.__code__.co_filename).parents[2]),
            "CALLGATE_PORT": port,
            "CALLGATE_LEDGER": f"postgresql://postgres@127.0.0.1:{variables.get('PGPORT')}/postgres",
            "CALLGATE_REDIS": addresses.get("redis://localhost:6379", ""),
            "CALLGATE_KEY": "",
            **variables,
        }
        page = DOCUMENTS[path.removeprefix("docs/")].read_text("utf-8")
        async with Reader(folder, {"127.0.0.1:8000": f"127.0.0.1:{port}", **addresses}, environment) as reader:
            if not (folder / "config.yaml").exists():
                reader.write(
                    "config.yaml",
                    CONFIG_OF.get(path, MODELS + "tools: [{kind: python, module: callgate.tools.builtin}]\n"),
                )
            if path in SERVES or path == "docs/quickstart.md":
                await reader.stay("serve", "callgate serve")
            for found in BLOCK.finditer(page):
                text = undented(found)
                if (
                    found[2] == "yaml"
                    and (path not in CONFIG_OF or text.startswith("ledger:"))
                    and not NAMED.match(text)
                ):
                    for name in ("config.yaml", "my.yaml"):
                        reader.write(name, whole(path, text))
                for line in lines(text) if found[2] == "sh" else ():
                    if why := next((why for start, why in NOT_RUN.items() if re.match(start, line.strip())), ""):
                        left_out.append(f"{line.strip()[:50]}: {why}")
                    else:
                        await reader.run(line.strip())
    if not reader.ran:
        pytest.skip("; ".join(left_out))


async def test_the_backup_of_a_page_waits_for_a_write_that_is_under_way(tmp_path: Path) -> None:
    [command] = [line for _, _, block in shown("sh") for line in lines(block) if "sqlite3" in line]
    (tmp_path / "data").mkdir()
    (tmp_path / "backup").mkdir()
    file = tmp_path / "data" / "ledger.sqlite3"
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as database:
        database.execute("CREATE TABLE calls (id)")
        database.execute("BEGIN EXCLUSIVE")
        async with child(["-c", command], command=["bash"], folder=tmp_path) as copying:
            async with asyncio.timeout(SECONDS):
                while not has_open(file, copying.process.pid):
                    assert copying.process.returncode is None, copying.log
                    await asyncio.sleep(0.01)
            database.execute("INSERT INTO calls VALUES ('call_1')")
            database.execute("COMMIT")
            assert await copying.ended(SECONDS) == 0, copying.log
    with contextlib.closing(sqlite3.connect(tmp_path / "backup" / "ledger.sqlite3")) as copy:
        assert copy.execute("SELECT id FROM calls").fetchall() == [("call_1",)]


def has_open(file: Path, process: int) -> bool:
    """Return whether a process, or one that it has started, has a file open."""
    try:
        files = [link.readlink() for link in Path(f"/proc/{process}/fd").iterdir()]
        started = Path(f"/proc/{process}/task/{process}/children").read_text("ascii").split()
    except OSError:  # it has ended, or closed one of them meanwhile
        return False
    return file in files or any(has_open(file, int(each)) for each in started)


LEFT_OUT = [
    pytest.param(why, id=f"{path}: {line.strip()[:60]}")
    for path, _, block in shown("sh")
    for line in lines(block)
    if (why := next((why for start, why in NOT_RUN.items() if re.match(start, line.strip())), ""))
]


@pytest.mark.parametrize("why", LEFT_OUT)
def test_a_command_is_not_run_here(why: str) -> None:
    """So that the end of a run counts them, with their reasons."""
    pytest.skip(why)


def test_what_is_left_out_is_still_in_the_pages() -> None:
    commands = [line.strip() for _, _, block in shown("sh") for line in lines(block)]
    configurations = [(path, text) for path, _, text in shown("yaml")]
    for start in NOT_RUN:
        assert any(re.match(start, line) for line in commands), start
    for table in (NOT_STARTED, NO_CONFIGURATION):
        for start in table:
            assert any(path == start or text.startswith(start) for path, text in configurations), start
    assert set(CONFIG_OF) | set(ELSEWHERE) | SERVES <= set(PAGES)
    assert set(MEANT) <= {path for path, _ in configurations}
