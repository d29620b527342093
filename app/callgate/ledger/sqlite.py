"""The ledger in an SQLite file (write-ahead log), written in batches by one thread.

The start of a call with side effects is on the disk before the tool begins. Each process holds a lock file as long as it
lives, and the next process that opens the ledger marks `started` rows of processes whose lock is free as `unknown`.
"""

import asyncio
import contextlib
import fcntl
import functools
import os
import queue
import secrets
import sqlite3
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Final

import structlog

from callgate.ledger.batches import BATCH, BatchedLedger, LedgerBatch
from callgate.ledger.tables import (
    CALL_COLUMNS,
    CHANGING,
    ENDS_ONCE,
    MARK_LOST,
    SPENT,
    SQLITE_TABLES,
    SQLITE_TERMS,
    fill_in,
)

FILE: Final = "ledger.sqlite3"
LOCKED: Final = 1e18
"""The time of the last heartbeat of a process with a lock file, which needs none."""
ROWS: Final = 32
"""The limit of rows in one statement."""
KEPT_SECONDS: Final = 30 * 86_400
PRUNE_SECONDS: Final = 3600
BUSY_SECONDS: Final = 5.0
AGAIN_SECONDS: Final = 0.5
"""The delay before a failed write is retried."""

SPENT_HERE: Final = fill_in(SPENT, SQLITE_TERMS)

log = structlog.get_logger("callgate.ledger")


EMPTIED: Final = "it was emptied; what keys have spent and what ran is no longer known"


class DamagedLedger(ValueError):
    """Raised where the file cannot be read as a ledger."""


def check_ledger(folder: Path) -> None:
    """Raise `DamagedLedger` where the ledger of a folder cannot be read. Changes nothing."""
    path = folder / FILE
    if path.exists():
        if not path.stat().st_size:
            raise _damaged(path, EMPTIED)
        try:
            with contextlib.closing(
                sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", timeout=BUSY_SECONDS, uri=True)
            ) as it:
                _spent(it)
                it.execute("SELECT count(*) FROM calls WHERE ended_at IS NULL").fetchone()
        except sqlite3.OperationalError:
            return  # locked, read-only, or without tables yet: not damaged
        except sqlite3.DatabaseError as error:
            raise _damaged(path, error) from error


def _damaged(path: Path, error: sqlite3.Error | str) -> DamagedLedger:
    if isinstance(error, sqlite3.OperationalError):
        return DamagedLedger(f"{path} cannot be opened ({error}): its disk may be full, or not writable")
    return DamagedLedger(
        f"{path} cannot be read as a ledger ({error}): put back a copy of it, or move it away to start an empty one"
    )


