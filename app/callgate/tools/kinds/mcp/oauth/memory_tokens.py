"""Tokens in the memory of one process."""

import secrets
import time
from collections.abc import Mapping, Sequence

import msgspec

from callgate.tools.kinds.mcp.oauth.tokens import TokenRow


class MemoryTokens:
    """Keeps rows for one process, where there is no ledger."""

    def __init__(self) -> None:
        self._rows: dict[str, TokenRow] = {}
        self._ends: dict[str, float] = {}
        self._claims: dict[str, tuple[str, float]] = {}
        self._notes: dict[str, tuple[str, float]] = {}

    async def read(self, id: str) -> TokenRow | None:
        row = self._rows.get(id)
        if row is None or id not in self._ends:
            return row
        return msgspec.structs.replace(row, seconds_left=self._ends[id] - time.monotonic())

    async def rows(self) -> Sequence[TokenRow]:
        rows = [await self.read(id) for id in self._rows]
        return [row for row in rows if row is not None]

    async def generations(self) -> Mapping[str, int]:
        return {id: row.generation for id, row in self._rows.items()}

    async def put(self, row: TokenRow) -> int:
        generation = secrets.randbits(40)
        self._claims.pop(row.id, None)
        self._keep(msgspec.structs.replace(row, generation=generation))
        return generation

    async def claim(self, id: str, generation: int, holder: str, seconds: float) -> bool:
        row = self._rows.get(id)
        now = time.monotonic()
        claimed = self._claims.get(id)
        if row is None or row.generation != generation:
            return False
        if claimed is not None and claimed[0] != holder and claimed[1] > now:
            return False
        self._claims[id] = (holder, now + seconds)
        return True

    async def renew(self, row: TokenRow, holder: str) -> bool:
        old = self._rows.get(row.id)
        if old is None or old.generation != row.generation - 1 or self._claims.get(row.id, ("", 0.0))[0] != holder:
            return False
        del self._claims[row.id]
        self._keep(row)
        return True

    async def release(self, id: str, holder: str) -> None:
        if self._claims.get(id, ("", 0.0))[0] == holder:
            del self._claims[id]

    async def lack(self, id: str, generation: int, missing: Sequence[str]) -> None:
        row = self._rows.get(id)
        if row is not None and row.generation == generation:
            self._rows[id] = msgspec.structs.replace(row, missing=tuple(missing))

    async def drop(self, id: str, generation: int | None) -> bool:
        row = self._rows.get(id)
        if row is None or generation not in (None, row.generation):
            return False
        del self._rows[id]
        self._ends.pop(id, None)
        self._claims.pop(id, None)
        return True

    async def put_note(self, name: str, sealed: str, seconds: float) -> None:
        now = time.monotonic()
        self._notes = {other: note for other, note in self._notes.items() if note[1] > now}
        self._notes[name] = (sealed, now + seconds)

    async def add_note(self, name: str, seconds: float) -> bool:
        if await self.read_note(name) is not None:
            return False
        await self.put_note(name, "", seconds)
        return True

    async def take_note(self, name: str) -> str | None:
        sealed = await self.read_note(name)
        self._notes.pop(name, None)
        return sealed

    async def read_note(self, name: str) -> str | None:
        note = self._notes.get(name)
        if note is None or note[1] <= time.monotonic():
            return None
        return note[0]

    def _keep(self, row: TokenRow) -> None:
        self._rows[row.id] = row
        self._ends.pop(row.id, None)
        if row.life is not None:
            self._ends[row.id] = time.monotonic() + row.life
