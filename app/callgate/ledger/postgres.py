"""The ledger in Postgres, for processes on several machines. The driver is imported when it is opened."""

import asyncio
import functools
import os
import re
import secrets
import socket
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import structlog

from callgate.ledger.batches import BATCH, BatchedLedger, LedgerBatch
from callgate.ledger.database import DatabaseAway
from callgate.ledger.fleet_calls import OFFER, FleetOffer
from callgate.ledger.postgres_pool import ConnectionPool, was_lost
from callgate.ledger.tables import (
    CALL_COLUMNS,
    CHANGING,
    ENDS_ONCE,
    IDENTITY,
    MARK_LOST,
    POSTGRES_TABLES,
    POSTGRES_TERMS,
    SPENT,
    VERSION,
    Row,
    fill_in,
)

CONNECT_SECONDS: Final = 3.0
PATIENCE: Final = 5.0
"""The timeout of one statement in seconds."""
CONNECTIONS: Final = 8
AGAIN_SECONDS: Final = 0.5
"""The delay before a failed batch is retried."""
KEPT_SECONDS: Final = 30 * 86_400
PRUNE_SECONDS: Final = 3600.0
MIGRATING: Final = 5_077_015_219_116
"""The number of the advisory lock for migrations, chosen at random."""

_BEAT: Final = (
    "INSERT INTO processes VALUES (?1, ?2, ?3, {now}) ON CONFLICT (name) DO UPDATE SET seen_at = excluded.seen_at"
)
_NUMBERS: Final = {
    "turn": "bigint",
    "writes": "bigint",
    "epoch": "bigint",
    "started_at": "float8",
    "ended_at": "float8",
}
_ROWS: Final = (
    f"INSERT INTO calls ({', '.join(CALL_COLUMNS)}) SELECT * FROM json_to_recordset(CAST(?1 AS JSON)) AS row("
    + ", ".join(f"{column} {_NUMBERS.get(column, 'text')}" for column in CALL_COLUMNS)
    + ") ON CONFLICT (id) DO UPDATE SET "
    + ", ".join(f"{column} = excluded.{column}" for column in CHANGING)
    + f" WHERE {ENDS_ONCE} RETURNING id"
)
"""The rows as JSON, which is cheaper in the driver than an array for each column."""
_PRUNE: Final = (
    "DELETE FROM calls WHERE started_at < {now} - CAST(?1 AS {real}) AND ended_at IS NOT NULL",
    "DELETE FROM spending WHERE period < to_char(to_timestamp({now} - CAST(?1 AS {real})), 'YYYY-MM')",
)
_ROWS_AND_OFFERS: Final = (
    f"WITH begun AS ({_ROWS}), offered AS ({OFFER.replace('?1', '?2')})"
    " SELECT id, false FROM begun UNION ALL SELECT id, true FROM offered"
)

_COLUMNS: Final = (
    "SELECT c.relname, a.attname, a.attnotnull, format_type(a.atttypid, a.atttypmod) AS kind,"
    " pg_get_expr(d.adbin, d.adrelid) AS usual FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid"
    " LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum"
    " WHERE c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped AND c.relnamespace ="
)
_LACKING: Final = (
    "SELECT format('ALTER TABLE %I.%I ADD COLUMN %I %s', $1::text, fresh.relname, fresh.attname, fresh.kind)"
    " || coalesce(' DEFAULT ' || fresh.usual, '') || CASE WHEN fresh.attnotnull THEN ' NOT NULL' ELSE '' END"
    f" FROM ({_COLUMNS} pg_my_temp_schema()) fresh WHERE NOT EXISTS (SELECT 1 FROM ({_COLUMNS} to_regnamespace($2)) there"
    " WHERE there.relname = fresh.relname AND there.attname = fresh.attname)"
)
"""Makes the statements that add missing columns to tables of an older version."""

log = structlog.get_logger("callgate.ledger")


class NotMigrated(Exception):
    """Raised where the tables are missing, or of another version."""


