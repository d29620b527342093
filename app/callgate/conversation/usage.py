"""Adds up the token usage of a chat's turns."""

from collections.abc import Iterable, Mapping
from typing import Any

_NOTHING = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
"""The counts that every sum has."""


def add_usage(reports: Iterable[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """Return the sum of all reports, details included; None when no turn reported anything."""
    total: dict[str, Any] | None = None
    for report in reports:
        if report:
            total = {**_NOTHING, **report} if total is None else _add(total, report)
    return total


def _add(total: dict[str, Any], report: Mapping[str, Any]) -> dict[str, Any]:
    """Add a report: numbers are summed, inner objects added field by field, anything else is replaced."""
    for key, value in report.items():
        known = total.get(key)
        if type(value) is int and (known is None or type(known) is int):
            total[key] = value if known is None else known + value
        elif isinstance(value, dict):
            total[key] = _add(dict(known) if isinstance(known, dict) else {}, value)
        elif _counts(value) and _counts(known):
            total[key] = known + value
        elif value is not None or key not in total:
            total[key] = value
    return total


def _counts(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
