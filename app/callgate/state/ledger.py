"""The ledger of one process in either database: its calls, the database for other tables, and presence."""

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec
import structlog

from callgate.state.database import Database, DatabaseAway, NotMigrated
from callgate.state.entry import Ledger
from callgate.state.local.sqlite import DamagedLedger, SqliteLedger
from callgate.state.local.sqlite_database import SqliteDatabase
from callgate.state.presence import Presence

log = structlog.get_logger("callgate.ledger")


class SpendingLedger(Ledger, Protocol):
    """A ledger that also stores the spending of keys."""

    @property
    def spent(self) -> Mapping[tuple[str, str], int] | None:
        """The spending of each key in each period when the ledger was opened, in nanodollars; None until it is."""
        ...

    def remember_spending(self, key_name: str, period: str, nano: int) -> None: ...


class SharedLedger(msgspec.Struct, frozen=True):
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
        return max(spent.get(day, 0), 0), max(spent.get(month, 0), 0)

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
    """Open the ledger of a Postgres server's `url`, else of a folder. One that is away is opened by its `presence` once it is back;
    until then all that needs it is refused.

    Raises `NotMigrated`, and `ModuleNotFoundError` without the driver."""
    calls: SpendingLedger
    database: Database
    if url is not None:
        from callgate.state.cluster.postgres import PostgresDatabase, PostgresLedger

        database = postgres = PostgresDatabase(url, schema)
        postgres.begin()
        try:
            await postgres.check_version()
        except NotMigrated:
            await postgres.close()
            raise
        except DatabaseAway:  # said by its presence
            calls = PostgresLedger(postgres)
        else:
            calls = PostgresLedger(postgres)
            with contextlib.suppress(DatabaseAway):
                await calls.read_spending()
    else:
        assert folder is not None, "a ledger is somewhere"
        calls = SqliteLedger(Path(folder), version)
        with contextlib.suppress(DamagedLedger, OSError):  # said by its presence
            if lost := calls.open():
                on_lost(lost)
        database = SqliteDatabase(Path(folder), calls, on_lost)
    presence = Presence(database, calls.process, dead_after, on_lost, version)
    try:
        await presence.open()
    except BaseException:
        await calls.close()
        await database.close()
        raise
    return SharedLedger(calls, database, presence)