class PostgresDatabase:
    """A few connections to one schema of a server."""

    sees_deaths: Final = False

    def __init__(self, url: str, schema: str = "callgate", connections: int = CONNECTIONS) -> None:
        self._url, self._schema, self._connections = url, schema, connections
        self._pool: ConnectionPool | None = None
        self._beats: ConnectionPool | None = None
        """One connection for heartbeats, so that these do not wait for others."""
        self._identity = ""

    async def open(self) -> None:
        """Connect. Raises `DatabaseAway`, and `NotMigrated` where its tables are of another version."""
        options: dict[str, Any] = {
            "timeout": CONNECT_SECONDS,
            "command_timeout": PATIENCE,
            "server_settings": {"search_path": f'"{self._schema}"', "application_name": "callgate"},
        }
        self._pool = ConnectionPool(self._connections, self._url, **options)
        self._beats = ConnectionPool(1, self._url, **options)
        try:
            found = await self.fetch("SELECT to_regclass(?1)::text", f'"{self._schema}".ledger_version')
            version = await self.fetch("SELECT max(version) FROM ledger_version") if found[0][0] else [(None,)]
            if version[0][0] != VERSION:
                found_version = "missing" if version[0][0] is None else f"of version {version[0][0]}"
                raise NotMigrated(
                    f"its tables are {found_version}, and this Callgate needs version {VERSION}: run `callgate ledger migrate`"
                )
        except BaseException:
            await self.close()
            raise

    async def fetch(self, statement: str, *values: Any) -> list[Row]:
        return await self._asked(self.pool, statement, *values)

    async def _asked(self, pool: ConnectionPool, statement: str, *values: Any) -> list[Row]:
        """Asked again once over another connection where this one was lost: a server that was restarted has closed all of them."""
        text = _here(statement)
        for last in (False, True):
            try:
                return [tuple(row) for row in await pool.fetch(text, *values)]
            except (
                Exception
            ) as error:  # lost in the middle of a statement, the driver raises errors that are no `PostgresError`
                if last or not was_lost(error):
                    raise _away(error) from error
                pool.forget()
        raise AssertionError("it returns or raises")

    async def beat(self, process: str, kind: str, version: str) -> bool:
        assert self._beats is not None, "it is not open"
        await self._asked(self._beats, _BEAT, process, kind, version)
        return True

    async def mark_lost(self, silence: float) -> list[Row]:
        assert self._beats is not None, "it is not open"
        return await self._asked(self._beats, MARK_LOST, silence)

    async def leave(self, process: str) -> None:
        await self.fetch("DELETE FROM processes WHERE name = ?1", process)

    async def identity(self) -> str:
        if not self._identity:
            await self.fetch(IDENTITY[0] + " RETURNING id", secrets.token_hex(8))
            self._identity = (await self.fetch(IDENTITY[1]))[0][0]
        return self._identity

    async def close(self) -> None:
        pools, self._pool, self._beats = (self._pool, self._beats), None, None
        for pool in filter(None, pools):
            await pool.close()

    @property
    def pool(self) -> ConnectionPool:
        assert self._pool is not None, "it is not open"
        return self._pool


async def migrate(url: str, schema: str = "callgate") -> bool:
    """Create or update the tables; return whether there was anything to do. Safe for concurrent callers.

    Raises `DatabaseAway`, and `NotMigrated` where the tables are of a later version."""
    import asyncpg

    try:
        connection = await asyncpg.connect(url, timeout=CONNECT_SECONDS)
        try:
            async with connection.transaction():
                await connection.execute("SELECT pg_advisory_xact_lock($1)", MIGRATING)
                await connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
                for path in ("pg_temp", f'"{schema}", pg_temp'):
                    await connection.execute(f"SET LOCAL search_path TO {path}")
                    for statement in POSTGRES_TABLES:
                        await connection.execute(fill_in(statement, POSTGRES_TERMS))
                lacking = [text for [text] in await connection.fetch(_LACKING, schema, f'"{schema}"')]
                for statement in lacking:
                    await connection.execute(statement)
                found = await connection.fetchval("SELECT max(version) FROM ledger_version")
                if found is not None and found > VERSION:
                    raise NotMigrated(
                        f"its tables are of version {found}, and this Callgate knows {VERSION}: update it"
                    )
                if found != VERSION:
                    await connection.execute("INSERT INTO ledger_version VALUES ($1)", VERSION)
                return bool(lacking or found != VERSION)
        finally:
            await connection.close()
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        raise _away(error) from error


