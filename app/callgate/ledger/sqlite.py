"""The ledger in a file (SQLite, write-ahead log). One thread writes, in batches; nobody else waits for the disk.

A start that may change the world is on the disk before the tool begins. After a crash the rows that still say `started`
belong to a process that is gone: each process holds a lock file for as long as it lives, and whoever opens the ledger next
marks the rows of those whose lock is free as `unknown`.
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, Final

import structlog

from callgate.ledger.entry import LedgerEntry, NotRecorded, RunState

FILE: Final = "ledger.sqlite3"
SOON_SECONDS: Final = 0.02
"""How long what nobody waits for may lie in memory. A commit costs far more than what is in it."""
BATCH: Final = 500
"""Rows from which on a transaction takes in no more, so that nobody waits long for its end."""
ROWS: Final = 32
"""Rows of one statement at most."""
BACKLOG: Final = 20_000
"""Rows that may wait to be written. Beyond it everyone waits: the disk is slower than we are."""
KEPT_SECONDS: Final = 30 * 86_400
PRUNE_SECONDS: Final = 3600
BUSY_SECONDS: Final = 5.0

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS runs (
  id TEXT PRIMARY KEY,
  process TEXT NOT NULL,
  run_id TEXT NOT NULL,
  turn INTEGER NOT NULL,
  call_id TEXT NOT NULL,
  tool TEXT NOT NULL,
  arguments_hash TEXT NOT NULL,
  key_name TEXT NOT NULL,
  writes INTEGER NOT NULL,
  started_at REAL NOT NULL,
  ended_at REAL,
  state TEXT NOT NULL CHECK (state IN ('waiting', 'started', 'done', 'failed', 'unknown')),
  note TEXT NOT NULL DEFAULT '',
  arguments TEXT,
  result TEXT
) STRICT;
CREATE INDEX IF NOT EXISTS runs_by_start ON runs (started_at);
CREATE INDEX IF NOT EXISTS runs_open ON runs (process) WHERE ended_at IS NULL;
CREATE TABLE IF NOT EXISTS spending (
  key_name TEXT NOT NULL,
  period TEXT NOT NULL,
  nano INTEGER NOT NULL,
  PRIMARY KEY (key_name, period)
) STRICT;
"""

_COLUMNS: Final = (
    "id", "process", "run_id", "turn", "call_id", "tool", "arguments_hash", "key_name", "writes", "started_at", "arguments",
    "state", "ended_at", "note", "result",
)  # fmt: skip
_CHANGING: Final = ("started_at", "state", "ended_at", "note", "result")
_SPENT: Final = "INSERT INTO spending VALUES (?1, ?2, max(0, ?3)) ON CONFLICT (key_name, period) DO UPDATE SET nano = max(0, nano + ?3)"

log = structlog.get_logger("callgate.ledger")


@dataclass(slots=True)
class _Batch:
    """What is handed to the thread at once."""

    runs: "dict[str, tuple[Any, ...]]" = field(default_factory=dict)
    """The newest row of each run: one that began and ended since the last batch is written once."""
    spending: "list[tuple[str, str, int]]" = field(default_factory=list)
    waiting: "list[asyncio.Future[None]]" = field(default_factory=list)
    """Of those who wait for it to be on the disk."""

    def __len__(self) -> int:
        return len(self.runs) + len(self.spending)

    def take_in(self, later: "_Batch") -> None:
        self.runs |= later.runs
        self.spending += later.spending
        self.waiting += later.waiting


class DamagedLedger(ValueError):
    """The file is there, and is no ledger that can be read."""


def check_ledger(folder: Path) -> None:
    """Raise `DamagedLedger` where the ledger of a folder cannot be read. Changes nothing."""
    path = folder / FILE
    if path.exists() and path.stat().st_size:
        try:
            with contextlib.closing(
                sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", timeout=BUSY_SECONDS, uri=True)
            ) as it:
                _spent(it)
                it.execute("SELECT count(*) FROM runs WHERE state = 'started'").fetchone()
        except sqlite3.OperationalError:
            return  # a lock, a folder that may not be written, a table that is still to be made: nothing is damaged
        except sqlite3.DatabaseError as error:
            raise _damaged(path, error) from error


def _damaged(path: Path, error: sqlite3.Error) -> DamagedLedger:
    return DamagedLedger(
        f"{path} cannot be read as a ledger ({error}): put back a copy of it, or move it away to start an empty one"
    )


