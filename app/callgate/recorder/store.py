"""Stores recorded runs in an SQLite file of their own. Unlike the ledger it may be deleted, and a crash may lose the last writes.
All functions block on the disk: they are called by threads and the command line, never by the event loop.
"""

import contextlib
import fcntl
import os
import re
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import inf
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from callgate.conversation.usage import COLUMNS
from callgate.recorder.ended_run import EndedRun, decode_content, decoded_events, encode
from callgate.recorder.hours import Totals
from callgate.recorder.run_filter import RunFilter
from callgate.recorder.usage import KeyUsage
from callgate.recorder.usage_tables import USAGE_TABLES, HourUsage, UsageTables
from callgate.recorder.usual_run import read_usual
from callgate.records.row import USUAL_STATES, Kept, RecordedRun, RunRow, wire_turn
from callgate.state.local.journal_mode import use_write_ahead_journal
from callgate.state.local.plain_values import take_none_as_it_is
from callgate.untrusted.doors import text_written_here
from callgate.untrusted.messagepack import pack_written_here
from callgate.untrusted.readers import json_reader

SHORT_ID: Final = re.compile("[0-9a-f]{8}")
"""The end of a run's id, as lines of a terminal have it."""
SEARCHED_IDS: Final = 100_000
"""How many of the newest runs are searched for the end of an id."""
FILE: Final = "runs.sqlite3"
VERSION: Final = 5
APPLICATION: Final = 0x63675231
"""SQLite's `application_id` of the file: `cgR1`. Files of before format 1 have none, and other numbers."""
FORMATS_OF_BEFORE: Final = range(4)
WITHOUT_USUAL: Final = 4
"""The format before this one: it has no column for usual runs, and gets one when it is opened to write."""
JOURNAL_PAGES: Final = 4000
"""The length of the journal at which it goes into the file, 16 MB: a tenth of the time of writing less than with SQLite's 1000,
because pages that change often are copied less often."""
BUSY_SECONDS: Final = 5.0
QUERY_SECONDS: Final = 1.0
"""Longer queries are aborted, so that one with an inefficient filter does not block other readers."""
USAGE_SECONDS: Final = 5.0
"""The same for sums of usage, which read all rows of a time."""
ROWS: Final = 64
"""The most rows of one statement: each statement takes the GIL from the event loop. Statements have powers of two of rows, so that
SQLite compiles only a few of them."""
WIRE_RUNS: Final = 50
"""Runs whose raw bodies are removed in one transaction, which has their texts in memory."""
BATCH_RUNS: Final = 500
"""Runs that are removed together, so that writers do not wait long for the end of a transaction."""
REPLAYS: Final = 256
"""The most replays of a run that are returned."""
CHECKED_BYTES: Final = 64 * 1024 * 1024
"""A file up to this size is read whole when the server starts, to see whether it is damaged: a tenth of a second."""
DAMAGE: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
ROW_BYTES: Final = 512
"""About what a run takes in the file beside its events and texts."""

