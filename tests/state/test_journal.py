import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from callgate.calls.outcome import Failed, FailureKind, Outcome, Returned
from callgate.calls.states import ReadyCall
from callgate.conversation.ports import Report
from callgate.state.entry import CallState, LedgerEntry, NotRecorded
from callgate.state.journal import NOT_WRITTEN_DOWN, LedgerJournal
from callgate.tools.concurrency import ConcurrencyLimiter
from callgate.tools.executor import CallContext, Policy, Safety, Tool
from callgate.tools.registry import Registry
from callgate.tools.toolbox import RequestToolbox, ToolSet
from tests.fakes import ready, silent

pytestmark = pytest.mark.anyio


class ListLedger:
    """Keeps what it is sent; refuses, or hangs, where a test wants it."""

    process = "this"

    def __init__(self, refuses: bool = False, hangs: bool = False) -> None:
        self.rows: list[tuple[str, str]] = []
        self.entries: list[LedgerEntry] = []
        self.results: list[str | None] = []
        self._refuses, self._hangs = refuses, hangs

    def key(self, entry: LedgerEntry) -> str:
        return entry.id

    def wait(self, entry: LedgerEntry) -> None:
        self.rows.append(("waiting", entry.call_id))

    async def start(self, entry: LedgerEntry) -> None:
        if self._refuses:
            raise NotRecorded("disk full")
        if self._hangs:
            await asyncio.Event().wait()
        self.entries.append(entry)
        self.rows.append(("started", entry.call_id))

    def end(self, entry: LedgerEntry, state: CallState, note: str = "", result: str | None = None) -> None:
        self.rows.append((str(state), note))
        self.results.append(result)

    async def close(self) -> None: ...


class Work:
    """An executor that gives one outcome, or hangs, and says when it begins."""

    def __init__(self, outcome: Outcome | None) -> None:
        self.outcome = outcome
        self.began = asyncio.Event()

    async def execute(self, call: ReadyCall, context: CallContext) -> Outcome:
        self.began.set()
        if self.outcome is None:
            await asyncio.Event().wait()
        assert self.outcome is not None
        return self.outcome


def recorded(
    ledger: ListLedger, work: Work, *, approve: Any = None, queue_seconds: float = 5, mask: Any = None, **more: Any
) -> RequestToolbox:
    registry = Registry()
    queue = more.pop("queue", None)
    registry.add(Tool("echo", "", {"type": "object"}, work, policy=Policy(**more), queue=queue))
    journal = LedgerJournal(ledger, run_id="run_1", key_name="alice", mask=mask)
    box = RequestToolbox(
        server_tools=ToolSet(registry.tools()),
        run_id="run_1",
        limits=registry.limits,
        journal=journal,
        approve=approve,
        queue_seconds=queue_seconds,
    )
    box.plan([ready()])
    return box


async def cancelled(running: "asyncio.Task[Outcome]") -> None:
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()


@pytest.mark.parametrize(
    ("outcome", "state", "note"),
    [
        (Returned("ok"), "done", ""),
        (Failed("no"), "failed", "raised"),
        (Failed("no", FailureKind.UNAVAILABLE), "failed", "unavailable"),
        (Failed("no", FailureKind.REFUSED), "failed", "never begun: refused"),
        (Failed("no", FailureKind.TIMEOUT), "unknown", "timeout"),
        (Failed("no", FailureKind.UNKNOWN), "unknown", "unknown"),
    ],
)
async def test_each_run_is_written_down_before_and_after(outcome: Outcome, state: str, note: str) -> None:
    ledger = ListLedger()
    assert await recorded(ledger, Work(outcome)).run(ready(), silent) == outcome
    assert ledger.rows == [("started", "call_1"), (state, note)]
    [entry] = ledger.entries
    assert (entry.run_id, entry.turn, entry.tool, entry.key_name, entry.writes) == ("run_1", 0, "echo", "alice", True)
    assert len(entry.arguments_hash) == 64
    assert (entry.arguments, ledger.results) == (None, [None])


