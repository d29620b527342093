"""Adds up the token usage of a chat's turns, and chooses what of it an answer reports."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias

from callgate.conversation.events import ChatEnded

UsageScope: TypeAlias = Literal["sum", "last_turn"]
"""What an answer reports: the sum over its turns, or the counts of its last turn."""

_NOTHING = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
"""The counts that every sum has."""


def add_usage(reports: Iterable[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """Return the sum of all reports, details included; None when no turn reported anything."""
    total: dict[str, Any] | None = None
    for report in reports:
        if report:
            total = {**_NOTHING, **report} if total is None else _add(total, report)
    return total


def whole_usage(usage: Mapping[str, Any] | None) -> dict[str, Any]:
    """Add missing counts: clients expect all three, and a whole answer must have them."""
    return {**_NOTHING, **(usage or {})}


def reported_usage(ended: ChatEnded, scope: UsageScope) -> Mapping[str, Any] | None:
    """Return the usage for the client. The last turn is the last one that reported any."""
    if scope == "last_turn" and ended.turn_usages:
        return ended.turn_usages[-1]
    return ended.usage


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
