"""A store in the ledger's Postgres, for processes that share one and no Redis."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from callgate.ledger.database import Database, DatabaseAway
from callgate.stores.store import Share, StoreError

PRUNE_EVERY: Final = 256
"""Entries added between two times that expired ones are deleted."""
SUM_EVERY: Final = 64
"""Entries put into a share between two times that it is added up, unless it may be full."""
SHARES: Final = 10_000
"""Shares whose sizes are remembered."""

_PUT: Final = (
    "INSERT INTO kept (key, value, expires_at, put_at, share, size)"
    " VALUES (?1, ?2, {now} + CAST(?3 AS {real}), {now}, ?4, ?5) ON CONFLICT (key) DO UPDATE SET value = excluded.value,"
    " expires_at = excluded.expires_at, put_at = excluded.put_at, share = excluded.share, size = excluded.size"
)
_GET_ALL: Final = (
    "UPDATE kept SET expires_at = {now} + CAST(?2 AS {real})"
    " WHERE key = ANY(CAST(?1 AS TEXT[])) AND expires_at > {now} RETURNING key, value"
)
_OVER: Final = (
    "DELETE FROM kept WHERE key IN (SELECT key FROM (SELECT key, sum(size) OVER (ORDER BY put_at DESC, key) AS held"
    " FROM kept WHERE share = ?1) AS one WHERE held > CAST(?2 AS {int}))"
)


class LedgerStore:
    """Rows of the table `kept`."""

    def __init__(self, database: Callable[[], Database | None]) -> None:
        """`database` returns the ledger's, once it is open."""
        self._database = database
        self._added = 0
        self._held: dict[str, tuple[int, int]] = {}
        """By share: its size at the last count, with what was put in since, and the number of puts since."""

    async def get(self, key: str) -> bytes | None:
        found = await self._fetch("SELECT value FROM kept WHERE key = ?1 AND expires_at > {now}", key)
        return bytes(found[0][0]) if found else None

    async def get_all(self, keys: Sequence[str], *, renew: float) -> list[bytes | None]:
        if not keys:
            return []
        found: dict[str, bytes] = dict(await self._fetch(_GET_ALL, list(keys), renew))
        return [found.get(key) for key in keys]

    async def put(self, key: str, value: bytes, seconds: float, share: Share | None = None) -> None:
        name = "" if share is None else share.name
        await self._prune()
        await self._fetch(_PUT, key, value, seconds, name, len(key) + len(value))
        if share is not None:
            await self._keep_to(share, len(key) + len(value))

    async def add(self, key: str, value: bytes, seconds: float) -> bool:
        await self._prune()
        added = f"{_PUT} WHERE kept.expires_at <= {{now}} RETURNING kept.key"
        return bool(await self._fetch(added, key, value, seconds, "", len(key) + len(value)))

    async def delete(self, key: str, share: Share | None = None) -> None:
        await self._fetch("DELETE FROM kept WHERE key = ?1", key)

    async def close(self) -> None:
        """The database belongs to the ledger."""

    async def _keep_to(self, share: Share, size: int) -> None:
        """Delete the oldest entries of a share that is full. Adding it up reads all of its entries, so it is done where it may be full,
        and now and then because other processes put something in as well."""
        held, puts = self._held.get(share.name, (share.bytes, 0))
        if held + size <= share.bytes and puts < SUM_EVERY:
            self._held[share.name] = held + size, puts + 1
            return
        rows = await self._fetch("SELECT coalesce(sum(size), 0)::bigint FROM kept WHERE share = ?1", share.name)
        total: int = rows[0][0]
        if total > share.bytes:
            await self._fetch(_OVER, share.name, share.bytes)
        if len(self._held) >= SHARES:
            self._held.clear()
        self._held[share.name] = min(total, share.bytes), 0

    async def _prune(self) -> None:
        self._added += 1
        if self._added % PRUNE_EVERY == 0:
            await self._fetch("DELETE FROM kept WHERE expires_at <= {now}")

    async def _fetch(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        if (database := self._database()) is None:
            raise StoreError("the ledger is not open")
        try:
            return await database.fetch(statement, *values)
        except DatabaseAway as away:
            raise StoreError(str(away)) from away
