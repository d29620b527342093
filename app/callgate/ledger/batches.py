"""Gathers writes to the ledger for a moment, and commits them together.

Who waits for a row to be safe asks for a batch at once; what nobody waits for goes with the next that somebody does, or
when it has waited long enough.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import Any, Final

import msgspec

from callgate.ledger.database import DatabaseAway
from callgate.ledger.entry import LedgerEntry, NotRecorded, RunState
from callgate.ledger.fleet_calls import FleetOffer

SOON_SECONDS: Final = 0.02
"""How long what nobody waits for may lie in memory. A commit costs far more than what is in it."""
BATCH: Final = 500
"""Rows from which on a transaction takes in no more, so that nobody waits long for its end."""
BACKLOG: Final = 20_000
"""Rows that may wait to be written. Beyond it everyone waits: the disk is slower than we are."""
TAKEN_FOR_LOST = "this process was taken for dead, and the call for lost"


class LedgerBatch(msgspec.Struct, eq=False):
    """The rows that are written together."""

    calls: dict[str, tuple[Any, ...]] = {}
    """The newest row of each call: one that began and ended since the last batch is written once."""
    spending: list[tuple[str, str, int]] = []
    waiting: "list[tuple[asyncio.Future[None], str]]" = []
    """Of those who wait for it to be safe, and for which call."""
    offers: "list[tuple[Callable[[bool | DatabaseAway], None], FleetOffer]]" = []
    """Of calls to workers, which only Postgres takes."""

    def __len__(self) -> int:
        return len(self.calls) + len(self.spending)

    @property
    def is_empty(self) -> bool:
        return not (self.calls or self.spending or self.waiting or self.offers)

    def unwritten(self) -> "LedgerBatch":
        """Return what is to be tried again where this was not written: an end that is never written would leave its call under
        way for ever. Whoever waited is refused, so that what he waited for has not begun."""
        refused = {id for _, id in self.waiting}
        batch = LedgerBatch({id: row for id, row in self.calls.items() if id not in refused}, self.spending)
        batch.shorten()
        return batch

    def shorten(self) -> None:
        """Drop the oldest rows beyond the longest backlog."""
        for id in list(self.calls)[: max(len(self.calls) - BACKLOG, 0)]:
            del self.calls[id]
        del self.spending[: max(len(self.spending) - BACKLOG, 0)]

    def take_in(self, later: "LedgerBatch") -> None:
        self.calls |= later.calls
        self.spending += later.spending
        self.waiting += later.waiting
        self.offers += later.offers


class BatchedLedger(ABC):
    """A ledger that writes in batches; belongs to the event loop it was opened in."""

    process: str

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._next = LedgerBatch()
        self._is_urgent = False
        self._timer: asyncio.TimerHandle | None = None
        self._behind = 0

    def key(self, entry: LedgerEntry) -> str:
        return entry.id

    def wait(self, entry: LedgerEntry) -> None:
        self._next.calls[entry.id] = self._row(entry, RunState.WAITING)
        self._soon()

    async def start(self, entry: LedgerEntry) -> None:
        self._next.calls[entry.id] = self._row(entry, RunState.STARTED)
        if (entry.writes and not entry.offered) or self._behind > BACKLOG:
            # Wait until all that has come so far is safe.
            done: asyncio.Future[None] = self._loop.create_future()
            self._next.waiting.append((done, entry.id))
            self._at_once()
            await done
        else:
            self._soon()

    def end(self, entry: LedgerEntry, state: RunState, note: str = "", result: str | None = None) -> None:
        self._next.calls[entry.id] = self._row(entry, state, time.time(), note, result)
        self._soon()

    def remember_spending(self, key_name: str, period: str, nano: int) -> None:
        """Add to what a key has spent in a period, soon. Several processes may add to the same."""
        self._next.spending.append((key_name, period, nano))
        self._soon()

    @abstractmethod
    def _take(self, batch: LedgerBatch) -> None:
        """Write a batch, in the order they come, and call `_settle` with it afterwards."""

    def _row(
        self,
        entry: LedgerEntry,
        state: RunState,
        ended_at: float | None = None,
        note: str = "",
        result: str | None = None,
    ) -> tuple[Any, ...]:
        """In the order of `CALL_COLUMNS`."""
        return (
            entry.id,
            self.process,
            entry.run_id,
            entry.turn,
            writable(entry.call_id),
            entry.tool,
            entry.arguments_hash,
            entry.key_name,
            int(entry.writes),
            entry.started_at,
            writable(entry.arguments),
            entry.epoch,
            state.value,
            ended_at,
            note,
            writable(result),
        )

    def _at_once(self) -> None:
        """Who asks in one turn of the loop is written together."""
        if not self._is_urgent:
            self._is_urgent = True
            self._loop.call_soon(self._hand_over)

    def _soon(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(SOON_SECONDS, self._time_is_up)

    def _time_is_up(self) -> None:
        self._timer = None
        self._hand_over()

    def _hand_over(self) -> None:
        self._is_urgent = False
        batch = self._next
        if not batch.is_empty:
            self._next = LedgerBatch()
            self._behind += len(batch)
            self._take(batch)

    def _settle(
        self, batch: LedgerBatch, failure: str, refused: Collection[str] = (), offered: Collection[str] = ()
    ) -> None:
        """`refused`: the calls whose rows have an end already, which others have put down. `offered`: those that workers may
        begin from now on."""
        self._behind -= len(batch)
        for on_written, offer in batch.offers:
            on_written(DatabaseAway(failure) if failure else offer.id in offered)
        for done, id in batch.waiting:
            if done.done():
                continue
            if failure or id in refused:
                done.set_exception(NotRecorded(failure or TAKEN_FOR_LOST))
            else:
                done.set_result(None)


def writable(text: str | None) -> str | None:
    """Databases take UTF-8 without NUL, and a model may write half of a pair."""
    if text is None or (text.isascii() and "\0" not in text):
        return text
    return text.encode(errors="replace").decode().replace("\0", "\ufffd")
