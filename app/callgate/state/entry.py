"""The types of the ledger: a call, its states, and the protocol of a ledger."""

import itertools
import os
import secrets
from collections.abc import Awaitable
from enum import StrEnum
from typing import Protocol

import msgspec

from callgate.calls.outcome import Outcome


class _Ids:
    """The ids of the calls that one process begins."""

    def __init__(self) -> None:
        self.draw()

    def draw(self) -> None:
        """Begin anew, with a prefix that no other process has."""
        self._prefix = secrets.token_hex(8)
        self._count = itertools.count()

    def new(self) -> str:
        return f"{self._prefix}{next(self._count):016x}"


_ids = _Ids()
os.register_at_fork(after_in_child=_ids.draw)  # workers are forked when this is imported already


class CallState(StrEnum):
    WAITING = "waiting"
    """It waits for approval or for a place, and has not begun."""
    STARTED = "started"
    """It may be running."""
    DONE = "done"
    FAILED = "failed"
    """It failed, or was refused before it began."""
    CANCELLED = "cancelled"
    """It was cancelled before it began."""
    WITHDRAWN = "withdrawn"
    """It certainly has not run, because its process ended first."""
    UNKNOWN = "unknown"
    """It was started, and its end is unknown: cut off, timed out, or its process died. It is not run again."""


class NotRecorded(Exception):
    """Raised where the ledger cannot be written, so that calls with side effects must not start."""


class BegunBefore(Exception):
    """Raised where a call has begun before, and must not begin again."""

    def __init__(self, outcome: Outcome) -> None:
        """`outcome`: what the ledger knows of its end."""
        super().__init__(outcome)
        self.outcome = outcome


class LedgerEntry(msgspec.Struct, frozen=True, gc=False):
    """The start of one call."""

    run_id: str
    turn: int
    call_id: str
    tool: str
    arguments_hash: str
    """SHA-256 of the arguments as the model wrote them."""
    key_name: str
    writes: bool
    """The tool may have side effects."""
    started_at: float
    arguments: str | None = None
    """Set only where the config has contents stored."""
    offered: bool = False
    """It is offered to workers next, in the same transaction."""
    epoch: int = 0
    """The epoch of a durable run, which increases each time another process takes it over; 0 for others."""
    id: str = msgspec.field(default_factory=_ids.new)
    """Consecutive within a process, so that new rows are on one page of the index."""


class Ledger(Protocol):
    """The ledger of calls, as one process writes it."""

    @property
    def process(self) -> str:
        """The name of this process in it; empty for `NoLedger`."""
        ...

    def key(self, entry: LedgerEntry) -> str:
        """Return the key of a call in the ledger, which is also its idempotency key."""
        ...

    def wait(self, entry: LedgerEntry) -> None:
        """Store, soon, that a call waits to begin. Never raises."""
        ...

    def start(self, entry: LedgerEntry) -> Awaitable[None]:
        """Store a start. Durable once awaited if `entry.writes` and it is not `offered`; else soon. Raises `NotRecorded`, and
        `BegunBefore`."""
        ...

    def end(self, entry: LedgerEntry, state: CallState, note: str = "", result: str | None = None) -> None:
        """Store an end, soon. Never raises, because the tool has run."""
        ...

    async def close(self) -> None: ...


class NoLedger:
    """The ledger of a server without one: stores nothing."""

    process = ""

    def key(self, entry: LedgerEntry) -> str:
        return entry.id

    def wait(self, entry: LedgerEntry) -> None:
        pass

    async def start(self, entry: LedgerEntry) -> None:
        pass

    def end(self, entry: LedgerEntry, state: CallState, note: str = "", result: str | None = None) -> None:
        pass

    async def close(self) -> None:
        pass
