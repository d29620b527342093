"""The tools of one request: the server tools that it may use, and the client's own.

The name decides who runs a call: the client's tools take precedence, and a server tool of the same name is offered as
`callgate__<name>`. The toolbox enforces the policy of every kind of tool in the same way: approval, concurrency, timeout,
retries, and the size of the result.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec
from msgspec.structs import replace

from callgate.callers.caller import NOBODY, Principal
from callgate.calls.legal_names import MAX_LENGTH, RESERVED_PREFIX, hashed_name
from callgate.calls.offer import Offer, OfferedTool
from callgate.calls.outcome import Failed, FailureKind, Image, Outcome, Returned
from callgate.calls.selection import OF_REQUESTS
from callgate.calls.states import BrokenCall, Call, Flaw, ReadyCall
from callgate.conversation.ids import random_bits
from callgate.conversation.listeners import NOTHING
from callgate.conversation.ports import Begin, DeferredTools, Message, Plan, ProgressReport, Report, begin_at_once
from callgate.http.backoff import full_jitter
from callgate.http.trace_context import TRACE
from callgate.tools.base64_files import without_files
from callgate.tools.call_questions import CallQuestions
from callgate.tools.concurrency import NO_SLOTS, CallDeadlines, ConcurrencyLimits, QueueFull, Slots
from callgate.tools.executor import CallContext, Charge, Executor, Safety, Tool
from callgate.tools.own_tool import OwnTool
from callgate.tools.questions import PersonsAnswer, Question
from callgate.tools.read_more import ResultPages, read_more_apart_from
from callgate.tools.registry import RegisteredTool
from callgate.tools.results import bounded, is_plainly_fit, with_fitting_files
from callgate.tools.untrusted_results import Taint, reason_to_wait
from callgate.untrusted.readers import json_reader

if TYPE_CHECKING:  # imported where tools are searched for
    from callgate.tools.tool_search import SearchedTools

KEPT_BYTES = 4 * 1024 * 1024
"""The limit for an executor, unless the policy allows the model even more: enough for an image, and small enough for a few
hundred calls."""
STOP_SECONDS = 0.5
"""The timeout for a cancelled tool to stop, after which it is abandoned."""
DESCRIBED_CHARS = 1000
"""Characters of a tool's description in the spans of its calls."""
FIRST_DELAY = 0.2
LONGEST_DELAY = 5.0
_WORTH_TRYING_AGAIN = frozenset({FailureKind.UNAVAILABLE, FailureKind.UNKNOWN})

_TOO_MANY = Failed("Not run: too many calls of this tool are running. Try again later.", FailureKind.REFUSED)
_NOBODY_TO_ASK = Failed("Not run: this tool needs approval, and nobody can be asked.", FailureKind.REFUSED)
_NOBODY_TO_ASK_BY_DEFAULT = Failed(
    "Not run: this tool is destructive and needs approval, and nobody can be asked. It runs without only if the operator of the server"
    " writes `require_approval: never` for it.",
    FailureKind.REFUSED,
)
"""What a model is told where the tool waits only because no rule speaks of it."""

QUEUE_SECONDS = 30.0
"""The timeout for a place, separate from the call's own timeout."""

Approve: TypeAlias = Callable[[Tool, ReadyCall, Report, str], Awaitable[Failed | None]]
"""Waits for the approval of a call, and reports the wait; None lets the call run. The last argument is the call's key."""


Screen: TypeAlias = Callable[[ReadyCall, Outcome, Collection[str]], Awaitable[Outcome]]
"""Returns what may be read and kept of a tool's outcome. The last argument is all names that the tool has."""

PutQuestion: TypeAlias = Callable[[Question, Tool, ReadyCall, Report, str, int], Awaitable[PersonsAnswer]]
"""Puts a question of a running call to a person. The last arguments are the call's key, and the number of the question in it."""


class Searching(Protocol):
    """Makes the tools of a request searchable."""

    def __call__(self, tools: Mapping[str, RegisteredTool], taken_names: Collection[str]) -> "SearchedTools":
        """`tools`: by their names in the request. `taken_names`: those of further tools of it."""
        ...


