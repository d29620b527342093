"""The `Database` of SQLite: one connection, used by one thread at a time, and not by the event loop."""

import asyncio
import functools
import secrets
import sqlite3
import threading
from pathlib import Path
from typing import Any, Final

from callgate.ledger.database import DatabaseAway
from callgate.ledger.sqlite import FILE, opened, remove_dead
from callgate.ledger.tables import IDENTITY, MARK_LOST, SQLITE_TERMS, Row, fill_in


class SqliteDatabase:
    """Opened with the first statement, in a folder whose ledger is open. Processes are alive as long as they hold their locks,
    without heartbeats."""

    sees_deaths: Final = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._opened: sqlite3.Connection | None = None
        self._identity = ""

    async def fetch(self, statement: str, *values: Any) -> list[Row]:
        return await asyncio.to_thread(self._fetch, _here(statement), values)

    async def beat(self, process: str, kind: str, version: str) -> bool:
        return await asyncio.to_thread(self._remove_dead)

    async def mark_lost(self, silence: float) -> list[Row]:
        return await self.fetch(MARK_LOST, silence)

    async def leave(self, process: str) -> None:
        """Do nothing: the ledger does it with its last batch."""

    async def identity(self) -> str:
        if not self._identity:
            await self.fetch(IDENTITY[0], secrets.token_hex(8))
            self._identity = (await self.fetch(IDENTITY[1]))[0][0]
        return self._identity

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

    def _connection(self) -> sqlite3.Connection:
        if self._opened is None:
            self._opened = opened(self._folder / FILE)
        return self._opened


@functools.cache
def _here(statement: str) -> str:
    return fill_in(statement, SQLITE_TERMS)
