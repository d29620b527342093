import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest

from callgate.config.watch import changes, digest_of, folders_to_watch

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.leaves("AnyIO worker thread", why="watchfiles waits in one; they are kept"),
]
PATIENCE = 30.0
A_WHILE = 0.7
"""Longer than a change takes to be seen; only what must not be seen is waited for in this way."""


class Watched:
    def __init__(self, files: Iterable[Path]) -> None:
        self.files = list(files)
        self.count = 0
        self._news = asyncio.Event()

    async def listen(self) -> None:
        async for _ in changes(lambda: self.files, digest_of(self.files)):
            self.count += 1
            self._news.set()

    async def change(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self._news.wait()
        self._news.clear()


@contextlib.asynccontextmanager
async def watching(*files: Path) -> AsyncIterator[Watched]:
    watched = Watched(files)
    listening = asyncio.create_task(watched.listen())
    await asyncio.sleep(A_WHILE)  # watchfiles does not say when it has begun
    try:
        yield watched
    finally:
        listening.cancel()
        await asyncio.wait([listening])


async def test_a_file_written_in_place_is_seen(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("a")
    async with watching(file) as watched:
        file.write_text("b")
        await watched.change()


async def test_what_changed_before_the_watch_began_is_seen(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("a")
    seen = digest_of([file])
    file.write_text("b")
    async with asyncio.timeout(PATIENCE), contextlib.aclosing(changes(lambda: [file], seen)) as watched:
        await anext(watched)


async def test_a_file_is_seen_only_once_it_is_quiet(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("whole")
    seen = digest_of([file])
    file.write_text("half")
    steps = iter(["a half of the rest", "all of it"])
    pauses = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if (text := next(steps, None)) is not None:
            file.write_text(text)

    async with asyncio.timeout(PATIENCE), contextlib.aclosing(changes(lambda: [file], seen, pause)) as watched:
        await anext(watched)
        assert file.read_text() == "all of it"
        assert len(pauses) == 3


async def test_a_file_that_is_as_it_was_once_it_is_quiet_is_seen_because_the_half_may_have_been_read(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("whole")
    seen = digest_of([file])
    file.write_text("half")

    async def pause(_: float) -> None:
        file.write_text("whole")

    async with asyncio.timeout(PATIENCE), contextlib.aclosing(changes(lambda: [file], seen, pause)) as watched:
        await anext(watched)


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "missing"])
async def test_what_is_no_file_is_seen_and_holds_nothing(tmp_path, kind):
    place = tmp_path / "config.yaml"
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    elif kind == "device":
        place.symlink_to("/dev/zero")
    assert digest_of([place]) != digest_of([Path(__file__)])


async def test_a_file_put_in_the_place_of_another_is_seen_each_time(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("a")
    async with watching(file) as watched:
        for text in ("b", "c"):
            (tmp_path / "new").write_text(text)
            (tmp_path / "new").replace(file)
            await watched.change()


async def test_a_link_turned_as_kubernetes_does_is_seen_each_time(tmp_path):
    for name, text in (("one", "a"), ("two", "b"), ("three", "c")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(text)
    (tmp_path / "..data").symlink_to("one")
    (tmp_path / "config.yaml").symlink_to("..data/config.yaml")
    async with watching(tmp_path / "config.yaml") as watched:
        for name in ("two", "three"):
            (tmp_path / "..data_tmp").symlink_to(name)
            (tmp_path / "..data_tmp").replace(tmp_path / "..data")
            await watched.change()


async def test_a_file_behind_a_link_is_seen_when_it_changes_in_its_own_folder(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "etc").mkdir()
    file = tmp_path / "real" / "config.yaml"
    file.write_text("a")
    link = tmp_path / "etc" / "config.yaml"
    link.symlink_to(file)
    async with watching(link) as watched:
        file.write_text("b")
        await watched.change()


async def test_what_reads_the_same_is_no_change_nor_is_another_file_beside_it(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("a")
    async with watching(file) as watched:
        os.utime(file)
        file.write_text("a")
        (tmp_path / "other").write_text("x")
        await asyncio.sleep(A_WHILE)
        assert watched.count == 0


async def test_a_second_file_counts_as_much_as_the_first(tmp_path):
    file, servers = tmp_path / "config.yaml", tmp_path / "mcp" / "mcp.json"
    servers.parent.mkdir()
    file.write_text("a")
    servers.write_text("{}")
    async with watching(file, servers) as watched:
        servers.write_text('{"mcpServers": {}}')
        await watched.change()


def test_links_that_lead_in_a_ring_end(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert folders_to_watch([tmp_path / "a"]) == {tmp_path}
