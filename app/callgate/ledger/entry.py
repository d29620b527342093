"""The types of the ledger: one run of a tool, its states, and the protocol of a ledger."""

import itertools
import secrets
from enum import StrEnum
from typing import Protocol

import msgspec

_OURS = secrets.token_hex(8)
_count = itertools.count()


class RunState(StrEnum):
    WAITING = "waiting"
    """It waits for approval or for a place, and has done nothing."""
    STARTED = "started"
    """It may be running, and may have done anything so far."""
    DONE = "done"
    FAILED = "failed"
    """It ended, or was never let begin, and said why."""
    CANCELLED = "cancelled"
    """It was stopped before it began, because nobody wanted it any more."""
    WITHDRAWN = "withdrawn"
    """It never began, and certainly has not run: its process ended first."""
    UNKNOWN = "unknown"
    """It was started and nobody saw its end: cut off, timed out, or the process died. It is never run again by us."""


class NotRecorded(Exception):
    """The ledger cannot be written. What may change the world must then not be started."""


class LedgerEntry(msgspec.Struct, frozen=True, gc=False):
    """The start of one run."""

    run_id: str
    turn: int
    call_id: str
    tool: str
    arguments_hash: str
    """SHA-256 of the arguments as the model wrote them."""
    key_name: str
    writes: bool
    """The tool may change the world."""
    started_at: float
    arguments: str | None = None
    """Only where the operator wants contents kept."""
    offered: bool = False
    """It is offered to workers next: that is what is waited for, and it is written down with this."""
    epoch: int = 0
    """Of the run that is carried on after a process died: whoever took it over has a higher one. 0 where none can."""
    id: str = msgspec.field(default_factory=lambda: f"{_OURS}{next(_count):016x}")
    """Counted within a process: rows that follow one another in the index are written to one page of it."""


class Ledger(Protocol):
    """The ledger of calls, as one process of those that share it writes it."""

    @property
    def process(self) -> str:
        """The name of this process among them; empty where nothing is written down."""
        ...

    def key(self, entry: LedgerEntry) -> str:
        """The key of a call: in this ledger, and for its tool where it wants an idempotency key."""
        ...

    def wait(self, entry: LedgerEntry) -> None:
        """Write down, soon, that a run waits to begin. Never raises."""
        ...

    async def start(self, entry: LedgerEntry) -> None:
        """Write a start down. Durable on return where `entry.writes` and it is not `offered`; else soon. Raises `NotRecorded`."""
        ...

    def end(self, entry: LedgerEntry, state: RunState, note: str = "", result: str | None = None) -> None:
        """Write an end down, soon. Never raises: the tool has run."""
        ...

    async def close(self) -> None: ...


class NoLedger:
    """Nothing is written down: there is no folder to write to."""

    process = ""

    def key(self, entry: LedgerEntry) -> str:
        return entry.id

    def wait(self, entry: LedgerEntry) -> None:
        pass

    async def start(self, entry: LedgerEntry) -> None:
        pass

    def end(self, entry: LedgerEntry, state: RunState, note: str = "", result: str | None = None) -> None:
        pass

    async def close(self) -> None:
        pass