class SqliteLedger:
    """The file of one folder; belongs to the event loop it was opened in."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.process = secrets.token_hex(8)
        self._path = folder / FILE
        self._lock = _Lock.take(folder, self.process)
        self._loop = asyncio.get_running_loop()
        self._next = _Batch()
        self._is_urgent = False
        self._timer: asyncio.TimerHandle | None = None
        self._handed: queue.SimpleQueue[_Batch | None] = queue.SimpleQueue()
        self._behind = 0
        self._refused = ""
        try:
            self._path.touch(mode=0o600)
            with contextlib.closing(_opened(self._path)) as database:
                database.executescript(_TABLES)
                _bring_up_to_date(database)
                self.found_unknown = _mark_unfinished(database, folder)
                self._spent = _spent(database)
        except (sqlite3.Error, OSError) as error:
            self._lock.release()
            raise _damaged(self._path, error) if isinstance(error, sqlite3.Error) else error from error
        self._thread = threading.Thread(target=self._write_all, name="ledger", daemon=True)
        self._thread.start()

    @property
    def spent(self) -> Mapping[tuple[str, str], int]:
        """What each key had spent in each period when the ledger was opened, in nanodollars."""
        return self._spent

    def wait(self, entry: LedgerEntry) -> None:
        self._next.runs[entry.id] = self._row(entry, RunState.WAITING)
        self._soon()

    async def start(self, entry: LedgerEntry) -> None:
        self._next.runs[entry.id] = self._row(entry, RunState.STARTED)
        if entry.writes or self._behind > BACKLOG:
            await self._written()
        else:
            self._soon()

    def end(self, entry: LedgerEntry, state: RunState, note: str = "", result: str | None = None) -> None:
        self._next.runs[entry.id] = self._row(entry, state, time.time(), note, result)
        self._soon()

    def remember_spending(self, key_name: str, period: str, nano: int) -> None:
        """Add to what a key has spent in a period, soon. Several processes may add to the same."""
        self._next.spending.append((key_name, period, nano))
        self._soon()

    async def close(self) -> None:
        """Write what waits, and let go of the file. The thread ends by itself even if nobody waits for it."""
        if self._timer is not None:
            self._timer.cancel()
        self._hand_over()
        self._handed.put(None)
        while self._thread.is_alive():  # noqa: ASYNC110 - a thread has no event of the loop's to set after its last step
            await asyncio.sleep(0.005)
        self._lock.release()

    def _row(
        self,
        entry: LedgerEntry,
        state: RunState,
        ended_at: float | None = None,
        note: str = "",
        result: str | None = None,
    ) -> tuple[Any, ...]:
        """In the order of `_COLUMNS`."""
        return (
            entry.id,
            self.process,
            entry.run_id,
            entry.turn,
            _writable(entry.call_id),
            entry.tool,
            entry.arguments_hash,
            entry.key_name,
            entry.writes,
            entry.started_at,
            _writable(entry.arguments),
            state.value,
            ended_at,
            note,
            _writable(result),
        )

    # -- from the loop to the thread

    async def _written(self) -> None:
        """Wait until all that has come so far is on the disk. Who asks in one turn of the loop is written together."""
        done: asyncio.Future[None] = self._loop.create_future()
        self._next.waiting.append(done)
        if not self._is_urgent:
            self._is_urgent = True
            self._loop.call_soon(self._hand_over)
        await done

    def _soon(self) -> None:
        """What nobody waits for goes with the next that somebody does, or when it has waited long enough."""
        if self._timer is None:
            self._timer = self._loop.call_later(SOON_SECONDS, self._time_is_up)

    def _time_is_up(self) -> None:
        self._timer = None
        self._hand_over()

    def _hand_over(self) -> None:
        self._is_urgent = False
        batch = self._next
        if batch or batch.waiting:
            self._next = _Batch()
            self._behind += len(batch)
            self._handed.put(batch)

    def _settle(self, batch: _Batch, failure: str) -> None:
        self._behind -= len(batch)
        for done in batch.waiting:
            if done.done():
                continue
            if failure:
                done.set_exception(NotRecorded(failure))
            else:
                done.set_result(None)

    # -- in the thread

    def _write_all(self) -> None:
        database = _opened(self._path)
        pruned_at = -inf
        try:
            open_ = True
            while open_:
                batch, open_ = self._next_batch()
                failure = _commit(database, batch)
                self._report(batch, failure)
                if time.monotonic() > pruned_at + PRUNE_SECONDS:
                    pruned_at = time.monotonic()
                    _prune(database)
        finally:
            database.close()

    def _next_batch(self) -> tuple[_Batch, bool]:
        """What waits, and whether there will be more. Waits for the first."""
        whole = _Batch()
        while len(whole) < BATCH:
            try:
                batch = self._handed.get(block=not (whole or whole.waiting))
            except queue.Empty:
                break
            if batch is None:
                return whole, False
            whole.take_in(batch)
        return whole, True

    def _report(self, batch: _Batch, failure: str) -> None:
        if failure and failure != self._refused:
            log.error("ledger_not_written", error=failure, path=str(self._path))
        self._refused = failure
        with contextlib.suppress(RuntimeError):  # the loop has ended, and with it whoever waited
            self._loop.call_soon_threadsafe(self._settle, batch, failure)


def _opened(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")  # a commit is on the disk, not only with the operating system
    return database


def _bring_up_to_date(database: sqlite3.Connection) -> None:
    """Let the table of an older version take runs that wait; SQLite changes a check by copying the table."""
    [definition] = database.execute("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = 'runs'").fetchone()
    if "'waiting'" not in definition:
        database.executescript(
            "BEGIN IMMEDIATE; DROP INDEX IF EXISTS runs_by_start; DROP INDEX IF EXISTS runs_under_way;"  # noqa: S608 - our own words
            f"DROP INDEX IF EXISTS runs_open; ALTER TABLE runs RENAME TO older; {_TABLES}"
            "INSERT INTO runs SELECT * FROM older; DROP TABLE older; COMMIT;"
        )


def _commit(database: sqlite3.Connection, batch: _Batch) -> str:
    """Why it could not be written, or nothing."""
    try:
        rows = list(batch.runs.values())
        writes = [_rows_written(rows[at : at + ROWS]) for at in range(0, len(rows), ROWS)]
        writes += [(_SPENT, values) for values in batch.spending]
        if len(writes) > 1:
            database.execute("BEGIN IMMEDIATE")
        for statement, values in writes:
            database.execute(statement, values)
        if len(writes) > 1:
            database.execute("COMMIT")
    except Exception as failure:  # noqa: BLE001 - whatever it is, whoever waits must be woken and the thread go on
        with contextlib.suppress(sqlite3.Error):
            database.execute("ROLLBACK")
        return f"{type(failure).__name__}: {failure}"
    return ""


def _rows_written(rows: Sequence[tuple[Any, ...]]) -> tuple[str, Sequence[Any]]:
    return _statement(len(rows)), [value for row in rows for value in row]


@functools.cache
def _statement(rows: int) -> str:
    """Several rows in one statement: each takes the interpreter's lock from the event loop and gives it back several times."""
    row = f"({', '.join('?' * len(_COLUMNS))})"
    ended = ", ".join(f"{column} = excluded.{column}" for column in _CHANGING)
    return (
        f"INSERT INTO runs ({', '.join(_COLUMNS)}) VALUES {', '.join([row] * rows)}"  # noqa: S608 - our own words
        f" ON CONFLICT (id) DO UPDATE SET {ended}"
    )


