"""Tokens in the database of the ledger, shared by all processes that share that.

Times are the database's own, so that the clocks of the machines need not agree.
"""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final

from callgate.state.database import Database
from callgate.state.tables import Row
from callgate.tools.kinds.mcp.authorization import Identity
from callgate.tools.kinds.mcp.oauth.tokens import TokenRow

_ROWS: Final = (
    "SELECT id, server, key_name, user_name, issuer, scopes, missing, sealed, renewable, life, expires_at - {now}, generation"
    " FROM oauth_tokens"
)
_READ: Final = _ROWS + " WHERE id = ?1"
_PUT: Final = (
    "INSERT INTO oauth_tokens (id, server, key_name, user_name, issuer, scopes, missing, sealed, renewable, life,"
    " expires_at, generation, updated_at)"
    " VALUES (?1, ?2, ?3, ?4, ?5, ?6, '', ?7, ?8, CAST(?9 AS {real}), {now} + CAST(?9 AS {real}), ?10, {now})"
    " ON CONFLICT (id) DO UPDATE SET issuer = excluded.issuer, scopes = excluded.scopes, missing = '',"
    " sealed = excluded.sealed, renewable = excluded.renewable, life = excluded.life, expires_at = excluded.expires_at,"
    " generation = excluded.generation, updated_at = excluded.updated_at, claim = '', claimed_until = 0"
)
_CLAIM: Final = (
    "UPDATE oauth_tokens SET claim = ?3, claimed_until = {now} + CAST(?4 AS {real}) WHERE id = ?1 AND generation = ?2"
    " AND (claim IN ('', ?3) OR claimed_until < {now}) RETURNING generation"
)
_RENEW: Final = (
    "UPDATE oauth_tokens SET scopes = ?3, sealed = ?4, renewable = ?5, life = CAST(?6 AS {real}), expires_at = {now} + CAST(?6 AS {real}),"
    " generation = generation + 1, updated_at = {now}, claim = '', claimed_until = 0"
    " WHERE id = ?1 AND generation = ?2 AND claim = ?7 RETURNING generation"
)
_RELEASE: Final = "UPDATE oauth_tokens SET claim = '', claimed_until = 0 WHERE id = ?1 AND claim = ?2"
_LACK: Final = "UPDATE oauth_tokens SET missing = ?3 WHERE id = ?1 AND generation = ?2"
_DROP: Final = "DELETE FROM oauth_tokens WHERE id = ?1 RETURNING id"
_DROP_GENERATION: Final = "DELETE FROM oauth_tokens WHERE id = ?1 AND generation = ?2 RETURNING id"
_FORGET: Final = "DELETE FROM oauth_notes WHERE expires_at < {now}"
_NOTE: Final = (
    "INSERT INTO oauth_notes VALUES (?1, ?2, {now} + CAST(?3 AS {real}))"
    " ON CONFLICT (name) DO UPDATE SET sealed = excluded.sealed, expires_at = excluded.expires_at"
)
_ADD_NOTE: Final = (
    "INSERT INTO oauth_notes VALUES (?1, '', {now} + CAST(?2 AS {real})) ON CONFLICT (name) DO NOTHING RETURNING name"
)
_READ_NOTE: Final = "SELECT sealed FROM oauth_notes WHERE name = ?1 AND expires_at >= {now}"
_TAKE_NOTE: Final = "DELETE FROM oauth_notes WHERE name = ?1 RETURNING sealed, expires_at >= {now}"


class LedgerTokens:
    """Keeps rows in the ledger's database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, id: str) -> TokenRow | None:
        rows = await self._database.fetch(_READ, id)
        return _row(rows[0]) if rows else None

    async def rows(self) -> Sequence[TokenRow]:
        return [_row(row) for row in await self._database.fetch(_ROWS)]

    async def generations(self) -> Mapping[str, int]:
        rows = await self._database.fetch("SELECT id, generation FROM oauth_tokens")
        return {row[0]: row[1] for row in rows}

    async def put(self, row: TokenRow) -> int:
        generation = secrets.randbits(40)
        identity = row.identity
        places = (row.id, row.server, identity.key, identity.user, row.issuer, " ".join(row.scopes))
        await self._database.fetch(_PUT, *places, row.sealed, int(row.is_renewable), row.life, generation)
        return generation

    async def claim(self, id: str, generation: int, holder: str, seconds: float) -> bool:
        return bool(await self._database.fetch(_CLAIM, id, generation, holder, seconds))

    async def renew(self, row: TokenRow, holder: str) -> bool:
        values = (row.id, row.generation - 1, " ".join(row.scopes), row.sealed, int(row.is_renewable), row.life, holder)
        return bool(await self._database.fetch(_RENEW, *values))

    async def release(self, id: str, holder: str) -> None:
        await self._database.fetch(_RELEASE, id, holder)

    async def lack(self, id: str, generation: int, missing: Sequence[str]) -> None:
        await self._database.fetch(_LACK, id, generation, " ".join(missing))

    async def drop(self, id: str, generation: int | None) -> bool:
        if generation is None:
            return bool(await self._database.fetch(_DROP, id))
        return bool(await self._database.fetch(_DROP_GENERATION, id, generation))

    async def put_note(self, name: str, sealed: str, seconds: float) -> None:
        await self._database.fetch(_FORGET)
        await self._database.fetch(_NOTE, name, sealed, seconds)

    async def add_note(self, name: str, seconds: float) -> bool:
        await self._database.fetch(_FORGET)
        return bool(await self._database.fetch(_ADD_NOTE, name, seconds))

    async def take_note(self, name: str) -> str | None:
        rows = await self._database.fetch(_TAKE_NOTE, name)
        return rows[0][0] if rows and rows[0][1] else None

    async def read_note(self, name: str) -> str | None:
        rows = await self._database.fetch(_READ_NOTE, name)
        return rows[0][0] if rows else None


def _row(row: Row) -> TokenRow:
    columns: Any = row
    id, server, key, user, issuer, scopes, missing, sealed, renewable, life, seconds_left, generation = columns
    return TokenRow(
        id=id,
        server=server,
        identity=Identity(key, user),
        issuer=issuer,
        scopes=tuple(scopes.split()),
        missing=tuple(missing.split()),
        sealed=sealed,
        is_renewable=bool(renewable),
        life=life,
        seconds_left=seconds_left,
        generation=generation,
    )
