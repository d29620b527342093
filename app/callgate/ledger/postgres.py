"""The ledger in Postgres, for processes on several machines. Imports its driver when it is opened."""

import asyncio
import contextlib
import functools
import os
import re
import secrets
import socket
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import structlog

from callgate.ledger.batches import BACKLOG, BATCH, BatchedLedger, LedgerBatch
from callgate.ledger.database import DatabaseAway
from callgate.ledger.tables import (
    CALL_COLUMNS,
    CHANGING,
    ENDS_ONCE,
    IDENTITY,
    MARK_LOST,
    POSTGRES_TABLES,
    POSTGRES_WORDS,
    SPENT,
    VERSION,
    Row,
    in_words,
)

if TYPE_CHECKING:
    import asyncpg

CONNECT_SECONDS: Final = 3.0
PATIENCE: Final = 5.0
"""Seconds for one statement: a call that may write waits for its row."""
CONNECTIONS: Final = 8
AGAIN_SECONDS: Final = 0.5
"""After a batch was refused, until it is tried again."""
KEPT_SECONDS: Final = 30 * 86_400
PRUNE_SECONDS: Final = 3600.0
MIGRATING: Final = 5_077_015_219_116
"""The lock that whoever makes the tables holds: any number that nobody else has."""

_BEAT: Final = (
    "INSERT INTO processes VALUES (?1, ?2, ?3, {now}) ON CONFLICT (name) DO UPDATE SET seen_at = excluded.seen_at"
)
_TYPES: Final = (
    "text", "text", "text", "bigint", "text", "text", "text", "text", "bigint", "float8", "text", "bigint", "text", "float8",
    "text", "text",
)  # fmt: skip
_ROWS: Final = (
    f"INSERT INTO calls ({', '.join(CALL_COLUMNS)}) SELECT * FROM unnest("
    + ", ".join(f"${at}::{kind}[]" for at, kind in enumerate(_TYPES, 1))
    + ") ON CONFLICT (id) DO UPDATE SET "
    + ", ".join(f"{column} = excluded.{column}" for column in CHANGING)
    + f" WHERE {ENDS_ONCE} RETURNING id"
)

log = structlog.get_logger("callgate.ledger")


class NotMigrated(Exception):
    """The tables are missing, or of another version."""


class PostgresDatabase:
    """A few connections to one server and one schema of it."""

    sees_deaths: Final = False

    def __init__(self, url: str, schema: str = "callgate", connections: int = CONNECTIONS) -> None:
        self._url, self._schema, self._connections = url, schema, connections
        self._pool: asyncpg.Pool[Any] | None = None
        self._beats: asyncpg.Pool[Any] | None = None
        """One connection, made with the first beat: a process whose others are all waited for is not dead."""
        self._identity = ""

    async def open(self) -> None:
        """Raises `DatabaseAway`, and `NotMigrated` where its tables are not those of this version."""
        import asyncpg

        options: dict[str, Any] = {
            "timeout": CONNECT_SECONDS,
            "command_timeout": PATIENCE,
            "reset": _nothing_to_reset,
            "server_settings": {"search_path": f'"{self._schema}"', "application_name": "callgate"},
        }
        async with _our_errors():
            self._pool = await asyncpg.create_pool(self._url, min_size=1, max_size=self._connections, **options)
            self._beats = await asyncpg.create_pool(self._url, min_size=0, max_size=1, **options)
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

    async def _asked(self, pool: "asyncpg.Pool[Any]", statement: str, *values: Any) -> list[Row]:
        """Asked again once where the connection was lost: a server that was restarted has closed all of them."""
        import asyncpg

        text = _here(statement)
        for last in (False, True):
            try:
                async with _our_errors():
                    return [tuple(row) for row in await pool.fetch(text, *values)]
            except DatabaseAway as away:
                lost = isinstance(away.__cause__, asyncpg.PostgresConnectionError | asyncpg.InterfaceError | OSError)
                if last or not lost or isinstance(away.__cause__, TimeoutError):
                    raise
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
            try:
                async with asyncio.timeout(PATIENCE):
                    await pool.close()
            except (TimeoutError, OSError):
                pool.terminate()

    @property
    def pool(self) -> "asyncpg.Pool[Any]":
        assert self._pool is not None, "it is not open"
        return self._pool


