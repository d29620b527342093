"""The protocol of executors, and the description of a tool for the rest of the program."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec

from callgate.callers.caller import NOBODY, Principal
from callgate.calls.offer import Check
from callgate.calls.outcome import Outcome
from callgate.calls.states import FlawDetail, ReadyCall
from callgate.conversation.ports import Report

if TYPE_CHECKING:  # loads asyncio, which authors of tools do not need
    from callgate.tools.concurrency import ConcurrencyLimiter
    from callgate.tools.questions import AskPerson


class Safety(StrEnum):
    """The side effects of a tool, which decide whether a call may be repeated and needs approval."""

    READ_ONLY = "read_only"
    WRITE = "write"
    DESTRUCTIVE = "destructive"


class Policy(msgspec.Struct, frozen=True):
    """The limits of a tool's calls. The toolbox enforces them in the same way for every kind of tool."""

    timeout: float = 30.0
    concurrency: int | None = None
    max_result_bytes: int = 65_536
    safety: Safety = Safety.WRITE
    safety_is_given: bool = False
    """Whether the config, the tool or its server gives the safety; otherwise it counts as one that writes."""
    require_approval: bool = False
    waits_by_default: bool = False
    """It is destructive and no rule says whether its calls wait, so that they do."""
    retries: int = 0
    """Further attempts after a failure; only for read-only tools."""
    in_order: bool = True
    """Whether a call that may write waits for those before it in its turn, and those behind it wait for it."""
    untrusted: bool = False
    """Whether its results hold words of others: after one of them, tools that may write need approval for the rest of the chat."""


class Charge(Protocol):
    """Charges the price of a call to a budget."""

    async def __call__(self, key: str, nano: int, /) -> str | None:
        """Return why the call may not run; None where it is charged. One with the same key is charged once."""
        ...


class CallContext(msgspec.Struct, frozen=True, gc=False):
    """The context of one call for its executor."""

    run_id: str
    turn: int
    key: str
    """An idempotency key: the same for all attempts of this call, and different for all other calls."""
    report: Report
    max_bytes: int
    """The limit of the result, at which executors stop reading."""
    caller: str = ""
    """Whose call it is."""
    charge: "Charge | None" = None
    """Charges a call to its caller's budget, where it has one."""
    wants_structured: bool = False
    """Whether the result for programs is taken, where the tool gives one beside the text."""
    for_client: bool = False
    """Whether a client takes the result as the tool gave it: what is structured, and files."""
    ask: "AskPerson | None" = None
    """Asks a person, for tools that may; None where nobody can be asked."""
    principal: Principal = NOBODY
    """On whose behalf it is, where a tool's server is to know."""


class Executor(Protocol):
    """Runs a whole call. Failures of the tool are returned as `Failed`; only cancellation and our own bugs raise.

    When it is cancelled, what it started (request, child process, thread) is stopped or abandoned before it returns.
    """

    async def execute(self, call: ReadyCall, context: CallContext) -> Outcome: ...


DEFAULT_POLICY = Policy()
"""The policy of a tool without settings."""


def not_compiled(arguments: Mapping[str, Any]) -> FlawDetail | None:
    """The placeholder for the check of a tool that is not registered yet."""
    raise AssertionError("the schema of this tool was not compiled: no registry has taken it in")


class Tool(msgspec.Struct, frozen=True):
    """One server tool."""

    name: str
    """The name for models, legal and unique in the registry."""
    description: str
    parameters: Mapping[str, Any]
    executor: Executor
    check: Check = not_compiled
    """The compiled schema, which its source sets, or else the registry."""
    policy: Policy = msgspec.field(default_factory=Policy)
    kind: str = "python"
    source: str = ""
    """Its origin, for people: an import path, a URL, a server's name."""
    claimed: str = ""
    """The name that it claims, where `name` is only the name at its source."""
    offered: bool = False
    """It runs on workers, which begin only calls that are in the ledger as offered."""
    asks: bool = False
    """It may ask a person for input while it runs."""
    title: str = ""
    """Its name for people, where it has another."""
    output_schema: Mapping[str, Any] | None = None
    """What its source says of its results for programs."""
    select: str = ""
    """The expression that takes its part of each result, for people."""
    schema_error: str = ""
    """Why its schema cannot be compiled."""
    queue: "ConcurrencyLimiter | None" = None
    """The limiter of its executor, shared with other tools. A call takes a place before its timeout begins."""
    identify: "Callable[[Principal], str] | None" = None
    """Returns what its results depend on beside its arguments, where its source knows on whose behalf it is called."""
    login: "Callable[[], int] | None" = None
    """Returns another number once its operator is logged in as somebody else: results of before do not count any more."""
    services: "tuple[Source, ...]" = ()
    """What has to be open for its calls, and has no tools of its own."""


class Source(Protocol):
    """A source of tools: a server, a document, a module. Opened and closed inside one task, with its runtime."""

    name: str
    kind: str

    async def open(self) -> None: ...

    def tools(self) -> tuple[Tool, ...]: ...

    async def close(self) -> None: ...


@runtime_checkable
class HasPrefix(Protocol):
    """A source with a prefix for the names of its tools."""

    @property
    def prefix(self) -> str:
        """The prefix without the `_` that follows it; empty for none."""
        ...


@runtime_checkable
class HasLeftOut(Protocol):
    """A source with entries that cannot be tools."""

    def left_out(self) -> tuple[tuple[str, str], ...]:
        """The entries, each with the reason."""
        ...


@runtime_checkable
class HasIntroduction(Protocol):
    """A source that says of itself what it is for."""

    def introduction(self) -> str:
        """Return its own words; empty where it has none."""
        ...


@runtime_checkable
class KnowsIdentities(Protocol):
    """A source that is used by each caller as himself, and may list other tools for each."""

    def unlisted(self, principal: Principal) -> frozenset[str]:
        """Return its tools that are not there for a caller."""
        ...


@runtime_checkable
class HasHeld(Protocol):
    """A source that holds tools back until somebody accepts them."""

    def held_back(self) -> tuple[tuple[str, str], ...]:
        """Return the tools that are held, each with the reason."""
        ...
