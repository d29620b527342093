"""What the Overview of the page shows of a time: requests, models, keys, tools, providers and broken calls, in bars of equal length."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from callgate.recorder.hours import HourTotal, ShownPlace
from callgate.recorder.usage import KeyUsage, grouped_by
from callgate.recorder.usage_report import PriceOfModel, durations, first_words
from callgate.recorder.usage_tables import HourSpan

MOST_NAMES: Final = 50
"""The most models, keys, tools, providers and flaws that are listed, those with most first."""

Steps: TypeAlias = Iterable[tuple[int, ShownPlace, HourTotal]]
Used: TypeAlias = Iterable[tuple[int, KeyUsage]]


class Overview:
    """The figures of one time."""

    def __init__(
        self, span: HourSpan, used: Used, of_keys: Iterable[KeyUsage], steps: Steps, price_of: PriceOfModel
    ) -> None:
        """`used`: the usage of models in each step; `of_keys`: that of keys in the whole time."""
        self._bars = -(-(span.until - span.since) // span.step)
        self._used = [KeyUsage(str(step), usage.key, usage.model, *usage.counts()) for step, usage in used]
        self._of_keys = list(of_keys)
        self._totals: dict[ShownPlace, dict[int, HourTotal]] = {}
        for step, place, total in steps:
            self._totals.setdefault(place, {}).setdefault(step, HourTotal()).add(total)
        models = {usage.model for usage in (*self._used, *self._of_keys)}
        self._prices = {model: price_of(model) for model in models}

    def facts(self) -> dict[str, Any]:
        """Return the figures of the page."""
        runs = self._added([place for place in self._totals if place.shown == "model"])
        by_step = grouped_by(self._used, ("day",), self._prices)
        totals = _sum(by_step.values())
        whole = _whole(runs)
        return {
            "totals": {**totals, "broken_runs": whole.broken, **durations(whole), **first_words(whole)},
            "requests": self._of_usage(by_step, "requests"),
            "failed": self._of_usage(by_step, "failed"),
            "broken_runs": self._counts(runs, "broken"),
            "cost": self._of_usage(by_step, "cost"),
            "tokens": [
                a + b for a, b in zip(*(self._of_usage(by_step, f"tokens_{way}") for way in ("in", "out")), strict=True)
            ],
            **{name: [durations(total)[name] for total in self._line(runs)] for name in ("p50", "p95")},
            **{name: [first_words(total)[name] for total in self._line(runs)] for name in ("first_p50", "first_p95")},
            "models": self._models(),
            "keys": self._keys(),
            "tools": self._tools(),
            "providers": self._providers(),
            "flaws": self._flaws(),
        }

    def _models(self) -> list[dict[str, Any]]:
        by_model = grouped_by(self._used, ("model",), self._prices)
        steps_of_models: dict[str, dict[tuple[str, ...], dict[str, Any]]] = {}
        for (model, step), row in grouped_by(self._used, ("model", "day"), self._prices).items():
            steps_of_models.setdefault(model, {})[(step,)] = row
        rows: list[dict[str, Any]] = []
        for (model,), row in by_model.items():
            runs = self._totals.get(ShownPlace("model", model, ""), {})
            whole = _whole(runs)
            bars = {name: self._of_usage(steps_of_models[model], name) for name in ("requests", "failed", "cost")}
            rows.append(
                {
                    "name": model,
                    **row,
                    "broken_runs": whole.broken,
                    **durations(whole),
                    **first_words(whole),
                    "bars": bars,
                }
            )
        return _most(rows, "requests")

    def _keys(self) -> list[dict[str, Any]]:
        by_key = grouped_by(self._of_keys, ("key",), self._prices)
        return _most([{"name": key, **row} for (key,), row in by_key.items()], "requests")

    def _tools(self) -> list[dict[str, Any]]:
        names = {place.name for place in self._totals if place.shown in ("tool", "broken_tool")}
        rows: list[dict[str, Any]] = []
        for name in sorted(names):
            ended = self._totals.get(ShownPlace("tool", "", name), {})
            broken = self._totals.get(ShownPlace("broken_tool", "", name), {})
            whole = _whole(ended)
            bars = {"calls": self._counts(ended, "count"), "failed": self._counts(ended, "failed")}
            bars["broken"] = self._counts(broken, "count")
            counts = {"calls": whole.count, "failed_calls": whole.failed, "broken_calls": _whole(broken).count}
            rows.append({"name": name, **counts, **durations(whole), "bars": bars})
        return sorted(rows, key=lambda row: -row["calls"] - row["broken_calls"])[:MOST_NAMES]

    def _providers(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for place in sorted(
            (place for place in self._totals if place.shown == "provider"), key=lambda place: place.name
        ):
            answers = self._totals[place]
            whole = _whole(answers)
            bars = {"answers": self._counts(answers, "count"), "failed": self._counts(answers, "failed")}
            counts = {"answers": whole.count, "failed_attempts": whole.failed}
            rows.append({"name": place.name, **counts, **durations(whole), **first_words(whole), "bars": bars})
        return sorted(rows, key=lambda row: -row["answers"] - row["failed_attempts"])[:MOST_NAMES]

    def _flaws(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for place, steps in self._totals.items():
            if place.shown == "flaw":
                count = _whole(steps).count
                rows.append(
                    {"model": place.model, "flaw": place.name, "count": count, "bars": self._counts(steps, "count")}
                )
        return _most(rows, "count")

    def _added(self, places: Iterable[ShownPlace]) -> dict[int, HourTotal]:
        added: dict[int, HourTotal] = {}
        for place in places:
            for step, total in self._totals[place].items():
                added.setdefault(step, HourTotal()).add(total)
        return added

    def _line(self, steps: Mapping[int, HourTotal]) -> list[HourTotal]:
        nothing = HourTotal()
        return [steps.get(step, nothing) for step in range(self._bars)]

    def _counts(self, steps: Mapping[int, HourTotal], name: str) -> list[int]:
        return [getattr(total, name) for total in self._line(steps)]

    def _of_usage(self, by_step: Mapping[tuple[str, ...], Mapping[str, Any]], name: str) -> list[Any]:
        return [by_step.get((str(step),), {}).get(name, 0) for step in range(self._bars)]


def _whole(steps: Mapping[int, HourTotal]) -> HourTotal:
    whole = HourTotal()
    for total in steps.values():
        whole.add(total)
    return whole


def _sum(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    sums: dict[str, Any] = dict.fromkeys(
        ("requests", "failed", "calls", "tokens_in", "tokens_out", "unpriced_requests", "cost"), 0
    )
    for row in rows:
        for name in sums:
            sums[name] += row[name]
    return sums


def _most(rows: Sequence[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: -row[name])[:MOST_NAMES]
