"""The write-ahead journal of SQLite's files, which several processes open at the same moment."""

import sqlite3
import time
from typing import Final

PAUSE_SECONDS: Final = 0.005


def use_write_ahead_journal(database: sqlite3.Connection, patience: float) -> None:
    """Have a file keep its changes in a write-ahead journal. While another process does the same to a new file, SQLite says that it
    is locked at once, whatever the connection's timeout is: so it is asked again for these seconds."""
    give_up_at = time.monotonic() + patience
    while True:
        try:
            database.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as failure:
            if failure.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > give_up_at:
                raise
            time.sleep(PAUSE_SECONDS)
        else:
            return
