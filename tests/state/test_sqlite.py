import asyncio
import contextlib
import sqlite3
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from callgate.state.database import DatabaseAway
from callgate.state.entry import CallState, NotRecorded
from callgate.state.local.sqlite import FILE, DamagedLedger, SqliteLedger, check_ledger, open_file
from callgate.state.local.sqlite_database import SqliteDatabase
from callgate.state.tables import CALL_COLUMNS
from tests.harness.process import child_environment
from tests.state.entries import entry

pytestmark = pytest.mark.anyio


@contextlib.asynccontextmanager
async def opened_ledger(folder: Path, lost: list[int] | None = None) -> AsyncIterator[SqliteLedger]:
    """`lost` gets the number of calls that became unknown."""
    ledger = SqliteLedger(folder)
    try:
        number = ledger.open()
        if lost is not None:
            lost.append(number)
        yield ledger
    finally:
        await ledger.close()


def lock_files(folder: Path) -> list[str]:
    return [path.name for path in folder.glob("process-*.lock")]


def rows(folder: Path) -> dict[str, str]:
    """The state of each call, as another process sees it on the disk."""
    with contextlib.closing(sqlite3.connect(folder / FILE)) as database:
        return dict(database.execute("SELECT call_id, state FROM calls"))


async def until(folder: Path, expected: dict[str, str]) -> None:
    async with asyncio.timeout(30):
        while rows(folder) != expected:  # noqa: ASYNC110 - another process would see it no other way
            await asyncio.sleep(0.001)


async def test_a_start_that_may_write_is_there_before_the_tool_begins(tmp_path: Path) -> None:
    async with opened_ledger(tmp_path) as ledger:
        await ledger.start(entry())
        assert rows(tmp_path) == {"call_1": "started"}


@pytest.mark.parametrize("state", [CallState.DONE, CallState.FAILED, CallState.UNKNOWN])
async def test_ends_are_written_at_the_latest_on_closing(tmp_path: Path, state: CallState) -> None:
    async with opened_ledger(tmp_path) as ledger:
        for writes in (True, False):
            one = entry(f"call_{writes}", writes=writes)
            await ledger.start(one)
            ledger.end(one, state, "note")
    assert rows(tmp_path) == {"call_True": state, "call_False": state}


async def test_a_run_that_waited_is_one_row_that_began_when_it_began(tmp_path: Path) -> None:
    async with opened_ledger(tmp_path) as ledger:
        waiting = entry("patient", started_at=1e12)
        ledger.wait(waiting)
        await until(tmp_path, {"patient": "waiting"})
        begun = replace(waiting, started_at=2e12)
        await ledger.start(begun)
        assert rows(tmp_path) == {"patient": "started"}
        ledger.end(begun, CallState.DONE)
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as database:
        assert database.execute("SELECT started_at, state FROM calls").fetchall() == [(2e12, "done")]


async def test_what_waited_when_its_process_died_never_began(tmp_path: Path) -> None:
    async with opened_ledger(tmp_path) as ledger:
        ledger.wait(entry("patient"))
        await until(tmp_path, {"patient": "waiting"})
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as database:
        database.execute("UPDATE calls SET process = 'gone', state = 'waiting', ended_at = NULL")
        database.commit()
    lost: list[int] = []
    async with opened_ledger(tmp_path, lost) as ledger:
        assert lost == [0]
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as database:
        found = database.execute("SELECT state, note FROM calls").fetchall()
        assert found == [("withdrawn", "never begun: the process ended first")]


OLDER = """
CREATE TABLE runs (id TEXT PRIMARY KEY, process TEXT NOT NULL, run_id TEXT NOT NULL, turn INTEGER NOT NULL,
  call_id TEXT NOT NULL, tool TEXT NOT NULL, arguments_hash TEXT NOT NULL, key_name TEXT NOT NULL, writes INTEGER NOT NULL,
  started_at REAL NOT NULL, ended_at REAL, state TEXT NOT NULL CHECK (state IN ('started', 'done', 'failed', 'unknown')),
  note TEXT NOT NULL DEFAULT '', arguments TEXT, result TEXT) STRICT;
CREATE INDEX runs_by_start ON runs (started_at);
CREATE INDEX runs_under_way ON runs (process) WHERE state = 'started';
INSERT INTO runs VALUES ('1', 'p', 'run_1', 0, 'old', 'pay', '00', 'alice', 1, 1e12, 2e12, 'done', '', NULL, 'paid');
INSERT INTO runs VALUES ('2', 'p', 'run_1', 0, 'cut', 'pay', '00', 'alice', 1, 1e12, NULL, 'started', '', NULL, NULL);
"""


