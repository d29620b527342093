"""The file of recorded runs: what is written is found again, pages do not overlap, and it keeps to its size."""

import contextlib
import fcntl
import itertools
import os
import sqlite3
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from callgate.recorder import store as store_module
from callgate.recorder.ended_run import EndedRun, ended_run
from callgate.recorder.hours import HourPlace, HourTotal, ShownPlace
from callgate.recorder.run_filter import RunFilter
from callgate.recorder.store import (
    APPLICATION,
    FILE,
    VERSION,
    WITHOUT_USUAL,
    RunStore,
    StoreUnusable,
    set_aside_damaged,
    set_aside_older,
)
from callgate.recorder.usage import KeyUsage
from callgate.recorder.usage_tables import DIMENSIONS, HourSpan
from callgate.records.row import Kept, RecordedRun, RunEvent, RunRow
from tests.chaos.scale import held_to

ENDED = RunEvent(0.5, "ended", 0, None, {"ending": "answered", "finish_reason": "stop", "note": ""})


def ended_run_numbered(
    number: int, content: Mapping[str, str] = {}, state: str = "answered", **more: object
) -> EndedRun:
    row = RunRow(id=f"run_{number:024x}", began=1_000_000.0 + number, state=state, **more)  # type: ignore[arg-type]
    return ended_run_of(row, [ENDED], content)


def ended_run_of(row: RunRow, events: Sequence[RunEvent] = (), content: Mapping[str, str] = {}) -> EndedRun:
    stored = [(event.kind, event.at, event.choice, event.turn, event.facts) for event in events]
    ended = ended_run(row, stored, content)
    ended.has_wire = any("wire." in part for part in content)
    return ended


@pytest.fixture
def store(tmp_path):
    with contextlib.closing(RunStore(tmp_path)) as opened:
        yield opened


def file_of(folder: Path) -> contextlib.closing[sqlite3.Connection]:
    return contextlib.closing(sqlite3.connect(folder / FILE, isolation_level=None))


def test_the_columns_of_a_run_are_the_fields_of_its_row_and_what_lists_need_besides(store, tmp_path):
    with file_of(tmp_path) as database:
        columns = [name for _, name, *_ in database.execute("PRAGMA table_info(runs)")]
    beside = ["odd", "bytes", "has_wire", "events", "content", "usual"]
    assert columns == ["seq", *RunRow.__struct_fields__, *beside]


def test_a_run_is_found_as_it_was_written(store):
    row = RunRow("run_1", 12.5)
    for name in RunRow.__struct_fields__[2:]:
        value = getattr(row, name)
        match value:
            case bool():
                value = True
            case Kept():
                value = Kept.CONTENT
            case str():
                value = f"a {name}"
            case None:
                value = 0.25
            case int():
                value = len(name)
            case dict():
                value = {name: {"returned": 2}}
            case _:
                value = [name]
        setattr(row, name, value)
    events = [
        RunEvent(0.1, "turn_started", 0, 0),
        RunEvent(0.2, "call_progress", 1, 0, {"id": "c", "fraction": 0.5}),
    ]
    content = {"request": "{}", "call.c.arguments": "x" * 10_000}

    store.add([ended_run_of(row, events, content)])

    assert store.get("run_1") == RecordedRun(row, events, content)
    assert store.page(RunFilter(), 5) == [row]
    assert store.get("run_2") is None


def test_a_run_beside_others_is_found_as_it_was_written(store):
    rows = [RunRow(f"run_{number}", float(number), "gpt", state="answered", tools=["add"]) for number in range(4)]
    rows[1].findings = ["tool_calls_with_stop"]
    rows[2].trace_id = "0123"
    rows[2].stream = True
    rows[3].state = "failed"
    store.add([ended_run_of(row, [ENDED]) for row in rows])
    for row in rows:
        row.findings = list(row.findings)
    assert store.page(RunFilter(), 5) == rows[::-1]
    assert [row.id for row in store.page(RunFilter(odd=True), 5)] == ["run_3"]


