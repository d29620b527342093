"""Adds up by minute and hour what came of recorded runs: by key, model, provider, tool, and flaw of broken calls.

These totals stay in the file when their runs are removed from it.
"""

import threading
import time
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Final, Literal, TypeAlias

import msgspec

from callgate.records.row import WITHOUT_MODEL, RunRow

Subject: TypeAlias = Literal["run", "answer", "call", "broken"]
"""What a total is about: recorded runs, answers of models, calls of tools, and broken calls, which did not run."""
BOUNDS: Final = (
    *(0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5),
    *(1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 50.0, 100.0),
)
"""The upper bounds of durations in seconds, for percentiles. What took longer is counted behind the last."""
ADDED_TOGETHER: Final = 512
"""The most runs that wait to be added up: while nothing can be written nobody takes the totals."""
TOTALS_PER_HOUR: Final = 5000
"""The most totals of one hour and process. What comes beyond them is added to one without names: models invent names of tools."""
SORTED_DURATIONS: Final = 32
"""How many durations have to come together to be sorted."""
MINUTES_KEPT: Final = 60
TOTALS_OF_MINUTES: Final = 20_000
"""The most totals of minutes that stay in memory. Beyond them the oldest minutes are dropped."""


class HourPlace(msgspec.Struct, frozen=True, gc=False):
    """What a total is about. Its names are empty where they do not apply: a run has no tool, an answer no flaw."""

    subject: Subject
    key: str
    model: str
    """The model of the request."""
    provider: str = ""
    """The provider of the deployment that answered."""
    tool: str = ""
    flaw: str = ""


NoteKind: TypeAlias = Literal["answer", "failed_attempt", "call", "failed_call", "priced_call", "broken_call"]
"""An answer of a deployment, or its failed attempt; a call of a tool that ended, that it failed, or cost something, or one that was
broken."""
HourNote: TypeAlias = tuple[NoteKind, str, str, str, float, float]
"""What an event adds to the totals of its hour: its kind, the name of the deployment, of the tool and of the flaw, how long it took,
and how long to the first content; 0 where it has no duration. Of a call that cost something the price stands as its duration, in
nanodollars."""


def _no_durations() -> list[int]:
    return [0] * (len(BOUNDS) + 1)


class HourTotal(msgspec.Struct):
    """How often something happened, and how long it took."""

    count: int = 0
    """Runs, answers of a provider, calls of a tool that ended, or broken calls."""
    failed: int = 0
    """Those of them that failed; of a provider its failed attempts, which are not in `count`."""
    broken: int = 0
    """Runs with a broken call that did not fail."""
    nano: int = 0
    """What calls of a tool cost, in nanodollars."""
    seconds: list[int] = msgspec.field(default_factory=_no_durations)
    """How many took how long, by `BOUNDS`."""
    first_seconds: list[int] = msgspec.field(default_factory=_no_durations)
    """How many took how long until the first content of the model."""

    def add(self, other: "HourTotal") -> None:
        self.count += other.count
        self.failed += other.failed
        self.broken += other.broken
        self.nano += other.nano
        self.seconds = [sum(both) for both in zip(self.seconds, other.seconds, strict=True)]
        self.first_seconds = [sum(both) for both in zip(self.first_seconds, other.first_seconds, strict=True)]

    def numbers(self) -> tuple[int, ...]:
        """Return the columns of this total in the file."""
        return (self.count, self.failed, self.broken, self.nano, *self.seconds, *self.first_seconds)

    @classmethod
    def of(cls, numbers: Sequence[int]) -> "HourTotal":
        """Return the total of these columns."""
        count, failed, broken, nano, *durations = numbers
        end = len(BOUNDS) + 1
        return cls(count, failed, broken, nano, durations[:end], durations[end:])


def percentile(durations: Sequence[int], share: float) -> float | None:
    """Return about how many seconds this share of all took at most, out of a histogram; None if there are none."""
    wanted_rank = share * sum(durations)
    if not wanted_rank:
        return None
    below = 0
    for index, count in enumerate(durations):
        if count and below + count >= wanted_rank:
            if index == len(BOUNDS):
                return BOUNDS[-1]
            lower = 0.0
            if index:
                lower = BOUNDS[index - 1]
            return lower + (BOUNDS[index] - lower) * (wanted_rank - below) / count
        below += count
    raise AssertionError("the ranks end with the sum")


