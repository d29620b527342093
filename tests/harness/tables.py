"""Tests of three or more parameters play every pair of their values, and all combinations in `make chaos`.

What goes wrong for one API, streamed, with one store goes wrong for two of these three as a rule: a table of all combinations is as
many times longer as its shortest side is long.
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations

import pytest

from tests.chaos.scale import LONG

ALL_BUT_PAIRS = os.environ.get("CALLGATE_TRIPLES") == "only"
"""Only what other runs leave out is played."""
SMALLEST = 8
"""Combinations: a table with fewer is played whole."""
Row = tuple[object, ...]
"""Which value a test has of each parameter."""


def left_out(items: Sequence[pytest.Item]) -> set[pytest.Item]:
    """Return the tests that this run leaves out."""
    if LONG and not ALL_BUT_PAIRS:
        return set()
    tables: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        tables[item.nodeid.partition("[")[0]].append(item)
    beyond_pairs = {item for table in tables.values() for item in _beyond_pairs(table)}
    return {*items} - beyond_pairs if ALL_BUT_PAIRS else beyond_pairs


def _beyond_pairs(table: Sequence[pytest.Item]) -> Iterable[pytest.Item]:
    marks = [*table[0].iter_markers("parametrize")]
    if len(table) < SMALLEST or len(marks) < 3:
        return ()
    rows = [_row(item, marks) for item in table]
    kept = with_every_pair(rows)
    return [item for place, item in enumerate(table) if place not in kept]


def _row(item: pytest.Item, marks: Sequence[pytest.Mark]) -> Row:
    """Return the values of a test, one for each of its decorators, by what they are and not by what they equal."""
    values = item.callspec.params  # type: ignore[attr-defined]
    return tuple(tuple(id(values.get(name)) for name in _names(mark)) for mark in marks)


def _names(mark: pytest.Mark) -> Sequence[str]:
    names = mark.args[0] if mark.args else mark.kwargs["argnames"]
    return [name.strip() for name in names.split(",")] if isinstance(names, str) else names


def with_every_pair(rows: Sequence[Row]) -> set[int]:
    """Return the places of few rows that have each pair of values that any row has: always the next that has most of those
    still missing."""
    pairs = [
        {(*columns, row[columns[0]], row[columns[1]]) for columns in combinations(range(len(row)), 2)} for row in rows
    ]
    missing = set().union(*pairs)
    kept: set[int] = set()
    while missing:
        best = max(range(len(rows)), key=lambda place: len(pairs[place] & missing))
        kept.add(best)
        missing -= pairs[best]
    return kept
