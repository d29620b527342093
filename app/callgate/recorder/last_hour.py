"""Counts the usage of this process in each minute of the last hour."""

import time
from collections.abc import Iterable
from typing import Final

import msgspec

from callgate.recorder.usage import KeyUsage

MINUTES: Final = 60
ROWS_PER_MINUTE: Final = 1000
"""The most pairs of key and model that are counted separately in one minute. The others share a row without names."""


class LastHour:
    """Adds up usage by minute, and drops minutes older than an hour. Callers hold a lock."""

    def __init__(self) -> None:
        self._minutes: dict[str, dict[tuple[str, str], KeyUsage]] = {}

    def add(self, used: Iterable[KeyUsage], now: float) -> None:
        minute = minute_of(now)
        for usage in used:
            of_minute = self._minutes.setdefault(minute, {})
            place = (usage.key, usage.model)
            if len(of_minute) >= ROWS_PER_MINUTE and place not in of_minute:
                place = ("", "")
            of_minute.setdefault(place, KeyUsage(minute, *place)).add(usage)
        oldest = minute_of(now - (MINUTES - 1) * 60)
        for past in [minute for minute in self._minutes if minute < oldest]:
            del self._minutes[past]

    def used(self, recent: Iterable[KeyUsage], now: float) -> list[KeyUsage]:
        """Return the usage by minute, with the minute in the field `day`. `recent`: usage that was not added yet."""
        self.add((), now)
        added = [usage for of_minute in self._minutes.values() for usage in of_minute.values()]
        return [*added, *(msgspec.structs.replace(usage, day=minute_of(now)) for usage in recent)]


def minute_of(moment: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime(moment))