class CallRecord(Protocol):
    """One call in a journal."""

    def key(self) -> str:
        """Return the key of the call in the journal; empty where there is none."""
        ...

    def wait(self) -> None:
        """Record that it waits for approval or for a place."""
        ...

    def begin(self) -> Awaitable[Outcome | None]:
        """Record that it begins; it runs only if this returns None, and else has this outcome."""
        ...

    def end(self, outcome: Outcome) -> None: ...

    def cut_off(self, error: BaseException) -> None: ...


class Journal(Protocol):
    """Records calls of tools."""

    def record(self, call: ReadyCall, turn: int, *, writes: bool, offered: bool) -> CallRecord:
        """Return the record of a call. `offered`: workers begin it, once it is in the ledger."""
        ...


class _NoRecord:
    """The record of a call without a journal."""

    def key(self) -> str:
        return ""

    def wait(self) -> None: ...

    def begin(self) -> Awaitable[None]:
        return NOTHING

    def end(self, outcome: Outcome) -> None: ...

    def cut_off(self, error: BaseException) -> None: ...


_NO_RECORD = _NoRecord()


retry_delay: Callable[[int], float] = partial(full_jitter, first=FIRST_DELAY, longest=LONGEST_DELAY)
"""Returns the seconds to wait after a number of failures."""


class ToolSet:
    """A set of server tools, in the formats that requests need."""

    __slots__ = (
        "asks",
        "by_name",
        "deferred",
        "definitions",
        "is_untrusted",
        "offer",
        "own_names",
        "read_more",
        "search",
        "writes",
    )

    def __init__(
        self,
        tools: Iterable[RegisteredTool],
        *,
        with_read_more: bool = False,
        taken_names: Collection[str] = (),
        search: Searching | None = None,
    ) -> None:
        """`with_read_more`: also offer `read_more`, where there are any tools. `taken_names`: the names of other tools of the
        same request. `search`: has some of them found by searching."""
        self.by_name = {tool.name: tool for tool in tools}
        self.search: SearchedTools | None = None
        """By which a model finds those of these tools whose schemas it is not sent."""
        self.deferred: DeferredTools | None = None
        """The tools that are searched for, for a provider that loads them itself."""
        self.own_names: frozenset[str] = frozenset()
        """The names of tools that are Callgate's own."""
        self.read_more: OwnTool | None = None
        """By which a model reads on in a result of these tools that was cut."""
        self.offer: Offer = {tool.name: tool.offered for tool in self.by_name.values()}
        self.definitions: Sequence[msgspec.Raw] = tuple(tool.definition for tool in self.by_name.values())
        self.writes = any(tool.tool.policy.safety is not Safety.READ_ONLY for tool in self.by_name.values())
        """Whether any of them may have side effects."""
        self.is_untrusted = any(tool.tool.policy.untrusted for tool in self.by_name.values())
        """Whether the results of any of them hold words of others."""
        self.asks = any(tool.tool.asks for tool in self.by_name.values())
        """Whether any of them may ask a person while it runs."""
        if search is not None and self.by_name:
            searched = search(self.by_name, taken_names)
            if searched.hidden:
                self.search = searched
                self.deferred = searched.deferred
                self.offer = searched.offer()
                self.definitions = searched.shown
        if with_read_more and self.by_name:
            self.read_more = read_more_apart_from({*self.by_name, *taken_names})
            self.own_names = frozenset((self.read_more.name,))
            self.offer = {**self.offer, self.read_more.name: self.read_more.offered}
            self.definitions = (*self.definitions, self.read_more.definition)
        if self.search is not None:
            self.own_names |= {tool.name for tool in self.search.own}
            self.definitions = (*self.definitions, *(tool.definition for tool in self.search.own))

    def apart_from(self, client_names: Collection[str]) -> "ToolSet":
        """Return the set with other names for tools that have the name of a client's tool."""
        if self.offer.keys().isdisjoint(client_names):
            return self
        tools = {name: tool for name, tool in self.by_name.items() if name not in client_names}
        for name, tool in self.by_name.items():
            if name in client_names:
                free_name = _free_name(name, {*tools, *client_names})
                tools[free_name] = tool.under(free_name)
        return self.replaced(tools.values(), client_names)

    def replaced(self, tools: Iterable[RegisteredTool], taken_names: Iterable[str] = ()) -> "ToolSet":
        """Return a set of other tools, with `read_more` and searching where this set has them."""
        return ToolSet(
            tools,
            with_read_more=self.read_more is not None,
            taken_names=frozenset(taken_names),
            search=None if self.search is None else self.search.again,
        )


