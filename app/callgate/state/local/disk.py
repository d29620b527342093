"""A store in the ledger's file; writes are durable on return."""

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

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


class DiskStore:
    """One connection, used by one thread at a time, and not by the event loop."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
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
        with self._lock:
            if self._connection is not None:
                self._connection.close()

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

    async def _do(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        def locked() -> Result:
            with self._lock:
                try:
                    if self._connection is None:
                        self._connection = _connect(self._path)
                    return work(self._connection)
                except sqlite3.Error as error:
                    raise StoreError(f"{type(error).__name__}: {error}") from error

        return await asyncio.to_thread(locked)


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
