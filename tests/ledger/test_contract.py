"""What every ledger promises to the processes that share it, held against SQLite's file and a real Postgres server."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from callgate.ledger.entry import LedgerEntry, RunState
from callgate.ledger.shared import SharedLedger, open_ledger
from callgate.ledger.tables import MARK_LOST
from tests.harness.needs import needs
from tests.harness.process import child_environment

pytestmark = pytest.mark.anyio
DEAD_AFTER = 1.0


def entry(call_id: str = "call_1", *, writes: bool = True, **changes: Any) -> LedgerEntry:
    given = {
        "run_id": "run_1",
        "turn": 0,
        "tool": "pay",
        "arguments_hash": "00",
        "key_name": "alice",
        "started_at": 1e12,
    }
    return LedgerEntry(call_id=call_id, writes=writes, **{**given, **changes})


class Place:
    """One ledger, as several processes would open it."""

    def __init__(self, **where: Any) -> None:
        self.where = where
        self.unknown: list[int] = []

    @contextlib.asynccontextmanager
    async def opened(self, dead_after: float = DEAD_AFTER) -> AsyncIterator[SharedLedger]:
        ledger = await open_ledger(**self.where, dead_after=dead_after, on_lost=self.unknown.append)
        try:
            yield ledger
        finally:
            await ledger.close()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=needs("postgres", "module:asyncpg"))])
async def place(request: Any, tmp_path: Path, schema: str) -> Place:
    if request.param == "sqlite":
        return Place(folder=tmp_path)
    from callgate.ledger.postgres import migrate

    url = request.getfixturevalue("postgres").url
    assert await migrate(url, schema)
    assert not await migrate(url, schema), "there is nothing left to do"
    return Place(url=url, schema=schema)


async def rows(ledger: SharedLedger) -> dict[str, str]:
    return dict(await ledger.database.fetch("SELECT call_id, state FROM calls"))


async def until(ledger: SharedLedger, expected: dict[str, str], within: float = 10.0) -> None:
    async with asyncio.timeout(within):
        while await rows(ledger) != expected:  # noqa: ASYNC110 - another process would see it no other way
            await asyncio.sleep(0.01)


async def test_a_start_that_may_write_is_there_before_the_tool_begins(place: Place) -> None:
    async with place.opened() as ledger:
        await ledger.calls.start(entry())
        assert await rows(ledger) == {"call_1": "started"}


@pytest.mark.parametrize("state", [RunState.DONE, RunState.FAILED, RunState.UNKNOWN])
async def test_ends_are_written_at_the_latest_on_closing(place: Place, state: RunState) -> None:
    async with place.opened() as ledger:
        for writes in (True, False):
            one = entry(f"call_{writes}", writes=writes)
            await ledger.calls.start(one)
            ledger.calls.end(one, state, "note", "half \ud800 a pair and \0")
    async with place.opened() as ledger:
        assert await rows(ledger) == {"call_True": state, "call_False": state}


async def test_a_call_that_waited_is_one_row_that_began_when_it_began(place: Place) -> None:
    async with place.opened() as ledger:
        waiting = entry("patient", started_at=1e12)
        ledger.calls.wait(waiting)
        await until(ledger, {"patient": "waiting"})
        begun = replace(waiting, started_at=2e12)
        await ledger.calls.start(begun)
        assert await rows(ledger) == {"patient": "started"}
        ledger.calls.end(begun, RunState.DONE)
        await until(ledger, {"patient": "done"})
        assert await ledger.database.fetch("SELECT started_at FROM calls") == [(2e12,)]


async def test_an_end_is_the_first_that_was_put_down(place: Place) -> None:
    async with place.opened() as ledger:
        one = entry()
        await ledger.calls.start(one)
        ledger.calls.end(one, RunState.UNKNOWN)
        await until(ledger, {"call_1": "unknown"})
        ledger.calls.end(one, RunState.DONE)
    async with place.opened() as ledger:
        assert await rows(ledger) == {"call_1": "unknown"}


async def test_a_process_that_was_taken_for_dead_and_was_not_says_how_its_calls_ended(place: Place) -> None:
    async with place.opened() as ledger:
        begun, patient = entry("begun"), entry("patient", writes=False)
        await ledger.calls.start(begun)
        ledger.calls.wait(patient)
        await until(ledger, {"begun": "started", "patient": "waiting"})
        # what another would do that has not seen this one for long enough
        await ledger.database.fetch(MARK_LOST.replace("seen_at >", "seen_at > 1e30 *"), 0.0)
        assert await rows(ledger) == {"begun": "unknown", "patient": "withdrawn"}
        for each in (begun, patient):
            ledger.calls.end(each, RunState.DONE)
        await until(ledger, {"begun": "done", "patient": "done"})


async def test_starts_side_by_side_share_a_batch_and_none_is_lost(place: Place) -> None:
    async with place.opened() as ledger:
        await asyncio.gather(*(ledger.calls.start(entry(f"call_{number}")) for number in range(1200)))
        assert len(await rows(ledger)) == 1200


async def test_what_keys_have_spent_is_added_up_over_processes(place: Place) -> None:
    async with place.opened() as one:
        async with place.opened() as other:
            one.calls.remember_spending("alice", "2099-01", 5)
            other.calls.remember_spending("alice", "2099-01", 7)
        one.calls.remember_spending("alice", "2099-01", -2)
    async with place.opened() as ledger:
        assert ledger.calls.spent == {("alice", "2099-01"): 10}


async def test_what_a_process_that_lives_has_under_way_is_left_alone(place: Place) -> None:
    async with place.opened() as one:
        await one.calls.start(entry())
        async with place.opened():
            await asyncio.sleep(1.5 * DEAD_AFTER)  # nothing may happen, so that there is nothing to wait for
            assert await rows(one) == {"call_1": "started"}
    assert not place.unknown


DYING = """
import asyncio, os, signal, sys
from callgate.ledger.entry import RunState
from callgate.ledger.shared import open_ledger
from tests.ledger.test_contract import entry

