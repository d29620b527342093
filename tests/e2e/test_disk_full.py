"""A disk that is really full: what may write is refused in words, all else goes on, and nothing has to be started again."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from callgate.access.key_store import DamagedStore, KeyStore
from callgate.application import create_app
from callgate.state.local.sqlite import DamagedLedger, SqliteLedger
from tests.chaos import tools
from tests.harness.configs import make_config
from tests.harness.needs import needs
from tests.harness.postgres import PostgresServer
from tests.harness.server import serve
from tests.harness.small_disk import SmallDisk, small_disk
from tests.harness.wire import RawAnswer, raw_post
from tests.scripted_upstream import Call, Reply, Upstream
from tests.scripted_upstream.records import RequestRecord

pytestmark = [pytest.mark.anyio, needs("small_disk")]
TOOLS = [
    {"kind": "python", "function": f"{tools.__name__}:count", "safety": safety, "name": f"count_{safety}"}
    for safety in ("write", "read_only")
]


def calls_what_it_is_asked(request: RequestRecord) -> Reply:
    if request.turn:
        return Reply(text="done")
    name, _, label = request.messages[0]["content"].partition(" ")
    return Reply(calls=[Call(name, {"label": label})])


@pytest.fixture
def disk() -> Iterator[SmallDisk]:
    with small_disk(96) as mounted:
        yield mounted


@pytest.fixture
def marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, upstream: Upstream) -> Path:
    file = tmp_path / "marks"
    file.touch()
    monkeypatch.setenv(tools.MARKS, str(file))
    upstream.script("m", calls_what_it_is_asked)
    return file


def marked(marks: Path) -> list[str]:
    return marks.read_text().splitlines()


class Chat:
    """Chats that call one tool each."""

    def __init__(self, url: str, upstream: Upstream) -> None:
        self.url, self.upstream = url, upstream

    async def result(self, text: str) -> str:
        """What the call came to, for the model."""
        answer = await self.ask(text)
        assert answer.status == 200, answer.body
        return str(next(m["content"] for m in self.upstream.requests[-1].messages if m["role"] == "tool"))

    async def ask(self, text: str, key: str = "") -> RawAnswer:
        headers = {"idempotency-key": key} if key else None
        return await raw_post(
            self.url, {"model": "m", "messages": [{"role": "user", "content": text}]}, headers=headers
        )

    async def until_refused(self, disk: SmallDisk) -> None:
        """Pages that the database has already take some rows more."""
        async with asyncio.timeout(30):
            while "cannot write down" not in await self.result(f"count_write before {'x' * 2000}"):
                disk.fill()

    async def check_while_full(self) -> None:
        for _ in range(3):
            assert "cannot write down" in await self.result("count_write never")
            assert await self.result("count_read_only seen") == "counted seen"
            keyed = await self.ask("count_read_only never", key="one")
            assert (keyed.status, json.loads(keyed.body)["error"]["code"]) == (503, "runs_unavailable")

    async def check_when_free(self) -> None:
        async with asyncio.timeout(30):
            while await self.result("count_write after") != "counted after":  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert (await self.ask("count_write keyed", key="one")).status == 200

    async def check_around_a_full(self, disk: SmallDisk) -> None:
        assert await self.result("count_write first") == "counted first"
        disk.fill()
        await self.until_refused(disk)
        await self.check_while_full()
        disk.free()
        await self.check_when_free()


async def test_with_the_ledger_in_a_file(disk: SmallDisk, marks: Path, upstream: Upstream) -> None:
    folder = disk.folder / "data"
    config = make_config(upstream.url, tools=TOOLS, data_dir=str(folder))
    async with serve(create_app(config)) as url:
        await Chat(url, upstream).check_around_a_full(disk)
    disk.fill()
    ledger = SqliteLedger(folder)
    for opening in (ledger.open, lambda: KeyStore(folder)):
        with pytest.raises((DamagedLedger, DamagedStore), match="its disk may be full"):
            opening()
    await ledger.close()
    ran = marked(marks)
    assert "never" not in ran
    assert (ran.count("first"), ran.count("after"), ran.count("keyed")) == (1, 1, 1)


@needs("postgres", "module:asyncpg")
async def test_with_the_ledger_in_postgres(disk: SmallDisk, marks: Path, upstream: Upstream) -> None:
    from callgate.state.cluster.postgres import migrate

    folder = disk.folder / "postgres"
    folder.mkdir()
    disk.folder.chmod(0o755)
    server = PostgresServer(folder)
    server.start("min_wal_size=32MB", "max_wal_size=32MB", "fsync=off")
    try:
        await migrate(server.url)
        config = make_config(upstream.url, tools=TOOLS, ledger={"url": server.url})
        async with serve(create_app(config)) as url:
            await Chat(url, upstream).check_around_a_full(disk)
    finally:
        server.stop()
    assert "never" not in marked(marks)
