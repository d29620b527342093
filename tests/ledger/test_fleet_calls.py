"""Calls for workers, in the ledger: who may offer one, begin it and give it up."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from callgate.ledger.database import DatabaseAway
from callgate.ledger.entry import LedgerEntry, RunState
from callgate.ledger.fleet_calls import FleetLedger, FleetOffer
from callgate.ledger.postgres import PostgresDatabase, PostgresLedger
from callgate.ledger.runs import RunLedger, StoredCall, StoredRun
from callgate.ledger.shared import SharedLedger, open_ledger
from callgate.ledger.tables import Row
from tests.harness.needs import needs
from tests.harness.postgres import PostgresServer

pytestmark = [pytest.mark.anyio, needs("postgres", "module:asyncpg")]

DEAD_AFTER = 5.0
ID = "run_1/0/0/0"


@pytest.fixture
async def shared(postgres: PostgresServer, schema: str) -> AsyncIterator[SharedLedger]:
    from callgate.ledger.postgres import migrate

    await migrate(postgres.url, schema)
    opened = await open_ledger(url=postgres.url, schema=schema, dead_after=DEAD_AFTER, on_lost=lambda _: None)
    yield opened
    await opened.close()


async def claimed(shared: SharedLedger, process: str) -> StoredRun:
    """A run of a process, and a call of it that was begun."""
    ledger = RunLedger(shared.database, process)
    run = await ledger.begin(
        "run_1", caller="alice", key_digest="k", request_digest=b"d", face="ChatFace", request=b"", background=False
    )
    entry = LedgerEntry("run_1", 0, "call_1", "pay", "00", "alice", writes=True, started_at=time.time(), id=ID)
    assert await ledger.claim(run, entry) is None
    return run


async def offered(shared: SharedLedger, process: str, id: str = ID) -> bool:
    assert isinstance(shared.calls, PostgresLedger)
    written: asyncio.Future[bool | DatabaseAway] = asyncio.get_running_loop().create_future()
    shared.calls.offer(FleetOffer(id, process, "gpu", "pay", "hash"), written.set_result)
    answer = await written
    assert isinstance(answer, bool), answer
    return answer


async def test_a_process_whose_run_is_anothers_neither_offers_its_calls_nor_gives_them_up(shared: SharedLedger) -> None:
    old, new = (FleetLedger(shared.database, name, DEAD_AFTER) for name in ("old", "new"))
    run = await claimed(shared, "old")
    assert await offered(shared, "old")
    await RunLedger(shared.database, "old").release(run)
    assert await old.stop(ID, "given up") is None
    [taken] = await RunLedger(shared.database, "new").take_over(DEAD_AFTER)
    assert taken.epoch == 2
    assert not await offered(shared, "old")
    assert await old.belongs_to_another(ID)
    assert await offered(shared, "new")
    assert not await new.belongs_to_another(ID)
    assert await old.stop(ID, "given up") is None
    assert await new.stop(ID, "given up") == "withdrawn"


async def test_a_call_that_was_reported_unknown_is_not_offered_afterwards(shared: SharedLedger) -> None:
    run = await claimed(shared, "old")
    await RunLedger(shared.database, "old").release(run)
    heirs = RunLedger(shared.database, "new")
    [taken] = await heirs.take_over(DEAD_AFTER)
    await heirs.settle_calls(taken)
    for process in ("old", "new"):
        assert not await offered(shared, process)
        assert await FleetLedger(shared.database, process, DEAD_AFTER).belongs_to_another(ID)


@pytest.mark.parametrize("run_ends", [False, True], ids=["goes on", "ends without it"])
async def test_what_a_worker_ends_after_a_takeover_is_left_to_the_run_unless_it_ends_without_it(
    shared: SharedLedger, run_ends: bool
) -> None:
    new = shared.calls.process
    run = await claimed(shared, "old")
    assert await offered(shared, "old")
    await RunLedger(shared.database, "old").release(run)
    heirs, fleet = RunLedger(shared.database, new), FleetLedger(shared.database, new, DEAD_AFTER)
    [taken] = await heirs.take_over(DEAD_AFTER)
    await heirs.settle_calls(taken)
    await shared.database.beat("worker", "worker:gpu", "")
    worker = FleetLedger(shared.database, "worker", DEAD_AFTER)
    assert await worker.claim(ID, "hash", 1, "first")
    assert await worker.end(ID, "first", "done", b"paid")
    if run_ends:
        await heirs.finish(taken, "done", b"")
    await fleet.sweep([], DEAD_AFTER)
    expected = StoredCall(RunState.DONE, True, b"paid") if run_ends else StoredCall(RunState.STARTED, True, None)
    assert (await heirs.calls("run_1"))[ID] == expected


async def test_a_worker_that_is_not_seen_begins_nothing(shared: SharedLedger) -> None:
    worker = FleetLedger(shared.database, "worker", DEAD_AFTER)
    assert await offered(shared, "proxy", "call")
    assert not await worker.claim("call", "hash", 1, "first")
    await shared.database.beat("worker", "worker:gpu", "")
    await shared.database.fetch("UPDATE processes SET seen_at = seen_at - 6.0 WHERE name = 'worker'")
    assert not await worker.claim("call", "hash", 1, "first")
    await shared.database.beat("worker", "worker:gpu", "")
    assert not await worker.claim("call", "other", 1, "first")
    assert await worker.claim("call", "hash", 1, "first")
    assert not await worker.claim("call", "hash", 1, "second")
    assert await worker.stop("call", "given up") is None, "it is another's"


async def test_the_beginning_of_a_call_and_its_offer_are_one_statement_for_all_that_come_at_once(
    shared: SharedLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(shared.calls, PostgresLedger)
    assert await offered(shared, "proxy", "first")  # with the first batch what is old is forgotten
    calls, asked, fetch = shared.calls, list[str](), PostgresDatabase.fetch

    async def counted(database: PostgresDatabase, statement: str, *values: Any) -> list[Row]:
        asked.append(statement)
        return await fetch(database, statement, *values)

    monkeypatch.setattr(PostgresDatabase, "fetch", counted)

    async def begun(id: str) -> bool:
        entry = LedgerEntry(
            "run_1", 0, id, "pay", "00", "alice", writes=True, started_at=time.time(), id=id, offered=True
        )
        await calls.start(entry)
        return await offered(shared, calls.process, id)

    assert await asyncio.gather(*(begun(f"call_{number}") for number in range(16))) == [True] * 16
    assert len([statement for statement in asked if "fleet_calls" in statement]) == 1
    found = await shared.database.fetch(
        "SELECT calls.state, fleet_calls.state FROM calls JOIN fleet_calls ON fleet_calls.id = calls.id"
    )
    assert found == [("started", "offered")] * 16


@pytest.mark.parametrize("note", ["never begun: refused", "cut off: CancelledError"])
async def test_a_call_that_is_withdrawn_is_so_in_both_tables_whatever_was_written_before(
    shared: SharedLedger, note: str
) -> None:
    assert isinstance(shared.calls, PostgresLedger)
    calls = shared.calls
    entry = LedgerEntry(
        "run_1", 0, "call_1", "pay", "00", "alice", writes=True, started_at=time.time(), id=ID, offered=True
    )
    await calls.start(entry)
    assert await offered(shared, calls.process)
    calls.end(entry, RunState.FAILED, note)
    assert await offered(shared, calls.process, "next")  # in the same batch
    assert await FleetLedger(shared.database, calls.process, DEAD_AFTER).stop(ID, "given up") == "withdrawn"
    found = await shared.database.fetch("SELECT state, note FROM calls WHERE id = ?1", ID)
    assert found == [("withdrawn", "never begun: given up")]
