"""The ledger's rows of calls that workers run. A worker begins a call by changing its row from `offered` to `running`,
which succeeds once.

However often a call is published, delivered or taken over, it begins at most once, and ends as `done`, `failed` or, where its
end is not known, `unknown`. A `withdrawn` call has certainly not run, and may be offered again.
"""

import secrets
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from callgate.ledger.database import Database
from callgate.ledger.tables import CUT_OFF, NEVER

KEPT_SECONDS: Final = 7 * 86_400.0
"""How long ended rows are kept; the table `calls` has them for longer."""

_ALIVE: Final = "SELECT name FROM processes WHERE seen_at > {now} - CAST(?1 AS {real})"
_NOT_OURS: Final = (
    "SELECT calls.id FROM calls LEFT JOIN runs ON runs.id = calls.run_id AND runs.ended_at IS NULL"
    " WHERE calls.id = split_part(offer.id, '#', 1)"
    " AND (calls.ended_at IS NOT NULL OR (runs.id IS NOT NULL AND runs.owner IS DISTINCT FROM offer.process))"
)
"""The call was ended for a process that was taken for dead, or its run belongs to another process.

Compared with NULL, so that it is looked for in the index: for `NOT EXISTS` Postgres reads all of a table that was small once."""
OFFER: Final = (
    "INSERT INTO fleet_calls (id, process, pool, tool, arguments_hash, state, offered_at)"
    " SELECT id, process, pool, tool, arguments_hash, 'offered', {now} FROM json_to_recordset(CAST(?1 AS JSON))"
    " AS offer(id TEXT, process TEXT, pool TEXT, tool TEXT, arguments_hash TEXT)"
    f" WHERE ({_NOT_OURS}) IS NULL ON CONFLICT (id) DO UPDATE SET process = excluded.process,"
    " state = CASE fleet_calls.state WHEN 'withdrawn' THEN 'offered' ELSE fleet_calls.state END,"
    " ended_at = CASE fleet_calls.state WHEN 'withdrawn' THEN NULL ELSE fleet_calls.ended_at END"
    " WHERE fleet_calls.arguments_hash = excluded.arguments_hash"
    " AND (fleet_calls.process <> excluded.process OR fleet_calls.ended_at IS NULL) RETURNING id"
)
"""Takes a JSON list of `FleetOffer`; calls of other processes, and those with a known end, are left out."""
_CLAIM: Final = (
    "UPDATE fleet_calls SET state = 'running', worker = ?3, child = ?4, attempt = ?5, began_at = {now}"
    " WHERE id = ?1 AND arguments_hash = ?2 AND (state = 'offered' OR (state = 'running' AND attempt = ?5))"
    " AND EXISTS (SELECT name FROM processes WHERE name = ?3 AND seen_at > {now} - CAST(?6 AS {real})) RETURNING id"
)
"""Not for a worker without recent heartbeats, whose calls would be taken for lost."""
_END: Final = (
    "UPDATE fleet_calls SET state = ?3, ended_at = {now}, outcome = ?4"
    " WHERE id = ?1 AND attempt = ?2 AND (state = 'running' OR outcome = ?4) RETURNING id"
)
_STOP: Final = (
    "WITH stopped AS (UPDATE fleet_calls SET state = CASE state WHEN 'offered' THEN 'withdrawn' ELSE 'unknown' END,"
    " ended_at = {now}, note = CASE state WHEN 'offered' THEN 'never begun: ' ELSE '' END || CAST(?2 AS TEXT)"
    " WHERE id = ?1 AND process = ?3 AND (ended_at IS NULL OR (state = 'unknown' AND note = ?2))"
    " AND NOT EXISTS (SELECT runs.id FROM calls JOIN runs ON runs.id = calls.run_id"
    " WHERE calls.id = split_part(?1, '#', 1) AND runs.ended_at IS NULL AND runs.owner IS DISTINCT FROM CAST(?3 AS TEXT))"
    " RETURNING id, state, note),"
    " ended AS (UPDATE calls SET state = stopped.state, ended_at = {now}, note = stopped.note FROM stopped"
    f" WHERE calls.id = stopped.id AND (calls.ended_at IS NULL OR calls.note LIKE '{CUT_OFF}%' OR calls.note LIKE '{NEVER}%'))"
    " SELECT state FROM stopped"
)
"""Only by the process that offered the call: when another one has taken the run over, its calls go on. The process may have
stored before that the call was cut off, or not begun."""
_LOST: Final = (
    "UPDATE fleet_calls SET state = 'unknown', ended_at = {now}, note = 'its worker was not seen any more'"
    f" WHERE ended_at IS NULL AND state = 'running' AND worker NOT IN ({_ALIVE}) RETURNING id"
)
_UNWANTED: Final = (
    "UPDATE fleet_calls SET state = 'withdrawn', ended_at = {now}, note = 'never begun: the process that wanted it ended'"
    f" WHERE ended_at IS NULL AND state = 'offered' AND (process NOT IN ({_ALIVE}) OR (process = ?2"
    " AND offered_at < {now} - CAST(?1 AS {real}) AND NOT id = ANY(CAST(?3 AS TEXT[])))) RETURNING id"
)
"""Includes our own calls that were offered while the database did not answer, and are not awaited."""
_SETTLE: Final = (
    "UPDATE calls SET state = fleet_calls.state, ended_at = fleet_calls.ended_at, note = fleet_calls.note,"
    " outcome = fleet_calls.outcome FROM fleet_calls WHERE fleet_calls.id = calls.id AND calls.ended_at IS NULL"
    f" AND fleet_calls.ended_at IS NOT NULL AND (calls.process NOT IN ({_ALIVE})"
    " OR EXISTS (SELECT id FROM runs WHERE runs.id = calls.run_id AND runs.ended_at IS NOT NULL)) RETURNING calls.id"
)
"""For calls that nobody awaits. A process that takes a run over gets its calls as well, and ends them itself, unless the run
ends without them."""
_CHILD_GONE: Final = (
    "UPDATE fleet_calls SET state = 'unknown', ended_at = {now}, note = 'the process that ran it ended'"
    " WHERE id = ?1 AND worker = ?2 AND child = ?3 AND state = 'running' RETURNING id"
)