Totals: TypeAlias = dict[HourPlace, HourTotal]


class HourTotals:
    """The totals that are not written yet, and those of the last minutes. Thread-safe."""

    def __init__(self) -> None:
        self._unwritten: dict[int, Totals] = {}
        """By minutes since 1970."""
        self._written: dict[int, Totals] = {}
        """The last minutes, as far as they are written."""
        self._places: dict[int, set[HourPlace]] = {}
        """The places of each of the last hours."""
        self._runs: list[tuple[RunRow, Iterable[HourNote]]] = []
        """Runs that are not added up yet: many of one key and model take a third of the time of as many by themselves."""
        self._runs_lock = threading.Lock()
        """Held for a moment, so that the event loop never waits until many runs are added up."""
        self._lock = threading.Lock()

    @property
    def has_unwritten(self) -> bool:
        return bool(self._runs or self._unwritten)

    def add_runs(self, runs: Iterable[tuple[RunRow, Iterable[HourNote]]]) -> None:
        """Add ended runs, and what their events said."""
        with self._runs_lock:
            self._runs.extend(runs)
        if len(self._runs) >= ADDED_TOGETHER:
            with self._lock:
                self._add_up()

    def take(self) -> dict[int, Totals]:
        """Return the totals of minutes, and begin again with none."""
        with self._lock:
            self._add_up()
            totals = self._unwritten
            self._unwritten = {}
        return totals

    def put_back(self, totals: Mapping[int, Totals]) -> None:
        """Add totals that could not be written."""
        with self._lock:
            _merge(self._unwritten, totals)

    def note_written(self, totals: Mapping[int, Totals]) -> None:
        """Remember totals that were written as those of the last minutes."""
        with self._lock:
            _merge(self._written, totals)
            oldest = int(time.time() // 60) - MINUTES_KEPT
            amount = 0
            for minute in sorted(self._written, reverse=True):
                amount += len(self._written[minute])
                if minute <= oldest or amount > TOTALS_OF_MINUTES:
                    del self._written[minute]

    def unwritten_hours(self) -> dict[int, Totals]:
        """Return the totals of hours that are not written yet."""
        with self._lock:
            self._add_up()
            return by_hour(self._unwritten)

    def minutes(self) -> dict[int, Totals]:
        """Return the totals of the last minutes."""
        totals: dict[int, Totals] = {}
        with self._lock:
            self._add_up()
            _merge(totals, self._written)
            _merge(totals, self._unwritten)
        return totals

    def _add_up(self) -> None:
        """Add the runs that wait for it, those of a minute, a key and a model at once."""
        with self._runs_lock:
            runs = self._runs
            self._runs = []
        groups: defaultdict[tuple[int, str, str], list[tuple[RunRow, Iterable[HourNote]]]] = defaultdict(list)
        for run in runs:
            row = run[0]
            groups[int(row.began // 60), row.key, row.model].append(run)
        for (minute, key, model), group in groups.items():
            rows = [row for row, _ in group]
            notes_of_rows = chain.from_iterable(notes for _, notes in group)
            of_models = [row for row in rows if row.route not in WITHOUT_MODEL]
            if of_models:
                _add_rows(self._total(minute, HourPlace("run", key, model)), of_models)
            self._add_notes(minute, key, model, notes_of_rows)

    def _add_notes(self, minute: int, key: str, model: str, notes: Iterable[HourNote]) -> None:
        groups: defaultdict[tuple[NoteKind, str, str, str], list[HourNote]] = defaultdict(list)
        for note in notes:
            groups[note[:4]].append(note)
        for (kind, deployment, tool, flaw), group in groups.items():
            subject: Subject = _SUBJECTS[kind]
            total = self._total(minute, HourPlace(subject, key, model, provider_of(deployment), tool, flaw))
            if kind in _FAILURES:
                total.failed += len(group)
                continue
            if kind == "priced_call":
                total.nano += int(sum(note[4] for note in group))
                continue
            total.count += len(group)
            if kind != "broken_call":
                _add_seconds(total.seconds, [note[4] for note in group])
            if kind == "answer":
                _add_seconds(total.first_seconds, [note[5] for note in group])

    def _total(self, minute: int, place: HourPlace) -> HourTotal:
        of_minute = self._unwritten.get(minute)
        if of_minute is None:
            of_minute = self._unwritten[minute] = {}
        total = of_minute.get(place)
        if total is None:
            if not self._has_room(minute // 60, place):
                place = HourPlace(place.subject, "", "")
            total = of_minute.setdefault(place, HourTotal())
        return total

    def _has_room(self, hour: int, place: HourPlace) -> bool:
        places = self._places.get(hour)
        if places is None:
            places = self._places[hour] = set()
            for past in sorted(self._places)[:-2]:
                del self._places[past]
        if place in places:
            return True
        if len(places) >= TOTALS_PER_HOUR:
            return False
        places.add(place)
        return True


_SUBJECTS: Final[Mapping[NoteKind, Subject]] = {
    "answer": "answer",
    "failed_attempt": "answer",
    "call": "call",
    "failed_call": "call",
    "priced_call": "call",
    "broken_call": "broken",
}
_FAILURES: Final = frozenset({"failed_attempt", "failed_call"})


def by_hour(minutes: Mapping[int, Totals]) -> dict[int, Totals]:
    """Add up totals of minutes by hours since 1970."""
    hours: dict[int, Totals] = {}
    for minute, totals in minutes.items():
        _merge(hours, {minute // 60: totals})
    return hours


def _merge(sums: dict[int, Totals], totals: Mapping[int, Totals]) -> None:
    for moment, of_moment in totals.items():
        sums_of_moment = sums.setdefault(moment, {})
        for place, total in of_moment.items():
            sums_of_moment.setdefault(place, HourTotal()).add(total)


def _add_rows(total: HourTotal, rows: Sequence[RunRow]) -> None:
    total.count += len(rows)
    total.failed += [row.state for row in rows].count("failed")
    total.broken += len([row for row in rows if row.broken_calls and row.state != "failed"])
    _add_seconds(total.seconds, [row.seconds for row in rows if row.seconds is not None])
    _add_seconds(total.first_seconds, [row.first_seconds for row in rows if row.first_seconds is not None])


def _add_seconds(histogram: list[int], durations: Sequence[float]) -> None:
    if len(durations) < SORTED_DURATIONS:
        for seconds in durations:
            histogram[bisect_left(BOUNDS, seconds)] += 1
        return
    # To look for each bound among the durations takes a fifth of looking for each duration among the bounds.
    ordered = sorted(durations)
    below = 0
    for index, bound in enumerate(BOUNDS):
        at_most = bisect_right(ordered, bound, below)
        histogram[index] += at_most - below
        below = at_most
    histogram[len(BOUNDS)] += len(ordered) - below


def hour_name(hour: int) -> str:
    """Return the name of an hour since 1970: `2026-11-18T09:00Z`."""
    return time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime(hour * 3600))


@lru_cache(maxsize=1024)
def provider_of(deployment: str) -> str:
    """Return the provider in litellm's name of a deployment, or the deployment where it names none."""
    return deployment.partition("/")[0]


# -- what the page shows, without crossing the names with one another

Shown: TypeAlias = Literal["model", "provider", "tool", "broken_tool", "flaw"]
"""Runs by model, answers by provider, calls by tool, broken calls by tool, and those by model and flaw."""


class ShownPlace(msgspec.Struct, frozen=True, gc=False):
    """What a total of all keys is about."""

    shown: Shown
    model: str
    """Empty but for models and flaws."""
    name: str
    """Of the provider, the tool or the flaw."""


def shown_places(place: HourPlace) -> Iterator[ShownPlace]:
    """Yield the totals of all keys that a total belongs to."""
    if place.subject == "run":
        yield ShownPlace("model", place.model, "")
    elif place.subject == "answer":
        yield ShownPlace("provider", "", place.provider)
    elif place.subject == "call":
        yield ShownPlace("tool", "", place.tool)
    else:
        yield ShownPlace("broken_tool", "", place.tool)
        yield ShownPlace("flaw", place.model, place.flaw)


def shown_totals(totals: Mapping[HourPlace, HourTotal]) -> dict[ShownPlace, HourTotal]:
    """Add up totals for all keys together."""
    shown: dict[ShownPlace, HourTotal] = {}
    for place, total in totals.items():
        for shown_place in shown_places(place):
            shown.setdefault(shown_place, HourTotal()).add(total)
    return shown
