"""What the store in the ledger's file does with its thread; what it stores is held to the contract of all stores."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from callgate.state.local.disk import DiskStore
from callgate.state.store import Share, StoreError

pytestmark = pytest.mark.anyio

LONG = 60.0


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[DiskStore]:
    (tmp_path / "ledger.sqlite3").touch()
    opened = DiskStore(tmp_path / "ledger.sqlite3")
    yield opened
    await opened.close()


async def test_all_is_done_in_the_order_in_which_it_was_asked(store: DiskStore) -> None:
    await asyncio.gather(*(store.put("a", b"%d" % number, LONG) for number in range(50)))
    assert await store.get("a") == b"49"


async def test_what_nobody_waits_for_any_more_does_not_begin(store: DiskStore) -> None:
    has_begun = asyncio.Event()
    may_end = threading.Event()
    loop = asyncio.get_running_loop()

    def hold(database: sqlite3.Connection) -> None:
        loop.call_soon_threadsafe(has_begun.set)
        may_end.wait(LONG)

    holding = store._do(hold)
    await has_begun.wait()
    given_up = asyncio.create_task(store.put("a", b"1", LONG))
    waited_for = asyncio.create_task(store.put("b", b"2", LONG))
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.wait([given_up])
    may_end.set()
    await holding
    await waited_for
    assert [await store.get("a"), await store.get("b")] == [None, b"2"]


async def test_a_store_that_is_closed_has_done_what_was_asked_and_does_nothing_more(tmp_path: Path) -> None:
    file = tmp_path / "ledger.sqlite3"
    file.touch()
    store = DiskStore(file)
    putting = asyncio.create_task(store.put("a", b"1", LONG))
    await asyncio.sleep(0)
    await store.close()
    await putting
    assert not any(thread.name == "kept" for thread in threading.enumerate())
    with pytest.raises(StoreError, match="is closed"):
        await store.get("a")
    again = DiskStore(file)
    assert await again.get("a") == b"1"
    await again.close()


async def test_an_error_belongs_to_who_asked_and_the_store_goes_on(store: DiskStore) -> None:
    def fail(database: sqlite3.Connection) -> None:
        raise ValueError("this job alone")

    with pytest.raises(ValueError, match="this job alone"):
        await store._do(fail)
    with pytest.raises(StoreError, match="no such table"):
        await store._do(lambda database: database.execute("SELECT 1 FROM nowhere"))
    await store.put("a", b"1", LONG)
    assert await store.get("a") == b"1"


async def test_a_full_disk_is_named_as_the_reason_and_the_store_goes_on_when_there_is_room(store: DiskStore) -> None:
    def leave_pages(database: sqlite3.Connection, more: int) -> None:
        [pages] = database.execute("PRAGMA page_count").fetchone()
        database.execute(f"PRAGMA max_page_count = {pages + more}")

    share = Share("alice", 1_000_000)
    await store._do(lambda database: leave_pages(database, 0))
    for owner in (None, share):
        with pytest.raises(StoreError, match="disk is full"):
            await store.put("a", bytes(100_000), LONG, owner)
    await store._do(lambda database: leave_pages(database, 100))
    await store.put("a", b"1", LONG, share)
    assert await store.get("a") == b"1"