def _prune(database: sqlite3.Connection) -> None:
    oldest = time.time() - KEPT_SECONDS
    with contextlib.suppress(sqlite3.Error):  # tried again in an hour
        database.execute("DELETE FROM runs WHERE started_at < ? AND ended_at IS NOT NULL", (oldest,))
        database.execute("DELETE FROM spending WHERE period < ?", (time.strftime("%Y-%m", time.gmtime(oldest)),))


def _spent(database: sqlite3.Connection) -> dict[tuple[str, str], int]:
    return {
        (key, period): nano for key, period, nano in database.execute("SELECT key_name, period, nano FROM spending")
    }


def _mark_unfinished(database: sqlite3.Connection, folder: Path) -> int:
    """Runs of processes that are gone, whose end nobody saw. How many there were."""
    found = 0
    for [process] in database.execute("SELECT DISTINCT process FROM runs WHERE ended_at IS NULL").fetchall():
        if _Lock.is_free(folder, process):
            database.execute(
                "UPDATE runs SET state = 'failed', ended_at = ?, note = 'never begun: the process ended first'"
                " WHERE process = ? AND state = 'waiting'",
                (time.time(), process),
            )
            found += database.execute(
                "UPDATE runs SET state = 'unknown', ended_at = ?, note = 'the process ended first'"
                " WHERE process = ? AND state = 'started'",
                (time.time(), process),
            ).rowcount
    _Lock.sweep(folder)
    return found


def _writable(text: str | None) -> str | None:
    """SQLite takes UTF-8, and a model may write half of a pair."""
    return None if text is None else text.encode(errors="replace").decode()


def is_gone(folder: Path, process: str) -> bool:
    """Whether the process of a ledger in this folder has ended, however it ended."""
    return _Lock.is_free(folder, process)


@dataclass(slots=True)
class _Lock:
    """A process of ours lives for as long as its lock file is locked, however it ends."""

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
        """Remove the lock files of processes that are gone."""
        for path in _locks(folder):
            if _is_free(path):
                path.unlink(missing_ok=True)


def _lock_path(folder: Path, process: str) -> Path:
    return folder / f"process-{process}.lock"


def _locks(folder: Path) -> Iterator[Path]:
    return folder.glob("process-*.lock")


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
