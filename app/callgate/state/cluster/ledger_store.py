"""A store in the ledger's Postgres, for processes that share one and no Redis."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from callgate.state.database import Database, DatabaseAway
from callgate.state.share_sizes import ShareSizes
from callgate.state.store import Share, StoreError

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
        self._sizes = ShareSizes()

    async def get(self, key: str) -> bytes | None:
        rows = await self._fetch("SELECT value FROM kept WHERE key = ?1 AND expires_at > {now}", key)
        if rows:
            return bytes(rows[0][0])
        return None

    async def get_all(self, keys: Sequence[str], *, renew: float) -> list[bytes | None]:
        if not keys:
            return []
        values: dict[str, bytes] = dict(await self._fetch(_GET_ALL, list(keys), renew))
        return [values.get(key) for key in keys]

    async def put(self, key: str, value: bytes, seconds: float, share: Share | None = None) -> None:
        await self._put(_PUT, key, value, seconds, share)

    async def add(self, key: str, value: bytes, seconds: float, share: Share | None = None) -> bool:
        return await self._put(f"{_PUT} WHERE kept.expires_at <= {{now}}", key, value, seconds, share)

    async def delete(self, key: str, share: Share | None = None) -> None:
        await self._fetch("DELETE FROM kept WHERE key = ?1", key)

    async def close(self) -> None:
        """The database belongs to the ledger."""

    async def _put(self, put: str, key: str, value: bytes, seconds: float, share: Share | None) -> bool:
        """Store a value by a statement; return whether it did."""
        await self._prune()
        name = ""
        size = len(key) + len(value)
        if share is not None:
            name = share.name
            size = share.counted(len(key) + len(value))
        was_stored = bool(await self._fetch(f"{put} RETURNING kept.key", key, value, seconds, name, size))
        if was_stored and share is not None:
            await self._keep_to(share, size)
        return was_stored

    async def _keep_to(self, share: Share, size: int) -> None:
        """Delete the oldest entries of a share that is full."""
        if not self._sizes.may_exceed(share, size):
            return
        rows = await self._fetch("SELECT coalesce(sum(size), 0)::bigint FROM kept WHERE share = ?1", share.name)
        if self._sizes.note_sum(share, rows[0][0]) > 0:
            await self._fetch(_OVER, share.name, share.bytes)

    async def _prune(self) -> None:
        if self._sizes.is_time_to_prune():
            await self._fetch("DELETE FROM kept WHERE expires_at <= {now}")

    async def _fetch(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        if (database := self._database()) is None:
            raise StoreError("the ledger is not open")
        try:
            return await database.fetch(statement, *values)
        except DatabaseAway as away:
            raise StoreError(str(away)) from away
