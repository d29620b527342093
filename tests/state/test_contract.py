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

from callgate.state.entry import CallState, LedgerEntry
from callgate.state.ledger import SharedLedger, open_ledger
from callgate.state.runs import DROPPED, CallEnd, DatabaseRunLedger, Fenced, NewRun, StoredRun
from callgate.state.tables import MARK_LOST
from tests.harness.needs import needs
from tests.harness.process import child_environment
from tests.state.entries import entry

pytestmark = pytest.mark.anyio
DEAD_AFTER = 1.0
PATIENT = 60.0
"""For who is not on the list of those that live, and so is dead at once: nobody else is to be found dead on a busy machine."""


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
    from callgate.state.cluster.postgres import migrate

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


@pytest.mark.parametrize("state", [CallState.DONE, CallState.FAILED, CallState.UNKNOWN])
async def test_ends_are_written_at_the_latest_on_closing(place: Place, state: CallState) -> None:
    async with place.opened() as ledger:
        for writes in (True, False):
            one = entry(f"call_{writes}", writes=writes)
            await ledger.calls.start(one)
            ledger.calls.end(one, state, "note", "half \ud800 a pair" if writes else "a \0")
    async with place.opened() as ledger:
        assert await rows(ledger) == {"call_True": state, "call_False": state}
        results = await ledger.database.fetch("SELECT result FROM calls ORDER BY writes")
        assert results == [("a \ufffd",), ("half ? a pair",)]


async def test_a_call_that_waited_is_one_row_that_began_when_it_began(place: Place) -> None:
    async with place.opened() as ledger:
        waiting = entry("patient", started_at=1e12)
        ledger.calls.wait(waiting)
        await until(ledger, {"patient": "waiting"})
        begun = replace(waiting, started_at=2e12)
        await ledger.calls.start(begun)
        assert await rows(ledger) == {"patient": "started"}
        ledger.calls.end(begun, CallState.DONE)
        await until(ledger, {"patient": "done"})
        assert await ledger.database.fetch("SELECT started_at FROM calls") == [(2e12,)]


async def test_an_end_is_the_first_that_was_put_down(place: Place) -> None:
    async with place.opened() as ledger:
        one = entry()
        await ledger.calls.start(one)
        ledger.calls.end(one, CallState.UNKNOWN)
        await until(ledger, {"call_1": "unknown"})
        ledger.calls.end(one, CallState.DONE)
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
            ledger.calls.end(each, CallState.DONE)
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


async def test_what_was_used_less_than_reserved_may_be_written_before_what_was_reserved(place: Place) -> None:
    async with place.opened() as one:
        one.calls.remember_spending("alice", "2099-01", -5)
    async with place.opened() as one:
        assert one.calls.spent == {("alice", "2099-01"): 0}
        assert await one.spent_by("alice", "2099-01-01", "2099-01") == (0, 0)
        one.calls.remember_spending("alice", "2099-01", 12)
        one.calls.remember_spending("bob", "2099-01", 9)
        one.calls.remember_spending("bob", "2099-01", -8)
    async with place.opened() as ledger:
        assert ledger.calls.spent == {("alice", "2099-01"): 7, ("bob", "2099-01"): 1}


async def test_what_a_process_that_lives_has_under_way_is_left_alone(place: Place) -> None:
    async with place.opened() as one:
        await one.calls.start(entry())
        async with place.opened():
            await asyncio.sleep(1.5 * DEAD_AFTER)  # nothing may happen, so that there is nothing to wait for
            assert await rows(one) == {"call_1": "started"}
    assert not place.unknown