def _free_name(name: str, taken_names: Collection[str]) -> str:
    free_name = RESERVED_PREFIX + name
    salt = free_name
    while free_name in taken_names or len(free_name) > MAX_LENGTH:
        free_name = hashed_name(name, salt, RESERVED_PREFIX)
        salt += "\0"
    return free_name


class ToolboxParts(msgspec.Struct, eq=False):
    """What the toolbox of one chat is made of."""

    server_tools: ToolSet
    """Under other names where the client's tools have theirs."""
    client_tools: Sequence[msgspec.Raw] = ()
    run_id: str = ""
    caller: str = ""
    """Whose chat it is."""
    principal: Principal = NOBODY
    """On whose behalf it is, where a tool's server is to know."""
    charge: Charge | None = None
    """Charges calls that cost something to the budget of its key."""
    limits: ConcurrencyLimits = msgspec.field(default_factory=ConcurrencyLimits)
    journal: Journal | None = None
    results: ResultPages | None = None
    """Keeps the results that are cut, where the set has `read_more`."""
    refusal: Callable[[RegisteredTool], Failed | None] | None = None
    """Returns why a tool may not be called any more, where what its caller may can change while it runs."""
    approve: Approve | None = None
    put: PutQuestion | None = None
    taint: Taint | None = None
    """Where a tool's results may hold words of others, what the chat has read of them."""
    screen: Screen | None = None
    """Screens what tools return, where a guardrail looks at it."""
    is_screened: Callable[[Collection[str]], bool] | None = None
    """Returns whether a guardrail looks at what a tool of these names returns."""
    queue_seconds: float = QUEUE_SECONDS
    for_client: bool = False
    """Whether results are for a client that takes more than text and images."""
    delay: Callable[[int], float] = retry_delay


