"""The tools of one request: the server tools that it may use, and the client's own.

The name decides who runs a call: the client's tools take precedence, and a server tool of the same name is offered as
`callgate__<name>`. The toolbox enforces the policy of every kind of tool in the same way: approval, concurrency, timeout,
retries, and the size of the result.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any, Protocol, TypeAlias

import msgspec
from msgspec.structs import replace

from callgate.calls.legal_names import MAX_LENGTH, RESERVED_PREFIX, hashed_name
from callgate.calls.offer import Offer, OfferedTool
from callgate.calls.outcome import Failed, FailureKind, Outcome, Returned
from callgate.calls.states import BrokenCall, Call, Flaw, ReadyCall
from callgate.conversation.ports import Begin, Plan, Report, begin_at_once
from callgate.http.backoff import full_jitter
from callgate.http.trace_context import TRACE
from callgate.tools.base64_files import without_files
from callgate.tools.concurrency import ConcurrencyLimits, QueueFull, Slots
from callgate.tools.executor import RunContext, Safety, Tool
from callgate.tools.registry import RegisteredTool
from callgate.tools.results import bounded, is_plainly_fit

KEPT_BYTES = 4 * 1024 * 1024
"""The limit for an executor, unless the policy allows the model even more: enough for an image, and small enough for a few
hundred calls."""
STOP_SECONDS = 0.5
"""The timeout for a cancelled tool to stop, after which it is abandoned."""
DESCRIBED_CHARS = 1000
"""Characters of a tool's description in the spans of its calls."""
FIRST_DELAY = 0.2
LONGEST_DELAY = 5.0
_bits = random.Random().getrandbits  # noqa: S311 - distinguishes calls, no secret
_WORTH_TRYING_AGAIN = frozenset({FailureKind.UNAVAILABLE, FailureKind.UNKNOWN})

QUEUE_SECONDS = 30.0
"""The timeout for a place, separate from the call's own timeout."""

Approve: TypeAlias = Callable[[Tool, ReadyCall, Report, str], Awaitable[Failed | None]]
"""Waits for the approval of a call, and reports the wait; None lets the call run. The last argument is the call's key."""


class RunRecord(Protocol):
    """One call in a journal."""

    @property
    def key(self) -> str:
        """The key of the call in the journal; empty where there is none."""
        ...

    def wait(self) -> None:
        """Record that it waits for approval or for a place."""
        ...

    async def begin(self) -> Outcome | None:
        """Record that it begins; it runs only if this returns None, and else has this outcome."""
        ...

    def end(self, outcome: Outcome) -> None: ...

    def cut_off(self, error: BaseException) -> None: ...


class Journal(Protocol):
    """Records calls of tools."""

    def record(self, call: ReadyCall, turn: int, *, writes: bool, offered: bool) -> RunRecord:
        """Return the record of a call. `offered`: workers begin it, once it is in the ledger."""
        ...


class _NoRecord:
    """The record of a call without a journal."""

    key = ""

    def wait(self) -> None: ...

    async def begin(self) -> None: ...

    def end(self, outcome: Outcome) -> None: ...

    def cut_off(self, error: BaseException) -> None: ...


_NO_RECORD = _NoRecord()


class RunAccount(msgspec.Struct, frozen=True, gc=False):
    """The facts of one run, for listeners that need more than the outcome."""

    tool: Tool
    source: str
    outcome: Outcome
    tries: int
    waited: float
    """Seconds of waiting for approval and a place."""
    seconds: float
    """Seconds of all attempts together."""


retry_delay: Callable[[int], float] = partial(full_jitter, first=FIRST_DELAY, longest=LONGEST_DELAY)
"""Returns the seconds to wait after a number of failures."""


