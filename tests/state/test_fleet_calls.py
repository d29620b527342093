"""Calls for workers, in the ledger: who may offer one, begin it and give it up."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from callgate.state.cluster.postgres import PostgresDatabase, PostgresLedger
from callgate.state.database import DatabaseAway
from callgate.state.entry import CallState, LedgerEntry
from callgate.state.fleet_calls import FleetLedger, FleetOffer
from callgate.state.ledger import SharedLedger, open_ledger
from callgate.state.runs import CallEnd, DatabaseRunLedger, NewRun, StoredCall, StoredRun
from callgate.state.tables import Row
from tests.harness.needs import needs
from tests.harness.postgres import PostgresServer

pytestmark = [pytest.mark.anyio, needs("postgres", "module:asyncpg")]

DEAD_AFTER = 5.0
ID = "run_1/0/0/0"


@pytest.fixture
async def shared(postgres: PostgresServer, schema: str) -> AsyncIterator[SharedLedger]:
    from callgate.state.cluster.postgres import migrate

    await migrate(postgres.url, schema)
    opened = await open_ledger(url=postgres.url, schema=schema, dead_after=DEAD_AFTER, on_lost=lambda _: None)
    yield opened
    await opened.close()


async def claimed(shared: SharedLedger, process: str) -> StoredRun:
    """A run of a process, and a call of it that was begun."""
    ledger = DatabaseRunLedger(shared.database, process)
    run = await ledger.begin(
        NewRun(
            id="run_1",
            caller="alice",
            key_digest="k",
            request_digest=b"d",
            face="ChatFace",
            request=b"",
            background=False,
        )
    )
    entry = LedgerEntry("run_1", 0, "call_1", "pay", "00", "alice", writes=True, started_at=time.time(), id=ID)
    assert await ledger.claim(run, entry) is None
    return run


async def offered(shared: SharedLedger, process: str, id: str = ID, attempt: int = 0) -> int:
    """The number of the offer; 0 where the call may not be offered."""
    assert isinstance(shared.calls, PostgresLedger)
    written: asyncio.Future[int | DatabaseAway] = asyncio.get_running_loop().create_future()
    shared.calls.offer(FleetOffer(id, process, "gpu", f"{process}/{attempt}", "hash"), written.set_result)
    answer = await written
    assert isinstance(answer, int), answer
    return answer


def entry_of(id: str, **more: Any) -> LedgerEntry:
    return LedgerEntry("run_1", 0, id, "pay", "00", "alice", writes=True, started_at=time.time(), id=id, **more)


async def state_of(shared: SharedLedger, id: str = ID) -> tuple[str, str]:
    [found] = await shared.database.fetch("SELECT state, note FROM calls WHERE id = ?1", id)
    return found[0], found[1]


async def test_a_process_whose_run_is_anothers_neither_offers_its_calls_nor_gives_them_up(shared: SharedLedger) -> None:
    old, new = (FleetLedger(shared.database, name, DEAD_AFTER) for name in ("old", "new"))
    run = await claimed(shared, "old")
    assert await offered(shared, "old")
    await DatabaseRunLedger(shared.database, "old").release(run)
    assert await old.stop(ID, "given up") is None
    [taken] = await DatabaseRunLedger(shared.database, "new").take_over(DEAD_AFTER)
    assert taken.epoch == 2
    assert not await offered(shared, "old")
    assert await offered(shared, "new")
    assert await old.stop(ID, "given up") is None
    assert await new.stop(ID, "given up") == "withdrawn"


async def test_a_call_that_was_reported_unknown_is_not_offered_afterwards(shared: SharedLedger) -> None:
    run = await claimed(shared, "old")
    await DatabaseRunLedger(shared.database, "old").release(run)
    heirs = DatabaseRunLedger(shared.database, "new")
    [taken] = await heirs.take_over(DEAD_AFTER)
    await heirs.settle_calls(taken)
    for process in ("old", "new"):
        assert not await offered(shared, process)


async def test_what_a_worker_ends_after_a_takeover_is_taken_on_by_the_new_owner(shared: SharedLedger) -> None:
    new = shared.calls.process
    run = await claimed(shared, "old")
    assert await offered(shared, "old") == 1
    await shared.database.beat("worker", "worker:gpu", "")
    worker = FleetLedger(shared.database, "worker", DEAD_AFTER)
    assert await worker.claim(ID, 1, "hash", "gpu", 1, "first")
    await DatabaseRunLedger(shared.database, "old").release(run)
    heirs = DatabaseRunLedger(shared.database, new)
    [taken] = await heirs.take_over(DEAD_AFTER)
    await heirs.settle_calls(taken)
    assert (await heirs.calls("run_1"))[ID] == StoredCall(CallState.STARTED, True, None)
    assert await worker.end(ID, "first", "done", b"paid")
    await FleetLedger(shared.database, new, DEAD_AFTER).sweep([], DEAD_AFTER)
    assert (await heirs.calls("run_1"))[ID] == StoredCall(CallState.DONE, True, None)
    entry = entry_of(ID)
    assert await heirs.claim(taken, entry) is None, "it is awaited, and not begun"
    assert await offered(shared, new) == 1, "the same offer"
    [call] = await FleetLedger(shared.database, new, DEAD_AFTER).states([ID])
    assert (call.state, call.outcome) == ("done", b"paid")
    await heirs.end_call(taken, entry, CallEnd(CallState.DONE, "", None, began=True), b"whole")
    assert (await heirs.calls("run_1"))[ID] == StoredCall(CallState.DONE, True, b"whole")


async def test_a_call_whose_offer_no_worker_took_is_offered_anew_by_the_new_owner(shared: SharedLedger) -> None:
    new = shared.calls.process
    run = await claimed(shared, "old")
    assert await offered(shared, "old") == 1
    await DatabaseRunLedger(shared.database, "old").release(run)
    heirs = DatabaseRunLedger(shared.database, new)
    [taken] = await heirs.take_over(DEAD_AFTER)
    await heirs.settle_calls(taken)
    assert await heirs.claim(taken, entry_of(ID)) is None
    await shared.database.beat("worker", "worker:gpu", "")
    worker = FleetLedger(shared.database, "worker", DEAD_AFTER)
    assert not await worker.claim(ID, 1, "hash", "gpu", 1, "first"), "the message of the old offer"
    assert await offered(shared, new) == 2
    assert not await worker.claim(ID, 1, "hash", "gpu", 1, "first")
    assert await worker.claim(ID, 2, "hash", "gpu", 1, "second")


async def test_a_call_that_has_ended_is_run_again_by_its_process_alone_and_as_another_offer(
    shared: SharedLedger,
) -> None:
    assert isinstance(shared.calls, PostgresLedger)
    process = shared.calls.process
    await shared.calls.start(entry_of(ID, offered=True))
    assert await offered(shared, process) == 1
    await shared.database.beat("worker", "worker:gpu", "")
    worker = FleetLedger(shared.database, "worker", DEAD_AFTER)
    assert await worker.claim(ID, 1, "hash", "gpu", 1, "first")
    assert await offered(shared, process) == 1, "whose answer was lost"
    assert await worker.end(ID, "first", "failed", b"no")
    assert await offered(shared, process) == 1, "whose answer was lost"
    assert await offered(shared, "other", attempt=7) == 0
    assert await offered(shared, process, attempt=1) == 2
    assert not await worker.end(ID, "first", "done", b"late")
    assert await worker.claim(ID, 2, "hash", "gpu", 1, "second")
    assert await state_of(shared) == ("started", "")


async def test_a_worker_that_is_not_seen_begins_nothing(shared: SharedLedger) -> None:
    assert isinstance(shared.calls, PostgresLedger)
    worker = FleetLedger(shared.database, "worker", DEAD_AFTER)
    await shared.calls.start(entry_of("call", offered=True))
    assert await offered(shared, shared.calls.process, "call") == 1
    assert not await worker.claim("call", 1, "hash", "gpu", 1, "first")
    await shared.database.beat("worker", "worker:gpu", "")
    await shared.database.fetch("UPDATE processes SET seen_at = seen_at - 6.0 WHERE name = 'worker'")
    assert not await worker.claim("call", 1, "hash", "gpu", 1, "first")
    await shared.database.beat("worker", "worker:gpu", "")
    assert not await worker.claim("call", 1, "other", "gpu", 1, "first")
    assert await worker.claim("call", 1, "hash", "gpu", 1, "first")
    assert not await worker.claim("call", 1, "hash", "gpu", 1, "second")
    assert await worker.stop("call", "given up") is None, "it is another's"


async def test_the_beginning_of_a_call_and_its_offer_are_one_statement_for_all_that_come_at_once(
    shared: SharedLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(shared.calls, PostgresLedger)
    assert not await offered(shared, "proxy", "first")  # with the first batch what is old is forgotten
    calls, asked, fetch = shared.calls, list[str](), PostgresDatabase.fetch

    async def counted(database: PostgresDatabase, statement: str, *values: Any) -> list[Row]:
        asked.append(statement)
        return await fetch(database, statement, *values)

    monkeypatch.setattr(PostgresDatabase, "fetch", counted)

    async def begun(id: str) -> int:
        await calls.start(entry_of(id, offered=True))
        return await offered(shared, calls.process, id)

    assert await asyncio.gather(*(begun(f"call_{number}") for number in range(16))) == [1] * 16
    assert len([statement for statement in asked if "calls" in statement]) == 1
    assert await shared.database.fetch("SELECT state, pool FROM calls") == [("waiting", "gpu")] * 16


async def test_a_call_that_is_refused_before_a_worker_took_it_is_begun_by_none(shared: SharedLedger) -> None:
    assert isinstance(shared.calls, PostgresLedger)
    calls = shared.calls
    entry = entry_of(ID, offered=True)
    await calls.start(entry)
    assert await offered(shared, calls.process) == 1
    calls.end(entry, CallState.FAILED, "never begun: refused")
    assert not await offered(shared, calls.process, "next")  # in the same batch
    await shared.database.beat("worker", "worker:gpu", "")
    assert not await FleetLedger(shared.database, "worker", DEAD_AFTER).claim(ID, 1, "hash", "gpu", 1, "first")
    assert await FleetLedger(shared.database, calls.process, DEAD_AFTER).stop(ID, "given up") == "withdrawn"
    assert await state_of(shared) == ("withdrawn", "never begun: given up")


async def test_a_call_that_is_cut_off_is_what_the_fleet_says_of_it(shared: SharedLedger) -> None:
    assert isinstance(shared.calls, PostgresLedger)
    calls = shared.calls
    entry = entry_of(ID, offered=True)
    await calls.start(entry)
    assert await offered(shared, calls.process) == 1
    calls.end(entry, CallState.UNKNOWN, "cut off: CancelledError")
    assert not await offered(shared, calls.process, "next")  # in the same batch
    assert await state_of(shared) == ("waiting", "")
    assert await FleetLedger(shared.database, calls.process, DEAD_AFTER).stop(ID, "given up") == "withdrawn"
    assert await state_of(shared) == ("withdrawn", "never begun: given up")