@pytest.mark.parametrize(
    "events",
    [
        [["ended", 0.1, 0, None, ["answered", "stop", "", "more"]]],
        [["nosuch", 0.1, 0, None, ["a fact"]]],
        [["call_started", 0.1, 0, 0]],
        [["turn_ended", 0.1, 0, 0, [0.1]]],
        [["turn_ended", 0.1, 0, 0, [0.1, [], [], [["id"]]]]],
        [["turn_ended", 0.1, 0, 0, [0.1, [], [], 5]]],
    ],
)
def test_an_event_that_this_version_does_not_know_is_said_to_be_damaged(store, tmp_path, events):
    store.add([ended_run_numbered(1)])
    with file_of(tmp_path) as database:
        database.execute("UPDATE runs SET events = ?", (msgspec.msgpack.encode(events),))
    with pytest.raises(StoreUnusable, match="is damaged, or was written by another version"):
        store.get(ended_run_numbered(1).id)


def test_pages_hold_every_run_once_the_newest_first(store):
    same_moment = [ended_run_of(RunRow(f"run_{number}", 5.0, state="answered")) for number in range(10, 30)]
    store.add([*(ended_run_numbered(number) for number in range(250)), *same_moment])

    seen, wanted = [], RunFilter()
    while page := store.page(wanted, 7):
        seen += [row.id for row in page]
        wanted = wanted.behind(page[-1])

    assert len(seen) == len(set(seen)) == 270
    assert seen[0] == ended_run_numbered(249).id
    assert seen[-1] == "run_10"


@pytest.mark.parametrize(
    ("wanted", "numbers"),
    [
        (RunFilter(model="a"), {0, 2}),
        (RunFilter(key="bob"), {1, 2}),
        (RunFilter(model="a", key="bob"), {2}),
        (RunFilter(state="failed"), {3}),
        (RunFilter(odd=True), {3, 4}),
        (RunFilter(since=1_000_003.0), {3, 4}),
        (RunFilter(until=1_000_001.0), {0}),
        (RunFilter(model="nobody"), set()),
    ],
)
def test_a_filter_chooses(store, wanted, numbers):
    rows = [
        ended_run_numbered(0, model="a", key="alice"),
        ended_run_numbered(1, model="b", key="bob"),
        ended_run_numbered(2, model="a", key="bob"),
        ended_run_numbered(3, model="b", key="carol", state="failed"),
        ended_run_numbered(4, model="b", key="carol", attempts=2, turns=1),
    ]
    store.add(rows)

    assert {int(row.id[4:], 16) for row in store.page(wanted, 50)} == numbers


def test_the_file_chooses_as_memory_does(store):
    states = ("answered", "handed_back", "failed", "client_left", "turn_limit")
    rows = [
        RunRow(
            f"run_{number:02}",
            float(number),
            ("gpt", "other")[number % 2],
            key=("alice", "bob", "")[number % 3],
            state=state,
        )
        for number, state in enumerate(states * 12)
    ]
    store.add([ended_run_of(row) for row in rows])
    for model, key, state, odd, since, until, before in itertools.product(
        *((None, "gpt"), (None, "bob"), (None, *states, "nosuch"), (False, True)),
        *((None, 20.0), (None, 50.0), (None, 40.0)),
    ):
        wanted = RunFilter(model, key, state, odd, before=before, since=since, until=until)
        expected = [row.id for row in reversed(rows) if wanted.matches(row)]
        assert [row.id for row in store.page(wanted, 100)] == expected, wanted
        assert [row.id for row in store.page(wanted, 5)] == expected[:5], wanted


@pytest.mark.parametrize("moment", [1e308, -1e308])
def test_a_moment_that_no_run_can_have_is_a_filter_as_any_other(store, moment):
    store.add([ended_run_numbered(0)])
    assert len(store.page(RunFilter(until=moment), 5)) == (moment > 0)
    assert len(store.page(RunFilter(since=moment), 5)) == (moment < 0)
    assert len(store.page(RunFilter(before=moment), 5)) == (moment > 0)