_TOKEN_COLUMNS: Final = " ".join(f"{name} INTEGER NOT NULL," for name in COLUMNS)
_TABLES: Final = f"""
CREATE TABLE IF NOT EXISTS runs (
  seq INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  began REAL NOT NULL,
  model TEXT NOT NULL,
  request_id TEXT NOT NULL,
  process TEXT NOT NULL,
  route TEXT NOT NULL,
  key TEXT NOT NULL,
  end_user TEXT NOT NULL,
  deployment TEXT NOT NULL,
  stream INTEGER NOT NULL,
  choices INTEGER NOT NULL DEFAULT 1,
  state TEXT NOT NULL,
  status INTEGER NOT NULL,
  finish_reason TEXT NOT NULL,
  note TEXT NOT NULL DEFAULT '',
  error TEXT NOT NULL DEFAULT '',
  seconds REAL,
  first_seconds REAL,
  turns INTEGER NOT NULL,
  calls INTEGER NOT NULL,
  failed_calls INTEGER NOT NULL DEFAULT 0,
  broken_calls INTEGER NOT NULL DEFAULT 0,
  attempts INTEGER NOT NULL,
  findings TEXT NOT NULL DEFAULT '[]',
  tools TEXT NOT NULL,
  outcomes TEXT NOT NULL,
  question TEXT NOT NULL DEFAULT '',
  {_TOKEN_COLUMNS}
  cost REAL,
  trace_id TEXT NOT NULL DEFAULT '',
  parent_span TEXT NOT NULL DEFAULT '',
  replay_of TEXT NOT NULL DEFAULT '',
  kept TEXT NOT NULL DEFAULT 'nothing',
  odd INTEGER NOT NULL DEFAULT 0,
  bytes INTEGER NOT NULL,
  has_wire INTEGER NOT NULL DEFAULT 0,
  events BLOB NOT NULL,
  content BLOB,
  usual BLOB
) STRICT;
CREATE INDEX IF NOT EXISTS runs_by_time ON runs (began);
CREATE INDEX IF NOT EXISTS runs_by_model ON runs (model, began);
CREATE INDEX IF NOT EXISTS runs_by_key ON runs (key, began);
CREATE INDEX IF NOT EXISTS runs_by_state ON runs (state, began) WHERE state <> 'answered';
CREATE INDEX IF NOT EXISTS runs_odd ON runs (began) WHERE odd;
CREATE INDEX IF NOT EXISTS runs_odd_by_key ON runs (key, state, began) WHERE odd;
CREATE INDEX IF NOT EXISTS runs_odd_by_model ON runs (model, state, began) WHERE odd;
CREATE INDEX IF NOT EXISTS runs_with_content ON runs (began) WHERE content IS NOT NULL;
CREATE INDEX IF NOT EXISTS runs_with_wire ON runs (began) WHERE has_wire;
CREATE INDEX IF NOT EXISTS replays ON runs (replay_of, began) WHERE replay_of <> '';
CREATE TABLE IF NOT EXISTS totals (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;
{USAGE_TABLES}
INSERT OR IGNORE INTO totals VALUES ('bytes', 0);
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {VERSION};
"""  # noqa: S608 - our own names
_TO_THIS_FORMAT: Final = f"""
BEGIN IMMEDIATE;
ALTER TABLE runs ADD COLUMN usual BLOB;
PRAGMA user_version = {VERSION};
COMMIT;
"""
_FACTS: Final = RunRow.__struct_fields__
_FACT_COLUMNS: Final = ", ".join(_FACTS)
_FINDINGS: Final = _FACTS.index("findings")
_TOOLS: Final = _FACTS.index("tools")
_OUTCOMES: Final = _FACTS.index("outcomes")
_NOT_PLAIN: Final = ("stream", "findings", "tools", "outcomes", "kept")
"""Facts that are no numbers or texts as they are."""
_PLAIN: Final = tuple(name for name in _FACTS if name not in _NOT_PLAIN)
_plain = attrgetter(*_PLAIN)
_USUAL_COLUMNS: Final = {
    **dict.fromkeys(("id", "began", "model", "key", "state", "bytes", "usual"), "?"),
    **dict.fromkeys(("request_id", "process", "route", "end_user", "deployment", "finish_reason"), "''"),
    **dict.fromkeys(("stream", "status", "turns", "calls", "attempts", *COLUMNS), "0"),
    "tools": "'[]'",
    "outcomes": "'{}'",
    "events": "x''",
}
"""The columns of a usual run, and their values: what lists look for, and the whole run. Each value that is bound to a statement takes
time."""
_ALL_COLUMNS: Final = dict.fromkeys((*_PLAIN, *_NOT_PLAIN, "odd", "bytes", "has_wire", "events", "content"), "?")
"""The columns of any other."""
_json = msgspec.json.Encoder().encode
_names = json_reader(list[str])
_outcomes = json_reader(dict[str, dict[str, int]])


Result = TypeVar("Result")


class StoreUnusable(Exception):
    """The file cannot be opened, read or written; the text gives the reason."""


class StoreDamaged(StoreUnusable):
    """The file is not a database any more."""


