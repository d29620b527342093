"""What was used and what came of it, by key, model, tool, provider and flaw, as `GET /v1/usage` and the command line show it."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol, TypeAlias, get_args

from callgate.conversation.errors import ChatError
from callgate.conversation.prices import NANO, Price
from callgate.recorder.hours import (
    MINUTES_KEPT,
    HourPlace,
    HourTotal,
    Shown,
    ShownPlace,
    Subject,
    hour_name,
    percentile,
    shown_places,
)
from callgate.recorder.last_hour import minute_of
from callgate.recorder.usage import KeyUsage, day_of, grouped_by
from callgate.recorder.usage_tables import DAY_HOURS, HOUR_DAYS, USAGE_DAYS, HourSpan

Dimension: TypeAlias = Literal["key", "model", "tool", "provider", "flaw"]
Interval: TypeAlias = Literal["minute", "hour", "day"]
OF_REQUESTS: Final = frozenset({"key", "model"})
"""The dimensions that requests have. The others are of what happened in recorded runs."""
Group: TypeAlias = tuple[int, tuple[str, ...]]
"""The index of a step of time, and the names of the dimensions."""
USUAL_DAYS: Final = 7
MOST_ROWS: Final = 20_000
"""The most rows of one report."""

_IN_ALL_KEYS: Final[Mapping[Subject, Mapping[frozenset[str], Shown]]] = {
    "run": {frozenset(): "model", frozenset({"model"}): "model"},
    "answer": {frozenset(): "provider", frozenset({"provider"}): "provider"},
    "call": {frozenset(): "tool", frozenset({"tool"}): "tool"},
    "broken": {
        frozenset(): "broken_tool",
        frozenset({"tool"}): "broken_tool",
        frozenset({"flaw"}): "flaw",
        frozenset({"model", "flaw"}): "flaw",
        frozenset({"model"}): "flaw",
    },
}
"""The dimensions by which the totals of all keys together are enough, which are read in a hundredth of the time."""


class UsageSource(Protocol):
    """What totals are read from. Its rows may stand several times for one place."""

    def totals(
        self, span: HourSpan, by: Sequence[str], subjects: Sequence[str], key: str | None = None
    ) -> Iterable[tuple[int, HourPlace, HourTotal]]: ...

    def shown(self, span: HourSpan, key: str | None = None) -> Iterable[tuple[int, ShownPlace, HourTotal]]: ...


class RecordedUsage(UsageSource, Protocol):
    """What is recorded of usage."""

    def usage(self, since: str) -> Iterable[KeyUsage]: ...

    def usage_in_hours(self, span: HourSpan, key: str | None = None) -> Sequence[tuple[int, KeyUsage]]: ...

    def last_hour(self) -> Iterable[KeyUsage]: ...

    def last_minutes(self) -> Mapping[int, Mapping[HourPlace, HourTotal]]: ...


Used: TypeAlias = Callable[[], Sequence[tuple[int, KeyUsage]]]
"""Returns the usage of each step of a time."""
PriceOfModel: TypeAlias = Callable[[str], Price | None]


def usage_dimensions(by: str | None, interval: str | None) -> tuple[Sequence[Dimension], Interval | None]:
    """Return by what usage is added up. Raises `ChatError` 400."""
    names = [name.strip() for name in (by or "").split(",") if name.strip()]
    if by is None and interval is None:
        names = ["key"]
    steps = [name for name in names if name in ("day", "minute")]
    if steps and interval is None:
        interval = steps[0]
    dimensions: list[Dimension] = []
    choices = {name: name for name in get_args(Dimension)}
    for name in dict.fromkeys(names):
        if name in choices:
            dimensions.append(choices[name])
        elif name != interval:
            names_known = ", ".join((*choices, "day", "minute"))
            raise ChatError(400, f"`by` should be one or more of {names_known}.", param="by", code="invalid_value")
    for step in get_args(Interval):
        if interval == step:
            return dimensions, step
    if interval is not None:
        message = f"`interval` should be one of {', '.join(get_args(Interval))}."
        raise ChatError(400, message, param="interval", code="invalid_value")
    return dimensions, None


def most_days(by: Sequence[Dimension], interval: Interval | None) -> int:
    """Return how many days can be added up by these dimensions."""
    if interval == "hour" or set(by) - OF_REQUESTS:
        return HOUR_DAYS
    return USAGE_DAYS


class UsageReport:
    """One report of usage: its time, and its rows."""

    def __init__(self, recorder: RecordedUsage, by: Sequence[Dimension], interval: Interval | None, days: int) -> None:
        self._recorder = recorder
        self._by = by
        self._interval = interval
        now = time.time()
        self._first_day = day_of(now - (days - 1) * 86_400)
        hour = int(now // 3600)
        first = (int(now // 86_400) - days + 1) * DAY_HOURS
        if interval == "minute":
            minute = int(now // 60)
            self._span = HourSpan(minute - MINUTES_KEPT + 1, minute + 1)
        elif interval == "hour":
            self._span = HourSpan(first, hour + 1)
        elif interval == "day":
            self._span = HourSpan(first, hour + 1, DAY_HOURS)
        else:
            self._span = HourSpan(first, hour + 1, days * DAY_HOURS)
        self.since = self._first_day
        if interval == "minute":
            self.since = self._name_of(0)

    def rows(self, key: str | None, price_of: PriceOfModel) -> list[dict[str, Any]]:
        """Return the rows; with `key`, those of this one alone."""
        source: UsageSource = self._recorder
        if self._interval == "minute":
            source = MinuteSource(self._recorder.last_minutes())
        groups = usage_report(source, lambda: self._used(key), self._span, self._by, key, price_of)
        return [self._row(group, groups[group]) for group in sorted(groups)]

    def _used(self, key: str | None) -> Sequence[tuple[int, KeyUsage]]:
        if self._interval == "hour":
            return self._recorder.usage_in_hours(self._span, key)
        if self._interval == "minute":
            usages = self._recorder.last_hour()
            step_of = {self._name_of(step): step for step in range(MINUTES_KEPT)}
        else:
            usages = self._recorder.usage(self._first_day)
            step_of = {}
            if self._interval == "day":
                step_of = {self._name_of(step): step for step in range(USAGE_DAYS)}
        return [(step_of.get(usage.day, 0), usage) for usage in usages if key in (None, usage.key)]

    def _row(self, group: Group, measures: dict[str, Any]) -> dict[str, Any]:
        step, names = group
        row: dict[str, Any] = {"name": ", ".join(names)}
        if self._interval is not None:
            at = self._name_of(step)
            row["at"] = at
            if not names:
                row["name"] = at
        return {**row, **dict(zip(self._by, names, strict=True)), **measures}

    def _name_of(self, step: int) -> str:
        place = self._span.since + step * self._span.step
        if self._interval == "minute":
            return minute_of(place * 60)
        if self._interval == "hour":
            return hour_name(place)
        return day_of(place * 3600)


def usage_report(
    source: UsageSource,
    used: Used,
    span: HourSpan,
    by: Sequence[Dimension],
    key: str | None,
    price_of: PriceOfModel,
) -> dict[Group, dict[str, Any]]:
    """Return the measures of each step of a span and of each name of the dimensions. With `key`, of this one alone."""
    totals = TotalsReader(source, span, by, key)
    if "flaw" in by:
        return {group: {"broken_calls": total.count} for group, total in totals.of("broken").items()}
    if "tool" in by:
        return _calls(totals.of("call"), totals.of("broken"))
    if "provider" in by:
        return {
            group: {"answers": total.count, "failed_attempts": total.failed, **durations(total), **first_words(total)}
            for group, total in totals.of("answer").items()
        }
    return _requests(used(), by, totals.of("run"), price_of)


def _calls(ended: Mapping[Group, HourTotal], broken: Mapping[Group, HourTotal]) -> dict[Group, dict[str, Any]]:
    nothing = HourTotal()
    measures: dict[Group, dict[str, Any]] = {}
    for group in {**ended, **broken}:
        total = ended.get(group, nothing)
        counts = {"calls": total.count, "failed_calls": total.failed, "broken_calls": broken.get(group, nothing).count}
        measures[group] = {**counts, "cost": total.nano / NANO, **durations(total)}
    return measures


def _requests(
    used: Iterable[tuple[int, KeyUsage]],
    by: Sequence[str],
    runs: Mapping[Group, HourTotal],
    price_of: PriceOfModel,
) -> dict[Group, dict[str, Any]]:
    usages: list[KeyUsage] = []
    for step, usage in used:
        usages.append(KeyUsage(str(step), usage.key, usage.model, *usage.counts()))
    prices = {model: price_of(model) for model in {usage.model for usage in usages}}
    nothing = HourTotal()
    measures: dict[Group, dict[str, Any]] = {}
    for (step_text, *names), row in grouped_by(usages, ("day", *by), prices).items():
        group = (int(step_text), tuple(names))
        total = runs.get(group, nothing)
        measures[group] = {**row, "broken_runs": total.broken, **durations(total), **first_words(total)}
    return measures


def durations(total: HourTotal) -> dict[str, float | None]:
    """Return how many seconds half and 95 % of them took at most, about."""
    return {"p50": percentile(total.seconds, 0.5), "p95": percentile(total.seconds, 0.95)}


def first_words(total: HourTotal) -> dict[str, float | None]:
    """Return the same until the first content of the model."""
    return {"first_p50": percentile(total.first_seconds, 0.5), "first_p95": percentile(total.first_seconds, 0.95)}


class TotalsReader:
    """Reads totals by dimensions, those of all keys together where they are enough."""

    def __init__(self, source: UsageSource, span: HourSpan, by: Sequence[str], key: str | None) -> None:
        self._source = source
        self._span = span
        self._by = by
        self._key = key

    def of(self, subject: Subject) -> dict[Group, HourTotal]:
        """Return the totals of a subject."""
        totals: dict[Group, HourTotal] = {}
        shown_wanted = None
        if self._key is None:
            shown_wanted = _IN_ALL_KEYS[subject].get(frozenset(self._by))
        if shown_wanted is None:
            for step, place, total in self._source.totals(self._span, self._by, (subject,), self._key):
                if place.subject == subject:
                    _add(totals, (step, tuple(getattr(place, name) for name in self._by)), total)
            return totals
        for step, shown_place, total in self._source.shown(self._span):
            if shown_place.shown == shown_wanted:
                _add(totals, (step, self._names_of(shown_place)), total)
        return totals

    def _names_of(self, place: ShownPlace) -> tuple[str, ...]:
        return tuple(place.model if name == "model" else place.name for name in self._by)


def _add(totals: dict[Group, HourTotal], group: Group, total: HourTotal) -> None:
    totals.setdefault(group, HourTotal()).add(total)


class MinuteSource:
    """The totals of the last hour by minute, of one process."""

    def __init__(self, minutes: Mapping[int, Mapping[HourPlace, HourTotal]]) -> None:
        self._minutes = minutes

    def totals(
        self, span: HourSpan, by: Sequence[str], subjects: Sequence[str], key: str | None = None
    ) -> list[tuple[int, HourPlace, HourTotal]]:
        """Return the totals of each minute; the span counts minutes."""
        totals: list[tuple[int, HourPlace, HourTotal]] = []
        for minute, of_minute in self._minutes.items():
            step = span.step_of(minute)
            if step is not None:
                of_key = [(step, place, total) for place, total in of_minute.items() if key in (None, place.key)]
                totals += [named for named in of_key if named[1].subject in subjects]
        return totals

    def shown(self, span: HourSpan, key: str | None = None) -> list[tuple[int, ShownPlace, HourTotal]]:
        """Return the same as the page shows it."""
        totals = self.totals(span, (), get_args(Subject), key)
        return [(step, shown, total) for step, place, total in totals for shown in shown_places(place)]
