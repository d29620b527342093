"""Adding up what the turns of a chat cost."""

from collections.abc import Iterable, Mapping
from typing import Any

BASICS = ("prompt_tokens", "completion_tokens", "total_tokens")


def add_usage(reports: Iterable[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """The sum of all reports, details included; None when no turn reported anything."""
    total: dict[str, Any] | None = None
    for report in reports:
        if report:
            total = _add(total or {}, report)
    if total is not None:
        for key in BASICS:
            total.setdefault(key, 0)
    return total


def _add(total: dict[str, Any], report: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers add up, inner objects are added field by field, anything else is the newest word on it."""
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
