"""Adds up by hour what was asked and what came of it: by key and model, tool, provider, and flaw of broken calls.

These totals stay in the file when their runs are removed from it.
"""

import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Final, Literal, TypeAlias

import msgspec

from callgate.recorder.usage import KeyUsage
from callgate.records.row import RunRow

Subject: TypeAlias = Literal["request", "run", "tool", "provider", "flaw"]
"""What a total is about: all requests, the recorded runs among them, and what happened in these."""
BOUNDS: Final = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
"""The upper bounds of durations in seconds, for percentiles. What took longer is counted behind the last."""
ADDED_TOGETHER: Final = 512
"""The most runs that wait to be added up: while nothing can be written nobody takes the totals."""
TOTALS_PER_HOUR: Final = 1000
"""The most totals of one hour that wait to be written. What comes beyond them is added to one without key, model and name."""


Place: TypeAlias = tuple[str, Subject, str, str, str]
"""What a total is about: the hour (`2026-11-18T09`, UTC), the subject, the key and the model of the request, and the name of the
tool, the provider or the flaw. The primary key in the file."""
Thing: TypeAlias = tuple[Subject, str]
"""The subject and the name of a place."""
NoteKind: TypeAlias = Literal["answer", "failed_attempt", "call", "failed_call", "broken_call", "flaw"]
"""An answer of a deployment, or its failed attempt; a call of a tool that ended, that it failed, or one that was broken; the flaw of
a broken call."""
HourNote: TypeAlias = tuple[NoteKind, str, float, float]
"""What an event adds to the totals of its hour: its kind, the name of the deployment, tool or flaw, how long it took, and how long
to the first content; 0 where it has no duration."""


class HourTotal(msgspec.Struct):
    """How often something happened in an hour, and how long it took."""

    count: int = 0
    """Requests, runs, calls of a tool that ran, answers of a provider, or calls with a flaw."""
    failed: int = 0
    """Those of them that failed; of a provider its failed attempts, which are not in `count`."""
    broken: int = 0
    """Runs with a broken call; broken calls of a tool, which are not in `count`."""
    tokens_in: int = 0
    """The tokens of requests."""
    tokens_out: int = 0
    nano: int = 0
    """The known cost of requests, in billionths of a dollar."""
    seconds: list[int] = msgspec.field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    """How many took how long, by `BOUNDS`."""
    first_seconds: list[int] = msgspec.field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    """How many took how long until the first content of the model."""

    def add(self, other: "HourTotal") -> None:
        self.count += other.count
        self.failed += other.failed
        self.broken += other.broken
        self.tokens_in += other.tokens_in
        self.tokens_out += other.tokens_out
        self.nano += other.nano
        self.seconds = [sum(both) for both in zip(self.seconds, other.seconds, strict=True)]
        self.first_seconds = [sum(both) for both in zip(self.first_seconds, other.first_seconds, strict=True)]

    def numbers(self) -> tuple[int, ...]:
        """Return the columns of this total in the file."""
        counts = (self.count, self.failed, self.broken, self.tokens_in, self.tokens_out, self.nano)
        return (*counts, *self.seconds, *self.first_seconds)


class _Group:
    """The totals of an hour, a key and a model."""

    __slots__ = ("hour", "things")

    def __init__(self, hour: str) -> None:
        self.hour = hour
        self.things: dict[Thing, HourTotal] = {}


