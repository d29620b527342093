"""The tables of usage and of the totals of hours, which stay when runs are removed: in the file of runs, or in memory where there is
none."""

import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from callgate.recorder.hours import BOUNDS, HourPlace, HourTotal, ShownPlace, Totals, shown_totals
from callgate.recorder.usage import COUNTED, KeyUsage, day_of

USAGE_DAYS: Final = 400
"""How long usage is kept: a few rows a day, independent of the runs."""
HOUR_DAYS: Final = 90
"""How long the totals of hours are kept, independent of the runs."""
DAY_HOURS: Final = 24
PRUNE_SECONDS: Final = 3600.0
NAMES: Final = 200
"""The most names of one kind that are suggested."""
DIMENSIONS: Final = ("key", "model", "provider", "tool", "flaw")
"""What totals of hours can be grouped by."""

_HISTOGRAMS: Final = [f"{name}_{at}" for name in ("seconds", "first_seconds") for at in range(len(BOUNDS) + 1)]
_HOUR_COUNTS: Final = ("count", "failed", "broken", "nano", *_HISTOGRAMS)
_USAGE_COLUMNS: Final = " ".join(f"{name} INTEGER NOT NULL," for name in COUNTED)
_HOUR_COLUMNS: Final = " ".join(f"{name} INTEGER NOT NULL," for name in _HOUR_COUNTS)
USAGE_TABLES: Final = f"""
CREATE TABLE IF NOT EXISTS usage (
  day TEXT NOT NULL,
  key TEXT NOT NULL,
  model TEXT NOT NULL,
  {_USAGE_COLUMNS}
  PRIMARY KEY (day, key, model)
) STRICT;
CREATE TABLE IF NOT EXISTS usage_hours (
  hour INTEGER NOT NULL,
  key TEXT NOT NULL,
  model TEXT NOT NULL,
  {_USAGE_COLUMNS}
  PRIMARY KEY (hour, key, model)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS usage_hours_by_key ON usage_hours (key, hour);
CREATE TABLE IF NOT EXISTS model_hours (
  hour INTEGER NOT NULL,
  model TEXT NOT NULL,
  {_USAGE_COLUMNS}
  PRIMARY KEY (hour, model)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS hours (
  hour INTEGER NOT NULL,
  subject TEXT NOT NULL,
  key TEXT NOT NULL,
  model TEXT NOT NULL,
  provider TEXT NOT NULL,
  tool TEXT NOT NULL,
  flaw TEXT NOT NULL,
  {_HOUR_COLUMNS}
  PRIMARY KEY (hour, subject, key, model, provider, tool, flaw)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS hours_by_key ON hours (key, hour);
CREATE TABLE IF NOT EXISTS shown_hours (
  hour INTEGER NOT NULL,
  shown TEXT NOT NULL,
  model TEXT NOT NULL,
  name TEXT NOT NULL,
  {_HOUR_COLUMNS}
  PRIMARY KEY (hour, shown, model, name)
) STRICT, WITHOUT ROWID;
"""
"""`model_hours` and `shown_hours` have the same numbers as the tables before them, of all keys together: where there are many keys
and models the page would add up a hundred times as many rows."""
_usage_sums: Final = ", ".join(f"sum({name})" for name in COUNTED)
_hour_sums: Final = ", ".join(f"sum({name})" for name in _HOUR_COUNTS)
_NAMES_OF_ALL: Final = {
    "key": "SELECT DISTINCT key FROM usage_hours WHERE hour >= ? LIMIT ?",
    "model": "SELECT DISTINCT model FROM model_hours WHERE hour >= ? LIMIT ?",
    "provider": "SELECT DISTINCT name FROM shown_hours WHERE hour >= ? AND shown = 'provider' LIMIT ?",
    "tool": "SELECT DISTINCT name FROM shown_hours WHERE hour >= ? AND shown IN ('tool', 'broken_tool') LIMIT ?",
}
_NAMES_OF_KEY: Final = {
    "key": "SELECT DISTINCT key FROM usage_hours WHERE key = ? AND hour >= ? LIMIT ?",
    "model": "SELECT DISTINCT model FROM usage_hours WHERE key = ? AND hour >= ? LIMIT ?",
    "provider": "SELECT DISTINCT provider FROM hours WHERE key = ? AND hour >= ? LIMIT ?",
    "tool": "SELECT DISTINCT tool FROM hours WHERE key = ? AND hour >= ? LIMIT ?",
}

