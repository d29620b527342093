"""Durable runs in the ledger: requests that another process resumes when theirs dies.

A run has an owner and an epoch, which increases when another process takes the run over. Every write has its epoch: a write of
an earlier owner changes nothing, and raises `Fenced`.
"""

# ruff: noqa: B027 - methods that do nothing are what one process alone needs

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from callgate.state.batches import writable
from callgate.state.database import Database
from callgate.state.entry import CallState, LedgerEntry
from callgate.state.share_sizes import ShareSizes
from callgate.state.store import Share

MOST_TAKEN: Final = 16
"""Runs that one process takes over at a time, so that others get some too."""

_COLUMNS: Final = (
    "id, caller, request_digest, face, request, state, background, owner, epoch, cancel, created_at, answer"
)
_ALIVE: Final = "SELECT name FROM processes WHERE seen_at > {now} - CAST(?1 AS {real})"
_BEGIN: Final = (
    "INSERT INTO runs (id, caller, key_digest, request_digest, face, request, state, background, owner, epoch, created_at,"
    " followed_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, 'running', ?7, ?8, 1, {now}, 0)"
    f" ON CONFLICT DO NOTHING RETURNING {_COLUMNS}"
)
_MINE: Final = "WITH mine AS (SELECT id FROM runs WHERE id = ?1 AND epoch = ?2 AND state = 'running' {share})"
"""Locks the run against a takeover during the statement."""
_APPEND: Final = (
    f"{_MINE} INSERT INTO run_turns (run_id, choice, turn, body)"
    " SELECT mine.id, CAST(?3 AS {int}), CAST(?4 AS {int}), CAST(?5 AS {blob}) FROM mine WHERE true"
    " ON CONFLICT (run_id, choice, turn) DO UPDATE SET body = excluded.body RETURNING turn"
)
_APPEND_PART: Final = (
    f"{_MINE} INSERT INTO answer_parts (run_id, part, body)"
    " SELECT mine.id, CAST(?3 AS {int}), CAST(?4 AS {blob}) FROM mine WHERE true"
    " ON CONFLICT (run_id, part) DO UPDATE SET body = excluded.body RETURNING part"
)
_CLAIM: Final = (
    f"{_MINE} INSERT INTO calls (id, process, run_id, turn, call_id, tool, arguments_hash, key_name, writes, started_at,"
    " arguments, epoch, state) SELECT CAST(?3 AS TEXT), CAST(?4 AS TEXT), mine.id, CAST(?5 AS {int}), CAST(?6 AS TEXT),"
    " CAST(?7 AS TEXT), CAST(?8 AS TEXT), CAST(?9 AS TEXT), CAST(?10 AS {int}), CAST(?11 AS {real}), CAST(?12 AS TEXT),"
    " CAST(?2 AS {int}), 'started' FROM mine WHERE true"
    " ON CONFLICT (id) DO UPDATE SET process = excluded.process, epoch = excluded.epoch, started_at = excluded.started_at,"
    " state = CASE WHEN {ended_by_worker} THEN calls.state ELSE 'started' END,"
    " ended_at = CASE WHEN {ended_by_worker} THEN calls.ended_at END, note = ''{off_fleet}"
    " WHERE calls.state IN ('waiting', 'withdrawn') OR (calls.writes = 0 AND calls.epoch < excluded.epoch)"
    " OR (calls.state = 'started' AND calls.epoch = excluded.epoch AND calls.process = excluded.process)"
    " OR (calls.state = 'started' AND calls.epoch < excluded.epoch AND {on_fleet})"
    " OR ({ended_by_worker} AND calls.outcome IS NULL AND calls.epoch < excluded.epoch)"
    " RETURNING id"
)
"""A call begins once. A read-only call may begin again after a takeover; one that a worker has begun is awaited."""
_END_CALL: Final = (
    f"{_MINE} UPDATE calls SET state = ?4, note = ?5, result = ?6, outcome = ?7, ended_at = {{now}}"
    " WHERE id = ?3 AND epoch = ?2 AND outcome IS NULL AND EXISTS (SELECT id FROM mine) RETURNING id"
)
_NEVER_BEGUN_CALL: Final = (
    f"{_MINE} INSERT INTO calls (id, process, run_id, turn, call_id, tool, arguments_hash, key_name, writes, started_at,"
    " arguments, epoch, state, ended_at, note, result, outcome) SELECT CAST(?3 AS TEXT), CAST(?4 AS TEXT), mine.id,"
    " CAST(?5 AS {int}), CAST(?6 AS TEXT), CAST(?7 AS TEXT), CAST(?8 AS TEXT), CAST(?9 AS TEXT), CAST(?10 AS {int}),"
    " CAST(?11 AS {real}), CAST(?12 AS TEXT), CAST(?2 AS {int}), CAST(?13 AS TEXT), {now}, CAST(?14 AS TEXT),"
    " CAST(?15 AS TEXT), CAST(?16 AS {blob}) FROM mine WHERE true"
    " ON CONFLICT (id) DO UPDATE SET state = excluded.state, note = excluded.note, result = excluded.result,"
    " outcome = excluded.outcome, ended_at = excluded.ended_at, epoch = excluded.epoch"
    " WHERE calls.state IN ('waiting', 'withdrawn') OR (calls.state = 'started' AND calls.epoch = excluded.epoch"
    " AND calls.process = excluded.process AND NOT {on_fleet}) RETURNING id"
)
"""A `started` call of ours was claimed by a statement whose answer was lost."""
_LEFT: Final = f"SELECT id FROM runs WHERE ended_at IS NULL AND (owner IS NULL OR owner NOT IN ({_ALIVE})) LIMIT 1"
"""Checked first, because in SQLite reads do not wait for locks."""
_TAKE: Final = (
    "{taking}UPDATE runs SET owner = ?2, epoch = epoch + 1 WHERE id IN (SELECT id FROM runs WHERE ended_at IS NULL"
    f" AND (owner IS NULL OR owner NOT IN ({_ALIVE})) ORDER BY created_at LIMIT ?3 {{skip}}) RETURNING {_COLUMNS}{{taken}}"
)
"""Moves the open calls of the runs to their new owner as well. Else a sweep that ends the calls of dead processes could end one
between the moment at which the new owner reads it and the moment at which it claims it."""
_MARK_CALLS: Final = (
    "UPDATE calls SET state = CASE state WHEN 'waiting' THEN 'withdrawn' ELSE 'unknown' END, ended_at = {now},"
    " note = CASE state WHEN 'waiting' THEN 'never begun: ' ELSE '' END || 'its run was taken over'"
    " WHERE run_id = ?1 AND epoch > 0 AND epoch < ?2 AND ended_at IS NULL AND NOT {on_fleet} RETURNING id"
)
_SUM_OF_ANSWERS: Final = "SELECT CAST(coalesce(sum(length(answer)), 0) AS {int}) FROM runs WHERE caller = ?1"
_DROP_ANSWERS: Final = (
    "UPDATE runs SET answer = ?3 WHERE length(answer) > 0 AND id IN (SELECT id FROM (SELECT id, length(answer) AS size,"
    " sum(length(answer)) OVER (ORDER BY ended_at DESC, id DESC) AS held FROM runs WHERE caller = ?1 AND answer IS NOT NULL)"
    " AS own WHERE held > CAST(?2 AS {int}) AND held > size) RETURNING id"
)
"""Never drops the newest, which somebody may wait for."""
DROPPED: Final = b""
"""The answer of a run whose answer is no longer kept. Its row stays, so that its key is not run again."""
ANSWER_BYTES: Final = 67_108_864
_PIECES: Final = ("run_turns", "answer_parts")
"""Tables whose rows are deleted with their run."""