class ToolSet:
    """A set of server tools, in the formats that requests need."""

    __slots__ = ("by_name", "offer", "schemas", "writes")

    def __init__(self, tools: Iterable[RegisteredTool]) -> None:
        self.by_name = {each.name: each for each in tools}
        self.offer: Offer = {each.name: each.offered for each in self.by_name.values()}
        self.schemas: Sequence[msgspec.Raw] = tuple(each.schema for each in self.by_name.values())
        self.writes = any(each.tool.policy.safety is not Safety.READ_ONLY for each in self.by_name.values())
        """Whether any of them may have side effects."""

    def apart_from(self, theirs: Mapping[str, object]) -> "ToolSet":
        """Return the set with other names for tools that have the name of a client's tool."""
        if theirs.keys().isdisjoint(self.by_name):
            return self
        kept = {name: each for name, each in self.by_name.items() if name not in theirs}
        for name, each in self.by_name.items():
            if name in theirs:
                taken = kept.keys() | theirs.keys()
                free = RESERVED_PREFIX + each.name
                salt = free
                while free in taken or len(free) > MAX_LENGTH:
                    free = hashed_name(each.name, salt, RESERVED_PREFIX)
                    salt += "\0"
                kept[free] = each.under(free)
        return ToolSet(kept.values())


class RequestToolbox(msgspec.Struct, eq=False):
    """The toolbox of one chat."""

    server_tools: ToolSet | Sequence[RegisteredTool]
    client: Sequence[msgspec.Raw] = ()
    run_id: str = ""
    limits: ConcurrencyLimits = msgspec.field(default_factory=ConcurrencyLimits)
    approve: Approve | None = None
    journal: Journal | None = None
    queue_seconds: float = QUEUE_SECONDS
    on_run: Callable[[RunAccount], None] | None = None
    on_cut: Callable[[Returned, int], Returned] | None = None
    """Called with a result that is too long, and its limit; returns what the model is sent."""
    delay: Callable[[int], float] = retry_delay
    offer: Offer = {}
    schemas: Sequence[msgspec.Raw] = ()
    _theirs: Collection[str] = frozenset()
    _by_name: Mapping[str, RegisteredTool] = {}
    _turn: int = -1

    def __post_init__(self) -> None:
        tools, client = self.server_tools, self.client
        selection = tools if isinstance(tools, ToolSet) else ToolSet(tools)
        if client and (theirs := _by_name(client)):
            selection = selection.apart_from(theirs)
            self._theirs = theirs.keys()
            self.offer = _LazyOffer(selection.by_name, theirs)
        else:
            self.offer = selection.offer
        self._by_name = selection.by_name
        self.schemas = (*client, *selection.schemas) if client else selection.schemas

    def plan(self, calls: Sequence[Call]) -> Plan:
        """Put each call of a turn into exactly one list. Called once per turn."""
        self._turn += 1
        ours: list[ReadyCall] = []
        theirs: list[Call] = []
        broken: list[BrokenCall] = []
        for call in calls:
            if isinstance(call, BrokenCall):
                broken.append(call)
            elif call.name in self._theirs:
                theirs.append(call)
            elif call.name in self._by_name:
                ours.append(call)
            else:
                broken.append(BrokenCall(call.id, call.name, Flaw.UNKNOWN_TOOL, call.text, extras=call.extras))
        return Plan(tuple(ours), tuple(theirs), tuple(broken))

    def is_clients(self, name: str | None) -> bool:
        return name in self._theirs

    def writes(self, call: ReadyCall) -> bool:
        return self._by_name[call.name].tool.policy.safety is not Safety.READ_ONLY

    def is_ordered(self, call: ReadyCall) -> bool:
        policy = self._by_name[call.name].tool.policy
        return policy.in_order and policy.safety is not Safety.READ_ONLY

    async def run(self, call: ReadyCall, report: Report, begin: Begin = begin_at_once) -> Outcome:
        """Run one call of ours. Failures of the tool are outcomes; cancelling stops the tool."""
        entry = self._by_name[call.name]
        if (trace := TRACE.get()) is not None:
            described = {"gen_ai.tool.description": entry.tool.description[:DESCRIBED_CHARS] or None}
            trace.call(call.id, {**described, "callgate.call.safety": str(entry.tool.policy.safety)})
        record: RunRecord = _NO_RECORD
        if self.journal is not None:
            record = self.journal.record(call, max(self._turn, 0), writes=self.writes(call), offered=entry.tool.offered)
        if call.name != entry.tool.name:
            call = replace(call, name=entry.tool.name)
        run = _CallRun(entry.tool, call, self._context(entry.tool, record.key, report), self.delay)
        began = monotonic()
        slots = Slots(self.limits.on_the_way_to(entry.address, entry.source, entry.tool.queue))
        try:
            outcome = await self._admitted(run, slots, record, begin)
            entered = monotonic()
            if outcome is None:
                outcome = await run.outcome(slots)
            outcome = self._bounded(outcome, entry.tool.policy.max_result_bytes)
        except BaseException as error:
            record.cut_off(error)
            raise
        finally:
            slots.give_back()
        record.end(outcome)
        if self.on_run is not None:
            account = RunAccount(entry.tool, entry.source, outcome, run.tries, entered - began, monotonic() - entered)
            self.on_run(account)
        return outcome

    def _bounded(self, whole: Outcome, max_bytes: int) -> Outcome:
        if is_plainly_fit(whole, max_bytes):
            return whole
        if isinstance(whole, Returned):
            whole = replace(whole, text=without_files(whole.text))
        outcome = bounded(whole, max_bytes)
        if self.on_cut is None or isinstance(whole, Failed) or isinstance(outcome, Failed) or not outcome.cut_bytes:
            return outcome
        return replace(self.on_cut(whole, max_bytes), images=outcome.images)

    async def _admitted(self, run: "_CallRun", slots: Slots, record: RunRecord, begin: Begin) -> Outcome | None:
        """Wait for the approval, for the calls before it, and for the places; return None when the call may run, else its
        outcome."""
        if run.tool.policy.require_approval:
            if self.approve is None:
                return Failed("Not run: this tool needs approval, and nobody can be asked.", FailureKind.REFUSED)
            record.wait()
            refusal = await self.approve(run.tool, run.call, run.report, run.key)
            if refusal is not None:
                return refusal
        await begin()
        try:
            if slots.are_free:
                await slots.take()  # at once
            else:
                record.wait()
                async with asyncio.timeout(self.queue_seconds):
                    await slots.take()
        except (TimeoutError, QueueFull):
            return Failed("Not run: too many calls of this tool are running. Try again later.", FailureKind.REFUSED)
        return await record.begin()

    def _context(self, tool: Tool, key: str, report: Report) -> RunContext:
        return RunContext(
            run_id=self.run_id,
            turn=max(self._turn, 0),
            key=key or f"{_bits(128):032x}",
            report=report,
            max_bytes=max(KEPT_BYTES, tool.policy.max_result_bytes),
        )