Result = TypeVar("Result")


class HourSpan(msgspec.Struct, frozen=True):
    """Hours that are added up in steps."""

    since: int
    """The first hour, since 1970."""
    until: int
    """The hour behind the last."""
    step: int = 1
    """The hours of a step."""

    def step_of(self, hour: int) -> int | None:
        """Return the index of the step of an hour; None where it is outside."""
        if not self.since <= hour < self.until:
            return None
        return (hour - self.since) // self.step


HourUsage = tuple[int, str, str]
"""The hour since 1970, the key and the model of usage."""


class UsageTables:
    """The tables of usage, in an open database."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    # -- writing, in a transaction

    def add(
        self,
        used: Iterable[KeyUsage],
        used_in_hours: Mapping[HourUsage, KeyUsage],
        totals: Mapping[int, Totals],
    ) -> None:
        """Add usage of days and of hours, and the totals of hours. Several processes may add to the same rows."""
        self._add_counts("usage", 3, COUNTED, [(row.day, row.key, row.model, *row.counts()) for row in used])
        rows = [(*place, *usage.counts()) for place, usage in used_in_hours.items()]
        self._add_counts("usage_hours", 3, COUNTED, rows)
        rows = [(hour, model, *usage.counts()) for (hour, _, model), usage in used_in_hours.items()]
        self._add_counts("model_hours", 2, COUNTED, rows)
        detailed: list[tuple[Any, ...]] = []
        shown: list[tuple[Any, ...]] = []
        for hour, of_hour in totals.items():
            for place, total in of_hour.items():
                names = (place.key, place.model, place.provider, place.tool, place.flaw)
                detailed.append((hour, place.subject, *names, *total.numbers()))
            for shown_place, total in shown_totals(of_hour).items():
                shown.append((hour, *msgspec.structs.astuple(shown_place), *total.numbers()))
        self._add_counts("hours", 7, _HOUR_COUNTS, detailed)
        self._add_counts("shown_hours", 4, _HOUR_COUNTS, shown)

    def _add_counts(self, table: str, keys: int, counts: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
        if rows:
            places = ", ".join("?" * (keys + len(counts)))
            added = ", ".join(f"{name} = {name} + excluded.{name}" for name in counts)
            self._database.executemany(
                f"INSERT INTO {table} VALUES ({places}) ON CONFLICT DO UPDATE SET {added}",  # noqa: S608 - our own names
                rows,
            )

    def prune(self, now: float) -> None:
        """Remove what is too old."""
        first_day = day_of(now - USAGE_DAYS * 86_400)
        self._database.execute("DELETE FROM usage WHERE day < ?", (first_day,))
        first_hour = int(now // 3600) - HOUR_DAYS * DAY_HOURS
        for table in ("usage_hours", "model_hours", "hours", "shown_hours"):
            self._database.execute(f"DELETE FROM {table} WHERE hour < ?", (first_hour,))  # noqa: S608 - our own names

    # -- reading

    def usage(self, since: str) -> list[KeyUsage]:
        """Return the usage from a day on."""
        rows = self._database.execute("SELECT * FROM usage WHERE day >= ? ORDER BY day, key, model", (since,))
        return [KeyUsage(*row) for row in rows]

    def usage_in_hours(self, span: HourSpan, key: str | None = None) -> list[tuple[int, KeyUsage]]:
        """Return the usage of each step, key and model; with `key`, of this one alone."""
        where = ""
        values = [span.since, span.step, span.since, span.until]
        if key is not None:
            where = "AND key = ?"
        rows = self._database.execute(
            f"SELECT (hour - ?) / ?, key, model, {_usage_sums} FROM usage_hours WHERE hour >= ? AND hour < ? {where} GROUP BY 1, 2, 3",  # noqa: S608 - our own names
            values if key is None else [*values, key],
        )
        return [(step, KeyUsage("", *row)) for step, *row in rows]

    def usage_of_models(self, span: HourSpan) -> list[tuple[int, KeyUsage]]:
        """Return the usage of each step and model by all keys together."""
        rows = self._database.execute(
            f"SELECT (hour - ?) / ?, model, {_usage_sums} FROM model_hours WHERE hour >= ? AND hour < ? GROUP BY 1, 2",  # noqa: S608 - our own names
            (span.since, span.step, span.since, span.until),
        )
        return [(step, KeyUsage("", "", *row)) for step, *row in rows]

    def totals(
        self, span: HourSpan, by: Sequence[str], subjects: Sequence[str], key: str | None = None
    ) -> list[tuple[int, HourPlace, HourTotal]]:
        """Return the totals of these subjects in each step, by some of `DIMENSIONS`; with `key`, those of this one alone."""
        columns = ", ".join(name if name in by else "''" for name in DIMENSIONS)
        places = ", ".join("?" * len(subjects))
        where = ""
        values: list[Any] = [span.since, span.step, span.since, span.until, *subjects]
        if key is not None:
            where = "AND key = ?"
            values.append(key)
        rows = self._database.execute(
            f"SELECT (hour - ?) / ?, subject, {columns}, {_hour_sums} FROM hours"  # noqa: S608 - our own names
            f" WHERE hour >= ? AND hour < ? AND subject IN ({places}) {where} GROUP BY 1, 2, 3, 4, 5, 6, 7",
            values,
        )
        return [(row[0], HourPlace(*row[1:7]), HourTotal.of(row[7:])) for row in rows]

    def shown(self, span: HourSpan) -> list[tuple[int, ShownPlace, HourTotal]]:
        """Return what the page shows of all keys, in each step."""
        rows = self._database.execute(
            f"SELECT (hour - ?) / ?, shown, model, name, {_hour_sums} FROM shown_hours WHERE hour >= ? AND hour < ? GROUP BY 1, 2, 3, 4",  # noqa: S608 - our own names
            (span.since, span.step, span.since, span.until),
        )
        return [(row[0], ShownPlace(*row[1:4]), HourTotal.of(row[4:])) for row in rows]

    def names(self, since: int, key: str | None = None) -> dict[str, list[str]]:
        """Return the names of keys, models, providers and tools that were used since an hour; with `key`, by this one alone."""
        if key is None:
            selections = _NAMES_OF_ALL
            values: tuple[Any, ...] = (since, NAMES)
        else:
            selections = _NAMES_OF_KEY
            values = (key, since, NAMES)
        names: dict[str, list[str]] = {}
        for kind, selection in selections.items():
            rows = self._database.execute(selection, values)
            names[kind] = sorted(name for [name] in rows if name)
        return names

    def first_hour(self) -> int | None:
        """Return the first hour, since 1970, of which there are totals."""
        [first] = self._database.execute("SELECT min(hour) FROM usage_hours").fetchone()
        return None if first is None else int(first)


class MemoryTables:
    """The tables of usage in memory, where there is no file. Thread-safe."""

    def __init__(self) -> None:
        self._database = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._database.executescript(USAGE_TABLES)
        self._tables = UsageTables(self._database)
        self._lock = threading.Lock()
        self._pruned_at = time.monotonic()

    def count(
        self,
        used: Iterable[KeyUsage],
        used_in_hours: Mapping[HourUsage, KeyUsage],
        totals: Mapping[int, Totals],
    ) -> None:
        """Add usage and totals."""
        with self._lock:
            self._tables.add(used, used_in_hours, totals)
            if time.monotonic() - self._pruned_at > PRUNE_SECONDS:
                self._pruned_at = time.monotonic()
                self._tables.prune(time.time())

    def read(self, read: Callable[[UsageTables], Result]) -> Result:
        """Read from the tables."""
        with self._lock:
            return read(self._tables)
