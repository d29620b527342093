"""A store in the ledger's file; writes are durable on return."""

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from callgate.stores.store import Share, StoreError

BUSY_SECONDS: Final = 5.0
PRUNE_EVERY: Final = 256
"""Writes between two prunings of expired entries."""

SUM_EVERY: Final = 64
"""Writes to a share after which its size is summed up again."""

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
_PUT: Final = "INSERT INTO kept VALUES (?1, ?2, ?3) ON CONFLICT (key) DO UPDATE SET value = ?2, expires_at = ?3"
Result = TypeVar("Result")


class DiskStore:
    """One connection, used by one thread at a time, and not by the event loop."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._opened: sqlite3.Connection | None = None
        self._added = 0
        self._held: dict[str, tuple[int, int]] = {}
        """By share: an upper bound of its size, as far as this process knows, and its writes since it was summed up."""

    async def get(self, key: str) -> bytes | None:
        return await self._do(lambda database: _get(database, key))

    async def get_all(self, keys: Sequence[str], *, renew: float) -> list[bytes | None]:
        expires_at = time.time() + renew

        def get_all(database: sqlite3.Connection) -> list[bytes | None]:
            found = [_get(database, key) for key in keys]
            for key, value in zip(keys, found, strict=True):
                if value is not None:
                    database.execute("UPDATE kept SET expires_at = ? WHERE key = ?", (expires_at, key))
            return found

        return await self._do(get_all)

    async def put(self, key: str, value: bytes, seconds: float, share: Share | None = None) -> None:
        await self._do(lambda database: self._put(database, key, value, seconds, share))

    async def add(self, key: str, value: bytes, seconds: float) -> bool:
        def add(database: sqlite3.Connection) -> bool:
            now = self._pruned(database)
            changed = database.execute(f"{_PUT} WHERE expires_at <= ?4", (key, value, now + seconds, now))
            return changed.rowcount == 1

        return await self._do(add)

    async def delete(self, key: str, share: Share | None = None) -> None:
        await self._do(lambda database: database.execute("DELETE FROM kept WHERE key = ?", (key,)))

    async def close(self) -> None:
        with self._lock:
            if self._opened is not None:
                self._opened.close()

    def _put(self, database: sqlite3.Connection, key: str, value: bytes, seconds: float, share: Share | None) -> None:
        now = self._pruned(database)
        if share is None:
            database.execute(_PUT, (key, value, now + seconds))
            return
        database.execute("BEGIN IMMEDIATE")
        try:
            database.execute(_PUT, (key, value, now + seconds))
            row = (share.name, key, len(key) + len(value))
            database.execute("INSERT OR REPLACE INTO kept_shares (share, key, size) VALUES (?, ?, ?)", row)
            over = self._over(database, share, row[2])
            while over > 0:
                oldest, size = database.execute(
                    "SELECT key, size FROM kept_shares WHERE share = ? ORDER BY number LIMIT 1", (share.name,)
                ).fetchone()
                database.execute("DELETE FROM kept WHERE key = ?", (oldest,))
                over -= size
            database.execute("COMMIT")
        except BaseException:
            database.execute("ROLLBACK")
            raise

    def _over(self, database: sqlite3.Connection, share: Share, size: int) -> int:
        """Return by how much a share exceeds its limit. Summing it up is slow, so that it is done only where the known size
        is above the limit, and regularly because other processes write too."""
        held, puts = self._held.get(share.name, (share.bytes, 0))
        if held + size <= share.bytes and puts < SUM_EVERY:
            self._held[share.name] = held + size, puts + 1
            return 0
        query = "SELECT sum(size) FROM kept_shares WHERE share = ?"
        total: int = database.execute(query, (share.name,)).fetchone()[0]
        self._held[share.name] = min(total, share.bytes), 0
        return total - share.bytes

    def _pruned(self, database: sqlite3.Connection) -> float:
        """Return the time, after removing expired entries now and then."""
        now = time.time()
        self._added += 1
        if self._added % PRUNE_EVERY == 0:
            database.execute("DELETE FROM kept WHERE expires_at <= ?", (now,))
        return now

    async def _do(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        def locked() -> Result:
            with self._lock:
                try:
                    if self._opened is None:
                        self._opened = _opened(self._path)
                    return work(self._opened)
                except sqlite3.Error as error:
                    raise StoreError(f"{type(error).__name__}: {error}") from error

        return await asyncio.to_thread(locked)


def _opened(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")  # a commit is on the disk, not only with the operating system
        for statement in (_TABLE, *_SHARES):
            database.execute(statement)
    except sqlite3.Error:
        with contextlib.suppress(sqlite3.Error):
            database.close()
        raise
    return database


def _get(database: sqlite3.Connection, key: str) -> bytes | None:
    found = database.execute("SELECT value, expires_at FROM kept WHERE key = ?", (key,)).fetchone()
    return found[0] if found is not None and found[1] > time.time() else None