class _CallRun(msgspec.Struct, eq=False):
    """One call, from its first attempt to its outcome."""

    tool: Tool
    call: ReadyCall
    _context: RunContext
    _delay: Callable[[int], float]
    tries: int = 0

    @property
    def report(self) -> Report:
        return self._context.report

    @property
    def key(self) -> str:
        return self._context.key

    async def outcome(self, slots: Slots) -> Outcome:
        """Return the tool's outcome within its timeout, with retries where they are safe and may help."""
        policy = self.tool.policy
        deadline = monotonic() + policy.timeout
        further = policy.retries if policy.safety is Safety.READ_ONLY else 0
        while True:
            self.tries += 1
            outcome = await self._try(deadline - monotonic(), slots)
            if not isinstance(outcome, Failed) or outcome.kind not in _WORTH_TRYING_AGAIN or self.tries > further:
                return outcome
            pause = self._delay(self.tries)
            if monotonic() + pause >= deadline:
                return outcome
            await asyncio.sleep(pause)

    async def _try(self, seconds: float, slots: Slots) -> Outcome:
        task = asyncio.create_task(_executed(self.tool, self.call, self._context), name=f"tool {self.tool.name}")
        try:
            await _end_of(task, max(seconds, 0.0))
        except asyncio.CancelledError:
            await _stop(task, slots)
            raise
        if task.done():
            return _outcome_of(task)
        await _stop(task, slots)
        text = f"No result after {self.tool.policy.timeout:g} s; the tool was stopped."
        if self.tool.policy.safety is not Safety.READ_ONLY:
            text += " What it should do may or may not have happened."
        return Failed(text, FailureKind.TIMEOUT)