class RequestToolbox(ToolboxParts, eq=False, kw_only=True):
    """The toolbox of one chat."""

    offer: Offer = {}
    _client_names: Collection[str] = frozenset()
    _misses: set[frozenset[str]] = set()
    """The words of the last search, where nothing was found by them."""
    _revealed: dict[str, None] = {}
    """The tools that were found, where the model's list gets them."""
    _turn: int = -1

    def __post_init__(self) -> None:
        parameters: Mapping[str, msgspec.Raw] = {}
        if self.client_tools:
            parameters = client_parameters(self.client_tools)
        if not parameters:
            self.offer = self.server_tools.offer
            return
        self.server_tools = self.server_tools.apart_from(parameters.keys())
        self._client_names = parameters.keys()
        self.offer = LazyOffer(self.server_tools.offer, lambda: parameters)

    def definitions(self) -> Sequence[msgspec.Raw]:
        definitions = self.server_tools.definitions
        if self.client_tools:
            definitions = (*self.client_tools, *definitions)
        if self._revealed and self.server_tools.search is not None:
            return (*definitions, *self.server_tools.search.listed(self._revealed))
        return definitions

    def plan(self, calls: Sequence[Call]) -> Plan:
        """Put each call of a turn into exactly one list. Called once per turn."""
        self._turn += 1
        ours: list[ReadyCall] = []
        theirs: list[Call] = []
        broken: list[BrokenCall] = []
        for call in calls:
            if type(call) is BrokenCall:
                broken.append(call)
            elif call.name in self._client_names:
                theirs.append(call)
            elif call.name in self.server_tools.by_name or call.name in self.server_tools.own_names:
                ours.append(call)
            else:
                broken.append(BrokenCall(call.id, call.name, Flaw.UNKNOWN_TOOL, call.text, extras=call.extras))
        return Plan(tuple(ours), tuple(theirs), tuple(broken))

    def recall(self, messages: Sequence[Message]) -> Awaitable[None]:
        """Read in the history what earlier requests of the conversation kept: long results, and tools that were found."""
        if self.server_tools.search is not None and self.server_tools.search.call is None:
            from callgate.conversation.found_tools import found_in

            self._revealed |= dict.fromkeys(found_in(messages, self.server_tools.search.find.name))
        if self.results is None:
            return NOTHING
        return self.results.recall(messages)

    def is_clients(self, name: str | None) -> bool:
        return name in self._client_names

    def writes(self, call: ReadyCall) -> bool:
        return (
            call.name not in self.server_tools.own_names
            and self.server_tools.by_name[call.name].tool.policy.safety is not Safety.READ_ONLY
        )

    def has(self, name: str) -> bool:
        """Return whether a tool of this name is in the chat, whoever runs it."""
        return name in self.server_tools.by_name or name in self.server_tools.own_names or name in self._client_names

    def is_untrusted(self, name: str) -> bool:
        """Return whether the results of a tool of ours hold words of others."""
        if name not in self.server_tools.by_name:
            return False
        return self.server_tools.by_name[name].tool.policy.untrusted

    def names_of(self, name: str) -> Collection[str]:
        """Return all names of a tool, by the one that it has in this chat."""
        if name not in self.server_tools.by_name:
            return (name,)
        return (name, *self.server_tools.by_name[name].names())

    def is_of_request(self, name: str) -> bool:
        """Return whether the server of a tool is one that the request names by its address."""
        return name in self.server_tools.by_name and self.server_tools.by_name[name].source.startswith(OF_REQUESTS)

    def is_ordered(self, call: ReadyCall) -> bool:
        if not self.writes(call):
            return False
        return self.server_tools.by_name[call.name].tool.policy.in_order

    async def run(self, call: ReadyCall, report: Report, begin: Begin = begin_at_once) -> Outcome:
        """Run one call of ours. Failures of the tool are outcomes; cancelling stops the tool."""
        if call.name in self.server_tools.own_names:
            await begin()
            return await self._own_result(call)
        entry = self.server_tools.by_name[call.name]
        if (trace := TRACE.get()) is not None:
            description = {"gen_ai.tool.description": entry.tool.description[:DESCRIBED_CHARS] or None}
            trace.call(call.id, {**description, "callgate.call.safety": str(entry.tool.policy.safety)})
        record: CallRecord = _NO_RECORD
        if self.journal is not None:
            writes = entry.tool.policy.safety is not Safety.READ_ONLY
            record = self.journal.record(call, max(self._turn, 0), writes=writes, offered=entry.tool.offered)
        if call.name != entry.tool.name:
            call = replace(call, name=entry.tool.name)
        if self.is_screened is not None and self.is_screened(entry.names()):
            report = _without_words(report)
        context = self._context(entry.tool, record.key(), report)
        attempts = _Attempts(entry.tool, call, context, self.delay, self.limits.deadlines)
        if entry.tool.asks and self.put is not None:
            attempts.let_ask(self.put)
        limiters = self.limits.on_the_way_to(entry.address, entry.source, entry.tool.queue)
        slots = Slots(limiters) if limiters else NO_SLOTS
        try:
            outcome = await self._admitted(entry, attempts, slots, record, begin)
            if outcome is None:
                outcome = await attempts.outcome(slots)
                if self.screen is not None:
                    outcome = await self.screen(call, outcome, entry.names())
            outcome = self._bounded(outcome, entry.tool.policy.max_result_bytes)
        except BaseException as error:
            record.cut_off(error)
            raise
        finally:
            slots.give_back()
        record.end(outcome)
        if self.results is not None and self.results.unsaved:
            await self.results.save()
        return outcome

    def put_away(self, call_id: str, name: str | None, text: str) -> str | None:
        """Keep a result that is cleared out of the prompt; return the line that stands for it, None where it stays: the tools that a
        search found are known by its results."""
        if self.results is None or self.server_tools.read_more is None:
            return None
        if self.server_tools.search is not None and name == self.server_tools.search.find.name:
            return None
        return self.results.put_away(call_id, text, self.server_tools.read_more.name)

    def put_away_image(self, image: Image) -> str | None:
        """Keep an image that is cleared out of the prompt; return the line that stands for it, None where it stays."""
        if self.results is None or self.server_tools.read_more is None:
            return None
        return self.results.put_away_image(image, self.server_tools.read_more.name)

    async def _own_result(self, call: ReadyCall) -> Outcome:
        """Run a call of one of Callgate's own tools."""
        search = self.server_tools.search
        if search is not None and call.name == search.find.name:
            outcome = await search.search(call.arguments, self._misses)
            if search.call is None and isinstance(outcome, Returned) and outcome.facts is not None:
                self._revealed |= dict.fromkeys(outcome.facts.found_tools)
            return outcome
        if self.results is None:
            return Failed("Not run: results are not kept here.", FailureKind.NOT_RUN)
        return self.results.page(call.arguments["id"], call.arguments.get("offset", 0))

    def _bounded(self, whole: Outcome, max_bytes: int) -> Outcome:
        if is_plainly_fit(whole, max_bytes):
            return whole
        if isinstance(whole, Returned):
            whole = replace(whole, text=without_files(whole.text))
            if whole.files:
                whole = with_fitting_files(whole, max_bytes)
        outcome = bounded(whole, max_bytes)
        if (
            self.results is None
            or self.server_tools.read_more is None
            or isinstance(whole, Failed)
            or isinstance(outcome, Failed)
        ):
            return outcome
        if not outcome.cut_bytes:
            return outcome
        return replace(self.results.keep(whole, max_bytes, self.server_tools.read_more.name), images=outcome.images)

    async def _admitted(
        self, entry: RegisteredTool, attempts: "_Attempts", slots: Slots, record: CallRecord, begin: Begin
    ) -> Outcome | None:
        """Wait for the approval, for the calls before it, and for the places; return None when the call may run, else its
        outcome."""
        tool = entry.tool
        if tool.policy.require_approval or self.taint is not None:
            refusal = await self._approval(entry, attempts, record)
            if refusal is not None:
                return refusal
        await begin()
        if slots.are_needed and not await self._has_places(slots, record):
            return _TOO_MANY
        if self.refusal is not None and (refusal := self.refusal(entry)) is not None:
            return refusal
        return await record.begin()

    async def _approval(self, entry: RegisteredTool, attempts: "_Attempts", record: CallRecord) -> Failed | None:
        """Wait for the approval of a call that needs one; return why it may not run."""
        tool = entry.tool
        taint = ""
        if self.taint is not None and tool.policy.safety is not Safety.READ_ONLY:
            taint = self.taint.source_for(of_request=entry.source.startswith(OF_REQUESTS))
        if not taint and not tool.policy.require_approval:
            return None
        if self.approve is None:
            return _nobody_to_ask(tool, taint)
        record.wait()
        if taint:
            tool = _described(tool, taint)
        return await self.approve(tool, attempts.call, attempts.context.report, attempts.context.key)

    async def _has_places(self, slots: Slots, record: CallRecord) -> bool:
        """Wait for the places of a call; return whether it has them."""
        try:
            if slots.are_free:
                await slots.take()  # at once
            else:
                record.wait()
                async with asyncio.timeout(self.queue_seconds):
                    await slots.take()
        except (TimeoutError, QueueFull):
            return False
        return True

    def _context(self, tool: Tool, key: str, report: Report) -> CallContext:
        return CallContext(
            self.run_id,
            max(self._turn, 0),
            key or f"{random_bits(128):032x}",
            report,
            max(KEPT_BYTES, tool.policy.max_result_bytes),
            self.caller,
            self.charge,
            principal=self.principal,
            for_client=self.for_client,
        )


