"""Gathers writes to the ledger for a moment, and commits them together.

A call that waits for its row to be durable triggers a batch at once; other rows are written with the next batch, or after a
delay.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import msgspec

from callgate.conversation.listeners import NOTHING
from callgate.state.database import DatabaseAway
from callgate.state.entry import CallState, LedgerEntry, NotRecorded
from callgate.state.fleet_calls import FleetOffer

SOON_SECONDS: Final = 0.02
"""How long rows without waiters may stay in memory."""
BATCH: Final = 500
"""The limit of rows in one transaction."""
BACKLOG: Final = 20_000
"""The limit of unwritten rows, beyond which every call waits for the database."""
NO_OFFERS: Final[Mapping[str, int]] = MappingProxyType({})
TAKEN_FOR_LOST = "this process was taken for dead, and the call for lost"


OnOffered: TypeAlias = Callable[[int | DatabaseAway], None]
"""Called with the number of an offer; with 0 where the call may not be offered, with `DatabaseAway` where that is unknown."""


class LedgerBatch(msgspec.Struct, eq=False):
    """The rows of one transaction."""

    calls: dict[str, tuple[Any, ...]] = {}
    """The newest row of each call: one that began and ended since the last batch is written once."""
    spending: dict[tuple[str, str], int] = {}
    """What each key has spent in each period, added up, so that no backlog of it is too long. Negative where less was used than was reserved
    in an earlier batch."""
    waiting: "list[tuple[asyncio.Future[None], str]]" = []
    """The futures of waiting calls, with the ids of the calls."""
    has_waited: bool = False
    """Some of the calls may have begun later than they were stored first."""
    offers: "list[tuple[OnOffered, FleetOffer]]" = []
    """Calls that are offered to workers; in Postgres only."""

    def __len__(self) -> int:
        return len(self.calls) + len(self.spending)

    @property
    def is_empty(self) -> bool:
        return not (self.calls or self.spending or self.waiting or self.offers)

    def unwritten(self) -> "LedgerBatch":
        """Return the rows to retry after a failure, because a call without its end would count as running. Calls that waited
        were refused and have not begun."""
        refused = {id for _, id in self.waiting}
        rows = {id: row for id, row in self.calls.items() if id not in refused}
        batch = LedgerBatch(rows, self.spending, has_waited=self.has_waited)
        batch.shorten()
        return batch

    def shorten(self) -> None:
        """Drop the oldest rows beyond the longest backlog."""
        for id in list(self.calls)[: max(len(self.calls) - BACKLOG, 0)]:
            del self.calls[id]

    def add_spending(self, key_name: str, period: str, nano: int) -> None:
        place = (key_name, period)
        self.spending[place] = self.spending.get(place, 0) + nano

    def take_in(self, later: "LedgerBatch") -> None:
        self.calls |= later.calls
        for (key_name, period), nano in later.spending.items():
            self.add_spending(key_name, period, nano)
        self.waiting += later.waiting
        self.has_waited = self.has_waited or later.has_waited
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
        self._have_waited: set[str] = set()
        """The calls that have waited, until they end: they begin later than they are stored first."""

    def key(self, entry: LedgerEntry) -> str:
        return entry.id

    def wait(self, entry: LedgerEntry) -> None:
        self._have_waited.add(entry.id)
        self._put(entry, CallState.WAITING)
        self._soon()

    def start(self, entry: LedgerEntry) -> Awaitable[None]:
        self._put(entry, CallState.STARTED)
        if not (entry.writes and not entry.offered) and self._behind <= BACKLOG:
            self._soon()
            return NOTHING
        # Done when all that has come so far is safe.
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._next.waiting.append((waiter, entry.id))
        self._at_once()
        return waiter

    def end(self, entry: LedgerEntry, state: CallState, note: str = "", result: str | None = None) -> None:
        self._put(entry, state, time.time(), note, result)
        self._have_waited.discard(entry.id)
        self._soon()

    def remember_spending(self, key_name: str, period: str, nano: int) -> None:
        """Add to what a key has spent in a period, soon. Several processes may add to the same."""
        self._next.add_spending(key_name, period, nano)
        self._soon()

    @abstractmethod
    def _take(self, batch: LedgerBatch) -> None:
        """Write a batch, after the earlier ones, and call `_settle` with it afterwards."""

    def _put(
        self,
        entry: LedgerEntry,
        state: CallState,
        ended_at: float | None = None,
        note: str = "",
        result: str | None = None,
    ) -> None:
        """Put the row of a call into the next batch, in the order of `CALL_COLUMNS`."""
        if self._have_waited:
            self._next.has_waited = self._next.has_waited or entry.id in self._have_waited
        self._next.calls[entry.id] = (
            self.process,
            entry.id,
            entry.run_id,
            entry.turn,
            writable(entry.call_id),
            entry.tool,
            entry.arguments_hash,
            entry.key_name,
            int(entry.writes),
            entry.started_at,
            entry.epoch,
            str(state),
            ended_at,
            note,
            writable(entry.arguments),
            writable(result),
        )

    def _at_once(self) -> None:
        """Write the batch at the end of this iteration of the event loop."""
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
        self, batch: LedgerBatch, failure: str, refused: Collection[str] = (), offered: Mapping[str, int] = NO_OFFERS
    ) -> None:
        """Notify the waiters of a written batch. `refused`: the calls whose rows other processes have ended. `offered`: the
        numbers of the offers of those that workers may begin."""
        self._behind -= len(batch)
        for on_offered, offer in batch.offers:
            on_offered(DatabaseAway(failure) if failure else offered.get(offer.id, 0))
        for waiter, id in batch.waiting:
            if waiter.done():
                continue
            if failure or id in refused:
                waiter.set_exception(NotRecorded(failure or TAKEN_FOR_LOST))
            else:
                waiter.set_result(None)


def writable(text: str | None) -> str | None:
    """Remove NUL and lone surrogates, which databases refuse."""
    if text is None or (text.isascii() and "\0" not in text):
        return text
    return text.encode(errors="replace").decode().replace("\0", "\ufffd")