def test_what_is_deleted_is_gone_with_its_events_and_texts(store, tmp_path):
    store.add([ended_run_numbered(1, {"request": "a planted word"})])

    assert store.delete(ended_run_numbered(1).id)
    assert not store.delete(ended_run_numbered(1).id)
    assert store.bytes() == 0
    with file_of(tmp_path) as database:
        assert database.execute("SELECT count(*) FROM runs").fetchone() == (0,)


def test_pruning_takes_old_runs_then_the_oldest_texts_then_the_oldest_runs(store, tmp_path):
    texts = {"request": "".join(chr(65 + (number * number) % 57) for number in range(2000))}
    store.add([ended_run_numbered(number, texts) for number in range(1200)])
    with file_of(tmp_path) as database:
        database.execute("UPDATE runs SET question = 'why?'")

    assert store.prune(older_than=ended_run_numbered(100).begun.began, most_bytes=10**9) == 100
    assert [row.id for row in store.page(RunFilter(until=ended_run_numbered(101).begun.began), 5)] == [
        ended_run_numbered(100).id
    ]

    whole = store.bytes()
    store.prune(older_than=0.0, most_bytes=whole - 1000)
    oldest, newest = store.get(ended_run_numbered(100).id), store.get(ended_run_numbered(1199).id)
    assert (oldest.row.kept, oldest.content) == (Kept.AGED_OUT, {})
    assert newest.content == texts
    assert store.bytes() <= whole - 1000
    with file_of(tmp_path) as database:
        questions = dict(database.execute("SELECT id, question FROM runs"))
        assert database.execute("SELECT sum(bytes) FROM runs").fetchone() == (store.bytes(),)
    assert (questions[oldest.row.id], questions[newest.row.id]) == ("", "why?")

    assert store.prune(older_than=0.0, most_bytes=0) == 1100
    assert (store.page(RunFilter(), 5), store.bytes()) == ([], 0)


def test_a_run_that_is_there_already_stays_as_it_is_beside_new_ones(store, tmp_path):
    store.add([ended_run_of(RunRow("run_1", 1.0, "gpt"), [ENDED], {"request": "first"})])
    again = ended_run_of(RunRow("run_1", 2.0, "other"), [], {"request": "second"})
    store.add([again, ended_run_of(RunRow("run_2", 3.0, "gpt"), [ENDED], {"request": "new"})])
    first, new = store.get("run_1"), store.get("run_2")
    assert (first.row.model, first.content, len(first.events)) == ("gpt", {"request": "first"}, 1)
    assert (new.content, len(new.events)) == ({"request": "new"}, 1)
    with file_of(tmp_path) as database:
        assert database.execute("SELECT sum(bytes) FROM runs").fetchone() == (store.bytes(),)


def test_a_damaged_file_is_reported_in_one_line(tmp_path):
    (tmp_path / FILE).write_bytes(b"this is no database at all" * 100)

    for use in (RunStore, set_aside_older):
        with pytest.raises(StoreUnusable, match="file is not a database"):
            use(tmp_path)


def damage_every_page_but_the_first(folder: Path) -> None:
    whole = (folder / FILE).read_bytes()
    (folder / FILE).write_bytes(whole[:4096] + b"\xa5" * (len(whole) - 4096))


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / FILE).write_bytes(b"this is no database at all" * 100),
        lambda folder: (folder / FILE).write_bytes((folder / FILE).read_bytes()[:9000]),
        damage_every_page_but_the_first,
    ],
    ids=["garbage", "truncated", "pages"],
)
def test_a_damaged_file_is_set_aside_with_its_journal(tmp_path, damage):
    with contextlib.closing(RunStore(tmp_path)) as store:
        store.add([ended_run_numbered(number) for number in range(5)])
    assert set_aside_damaged(tmp_path) is None, "it is whole"
    damage(tmp_path)
    (tmp_path / f"{FILE}-wal").write_bytes(b"x")
    aside = set_aside_damaged(tmp_path)
    assert aside == tmp_path / "runs-damaged.sqlite3"
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(FILE)]


