"""A start with stores that cannot be used says so in one line each, serves what needs none of them, refuses the rest in words, and has
all of it back by itself once they can be used."""

import asyncio
import contextlib
import os
import shutil
import sqlite3
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from callgate.access.key_store import KeyStore
from callgate.access.keys import KeyEntry, mint_key
from callgate.application import create_app
from callgate.config.entry_errors import BadEntry
from callgate.config.schema.process import LedgerSection
from callgate.config.schema.whole import Config
from callgate.state.building import check_files, check_secret_file
from callgate.state.database import NotMigrated
from tests.chaos import tools
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.needs import needs
from tests.harness.postgres import PostgresServer
from tests.harness.server import NotStarted, serve
from tests.harness.small_disk import SmallDisk, small_disk
from tests.scripted_upstream import Call, Reply, Upstream
from tests.scripted_upstream.records import RequestRecord

pytestmark = pytest.mark.anyio

STORES = ("ledger.sqlite3", "keys.sqlite3", "runs.sqlite3", "authority.json", "tool_pins.json")
OF_CONFIG, OF_CONFIG_HASH = mint_key()
OF_STORE, OF_STORE_HASH = mint_key()
WITH_BUDGET, WITH_BUDGET_HASH = mint_key()


def garbage(path: Path) -> None:
    path.write_bytes(b"no such thing" * 900)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def loop(path: Path) -> None:
    """It cannot be opened, whoever asks; to root any other file can."""
    path.unlink()
    path.symlink_to(path)


def foreign(path: Path) -> None:
    path.unlink()
    with contextlib.closing(sqlite3.connect(path)) as database:
        for table in ("calls", "keys", "processes", "spending", "runs"):
            database.execute(f"CREATE TABLE {table} (a)")


DAMAGES = (garbage, cut, emptied, folder, pipe, loop, foreign)


@contextlib.contextmanager
def locked(used: Path) -> Any:
    """Another program has the databases for itself."""
    with contextlib.ExitStack() as stack:
        for name in ("ledger.sqlite3", "keys.sqlite3", "runs.sqlite3"):
            other = stack.enter_context(contextlib.closing(sqlite3.connect(used / name, isolation_level=None)))
            other.execute("PRAGMA locking_mode = EXCLUSIVE")
            other.execute("BEGIN EXCLUSIVE")
        yield


def ran(marks: Path) -> list[str]:
    return marks.read_text().split()


