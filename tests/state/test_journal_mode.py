"""Files of SQLite that several processes open for the first time at the same moment."""

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from callgate.access.sqlite_limits import LimitsFile
from callgate.state.local.journal_mode import use_write_ahead_journal
from callgate.state.local.sqlite import open_file

OPENERS = 4
FILES = 30


def open_limits(folder: Path) -> None:
    limits = LimitsFile(folder)
    limits._change(lambda database: database.execute("SELECT count(*) FROM slots").fetchone())
    limits.close()


def open_ledger(folder: Path) -> None:
    (folder / "ledger.sqlite3").touch()
    with closing(open_file(folder / "ledger.sqlite3")) as database:
        database.execute("CREATE TABLE IF NOT EXISTS a (b)")


@pytest.mark.parametrize("open_new", [open_limits, open_ledger])
def test_all_who_open_a_new_file_at_once_can_use_it(open_new: Callable[[Path], None], tmp_path: Path) -> None:
    failures: list[Exception] = []
    for number in range(FILES):
        folder = tmp_path / str(number)
        folder.mkdir()
        together = threading.Barrier(OPENERS)

        def open_with_others(folder: Path = folder, together: threading.Barrier = together) -> None:
            together.wait()
            try:
                open_new(folder)
            except Exception as failure:  # noqa: BLE001 - whichever it is, the test tells of it
                failures.append(failure)

        openers = [threading.Thread(target=open_with_others) for _ in range(OPENERS)]
        for opener in openers:
            opener.start()
        for opener in openers:
            opener.join()
    assert failures == []


def test_a_file_that_stays_locked_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "locked.sqlite3"
    with (
        closing(sqlite3.connect(path, isolation_level=None)) as owner,
        closing(sqlite3.connect(path, timeout=0)) as other,
    ):
        owner.execute("CREATE TABLE a (b)")
        owner.execute("BEGIN EXCLUSIVE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            use_write_ahead_journal(other, 0.0)
