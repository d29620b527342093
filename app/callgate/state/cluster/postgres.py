"""The ledger in Postgres, for processes on several machines. The driver is imported when it is opened."""

import asyncio
import contextlib
import functools
import os
import re
import secrets
import socket
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import structlog

from callgate.state.batches import BATCH, BatchedLedger, LedgerBatch, OnOffered
from callgate.state.cluster.postgres_pool import ConnectionPool, was_lost
from callgate.state.database import DatabaseAway, NotMigrated
from callgate.state.entry import CallState
from callgate.state.fleet_calls import OFFER, FleetOffer
from callgate.state.tables import (
    CALL_COLUMNS,
    CHANGING,
    DROPPED_TABLES,
    ENDS_ONCE,
    MARK_LOST,
    MOVE_FLEET_CALLS,
    POSTGRES_TABLES,
    POSTGRES_TERMS,
    RENAMED_TABLES,
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
_OFFER_COLUMNS: Final = ("pool", "offer", "offered_hash")
_OFFERED_ROWS: Final = (
    f"INSERT INTO calls ({', '.join((*CALL_COLUMNS, *_OFFER_COLUMNS))}, offers, offered_at)"
    " SELECT row.*, 1, {now} FROM json_to_recordset(CAST(?2 AS JSON)) AS row("
    + ", ".join(f"{column} {_NUMBERS.get(column, 'text')}" for column in (*CALL_COLUMNS, *_OFFER_COLUMNS))
    + ") ON CONFLICT (id) DO UPDATE SET offers = calls.offers + 1, "
    + ", ".join(f"{column} = excluded.{column}" for column in (*CHANGING, *_OFFER_COLUMNS, "offered_at"))
    + f" WHERE {ENDS_ONCE} RETURNING id, offers"
)
"""Calls that begin and are offered to workers at once."""
_PRUNE: Final = (
    "DELETE FROM calls WHERE started_at < {now} - CAST(?1 AS {real}) AND ended_at IS NOT NULL",
    "DELETE FROM spending WHERE period < to_char(to_timestamp({now} - CAST(?1 AS {real})), 'YYYY-MM')",
)
_ROWS_AND_OFFERS: Final = (
    f"WITH begun AS ({_ROWS}), begun_offered AS ({_OFFERED_ROWS}), offered AS ({OFFER.replace('?1', '?3')})"
    " SELECT id, 0 FROM begun UNION ALL SELECT id, offers FROM begun_offered UNION ALL SELECT id, offers FROM offered"
)
"""The three have different calls."""

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


class PostgresDatabase:
    """A few connections to one schema of a server."""

    sees_deaths: Final = False

    def __init__(self, url: str, schema: str = "callgate", connections: int = CONNECTIONS) -> None:
        self._url = url
        self._schema = schema
        self._connections = connections
        self._pool: ConnectionPool | None = None
        self._beats: ConnectionPool | None = None
        """One connection for heartbeats, so that these do not wait for others."""
        self._is_checked = False
        """The tables are of our version."""

    async def open(self) -> None:
        """Connect. Raises `DatabaseAway`, and `NotMigrated` where its tables are of another version; it is closed then."""
        self.begin()
        try:
            await self.check_version()
        except BaseException:
            await self.close()
            raise

    def begin(self) -> None:
        """Connect with the first statement, which finds out whether the tables are of our version."""
        options: dict[str, Any] = {
            "timeout": CONNECT_SECONDS,
            "command_timeout": PATIENCE,
            "server_settings": {"search_path": f'"{self._schema}"', "application_name": "callgate"},
        }
        self._pool = ConnectionPool(self._connections, self._url, **options)
        self._beats = ConnectionPool(1, self._url, **options)

    async def check_version(self) -> None:
        """Raises `DatabaseAway`, and `NotMigrated` where the tables are of another version."""
        await self._check_version(self.pool)

    async def _check_version(self, pool: ConnectionPool) -> None:
        table = await self._execute(pool, "SELECT to_regclass(?1)::text", f'"{self._schema}".ledger_version')
        found_version = "missing"
        if table[0][0]:
            [[version]] = await self._execute(pool, "SELECT max(version) FROM ledger_version")
            if version == VERSION:
                self._is_checked = True
                return
            if version is not None:
                found_version = f"of version {version}"
        raise NotMigrated(
            f"its tables are {found_version}, and this Callgate needs version {VERSION}: run `callgate ledger migrate`"
        )

    async def fetch(self, statement: str, *values: Any) -> list[Row]:
        return await self._checked(self.pool, statement, *values)

    async def _checked(self, pool: ConnectionPool, statement: str, *values: Any) -> list[Row]:
        if not self._is_checked:  # it was away when it was opened
            try:
                await self._check_version(pool)
            except NotMigrated as error:
                raise DatabaseAway(str(error)) from error
        return await self._execute(pool, statement, *values)

    async def _execute(self, pool: ConnectionPool, statement: str, *values: Any) -> list[Row]:
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
        await self._checked(self._beats, _BEAT, process, kind, version)
        return True

    async def mark_lost(self, silence: float) -> list[Row]:
        assert self._beats is not None, "it is not open"
        return await self._checked(self._beats, MARK_LOST, silence)

    async def leave(self, process: str) -> None:
        await self.fetch("DELETE FROM processes WHERE name = ?1", process)

    async def close(self) -> None:
        pools = (self._pool, self._beats)
        self._pool = None
        self._beats = None
        for pool in filter(None, pools):
            await pool.close()

    @property
    def pool(self) -> ConnectionPool:
        assert self._pool is not None, "it is not open"
        return self._pool


async def migrate(url: str, schema: str = "callgate") -> bool:
    """Create or update the tables; return whether there was anything to do. Safe for concurrent callers.

    Raises `DatabaseAway`, also for a URL that is none, and `NotMigrated` where the tables are of a later version."""
    import asyncpg

    try:
        connection = await asyncpg.connect(url, timeout=CONNECT_SECONDS)
        try:
            async with connection.transaction():
                await connection.execute("SELECT pg_advisory_xact_lock($1)", MIGRATING)
                await connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
                await connection.execute(f'SET LOCAL search_path TO "{schema}"')
                for statement in RENAMED_TABLES:
                    await connection.execute(statement)
                for path in ("pg_temp", f'"{schema}", pg_temp'):
                    await connection.execute(f"SET LOCAL search_path TO {path}")
                    for statement in POSTGRES_TABLES:
                        await connection.execute(fill_in(statement, POSTGRES_TERMS))
                lacking = [text for [text] in await connection.fetch(_LACKING, schema, f'"{schema}"')]
                for statement in (*lacking, MOVE_FLEET_CALLS, DROPPED_TABLES):
                    await connection.execute(statement)
                version = await connection.fetchval("SELECT max(version) FROM ledger_version")
                if version is not None and version > VERSION:
                    raise NotMigrated(
                        f"its tables are of version {version}, and this Callgate knows {VERSION}: update it"
                    )
                if version != VERSION:
                    await connection.execute("INSERT INTO ledger_version VALUES ($1)", VERSION)
                return bool(lacking or version != VERSION)
        finally:
            await connection.close()
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, ValueError) as error:
        raise _away(error) from error


