"""What SQLite's driver is given as it is."""

import sqlite3
from contextlib import closing

from callgate.state.local.plain_values import take_none_as_it_is


def test_none_is_bound_without_a_search_for_an_adapter() -> None:
    take_none_as_it_is()
    assert (type(None), sqlite3.PrepareProtocol) in sqlite3.adapters
    with closing(sqlite3.connect(":memory:")) as database:
        assert database.execute("SELECT ?, typeof(?), ?", (None, None, 1)).fetchone() == (None, "null", 1)