def _without_words(report: Report) -> Report:
    """Return what tells how far a tool is, but not in its own words: they are part of what it returns, and nobody has judged them."""

    async def tell(progress: ProgressReport) -> None:
        if progress == ProgressReport(progress.message, progress.fraction):  # what waits for a person says so in ours
            progress = ProgressReport("", progress.fraction)
        await report(progress)

    return tell


def _nobody_to_ask(tool: Tool, taint: str) -> Failed:
    """Return the failure of a call that would have to wait, where nobody may decide. `taint`: the tool on whose account."""
    if not tool.policy.require_approval:
        return Failed(f"Not run: {reason_to_wait(taint)}, and nobody can be asked.", FailureKind.REFUSED)
    if tool.policy.waits_by_default:
        return _NOBODY_TO_ASK_BY_DEFAULT
    return _NOBODY_TO_ASK


def _described(tool: Tool, taint: str) -> Tool:
    """Return the tool with the reason to wait in its description, which those who decide are shown."""
    reason = f"This call waits because {reason_to_wait(taint)}."
    return replace(tool, description=f"{reason}\n\n{tool.description}")


class _Attempts(msgspec.Struct, eq=False):
    """The attempts at one call, within its timeout."""

    tool: Tool
    call: ReadyCall
    context: CallContext
    delay: Callable[[int], float]
    deadlines: CallDeadlines
    questions: CallQuestions | None = None

    def let_ask(self, put: PutQuestion) -> None:
        """Have the tool ask a person while it runs."""
        context = self.context
        questions: CallQuestions

        async def ask(question: Question) -> PersonsAnswer:
            return await put(question, self.tool, self.call, context.report, context.key, questions.asked)

        self.questions = questions = CallQuestions(ask)
        self.context = replace(context, ask=questions.ask)

    def outcome(self, slots: Slots) -> Coroutine[Any, Any, Outcome]:
        """Return the tool's outcome within its timeout, with retries where they are safe and may help."""
        policy = self.tool.policy
        if policy.retries and policy.safety is Safety.READ_ONLY:
            return self._retried(policy.retries, slots)
        return self._attempt(policy.timeout, slots)

    async def _retried(self, retries: int, slots: Slots) -> Outcome:
        deadline = monotonic() + self.tool.policy.timeout
        failures = 0
        while True:
            outcome = await self._attempt(deadline - monotonic(), slots)
            if type(outcome) is not Failed or outcome.kind not in _WORTH_TRYING_AGAIN:
                return outcome
            failures += 1
            if failures > retries or (self.questions is not None and self.questions.asked):
                return outcome
            pause = self.delay(failures)
            if monotonic() + pause >= deadline:
                return outcome
            await asyncio.sleep(pause)

    async def _attempt(self, seconds: float, slots: Slots) -> Outcome:
        deadlines = self.deadlines
        waiter = deadlines.begin(max(seconds, 0.0))
        executing = _executed(self.tool.executor, self.call, self.context, waiter)
        task = waiter.get_loop().create_task(executing, name=f"tool {self.tool.name}")
        try:
            if self.questions is None:
                await waiter
            else:
                await self.questions.wait(task, seconds)
        except asyncio.CancelledError:
            await _stop(task, slots)
            raise
        finally:
            deadlines.end(waiter)
        if task.done():
            return _outcome_of(task)
        await _stop(task, slots)
        text = f"No result after {self.tool.policy.timeout:g} s; the tool was stopped."
        if self.tool.policy.safety is not Safety.READ_ONLY:
            text += " What it should do may or may not have happened."
        return Failed(text, FailureKind.TIMEOUT)


