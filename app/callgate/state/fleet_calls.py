"""Calls that workers run, in their rows of the ledger. A worker begins a call by changing its row from `waiting` to `started`,
which succeeds once for each offer.

However often a call is published, delivered or taken over, it begins at most once, and ends as `done`, `failed` or, where its
end is not known, `unknown`. A `withdrawn` call has certainly not run, and may be offered again.
"""

import secrets
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from callgate.state.database import Database

KEPT_SECONDS: Final = 7 * 86_400.0
"""How long the outcomes of workers are kept; their calls are kept for longer."""

_ALIVE: Final = "SELECT name FROM processes WHERE seen_at > {now} - CAST(?1 AS {real})"
_OFFERS: Final = (
    "SELECT * FROM json_to_recordset(CAST(?1 AS JSON))"
    " AS row(id TEXT, process TEXT, pool TEXT, offer TEXT, arguments_hash TEXT)"
)
_IS_NEW: Final = (
    "((calls.pool IS NULL AND calls.state = 'started' AND calls.ended_at IS NULL)"
    " OR (calls.pool IS NOT NULL AND calls.ended_at IS NOT NULL AND calls.offer <> offered.offer"
    " AND split_part(calls.offer, '/', 1) = offered.process))"
)
"""The call has just begun, or this process runs it again after an earlier offer of its own has ended."""
OFFER: Final = (
    "UPDATE calls SET pool = offered.pool, offer = offered.offer, offered_hash = offered.arguments_hash,"
    + ",".join(
        f" {column} = CASE WHEN {_IS_NEW} THEN {value} ELSE calls.{column} END"
        for column, value in (
            ("state", "'waiting'"),
            ("offers", "calls.offers + 1"),
            ("offered_at", "{now}"),
            ("worker", "NULL"),
            ("child", "NULL"),
            ("attempt", "NULL"),
            ("began_at", "NULL"),
            ("worker_outcome", "NULL"),
            ("ended_at", "NULL"),
            ("note", "''"),
        )
    )
    + f" FROM ({_OFFERS}) AS offered WHERE calls.id = offered.id AND calls.process = offered.process"
    f" AND ({_IS_NEW} OR calls.offered_hash = offered.arguments_hash)"
    " AND NOT EXISTS (SELECT runs.id FROM runs WHERE runs.id = calls.run_id AND runs.ended_at IS NULL"
    " AND runs.owner IS DISTINCT FROM offered.process) RETURNING calls.id, calls.offers"
)
"""Takes a JSON list of `FleetOffer`; left out are calls that another process has, or that ended before they were offered. A call that
an earlier process has offered is taken on as it is."""
_CLAIM: Final = (
    "UPDATE calls SET state = 'started', worker = ?4, child = ?5, attempt = ?6, began_at = {now}"
    " WHERE id = ?1 AND offers = ?2 AND offered_hash = ?3 AND pool = ?8 AND ended_at IS NULL"
    " AND (state = 'waiting' OR (state = 'started' AND attempt = ?6))"
    " AND EXISTS (SELECT name FROM processes WHERE name = ?4 AND seen_at > {now} - CAST(?7 AS {real})) RETURNING id"
)
"""Not for a worker without recent heartbeats, whose calls would be taken for lost."""
_END: Final = (
    "UPDATE calls SET state = ?3, ended_at = {now}, worker_outcome = ?4"
    " WHERE id = ?1 AND attempt = ?2 AND (ended_at IS NULL OR worker_outcome = ?4) RETURNING id"
)
_STOP: Final = (
    "UPDATE calls SET state = CASE WHEN worker IS NULL THEN 'withdrawn' ELSE 'unknown' END, ended_at = {now},"
    " note = CASE WHEN worker IS NULL THEN 'never begun: ' ELSE '' END || CAST(?2 AS TEXT)"
    " WHERE id = ?1 AND process = ?3 AND pool IS NOT NULL AND worker_outcome IS NULL"
    " AND (ended_at IS NULL OR state IN ('unknown', 'failed'))"
    " AND NOT EXISTS (SELECT runs.id FROM runs WHERE runs.id = calls.run_id"
    " AND runs.ended_at IS NULL AND runs.owner IS DISTINCT FROM CAST(?3 AS TEXT)) RETURNING state"
)
"""Only by the process that owns the call: when another one has taken the run over, its calls go on. The process may have stored before
that the call was refused."""
_LOST: Final = (
    "UPDATE calls SET state = 'unknown', ended_at = {now}, note = 'its worker was not seen any more'"
    f" WHERE ended_at IS NULL AND pool IS NOT NULL AND state = 'started' AND worker NOT IN ({_ALIVE}) RETURNING id"
)
_UNWANTED: Final = (
    "UPDATE calls SET state = 'withdrawn', ended_at = {now}, note = 'never begun: the process that wanted it ended'"
    " WHERE ended_at IS NULL AND pool IS NOT NULL AND state = 'waiting'"
    f" AND (process NOT IN ({_ALIVE}) OR (process = ?2"
    " AND offered_at < {now} - CAST(?1 AS {real}) AND NOT id = ANY(CAST(?3 AS TEXT[])))) RETURNING id"
)
"""Includes our own calls that were offered while the database did not answer, and are not awaited."""
_CHILD_GONE: Final = (
    "UPDATE calls SET state = 'unknown', ended_at = {now}, note = 'the process that ran it ended'"
    " WHERE id = ?1 AND worker = ?2 AND child = ?3 AND state = 'started' AND ended_at IS NULL RETURNING id"
)