class PostgresLedger(BatchedLedger):
    """Calls in Postgres. Rows that could not be written are retried; calls that wait for them are refused at once."""

    def __init__(self, database: PostgresDatabase, spent: Mapping[tuple[str, str], int]) -> None:
        super().__init__()
        self.process = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self.spent = spent
        self._database = database
        self._pending = LedgerBatch()
        self._news = asyncio.Event()
        self._closing = False
        self._refused = ""
        self._task = asyncio.create_task(self._write_all(), name="ledger")

    @classmethod
    async def opened(cls, database: PostgresDatabase) -> "PostgresLedger":
        rows = await database.fetch("SELECT key_name, period, nano FROM spending")
        return cls(database, {(key, period): nano for key, period, nano in rows})

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._hand_over()
        self._closing = True
        self._news.set()
        await asyncio.wait({self._task}, timeout=2 * PATIENCE)
        self._task.cancel()
        await asyncio.wait({self._task})

    def offer(self, offer: FleetOffer, on_written: Callable[[bool | DatabaseAway], None]) -> None:
        """Offer a call to workers, or take on one that another process has offered, with what came before it.

        `on_written` is called with False where this process has seen an end of it, or has it no more; with `DatabaseAway` where
        it was offered, or was not."""
        self._next.offers.append((on_written, offer))
        self._at_once()

    def _at_once(self) -> None:
        """Start to write; rows that come before the task runs are in the same batch."""
        self._is_urgent = True
        self._news.set()

    def _take(self, batch: LedgerBatch) -> None:
        self._pending.take_in(batch)
        self._news.set()

    async def _write_all(self) -> None:
        prune_at = self._loop.time()
        while True:
            if self._is_urgent:
                self._hand_over()
            if self._pending.is_empty:
                if self._closing:
                    return
                self._news.clear()
                await self._news.wait()
                continue
            batch = self._some()
            failure = ""
            begun, offered = set[str](), set[str]()
            try:
                if batch.calls or batch.offers:
                    begun, offered = await self._written(batch)
                while batch.spending:
                    await self._database.fetch(SPENT, *batch.spending[-1])
                    batch.spending.pop()
                if self._loop.time() >= prune_at:
                    prune_at = self._loop.time() + PRUNE_SECONDS
                    for statement in _PRUNE:
                        await self._database.fetch(statement, float(KEPT_SECONDS))
            except DatabaseAway as away:
                failure = str(away)
            if failure and failure != self._refused:
                log.error("ledger_not_written", error=failure)
            self._refused = failure
            # Waiting calls whose rows have an end already are refused.
            self._settle(batch, failure, {id for _, id in batch.waiting} - begun, offered)
            if failure:
                if self._closing:
                    return
                self._keep(batch)
                await asyncio.sleep(AGAIN_SECONDS)

    async def _written(self, batch: LedgerBatch) -> tuple[set[str], set[str]]:
        """Write a batch; return the calls whose rows were written, and those that were offered."""
        rows = _json([dict(zip(CALL_COLUMNS, row, strict=True)) for row in batch.calls.values()])
        if not batch.offers:
            return {id for [id] in await self._database.fetch(_ROWS, rows)}, set()
        done = await self._database.fetch(_ROWS_AND_OFFERS, rows, _json([offer for _, offer in batch.offers]))
        return {id for id, is_offer in done if not is_offer}, {id for id, is_offer in done if is_offer}

    def _some(self) -> LedgerBatch:
        """Take up to one batch of the waiting rows."""
        whole, self._pending = self._pending, LedgerBatch()
        if len(whole.calls) > BATCH:
            rows = list(whole.calls.items())
            for id, row in rows[BATCH:]:
                del whole.calls[id]
                self._pending.calls[id] = row
            later = [each for each in whole.waiting if each[1] in self._pending.calls]
            whole.waiting = [each for each in whole.waiting if each[1] not in self._pending.calls]
            self._pending.waiting = later
            self._pending.offers, whole.offers = whole.offers, []  # not before their calls
        return whole

    def _keep(self, batch: LedgerBatch) -> None:
        """Keep a batch for the next attempt."""
        later, self._pending = self._pending, batch.unwritten()
        self._behind += len(self._pending)
        self._pending.take_in(later)


def _json(what: Any) -> str:
    return msgspec.json.encode(what).decode()


def _away(error: Exception) -> DatabaseAway:
    """Convert an error, without its URL, which may have a password."""
    return DatabaseAway(f"Postgres: {type(error).__name__}: {error}"[:300])


@functools.cache
def _here(statement: str) -> str:
    return re.sub(r"\?(\d+)", r"$\1", fill_in(statement, POSTGRES_TERMS))