async def test_a_tool_that_may_write_is_not_started_when_it_cannot_be_written_down() -> None:
    work = Work(Returned("paid"))
    with capture_logs() as lines:
        outcome = await recorded(ListLedger(refuses=True), work).run(ready(), silent)
    assert outcome == Failed(NOT_WRITTEN_DOWN, FailureKind.REFUSED)
    assert not work.began.is_set()
    assert [line["event"] for line in lines] == ["tool_run_not_recorded"]


async def test_a_tool_that_only_reads_is_run_all_the_same() -> None:
    box = recorded(ListLedger(refuses=True), Work(Returned("read")), safety=Safety.READ_ONLY)
    assert await box.run(ready(), silent) == Returned("read")


async def test_a_run_that_is_cut_off_is_unknown() -> None:
    ledger, work = ListLedger(), Work(None)
    running = asyncio.create_task(recorded(ledger, work).run(ready(), silent))
    await work.began.wait()
    await cancelled(running)
    assert ledger.rows == [("started", "call_1"), ("unknown", "cut off: CancelledError")]


async def test_one_that_is_cancelled_before_it_stood_in_the_ledger_never_begins() -> None:
    ledger, work = ListLedger(hangs=True), Work(Returned("paid"))
    running = asyncio.create_task(recorded(ledger, work).run(ready(), silent))
    await asyncio.sleep(0)
    await cancelled(running)
    assert not work.began.is_set()
    assert ledger.rows == [("withdrawn", "never begun: the request ended first")]


async def test_a_call_that_waits_for_approval_waits_in_the_ledger_and_begins_when_it_begins() -> None:
    ledger, asked, answer = ListLedger(), asyncio.Event(), asyncio.Event()

    async def approve(tool: Tool, call: ReadyCall, report: Report, key: str) -> Failed | None:
        asked.set()
        await answer.wait()
        return None

    box = recorded(ledger, Work(Returned("ok")), approve=approve, require_approval=True)
    running = asyncio.create_task(box.run(ready(), silent))
    await asked.wait()
    assert ledger.rows == [("waiting", "call_1")]
    answer.set()
    await running
    assert ledger.rows == [("waiting", "call_1"), ("started", "call_1"), ("done", "")]


async def test_a_call_that_ends_while_it_waits_for_approval_never_began() -> None:
    ledger, asked = ListLedger(), asyncio.Event()

    async def approve(tool: Tool, call: ReadyCall, report: Report, key: str) -> Failed | None:
        asked.set()
        await asyncio.Event().wait()
        return None

    box = recorded(ledger, Work(Returned("ok")), approve=approve, require_approval=True)
    running = asyncio.create_task(box.run(ready(), silent))
    await asked.wait()
    await cancelled(running)
    assert ledger.rows == [("waiting", "call_1"), ("withdrawn", "never begun: the request ended first")]


async def test_a_call_that_finds_no_place_never_began_and_did_not_use_up_its_time() -> None:
    ledger, work, queue = ListLedger(), Work(Returned("ok")), ConcurrencyLimiter(1)
    await queue.enter()
    late = recorded(ledger, work, queue=queue, queue_seconds=0.02)
    outcome = await late.run(ready(), silent)
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.REFUSED
    assert ledger.rows == [("waiting", "call_1"), ("failed", "never begun: refused")]
    patient = asyncio.create_task(recorded(ledger, work, queue=queue, timeout=0.05).run(ready(), silent))
    done, _ = await asyncio.wait([patient], timeout=0.1)  # twice its time, and it still waits
    assert not done
    queue.leave()
    assert await patient == Returned("ok")


async def test_contents_are_kept_only_when_wanted_and_then_masked() -> None:
    ledger = ListLedger()
    box = recorded(ledger, Work(Returned("token is s3cret")), mask=lambda text: text.replace("s3cret", "***"))
    await box.run(ready(arguments={"password": "s3cret"}), silent)
    assert ledger.entries[0].arguments == '{"password": "***"}'
    assert ledger.results == ["token is ***"]
