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
from math import inf
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from callgate.state.batches import BATCH, BatchedLedger, LedgerBatch
from callgate.state.database import DamagedFile
from callgate.state.local.file_identity import identity_of
from callgate.state.local.journal_mode import use_write_ahead_journal
from callgate.state.local.plain_values import take_none_as_it_is
from callgate.state.tables import (
    CALL_COLUMNS,
    CHANGING,
    ENDING,
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
FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 15.0
"""Seconds before a file that could not be opened is tried again."""

OPEN: Final = 0.0
"""What stands for the end of a call that has none."""
_ENDED_AT: Final = CALL_COLUMNS.index("ended_at")
_NOTE: Final = CALL_COLUMNS.index("note")
_ARGUMENTS: Final = CALL_COLUMNS.index("arguments")
_RESULT: Final = CALL_COLUMNS.index("result")
SPENT_HERE: Final = fill_in(SPENT, SQLITE_TERMS)

log = structlog.get_logger("callgate.ledger")


EMPTIED: Final = "it was emptied; what keys have spent and what ran is no longer known"


NO_FILE: Final = "it is no file"


PUT_BACK: Final = "put it back, or move its -wal and -shm away as well and start this server again with an empty one"
START_AGAIN: Final = "start this server again, with a ledger and the -wal that belongs to it"
WITHOUT_ITS_FILE: Final = f"it is gone, and its -wal is still there: {PUT_BACK}"


class DamagedLedger(DamagedFile):
    """Raised where the file cannot be read as a ledger."""


def check_ledger(folder: Path) -> None:
    """Raise `DamagedLedger` where the ledger of a folder cannot be read now. Changes nothing."""
    path = folder / FILE
    if os.path.lexists(path):
        if not path.is_file():
            raise _damaged(path, NO_FILE)
        if not path.stat().st_size:
            raise _damaged(path, EMPTIED)
        try:
            with contextlib.closing(
                sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", timeout=BUSY_SECONDS, uri=True)
            ) as database:
                _spent(database)
                database.execute("SELECT count(*) FROM calls WHERE ended_at IS NULL").fetchone()
        except sqlite3.DatabaseError as error:
            if str(error) == "no such table: calls":  # of an older version
                return
            raise _damaged(path, error) from error


def _damaged(path: Path, error: sqlite3.Error | str) -> DamagedLedger:
    if "locked" in str(error):
        return DamagedLedger(f"{path} cannot be opened ({error}): another program has it open")
    if isinstance(error, sqlite3.OperationalError) and "no such" not in str(error):
        return DamagedLedger(f"{path} cannot be opened ({error}): its disk may be full, or not writable")
    return DamagedLedger(
        f"{path} cannot be read as a ledger ({error}): put back a copy of it, or move it away to start an empty one"
    )


class SqliteLedger(BatchedLedger):
    """The ledger of one folder, for one event loop. Until its file is open rows wait, and calls that need theirs are refused."""

    def __init__(self, folder: Path, version: str = "") -> None:
        """Opens nothing."""
        super().__init__()
        self.process = secrets.token_hex(8)
        self.away = "it is not open yet"
        """Why the file could not be opened; empty once it is open."""
        self._folder = folder
        self._version = version
        self.path = folder / FILE
        self._lock: _Lock | None = None
        self._file: tuple[int, int] | None = None
        self._replaced = ""
        self._spent: Mapping[tuple[str, str], int] | None = None
        self._pause = FIRST_PAUSE
        self._open_at = -inf
        self._handed: queue.SimpleQueue[LedgerBatch | None] = queue.SimpleQueue()
        self._refused = ""
        self._thread = threading.Thread(target=self._write_all, name="ledger", daemon=True)
        self._thread.start()

    @property
    def spent(self) -> Mapping[tuple[str, str], int] | None:
        """The spending of each key in each period when the file was opened, in nanodollars; None before."""
        return self._spent

    def open(self, patience: float | None = None) -> int:
        """Open the file, from any thread but only one at a time; `patience`: the seconds to wait for who has locked it. Return how
        many calls had begun whose processes ended first. Raises `DamagedLedger` and `OSError`."""
        try:
            lost = self._open(BUSY_SECONDS if patience is None else patience)
        except sqlite3.Error as error:
            damaged = _damaged(self.path, error)
            self.away = str(damaged)
            raise damaged from error
        except OSError as error:
            self.away = f"{self.path} cannot be opened ({error.strerror or error})"
            raise
        self.away = ""
        return lost

    def open_again(self) -> int:
        """Open the file where it is time to try again: after a pause, which is twice as long each time. Returns and raises as `open`
        does."""
        now = time.monotonic()
        if now < self._open_at:
            raise DamagedLedger(self.away)
        self._open_at = now + self._pause
        self._pause = min(LONGEST_PAUSE, 2 * self._pause)
        return self.open(patience=0.0)

    def why_not_in_use(self) -> str:
        """Return why nothing can be read from the file or written to it now; empty if it can. A file that was moved or replaced stays
        open, but what is written to it is in no ledger."""
        if self.away or self._replaced:
            return self.away or self._replaced
        try:
            file = identity_of(self.path)
        except OSError as error:
            return f"{self.path} is not there any more ({error.strerror or error}): {PUT_BACK}"
        if file != self._file:  # for good: who opened the other file has had the journal of this one
            self._replaced = f"{self.path} is another file than the one that was opened: {START_AGAIN}"
        return self._replaced

    def _open(self, patience: float) -> int:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = _Lock.take(self._folder, self.process)
        try:
            if not self.path.exists() and _has_journal(self.path):
                raise sqlite3.DatabaseError(WITHOUT_ITS_FILE)
            if not self.path.exists():
                _make(self.path)
            elif not self.path.is_file():
                raise sqlite3.DatabaseError(NO_FILE)
            elif not self.path.stat().st_size:
                raise sqlite3.DatabaseError(EMPTIED)
            with contextlib.closing(open_file(self.path, patience)) as database:
                _make_tables(database)
                # Valid as long as the lock is held, without heartbeats.
                database.execute(
                    "INSERT INTO processes VALUES (?, 'proxy', ?, ?)", (self.process, self._version, LOCKED)
                )
                remove_dead(database, self._folder)
                lost = mark_lost(database)
                self._spent = _spent(database)
                self._file = identity_of(self.path)
        except BaseException:
            lock.release()
            raise
        self._lock = lock
        return lost

    async def close(self) -> None:
        """Write the remaining rows and close the file. The thread ends by itself, also if this is cancelled."""
        if self._timer is not None:
            self._timer.cancel()
        self._hand_over()
        self._handed.put(None)
        while self._thread.is_alive():  # noqa: ASYNC110 - a thread has no event of the loop's to set after its last step
            await asyncio.sleep(0.005)
        if self._lock is not None:
            self._lock.release()

    def _take(self, batch: LedgerBatch) -> None:
        self._handed.put(batch)

    # -- in the thread

    def _write_all(self) -> None:
        database = _LedgerConnection(self)
        pruned_at = -inf
        unwritten = LedgerBatch()
        again_at = inf
        try:
            open_ = True
            while open_:
                batch, open_ = self._next_batch(again_at - time.monotonic())
                if not batch.is_empty:
                    failure = database.commit(batch)
                    self._report(batch, failure)
                    if unwritten.calls:
                        for id in batch.calls:
                            unwritten.calls.pop(id, None)  # replaced by a later row
                    if failure:
                        unwritten.take_in(batch.unwritten())
                # In separate transactions, so that an invalid row does not block others.
                if unwritten.is_empty:
                    again_at = inf
                else:
                    if (time.monotonic() >= again_at or not open_) and not database.commit(unwritten):
                        unwritten = LedgerBatch()
                    unwritten.shorten()
                    if unwritten.is_empty:
                        again_at = inf
                    elif time.monotonic() >= again_at or again_at == inf:
                        again_at = time.monotonic() + AGAIN_SECONDS
                if time.monotonic() > pruned_at + PRUNE_SECONDS and database.opened is not None:
                    pruned_at = time.monotonic()
                    _prune(database.opened)
        finally:
            database.close()

    def _next_batch(self, seconds: float) -> tuple[LedgerBatch, bool]:
        """Wait for rows, with a timeout, and take them; return also whether there will be more."""
        try:
            whole = self._handed.get(timeout=None if seconds == inf else max(seconds, 0.0))
        except queue.Empty:
            return LedgerBatch(), True
        if whole is None:
            return LedgerBatch(), False
        while len(whole) < BATCH and not self._handed.empty():
            batch = self._handed.get()
            if batch is None:
                return whole, False
            whole.take_in(batch)
        return whole, True

    def _report(self, batch: LedgerBatch, failure: str) -> None:
        if failure and failure != self._refused:
            log.error("ledger_not_written", error=failure, path=str(self.path))
        elif self._refused and not failure:
            log.warning("ledger_written_again")
        self._refused = failure
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            self._loop.call_soon_threadsafe(self._settle, batch, failure)


class _LedgerConnection:
    """The connection of a ledger's thread, opened with the first batch after its file."""

    def __init__(self, ledger: SqliteLedger) -> None:
        self.opened: sqlite3.Connection | None = None
        self._ledger = ledger

    def commit(self, batch: LedgerBatch) -> str:
        """Commit a batch; return why it could not be written, else empty."""
        if reason := self._ledger.why_not_in_use():
            return reason
        if self.opened is None:
            try:
                self.opened = open_file(self._ledger.path)
            except sqlite3.Error as failure:
                return f"{type(failure).__name__}: {failure}"
        return _commit(self.opened, batch)

    def close(self) -> None:
        """Sign the process off, and close the connection."""
        if self.opened is None and not self._ledger.away:
            self.commit(LedgerBatch())
        if self.opened is not None:
            with contextlib.suppress(sqlite3.Error):  # the next process sees that its lock is free
                self.opened.execute("DELETE FROM processes WHERE name = ?", (self._ledger.process,))
            self.opened.close()


def open_file(path: Path, patience: float = BUSY_SECONDS) -> sqlite3.Connection:
    """Open a file that is there. One that is not would be made empty, and taken for one that was emptied."""
    take_none_as_it_is()
    uri = f"{path.absolute().as_uri()}?mode=rw"
    database = sqlite3.connect(uri, timeout=patience, isolation_level=None, check_same_thread=False, uri=True)
    try:
        use_write_ahead_journal(database, patience)
        database.execute("PRAGMA synchronous = FULL")  # a commit is on the disk, not only with the operating system
    except sqlite3.Error:
        database.close()
        raise
    return database


def _has_journal(path: Path) -> bool:
    """Return whether there are rows of a ledger beside its file. Another file in its place would take them for its own."""
    journal = path.with_name(f"{path.name}-wal")
    return journal.exists() and journal.stat().st_size > 0


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
    tables = {name for [name] in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if "journal" in tables and "run_turns" not in tables:  # its name in older versions
        database.execute("ALTER TABLE journal RENAME TO run_turns")
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
            writes.append(_written(rows[at : at + ROWS], has_waited=batch.has_waited))
        writes += [(SPENT_HERE, (*place, nano)) for place, nano in batch.spending.items()]
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


def _written(rows: Sequence[tuple[Any, ...]], *, has_waited: bool) -> tuple[str, Sequence[Any]]:
    """Return the statement that writes some rows, and its values. None is among these for contents alone: the driver takes longer to
    bind one than to bind a text."""
    has_words = any(row[_NOTE] or row[_ARGUMENTS] is not None or row[_RESULT] is not None for row in rows)
    values: list[Any] = [rows[0][0]]
    for row in rows:
        values += row[1:_ENDED_AT]
        values.append(row[_ENDED_AT] or OPEN)
        if has_words:
            values += row[_NOTE:]
    return _statement(len(rows), has_words=has_words, has_waited=has_waited), values


@functools.cache
def _statement(rows: int, *, has_words: bool, has_waited: bool) -> str:
    """Return a statement for several rows, because each statement acquires the interpreter lock several times. A column that it sets
    has its index written anew, whether it is another value or not."""
    columns = CALL_COLUMNS if has_words else CALL_COLUMNS[:_NOTE]
    changing = CHANGING if has_waited else ENDING
    row = f"(?1, {'?, ' * (_ENDED_AT - 1)}nullif(?, {OPEN}){', ?' * (len(columns) - _NOTE)})"
    ended = ", ".join(f"{column} = excluded.{column}" for column in changing)
    statement = (
        f"INSERT INTO calls ({', '.join(columns)}) VALUES {', '.join([row] * rows)}"
        f" ON CONFLICT (id) DO UPDATE SET {ended} WHERE {ENDS_ONCE}"
    )
    return fill_in(statement, SQLITE_TERMS)


def _prune(database: sqlite3.Connection) -> None:
    oldest = time.time() - KEPT_SECONDS
    with contextlib.suppress(sqlite3.Error):  # tried again in an hour
        database.execute("DELETE FROM calls WHERE started_at < ? AND ended_at IS NOT NULL", (oldest,))
        database.execute("DELETE FROM spending WHERE period < ?", (time.strftime("%Y-%m", time.gmtime(oldest)),))


def _spent(database: sqlite3.Connection) -> dict[tuple[str, str], int]:
    return {
        (key, period): max(nano, 0)
        for key, period, nano in database.execute("SELECT key_name, period, nano FROM spending")
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


class _Lock(msgspec.Struct):
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
