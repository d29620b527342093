"""Stores recorded runs in an SQLite file of their own. Unlike the ledger it may be deleted, and a crash may lose the last writes.
All functions block on the disk: they are called by threads and the command line, never by the event loop.
"""

import contextlib
import sqlite3
import time
import zlib
from bisect import insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import Any, Final

import msgspec

from callgate.recorder.chunks import (
    CHUNK_RUNS,
    Chunk,
    chunked,
    decode_chunk,
    end_of_period,
    period_of_id,
)
from callgate.recorder.packed import (
    COMPRESSED_FROM,
    KeptRun,
    PackedRun,
    content_in_file,
    decode_row,
    encode,
    recording_in_file,
    row_in_file,
    stored_content,
)
from callgate.recorder.row import USUAL_STATES, Kept, KeyUsage, Recording, RunRow, wire_turn

FILE: Final = "runs.sqlite3"
VERSION: Final = 3
READABLE: Final = frozenset({0, 1, 2, VERSION})
"""The formats that can be read; new rows are written in the newest. 1 had events with field names, and 1 and 2 had no chunks."""
BUSY_SECONDS: Final = 5.0
QUERY_SECONDS: Final = 1.0
"""Longer queries are aborted, so that one with an inefficient filter does not block other readers."""
ROWS: Final = 256
"""The most rows of one statement: each statement takes the GIL from the event loop. Statements have powers of two of rows, so that
SQLite compiles only a few of them."""
WIRE_RUNS: Final = 50
"""Runs whose raw bodies are removed in one transaction, which has their texts in memory."""
BATCH_RUNS: Final = 500
"""Runs that are removed or read together, so that writers do not wait long for the end of a transaction."""
USAGE_DAYS: Final = 400
"""How long usage is kept: a few rows a day, independent of the runs."""

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS runs (
  seq INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  began REAL NOT NULL,
  model TEXT NOT NULL,
  key TEXT NOT NULL,
  state TEXT NOT NULL,
  odd INTEGER NOT NULL,
  bytes INTEGER NOT NULL,
  row BLOB NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS runs_by_time ON runs (began);
CREATE INDEX IF NOT EXISTS runs_by_model ON runs (model, began);
CREATE INDEX IF NOT EXISTS runs_by_key ON runs (key, began);
CREATE INDEX IF NOT EXISTS runs_by_state ON runs (state, began);
CREATE INDEX IF NOT EXISTS runs_odd ON runs (began) WHERE odd;
CREATE INDEX IF NOT EXISTS runs_odd_by_key ON runs (key, state, began) WHERE odd;
CREATE INDEX IF NOT EXISTS runs_odd_by_model ON runs (model, state, began) WHERE odd;
CREATE TABLE IF NOT EXISTS events (
  seq INTEGER PRIMARY KEY REFERENCES runs (seq) ON DELETE CASCADE,
  body BLOB NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS content (
  seq INTEGER PRIMARY KEY REFERENCES runs (seq) ON DELETE CASCADE,
  body BLOB NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS replays (
  of TEXT NOT NULL,
  seq INTEGER NOT NULL REFERENCES runs (seq) ON DELETE CASCADE,
  PRIMARY KEY (of, seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS replays_by_run ON replays (seq);
CREATE TABLE IF NOT EXISTS chunks (
  seq INTEGER PRIMARY KEY,
  period TEXT NOT NULL,
  first_id TEXT NOT NULL,
  last_id TEXT NOT NULL,
  since REAL NOT NULL,
  until REAL NOT NULL,
  runs INTEGER NOT NULL,
  body BLOB NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS chunks_by_id ON chunks (period, last_id, first_id);
CREATE INDEX IF NOT EXISTS chunks_by_time ON chunks (until, since);
CREATE TABLE IF NOT EXISTS chunk_kinds (
  key TEXT NOT NULL,
  model TEXT NOT NULL,
  state TEXT NOT NULL,
  until REAL NOT NULL,
  chunk INTEGER NOT NULL REFERENCES chunks (seq) ON DELETE CASCADE,
  PRIMARY KEY (key, model, until, state, chunk)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS chunk_kinds_by_model ON chunk_kinds (model, until);
CREATE INDEX IF NOT EXISTS chunk_kinds_by_key ON chunk_kinds (key, until);
CREATE INDEX IF NOT EXISTS chunk_kinds_by_state ON chunk_kinds (state, until);
CREATE INDEX IF NOT EXISTS chunk_kinds_by_chunk ON chunk_kinds (chunk);
CREATE TABLE IF NOT EXISTS totals (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS usage (
  day TEXT NOT NULL,
  key TEXT NOT NULL,
  model TEXT NOT NULL,
  requests INTEGER NOT NULL,
  failed INTEGER NOT NULL,
  calls INTEGER NOT NULL,
  tokens_in INTEGER NOT NULL,
  tokens_out INTEGER NOT NULL,
  PRIMARY KEY (day, key, model)
) STRICT;
CREATE TABLE IF NOT EXISTS usage_costs (
  day TEXT NOT NULL,
  key TEXT NOT NULL,
  model TEXT NOT NULL,
  nano INTEGER NOT NULL,
  unpriced INTEGER NOT NULL,
  unpriced_elsewhere INTEGER NOT NULL,
  priced_in INTEGER NOT NULL,
  priced_out INTEGER NOT NULL,
  PRIMARY KEY (day, key, model)
) STRICT;
INSERT OR IGNORE INTO totals VALUES ('bytes', 0);
"""

_NO_CHUNKS: Final = """
CREATE TEMPORARY TABLE chunks (seq, period, first_id, last_id, since, until, body);
CREATE TEMPORARY TABLE chunk_kinds (key, model, state, until, chunk);
"""
"""Empty tables for reading a file of an earlier format."""

_NO_COSTS: Final = """
CREATE TEMPORARY TABLE usage_costs (day, key, model, nano, unpriced, unpriced_elsewhere, priced_in, priced_out);
"""
"""An empty table for reading a file of before costs were counted."""
_COUNTED: Final = ("requests", "failed", "calls", "tokens_in", "tokens_out")
_COSTS: Final = ("nano", "unpriced", "unpriced_elsewhere", "priced_in", "priced_out")
_USAGE: Final = """
SELECT u.*, coalesce(c.nano, 0), coalesce(c.unpriced, 0), coalesce(c.unpriced_elsewhere, 0),
  coalesce(c.priced_in, 0), coalesce(c.priced_out, 0)
FROM usage u LEFT JOIN usage_costs c USING (day, key, model) WHERE day >= ? ORDER BY day, key, model
"""


class RunFilter(msgspec.Struct, frozen=True):
    """A filter for lists of runs."""

    model: str | None = None
    key: str | None = None
    state: str | None = None
    odd: bool = False
    tool: str | None = None
    finding: str | None = None
    """`tool` and `finding` have no index: `Recorder.matching` compares them row by row."""
    before: float | None = None
    """Only runs that began earlier, or at the same time with an id that sorts before `before_id`."""
    before_id: str = ""
    since: float | None = None
    until: float | None = None


class StoreUnusable(Exception):
    """The file cannot be opened, read or written; the text gives the reason."""


class RunStore:
    """The file of runs in a folder. Each thread needs its own instance."""

    def __init__(self, folder: Path, *, read_only: bool = False) -> None:
        self.path = folder / FILE
        try:
            if read_only:
                database = sqlite3.connect(
                    f"{self.path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS, isolation_level=None
                )
                version = self._check_format(database)
                if version == 0:  # an empty file
                    database.close()
                    database = sqlite3.connect(":memory:", isolation_level=None)
                    database.executescript(_TABLES)
                elif version < VERSION:
                    database.executescript(_NO_CHUNKS)
                if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'usage_costs'").fetchone():
                    database.executescript(_NO_COSTS)
            else:
                self.path.touch(mode=0o600)
                database = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None)
                database.execute("PRAGMA auto_vacuum = INCREMENTAL")
                database.execute("PRAGMA journal_mode = WAL")
                database.execute("PRAGMA synchronous = NORMAL")
                database.execute("PRAGMA foreign_keys = ON")
                database.execute("PRAGMA secure_delete = FAST")
                self._check_format(database)
                database.executescript(_TABLES)
                database.execute(f"PRAGMA user_version = {VERSION}")
            self._database = database
            self._file = self.path.stat().st_ino
        except (sqlite3.Error, OSError) as error:
            raise StoreUnusable(f"{self.path}: {error}") from error

    def _check_format(self, database: sqlite3.Connection) -> int:
        """Return the format of a file; 0 if it is empty. Raises `StoreUnusable` for an unknown format."""
        [version] = database.execute("PRAGMA user_version").fetchone()
        if version not in READABLE:
            database.close()
            why = f"was written by another version of Callgate (format {version}); move it away, and runs go into a new one"
            raise StoreUnusable(f"{self.path}: {why}")
        return int(version)

    @property
    def is_in_place(self) -> bool:
        """False if the file was removed or replaced."""
        try:
            return self.path.stat().st_ino == self._file
        except OSError:
            return False

    def close(self) -> None:
        self._database.close()

    # -- writing

    def add(self, runs: Sequence[PackedRun]) -> None:
        """Write ended runs. A run that has a row already is not changed."""
        plain: list[PackedRun] = []
        others: list[PackedRun] = []
        for run in runs:
            (others if run.row else plain).append(run)
        chunks, unchunked = chunked(plain)
        with self._translate_errors(), self._transaction():
            grown = sum(map(self._add_chunk, chunks))
            if others or unchunked:
                grown += self._add_rows(others + [run.summed() for run in unchunked])
            self._add_to_total(grown)

    def _add_chunk(self, chunk: Chunk) -> int:
        """Write a chunk, and return its size in bytes."""
        body = encode(chunk.runs)
        head = chunk.period, chunk.first_id, chunk.last_id, chunk.since, chunk.until, len(chunk.runs)
        seq = self._database.execute(
            _insertion("INTO chunks (period, first_id, last_id, since, until, runs, body)", 7, 1), (*head, body)
        ).lastrowid
        kinds = [value for kind in chunk.kinds for value in (*kind, chunk.until, seq)]
        self._insert("INTO chunk_kinds", 5, kinds)
        return len(body)

    def _add_rows(self, runs: Sequence[PackedRun]) -> int:
        """Write each run in a row of its own, and return their size in bytes."""
        [last] = self._database.execute("SELECT max(seq) FROM runs").fetchone()
        rows: list[Any] = []
        events: list[Any] = []
        contents: list[Any] = []
        grown = 0
        for seq, run in enumerate(runs, first := (last or 0) + 1):
            row, run_events, content = run.row, run.events, run.content
            if content or len(run_events) > COMPRESSED_FROM:
                run_events, content = run.bodies()
            size = len(row) + len(run_events) + len(content)
            grown += size
            rows += (seq, run.id, run.began, run.model, run.key, run.state, run.is_odd, size, row)
            events += (seq, run_events)
            if content:
                contents += (seq, content)
        added = self._insert("OR IGNORE INTO runs (seq, id, began, model, key, state, odd, bytes, row)", 9, rows)
        if added < len(runs):  # some runs have a row already
            known = self._database.execute("SELECT seq, bytes FROM runs WHERE seq >= ?", (first,)).fetchall()
            sizes = dict(known)
            events, contents = (
                [
                    value
                    for seq, body in zip(each[::2], each[1::2], strict=True)
                    if seq in sizes
                    for value in (seq, body)
                ]
                for each in (events, contents)
            )
            grown = sum(sizes.values())
        self._insert("INTO events", 2, events)
        self._insert("INTO content", 2, contents)
        replays = [(run.replay_of, run.id) for run in runs if run.replay_of]
        if replays:
            self._database.executemany("INSERT OR IGNORE INTO replays SELECT ?, seq FROM runs WHERE id = ?", replays)
        return grown

    def _insert(self, into: str, columns: int, values: Sequence[Any]) -> int:
        # One statement for many rows: each releases the GIL and takes it again.
        added = at = 0
        while rows := (len(values) - at) // columns:
            rows = min(ROWS, 1 << (rows.bit_length() - 1))
            ends = at + rows * columns
            added += self._database.execute(_insertion(into, columns, rows), values[at:ends]).rowcount
            at = ends
        return added

    def count(self, used: Iterable[KeyUsage]) -> None:
        """Add usage. Several processes may add to the same rows."""
        rows = list(used)
        with self._translate_errors(), self._transaction():
            self._add_usage("usage", _COUNTED, rows)
            self._add_usage("usage_costs", _COSTS, rows)

    def _add_usage(self, table: str, columns: Sequence[str], rows: Sequence[KeyUsage]) -> None:
        places = ", ".join("?" * (3 + len(columns)))
        added = ", ".join(f"{name} = {name} + excluded.{name}" for name in columns)
        self._database.executemany(
            f"INSERT INTO {table} VALUES ({places}) ON CONFLICT DO UPDATE SET {added}",  # noqa: S608 - our own names
            [(row.day, row.key, row.model, *(getattr(row, name) for name in columns)) for row in rows],
        )

    def delete(self, id: str) -> bool:
        with self._translate_errors(), self._transaction():
            found = self._database.execute("DELETE FROM runs WHERE id = ? RETURNING bytes", (id,)).fetchall()
            self._add_to_total(-sum(size for [size] in found))
            return self._delete_from_chunk(id) or bool(found)

    def _delete_from_chunk(self, id: str) -> bool:
        """Delete a run from its chunk. If the run is in no readable chunk, unreadable ones that may contain it are deleted whole."""
        damaged: list[tuple[int, bytes]] = []
        found = False
        for seq, body in self._chunks_around(id):
            try:
                runs = decode_chunk(body)
            except msgspec.DecodeError:
                damaged.append((seq, body))
                continue
            rest = [run for run in runs if run.id != id]
            if len(rest) < len(runs):
                self._replace_chunk(seq, body, rest)
                found = True  # and perhaps in another, of another process
        for seq, body in () if found else damaged:
            self._replace_chunk(seq, body, [])
        return found or bool(damaged)

    def _replace_chunk(self, seq: int, body: bytes, runs: Sequence[KeptRun]) -> None:
        left = encode(runs) if runs else b""
        if runs:
            self._database.execute("UPDATE chunks SET runs = ?, body = ? WHERE seq = ?", (len(runs), left, seq))
        else:
            self._database.execute("DELETE FROM chunks WHERE seq = ?", (seq,))
        self._add_to_total(len(left) - len(body))

    def _chunks_around(self, id: str) -> list[tuple[int, bytes]]:
        """Return the chunks that may contain a run."""
        found = self._database.execute(
            "SELECT seq, body FROM chunks WHERE period = ? AND last_id >= ? AND first_id <= ?",
            (period_of_id(id), id, id),
        )
        return found.fetchall()

    def prune(self, *, older_than: float, most_bytes: int, wire_older_than: float | None = None) -> int:
        """Remove runs that are too old, then the oldest texts, then the oldest runs, until the file is small enough.

        `wire_older_than`: raw bodies of providers' responses are removed from runs that began earlier."""
        removed = 0
        with self._translate_errors():
            while oldest := self._remove_oldest(older_than):
                removed += oldest
            if wire_older_than is not None:
                self._remove_wire(wire_older_than)
            forgotten = (day_of(time.time() - USAGE_DAYS * 86_400),)
            self._database.execute("DELETE FROM usage WHERE day < ?", forgotten)
            self._database.execute("DELETE FROM usage_costs WHERE day < ?", forgotten)
            while self.bytes > most_bytes and (slice_ := self._oldest_with_content()):
                with self._transaction():
                    for seq in slice_:
                        [size] = self._database.execute(
                            "DELETE FROM content WHERE seq = ? RETURNING length(body)", (seq,)
                        ).fetchone()
                        [body] = self._database.execute("SELECT row FROM runs WHERE seq = ?", (seq,)).fetchone()
                        try:
                            row = msgspec.structs.replace(decode_row(body), kept=Kept.AGED_OUT)
                        except msgspec.DecodeError:  # a damaged row, of which the rest goes with the oldest
                            row = None
                        self._database.execute(
                            "UPDATE runs SET row = ?, bytes = bytes - ? WHERE seq = ?",
                            (body if row is None else encode(row), size, seq),
                        )
                        self._add_to_total(-size)
            while self.bytes > most_bytes and (oldest := self._remove_oldest()):
                removed += oldest
        with contextlib.suppress(sqlite3.Error):  # another process may be reading; retried in an hour
            self._database.execute("PRAGMA incremental_vacuum(500)").fetchall()
        return removed

    def _remove_wire(self, older_than: float) -> None:
        """Remove raw bodies. The table `totals` has the number of the next run, so that each run is read once."""
        [seen] = self._database.execute("SELECT max(value) FROM totals WHERE name = 'wire_forgotten'").fetchone()
        [end] = self._database.execute(
            "SELECT coalesce((SELECT min(seq) FROM runs WHERE began >= ?), max(seq) + 1, 1) FROM runs", (older_than,)
        ).fetchone()
        while found := self._database.execute(
            "SELECT seq, body FROM content WHERE seq >= ? AND seq < ? ORDER BY seq LIMIT ?", (seen or 0, end, WIRE_RUNS)
        ).fetchall():
            with self._transaction():
                for seq, body in found:
                    try:
                        texts = content_in_file(body)
                    except (msgspec.DecodeError, zlib.error):  # damaged
                        continue
                    rest = {part: text for part, text in texts.items() if wire_turn(part) is None}
                    if len(rest) < len(texts):
                        left = stored_content(rest)
                        self._database.execute("UPDATE content SET body = ? WHERE seq = ?", (left, seq))
                        freed = len(body) - len(left)
                        self._database.execute("UPDATE runs SET bytes = bytes - ? WHERE seq = ?", (freed, seq))
                        self._add_to_total(-freed)
            seen = found[-1][0] + 1
        self._database.execute("INSERT OR REPLACE INTO totals VALUES ('wire_forgotten', ?)", (end,))

    def _oldest_with_content(self) -> list[int]:
        found = self._database.execute(
            f"SELECT seq FROM runs WHERE seq IN (SELECT seq FROM content) ORDER BY began LIMIT {BATCH_RUNS}"  # noqa: S608
        )
        return [seq for [seq] in found]

    def _remove_oldest(self, older_than: float = inf) -> int:
        """Remove some of the oldest runs, and return how many."""
        with self._transaction():
            runs = self._database.execute(
                "SELECT began, seq, 1, bytes FROM runs WHERE began < ? ORDER BY began LIMIT ?", (older_than, BATCH_RUNS)
            ).fetchall()
            chunks = self._database.execute(
                "SELECT until, seq, runs, length(body) FROM chunks WHERE until < ? ORDER BY until LIMIT ?",
                (older_than, BATCH_RUNS // CHUNK_RUNS),
            ).fetchall()
            end = min((some[-1][0] for some in (runs, chunks) if some), default=0.0)
            removed = size = 0
            for table, some in (("runs", runs), ("chunks", chunks)):
                gone = [each for each in some if each[0] <= end]
                self._database.executemany(
                    f"DELETE FROM {table} WHERE seq = ?",  # noqa: S608 - constants
                    [(seq,) for _, seq, _, _ in gone],
                )
                removed += sum(held for _, _, held, _ in gone)
                size += sum(bytes for _, _, _, bytes in gone)
            self._add_to_total(-size)
        return removed

    def _add_to_total(self, bytes: int) -> None:
        """Update the stored total of bytes, because summing them would read the whole file."""
        self._database.execute("UPDATE totals SET value = value + ? WHERE name = 'bytes'", (bytes,))

    @property
    def bytes(self) -> int:
        [total] = self._database.execute("SELECT value FROM totals WHERE name = 'bytes'").fetchone()
        return int(total)

    # -- reading

    def page(self, wanted: RunFilter, count: int) -> list[RunRow]:
        """Return the newest runs of a filter. The next page begins before the last run of this one."""
        where, values = _where(wanted)
        with self._time_limit():
            found = self._database.execute(
                f"SELECT seq, row FROM runs WHERE {where} ORDER BY began DESC, id DESC LIMIT ?",  # noqa: S608 - constants
                [*values, count],
            ).fetchall()
            rows = self._rows(found)
            both = {row.id: row for row in (*self._plain_rows(wanted, count, rows), *rows)}
            return sorted(both.values(), key=run_place, reverse=True)[:count]

    def _plain_rows(self, wanted: RunFilter, count: int, others: Sequence[RunRow]) -> list[RunRow]:
        """Return the plain runs of a filter that may be among the newest `count`, together with the other runs."""
        if wanted.odd or wanted.state not in (None, *USUAL_STATES):
            return []
        found: list[KeptRun] = []
        places = sorted(map(run_place, others))
        known = {row.id for row in others}
        seen: set[int] = set()
        where, values = _where_chunks(wanted)
        for seq, until, body in self._database.execute(where, values):
            if len(places) >= count and places[-count][0] > until:
                break
            if seq in seen:  # found by another of its kinds
                continue
            seen.add(seq)
            for run in decode_chunk(body):
                if run.id not in known and is_wanted(run, wanted):
                    known.add(run.id)
                    found.append(run)
                    insort(places, run_place(run))
        return [run.whole_row for run in found if run_place(run) >= places[-count:][0]]

    def _rows(self, found: Sequence[tuple[int, Any]]) -> list[RunRow]:
        """Decode rows, and calculate the totals that older formats did not store."""
        rows = {seq: decode_row(body) for seq, body in found}
        unsummed = [seq for seq, row in rows.items() if not row.turns]
        for at in range(0, len(unsummed), BATCH_RUNS):
            some = unsummed[at : at + BATCH_RUNS]
            marks = ", ".join("?" * len(some))
            bodies = self._database.execute(f"SELECT seq, body FROM events WHERE seq IN ({marks})", some)  # noqa: S608
            for seq, body in bodies:
                rows[seq] = row_in_file(rows[seq], body)
        return list(rows.values())

    def get(self, id: str) -> Recording | None:
        with self._time_limit():
            found = self._database.execute(
                "SELECT row, events.body, content.body FROM runs LEFT JOIN events USING (seq)"
                " LEFT JOIN content USING (seq) WHERE id = ?",
                (id,),
            ).fetchone()
            if found is None:
                plain = (run for _, body in self._chunks_around(id) for run in decode_chunk(body) if run.id == id)
                return next((run.recording() for run in plain), None)
        row, events, content = found
        return recording_in_file(decode_row(row), events, content)

    def replays_of(self, id: str) -> list[RunRow]:
        """Return the replays of a run."""
        with self._time_limit():
            found = self._database.execute(
                "SELECT seq, row FROM replays JOIN runs USING (seq) WHERE of = ? ORDER BY began DESC LIMIT ?",
                (id, ROWS),
            ).fetchall()
            return self._rows(found)

    def usage(self, since: str) -> list[KeyUsage]:
        """Return the usage from a day on."""
        with self._time_limit():
            found = self._database.execute(_USAGE, (since,))
            return [KeyUsage(*row) for row in found]

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
    def _time_limit(self) -> Iterator[None]:
        ends = time.monotonic() + QUERY_SECONDS
        self._database.set_progress_handler(lambda: time.monotonic() > ends, 10_000)
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
            raise StoreUnusable(f"{self.path}: {error}") from error


def day_of(moment: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(moment))


def run_place(run: RunRow | KeptRun) -> tuple[float, str]:
    """Return the sort key of a run in a list."""
    return run.began, run.id


def is_wanted(row: RunRow | KeptRun, wanted: RunFilter) -> bool:
    """Return whether a run matches a filter, except for its tool and finding, which `Recorder.matching` compares."""
    if wanted.before is not None and run_place(row) >= (wanted.before, wanted.before_id):
        return False
    return (
        wanted.model in (None, row.model)
        and wanted.key in (None, row.key)
        and wanted.state in (None, row.state)
        and (not wanted.odd or row.is_odd)
        and (wanted.since is None or row.began >= wanted.since)
        and (wanted.until is None or row.began < wanted.until)
    )


def _where_chunks(wanted: RunFilter) -> tuple[str, list[Any]]:
    """Return the statement for the chunks that may have runs of a filter, the newest first."""
    fields = {"key": wanted.key, "model": wanted.model, "state": wanted.state}
    equal = {name: value for name, value in fields.items() if value is not None}
    parts, values = [f"{name} = ?" for name in equal], list[Any](equal.values())
    if wanted.state is not None and len(equal) > 1:
        parts[-1] = "+state = ?"  # nearly all runs have it: an index on it does not help
    table = "kinds" if equal else "chunks"
    if wanted.since is not None:
        parts.append(f"{table}.until >= ?")
        values.append(wanted.since)
    for moment in (wanted.until, wanted.before):
        if moment is not None:
            parts.append(f"{table}.until < ? AND chunks.since <= ?")
            values += [end_of_period(moment), moment]
    tables = "chunk_kinds AS kinds JOIN chunks ON seq = chunk" if equal else "chunks"
    where = " AND ".join(parts) or "1"
    return f"SELECT seq, {table}.until, body FROM {tables} WHERE {where} ORDER BY {table}.until DESC", values  # noqa: S608


def _where(wanted: RunFilter) -> tuple[str, list[Any]]:
    fields: Mapping[str, str | None] = {"model": wanted.model, "key": wanted.key, "state": wanted.state}
    equal = {name: value for name, value in fields.items() if value is not None}
    parts, values = [f"{name} = ?" for name in equal], list[Any](equal.values())
    if wanted.odd:
        parts.append("odd")
    if wanted.state is not None and (wanted.key is not None or wanted.model is not None):
        # SQLite would scan all runs of a state for those of a key. States that are always odd have indexes for this; in a usual
        # state a key has enough runs to fill a page soon.
        parts[parts.index("state = ?")] = "+state = ?" if wanted.state in USUAL_STATES else "odd AND state = ?"
    for mark, moment in ((">=", wanted.since), ("<", wanted.until)):
        if moment is not None:
            parts.append(f"began {mark} ?")
            values.append(moment)
    if wanted.before is not None:
        parts.append("(began < ? OR (began = ? AND id < ?))")
        values += [wanted.before, wanted.before, wanted.before_id]
    return " AND ".join(parts) or "1", values


@lru_cache(maxsize=64)
def _insertion(into: str, columns: int, rows: int) -> str:
    row = f"({', '.join('?' * columns)})"
    return f"INSERT {into} VALUES {', '.join([row] * rows)}"  # noqa: S608 - constants
