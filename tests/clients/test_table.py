"""The page of clients says what the run saw. Plays after the matrix: files are taken in the order of their names."""

import os

import pytest

from tests.clients import table
from tests.clients.behaviours import BEHAVIOURS, COLUMNS
from tests.clients.clients import CLIENTS, Client
from tests.clients.table import Results

FIRST, SECOND, *_ = CLIENTS


def _played(*clients: Client, fault: str = "") -> Results:
    cases = [(client, behaviour.name) for client in clients for behaviour in BEHAVIOURS]
    return Results(
        {
            (client.name, name): "known fault" if name == fault else "passed"
            for client, name in cases
            if name not in client.cannot
        }
    )


def _row(page: str, client: Client) -> str:
    return next(line for line in page.splitlines() if line.startswith(f"| {client.title} |"))


def test_a_page_has_a_row_for_every_client_that_was_played_and_a_column_for_every_kind_of_behaviour():
    page = table.page(_played(*CLIENTS), "")
    assert all(_row(page, client).count("|") == len(COLUMNS) + 3 for client in CLIENTS)
    assert {behaviour.column for behaviour in BEHAVIOURS} == set(COLUMNS)


def test_a_page_is_current_until_a_run_says_otherwise():
    page = table.page(_played(*CLIENTS), "")
    assert not list(table.differences(_played(*CLIENTS), page))
    version = FIRST.versions[FIRST.packages[0]]
    assert list(table.differences(_played(*CLIENTS), page.replace(version, "0.0.1", 1))) == [FIRST.title]


def test_a_client_that_was_not_played_keeps_its_row_with_a_mark_and_is_not_held_against_the_page():
    before = table.page(_played(*CLIENTS), "")
    half = _played(FIRST)
    del half.outcomes[FIRST.name, BEHAVIOURS[-1].name]
    for results in (_played(SECOND), half, Results()):
        assert not list(table.differences(results, before))
        page = table.page(results, before)
        assert table.OLD in _row(page, FIRST)
        assert _row(page, FIRST).replace(table.OLD, "") == _row(before, FIRST)
        assert table.page(results, page) == page
        assert table.page(_played(*CLIENTS), page) == before


def test_a_client_that_failed_changes_nothing_on_the_page():
    before = table.page(_played(*CLIENTS), "")
    failed = _played(*CLIENTS)
    failed.outcomes[FIRST.name, BEHAVIOURS[0].name] = "failed"
    assert not list(table.differences(failed, before))


def test_the_page_is_what_this_run_saw(request: pytest.FixtureRequest):
    results = request.config.stash[table.RESULTS]
    if os.environ.get(table.WRITE) == "write":
        table.write(results)
    stale = list(table.differences(results, table.read()))
    assert not stale, f"docs/clients.md is not current for {', '.join(stale)}: `make clients` writes it"