class HourTotals:
    """The totals that are not written yet. Thread-safe."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str, str], _Group] = {}
        self._per_hour: Counter[str] = Counter()
        self._runs: list[tuple[RunRow, Iterable[HourNote]]] = []
        """Runs that are not added up yet: many of one key and model take a third of the time of as many by themselves."""
        self._runs_lock = threading.Lock()
        """Held for a moment, so that the event loop never waits until many runs are added up."""
        self._lock = threading.Lock()

    def take(self) -> Mapping[Place, HourTotal]:
        """Return the totals, and begin again with none."""
        with self._lock:
            self._add_up()
            groups = self._groups
            self._groups = {}
            self._per_hour.clear()
        totals: dict[Place, HourTotal] = {}
        for (hour, key, model), group in groups.items():
            for (subject, name), total in group.things.items():
                totals[hour, subject, key, model, name] = total
        return totals

    def put_back(self, totals: Mapping[Place, HourTotal]) -> None:
        """Add totals that could not be written."""
        with self._lock:
            for (hour, subject, key, model, name), total in totals.items():
                self._total(self._group(hour, key, model), (subject, name)).add(total)

    def add_requests(self, used: Iterable[KeyUsage], moment: float) -> None:
        """Add usage: that of all requests, recorded or not."""
        hour = hour_of(moment)
        with self._lock:
            for usage in used:
                total = self._total(self._group(hour, usage.key, usage.model), ("request", ""))
                total.count += usage.requests
                total.failed += usage.failed
                total.tokens_in += usage.tokens_in
                total.tokens_out += usage.tokens_out
                total.nano += usage.nano

    def add_run(self, row: RunRow, notes: Iterable[HourNote]) -> None:
        """Add an ended run, and what its events said."""
        with self._runs_lock:
            self._runs.append((row, notes))
        if len(self._runs) >= ADDED_TOGETHER:
            with self._lock:
                self._add_up()

    def _add_up(self) -> None:
        """Add the runs that wait for it, those of an hour, a key and a model at once."""
        with self._runs_lock:
            runs = self._runs
            self._runs = []
        places: dict[tuple[str, str, str], tuple[list[RunRow], list[HourNote]]] = {}
        for row, notes in runs:
            place = (hour_of(row.began), row.key, row.model)
            of_place = places.get(place)
            if of_place is None:
                of_place = places[place] = ([], [])
            of_place[0].append(row)
            of_place[1].extend(notes)
        for place, (rows, notes_of_rows) in places.items():
            group = self._group(*place)
            _add_rows(self._total(group, ("run", "")), rows)
            self._add_notes(group, notes_of_rows)

    def _add_notes(self, group: _Group, notes: Iterable[HourNote]) -> None:
        things: dict[tuple[NoteKind, str], list[HourNote]] = {}
        for note in notes:
            kind = note[:2]
            of_thing = things.get(kind)
            if of_thing is None:
                of_thing = things[kind] = []
            of_thing.append(note)
        for (what, name), of_thing in things.items():
            count = len(of_thing)
            if what == "answer":
                total = self._total(group, ("provider", _provider_of(name)))
                total.count += count
                _add_seconds(total.seconds, [seconds for _, _, seconds, _ in of_thing])
                _add_seconds(total.first_seconds, [first_seconds for _, _, _, first_seconds in of_thing])
            elif what == "call":
                total = self._total(group, ("tool", name))
                total.count += count
                _add_seconds(total.seconds, [seconds for _, _, seconds, _ in of_thing])
            elif what == "failed_attempt":
                self._total(group, ("provider", _provider_of(name))).failed += count
            elif what == "failed_call":
                self._total(group, ("tool", name)).failed += count
            elif what == "broken_call":
                self._total(group, ("tool", name)).broken += count
            else:
                self._total(group, ("flaw", name)).count += count

    def _group(self, hour: str, key: str, model: str) -> _Group:
        place = (hour, key, model)
        if place not in self._groups and self._per_hour[hour] >= TOTALS_PER_HOUR:
            place = (hour, "", "")
        group = self._groups.get(place)
        if group is None:
            group = self._groups[place] = _Group(hour)
        return group

    def _total(self, group: _Group, thing: Thing) -> HourTotal:
        total = group.things.get(thing)
        if total is not None:
            return total
        if self._per_hour[group.hour] < TOTALS_PER_HOUR:
            self._per_hour[group.hour] += 1
        else:
            subject, _ = thing
            thing = (subject, "")
            group = self._group(group.hour, "", "")
        return group.things.setdefault(thing, HourTotal())


def _add_rows(total: HourTotal, rows: Sequence[RunRow]) -> None:
    total.count += len(rows)
    total.failed += [row.state for row in rows].count("failed")
    total.broken += len([row for row in rows if row.broken_calls])
    _add_seconds(total.seconds, [row.seconds for row in rows if row.seconds is not None])
    _add_seconds(total.first_seconds, [row.first_seconds for row in rows if row.first_seconds is not None])


def _add_seconds(histogram: list[int], durations: Iterable[float]) -> None:
    for place, count in Counter(map(bisect_left, repeat(BOUNDS), durations)).items():
        histogram[place] += count


def hour_of(moment: float) -> str:
    return _hour_name(int(moment // 3600))


@lru_cache(maxsize=8)
def _hour_name(number: int) -> str:
    return time.strftime("%Y-%m-%dT%H", time.gmtime(number * 3600))


@lru_cache(maxsize=1024)
def _provider_of(deployment: str) -> str:
    """Return the provider in litellm's name of a deployment, or the deployment where it names none."""
    return deployment.partition("/")[0]