class Fenced(Exception):
    """Raised where another process has taken the run over."""


class StoredRun(msgspec.Struct, frozen=True):
    """One row of `runs`."""

    id: str
    caller: str
    """The name of its key, the only one that can request it."""
    request_digest: bytes
    face: str
    request: bytes
    state: str
    background: bool
    """It continues without clients."""
    owner: str | None
    """None where its process ended in order."""
    epoch: int
    cancel: bool
    """It was cancelled."""
    created_at: float
    answer: bytes | None


class StoredCall(msgspec.Struct, frozen=True):
    """The state of a call of a run."""

    state: CallState
    writes: bool
    outcome: bytes | None


NOT_BEGUN: Final = frozenset({CallState.WAITING, CallState.WITHDRAWN})
"""States of calls that may begin."""


class NewRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is to begin."""

    id: str
    caller: str
    key_digest: str | None
    """The digest of its `Idempotency-Key`, by which it is found again."""
    request_digest: bytes
    face: str
    request: bytes
    background: bool


class CallEnd(msgspec.Struct, frozen=True):
    """The end of a call, as it is stored."""

    state: CallState
    note: str
    result: str | None
    began: bool


class RunLedger(ABC):
    """The runs that are kept, as one process sees them. Every method raises `DatabaseAway`. What only another process would read is
    stored by a ledger that outlives this one; here it is nothing."""

    is_durable = False
    """True if runs outlive their process, so that another one can take them over."""

    @abstractmethod
    async def begin(self, new: NewRun) -> StoredRun:
        """Begin a run; return it, or the one that has its key already."""

    @abstractmethod
    async def find(self, id: str) -> StoredRun | None: ...

    @abstractmethod
    async def finish(self, run: StoredRun, state: str, answer: bytes) -> None:
        """Store the end of a run with its answer, and delete its request, which may be ten megabytes. Raises `Fenced`."""

    @abstractmethod
    async def forget(self, run: StoredRun) -> None:
        """Delete a run, so that its key may be used again."""

    @abstractmethod
    async def release(self, run: StoredRun) -> None:
        """Release a run, for another process to take it over."""

    @abstractmethod
    async def prune(self, seconds: float) -> None:
        """Delete runs that ended longer ago than so many seconds."""

    async def follow(self, id: str) -> None:
        """Note that a client follows a run in this process."""

    async def is_followed(self, id: str, within: float) -> bool:
        """True if another process has followed it within some seconds."""
        return False

    async def append(self, run: StoredRun, choice: int, turn: int, body: bytes) -> None:
        """Store a turn of a run. Raises `Fenced`."""

    async def turns(self, id: str) -> dict[tuple[int, int], bytes]:
        """Return the stored turns of a run, by choice and turn."""
        return {}

    async def append_part(self, run: StoredRun, part: int, body: bytes) -> None:
        """Store a part of a run's answer. Raises `Fenced`."""

    async def parts(self, id: str, after: int = -1) -> list[tuple[int, bytes]]:
        """Return the parts of an unfinished run's answer after one, of all its owners."""
        return []

    async def calls(self, id: str) -> dict[str, StoredCall]:
        """Return the calls of a run, by id."""
        return {}

    async def claim(self, run: StoredRun, entry: LedgerEntry) -> StoredCall | None:
        """Claim a call. None: its row is stored and it may begin. Else it began before, and this is its row. Raises `Fenced`."""
        return None

    async def end_call(self, run: StoredRun, entry: LedgerEntry, end: CallEnd, outcome: bytes) -> None:
        """Store the outcome of a call. Raises `Fenced` where another process has taken the run over."""

    async def check(self, run: StoredRun) -> None:
        """Raise `Fenced` where another process has taken the run over."""

    async def take_over(self, dead_after: float) -> Sequence[StoredRun]:
        """Take over runs whose process is dead, or had no heartbeat for `dead_after` seconds; return them."""
        return ()

    async def settle_calls(self, run: StoredRun) -> None:
        """End the calls of earlier owners, as unknown or withdrawn."""

    async def cancel(self, id: str) -> None:
        """Have the process that has a run stop it."""

    async def cancelled(self, ids: Sequence[str]) -> set[str]:
        """Return the runs of this process that were cancelled."""
        return set()