def remount(disk: SmallDisk, mode: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{mode}", str(disk.folder)], check=True)


def asks(record: RequestRecord) -> Reply:
    """A call of the tool that the question names, then what came of it."""
    if record.turn:
        return Reply(text=str(record.messages[-1]["content"]))
    name = str(record.messages[-1]["content"])
    return Reply(text="hi") if name == "hello" else Reply(calls=[Call(name, {"label": name})])


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is tried again at once, and a lock is waited for only a moment."""
    monkeypatch.setattr("callgate.state.presence.BEATS", 500)
    monkeypatch.setattr("callgate.state.local.sqlite.BUSY_SECONDS", 0.01)
    monkeypatch.setattr("callgate.state.local.sqlite.LONGEST_PAUSE", 0.01)
    monkeypatch.setattr("callgate.access.key_store.BUSY_SECONDS", 0.01)
    for name in ("LOOK_SECONDS", "LONGEST_PAUSE"):
        monkeypatch.setattr(f"callgate.access.key_store.{name}", 0.01)
    monkeypatch.setattr("callgate.state.local.sqlite.FIRST_PAUSE", 0.01)


@pytest.fixture
def config(tmp_path: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> Config:
    """A server with a key in the config, one in the store, and tools that read and write."""
    upstream.script("m", asks)
    (tmp_path / "marks").touch()
    monkeypatch.setenv(tools.MARKS, str(tmp_path / "marks"))
    listed = [
        {"kind": "python", "function": f"{tools.__name__}:count", "safety": safety, "name": safety}
        for safety in ("write", "read_only")
    ]
    keys = [
        {"name": "alice", "hash": OF_CONFIG_HASH, "admin": True},
        {"name": "poor", "hash": WITH_BUDGET_HASH, "budget_per_day": 5},
    ]
    return make_config(upstream.url, tools=listed, auth="keys", keys=keys, data_dir=str(tmp_path / "data"))


@pytest.fixture
async def used(config: Config, tmp_path: Path) -> Path:
    """A folder that a server has used."""
    data = tmp_path / "data"
    async with serve(create_app(config)) as url, asking(url) as client:
        assert await client.answer("write") == "counted write"
        with contextlib.closing(KeyStore(data)) as store:
            store.add(KeyEntry("bob", OF_STORE_HASH))
    (data / "tool_pins.json").write_text("{}")
    for name in data.glob("*-*"):
        name.unlink()
    (tmp_path / "marks").write_text("")
    return data


class Asking:
    """A client of one server."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def ask(self, question: str, key: str = OF_CONFIG, **headers: str) -> httpx.Response:
        body = {"model": "m", "messages": [{"role": "user", "content": question}]}
        headers = {"authorization": f"Bearer {key}", **headers}
        return await self._http.post("/v1/chat/completions", json=body, headers=headers)

    async def answer(self, question: str, key: str = OF_CONFIG, **headers: str) -> str:
        response = await self.ask(question, key, **headers)
        assert response.status_code == 200, response.text
        return str(response.json()["choices"][0]["message"]["content"])

    async def answer_at_last(self, question: str, key: str = OF_CONFIG, **headers: str) -> str:
        """The answer, once all connections of a pool are of after the outage."""
        async with asyncio.timeout(60):
            while (response := await self.ask(question, key, **headers)).status_code == 503:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return str(response.json()["choices"][0]["message"]["content"])

    async def code(self, question: str, key: str = OF_CONFIG, **headers: str) -> str:
        """The code of a refusal that says when to come again."""
        response = await self.ask(question, key, **headers)
        assert (response.status_code, response.headers["retry-after"]) == (503, "1"), response.text
        return str(response.json()["error"]["code"])

    async def ready(self, query: str = "") -> tuple[int, Any]:
        response = await self._http.get(f"/health/ready{query}")
        return response.status_code, response.json()

    async def gauges(self) -> dict[str, float]:
        page = await self._http.get("/metrics", headers={"authorization": f"Bearer {OF_CONFIG}"})
        lines = [line for line in page.text.splitlines() if line.startswith("callgate_store_away")]
        stores = [line for line in lines if '"issuer"' not in line]
        return {line.split('"')[1]: float(line.split()[-1]) for line in stores}

    async def until_whole(self) -> None:
        async with asyncio.timeout(60):
            while (await self.ready())[1] != {"status": "ok"}:  # noqa: ASYNC110 - what comes back has no event of ours
                await asyncio.sleep(0.01)

    async def check_without_stores(self, marks: Path) -> None:
        """What needs no store is answered, all else refused in words."""
        status, facts = await self.ready()
        assert (status, facts["degraded"]) == (200, ["keys", "ledger"])
        assert await self.ready("?strict=1") == (503, {"status": "degraded", "degraded": ["keys", "ledger"]})
        assert await self.gauges() == {"keys": 1.0, "ledger": 1.0}
        assert await self.answer("hello") == "hi"
        assert await self.answer("read_only") == "counted read_only"
        assert "Not run" in await self.answer("write")
        assert await self.code("write", **{"idempotency-key": "k"}) == "runs_unavailable"
        assert await self.code("write", **{"x-callgate-background": "true"}) == "runs_unavailable"
        assert await self.code("hello", WITH_BUDGET) == "limits_unavailable"
        assert ran(marks) == ["read_only"], "nothing that writes has run"

    async def check_whole(self, marks: Path) -> None:
        assert await self.ready("?strict=1") == (200, {"status": "ok"})
        assert await self.gauges() == {"keys": 0.0, "ledger": 0.0}
        assert await self.answer("write", **{"idempotency-key": "k"}) == "counted write"
        assert await self.answer("hello", OF_STORE) == "hi"
        assert await self.answer("hello", WITH_BUDGET) == "hi"
        assert ran(marks) == ["read_only", "write"]


@contextlib.asynccontextmanager
async def asking(url: str) -> AsyncIterator[Asking]:
    async with http_client(url) as http:
        yield Asking(http)


def check_lines(lines: list[Any]) -> None:
    """Each outage was said once when it began, without a traceback, and once when it was over."""
    for begun, over in (("ledger_away", "ledger_back"), ("key_store_unreadable", "key_store_readable_again")):
        first = [line for line in lines if line["event"] == begun and line["failures"] == 1]
        assert len(first) == 1, lines
        assert "\n" not in first[0]["error"]
        assert [line["event"] for line in lines].count(over) == 1
    assert not [line for line in lines if "exc_info" in line]


@pytest.mark.parametrize("damage", DAMAGES)
async def test_damaged_stores_are_said_and_what_needs_none_is_served_until_they_are_mended(
    used: Path, config: Config, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    whole = tmp_path / "whole"
    shutil.copytree(used, whole)
    for name in STORES:
        damage(used / name)
    with pytest.raises(BadEntry, match=r"ledger\.sqlite3"):
        check_files(config)
    with capture_logs() as lines:
        async with serve(create_app(config)) as url, asking(url) as client:
            await client.check_without_stores(tmp_path / "marks")
            assert (await client.ask("hello", OF_STORE)).json()["error"]["code"] == "keys_unavailable"
            for name in ("ledger.sqlite3", "keys.sqlite3"):
                if damage is folder:
                    (used / name).rmdir()
                (whole / name).replace(used / name)
            await client.until_whole()
            await client.check_whole(tmp_path / "marks")
    check_lines(lines)


async def test_locked_stores_are_used_as_soon_as_nobody_else_has_them(
    used: Path, config: Config, tmp_path: Path
) -> None:
    with capture_logs() as lines:
        with locked(used):
            life = contextlib.AsyncExitStack()
            client = await life.enter_async_context(asking(await life.enter_async_context(serve(create_app(config)))))
            await client.check_without_stores(tmp_path / "marks")
            assert await client.code("hello", OF_STORE) == "keys_unavailable"
        async with life:
            await client.until_whole()
            await client.check_whole(tmp_path / "marks")
    check_lines(lines)
    assert "another program has it open" in next(line["error"] for line in lines if line["event"] == "ledger_away")


@needs("small_disk")
@pytest.mark.parametrize("why", ["full", "read_only"])
async def test_on_a_disk_that_takes_nothing_keys_are_read_and_what_needs_no_ledger_is_served(
    used: Path, config: Config, tmp_path: Path, why: str
) -> None:
    with small_disk(8) as disk:
        data = disk.folder / "data"
        with contextlib.closing(KeyStore(used)) as other:  # as a process leaves it that was killed
            other.revoke("nobody")
            shutil.copytree(used, data)
        there = config.model_copy(update={"data_dir": data})
        for name in data.glob("*-shm" if why == "full" else "*-*"):
            name.unlink()
        if why == "full":
            disk.fill()
        else:
            remount(disk, "ro")
        with capture_logs() as lines:
            async with serve(create_app(there)) as url, asking(url) as client:
                await client.check_without_stores(tmp_path / "marks")
                assert await client.answer("hello", OF_STORE) == "hi", "its keys can be read"
                if why == "full":
                    disk.free()
                else:
                    remount(disk, "rw")
                await client.until_whole()
                await client.check_whole(tmp_path / "marks")
        check_lines(lines)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
async def test_a_server_that_does_not_know_whether_it_needs_keys_lets_nobody_in(
    tmp_path: Path, upstream: Upstream, host: str
) -> None:
    upstream.script("m", asks)
    data = tmp_path / "data"
    KeyStore(data).close()
    config = make_config(upstream.url, auth="keys", server={"host": host}, data_dir=str(data))
    with contextlib.ExitStack() as lock:
        other = lock.enter_context(contextlib.closing(sqlite3.connect(data / "keys.sqlite3", isolation_level=None)))
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        life = contextlib.AsyncExitStack()
        url = await life.enter_async_context(serve(create_app(config)))
        http = await life.enter_async_context(http_client(url))
        body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
        refused = await http.post("/v1/chat/completions", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "keys_unavailable")
    async with life:
        async with asyncio.timeout(60):
            while (await http.get("/health/ready")).json() != {"status": "ok"}:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        known = await http.post("/v1/chat/completions", json=body)
        foreign_page = await http.post("/v1/chat/completions", json=body, headers={"host": "rebound.example"})
    if host == "127.0.0.1":
        assert known.status_code == 200, "there are none, as on a start that could read them"
    else:
        assert known.status_code == 401, "others can reach it, and nobody looked before it listened"
    assert foreign_page.status_code in {401, 403}


@pytest.mark.parametrize("damage", [emptied, folder, pipe, loop])
async def test_a_secret_that_cannot_be_used_ends_the_start_with_one_line(
    used: Path, config: Config, damage: Callable[[Path], None]
) -> None:
    damage(used / "secret")
    with pytest.raises(BadEntry, match="secret"):
        check_secret_file(config)
    with pytest.raises(NotStarted):
        async with serve(create_app(config)):
            pass
    assert (await reason_of(config)).startswith(f"cannot start: data_dir: {used / 'secret'} ")


async def reason_of(config: Config) -> str:
    """What the lifespan of an application says that does not start."""
    app = create_app(config)
    said: list[str] = []

    async def receive() -> dict[str, Any]:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        said.append(message.get("message", ""))

    with contextlib.suppress(BadEntry, NotMigrated):  # Starlette raises it again, and uvicorn ignores it
        await app.outermost({"type": "lifespan", "asgi": {}, "state": {}}, receive, send)
    [line] = said
    assert "\n" not in line
    return line


AT_LEAST = "GRANT USAGE, CREATE ON SCHEMA {role} TO {role}; GRANT ALL ON ALL TABLES IN SCHEMA {role} TO {role}"
FULL = """
CREATE FUNCTION {role}.full() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION USING ERRCODE = '53100', MESSAGE = 'could not extend file: No space left on device'; END $$;
"""
TABLES = ("calls", "runs", "processes", "spending")
NO_ROOM = FULL + "".join(
    f"CREATE TRIGGER no_room BEFORE INSERT OR UPDATE ON {{role}}.{table} EXECUTE FUNCTION {{role}}.full();"
    for table in TABLES
)
ROOM = "".join(f"DROP TRIGGER no_room ON {{role}}.{table};" for table in TABLES)
OUTAGES = {
    "away": ("ALTER ROLE {role} NOLOGIN", "ALTER ROLE {role} LOGIN", ["keys", "ledger"]),
    "no rights": ("REVOKE ALL ON SCHEMA {role} FROM {role}", AT_LEAST, ["keys", "ledger"]),
    "read only": (
        "ALTER ROLE {role} SET default_transaction_read_only = on",
        "ALTER ROLE {role} RESET default_transaction_read_only",
        ["ledger"],
    ),
    "full": (NO_ROOM, ROOM, ["ledger"]),
}


@needs("postgres", "module:asyncpg")
@pytest.mark.parametrize("why", OUTAGES)
async def test_without_postgres_what_needs_no_ledger_is_served_until_it_can_be_used(
    config: Config, tmp_path: Path, postgres: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    import asyncpg

    from callgate.state.cluster.postgres import migrate

    for name in ("access.ledger_keys.LOOK_SECONDS", "state.cluster.postgres.AGAIN_SECONDS"):
        monkeypatch.setattr(f"callgate.{name}", 0.02)
    begin, end, away = OUTAGES[why]
    await migrate(postgres.url, schema)

    async def sql(*statements: str) -> None:
        connection = await asyncpg.connect(postgres.url)
        try:
            for statement in statements:
                await connection.execute(statement.format(role=schema))
        finally:
            await connection.close()

    await sql("CREATE ROLE {role} LOGIN", AT_LEAST, begin)
    url = postgres.url.replace("postgres@", f"{schema}@")
    ledger = LedgerSection(url=SecretStr(url), namespace=schema)
    there = config.model_copy(update={"data_dir": None, "ledger": ledger})
    with capture_logs() as lines:
        async with serve(create_app(there)) as served, asking(served) as client:
            assert await client.ready() == (200, {"status": "ok", "degraded": away})
            assert await client.answer("hello") == "hi"
            assert await client.answer("read_only") == "counted read_only"
            assert "Not run" in await client.answer("write")
            assert await client.code("write", **{"idempotency-key": "k"}) == "runs_unavailable"
            if "keys" in away:
                assert await client.code("hello", OF_STORE) == "keys_unavailable"
                assert await client.code("hello", WITH_BUDGET) == "limits_unavailable"
            await sql(end)
            await client.until_whole()
            assert await client.answer_at_last("write", **{"idempotency-key": "k"}) == "counted write"
            assert (await client.ask("hello", OF_STORE)).status_code == 401
            assert await client.answer_at_last("hello", WITH_BUDGET) == "hi"
    assert (tmp_path / "marks").read_text().split() == ["read_only", "write"]
    events = [line["event"] for line in lines]
    assert [events.count(event) for event in ("ledger_back", "key_store_readable_again")] == [1, int("keys" in away)]
    assert not [line for line in lines if "exc_info" in line]
    await sql("DROP OWNED BY {role} CASCADE", "DROP ROLE {role}")


@needs("postgres", "module:asyncpg")
async def test_tables_of_another_version_end_the_start_with_one_line(
    config: Config, postgres: PostgresServer, schema: str
) -> None:
    there = config.model_copy(
        update={"data_dir": None, "ledger": LedgerSection(url=SecretStr(postgres.url), namespace=schema)}
    )
    with pytest.raises(NotStarted):
        async with serve(create_app(there)):
            pass
    assert "run `callgate ledger migrate`" in await reason_of(there)