def test_a_file_that_another_process_has_begun_in_place_of_a_damaged_one_stays(tmp_path):
    with contextlib.closing(RunStore(tmp_path)) as store:
        inode = store.inode
        store.path.rename(tmp_path / "moved")
        RunStore(tmp_path).close()
    assert set_aside_damaged(tmp_path, inode) is None
    assert set_aside_damaged(tmp_path, (tmp_path / FILE).stat().st_ino) == tmp_path / "runs-damaged.sqlite3"


def test_a_damaged_row_is_missing_in_lists_and_is_deleted_as_any_other(store, tmp_path):
    store.add([ended_run_numbered(number, replay_of="run_0") for number in range(6)])
    with file_of(tmp_path) as database:
        database.execute("UPDATE runs SET tools = '[' WHERE seq IN (2, 5)")
        database.execute("UPDATE runs SET events = x'c1' WHERE seq = 3")
    assert [row.id for row in store.page(RunFilter(), 3)] == [ended_run_numbered(number).id for number in (5, 3, 2)]
    assert [row.id for row in store.page(RunFilter(), 9)] == [ended_run_numbered(number).id for number in (5, 3, 2, 0)]
    assert len(store.replays_of("run_0")) == 4
    for number in (1, 2):
        with pytest.raises(StoreUnusable, match="is damaged, or was written by another version"):
            store.get(ended_run_numbered(number).id)
        assert store.delete(ended_run_numbered(number).id)
        assert store.get(ended_run_numbered(number).id) is None


def test_pruning_goes_on_past_what_is_damaged(store, tmp_path):
    store.add([ended_run_numbered(number, content={"request": "x", "wire.0.0": "y"}) for number in range(3)])
    with file_of(tmp_path) as database:
        database.execute("UPDATE runs SET tools = '[' WHERE seq = 1")
        database.execute("UPDATE runs SET content = x'7a00' WHERE seq = 2")
        database.execute("UPDATE totals SET value = (SELECT sum(bytes) FROM runs)")
    store.prune(older_than=0.0, most_bytes=store.bytes() - 1, wire_older_than=1e10)
    assert store.prune(older_than=0.0, most_bytes=0) == 3


def older_file(folder: Path, version: int, application: int = 0) -> None:
    """A file as before this format, with what it was last told still in its journal."""
    with file_of(folder) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE runs (id TEXT)")
        database.execute(f"PRAGMA user_version = {version}")
        database.execute(f"PRAGMA application_id = {application}")
        database.execute("INSERT INTO runs VALUES ('run_1')")


@pytest.mark.parametrize(("version", "application"), [(0, 0), (1, 0), (2, 0), (3, 0), (WITHOUT_USUAL - 1, APPLICATION)])
def test_an_older_file_is_set_aside_with_all_that_is_in_it(tmp_path, version, application):
    older_file(tmp_path, version, application)
    for read_only in (True, False):
        with pytest.raises(StoreUnusable, match="earlier version of Callgate"):
            RunStore(tmp_path, read_only=read_only)

    aside = set_aside_older(tmp_path)
    assert aside is not None
    assert aside == tmp_path / f"runs-format-{version}.sqlite3"
    assert [file.name for file in tmp_path.iterdir()] == [aside.name]
    with contextlib.closing(sqlite3.connect(aside)) as database:
        assert database.execute("SELECT id FROM runs").fetchall() == [("run_1",)]
    with contextlib.closing(RunStore(tmp_path)) as store:
        store.add([ended_run_numbered(1)])
    assert set_aside_older(tmp_path) is None
    with contextlib.closing(RunStore(tmp_path, read_only=True)) as store:
        assert store.get(ended_run_numbered(1).id) is not None


