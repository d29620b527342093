"""Calls for workers, in the ledger: who may offer one, begin it and give it up."""

from collections.abc import AsyncIterator

import pytest

from callgate.ledger.entry import LedgerEntry
from callgate.ledger.fleet_calls import FleetLedger, TakenForDead
from callgate.ledger.runs import RunLedger, StoredRun
from callgate.ledger.shared import SharedLedger, open_ledger
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
    entry = LedgerEntry("run_1", 0, "call_1", "pay", "00", "alice", writes=True, started_at=0.0, id=ID)
    assert await ledger.claim(run, entry)
    return run


async def test_a_process_whose_run_is_anothers_neither_offers_its_calls_nor_gives_them_up(shared: SharedLedger) -> None:
    old, new = (FleetLedger(shared.database, name, DEAD_AFTER) for name in ("old", "new"))
    run = await claimed(shared, "old")
    assert await old.offer(ID, "gpu", "pay", "hash")
    await RunLedger(shared.database, "old").release(run)
    assert await old.stop(ID, "given up") is None
    [taken] = await RunLedger(shared.database, "new").take_over(DEAD_AFTER)
    assert taken.epoch == 2
    with pytest.raises(TakenForDead):
        await old.offer(ID, "gpu", "pay", "hash")
    assert await new.offer(ID, "gpu", "pay", "hash")
    assert await old.stop(ID, "given up") is None
    assert await new.stop(ID, "given up") == "withdrawn"


async def test_a_call_that_was_told_to_be_unknown_is_not_offered_afterwards(shared: SharedLedger) -> None:
    run = await claimed(shared, "old")
    await RunLedger(shared.database, "old").release(run)
    heirs = RunLedger(shared.database, "new")
    [taken] = await heirs.take_over(DEAD_AFTER)
    await heirs.settle_calls(taken)
    for process in ("old", "new"):
        with pytest.raises(TakenForDead):
            await FleetLedger(shared.database, process, DEAD_AFTER).offer(ID, "gpu", "pay", "hash")


async def test_a_worker_that_is_not_seen_begins_nothing(shared: SharedLedger) -> None:
    worker = FleetLedger(shared.database, "worker", DEAD_AFTER)
    assert await FleetLedger(shared.database, "proxy", DEAD_AFTER).offer("call", "gpu", "pay", "hash")
    assert not await worker.claim("call", "hash", 1, "first")
    await shared.database.beat("worker", "worker:gpu", "")
    await shared.database.fetch("UPDATE processes SET seen_at = seen_at - 6.0 WHERE name = 'worker'")
    assert not await worker.claim("call", "hash", 1, "first")
    await shared.database.beat("worker", "worker:gpu", "")
    assert not await worker.claim("call", "other", 1, "first")
    assert await worker.claim("call", "hash", 1, "first")
    assert not await worker.claim("call", "hash", 1, "second")
    assert await worker.stop("call", "given up") is None, "it is another's"
