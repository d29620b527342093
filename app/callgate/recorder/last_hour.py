"""What was used in each minute of the last hour, by this process."""

import time
from collections.abc import Iterable
from typing import Final

import msgspec

from callgate.recorder.row import KeyUsage

MINUTES: Final = 60
PLACES: Final = 1000
"""Keys and models that are told apart in one minute; what others use is added up without their names."""


class LastHour:
    """Adds up minute by minute, and forgets what is older. To be used under a lock."""

    def __init__(self) -> None:
        self._minutes: dict[str, dict[tuple[str, str], KeyUsage]] = {}

    def add(self, used: Iterable[KeyUsage], now: float) -> None:
        minute = minute_of(now)
        for each in used:
            of_minute = self._minutes.setdefault(minute, {})
            place = each.key, each.model
            if len(of_minute) >= PLACES and place not in of_minute:
                place = "", ""
            of_minute.setdefault(place, KeyUsage(minute, *place)).add(each)
        oldest = minute_of(now - (MINUTES - 1) * 60)
        for past in [minute for minute in self._minutes if minute < oldest]:
            del self._minutes[past]

    def used(self, recent: Iterable[KeyUsage], now: float) -> list[KeyUsage]:
        """By minute, in the place of days; `recent` is what was not added yet."""
        self.add((), now)
        found = [used for of_minute in self._minutes.values() for used in of_minute.values()]
        return [*found, *(msgspec.structs.replace(each, day=minute_of(now)) for each in recent)]


def minute_of(moment: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime(moment))