async def _executed(
    executor: Executor, call: ReadyCall, context: CallContext, waiter: "asyncio.Future[None]"
) -> Outcome:
    """Run the executor, and wake who waits for its end. A coroutine, so that all of the executor runs inside the task."""
    try:
        return await executor.execute(call, context)
    finally:
        if not waiter.done():
            waiter.set_result(None)


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
            _retrieve_exception(task)
        else:
            slots_of_task = slots.hand_over()
            _abandoned.add(task)

            def on_end(task: "asyncio.Task[Outcome]") -> None:
                _abandoned.discard(task)
                slots_of_task.give_back()
                _retrieve_exception(task)

            task.add_done_callback(on_end)


def _retrieve_exception(task: "asyncio.Task[Outcome]") -> None:
    """Mark the exception of a task as retrieved, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()


# Names and their owners ----------------------------------------------------------------------------------


class _ClientFunction(msgspec.Struct, gc=False):
    name: str = ""
    parameters: msgspec.Raw = msgspec.Raw()


class _ClientTool(msgspec.Struct, gc=False):
    """The name of a client's tool; the schema is decoded lazily."""

    type: str = "function"
    function: _ClientFunction | None = None
    custom: _ClientFunction | None = None


_client_tool = json_reader(_ClientTool)
_schema = json_reader(dict[str, Any])


