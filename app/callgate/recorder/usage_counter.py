"""Counts the usage of this process until it is written to the file."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol

from callgate.recorder.hours import HourNote, HourTotals
from callgate.recorder.last_hour import LastHour
from callgate.recorder.store import RunStore, day_of
from callgate.recorder.usage import COUNTED, KeyUsage
from callgate.records.row import RunRow


class CountedUsage(Protocol):
    """The usage of one model by one key since the process began. The counts never decrease."""

    name: str
    """The model's name."""
    key: str
    requests: int
    failed: int
    calls: int
    tokens_in: int
    tokens_out: int
    nano: int
    unpriced: int
    unpriced_elsewhere: int
    priced_in: int
    priced_out: int


NOTHING_COUNTED: Final = (0,) * len(COUNTED)


class UsageCounter:
    """Adds up usage by day, by minute of the last hour, and by hour. Thread-safe."""

    def __init__(self, counted: Callable[[], Iterable[CountedUsage]], *, with_hours: bool) -> None:
        self._hours = HourTotals()
        self._with_hours = with_hours
        self._counted = counted
        self._added: dict[tuple[str, str], tuple[int, ...]] = {}
        self._unwritten: dict[tuple[str, str, str], KeyUsage] = {}
        self._last_hour = LastHour()
        self._lock = threading.Lock()
        """Held while usage is written, which may take seconds where the file is locked."""

    def add_up(self) -> None:
        """Add what was used since the last call."""
        with self._lock:
            now = time.time()
            recent = list(self._recent(forget=True))
            self._last_hour.add(recent, now)
            if self._with_hours:
                self._hours.add_requests(recent, now)
            for usage in recent:
                self._unwritten.setdefault(usage.place(), KeyUsage(*usage.place())).add(usage)

    def add_run(self, row: RunRow, notes: Iterable[HourNote]) -> None:
        """Add an ended run to the totals of its hour."""
        if self._with_hours:
            self._hours.add_run(row, notes)

    @property
    def has_unwritten(self) -> bool:
        return bool(self._unwritten)

    def write(self, store: RunStore) -> None:
        """Write what is not written yet. What cannot be written now is written with the next call."""
        with self._lock:
            totals = self._hours.take()
            try:
                if self._unwritten or totals:
                    store.count(self._unwritten.values(), totals)
            except BaseException:
                self._hours.put_back(totals)
                raise
            self._unwritten = {}

    def since(self, day: str, written: Callable[[str], Iterable[KeyUsage]]) -> list[KeyUsage]:
        """Return the usage from a day on. `written` returns what is in the file."""
        with self._lock:  # usage that is being written is counted once: from the file or from memory
            by_place = {usage.place(): usage for usage in written(day)}
            for usage in (*self._unwritten.values(), *self._recent(forget=False)):
                if usage.day >= day:
                    by_place.setdefault(usage.place(), KeyUsage(*usage.place())).add(usage)
        return sorted(by_place.values(), key=KeyUsage.place)

    def last_hour(self) -> list[KeyUsage]:
        """Return the usage in each minute of the last hour."""
        with self._lock:
            return self._last_hour.used(self._recent(forget=False), time.time())

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
