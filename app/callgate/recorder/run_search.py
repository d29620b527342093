"""What is searched of runs, how they are sorted, and what many of them come to."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

from callgate.records.row import RunRow, wire_turn

ORDERS: Final[Mapping[str, Callable[[RunRow], float]]] = {
    "slowest": lambda row: row.seconds or 0.0,
    "dearest": lambda row: row.cost or 0.0,
    "largest": lambda row: row.tokens_in + row.tokens_out,
}
"""The orders of a list beside `newest` and `oldest`. There is no index for them: the newest runs of a filter are sorted."""
_names: Final = attrgetter("id", "model", "deployment", "key", "error", "question", "replay_of", "request_id")


def needles_of(text: str) -> Sequence[str]:
    """Return a text as it may stand in what is kept: as it is, and as JSON has it, which kept requests and arguments are."""
    lowered = text.lower()
    escaped = [json.dumps(lowered, ensure_ascii=is_ascii)[1:-1] for is_ascii in (True, False)]
    return list(dict.fromkeys((lowered, *escaped)))


def names_of(row: RunRow) -> Iterable[str]:
    """Return the short texts of a row."""
    return (*_names(row), *row.tools)


def searched_of(texts: Mapping[str, str]) -> Iterable[str]:
    """Return the texts of a run that are searched: not the definitions of offered tools, which most runs have, nor raw bodies, which say
    the same again."""
    return (text for part, text in texts.items() if part != "tools" and wire_turn(part) is None)


def has_text(texts: Iterable[str], needles: Sequence[str]) -> bool:
    """Return whether one of the texts has one of the needles, whatever their case."""
    return any(needle in text.lower() for text in texts for needle in needles)


def summed(rows: Sequence[RunRow]) -> dict[str, Any]:
    """Return what runs come to."""
    durations = sorted(row.seconds for row in rows if row.seconds is not None)
    return {
        "runs": len(rows),
        "failed": sum(row.state == "failed" for row in rows),
        "with_broken_calls": sum(row.broken_calls > 0 for row in rows),
        "calls": sum(row.calls for row in rows),
        "failed_calls": sum(row.failed_calls for row in rows),
        "broken_calls": sum(row.broken_calls for row in rows),
        "tokens_in": sum(row.tokens_in for row in rows),
        "tokens_out": sum(row.tokens_out for row in rows),
        "cost": sum(row.cost or 0.0 for row in rows),
        "unpriced_runs": sum(row.cost is None and row.tokens_in + row.tokens_out > 0 for row in rows),
        "p50": _share_of(durations, 0.5),
        "p95": _share_of(durations, 0.95),
    }


def _share_of(durations: Sequence[float], share: float) -> float | None:
    """Return how long this share of all took at most."""
    if not durations:
        return None
    return durations[min(int(len(durations) * share), len(durations) - 1)]