async def migrate(url: str, schema: str = "callgate") -> bool:
    """Make the tables, or bring them up to date; whether there was anything to do. Several may try at once.

    Raises `DatabaseAway`, and `NotMigrated` where the tables are of a later version."""
    import asyncpg

    async with _our_errors():
        connection = await asyncpg.connect(url, timeout=CONNECT_SECONDS)
        try:
            async with connection.transaction():
                await connection.execute("SELECT pg_advisory_xact_lock($1)", MIGRATING)
                await connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
                await connection.execute(f'SET LOCAL search_path TO "{schema}"')
                for statement in POSTGRES_TABLES:
                    await connection.execute(in_words(statement, POSTGRES_WORDS))
                found = await connection.fetchval("SELECT max(version) FROM ledger_version")
                if found is not None and found > VERSION:
                    raise NotMigrated(
                        f"its tables are of version {found}, and this Callgate knows {VERSION}: update it"
                    )
                if found != VERSION:
                    await connection.execute("INSERT INTO ledger_version VALUES ($1)", VERSION)
                return bool(found != VERSION)
        finally:
            await connection.close()


class PostgresLedger(BatchedLedger):
    """Calls in Postgres. What could not be written is kept and tried again; whoever waits for it is refused at once."""

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

    def _take(self, batch: LedgerBatch) -> None:
        self._pending.take_in(batch)
        self._news.set()

    async def _write_all(self) -> None:
        prune_at = self._loop.time()
        while True:
            while not self._pending and not self._pending.waiting:
                if self._closing:
                    return
                self._news.clear()
                await self._news.wait()
            batch = self._some()
            failure, refused = "", frozenset[str]()
            try:
                # The calls that somebody waits for and whose rows have an end already.
                accepted: set[str] = set()
                if batch.calls:
                    columns = zip(*batch.calls.values(), strict=True)
                    accepted = {id for [id] in await self._database.fetch(_ROWS, *map(list, columns))}
                while batch.spending:
                    await self._database.fetch(SPENT, *batch.spending[-1])
                    batch.spending.pop()
                refused = frozenset(id for _, id in batch.waiting if id not in accepted)
                if self._loop.time() >= prune_at:
                    prune_at = self._loop.time() + PRUNE_SECONDS
                    await self._database.fetch(
                        "DELETE FROM calls WHERE started_at < {now} - CAST(?1 AS {real}) AND ended_at IS NOT NULL",
                        float(KEPT_SECONDS),
                    )
                    await self._database.fetch(
                        "DELETE FROM spending WHERE period < to_char(to_timestamp({now} - CAST(?1 AS {real})), 'YYYY-MM')",
                        float(KEPT_SECONDS),
                    )
            except DatabaseAway as away:
                failure = str(away)
            if failure and failure != self._refused:
                log.error("ledger_not_written", error=failure)
            self._refused = failure
            self._settle(batch, failure, refused)
            if failure:
                if self._closing:
                    return
                self._keep(batch)
                await asyncio.sleep(AGAIN_SECONDS)

    def _some(self) -> LedgerBatch:
        """Of what waits, no more than one batch."""
        whole, self._pending = self._pending, LedgerBatch()
        if len(whole.calls) > BATCH:
            rows = list(whole.calls.items())
            for id, row in rows[BATCH:]:
                del whole.calls[id]
                self._pending.calls[id] = row
            later = [each for each in whole.waiting if each[1] in self._pending.calls]
            whole.waiting = [each for each in whole.waiting if each[1] not in self._pending.calls]
            self._pending.waiting = later
        return whole

    def _keep(self, batch: LedgerBatch) -> None:
        """For the next try: an end that was never written would leave its call under way for ever. Whoever waited was refused,
        so that what he waited for has not begun."""
        for _, id in batch.waiting:
            batch.calls.pop(id, None)
        later, self._pending = (
            self._pending,
            LedgerBatch(dict(list(batch.calls.items())[-BACKLOG:]), batch.spending[-BACKLOG:]),
        )
        self._behind += len(self._pending)
        self._pending.take_in(later)


@contextlib.asynccontextmanager
async def _our_errors() -> AsyncIterator[None]:
    """An address may hold a password, so nothing of it is repeated."""
    import asyncpg

    try:
        yield
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
        raise DatabaseAway(f"Postgres: {type(error).__name__}: {error}"[:300]) from error


async def _nothing_to_reset(connection: Any) -> None:
    """Each statement is a transaction of its own and sets nothing: what asyncpg would ask the server for is a round trip each
    time."""


@functools.cache
def _here(statement: str) -> str:
    return re.sub(r"\?(\d+)", r"$\1", in_words(statement, POSTGRES_WORDS))