class SqliteLedger(BatchedLedger):
    """The ledger of one folder, for one event loop."""

    def __init__(self, folder: Path, version: str = "") -> None:
        super().__init__()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.process = secrets.token_hex(8)
        self._path = folder / FILE
        self._lock = _Lock.take(folder, self.process)
        self._handed: queue.SimpleQueue[LedgerBatch | None] = queue.SimpleQueue()
        self._refused = ""
        try:
            if not self._path.exists():
                _make(self._path)
            elif not self._path.stat().st_size:
                raise sqlite3.DatabaseError(EMPTIED)
            with contextlib.closing(opened(self._path)) as database:
                _make_tables(database)
                # Valid as long as the lock is held, without heartbeats.
                database.execute("INSERT INTO processes VALUES (?, 'proxy', ?, ?)", (self.process, version, LOCKED))
                remove_dead(database, folder)
                self.found_unknown = mark_lost(database)
                self._spent = _spent(database)
        except (sqlite3.Error, OSError) as error:
            self._lock.release()
            raise _damaged(self._path, error) if isinstance(error, sqlite3.Error) else error from error
        self._thread = threading.Thread(target=self._write_all, name="ledger", daemon=True)
        self._thread.start()

    @property
    def spent(self) -> Mapping[tuple[str, str], int]:
        """The spending of each key in each period when the ledger was opened, in nanodollars."""
        return self._spent

    async def close(self) -> None:
        """Write the remaining rows and close the file. The thread ends by itself, also if this is cancelled."""
        if self._timer is not None:
            self._timer.cancel()
        self._hand_over()
        self._handed.put(None)
        while self._thread.is_alive():  # noqa: ASYNC110 - a thread has no event of the loop's to set after its last step
            await asyncio.sleep(0.005)
        self._lock.release()

    def _take(self, batch: LedgerBatch) -> None:
        self._handed.put(batch)

    # -- in the thread

    def _write_all(self) -> None:
        database = opened(self._path)
        pruned_at = -inf
        unwritten, again_at = LedgerBatch(), inf
        try:
            open_ = True
            while open_:
                batch, open_ = self._next_batch(again_at - time.monotonic())
                if not batch.is_empty:
                    failure = _commit(database, batch)
                    self._report(batch, failure)
                    for id in batch.calls:
                        unwritten.calls.pop(id, None)  # replaced by a later row
                    if failure:
                        unwritten.take_in(batch.unwritten())
                # In separate transactions, so that an invalid row does not block others.
                if (time.monotonic() >= again_at or not open_) and not _commit(database, unwritten):
                    unwritten = LedgerBatch()
                unwritten.shorten()
                if unwritten.is_empty:
                    again_at = inf
                elif time.monotonic() >= again_at or again_at == inf:
                    again_at = time.monotonic() + AGAIN_SECONDS
                if time.monotonic() > pruned_at + PRUNE_SECONDS:
                    pruned_at = time.monotonic()
                    _prune(database)
            with contextlib.suppress(sqlite3.Error):  # the next process sees that its lock is free
                database.execute("DELETE FROM processes WHERE name = ?", (self.process,))
        finally:
            database.close()

    def _next_batch(self, seconds: float) -> tuple[LedgerBatch, bool]:
        """Wait for rows, with a timeout, and take them; return also whether there will be more."""
        whole = LedgerBatch()
        timeout = None if seconds == inf else max(seconds, 0.0)
        while len(whole) < BATCH:
            try:
                batch = self._handed.get(block=not (whole or whole.waiting), timeout=timeout)
            except queue.Empty:
                break
            if batch is None:
                return whole, False
            whole.take_in(batch)
        return whole, True

    def _report(self, batch: LedgerBatch, failure: str) -> None:
        if failure and failure != self._refused:
            log.error("ledger_not_written", error=failure, path=str(self._path))
        self._refused = failure
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            self._loop.call_soon_threadsafe(self._settle, batch, failure)


