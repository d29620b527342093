"""Clients' keys in a shared ledger: a key created on one machine works on all within a second."""

import asyncio
import time
from collections.abc import Coroutine, Sequence
from math import inf
from typing import Any, Final, TypeVar

import structlog

from callgate.access.key_store import COLUMNS, NameTaken, StoredKey, allowance_text, row_of, stored_key
from callgate.access.keys import NO_LOOK, KeyEntry, KeysUnknown
from callgate.callers.allowance import Allowance
from callgate.state.cluster.postgres import PostgresDatabase
from callgate.state.database import Database, DatabaseAway
from callgate.telemetry.outages import Outage

LOOK_SECONDS: Final = 1.0
"""The longest that a revoked key still works."""
STALE_SECONDS: Final = 60.0
"""How long the keys that were read last stay valid while the ledger is away."""

_ALL: Final = f"SELECT {COLUMNS} FROM keys ORDER BY created_at, name"  # noqa: S608 - constants
_ADD: Final = (
    f"INSERT INTO keys ({COLUMNS}) VALUES ({', '.join(f'?{at}' for at in range(1, len(COLUMNS.split(',')) + 1))})"  # noqa: S608 - constants
    " ON CONFLICT DO NOTHING RETURNING name"
)
_REVOKE: Final = "UPDATE keys SET revoked_at = {now} WHERE name = ?1 AND revoked_at IS NULL RETURNING name"
_LIMIT: Final = "UPDATE keys SET allowance = ?2 WHERE name = ?1 AND revoked_at IS NULL RETURNING name"
_ROTATE: Final = "UPDATE keys SET old_hash = hash, old_expires_at = ?3, hash = ?2 WHERE name = ?1 AND revoked_at IS NULL RETURNING name"

log = structlog.get_logger("callgate.keys")
T = TypeVar("T")


class LedgerKeys:
    """The keys as a server reads them."""

    look: Final = NO_LOOK  # they are compared with those of before each time, and that is cheap

    def __init__(self, database: Database) -> None:
        self._database = database
        self._stored: list[StoredKey] = []
        self._entries: tuple[KeyEntry, ...] = ()
        self._read_at = -inf
        self._outage = Outage()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Read the keys, and go on reading them."""
        await self._try_to_read()
        self._task = asyncio.create_task(self._keep_reading(), name="keys in the ledger")

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def entries(self) -> Sequence[KeyEntry]:
        if time.monotonic() - self._read_at > STALE_SECONDS:
            raise KeysUnknown
        return self._entries

    @property
    def in_use(self) -> bool:
        return bool(self._stored) or self._read_at == -inf

    def look_away(self) -> bool:
        """Return whether the keys could not be read the last time."""
        return self._outage.is_on

    def all(self) -> list[StoredKey]:
        """Return all keys, revoked ones included, the oldest first."""
        return self._stored

    async def add(self, entry: KeyEntry) -> None:
        """Store a key. Raises `NameTaken`, and `KeysUnknown` where the ledger is away."""
        if not await self._write(_ADD, *row_of(entry)):
            raise NameTaken(entry.name)

    async def revoke(self, name: str) -> bool:
        """Revoke a key; return whether there was one of that name. Raises `KeysUnknown`."""
        return bool(await self._write(_REVOKE, name))

    async def limit(self, name: str, allowance: Allowance) -> bool:
        """Give a key other limits; return whether there was one of that name. Raises `KeysUnknown`."""
        return bool(await self._write(_LIMIT, name, allowance_text(allowance)))

    async def _write(self, statement: str, *values: Any) -> Sequence[Any]:
        try:
            rows = await self._database.fetch(statement, *values)
            await self._read()
        except DatabaseAway as failure:
            log.error("key_store_not_written", error=str(failure))  # noqa: TRY400 - the reason is all there is to say
            raise KeysUnknown from None
        return rows

    async def _read(self) -> None:
        began = time.monotonic()
        keys = [stored_key(row) for row in await self._database.fetch(_ALL)]
        if keys != self._stored:
            self._stored = keys
            self._entries = tuple(key.entry for key in keys if key.revoked_at is None)
        self._read_at = began

    async def _keep_reading(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self._try_to_read()

    async def _try_to_read(self) -> None:
        try:
            await self._read()
            if failures := self._outage.over():
                log.warning("key_store_readable_again", failures=failures)
        except (DatabaseAway, ValueError, TypeError) as failure:
            # The keys that were read last stay valid for a while: a restart of the database must not refuse every request.
            if failures := self._outage.failed():
                log.error("key_store_unreadable", error=str(failure), failures=failures)  # noqa: TRY400 - the reason is all there is to say


class KeysByHand:
    """The keys as the command line writes them. Raises `DatabaseAway`, and `NotMigrated` when it is created."""

    def __init__(self, url: str, schema: str) -> None:
        self._runner = asyncio.Runner()
        self._database = PostgresDatabase(url, schema)
        try:
            self._run(self._database.open())
        except BaseException:
            self._runner.close()
            raise

    def all(self) -> list[StoredKey]:
        return [stored_key(row) for row in self._run(self._database.fetch(_ALL))]

    def add(self, entry: KeyEntry) -> None:
        if not self._run(self._database.fetch(_ADD, *row_of(entry))):
            raise NameTaken(entry.name)

    def revoke(self, name: str) -> bool:
        """Revoke a key; return whether there was one of that name."""
        return bool(self._run(self._database.fetch(_REVOKE, name)))

    def limit(self, name: str, allowance: Allowance) -> bool:
        """Give a key other limits; return whether there was one of that name."""
        return bool(self._run(self._database.fetch(_LIMIT, name, allowance_text(allowance))))

    def rotate(self, name: str, digest: str, old_expires_at: float) -> bool:
        """Replace the key of a name; the old one stays valid until `old_expires_at`. Return whether there was such a key."""
        return bool(self._run(self._database.fetch(_ROTATE, name, digest, old_expires_at)))

    def close(self) -> None:
        self._run(self._database.close())
        self._runner.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)