async def _end_of(task: "asyncio.Task[Outcome]", seconds: float) -> None:
    """Wait for a task with a timeout. Like `asyncio.wait` for one task, at a third of the cost."""
    loop = asyncio.get_running_loop()
    over = loop.create_future()

    def wake(_: object = None) -> None:
        if not over.done():
            over.set_result(None)

    task.add_done_callback(wake)
    timer = loop.call_later(seconds, wake)
    try:
        await over
    finally:
        timer.cancel()
        task.remove_done_callback(wake)


async def _executed(tool: Tool, call: ReadyCall, context: RunContext) -> Outcome:
    """Run the executor. A coroutine, so that all of the executor runs inside the task."""
    return await tool.executor.execute(call, context)


def _outcome_of(task: "asyncio.Task[Outcome]") -> Outcome:
    if task.cancelled():
        return Failed("The tool was cancelled from within.")
    error = task.exception()
    if error is None:
        return task.result()
    # An executor that raises is a bug of ours, which is logged; the chat goes on.
    asyncio.get_running_loop().call_exception_handler(
        {"message": f"the executor of {task.get_name()} raised", "exception": error, "task": task}
    )
    return Failed("The tool broke down, and not because of the arguments.")


_abandoned: set["asyncio.Task[Outcome]"] = set()
"""Tasks that did not stop when they were cancelled. Kept, because the event loop has only weak references."""


async def _stop(task: "asyncio.Task[Outcome]", slots: Slots) -> None:
    """Cancel a tool and wait for its end, with a timeout. One that goes on keeps its places until it ends."""
    task.cancel()
    try:
        await asyncio.wait([task], timeout=STOP_SECONDS)
    finally:
        if task.done():
            if not task.cancelled():
                task.exception()  # marks it as retrieved
        else:
            held = slots.hand_over()
            _abandoned.add(task)

            def ended(task: "asyncio.Task[Outcome]") -> None:
                _abandoned.discard(task)
                held.give_back()
                if not task.cancelled():
                    task.exception()

            task.add_done_callback(ended)


# Names and their owners ----------------------------------------------------------------------------------


class _ClientFunction(msgspec.Struct, gc=False):
    name: str = ""
    parameters: msgspec.Raw = msgspec.Raw()


class _ClientTool(msgspec.Struct, gc=False):
    """The name of a client's tool; the schema is decoded lazily."""

    type: str = "function"
    function: _ClientFunction | None = None
    custom: _ClientFunction | None = None


_client_tool = msgspec.json.Decoder(_ClientTool)
_schema = msgspec.json.Decoder(dict[str, Any])


def only_named(client: Sequence[msgspec.Raw], names: frozenset[str]) -> Sequence[msgspec.Raw]:
    """Return the client's tools with one of these names."""
    return [raw for raw in client if not names.isdisjoint(_by_name([raw]))]


def _by_name(client: Sequence[msgspec.Raw]) -> dict[str, msgspec.Raw]:
    """Return the undecoded parameters of the client's tools by name. Unreadable tools are left out."""
    found: dict[str, msgspec.Raw] = {}
    for raw in client:
        try:
            tool = _client_tool.decode(raw)
        except msgspec.DecodeError:
            continue  # sent on unchanged; the provider reports what is wrong with it
        one = tool.custom or tool.function
        if one is not None and one.name:
            found[one.name] = one.parameters
    return found


class _LazyOffer(Mapping[str, OfferedTool]):
    """All offered tools; a client's schema is decoded when it is needed."""

    def __init__(self, server_tools: Mapping[str, RegisteredTool], theirs: Mapping[str, msgspec.Raw]) -> None:
        self._server_tools = server_tools
        self._theirs = theirs
        self._decoded: dict[str, OfferedTool] = {}

    def __getitem__(self, name: str) -> OfferedTool:
        if name in self._server_tools:
            return self._server_tools[name].offered
        if name not in self._decoded:
            # A client's schema that is no object is ignored.
            try:
                parameters = _schema.decode(self._theirs[name])
            except msgspec.DecodeError:
                parameters = {}
            self._decoded[name] = OfferedTool(name, parameters)
        return self._decoded[name]

    def __contains__(self, name: object) -> bool:
        return name in self._server_tools or name in self._theirs

    def __iter__(self) -> Iterator[str]:
        yield from self._theirs
        yield from self._server_tools

    def __len__(self) -> int:
        return len(self._theirs) + len(self._server_tools)
