"""Counts the usage of this process, and what came of its runs, until it is written to the file."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Protocol

from callgate.recorder.hours import (
    HourNote,
    HourPlace,
    HourTotal,
    HourTotals,
    ShownPlace,
    Totals,
    by_hour,
    shown_totals,
)
from callgate.recorder.last_hour import LastHour
from callgate.recorder.usage import COUNTED, KeyUsage, day_of
from callgate.recorder.usage_tables import HourSpan, HourUsage
from callgate.records.row import RunRow


class CountedUsage(Protocol):
    """The usage of one model by one key since the process began. The counts never decrease."""

    name: str
    """The model's name."""
    key: str
    requests: int
    failed: int
    calls: int
    nano: int
    unpriced: int
    unpriced_elsewhere: int
    priced_in: int
    priced_out: int

    @property
    def tokens_in(self) -> int: ...

    @property
    def tokens_out(self) -> int: ...

    @property
    def tokens_cached(self) -> int: ...

    @property
    def tokens_cache_written(self) -> int: ...


class UsageStore(Protocol):
    """Where usage is written."""

    def count(
        self,
        used: Iterable[KeyUsage],
        used_in_hours: Mapping[HourUsage, KeyUsage],
        totals: Mapping[int, Totals],
    ) -> None: ...


NOTHING_COUNTED: Final = (0,) * len(COUNTED)


class UsageCounter:
    """Adds up usage by day, by hour, and by minute of the last hour. Thread-safe."""

    def __init__(self, counted: Callable[[], Iterable[CountedUsage]]) -> None:
        self._hours = HourTotals()
        self._counted = counted
        self._added: dict[tuple[str, str], tuple[int, ...]] = {}
        self._unwritten: dict[tuple[str, str, str], KeyUsage] = {}
        self._unwritten_hours: dict[HourUsage, KeyUsage] = {}
        self._last_hour = LastHour()
        self._lock = threading.Lock()
        """Held while usage is written, which may take seconds where the file is locked."""

    def add_up(self) -> None:
        """Add what was used since the last call."""
        with self._lock:
            now = time.time()
            hour = int(now // 3600)
            recent = list(self._recent(forget=True))
            self._last_hour.add(recent, now)
            for usage in recent:
                self._unwritten.setdefault(usage.place(), KeyUsage(*usage.place())).add(usage)
                place = (hour, usage.key, usage.model)
                self._unwritten_hours.setdefault(place, KeyUsage(*usage.place())).add(usage)

    def add_runs(self, runs: Iterable[tuple[RunRow, Iterable[HourNote]]]) -> None:
        """Add ended runs to the totals of their hours."""
        self._hours.add_runs(runs)

    @property
    def has_unwritten(self) -> bool:
        return bool(self._unwritten or self._hours.has_unwritten)

    def write(self, store: UsageStore) -> None:
        """Write what is not written yet. What cannot be written now is written with the next call."""
        with self._lock:
            totals = self._hours.take()
            try:
                if self._unwritten or totals:
                    store.count(self._unwritten.values(), self._unwritten_hours, by_hour(totals))
            except BaseException:
                self._hours.put_back(totals)
                raise
            self._hours.note_written(totals)
            self._unwritten = {}
            self._unwritten_hours = {}

    # -- what is written, with what is not written yet; the functions that are passed return what is written

    def since(self, day: str, written: Callable[[str], Iterable[KeyUsage]]) -> list[KeyUsage]:
        """Return the usage from a day on."""
        with self._lock:  # usage that is being written is counted once: from the file or from memory
            by_place = {usage.place(): usage for usage in written(day)}
            for usage in (*self._unwritten.values(), *self._recent(forget=False)):
                if usage.day >= day:
                    by_place.setdefault(usage.place(), KeyUsage(*usage.place())).add(usage)
        return sorted(by_place.values(), key=KeyUsage.place)

    def in_hours(
        self, span: HourSpan, key: str | None, written: Callable[[], Iterable[tuple[int, KeyUsage]]]
    ) -> list[tuple[int, KeyUsage]]:
        """Return the usage of the steps of a span; with `key`, of this one alone."""
        with self._lock:
            usages = list(written())
            unwritten = [(hour, usage) for (hour, _, _), usage in self._unwritten_hours.items()]
            hour_now = int(time.time() // 3600)
            unwritten += [(hour_now, usage) for usage in self._recent(forget=False)]
            for hour, usage in unwritten:
                step = span.step_of(hour)
                if step is not None and key in (None, usage.key):
                    usages.append((step, usage))
        return usages

    def totals(
        self, span: HourSpan, key: str | None, written: Callable[[], Iterable[tuple[int, HourPlace, HourTotal]]]
    ) -> list[tuple[int, HourPlace, HourTotal]]:
        """Return the totals of the steps of a span; with `key`, those of this one alone."""
        with self._lock:
            totals = list(written())
            for hour, of_hour in self._hours.unwritten_hours().items():
                step = span.step_of(hour)
                if step is not None:
                    totals += [(step, place, total) for place, total in of_hour.items() if key in (None, place.key)]
        return totals

    def shown(
        self, span: HourSpan, written: Callable[[], Iterable[tuple[int, ShownPlace, HourTotal]]]
    ) -> list[tuple[int, ShownPlace, HourTotal]]:
        """Return what the page shows of all keys, in the steps of a span."""
        with self._lock:
            totals = list(written())
            for hour, of_hour in self._hours.unwritten_hours().items():
                step = span.step_of(hour)
                if step is not None:
                    totals += [(step, place, total) for place, total in shown_totals(of_hour).items()]
        return totals

    def last_hour(self) -> list[KeyUsage]:
        """Return the usage in each minute of the last hour."""
        with self._lock:
            return self._last_hour.used(self._recent(forget=False), time.time())

    def last_minutes(self) -> dict[int, Totals]:
        """Return the totals of the last minutes, since 1970."""
        return self._hours.minutes()

    def _recent(self, *, forget: bool) -> Iterator[KeyUsage]:
        """Return the usage that is not added up yet."""
        day = day_of(time.time())
        for counted in self._counted():
            place = (counted.key, counted.name)
            now = tuple(getattr(counted, name) for name in COUNTED)
            before = self._added.get(place, NOTHING_COUNTED)
            if now != before:
                yield KeyUsage(day, *place, *(new - old for new, old in zip(now, before, strict=True)))
                if forget:
                    self._added[place] = now