def test_a_second_older_file_is_set_aside_beside_the_first(tmp_path):
    for name in ("runs-format-3.sqlite3", "runs-format-3-2.sqlite3"):
        older_file(tmp_path, 3)
        assert set_aside_older(tmp_path) == tmp_path / name


def test_an_older_file_that_another_process_uses_stays_where_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr("callgate.recorder.store.BUSY_SECONDS", 0.01)
    older_file(tmp_path, 3)
    with file_of(tmp_path) as other:
        other.execute("SELECT * FROM runs").fetchall()
        with pytest.raises(StoreUnusable, match="database is locked"):
            set_aside_older(tmp_path)
        other.execute("INSERT INTO runs VALUES ('run_2')")
    assert set_aside_older(tmp_path) is not None


def test_a_file_that_was_made_and_not_written_yet_has_no_runs_and_another_formats_is_named(tmp_path):
    (tmp_path / FILE).touch()
    assert set_aside_older(tmp_path) is None
    with contextlib.closing(RunStore(tmp_path, read_only=True)) as store:
        assert (store.page(RunFilter(), 5), store.get("run_1"), store.usage("2026-01-01")) == ([], None, [])
    assert (tmp_path / FILE).stat().st_size == 0
    RunStore(tmp_path).close()
    with file_of(tmp_path) as database:
        database.execute("PRAGMA user_version = 99")
    assert set_aside_older(tmp_path) is None
    for read_only in (True, False):
        with pytest.raises(StoreUnusable, match=r"another version of Callgate \(format 99\); move it away"):
            RunStore(tmp_path, read_only=read_only)


def test_the_file_says_which_format_it_has(store, tmp_path):
    with file_of(tmp_path) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (VERSION,)


def test_nobody_else_can_read_the_file(store, tmp_path):
    assert (tmp_path / FILE).stat().st_mode & 0o077 == 0