def only_named(client_tools: Sequence[msgspec.Raw], names: frozenset[str]) -> Sequence[msgspec.Raw]:
    """Return the client's tools with one of these names."""
    return [tool for tool in client_tools if not names.isdisjoint(client_parameters([tool]))]


def client_parameters(client_tools: Sequence[msgspec.Raw]) -> dict[str, msgspec.Raw]:
    """Return the undecoded parameters of the client's tools by name. Unreadable tools are left out."""
    parameters: dict[str, msgspec.Raw] = {}
    for raw in client_tools:
        try:
            tool = _client_tool(raw)
        except msgspec.DecodeError:
            continue  # sent on unchanged; the provider reports what is wrong with it
        function = tool.custom or tool.function
        if function is not None and function.name:
            parameters[function.name] = function.parameters
    return parameters


class LazyOffer(Mapping[str, OfferedTool]):
    """All offered tools. The client's are read when one is looked for, and each schema when its tool is."""

    def __init__(self, ours: Offer, read_clients: Callable[[], Mapping[str, msgspec.Raw]]) -> None:
        """`read_clients` returns the undecoded parameters of the client's tools by name."""
        self._ours = ours
        self._read_clients = read_clients
        self._client_parameters: Mapping[str, msgspec.Raw] | None = None
        self._client_tools: dict[str, OfferedTool] = {}

    def __getitem__(self, name: str) -> OfferedTool:
        if name in self._ours:
            return self._ours[name]
        if name not in self._client_tools:
            # A client's schema that is no object is ignored.
            try:
                parameters = _schema(self._of_client()[name])
            except msgspec.DecodeError:
                parameters = {}
            self._client_tools[name] = OfferedTool(name, parameters)
        return self._client_tools[name]

    def __contains__(self, name: object) -> bool:
        return name in self._ours or name in self._of_client()

    def __iter__(self) -> Iterator[str]:
        yield from self._of_client()
        yield from self._ours

    def __len__(self) -> int:
        return len(self._of_client()) + len(self._ours)

    def _of_client(self) -> Mapping[str, msgspec.Raw]:
        if self._client_parameters is None:
            self._client_parameters = self._read_clients()
        return self._client_parameters


class ClientsOnly:
    """A toolbox with only the client's tools. Broken calls are sent to the client as well."""

    def __init__(self, read_tools: Callable[[], Sequence[msgspec.Raw]]) -> None:
        """`read_tools` returns the client's tools. A request that is passed on as it came does not need them."""
        self.offer: Offer = LazyOffer({}, lambda: client_parameters(read_tools()))
        self._read_tools = read_tools

    def definitions(self) -> Sequence[msgspec.Raw]:
        return self._read_tools()

    def plan(self, calls: Sequence[Call]) -> Plan:
        broken = tuple(call for call in calls if isinstance(call, BrokenCall))
        if any(call.flaw is Flaw.NOT_ALONE for call in broken):
            return Plan(ours=(), theirs=(), broken=broken)  # all of them: the model is asked again
        return Plan(ours=(), theirs=tuple(calls), broken=())

    def is_clients(self, name: str | None) -> bool:
        return True

    def writes(self, call: ReadyCall) -> bool:
        return False

    def is_ordered(self, call: ReadyCall) -> bool:
        return False

    async def run(self, call: ReadyCall, report: Report, begin: Begin = begin_at_once) -> Outcome:
        raise AssertionError("a client's call is never run here")