def opened(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")  # a commit is on the disk, not only with the operating system
    return database


def _make(path: Path) -> None:
    """Create the file atomically: an existing empty file was emptied, and is no new ledger."""
    fresh = path.with_suffix(f".{secrets.token_hex(4)}")
    fresh.touch(mode=0o600)
    try:
        with contextlib.closing(sqlite3.connect(fresh, isolation_level=None)) as database:
            _make_tables(database)
        path.hardlink_to(fresh)
    except FileExistsError:
        pass  # another process has created it
    except OSError:
        fresh.replace(path)  # a file system without links
    finally:
        fresh.unlink(missing_ok=True)


def _make_tables(database: sqlite3.Connection) -> None:
    """Create the tables, and migrate those of older versions, where `runs` had the calls."""
    columns = {name for _, name, *_ in database.execute("PRAGMA table_info(runs)")}
    of_older_version = "call_id" in columns
    database.execute("BEGIN IMMEDIATE")
    if of_older_version:
        for index in ("runs_by_start", "runs_under_way", "runs_open"):
            database.execute(f"DROP INDEX IF EXISTS {index}")
        database.execute("ALTER TABLE runs RENAME TO older")
    for statement in SQLITE_TABLES:
        database.execute(fill_in(statement, SQLITE_TERMS))
    if of_older_version:
        both = ", ".join(name for name in CALL_COLUMNS if name in columns)
        database.execute(f"INSERT INTO calls ({both}) SELECT {both} FROM older")
        database.execute("DROP TABLE older")
    database.execute("COMMIT")


def _commit(database: sqlite3.Connection, batch: LedgerBatch) -> str:
    """Commit a batch; return why it could not be written, else empty."""
    try:
        rows = list(batch.calls.values())
        writes: list[tuple[str, Sequence[Any]]] = []
        for at in range(0, len(rows), ROWS):
            together = rows[at : at + ROWS]
            writes.append((_statement(len(together)), [value for row in together for value in row]))
        writes += [(SPENT_HERE, values) for values in batch.spending]
        if len(writes) > 1:
            database.execute("BEGIN IMMEDIATE")
        for statement, values in writes:
            database.execute(statement, values)
        if len(writes) > 1:
            database.execute("COMMIT")
    except Exception as failure:  # noqa: BLE001 - waiting calls must be woken, and the thread has to go on
        with contextlib.suppress(sqlite3.Error):
            database.execute("ROLLBACK")
        return f"{type(failure).__name__}: {failure}"
    return ""


@functools.cache
def _statement(rows: int) -> str:
    """Return a statement for several rows, because each statement acquires the interpreter lock several times."""
    row = f"({', '.join('?' * len(CALL_COLUMNS))})"
    ended = ", ".join(f"{column} = excluded.{column}" for column in CHANGING)
    return (
        f"INSERT INTO calls ({', '.join(CALL_COLUMNS)}) VALUES {', '.join([row] * rows)}"
        f" ON CONFLICT (id) DO UPDATE SET {ended} WHERE {ENDS_ONCE}"
    )


def _prune(database: sqlite3.Connection) -> None:
    oldest = time.time() - KEPT_SECONDS
    with contextlib.suppress(sqlite3.Error):  # tried again in an hour
        database.execute("DELETE FROM calls WHERE started_at < ? AND ended_at IS NOT NULL", (oldest,))
        database.execute("DELETE FROM spending WHERE period < ?", (time.strftime("%Y-%m", time.gmtime(oldest)),))


def _spent(database: sqlite3.Connection) -> dict[tuple[str, str], int]:
    return {
        (key, period): nano for key, period, nano in database.execute("SELECT key_name, period, nano FROM spending")
    }


def remove_dead(database: sqlite3.Connection, folder: Path) -> bool:
    """Remove dead processes from the table; return whether there were any."""
    gone = [
        (name,)
        for [name] in database.execute("SELECT name FROM processes WHERE seen_at = ?", (LOCKED,)).fetchall()
        if _Lock.is_free(folder, name)
    ]
    if gone:
        database.executemany("DELETE FROM processes WHERE name = ?", gone)
    _Lock.sweep(folder)
    return bool(gone)


def mark_lost(database: sqlite3.Connection) -> int:
    """End the calls of dead processes; return how many had begun."""
    return [state for [state] in database.execute(fill_in(MARK_LOST, SQLITE_TERMS), (0.0,))].count("unknown")


def is_gone(folder: Path, process: str) -> bool:
    """True if a process of the ledger in this folder has ended."""
    return _Lock.is_free(folder, process)


@dataclass(slots=True)
class _Lock:
    """The lock file of a process, which is locked as long as the process lives."""

    path: Path
    descriptor: int

    @classmethod
    def take(cls, folder: Path, process: str) -> "_Lock":
        path = _lock_path(folder, process)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return cls(path, descriptor)

    def release(self) -> None:
        self.path.unlink(missing_ok=True)
        os.close(self.descriptor)

    @staticmethod
    def is_free(folder: Path, process: str) -> bool:
        return _is_free(_lock_path(folder, process))

    @staticmethod
    def sweep(folder: Path) -> None:
        """Remove the lock files of dead processes."""
        for path in folder.glob("process-*.lock"):
            if _is_free(path):
                path.unlink(missing_ok=True)


def _lock_path(folder: Path, process: str) -> Path:
    return folder / f"process-{process}.lock"


def _is_free(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