class FleetOffer(msgspec.Struct, frozen=True):
    """A call that a process offers to the workers of a pool."""

    id: str
    process: str
    pool: str
    tool: str
    arguments_hash: str


class FleetCallState(msgspec.Struct, frozen=True):
    """The state of one call."""

    id: str
    state: str
    seconds: float
    """Seconds since it began, by the database's clock."""
    outcome: bytes | None
    note: str


class PoolCounts(msgspec.Struct, frozen=True):
    """The counts of one pool in the ledger."""

    offered: int
    running: int


class FleetLedger:
    """The calls of a fleet, for proxies and workers alike. Every method raises `DatabaseAway`."""

    def __init__(self, database: Database, process: str, dead_after: float) -> None:
        self._database, self.process, self.dead_after = database, process, dead_after

    async def key(self) -> bytes:
        """Return the key with which proxies and workers sign messages; generate it if there is none."""
        while not (found := await self._database.fetch("SELECT key FROM fleet_key")):
            await self._database.fetch(
                "INSERT INTO fleet_key VALUES (true, ?1) ON CONFLICT DO NOTHING", secrets.token_bytes(32)
            )
        return bytes(found[0][0])

    async def belongs_to_another(self, id: str) -> bool:
        """True if a call may not be offered here, because this process was taken for dead."""
        mine = "SELECT CAST(?1 AS TEXT) AS id, CAST(?2 AS TEXT) AS process"
        return bool(
            await self._database.fetch(f"SELECT id FROM ({mine}) AS offer WHERE EXISTS ({_NOT_OURS})", id, self.process)
        )

    async def claim(self, id: str, arguments_hash: str, child: int, attempt: str) -> bool:
        """Claim a call for this worker; return whether it may begin. `attempt` is different for each delivery."""
        return bool(
            await self._database.fetch(_CLAIM, id, arguments_hash, self.process, child, attempt, self.dead_after)
        )

    async def end(self, id: str, attempt: str, state: str, outcome: bytes) -> bool:
        """Write an end down. False where the call was given up meanwhile."""
        return bool(await self._database.fetch(_END, id, attempt, state, outcome))

    async def stop(self, id: str, why: str) -> str | None:
        """Give a call up: `withdrawn` where it has not begun, else `unknown`; None where it had an end, or is another's."""
        found = await self._database.fetch(_STOP, id, why, self.process)
        return str(found[0][0]) if found else None

    async def states(self, ids: Sequence[str]) -> list[FleetCallState]:
        rows = await self._database.fetch(
            "SELECT id, state, coalesce({now} - began_at, 0), outcome, note FROM fleet_calls"
            " WHERE id = ANY(CAST(?1 AS TEXT[]))",
            list(ids),
        )
        return [FleetCallState(*row) for row in rows]

    async def sweep(self, ours: Sequence[str], dead_after: float) -> int:
        """End the calls of dead processes; return how many are unknown. `ours`: the calls that are awaited here."""
        lost = await self._database.fetch(_LOST, dead_after)
        await self._database.fetch(_UNWANTED, dead_after, self.process, list(ours))
        await self._database.fetch(_SETTLE, dead_after)
        return len(lost)

    async def prune(self) -> None:
        await self._database.fetch("DELETE FROM fleet_calls WHERE ended_at < {now} - CAST(?1 AS {real})", KEPT_SECONDS)

    async def running_here(self) -> list[tuple[str, int]]:
        """Return the running calls of this worker, with their child processes."""
        rows = await self._database.fetch(
            "SELECT id, child FROM fleet_calls WHERE worker = ?1 AND state = 'running'", self.process
        )
        return [(id, child) for id, child in rows]

    async def child_gone(self, id: str, child: int) -> None:
        await self._database.fetch(_CHILD_GONE, id, self.process, child)

    async def counts(self) -> dict[str, PoolCounts]:
        rows = await self._database.fetch(
            "SELECT pool, count(*) FILTER (WHERE state = 'offered'), count(*) FILTER (WHERE state = 'running')"
            " FROM fleet_calls WHERE ended_at IS NULL GROUP BY pool"
        )
        return {pool: PoolCounts(offered, running) for pool, offered, running in rows}

    async def check_beats(self, name: str) -> None:
        """Raise `DatabaseAway` if no process can say that it lives, as where nothing can be written."""
        await self._database.beat(name, "probe", "")
        await self._database.leave(name)

    async def workers(self) -> list[tuple[str, str, float]]:
        """Return the living workers: name, pools, and seconds since the last heartbeat."""
        rows: list[tuple[Any, ...]] = await self._database.fetch(
            "SELECT name, kind, {now} - seen_at FROM processes WHERE kind LIKE 'worker:%'"
            " AND seen_at > {now} - CAST(?1 AS {real}) ORDER BY name",
            self.dead_after,
        )
        return [(name, kind.removeprefix("worker:"), seen) for name, kind, seen in rows]