class RunStore:
    """The file of runs in a folder. Each thread needs its own instance."""

    def __init__(self, folder: Path, *, read_only: bool = False) -> None:
        self.path = folder / FILE
        self._usual = "usual"
        """The column of usual runs, or what stands for it."""
        try:
            if read_only:
                self._database = self._opened_to_read()
            else:
                with _locked(folder):  # SQLite does not wait when two change the journal of a new file
                    self._database = self._opened_to_write()
            self.inode = self.path.stat().st_ino
            self._usage_tables = UsageTables(self._database)
        except (sqlite3.Error, OSError) as error:
            raise _unusable(self.path, error) from error

    def _opened_to_read(self) -> sqlite3.Connection:
        address = f"{self.path.absolute().as_uri()}?mode=ro"
        database = sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
        if not _is_empty(database):
            if self._check_format(database) == WITHOUT_USUAL:
                self._usual = "NULL"
            return database
        database.close()
        empty = sqlite3.connect(":memory:", isolation_level=None)
        empty.executescript(_TABLES)
        return empty

    def _opened_to_write(self) -> sqlite3.Connection:
        self.path.touch(mode=0o600)
        take_none_as_it_is()
        database = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None)
        is_new = _is_empty(database)
        if is_new:
            database.execute("PRAGMA auto_vacuum = INCREMENTAL")
        elif self._check_format(database) == WITHOUT_USUAL:
            database.executescript(_TO_THIS_FORMAT)
        use_write_ahead_journal(database, BUSY_SECONDS)
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute(f"PRAGMA wal_autocheckpoint = {JOURNAL_PAGES}")
        database.execute("PRAGMA secure_delete = FAST")
        if is_new:
            database.executescript(f"BEGIN IMMEDIATE; {_TABLES} COMMIT;")
        return database

    def _check_format(self, database: sqlite3.Connection) -> int:
        """Return the format. Raises `StoreUnusable` for one that is not read here."""
        version, is_older = _format_of(database)
        if is_older:
            database.close()
            raise StoreUnusable(f"{self.path}: was written by an earlier version of Callgate; a server sets it aside")
        if version not in (WITHOUT_USUAL, VERSION):
            database.close()
            why = f"was written by another version of Callgate (format {version}); move it away, and runs go into a new one"
            raise StoreUnusable(f"{self.path}: {why}")
        return version

    def is_in_place(self) -> bool:
        """Return False if the file was removed or replaced."""
        try:
            return self.path.stat().st_ino == self.inode
        except OSError:
            return False

    def close(self) -> None:
        self._database.close()

    # -- writing

    def add(self, runs: Sequence[EndedRun]) -> None:
        """Write ended runs. A run that has a row already is not changed."""
        usual: list[Any] = []
        others: list[Any] = []
        size = 0
        for run in runs:
            row = run.begun
            if run.usual and not row.replay_of and row.state in USUAL_STATES:
                bytes = ROW_BYTES + len(run.usual)
                # sqlite3 takes plain strings, integers and byte arrays as they are, and looks for an adapter for all others.
                usual += (row.id, row.began, row.model, row.key, row.state, bytes, bytearray(run.usual))
            else:
                bytes = self._add_values(run, others)
            size += bytes
        with self._translate_errors(), self._transaction():
            [last] = self._database.execute("SELECT coalesce(max(seq), 0) FROM runs").fetchone()
            changes = self._database.total_changes
            self._insert(_USUAL_COLUMNS, usual)
            self._insert(_ALL_COLUMNS, others)
            if self._database.total_changes - changes != len(runs):  # some had a row already
                [size] = self._database.execute("SELECT total(bytes) FROM runs WHERE seq > ?", (last,)).fetchone()
            self._add_to_total(int(size))

    def _add_values(self, run: EndedRun, values: list[Any]) -> int:
        """Add the values of a run's columns, and return about how many bytes it takes in the file."""
        row, events = run.read()
        content = None
        bytes = ROW_BYTES + len(events)
        if run.content:
            content = zlib.compress(run.content, 1)
            bytes += len(content)
        values += _plain(row)
        values += (int(row.stream), _names_text(row.findings), _names_text(row.tools), _outcomes_text(row.outcomes))
        values += (str(row.kept), int(row.is_odd), bytes, int(run.has_wire), bytearray(events), content)
        return bytes

    def _insert(self, columns: Mapping[str, str], values: Sequence[Any]) -> None:
        # One statement for many rows: each releases the GIL and takes it again.
        row = f"({', '.join(columns.values())})"
        bound = row.count("?")
        at = 0
        while rows := (len(values) - at) // bound:
            rows = min(ROWS, 1 << (rows.bit_length() - 1))
            end = at + rows * bound
            self._database.execute(_insertion(", ".join(columns), row, rows), values[at:end])
            at = end

    def count(
        self,
        used: Iterable[KeyUsage],
        used_in_hours: Mapping[HourUsage, KeyUsage],
        totals: Mapping[int, Totals],
    ) -> None:
        """Add usage, and the totals of hours. Several processes may add to the same rows."""
        with self._translate_errors(), self._transaction():
            self._usage_tables.add(used, used_in_hours, totals)

    def delete(self, id: str) -> bool:
        """Delete a run; False if there is none with this id."""
        with self._translate_errors(), self._transaction():
            return self._delete("id = ?", (id,)) > 0

    def _delete(self, where: str, values: Sequence[Any]) -> int:
        """Delete the runs of a condition, and return how many."""
        sizes = self._database.execute(f"DELETE FROM runs WHERE {where} RETURNING bytes", values).fetchall()  # noqa: S608 - constants
        self._add_to_total(-sum(size for [size] in sizes))
        return len(sizes)

    def prune(self, *, older_than: float, most_bytes: int, wire_older_than: float = -inf) -> int:
        """Remove runs that are too old, then the oldest texts, then the oldest runs, until the file is small enough.

        `wire_older_than`: raw bodies of providers' responses are removed from runs that began earlier."""
        removed = 0
        with self._translate_errors():
            while oldest := self._remove_oldest(older_than):
                removed += oldest
            while self._remove_wire(wire_older_than):
                pass
            self._usage_tables.prune(time.time())
            while self.bytes() > most_bytes and self._remove_oldest_content():
                pass
            while self.bytes() > most_bytes and (oldest := self._remove_oldest(inf)):
                removed += oldest
        with contextlib.suppress(sqlite3.Error):  # another process may be reading; retried in an hour
            self._database.execute("PRAGMA incremental_vacuum(500)").fetchall()
        return removed

    def _remove_oldest(self, older_than: float) -> int:
        """Remove some of the oldest runs, and return how many."""
        with self._transaction():
            some = "seq IN (SELECT seq FROM runs WHERE began < ? ORDER BY began LIMIT ?)"
            return self._delete(some, (older_than, BATCH_RUNS))

    def _remove_wire(self, older_than: float) -> int:
        """Remove the raw bodies of some runs, and return of how many."""
        with self._transaction():
            bodies = self._database.execute(
                "SELECT seq, content FROM runs WHERE has_wire AND began < ? ORDER BY began LIMIT ?",
                (older_than, WIRE_RUNS),
            ).fetchall()
            for seq, body in bodies:
                remaining = _without_wire(body)
                self._database.execute(
                    "UPDATE runs SET content = ?, has_wire = 0, bytes = bytes - ? WHERE seq = ?",
                    (remaining, len(body) - len(remaining), seq),
                )
                self._add_to_total(len(remaining) - len(body))
        return len(bodies)

    def _remove_oldest_content(self) -> int:
        """Remove the texts of some runs, and return of how many."""
        some = "seq IN (SELECT seq FROM runs WHERE content IS NOT NULL ORDER BY began LIMIT ?)"
        with self._transaction():
            sizes = self._database.execute(f"SELECT length(content) FROM runs WHERE {some}", (BATCH_RUNS,)).fetchall()  # noqa: S608
            self._database.execute(
                f"UPDATE runs SET content = NULL, question = '', has_wire = 0, kept = ?, bytes = bytes - length(content) WHERE {some}",  # noqa: S608
                (Kept.AGED_OUT.value, BATCH_RUNS),
            )
            self._add_to_total(-sum(size for [size] in sizes))
        return len(sizes)

    def _add_to_total(self, bytes: int) -> None:
        """Update the stored total of bytes, because summing them would read the whole file."""
        self._database.execute("UPDATE totals SET value = value + ? WHERE name = 'bytes'", (bytes,))

    def bytes(self) -> int:
        """Return about how many bytes the runs take."""
        [total] = self._database.execute("SELECT value FROM totals WHERE name = 'bytes'").fetchone()
        return int(total)

    # -- reading

    def page(self, run_filter: RunFilter, count: int) -> list[RunRow]:
        """Return the newest runs of a filter, or the oldest where it says so. The next page begins behind the last run of this one.
        Damaged rows are left out."""
        rows: list[RunRow] = []
        with self._time_limit():
            while len(rows) < count:
                where, values = run_filter.where()
                selected = self._database.execute(
                    f"SELECT {_FACT_COLUMNS}, {self._usual} FROM runs WHERE {where} ORDER BY {run_filter.order()} LIMIT ?",  # noqa: S608 - constants
                    [*values, count - len(rows)],
                ).fetchall()
                if not selected:
                    break
                rows += _readable_rows(selected)
                last_id, last_began = selected[-1][:2]
                run_filter = msgspec.structs.replace(run_filter, before=last_began, before_id=last_id)
        return rows

    def texts(self, ids: Sequence[str]) -> dict[str, Mapping[str, str]]:
        """Return the texts of runs, as far as they are kept. Damaged ones are left out."""
        places = ", ".join("?" * len(ids))
        texts: dict[str, Mapping[str, str]] = {}
        with self._time_limit():
            selected = self._database.execute(
                f"SELECT id, content FROM runs WHERE id IN ({places}) AND content IS NOT NULL",  # noqa: S608 - question marks
                ids,
            )
            for id, content in selected:
                with contextlib.suppress(msgspec.DecodeError, zlib.error, UnicodeDecodeError):
                    texts[id] = decode_content(pack_written_here(zlib.decompress(content)))
        return texts

    def id_ending(self, end: str) -> str | None:
        """Return the id of the newest run that ends so, among the newest."""
        with self._time_limit():
            found = self._database.execute(
                "SELECT id FROM (SELECT seq, id FROM runs ORDER BY seq DESC LIMIT ?) WHERE id GLOB ? ORDER BY seq DESC LIMIT 1",
                (SEARCHED_IDS, f"*{end}"),
            ).fetchone()
        if found is None:
            return None
        return str(found[0])

    def get(self, id: str) -> RecordedRun | None:
        """Return a run by its id, or by the end of it."""
        if SHORT_ID.fullmatch(id):
            id = self.id_ending(id) or id
        with self._time_limit():
            selected = self._database.execute(
                f"SELECT {_FACT_COLUMNS}, {self._usual}, events, content FROM runs WHERE id = ?",  # noqa: S608 - constants
                (id,),
            ).fetchone()
            if selected is None:
                return None
            *facts, usual, events, content = selected
            if usual is not None:
                return EndedRun(RunRow(id, 0.0), b"", b"", usual=usual).recorded()
            texts: Mapping[str, str] = {}
            if content is not None:
                texts = decode_content(pack_written_here(zlib.decompress(content)))
            return RecordedRun(_row(facts), decoded_events(events), texts)

    def replays_of(self, id: str) -> list[RunRow]:
        """Return the replays of a run."""
        with self._time_limit():
            selected = self._database.execute(
                f"SELECT {_FACT_COLUMNS}, {self._usual} FROM runs WHERE replay_of = ? AND replay_of <> '' ORDER BY began DESC LIMIT ?",  # noqa: S608
                (id, REPLAYS),
            ).fetchall()
        return _readable_rows(selected)

    def usage(self, since: str) -> list[KeyUsage]:
        """Return the usage from a day on."""
        return self.read_usage(lambda tables: tables.usage(since))

    def read_usage(self, read: Callable[[UsageTables], Result]) -> Result:
        """Read from the tables of usage."""
        with self._time_limit(USAGE_SECONDS):
            return read(self._usage_tables)

    # -- both

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:  # SQLite ends it by itself where a disk is full
                self._database.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def _time_limit(self, seconds: float = QUERY_SECONDS) -> Iterator[None]:
        end = time.monotonic() + seconds
        self._database.set_progress_handler(lambda: time.monotonic() > end, 10_000)
        try:
            with self._translate_errors():
                yield
        finally:
            self._database.set_progress_handler(None, 0)

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise _unusable(self.path, error) from error
        except (msgspec.DecodeError, zlib.error, UnicodeDecodeError) as error:
            why = f"a run in {FILE} is damaged, or was written by another version of Callgate ({error})"
            raise StoreUnusable(why) from error


