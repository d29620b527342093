"""The `Database` of SQLite: one connection, used by one thread at a time, and not by the event loop."""

import asyncio
import functools
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from callgate.state.database import DatabaseAway
from callgate.state.local.sqlite import DamagedLedger, SqliteLedger, open_file, remove_dead
from callgate.state.tables import MARK_LOST, SQLITE_TERMS, Row, fill_in


class SqliteDatabase:
    """Opened with the first statement after its ledger's file is open. Processes are alive as long as they hold their locks,
    without heartbeats: a beat tries to open a file that is away."""

    sees_deaths: Final = True

    def __init__(self, folder: Path, ledger: SqliteLedger, on_lost: Callable[[int], None]) -> None:
        """`on_lost` is called with the number of calls that became unknown, if any, when the ledger is opened after it was away."""
        self._on_lost = on_lost
        self._folder = folder
        self._ledger = ledger
        self._lock = threading.Lock()
        self._opened: sqlite3.Connection | None = None

    async def fetch(self, statement: str, *values: Any) -> list[Row]:
        return await asyncio.to_thread(self._fetch, _here(statement), values)

    async def beat(self, process: str, kind: str, version: str) -> bool:
        if self._ledger.away:
            lost = await asyncio.to_thread(self._open_ledger)
            if lost:
                self._on_lost(lost)
        return await asyncio.to_thread(self._remove_dead)

    async def mark_lost(self, silence: float) -> list[Row]:
        return await self.fetch(MARK_LOST, silence)

    async def leave(self, process: str) -> None:
        """Do nothing: the ledger does it with its last batch."""

    async def close(self) -> None:
        with self._lock:
            if self._opened is not None:
                self._opened.close()
                self._opened = None

    def _fetch(self, statement: str, values: tuple[Any, ...]) -> list[Row]:
        with self._lock:
            try:
                return self._connection().execute(statement, values).fetchall()
            except sqlite3.Error as error:
                raise DatabaseAway(f"{type(error).__name__}: {error}") from error

    def _remove_dead(self) -> bool:
        with self._lock:
            try:
                return remove_dead(self._connection(), self._folder)
            except (sqlite3.Error, OSError) as error:
                raise DatabaseAway(f"{type(error).__name__}: {error}") from error

    def _open_ledger(self) -> int:
        try:
            return self._ledger.open_again()
        except (DamagedLedger, OSError) as error:
            raise DatabaseAway(self._ledger.away) from error

    def _connection(self) -> sqlite3.Connection:
        if reason := self._ledger.why_not_in_use():
            raise DatabaseAway(reason)
        if self._opened is None:
            self._opened = open_file(self._ledger.path)
        return self._opened


@functools.cache
def _here(statement: str) -> str:
    return fill_in(statement, SQLITE_TERMS)
