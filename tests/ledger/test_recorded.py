import asyncio
from typing import Any

import pytest

from callgate.calls.outcome import Failed, FailureKind, Outcome, Returned
from callgate.ledger.entry import LedgerEntry, NotRecorded, RunState
from callgate.ledger.recorded import NOT_WRITTEN_DOWN, RecordedToolbox
from tests.fakes import EchoTool, HangingTool, ShelfToolbox, ready, silent

pytestmark = pytest.mark.anyio


class ListLedger:
    """Keeps what it is told; refuses, or hangs, where a test wants it."""

    def __init__(self, refuses: bool = False, hangs: bool = False) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.entries: list[LedgerEntry] = []
        self.results: list[str | None] = []
        self._refuses, self._hangs = refuses, hangs

    async def start(self, entry: LedgerEntry) -> None:
        if self._refuses:
            raise NotRecorded("disk full")
        if self._hangs:
            await asyncio.Event().wait()
        self.entries.append(entry)
        self.told.append(("start", entry.call_id))

    def end(self, entry: LedgerEntry, state: RunState, note: str = "", result: str | None = None) -> None:
        self.told.append((str(state), note))
        self.results.append(result)

    async def close(self) -> None: ...


class Box(ShelfToolbox):
    """A toolbox whose tools write, unless told otherwise, and that says when one is run."""

    def __init__(self, outcome: Outcome | None = None, *, writes: bool = True) -> None:
        super().__init__(echo=EchoTool(), hang=HangingTool())
        self._outcome, self._writes = outcome, writes

    def writes(self, call):
        return self._writes

    async def run(self, call, report):
        if self._outcome is not None:
            self.ran.append(call)
            return self._outcome
        return await super().run(call, report)


def recorded(box: Box, ledger: ListLedger, **more: Any) -> RecordedToolbox:
    return RecordedToolbox(box, ledger, run_id="run_1", key_name="alice", **more)


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
    box = recorded(Box(outcome), ledger)
    box.plan([ready()])
    assert await box.run(ready(), silent) == outcome
    assert ledger.told == [("start", "call_1"), (state, note)]
    [entry] = ledger.entries
    assert (entry.run_id, entry.turn, entry.tool, entry.key_name, entry.writes) == ("run_1", 0, "echo", "alice", True)
    assert len(entry.arguments_hash) == 64
    assert (entry.arguments, ledger.results) == (None, [None])


async def test_a_tool_that_may_write_is_not_started_when_it_cannot_be_written_down() -> None:
    inner = Box(Returned("paid"))
    outcome = await recorded(inner, ListLedger(refuses=True)).run(ready(), silent)
    assert outcome == Failed(NOT_WRITTEN_DOWN, FailureKind.REFUSED)
    assert not inner.ran


async def test_a_tool_that_only_reads_is_run_all_the_same() -> None:
    inner = Box(Returned("read"), writes=False)
    assert await recorded(inner, ListLedger(refuses=True)).run(ready(), silent) == Returned("read")


async def test_a_run_that_is_cut_off_is_unknown() -> None:
    ledger = ListLedger()
    running = asyncio.create_task(recorded(Box(), ledger).run(ready("hang"), silent))
    for _ in range(5):
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    assert ledger.told == [("start", "call_1"), ("unknown", "cut off: CancelledError")]


async def test_one_that_is_cancelled_before_it_stood_in_the_ledger_never_begins() -> None:
    ledger, inner = ListLedger(hangs=True), Box(Returned("paid"))
    running = asyncio.create_task(recorded(inner, ledger).run(ready(), silent))
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running])
    assert not inner.ran
    assert ledger.told == [("failed", "never begun: the request ended first")]


async def test_contents_are_kept_only_when_wanted_and_then_masked() -> None:
    ledger = ListLedger()
    box = recorded(Box(Returned("token is s3cret")), ledger, mask=lambda text: text.replace("s3cret", "***"))
    await box.run(ready(arguments={"password": "s3cret"}), silent)
    assert ledger.entries[0].arguments == '{"password": "***"}'
    assert ledger.results == ["token is ***"]


async def test_it_is_the_toolbox_it_stands_around() -> None:
    inner = Box()
    box = recorded(inner, ListLedger())
    assert box.offer is inner.offer
    assert box.schemas is inner.schemas
    assert box.plan([ready()]) == inner.plan([ready()])
    assert box.is_clients("x") == inner.is_clients("x")
    assert box.writes(ready())
