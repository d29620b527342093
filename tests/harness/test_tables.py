"""Of a table with three columns few rows are played, and no pair of values is lost."""

from itertools import combinations, product

from tests.harness.tables import Row, with_every_pair


def pairs_of(rows: list[Row]) -> set[Row]:
    return {
        (first, second, row[first], row[second]) for row in rows for first, second in combinations(range(len(row)), 2)
    }


def test_every_pair_is_played_in_as_many_rows_as_the_two_longest_columns_have_pairs() -> None:
    rows: list[Row] = [
        *product(("chat", "responses", "messages"), ("streamed", "whole"), ("memory", "sqlite", "redis"))
    ]
    kept = [rows[place] for place in with_every_pair(rows)]
    assert pairs_of(kept) == pairs_of(rows)
    assert len(kept) == 9


def test_combinations_that_are_not_there_are_not_missed() -> None:
    rows: list[Row] = [("a", 1, True), ("a", 2, False), ("b", 1, False)]
    assert with_every_pair(rows) == {0, 1, 2}