def _unusable(path: Path, error: sqlite3.Error | OSError) -> StoreUnusable:
    why = f"{path}: {error}"
    if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT:
        why = f"{path}: reading took too long; ask for a shorter time, or for less"
    if isinstance(error, sqlite3.Error) and _is_damage(error):
        return StoreDamaged(why)
    return StoreUnusable(why)


def _is_damage(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in DAMAGE


def _names_text(names: Sequence[str]) -> str:
    if not names:
        return "[]"
    return _json(names).decode()


def _outcomes_text(outcomes: Mapping[str, Mapping[str, int]]) -> str:
    if not outcomes:
        return "{}"
    return _json(outcomes).decode()


def _row(facts: Sequence[Any]) -> RunRow:
    """Return a run's row from its columns."""
    row = RunRow(*facts)
    row.stream = bool(row.stream)
    row.findings = _names(text_written_here(facts[_FINDINGS]))
    row.tools = _names(text_written_here(facts[_TOOLS]))
    row.outcomes = _outcomes(text_written_here(facts[_OUTCOMES]))
    row.kept = Kept(row.kept)
    return row


def _readable_rows(selected: Iterable[Sequence[Any]]) -> list[RunRow]:
    rows: list[RunRow] = []
    for *facts, usual in selected:
        with contextlib.suppress(msgspec.DecodeError, ValueError):
            rows.append(_row(facts) if usual is None else read_usual(usual).row)
    return rows


def _without_wire(body: bytes) -> bytes:
    """Return stored texts without raw bodies of providers; damaged ones as they are."""
    try:
        texts = decode_content(pack_written_here(zlib.decompress(body)))
    except (msgspec.DecodeError, zlib.error):
        return body
    return zlib.compress(encode({part: text for part, text in texts.items() if wire_turn(part) is None}), 1)


@lru_cache(maxsize=64)
def _insertion(columns: str, row: str, rows: int) -> str:
    return f"INSERT OR IGNORE INTO runs ({columns}) VALUES {', '.join([row] * rows)}"  # noqa: S608 - constants


def _is_empty(database: sqlite3.Connection) -> bool:
    """Return whether a file has no tables, as one that was just made."""
    return not database.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()


def _format_of(database: sqlite3.Connection) -> tuple[int, bool]:
    """Return the format of a file, and whether it is one of before this format."""
    [application] = database.execute("PRAGMA application_id").fetchone()
    [version] = database.execute("PRAGMA user_version").fetchone()
    if application == APPLICATION:
        return version, 0 < version < WITHOUT_USUAL
    return version, version in FORMATS_OF_BEFORE


def set_aside_older(folder: Path) -> Path | None:
    """Rename a file of before this format, and return its new path; None if there is none. Raises `StoreUnusable` while another
    process has it open."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        with _locked(folder), contextlib.closing(_opened_if_there(path)) as database:
            version, is_older = _format_of(database)
            if _is_empty(database) or not is_older:
                return None
            database.execute("PRAGMA journal_mode = DELETE")  # what is in its journal goes into the file
            database.close()
            aside = _unused(folder, f"runs-format-{version}")
            path.rename(aside)
    except (sqlite3.Error, OSError) as error:
        raise _unusable(path, error) from error
    return aside


def set_aside_damaged(folder: Path, inode: int | None = None) -> Path | None:
    """Rename a damaged file together with its journal, and return its new path; None if it is whole. `inode`: of a file whose
    damage is known. Raises `StoreUnusable` where it cannot be read or renamed."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        with _locked(folder):
            if path.stat().st_ino != inode and not _is_damaged(path):
                return None
            aside = _unused(folder, "runs-damaged")
            # Its journal would be read as that of the next file.
            for end in ("-wal", "-shm", ""):
                with contextlib.suppress(FileNotFoundError):
                    path.with_name(path.name + end).rename(aside.with_name(aside.name + end))
    except (sqlite3.Error, OSError) as error:
        raise _unusable(path, error) from error
    return aside


def _is_damaged(path: Path) -> bool:
    try:
        with contextlib.closing(_opened_if_there(path)) as database:
            if path.stat().st_size > CHECKED_BYTES:
                database.execute("SELECT * FROM sqlite_master").fetchall()
                return False
            return database.execute("PRAGMA quick_check(1)").fetchall() != [("ok",)]
    except sqlite3.Error as error:
        if _is_damage(error):
            return True
        raise


def _opened_if_there(path: Path) -> sqlite3.Connection:
    address = f"{path.absolute().as_uri()}?mode=rw"
    return sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS, isolation_level=None)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder, so that one process at a time makes its file, or sets one aside."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _unused(folder: Path, name: str) -> Path:
    """Return a path for a file that does not exist yet."""
    paths = (folder / f"{name}{number}.sqlite3" for number in ("", *(f"-{number}" for number in range(2, 1000))))
    return next(path for path in paths if not path.exists())