class DatabaseRunLedger(RunLedger):
    """The runs in the ledger's database."""

    is_durable = True

    def __init__(self, database: Database, process: str, answer_bytes: int = ANSWER_BYTES) -> None:
        """`answer_bytes`: the share of one caller, beyond which its oldest answers are dropped."""
        self._database = database
        self.process = process
        self._answer_bytes = answer_bytes
        self._sizes = ShareSizes()

    async def begin(self, new: NewRun) -> StoredRun:
        values = (
            new.id,
            new.caller,
            new.key_digest,
            new.request_digest,
            new.face,
            new.request,
            int(new.background),
            self.process,
        )
        while True:
            if begun := await self._database.fetch(_BEGIN, *values):
                return _run(begun[0])
            rows = await self._database.fetch(
                f"SELECT {_COLUMNS} FROM runs WHERE id = ?1 OR (caller = ?2 AND key_digest = ?3)",
                *values[:3],
            )
            if rows:  # else it was deleted meanwhile
                return _run(rows[0])

    async def find(self, id: str) -> StoredRun | None:
        rows = await self._database.fetch(f"SELECT {_COLUMNS} FROM runs WHERE id = ?1", id)
        if rows:
            return _run(rows[0])
        return None

    async def follow(self, id: str) -> None:
        await self._database.fetch("UPDATE runs SET followed_at = {now} WHERE id = ?1 RETURNING id", id)

    async def is_followed(self, id: str, within: float) -> bool:
        rows = await self._database.fetch(
            "SELECT id FROM runs WHERE id = ?1 AND followed_at > {now} - CAST(?2 AS {real})",
            id,
            within,
        )
        return bool(rows)

    async def append(self, run: StoredRun, choice: int, turn: int, body: bytes) -> None:
        if not await self._database.fetch(_APPEND, run.id, run.epoch, choice, turn, body):
            raise Fenced

    async def turns(self, id: str) -> dict[tuple[int, int], bytes]:
        rows = await self._database.fetch("SELECT choice, turn, body FROM run_turns WHERE run_id = ?1", id)
        return {(choice, turn): body for choice, turn, body in rows}

    async def append_part(self, run: StoredRun, part: int, body: bytes) -> None:
        if not await self._database.fetch(_APPEND_PART, run.id, run.epoch, part, body):
            raise Fenced

    async def parts(self, id: str, after: int = -1) -> list[tuple[int, bytes]]:
        rows = await self._database.fetch(
            "SELECT part, body FROM answer_parts WHERE run_id = ?1 AND part > ?2 ORDER BY part", id, after
        )
        return [(part, body) for part, body in rows]

    async def calls(self, id: str) -> dict[str, StoredCall]:
        rows = await self._database.fetch(
            "SELECT id, state, writes, outcome FROM calls WHERE run_id = ?1 AND epoch > 0", id
        )
        return {key: StoredCall(CallState(state), bool(writes), outcome) for key, state, writes, outcome in rows}

    async def claim(self, run: StoredRun, entry: LedgerEntry) -> StoredCall | None:
        while not await self._database.fetch(_CLAIM, run.id, run.epoch, *self._call_values(entry)):
            await self.check(run)
            call = (await self.calls(run.id)).get(entry.id)
            if call is not None and call.state not in NOT_BEGUN:
                return call
        return None

    async def end_call(self, run: StoredRun, entry: LedgerEntry, end: CallEnd, outcome: bytes) -> None:
        result = writable(end.result)
        if end.began:
            rows = await self._database.fetch(
                _END_CALL, run.id, run.epoch, entry.id, end.state.value, end.note, result, outcome
            )
        else:
            values = (*self._call_values(entry), end.state.value, end.note, result, outcome)
            rows = await self._database.fetch(_NEVER_BEGUN_CALL, run.id, run.epoch, *values)
        if not rows:
            await self.check(run)

    async def check(self, run: StoredRun) -> None:
        if not await self._database.fetch(
            "SELECT id FROM runs WHERE id = ?1 AND epoch = ?2 AND state = 'running'", run.id, run.epoch
        ):
            raise Fenced

    async def finish(self, run: StoredRun, state: str, answer: bytes) -> None:
        if not await self._database.fetch(
            "UPDATE runs SET state = ?3, answer = ?4, request = ?5, ended_at = {now} WHERE id = ?1 AND epoch = ?2"
            " AND (state = 'running' OR answer = ?4) RETURNING id",
            run.id,
            run.epoch,
            state,
            answer,
            b"",
        ):
            raise Fenced
        if run.background:
            await self._database.fetch("DELETE FROM answer_parts WHERE run_id = ?1 RETURNING part", run.id)
        await self._keep_to_share(run.caller, len(answer))

    async def _keep_to_share(self, caller: str, size: int) -> None:
        """Drop the oldest answers of a caller whose share is full."""
        share = Share(caller, self._answer_bytes)
        if not self._sizes.may_exceed(share, size):
            return
        [[total]] = await self._database.fetch(_SUM_OF_ANSWERS, caller)
        if self._sizes.note_sum(share, total) > 0:
            await self._database.fetch(_DROP_ANSWERS, caller, share.bytes, DROPPED)

    async def forget(self, run: StoredRun) -> None:
        await self._database.fetch("DELETE FROM runs WHERE id = ?1 AND epoch = ?2 RETURNING id", run.id, run.epoch)
        for table in _PIECES:
            await self._database.fetch(f"DELETE FROM {table} WHERE run_id = ?1 RETURNING run_id", run.id)

    async def release(self, run: StoredRun) -> None:
        await self._database.fetch(
            "UPDATE runs SET owner = NULL WHERE id = ?1 AND epoch = ?2 AND state = 'running' RETURNING id",
            run.id,
            run.epoch,
        )

    async def take_over(self, dead_after: float) -> Sequence[StoredRun]:
        if not await self._database.fetch(_LEFT, dead_after):
            return []
        return [_run(row) for row in await self._database.fetch(_TAKE, dead_after, self.process, MOST_TAKEN)]

    async def settle_calls(self, run: StoredRun) -> None:
        await self._database.fetch(_MARK_CALLS, run.id, run.epoch)

    async def cancel(self, id: str) -> None:
        await self._database.fetch("UPDATE runs SET cancel = 1 WHERE id = ?1 AND state = 'running' RETURNING id", id)

    async def cancelled(self, ids: Sequence[str]) -> set[str]:
        if not ids:
            return set()
        rows = await self._database.fetch(
            "SELECT id FROM runs WHERE cancel = 1 AND owner = ?1 AND ended_at IS NULL", self.process
        )
        return {id for [id] in rows} & set(ids)

    async def prune(self, seconds: float) -> None:
        for table in _PIECES:  # only who carries a run on reads them
            await self._database.fetch(
                f"DELETE FROM {table} WHERE run_id IN (SELECT id FROM runs WHERE ended_at IS NOT NULL) RETURNING run_id"
            )
        await self._database.fetch("DELETE FROM runs WHERE ended_at < {now} - CAST(?1 AS {real}) RETURNING id", seconds)

    def _call_values(self, entry: LedgerEntry) -> tuple[Any, ...]:
        """Return the values of a call, from `?3` on."""
        return (
            entry.id,
            self.process,
            entry.turn,
            writable(entry.call_id),
            entry.tool,
            entry.arguments_hash,
            entry.key_name,
            int(entry.writes),
            entry.started_at,
            writable(entry.arguments),
        )


def _run(row: Sequence[Any]) -> StoredRun:
    id, caller, digest, face, request, state, background, owner, epoch, cancel, created_at, answer = row
    return StoredRun(
        id, caller, digest, face, request, state, bool(background), owner, epoch, bool(cancel), created_at, answer
    )