class FleetOffer(msgspec.Struct, frozen=True):
    """A call that a process offers to the workers of a pool."""

    id: str
    process: str
    pool: str
    offer: str
    """Different for each attempt to run it: the process, a slash and a number."""
    arguments_hash: str


class FleetCallState(msgspec.Struct, frozen=True):
    """The state of one call."""

    id: str
    state: str
    seconds: float
    """Seconds since a worker began it, by the database's clock."""
    outcome: bytes | None
    """What the worker says of it."""
    offers: int
    """The number of its last offer."""


class PoolCounts(msgspec.Struct, frozen=True):
    """The counts of one pool in the ledger."""

    offered: int
    running: int


class FleetLedger:
    """The calls of a fleet, for proxies and workers alike. Every method raises `DatabaseAway`."""

    def __init__(self, database: Database, process: str, dead_after: float) -> None:
        self._database = database
        self.process = process
        self.dead_after = dead_after

    async def key(self, pool: str) -> bytes:
        """Return the key with which proxies and the workers of a pool sign messages; generate it if there is none."""
        while not (rows := await self._database.fetch("SELECT key FROM pool_keys WHERE pool = ?1", pool)):
            await self._database.fetch(
                "INSERT INTO pool_keys (pool, key) VALUES (?1, ?2) ON CONFLICT DO NOTHING",
                pool,
                secrets.token_bytes(32),
            )
        return bytes(rows[0][0])

    async def claim(self, id: str, offers: int, arguments_hash: str, pool: str, child: int, attempt: str) -> bool:
        """Claim a call for this worker; return whether it may begin. `offers`: the number of its offer; `attempt` is different for each
        delivery."""
        values = (id, offers, arguments_hash, self.process, child, attempt, self.dead_after, pool)
        return bool(await self._database.fetch(_CLAIM, *values))

    async def end(self, id: str, attempt: str, state: str, outcome: bytes) -> bool:
        """Write an end down. False where the call was given up meanwhile."""
        return bool(await self._database.fetch(_END, id, attempt, state, outcome))

    async def stop(self, id: str, why: str) -> str | None:
        """Give a call up: `withdrawn` where it has not begun, else `unknown`; None where it had an end, or is another's."""
        rows = await self._database.fetch(_STOP, id, why, self.process)
        if rows:
            return str(rows[0][0])
        return None

    async def states(self, ids: Sequence[str]) -> list[FleetCallState]:
        rows = await self._database.fetch(
            "SELECT id, state, coalesce({now} - began_at, 0), worker_outcome, offers FROM calls"
            " WHERE id = ANY(CAST(?1 AS TEXT[]))",
            list(ids),
        )
        return [FleetCallState(*row) for row in rows]

    async def sweep(self, ours: Sequence[str], dead_after: float) -> int:
        """End the calls of dead processes; return how many are unknown. `ours`: the calls that are awaited here."""
        lost = await self._database.fetch(_LOST, dead_after)
        await self._database.fetch(_UNWANTED, dead_after, self.process, list(ours))
        return len(lost)

    async def prune(self) -> None:
        await self._database.fetch(
            "UPDATE calls SET worker_outcome = NULL WHERE worker_outcome IS NOT NULL AND ended_at < {now} - CAST(?1 AS {real})",
            KEPT_SECONDS,
        )

    async def running_here(self) -> list[tuple[str, int]]:
        """Return the running calls of this worker, with their child processes."""
        rows = await self._database.fetch(
            "SELECT id, child FROM calls WHERE pool IS NOT NULL AND ended_at IS NULL AND worker = ?1", self.process
        )
        return [(id, child) for id, child in rows]

    async def child_gone(self, id: str, child: int) -> None:
        await self._database.fetch(_CHILD_GONE, id, self.process, child)

    async def counts(self) -> dict[str, PoolCounts]:
        rows = await self._database.fetch(
            "SELECT pool, count(*) FILTER (WHERE state = 'waiting'), count(*) FILTER (WHERE state = 'started')"
            " FROM calls WHERE pool IS NOT NULL AND ended_at IS NULL GROUP BY pool"
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
        return [(name, kind.removeprefix("worker:"), silence) for name, kind, silence in rows]
