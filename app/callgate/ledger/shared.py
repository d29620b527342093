"""The ledger of one process in either database: its calls, the database for other tables, and presence."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog

from callgate.ledger.database import Database, DatabaseAway
from callgate.ledger.entry import Ledger
from callgate.ledger.presence import Presence
from callgate.ledger.sqlite import SqliteLedger
from callgate.ledger.sqlite_database import SqliteDatabase

log = structlog.get_logger("callgate.ledger")


class SpendingLedger(Ledger, Protocol):
    """A ledger that also stores the spending of keys."""

    @property
    def spent(self) -> Mapping[tuple[str, str], int]:
        """The spending of each key in each period when the ledger was opened, in nanodollars."""
        ...

    def remember_spending(self, key_name: str, period: str, nano: int) -> None: ...


@dataclass(frozen=True, slots=True)
class SharedLedger:
    """An open ledger."""

    calls: SpendingLedger
    database: Database
    presence: Presence

    async def spent_by(self, key_name: str, day: str, month: str) -> tuple[int, int] | None:
        """Return a key's spending in these periods in nanodollars; None where the ledger cannot be reached."""
        try:
            rows = await self.database.fetch(
                "SELECT period, nano FROM spending WHERE key_name = ?1 AND period IN (?2, ?3)", key_name, day, month
            )
        except DatabaseAway as error:
            log.error("spending_unknown", key=key_name, error=str(error))  # noqa: TRY400 - the reason is all there is to say
            return None
        spent: dict[str, int] = dict(rows)
        return spent.get(day, 0), spent.get(month, 0)

    async def close(self) -> None:
        await self.calls.close()
        await self.presence.close()
        await self.database.close()


async def open_ledger(
    *,
    folder: Path | str | None = None,
    url: str | None = None,
    schema: str = "callgate",
    dead_after: float,
    on_lost: Callable[[int], None],
    version: str = "",
) -> SharedLedger:
    """Open the ledger of a Postgres server's `url`, else of a folder.

    Raises `DatabaseAway`, `NotMigrated` and `DamagedLedger`, and `ModuleNotFoundError` without the driver."""
    calls: SpendingLedger
    database: Database
    if url is not None:
        from callgate.ledger.postgres import PostgresDatabase, PostgresLedger

        database = postgres = PostgresDatabase(url, schema)
        await postgres.open()
        calls = await PostgresLedger.opened(postgres)
    else:
        assert folder is not None, "a ledger is somewhere"
        calls = SqliteLedger(Path(folder), version)
        database = SqliteDatabase(Path(folder))
        if calls.found_unknown:
            on_lost(calls.found_unknown)
    presence = Presence(database, calls.process, dead_after, on_lost, version)
    try:
        await presence.open()
    except BaseException:
        await calls.close()
        await database.close()
        raise
    return SharedLedger(calls, database, presence)