async def main():
    ledger = await open_ledger(**{where!r}, dead_after={dead_after}, on_lost=print)
    done = entry("call_done")
    await ledger.calls.start(done)
    ledger.calls.end(done, RunState.DONE)
    ledger.calls.wait(entry("call_patient"))
    await ledger.calls.start(entry("call_lost"))
    print("ready", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@contextlib.asynccontextmanager
async def another_process(place: Place) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process with calls under way."""
    script = DYING.replace("{where!r}", repr({k: str(v) if k == "folder" else v for k, v in place.where.items()}))
    script = script.replace("{dead_after}", str(DEAD_AFTER))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE, env=child_environment()
    )
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"ready\n"
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
            process.kill()
        await process.communicate()


async def test_what_a_killed_process_had_under_way_is_known_to_be_unknown_while_another_lives(place: Place) -> None:
    async with place.opened() as ledger:
        async with another_process(place) as process:
            await until(ledger, {"call_done": "done", "call_patient": "waiting", "call_lost": "started"})
            process.kill()
            await until(
                ledger,
                {"call_done": "done", "call_patient": "withdrawn", "call_lost": "unknown"},
                within=DEAD_AFTER + 2,
            )
        assert await ledger.database.fetch("SELECT note FROM calls WHERE call_id = 'call_patient'") == [
            ("never begun: the process ended first",)
        ]
    assert place.unknown == [1]


async def test_a_process_that_ended_in_order_is_off_the_list(place: Place) -> None:
    async with place.opened() as one:
        async with place.opened():
            assert len(await one.database.fetch("SELECT name FROM processes")) == 2
        assert await one.database.fetch("SELECT name FROM processes") == [(one.calls.process,)]
