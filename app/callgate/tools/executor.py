"""The protocol of executors, and the description of a tool for the rest of the program."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec

from callgate.calls.offer import Check
from callgate.calls.outcome import Outcome
from callgate.calls.states import FlawDetail, ReadyCall
from callgate.conversation.ports import Report

if TYPE_CHECKING:  # loads asyncio, which authors of tools need not wait for
    from callgate.tools.concurrency import ConcurrencyLimiter


class Safety(StrEnum):
    """The side effects of a tool; they decide whether a call may be repeated and whether a person is asked."""

    READ_ONLY = "read_only"
    WRITE = "write"
    DESTRUCTIVE = "destructive"


@dataclass(frozen=True, slots=True)
class Policy:
    """The limits of a tool's calls. The toolbox enforces them in the same way for every kind of tool."""

    timeout: float = 30.0
    concurrency: int | None = None
    max_result_bytes: int = 65_536
    safety: Safety = Safety.WRITE
    require_approval: bool = False
    retries: int = 0
    """Further tries after a failure; only for read-only tools."""


class RunContext(msgspec.Struct, frozen=True, gc=False):
    """The circumstances of one run that an executor may need."""

    run_id: str
    turn: int
    key: str
    """The same for every try of this very call and different for any other: an idempotency key."""
    report: Report
    max_bytes: int
    """No more than this is kept of the answer; what reads from outside stops reading there."""


class Executor(Protocol):
    """Runs a whole call. What the tool does wrong comes back as `Failed`; only cancellation and our own bugs raise.

    When it is cancelled, whatever it started (request, child, thread's result) is stopped or let go before it returns.
    """

    async def execute(self, call: ReadyCall, context: RunContext) -> Outcome: ...


DEFAULT_POLICY = Policy()
"""The policy of a tool about which nobody said anything."""


def not_compiled(arguments: Mapping[str, Any]) -> FlawDetail | None:
    """Stands for the check of a tool that no registry has taken in yet."""
    raise AssertionError("the schema of this tool was not compiled: no registry has taken it in")


@dataclass(frozen=True, slots=True)
class Tool:
    """One server tool."""

    name: str
    """Legal and unique in the registry; what a model calls it."""
    description: str
    parameters: Mapping[str, Any]
    executor: Executor
    check: Check = not_compiled
    """The compiled schema; the registry puts it here, and nobody else needs to."""
    policy: Policy = field(default_factory=Policy)
    kind: str = "python"
    source: str = ""
    """Where it comes from, for people: an import path, a URL, a server's name."""
    wanted: str = ""
    """What it would be called, where `name` is only what its source calls it."""
    offered: bool = False
    """Workers run it, and begin only what was offered to them and stands in the ledger."""
    queue: "ConcurrencyLimiter | None" = None
    """The places of what runs it, shared with other tools. A call takes one before its time begins."""


class Source(Protocol):
    """Something that has tools: a server, a document, a module. Opened and closed inside one task, with its runtime."""

    name: str
    kind: str

    async def open(self) -> None: ...

    def tools(self) -> tuple[Tool, ...]: ...

    async def close(self) -> None: ...


@runtime_checkable
class HasPrefix(Protocol):
    """A source that puts something before the names of all its tools."""

    @property
    def prefix(self) -> str:
        """With `_` behind it; empty for nothing."""
        ...


@runtime_checkable
class HasLeftOut(Protocol):
    """A source with things in it that cannot be tools."""

    def left_out(self) -> tuple[tuple[str, str], ...]:
        """Each with the reason."""
        ...