class PostgresLedger(BatchedLedger):
    """Calls in Postgres. Rows that could not be written are retried; calls that wait for them are refused at once."""

    def __init__(self, database: PostgresDatabase) -> None:
        super().__init__()
        self.process = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self.spent: Mapping[tuple[str, str], int] | None = None
        self._database = database
        self._pending = LedgerBatch()
        self._news = asyncio.Event()
        self._closing = False
        self._refused = ""
        self._task = asyncio.create_task(self._write_all(), name="ledger")

    async def read_spending(self) -> None:
        """Read what keys have spent so far. Raises `DatabaseAway`."""
        rows = await self._database.fetch("SELECT key_name, period, nano FROM spending")
        self.spent = {(key, period): max(nano, 0) for key, period, nano in rows}

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._hand_over()
        self._closing = True
        self._news.set()
        await asyncio.wait({self._task}, timeout=2 * PATIENCE)
        self._task.cancel()
        await asyncio.wait({self._task})

    def offer(self, offer: FleetOffer, on_offered: OnOffered) -> None:
        """Offer a call to workers, or take on one that another process has offered, with what came before it. 0 where it has ended, or is
        another process's."""
        self._next.offers.append((on_offered, offer))
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
                await self._wait_for_news()
                continue
            batch = self._some()
            failure = ""
            begun: set[str] = set()
            offered: dict[str, int] = {}
            try:
                if batch.calls or batch.offers:
                    begun, offered = await self._written(batch)
                if batch.spending and self.spent is None:
                    await self.read_spending()  # before ours is added to it
                while batch.spending:
                    place, nano = next(iter(batch.spending.items()))
                    await self._database.fetch(SPENT, *place, nano)
                    del batch.spending[place]
                if self._loop.time() >= prune_at:
                    prune_at = self._loop.time() + PRUNE_SECONDS
                    for statement in _PRUNE:
                        await self._database.fetch(statement, float(KEPT_SECONDS))
            except DatabaseAway as away:
                failure = str(away)
            self._log(failure)
            # Waiting calls whose rows have an end already are refused.
            self._settle(batch, failure, {id for _, id in batch.waiting} - begun, offered)
            if failure:
                if self._closing:
                    return
                self._keep(batch)
                await asyncio.sleep(AGAIN_SECONDS)

    async def _wait_for_news(self) -> None:
        """Wait for rows; meanwhile read the spending, where the database was away when it was to be read."""
        while self.spent is None and not self._news.is_set():
            with contextlib.suppress(DatabaseAway):  # said by the ledger's presence
                await self.read_spending()
                break
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_SECONDS):
                    await self._news.wait()
        await self._news.wait()

    def _log(self, failure: str) -> None:
        """Log a failure to write, once for each reason, and that there is none any more."""
        if failure and failure != self._refused:
            log.error("ledger_not_written", error=failure)
        elif self._refused and not failure:
            log.warning("ledger_written_again")
        self._refused = failure

    async def _written(self, batch: LedgerBatch) -> tuple[set[str], dict[str, int]]:
        """Write a batch; return the calls whose rows were written, and those that were offered with the numbers of their offers."""
        if not batch.offers:
            rows = [dict(zip(CALL_COLUMNS, row, strict=True)) for row in batch.calls.values()]
            return {id for [id] in await self._database.fetch(_ROWS, _json(rows))}, {}
        offers = {offer.id: offer for _, offer in batch.offers}
        begun: list[dict[str, Any]] = []
        both: list[dict[str, Any]] = []
        for id, values in batch.calls.items():
            row = dict(zip(CALL_COLUMNS, values, strict=True))
            offer = offers.pop(id, None)
            if offer is None or row["state"] != CallState.STARTED.value:  # one that has ended already is not offered
                begun.append(row)
            else:
                offered_columns = {"pool": offer.pool, "offer": offer.offer, "offered_hash": offer.arguments_hash}
                both.append({**row, "state": CallState.WAITING.value, **offered_columns})
        written = await self._database.fetch(_ROWS_AND_OFFERS, _json(begun), _json(both), _json(list(offers.values())))
        return {id for id, _ in written}, {id: number for id, number in written if number}

    def _some(self) -> LedgerBatch:
        """Take up to one batch of the waiting rows."""
        whole = self._pending
        self._pending = LedgerBatch()
        if len(whole.calls) > BATCH:
            rows = list(whole.calls.items())
            for id, row in rows[BATCH:]:
                del whole.calls[id]
                self._pending.calls[id] = row
            later = [waiter for waiter in whole.waiting if waiter[1] in self._pending.calls]
            whole.waiting = [waiter for waiter in whole.waiting if waiter[1] not in self._pending.calls]
            self._pending.waiting = later
            # not before their calls
            self._pending.offers = whole.offers
            whole.offers = []
        return whole

    def _keep(self, batch: LedgerBatch) -> None:
        """Keep a batch for the next attempt."""
        later = self._pending
        self._pending = batch.unwritten()
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
