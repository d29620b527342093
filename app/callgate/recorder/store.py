"""Stores recorded runs in a file (SQLite), beside the ledger and not in it: it may be deleted, and what a crash takes
of its last moments is lost. Whoever calls this waits for the disk: threads and the command line, never the event
loop."""

import contextlib
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec

from callgate.recorder.packed import (
    COMPRESSED_FROM,
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
VERSION: Final = 2
READABLE: Final = frozenset({0, 1, VERSION})
"""Formats that are read, and written on in the newest: 1 had events with names, of which some may still be there."""
BUSY_SECONDS: Final = 5.0
QUERY_SECONDS: Final = 1.0
"""No query runs longer: a list that nobody waits for must not hold the file's readers."""
ROWS: Final = 256
"""Rows of one statement, at most: each takes the interpreter's lock from the event loop and gives it back. A power of two, as
the smaller ones are: of so few lengths each statement is compiled once."""
WIRES: Final = 50
"""Runs of which the wire is removed in one transaction: their texts are in memory meanwhile."""
SLICE: Final = 500
"""Runs that are removed in one transaction, so that writers do not wait long for its end."""
USAGE_DAYS: Final = 400
"""How long what was used is remembered: a few rows a day, whatever becomes of the runs."""

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
INSERT OR IGNORE INTO totals VALUES ('bytes', 0);
"""

_COUNTED: Final = ("requests", "failed", "calls", "tokens_in", "tokens_out")


class RunFilter(msgspec.Struct, frozen=True):
    """A filter for lists of runs."""

    model: str | None = None
    key: str | None = None
    state: str | None = None
    odd: bool = False
    tool: str | None = None
    finding: str | None = None
    """These two are in no index: `Recorder.matching` looks for them row by row."""
    before: float | None = None
    """Only runs that began earlier, and, of those that began with it, those whose id sorts before `before_id`."""
    before_id: str = ""
    since: float | None = None
    until: float | None = None


class StoreUnusable(Exception):
    """The file cannot be opened, read or written; the text says why."""


class RunStore:
    """The file of one folder. Each thread opens its own."""

    def __init__(self, folder: Path, *, read_only: bool = False) -> None:
        self.path = folder / FILE
        try:
            if read_only:
                database = sqlite3.connect(
                    f"{self.path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS, isolation_level=None
                )
                if self._check(database) == 0:  # it was made, and nothing is written yet
                    database.close()
                    database = sqlite3.connect(":memory:", isolation_level=None)
                    database.executescript(_TABLES)
            else:
                self.path.touch(mode=0o600)
                database = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None)
                database.execute("PRAGMA auto_vacuum = INCREMENTAL")
                database.execute("PRAGMA journal_mode = WAL")
                database.execute("PRAGMA synchronous = NORMAL")
                database.execute("PRAGMA foreign_keys = ON")
                database.execute("PRAGMA secure_delete = FAST")
                self._check(database)
                database.executescript(_TABLES)
                database.execute(f"PRAGMA user_version = {VERSION}")
            self._database = database
        except sqlite3.Error as error:
            raise StoreUnusable(f"{self.path}: {error}") from error

    def _check(self, database: sqlite3.Connection) -> int:
        """The format of a file; 0 of one that is empty. Raises `StoreUnusable`."""
        [version] = database.execute("PRAGMA user_version").fetchone()
        if version not in READABLE:
            database.close()
            why = f"was written by another version of Callgate (format {version}); move it away, and runs go into a new one"
            raise StoreUnusable(f"{self.path}: {why}")
        return int(version)

    def close(self) -> None:
        self._database.close()

    # -- writing

    def add(self, runs: Sequence[PackedRun]) -> None:
        """Write runs that have ended. One that is there already stays as it is."""
        with self._named_errors(), self._transaction():
            [last] = self._database.execute("SELECT max(seq) FROM runs").fetchone()
            rows: list[Any] = []
            events: list[Any] = []
            contents: list[Any] = []
            grown = 0
            for seq, run in enumerate(runs, first := (last or 0) + 1):
                body, happened, said = run.row, run.events, run.content
                if said or len(happened) > COMPRESSED_FROM:
                    happened, said = run.bodies()
                size = len(body) + len(happened) + len(said)
                grown += size
                rows += (seq, run.id, run.began, run.model, run.key, run.state, run.is_odd, size, body)
                events += (seq, happened)
                if said:
                    contents += (seq, said)
            added = self._insert("OR IGNORE INTO runs (seq, id, began, model, key, state, odd, bytes, row)", 9, rows)
            if added < len(runs):  # some were there already
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
                self._database.executemany(
                    "INSERT OR IGNORE INTO replays SELECT ?, seq FROM runs WHERE id = ?", replays
                )
            self._grow(grown)

    def _insert(self, into: str, columns: int, values: Sequence[Any]) -> int:
        # Each step of a statement gives the interpreter's lock away and takes it back: one statement for many rows.
        added = at = 0
        while rows := (len(values) - at) // columns:
            rows = min(ROWS, 1 << (rows.bit_length() - 1))
            ends = at + rows * columns
            added += self._database.execute(_insertion(into, columns, rows), values[at:ends]).rowcount
            at = ends
        return added

    def count(self, used: Iterable[KeyUsage]) -> None:
        """Add to what was used. Several processes may add to the same."""
        added = ", ".join(f"{name} = {name} + excluded.{name}" for name in _COUNTED)
        with self._named_errors(), self._transaction():
            self._database.executemany(
                f"INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET {added}",  # noqa: S608
                [msgspec.structs.astuple(each) for each in used],
            )

    def delete(self, id: str) -> bool:
        with self._named_errors(), self._transaction():
            found = self._database.execute("DELETE FROM runs WHERE id = ? RETURNING bytes", (id,)).fetchall()
            self._grow(-sum(size for [size] in found))
        return bool(found)

    def prune(self, *, older_than: float, most_bytes: int, wire_older_than: float | None = None) -> int:
        """Remove what is too old, then the oldest contents, then the oldest runs, until the rest is small enough.

        `wire_older_than`: of runs that began earlier the bodies of providers' answers are removed too."""
        removed = 0
        with self._named_errors():
            while slice_ := self._oldest("began < ?", older_than):
                removed += self._remove(slice_)
            if wire_older_than is not None:
                self._forget_wire(wire_older_than)
            self._database.execute("DELETE FROM usage WHERE day < ?", (day_of(time.time() - USAGE_DAYS * 86_400),))
            while self.bytes > most_bytes and (slice_ := self._oldest("seq IN (SELECT seq FROM content)")):
                with self._transaction():
                    for seq in slice_:
                        [size] = self._database.execute(
                            "DELETE FROM content WHERE seq = ? RETURNING length(body)", (seq,)
                        ).fetchone()
                        [body] = self._database.execute("SELECT row FROM runs WHERE seq = ?", (seq,)).fetchone()
                        row = msgspec.structs.replace(decode_row(body), kept=Kept.AGED_OUT)
                        self._database.execute(
                            "UPDATE runs SET row = ?, bytes = bytes - ? WHERE seq = ?", (encode(row), size, seq)
                        )
                        self._grow(-size)
            while self.bytes > most_bytes and (slice_ := self._oldest("1")):
                removed += self._remove(slice_)
        with contextlib.suppress(sqlite3.Error):  # another process may be reading; the next hour tries again
            self._database.execute("PRAGMA incremental_vacuum(500)").fetchall()
        return removed

    def _forget_wire(self, older_than: float) -> None:
        """Each run is looked at once: up to which, in the order of writing, stands in the totals."""
        [seen] = self._database.execute("SELECT max(value) FROM totals WHERE name = 'wire_forgotten'").fetchone()
        [end] = self._database.execute(
            "SELECT coalesce((SELECT min(seq) FROM runs WHERE began >= ?), max(seq) + 1, 1) FROM runs", (older_than,)
        ).fetchone()
        while found := self._database.execute(
            "SELECT seq, body FROM content WHERE seq >= ? AND seq < ? ORDER BY seq LIMIT ?", (seen or 0, end, WIRES)
        ).fetchall():
            with self._transaction():
                for seq, body in found:
                    said = content_in_file(body)
                    rest = {part: text for part, text in said.items() if wire_turn(part) is None}
                    if len(rest) < len(said):
                        left = stored_content(rest)
                        self._database.execute("UPDATE content SET body = ? WHERE seq = ?", (left, seq))
                        freed = len(body) - len(left)
                        self._database.execute("UPDATE runs SET bytes = bytes - ? WHERE seq = ?", (freed, seq))
                        self._grow(-freed)
            seen = found[-1][0] + 1
        self._database.execute("INSERT OR REPLACE INTO totals VALUES ('wire_forgotten', ?)", (end,))

    def _oldest(self, which: str, *values: float) -> list[int]:
        found = self._database.execute(
            f"SELECT seq FROM runs WHERE {which} ORDER BY began LIMIT {SLICE}",  # noqa: S608 - our own words
            values,
        )
        return [seq for [seq] in found]

    def _remove(self, sequence: Sequence[int]) -> int:
        marks = ", ".join("?" * len(sequence))
        with self._transaction():
            sizes = self._database.execute(
                f"DELETE FROM runs WHERE seq IN ({marks}) RETURNING bytes",  # noqa: S608 - question marks
                sequence,
            ).fetchall()
            self._grow(-sum(size for [size] in sizes))
        return len(sizes)

    def _grow(self, bytes: int) -> None:
        """A running total, because adding it up would read the whole file."""
        self._database.execute("UPDATE totals SET value = value + ? WHERE name = 'bytes'", (bytes,))

    @property
    def bytes(self) -> int:
        [total] = self._database.execute("SELECT value FROM totals WHERE name = 'bytes'").fetchone()
        return int(total)

    # -- reading

    def page(self, wanted: RunFilter, count: int) -> list[RunRow]:
        """The newest runs of a filter. The next page begins before the last run of this one."""
        where, values = _where(wanted)
        with self._bounded():
            found = self._database.execute(
                f"SELECT seq, row FROM runs WHERE {where} ORDER BY began DESC, id DESC LIMIT ?",  # noqa: S608 - our own words
                [*values, count],
            ).fetchall()
            return self._rows(found)

    def _rows(self, found: Sequence[tuple[int, Any]]) -> list[RunRow]:
        """Rows as a list shows them, by their numbers: what is not summed up yet is summed up here."""
        rows = {seq: decode_row(body) for seq, body in found}
        unsummed = [seq for seq, row in rows.items() if not row.turns]
        for at in range(0, len(unsummed), SLICE):
            some = unsummed[at : at + SLICE]
            marks = ", ".join("?" * len(some))
            bodies = self._database.execute(f"SELECT seq, body FROM events WHERE seq IN ({marks})", some)  # noqa: S608
            for seq, body in bodies:
                rows[seq] = row_in_file(rows[seq], body)
        return list(rows.values())

    def get(self, id: str) -> Recording | None:
        with self._bounded():
            found = self._database.execute(
                "SELECT row, events.body, content.body FROM runs LEFT JOIN events USING (seq)"
                " LEFT JOIN content USING (seq) WHERE id = ?",
                (id,),
            ).fetchone()
        if found is None:
            return None
        row, events, content = found
        return recording_in_file(decode_row(row), events, content)

    def replays_of(self, id: str) -> list[RunRow]:
        """The runs that asked a run again."""
        with self._bounded():
            found = self._database.execute(
                "SELECT seq, row FROM replays JOIN runs USING (seq) WHERE of = ? ORDER BY began DESC LIMIT ?",
                (id, ROWS),
            ).fetchall()
            return self._rows(found)

    def usage(self, since: str) -> list[KeyUsage]:
        """Return the usage from a day on."""
        with self._bounded():
            found = self._database.execute("SELECT * FROM usage WHERE day >= ? ORDER BY day, key, model", (since,))
            return [KeyUsage(*row) for row in found]

    # -- both

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")

    @contextlib.contextmanager
    def _bounded(self) -> Iterator[None]:
        ends = time.monotonic() + QUERY_SECONDS
        self._database.set_progress_handler(lambda: time.monotonic() > ends, 10_000)
        try:
            with self._named_errors():
                yield
        finally:
            self._database.set_progress_handler(None, 0)

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreUnusable(f"{self.path}: {error}") from error


def day_of(moment: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(moment))


def _where(wanted: RunFilter) -> tuple[str, list[Any]]:
    equal: Mapping[str, str | None] = {"model": wanted.model, "key": wanted.key, "state": wanted.state}
    said = {name: value for name, value in equal.items() if value is not None}
    parts, values = [f"{name} = ?" for name in said], list[Any](said.values())
    if wanted.odd:
        parts.append("odd")
    if wanted.state is not None and (wanted.key is not None or wanted.model is not None):
        # SQLite would look through all runs of a state for those of a key. A state that is always odd has indexes for that; of
        # the usual ones a key has enough to fill a page soon.
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
    return f"INSERT {into} VALUES {', '.join([row] * rows)}"  # noqa: S608 - our own words