def test_no_other_process_looks_at_a_file_that_is_being_made_or_set_aside(tmp_path, monkeypatch):
    looks: list[bool] = []
    is_empty = store_module._is_empty

    def looked(database: sqlite3.Connection) -> bool:
        folder = os.open(tmp_path, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(folder)
        looks.append(is_empty(database))
        return looks[-1]

    monkeypatch.setattr(store_module, "_is_empty", looked)
    RunStore(tmp_path).close()
    assert set_aside_older(tmp_path) is None
    assert looks == [True, False]


def test_readers_and_writers_of_several_processes_share_the_file(tmp_path):
    """Threads with connections of their own are to SQLite what processes are."""
    failures: list[Exception] = []

    def write(process: int) -> None:
        try:
            set_aside_older(tmp_path)
            mine = RunStore(tmp_path)
            for number in range(50):
                mine.add([ended_run_numbered(process * 1000 + number)])
            mine.close()
        except Exception as failure:  # noqa: BLE001 - reported by the test
            failures.append(failure)

    writers = [threading.Thread(target=write, args=(process,)) for process in range(3)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        if (tmp_path / FILE).exists():
            reader = RunStore(tmp_path, read_only=True)
            reader.page(RunFilter(), 10)
            reader.close()
    for writer in writers:
        writer.join()

    assert failures == []
    with contextlib.closing(RunStore(tmp_path)) as store:
        assert len(store.page(RunFilter(), 500)) == 150


@pytest.mark.slow
def test_a_page_of_many_runs_is_quick(store):
    for at in range(0, 60_000, 6000):
        store.add(
            [ended_run_numbered(at + number, model=f"m{number % 40}", key=f"k{number % 7}") for number in range(6000)]
        )

    began = time.process_time()
    for _ in range(20):
        assert len(store.page(RunFilter(model="m3"), 50)) == 50
        assert len(store.page(RunFilter(before=ended_run_numbered(30_000).begun.began, before_id="z"), 50)) == 50
    held_to(0.01, "a page of many runs, of the processor", (time.process_time() - began) / 40)


def test_what_was_used_adds_up_by_day_key_and_model(store):
    store.count(
        [KeyUsage("2026-11-17", "alice", "gpt", 1, 0, 2, 10, 5), KeyUsage("2026-11-18", "bob", "gpt", requests=1)],
        {},
        {},
    )
    store.count([KeyUsage("2026-11-17", "alice", "gpt", 1, 1, 0, 1, 1)], {}, {})

    assert store.usage("2026-11-17")[0] == KeyUsage("2026-11-17", "alice", "gpt", 2, 1, 2, 11, 6)
    assert [usage.key for usage in store.usage("2026-11-18")] == ["bob"]


def test_hours_add_up_and_outlive_the_runs(store):
    hour = int(time.time() // 3600)
    place = HourPlace("call", "alice", "gpt", "openai", "add")
    total = HourTotal(2, 1, 0)
    total.seconds[3] = 2
    used = KeyUsage("", "alice", "gpt", requests=1, nano=5)
    store.add([ended_run_numbered(1)])
    of_hours = {(hour, "alice", "gpt"): used, (hour, "bob", "gpt"): used, (1, "alice", "gpt"): used}
    store.count([], of_hours, {hour: {place: total}, 1: {place: total}})
    store.count([], {(hour, "alice", "gpt"): used}, {hour: {place: total}})
    store.prune(older_than=1e12, most_bytes=0)

    span = HourSpan(0, hour + 24, hour + 24)
    expected = HourTotal(4, 2, 0)
    expected.seconds[3] = 4
    assert store.read_usage(lambda tables: tables.totals(span, DIMENSIONS, ["call"])) == [(0, place, expected)]
    assert store.read_usage(lambda tables: tables.totals(span, DIMENSIONS, ["call"], "bob")) == []
    assert store.read_usage(lambda tables: tables.totals(span, ["tool"], ["call", "run"])) == [
        (0, HourPlace("call", "", "", "", "add"), expected)
    ]
    assert store.read_usage(lambda tables: tables.shown(span)) == [(0, ShownPlace("tool", "", "add"), expected)]
    [(_, of_models)] = store.read_usage(lambda tables: tables.usage_of_models(span))
    assert (of_models.model, of_models.requests, of_models.nano) == ("gpt", 3, 15)
    by_key = store.read_usage(lambda tables: tables.usage_in_hours(span))
    assert {usage.key: usage.requests for _, usage in by_key} == {"alice": 2, "bob": 1}
    assert [usage.key for _, usage in store.read_usage(lambda tables: tables.usage_in_hours(span, "bob"))] == ["bob"]
    assert store.read_usage(lambda tables: tables.first_hour()) == hour
    assert store.read_usage(lambda tables: tables.names(hour))["tool"] == ["add"]
    assert store.read_usage(lambda tables: tables.names(hour, "bob")) == {
        "model": ["gpt"],
        "key": ["bob"],
        "provider": [],
        "tool": [],
    }


def test_sums_that_take_too_long_are_given_up_with_what_to_do(store, monkeypatch):
    hour = int(time.time() // 3600)
    store.count([], {}, {hour: {HourPlace("run", "alice", f"m{number}"): HourTotal(1) for number in range(2000)}})
    monkeypatch.setattr("callgate.recorder.store.USAGE_SECONDS", -1.0)
    with pytest.raises(StoreUnusable, match="took too long; ask for a shorter time"):
        store.read_usage(lambda tables: tables.totals(HourSpan(hour, hour + 1), ["model"], ["run"]))


def test_a_run_is_stored_as_names_and_numbers_that_other_programs_can_read(store, tmp_path):
    store.add([ended_run_numbered(1, findings=["x"], tools=["add"])])
    with file_of(tmp_path) as database:
        [row] = database.execute("SELECT findings, tools, outcomes, events FROM runs").fetchall()
    assert row[:3] == ('["x"]', '["add"]', "{}")
    assert msgspec.msgpack.decode(row[3])[0][0] == "ended"
