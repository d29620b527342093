"""A store in the ledger's file; writes are durable on return."""

import asyncio
import contextlib
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import msgspec

from callgate.state.local.journal_mode import use_write_ahead_journal
from callgate.state.share_sizes import ShareSizes
from callgate.state.store import Share, StoreError

BUSY_SECONDS: Final = 5.0

_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS kept (key TEXT PRIMARY KEY, value BLOB NOT NULL, expires_at REAL NOT NULL) STRICT"
)
_SHARES: Final = (
    """CREATE TABLE IF NOT EXISTS kept_shares (
    number INTEGER PRIMARY KEY AUTOINCREMENT, share TEXT NOT NULL, key TEXT NOT NULL UNIQUE, size INTEGER NOT NULL) STRICT""",
    "CREATE INDEX IF NOT EXISTS kept_by_share ON kept_shares (share, number, size)",
    """CREATE TRIGGER IF NOT EXISTS kept_gone AFTER DELETE ON kept
    BEGIN DELETE FROM kept_shares WHERE key = OLD.key; END""",
)
"""The entries of each share, the oldest first."""
_ADD: Final = "INSERT INTO kept VALUES (?1, ?2, ?3) ON CONFLICT (key) DO UPDATE SET value = ?2, expires_at = ?3 WHERE expires_at <= ?4"
_PUT: Final = _ADD.replace("WHERE expires_at <= ?4", "WHERE ?4 = ?4")
Result = TypeVar("Result")


class _DiskJob(msgspec.Struct, Generic[Result], eq=False):
    """Work with the connection, and the event loop that waits for its answer."""

    work: Callable[[sqlite3.Connection], Result]
    loop: asyncio.AbstractEventLoop
    answer: "asyncio.Future[Result]"


class DiskStore:
    """One connection, used by a thread of its own, in the order in which it is asked: what the store does is handed to it in a queue, for a
    third of what a thread of the event loop's own takes. The thread begins with the first use."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._jobs: queue.SimpleQueue[_DiskJob[Any] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._sizes = ShareSizes()

    async def get(self, key: str) -> bytes | None:
        return await self._do(lambda database: _get(database, key))

    async def get_all(self, keys: Sequence[str], *, renew: float) -> list[bytes | None]:
        expires_at = time.time() + renew

        def get_all(database: sqlite3.Connection) -> list[bytes | None]:
            values = [_get(database, key) for key in keys]
            for key, value in zip(keys, values, strict=True):
                if value is not None:
                    database.execute("UPDATE kept SET expires_at = ? WHERE key = ?", (expires_at, key))
            return values

        return await self._do(get_all)

    async def put(self, key: str, value: bytes, seconds: float, share: Share | None = None) -> None:
        await self._do(lambda database: self._put(database, _PUT, key, value, seconds, share))

    async def add(self, key: str, value: bytes, seconds: float, share: Share | None = None) -> bool:
        return await self._do(lambda database: self._put(database, _ADD, key, value, seconds, share))

    async def delete(self, key: str, share: Share | None = None) -> None:
        await self._do(lambda database: database.execute("DELETE FROM kept WHERE key = ?", (key,)))

    async def close(self) -> None:
        """Close the connection, when all that was asked before is done."""
        self._is_closed = True
        if self._thread is not None:
            self._jobs.put(None)
            await asyncio.to_thread(self._thread.join)
            self._thread = None

    def _put(
        self, database: sqlite3.Connection, put: str, key: str, value: bytes, seconds: float, share: Share | None
    ) -> bool:
        """Store a value by one of the statements; return whether it did."""
        now = self._pruned(database)
        if share is None:
            return database.execute(put, (key, value, now + seconds, now)).rowcount == 1
        database.execute("BEGIN IMMEDIATE")
        try:
            was_stored = database.execute(put, (key, value, now + seconds, now)).rowcount == 1
            if was_stored:
                self._count(database, key, share.counted(len(key) + len(value)), share)
            database.execute("COMMIT")
        except BaseException:
            if database.in_transaction:  # SQLite ends it by itself where a disk is full
                database.execute("ROLLBACK")
            raise
        return was_stored

    def _count(self, database: sqlite3.Connection, key: str, size: int, share: Share) -> None:
        """Count an entry in its share, and evict the oldest ones where that is full."""
        row = (share.name, key, size)
        database.execute("INSERT OR REPLACE INTO kept_shares (share, key, size) VALUES (?, ?, ?)", row)
        over = self._over(database, share, size)
        while over > 0:
            oldest, size_of_oldest = database.execute(
                "SELECT key, size FROM kept_shares WHERE share = ? ORDER BY number LIMIT 1", (share.name,)
            ).fetchone()
            database.execute("DELETE FROM kept WHERE key = ?", (oldest,))
            over -= size_of_oldest

    def _over(self, database: sqlite3.Connection, share: Share, size: int) -> int:
        """Return by how much a share exceeds its limit."""
        if not self._sizes.may_exceed(share, size):
            return 0
        query = "SELECT sum(size) FROM kept_shares WHERE share = ?"
        [total] = database.execute(query, (share.name,)).fetchone()
        return self._sizes.note_sum(share, total)

    def _pruned(self, database: sqlite3.Connection) -> float:
        """Return the time, after removing expired entries now and then."""
        now = time.time()
        if self._sizes.is_time_to_prune():
            database.execute("DELETE FROM kept WHERE expires_at <= ?", (now,))
        return now

    def _do(self, work: Callable[[sqlite3.Connection], Result]) -> "asyncio.Future[Result]":
        """Have work done. What nobody waits for any more when its turn comes is left out. Raises `StoreError`."""
        if self._is_closed:
            raise StoreError("the store is closed")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Result] = loop.create_future()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="kept", daemon=True)
            self._thread.start()
        self._jobs.put(_DiskJob(work, loop, answer))
        return answer

    def _work(self) -> None:
        """Do the jobs one after the other, in a thread."""
        database: sqlite3.Connection | None = None
        while (job := self._jobs.get()) is not None:
            if job.answer.cancelled():
                continue
            result: Any = None
            error: Exception | None = None
            try:
                if database is None:
                    database = _connect(self._path)
                result = job.work(database)
            except sqlite3.Error as failure:
                error = StoreError(f"{type(failure).__name__}: {failure}")
                error.__cause__ = failure
            except Exception as failure:  # noqa: BLE001 - it belongs to who waits for it
                error = failure
            with contextlib.suppress(RuntimeError):  # its event loop has ended
                job.loop.call_soon_threadsafe(_settle, job.answer, result, error)
            del job, result, error
        if database is not None:
            database.close()


def _settle(answer: "asyncio.Future[Any]", result: Any, error: Exception | None) -> None:
    if answer.done():
        return  # who asked was cancelled
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)


def _connect(path: Path) -> sqlite3.Connection:
    # The ledger makes the file: made here, it would be taken for one that was emptied.
    uri = f"{path.absolute().as_uri()}?mode=rw"
    database = sqlite3.connect(uri, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=True)
    try:
        use_write_ahead_journal(database, BUSY_SECONDS)
        database.execute("PRAGMA synchronous = FULL")  # a commit is on the disk, not only with the operating system
        for statement in (_TABLE, *_SHARES):
            database.execute(statement)
    except sqlite3.Error:
        with contextlib.suppress(sqlite3.Error):
            database.close()
        raise
    return database


def _get(database: sqlite3.Connection, key: str) -> bytes | None:
    row = database.execute("SELECT value, expires_at FROM kept WHERE key = ?", (key,)).fetchone()
    return row[0] if row is not None and row[1] > time.time() else None