async def test_a_ledger_of_an_older_version_keeps_its_rows(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as database:
        database.executescript(OLDER)
    lost: list[int] = []
    async with opened_ledger(tmp_path, lost) as ledger:
        assert lost == [1]
        ledger.wait(entry("patient"))
        await until(tmp_path, {"old": "done", "cut": "unknown", "patient": "waiting"})
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as database:
        assert database.execute("SELECT result, ended_at FROM calls WHERE call_id = 'old'").fetchall() == [
            ("paid", 2e12)
        ]


async def test_a_write_that_is_not_awaited_is_there_soon(tmp_path: Path) -> None:
    async with opened_ledger(tmp_path) as ledger:
        one = entry("looked_up", writes=False)
        await ledger.start(one)
        assert rows(tmp_path) == {}
        await until(tmp_path, {"looked_up": "started"})
        ledger.end(one, CallState.DONE)
        await until(tmp_path, {"looked_up": "done"})


async def test_a_run_is_one_row_whether_its_start_and_end_are_written_together_or_not(tmp_path: Path) -> None:
    async with opened_ledger(tmp_path) as ledger:
        for name in ("together", "apart"):
            one = entry(name, writes=name == "apart")
            await ledger.start(one)
            ledger.end(one, CallState.FAILED, "raised", "text")
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as database:
        found = database.execute("SELECT call_id, tool, key_name, state, note, result FROM calls ORDER BY call_id")
        assert found.fetchall() == [
            (name, "pay", "alice", "failed", "raised", "text") for name in ("apart", "together")
        ]
        assert database.execute("SELECT count(*) FROM calls WHERE ended_at IS NULL").fetchone() == (0,)


COLUMNS = "call_id, arguments, state, ended_at IS NULL, note, result, started_at"


@pytest.mark.parametrize("beside", ["nothing", "words"])
async def test_rows_are_the_same_whatever_is_written_beside_them(tmp_path: Path, beside: str) -> None:
    async with opened_ledger(tmp_path) as ledger:
        if beside == "words":
            ledger.end(entry("beside", arguments="{}"), CallState.FAILED, "raised", "text")
        read, wrote, kept = entry("read", writes=False), entry("wrote"), entry("kept", arguments='{"city":"Oslo"}')
        for call in (read, wrote, kept):
            await ledger.start(call)
        if beside == "words":
            ledger.end(entry("beside 2"), CallState.FAILED, "raised", "text")
        ledger.end(wrote, CallState.DONE)
        await ledger.start(entry("later"))
        ledger.end(kept, CallState.UNKNOWN, "timeout", "21 C")
        await ledger.start(entry("last"))
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as database:
        found = database.execute(f"SELECT {COLUMNS} FROM calls WHERE call_id NOT LIKE 'beside%' ORDER BY call_id")
        assert found.fetchall() == [
            ("kept", '{"city":"Oslo"}', "unknown", 0, "timeout", "21 C", 1e12),
            ("last", None, "started", 1, "", None, 1e12),
            ("later", None, "started", 1, "", None, 1e12),
            ("read", None, "started", 1, "", None, 1e12),
            ("wrote", None, "done", 0, "", None, 1e12),
        ]


async def test_a_call_beside_one_that_waited_keeps_the_time_at_which_it_began(tmp_path: Path) -> None:
    async with opened_ledger(tmp_path) as ledger:
        ledger.wait(entry("patient", id="patient"))
        await ledger.start(entry("quick"))
        begun = entry("patient", id="patient", started_at=2e12)
        await ledger.start(begun)
        ledger.end(begun, CallState.DONE)
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as database:
        found = database.execute("SELECT call_id, started_at FROM calls ORDER BY call_id")
        assert found.fetchall() == [("patient", 2e12), ("quick", 1e12)]


async def test_only_calls_of_durable_runs_are_found_by_their_run(tmp_path: Path) -> None:
    async with opened_ledger(tmp_path):
        pass
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as database:
        database.execute("CREATE INDEX calls_by_run ON calls (run_id)")  # as an older version has it
    async with opened_ledger(tmp_path):
        with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as database:
            plan = database.execute("EXPLAIN QUERY PLAN SELECT id FROM calls WHERE run_id = ?1 AND epoch > 0", ("run",))
            assert "calls_of_durable_runs" in plan.fetchall()[0][-1]
            indexes = database.execute("SELECT name FROM sqlite_master WHERE tbl_name = 'calls' AND type = 'index'")
            assert "calls_by_run" not in [name for [name] in indexes]


async def test_starts_side_by_side_share_a_batch_and_none_is_lost(tmp_path: Path) -> None:
    async with opened_ledger(tmp_path) as ledger:
        await asyncio.gather(*(ledger.start(entry(f"call_{number}")) for number in range(300)))
        assert len(rows(tmp_path)) == 300


async def test_what_a_process_that_died_had_under_way_becomes_unknown(tmp_path: Path) -> None:
    script = f"""
import asyncio, os, signal
from pathlib import Path
from callgate.state.local.sqlite import SqliteLedger
from callgate.state.entry import CallState
from tests.state.entries import entry

async def main():
    ledger = SqliteLedger(Path({str(tmp_path)!r}))
    ledger.open()
    done = entry("call_done")
    await ledger.start(done)
    ledger.end(done, CallState.DONE)
    await ledger.start(entry("call_lost"))
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, env=child_environment())
    assert await process.wait() == -9
    assert rows(tmp_path)["call_lost"] == "started"
    lost: list[int] = []
    async with opened_ledger(tmp_path, lost) as ledger:
        assert lost == [1]
        assert rows(tmp_path) == {"call_done": "done", "call_lost": "unknown"}
        assert lock_files(tmp_path) == [f"process-{ledger.process}.lock"], "the lock of the dead is swept away"


async def test_what_a_process_that_lives_has_under_way_is_left_alone(tmp_path: Path) -> None:
    async with opened_ledger(tmp_path) as one:
        await one.start(entry())
        lost: list[int] = []
        async with opened_ledger(tmp_path, lost):
            assert lost == [0]
            assert rows(tmp_path) == {"call_1": "started"}


async def test_where_the_disk_refuses_nothing_that_may_write_is_started(tmp_path: Path) -> None:
    async with opened_ledger(tmp_path) as ledger:
        with contextlib.closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as database:
            database.execute("ALTER TABLE calls RENAME TO elsewhere")
            with pytest.raises(NotRecorded):
                await ledger.start(entry())
            await ledger.start(entry("read", writes=False))
            database.execute("ALTER TABLE elsewhere RENAME TO calls")
        await ledger.start(entry("after"))
        assert "after" in rows(tmp_path)


async def test_what_the_disk_refused_is_written_when_it_can_be(tmp_path: Path) -> None:
    async with opened_ledger(tmp_path) as ledger:
        await ledger.start(entry("done"))
        with contextlib.closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as database:
            database.execute("ALTER TABLE calls RENAME TO elsewhere")
            ledger.end(entry("done"), CallState.DONE)
            ledger.remember_spending("alice", "2099-01", 5)
            with pytest.raises(NotRecorded):
                await ledger.start(entry("refused"))
            database.execute("ALTER TABLE elsewhere RENAME TO calls")
        async with asyncio.timeout(30):
            while rows(tmp_path)["done"] != "done":  # noqa: ASYNC110 - asks a file
                await asyncio.sleep(0.02)
        await ledger.start(entry("after"))
        assert rows(tmp_path) == {"done": "done", "after": "started"}
    async with opened_ledger(tmp_path) as ledger:
        assert ledger.spent == {("alice", "2099-01"): 5}


@pytest.mark.parametrize("in_its_place", [None, b"", b"no ledger"])
async def test_nothing_that_may_write_is_started_on_a_file_that_was_moved_away(
    tmp_path: Path, in_its_place: bytes | None
) -> None:
    file = tmp_path / FILE
    async with opened_ledger(tmp_path) as ledger:
        database = SqliteDatabase(tmp_path, ledger, on_lost=lambda _: None)
        await ledger.start(entry("before"))
        await database.fetch("SELECT call_id FROM calls")
        moved = file.rename(tmp_path / "moved.sqlite3")
        if in_its_place is not None:
            file.write_bytes(in_its_place)
        with pytest.raises(NotRecorded):
            await ledger.start(entry("refused"))
        await ledger.start(entry("read", writes=False))
        advice = "put it back" if in_its_place is None else "start this server again"
        with pytest.raises(DatabaseAway, match=advice):
            await database.fetch("SELECT call_id FROM calls")
        with pytest.raises(DatabaseAway, match=advice):
            await database.beat(ledger.process, "proxy", "")
        if in_its_place is None:
            with pytest.raises(DamagedLedger, match="its -wal is still there"):
                async with opened_ledger(tmp_path):
                    pass
            assert not file.exists()
        moved.replace(file)
        if in_its_place is not None:
            with pytest.raises(NotRecorded):
                await ledger.start(entry("refused"))
            await database.close()
            return
        await ledger.start(entry("after"))
        assert set(rows(tmp_path)) >= {"before", "after"}
        assert "refused" not in rows(tmp_path)
        await database.beat(ledger.process, "proxy", "")
        await database.close()


async def test_what_keys_have_spent_is_there_after_a_restart(tmp_path: Path) -> None:
    async with opened_ledger(tmp_path) as ledger:
        async with opened_ledger(tmp_path) as other:
            ledger.remember_spending("alice", "2099-01", 5)
            other.remember_spending("alice", "2099-01", 7)
        ledger.remember_spending("alice", "2099-01", -2)
    async with opened_ledger(tmp_path) as ledger:
        assert ledger.spent == {("alice", "2099-01"): 10}


async def test_old_rows_go(tmp_path: Path) -> None:
    async with opened_ledger(tmp_path) as ledger:
        old = entry("old", started_at=1.0)
        await ledger.start(old)
        ledger.end(old, CallState.DONE)
        ledger.remember_spending("alice", "1999-01", 7)
    async with opened_ledger(tmp_path) as ledger:
        await ledger.start(entry("new"))
    assert rows(tmp_path) == {"new": "started"}


async def test_the_files_are_the_owners_alone(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    async with opened_ledger(folder) as ledger:
        await ledger.start(entry())
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in folder.iterdir())


async def test_half_a_pair_in_what_a_model_wrote_is_no_reason_not_to_record_it(tmp_path: Path) -> None:
    async with opened_ledger(tmp_path) as ledger:
        await ledger.start(entry("call_\ud800", arguments='{"a": "\ud800"}'))
    assert list(rows(tmp_path)) == ["call_?"]


async def test_a_ledger_that_was_emptied_is_no_new_one(tmp_path: Path) -> None:
    ledger = SqliteLedger(tmp_path)
    ledger.open()
    await ledger.close()
    (tmp_path / FILE).write_bytes(b"")

    with pytest.raises(DamagedLedger, match="emptied"):
        check_ledger(tmp_path)
    again = SqliteLedger(tmp_path)
    with pytest.raises(DamagedLedger, match="emptied"):
        again.open()
    await again.close()


async def test_calls_have_the_states_that_there_are_and_no_others(tmp_path: Path) -> None:
    async with opened_ledger(tmp_path):
        with contextlib.closing(open_file(tmp_path / FILE)) as database:
            values = dict.fromkeys(CALL_COLUMNS, 0) | {"arguments": None, "result": None}
            insert = f"INSERT INTO calls ({', '.join(CALL_COLUMNS)}) VALUES ({', '.join('?' * len(CALL_COLUMNS))})"
            for state in CallState:
                database.execute(insert, [*(values | {"id": state.value, "state": state.value}).values()])
            with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
                database.execute(insert, [*(values | {"id": "other", "state": "lost"}).values()])


async def test_a_row_is_checked_without_an_index_of_its_own(tmp_path: Path) -> None:
    async with opened_ledger(tmp_path):
        with contextlib.closing(open_file(tmp_path / FILE)) as database:
            tables = [name for [name] in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            assert {"calls", "runs", "approvals"} <= {*tables}
            for table in tables:
                steps = database.execute(f"EXPLAIN INSERT INTO {table} DEFAULT VALUES")
                assert "OpenEphemeral" not in [step[1] for step in steps], table