DYING = """
import asyncio, os, signal, sys
from callgate.state.entry import LedgerEntry, CallState
from callgate.state.ledger import open_ledger
from tests.state.entries import entry

async def main():
    ledger = await open_ledger(**{where!r}, dead_after={dead_after}, on_lost=print)
    done = entry("call_done")
    await ledger.calls.start(done)
    ledger.calls.end(done, CallState.DONE)
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


# Runs that another process carries on ---------------------------------------------------------------------------------


def owner(ledger: SharedLedger, name: str | None = None) -> DatabaseRunLedger:
    """The runs of one process: of this one, or of one that is not on the list of those that live."""
    return DatabaseRunLedger(ledger.database, name or ledger.calls.process)


async def begun(runs: DatabaseRunLedger, id: str = "r1", key: str | None = None, **changes: Any) -> StoredRun:
    given: dict[str, Any] = {"caller": "alice", "face": "chat", "request": b"{}", "background": False}
    return await runs.begin(NewRun(id=id, key_digest=key, request_digest=b"d", **{**given, **changes}))


async def begins(runs: DatabaseRunLedger, run: StoredRun, one: LedgerEntry) -> bool:
    """Whether a call of a run may begin."""
    return await runs.claim(run, one) is None


async def taken(runs: DatabaseRunLedger) -> StoredRun:
    [run] = await runs.take_over(PATIENT)
    return run


async def test_a_key_finds_the_run_of_its_caller_alone(place: Place) -> None:
    async with place.opened(PATIENT) as ledger:
        runs = owner(ledger)
        assert (await begun(runs, "r0", "k", caller="bob")).id == "r0"
        one = await begun(runs, "r1", "k")
        assert (await begun(runs, "r2", "k")) == one == (await runs.find("r1"))
        assert (await begun(runs, "r1")).caller == "alice"
        assert await runs.find("r2") is None


async def test_the_oldest_answers_of_a_caller_are_dropped_beyond_its_share_and_are_not_run_again(place: Place) -> None:
    async with place.opened() as ledger:
        runs = DatabaseRunLedger(ledger.database, ledger.calls.process, answer_bytes=100)
        await runs.finish(await begun(runs, "of_bob", "k", caller="bob"), "done", b"b" * 90)
        for number in range(4):
            await runs.finish(await begun(runs, f"r{number}", f"k{number}"), "done", b"a" * 40)
        answers = [(await begun(runs, "again", f"k{number}")).answer for number in range(4)]
        assert answers == [DROPPED, DROPPED, b"a" * 40, b"a" * 40]
        await runs.finish(await begun(runs, "large", "large"), "done", b"a" * 900)
        answers = [(await begun(runs, "again", key)).answer for key in ("k2", "k3", "large")]
        assert answers == [DROPPED, DROPPED, b"a" * 900], "the newest stays, whatever its size"
        assert (await begun(runs, "again", "k", caller="bob")).answer == b"b" * 90


async def test_only_a_run_without_an_owner_is_taken_over_and_once(place: Place) -> None:
    async with place.opened(PATIENT) as ledger:
        mine, dead = owner(ledger), owner(ledger, "dead")
        kept, left, given, ended = [
            await begun(runs, id) for runs, id in zip((mine, dead, mine, dead), "abcd", strict=True)
        ]
        await mine.release(given)
        await dead.finish(ended, "done", b"answer")
        found = {run.id: (run.owner, run.epoch) for run in await mine.take_over(PATIENT)}
        assert found == {left.id: (mine.process, 2), given.id: (mine.process, 2)}
        assert await mine.take_over(PATIENT) == []
        assert await mine.find(kept.id) == kept


async def test_a_process_that_has_lost_its_run_can_write_nothing_more_of_it(place: Place) -> None:
    async with place.opened(PATIENT) as ledger:
        dead = owner(ledger, "dead")
        before = await begun(dead)
        await dead.claim(before, one := entry("c"))
        after = await taken(owner(ledger))
        for write in (
            dead.append(before, 0, 0, b"turn"),
            dead.append_part(before, 0, b"part"),
            dead.claim(before, entry("d")),
            dead.end_call(before, one, CallEnd(CallState.DONE, "", None, began=True), b"outcome"),
            dead.end_call(before, entry("e"), CallEnd(CallState.FAILED, "", None, began=False), b"outcome"),
            dead.check(before),
            dead.finish(before, "done", b"answer"),
        ):
            with pytest.raises(Fenced):
                await write
        await dead.release(before)
        await dead.forget(before)
        runs = owner(ledger)
        assert await runs.find("r1") == after
        assert await runs.turns("r1") == {}
        assert await runs.parts("r1") == []
        assert await rows(ledger) == {"c": "started"}


async def test_a_run_that_has_ended_is_written_no_more(place: Place) -> None:
    async with place.opened(PATIENT) as ledger:
        runs = owner(ledger)
        run = await begun(runs)
        await runs.finish(run, "done", b"answer")
        await runs.finish(run, "done", b"answer")  # the same again, for whoever did not hear that it was done
        for write in (runs.finish(run, "done", b"another"), runs.append(run, 0, 0, b""), runs.check(run)):
            with pytest.raises(Fenced):
                await write
        await runs.cancel(run.id)
        await runs.release(run)
        found = await runs.find(run.id)
        assert found is not None
        assert (found.state, found.answer, found.request, found.cancel) == ("done", b"answer", b"", False)
        assert found.owner == runs.process


async def test_open_calls_of_a_run_move_with_it_to_another_process(place: Place) -> None:
    async with place.opened(PATIENT) as ledger:
        dead, mine = owner(ledger, "dead"), owner(ledger)
        run, other = await begun(dead), await begun(mine, "r2")
        for call_id in ("open", "ended"):
            await dead.claim(run, entry(call_id, run_id="r1", id=call_id))
        await dead.end_call(run, entry("ended", id="ended"), CallEnd(CallState.DONE, "", None, began=True), b"seven")
        await mine.claim(other, entry("others", run_id="r2", id="others"))
        await taken(mine)
        owners = await ledger.database.fetch("SELECT id, process FROM calls ORDER BY id")
        assert owners == [("ended", "dead"), ("open", mine.process), ("others", mine.process)]


@pytest.mark.parametrize("writes", [True, False])
async def test_a_call_begins_once_and_one_that_reads_once_more_behind_a_takeover(place: Place, writes: bool) -> None:
    async with place.opened(PATIENT) as ledger:
        dead, mine = owner(ledger, "dead"), owner(ledger)
        one = entry("c", writes=writes)
        run = await begun(dead)
        assert await begins(dead, run, one)
        assert await begins(dead, run, one), "the answer to the first claim may never have come"
        assert not await begins(mine, run, one), "it is another's"
        run = await taken(mine)
        assert await begins(mine, run, one) is not writes
        await mine.settle_calls(run)
        state = CallState.UNKNOWN if writes else CallState.STARTED
        assert {call.state for call in (await mine.calls(run.id)).values()} == {state}
        assert await begins(mine, run, one) is not writes


async def test_a_call_that_has_ended_does_not_begin_again(place: Place) -> None:
    async with place.opened(PATIENT) as ledger:
        runs = owner(ledger)
        run = await begun(runs)
        one = entry("c", writes=False)
        assert await begins(runs, run, one)
        await runs.end_call(run, one, CallEnd(CallState.DONE, "", "7", began=True), b"seven")
        assert not await begins(runs, run, one)
        await runs.end_call(run, one, CallEnd(CallState.FAILED, "", "8", began=True), b"eight")
        [call] = (await runs.calls(run.id)).values()
        assert (call.state, call.outcome) == (CallState.DONE, b"seven"), "the first end is the end"


@pytest.mark.parametrize("state", ["waiting", "withdrawn"])
async def test_a_call_that_has_not_begun_may_begin_or_end_without(place: Place, state: str) -> None:
    async with place.opened(PATIENT) as ledger:
        runs = owner(ledger)
        run = await begun(runs)
        for call_id in ("begins", "ends"):
            one = entry(call_id)
            await runs.claim(run, one)
            await ledger.database.fetch("UPDATE calls SET state = ?1 WHERE id = ?2 RETURNING id", state, one.id)
            if call_id == "begins":
                assert await begins(runs, run, one)
            else:
                await runs.end_call(run, one, CallEnd(CallState.FAILED, "refused", None, began=False), b"no")
        assert await rows(ledger) == {"begins": "started", "ends": "failed"}


async def test_calls_of_an_earlier_owner_are_settled_and_no_others(place: Place) -> None:
    async with place.opened(PATIENT) as ledger:
        dead, mine = owner(ledger, "dead"), owner(ledger)
        run = await begun(dead)
        done, patient = entry("done"), entry("patient")
        for each in (done, patient, entry("lost")):
            await dead.claim(run, each)
        await dead.end_call(run, done, CallEnd(CallState.DONE, "as it should", None, began=True), b"")
        await ledger.database.fetch("UPDATE calls SET state = 'waiting' WHERE id = ?1 RETURNING id", patient.id)
        run = await taken(mine)
        await mine.claim(run, entry("new"))
        await mine.settle_calls(run)
        found = await ledger.database.fetch("SELECT call_id, state, note FROM calls")
        assert sorted(found) == [
            ("done", "done", "as it should"),
            ("lost", "unknown", "its run was taken over"),
            ("new", "started", ""),
            ("patient", "withdrawn", "never begun: its run was taken over"),
        ]


async def test_what_a_run_has_answered_is_read_behind_any_part_and_goes_with_it(place: Place) -> None:
    async with place.opened(PATIENT) as ledger:
        runs = owner(ledger)
        run = await begun(runs, background=True)
        for part in (1, 0, 2):
            await runs.append_part(run, part, b"%d" % part)
        assert await runs.parts(run.id) == [(0, b"0"), (1, b"1"), (2, b"2")]
        assert await runs.parts(run.id, after=0) == [(1, b"1"), (2, b"2")]
        await runs.finish(run, "done", b"012")
        assert await runs.parts(run.id) == []


async def test_a_process_reads_which_of_its_runs_are_to_be_stopped(place: Place) -> None:
    async with place.opened(PATIENT) as ledger:
        mine, other = owner(ledger), owner(ledger, "other")
        for runs, id in ((mine, "a"), (mine, "b"), (other, "c"), (mine, "d")):
            await begun(runs, id)
        for id in "acd":
            await mine.cancel(id)
        ended = await mine.find("d")
        assert ended is not None
        await mine.finish(ended, "cancelled", b"")
        assert await mine.cancelled(["a", "b", "c", "d"]) == {"a"}
        assert await mine.cancelled(["b"]) == await mine.cancelled([]) == set()


async def test_a_run_is_followed_while_a_caller_waits_for_it(place: Place) -> None:
    async with place.opened(PATIENT) as ledger:
        runs = owner(ledger)
        await begun(runs)
        assert not await runs.is_followed("r1", 60.0)
        await runs.follow("r1")
        assert await runs.is_followed("r1", 60.0)
        assert not await runs.is_followed("r1", -60.0), "that is longer ago than was asked for"


async def test_runs_are_forgotten_when_they_ended_long_enough_ago(place: Place) -> None:
    async with place.opened(PATIENT) as ledger:
        runs = owner(ledger)
        old, going = await begun(runs, "old"), await begun(runs, "going")
        await runs.append(old, 0, 0, b"turn")
        await runs.append(going, 0, 0, b"turn")
        await runs.finish(old, "done", b"")
        await runs.prune(60.0)
        assert await runs.find("old") is not None
        assert await runs.turns("old") == {}, "nobody carries it on"
        await runs.prune(-60.0)
        assert await runs.find("old") is None
        assert await runs.find("going") == going
        assert await runs.turns("going") == {(0, 0): b"turn"}


async def test_what_a_process_had_begun_does_not_begin_again_when_it_takes_its_own_run_back(place: Place) -> None:
    async with place.opened(PATIENT) as ledger:
        runs = owner(ledger)
        run = await begun(runs)
        await runs.claim(run, one := entry("c"))
        await runs.release(run)
        again = await taken(runs)
        assert not await begins(runs, again, one)
        for began in (False, True):
            await runs.end_call(again, one, CallEnd(CallState.FAILED, "refused", None, began=began), b"no")
        assert await rows(ledger) == {"c": "started"}
