"""The file of recorded runs: what is written is found again, pages do not overlap, and it keeps to its size."""

import contextlib
import itertools
import sqlite3
import threading
import time
import zlib
from collections.abc import Mapping

import msgspec
import pytest

from callgate.recorder.packed import Packed, PackedEnd, PackedEvent, PackedRun, PackedTurnStart
from callgate.recorder.row import Kept, KeyUsage, Recording, RunEvent, RunRow
from callgate.recorder.store import FILE, RunFilter, RunStore, StoreUnusable, is_wanted

ENDED = PackedEnd(0.5, 0, "answered", "stop", "")


def run(number: int, content: Mapping[str, str] = {}, state: str = "answered", **more: object) -> PackedRun:
    row = RunRow(id=f"run_{number:024x}", began=1_000_000.0 + number, state=state, **more)  # type: ignore[arg-type]
    return PackedRun.of(row, [ENDED], content)


@pytest.fixture
def store(tmp_path):
    opened = RunStore(tmp_path)
    yield opened
    opened.close()


def test_a_run_is_found_as_it_was_written(store):
    row = RunRow("run_1", 12.5, "gpt", findings=["x"], tools=["add"], cost=0.25, kept=Kept.CONTENT)
    events: list[Packed] = [
        PackedTurnStart(0.1, 0, 0),
        PackedEvent(0.2, 1, "call_progress", 0, {"id": "c", "fraction": 0.5}),
    ]
    content = {"request": "{}", "call.c.arguments": "x" * 10_000}

    store.add([PackedRun.of(row, events, content)])

    assert store.get("run_1") == Recording(
        row,
        [RunEvent(0.1, "turn_started", 0, 0), RunEvent(0.2, "call_progress", 1, 0, {"id": "c", "fraction": 0.5})],
        content,
    )
    assert store.get("run_2") is None


def test_pages_hold_every_run_once_the_newest_first(store):
    same_moment = [PackedRun.of(RunRow(f"run_{number}", 5.0, state="answered"), [], {}) for number in range(10, 30)]
    store.add([*(run(number) for number in range(250)), *same_moment])

    seen, wanted = [], RunFilter()
    while page := store.page(wanted, 7):
        seen += [row.id for row in page]
        wanted = RunFilter(before=page[-1].began, before_id=page[-1].id)

    assert len(seen) == len(set(seen)) == 270
    assert seen[0] == run(249).id
    assert seen[-1] == "run_10"


@pytest.mark.parametrize(
    ("wanted", "found"),
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
def test_a_filter_chooses(store, wanted, found):
    rows = [
        run(0, model="a", key="alice"),
        run(1, model="b", key="bob"),
        run(2, model="a", key="bob"),
        run(3, model="b", key="carol", state="failed"),
        run(4, model="b", key="carol", attempts=2, turns=1),
    ]
    store.add(rows)

    assert {int(row.id[4:], 16) for row in store.page(wanted, 50)} == found


def test_what_is_deleted_is_gone_with_its_events_and_texts(store, tmp_path):
    store.add([run(1, {"request": "a planted word"})])

    assert store.delete(run(1).id)
    assert not store.delete(run(1).id)
    assert store.bytes == 0
    with sqlite3.connect(tmp_path / FILE) as database:
        for table in ("runs", "events", "content"):
            assert database.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
    database.close()


def test_pruning_takes_old_runs_then_the_oldest_texts_then_the_oldest_runs(store):
    texts = {"request": "".join(chr(65 + (number * number) % 57) for number in range(2000))}
    store.add([run(number, texts) for number in range(1200)])

    assert store.prune(older_than=run(100).began, most_bytes=10**9) == 100
    assert [row.id for row in store.page(RunFilter(until=run(101).began), 5)] == [run(100).id]

    whole = store.bytes
    store.prune(older_than=0.0, most_bytes=whole // 2)
    oldest, newest = store.get(run(100).id), store.get(run(1199).id)
    assert oldest is not None
    assert (oldest.row.kept, oldest.content) == (Kept.AGED_OUT, {})
    assert newest is not None
    assert newest.content == texts
    assert store.bytes <= whole // 2

    store.prune(older_than=0.0, most_bytes=0)
    assert (store.page(RunFilter(), 5), store.bytes) == ([], 0)


def test_a_run_that_is_there_already_stays_as_it_is(store):
    store.add([run(1, model="first")])
    store.add([run(1, model="second"), run(2)])

    assert [row.model for row in store.page(RunFilter(), 10)] == ["", "first"]


def test_a_damaged_file_is_reported_in_one_line(tmp_path):
    (tmp_path / FILE).write_bytes(b"this is no database at all" * 100)

    with pytest.raises(StoreUnusable, match="file is not a database"):
        RunStore(tmp_path)


def test_a_file_of_another_version_is_left_alone(tmp_path):
    with sqlite3.connect(tmp_path / FILE) as database:
        database.execute("PRAGMA user_version = 99")
    database.close()

    with pytest.raises(StoreUnusable, match="another version"):
        RunStore(tmp_path)


def test_a_file_of_format_1_is_read_and_written_on(tmp_path):
    RunStore(tmp_path).close()
    row, named = RunRow("run_old", 1.0, "gpt", turns=2, calls=1), RunEvent(0.5, "ended", facts={"ending": "answered"})
    kept = {"request": "x" * 5000}
    with sqlite3.connect(tmp_path / FILE) as database:
        encode = msgspec.msgpack.encode
        database.execute("INSERT INTO runs VALUES (1, 'run_old', 1.0, 'gpt', '', 'answered', 0, 1, ?)", (encode(row),))
        database.execute("INSERT INTO events VALUES (1, ?)", (b"-" + encode([named]),))
        database.execute("INSERT INTO content VALUES (1, ?)", (b"z" + zlib.compress(encode(kept)),))
        database.execute("PRAGMA user_version = 1")
    database.close()

    with contextlib.closing(RunStore(tmp_path, read_only=True)) as reader:
        assert reader.get("run_old") == Recording(row, [named], kept)
    with contextlib.closing(RunStore(tmp_path)) as store:
        store.add([run(2)])
        assert store.get("run_old") == Recording(row, [named], kept)
        assert [each.id for each in store.page(RunFilter(), 5)] == [run(2).id, "run_old"]


def test_reading_a_file_of_another_version_is_an_error(tmp_path):
    RunStore(tmp_path).close()
    with sqlite3.connect(tmp_path / FILE) as database:
        database.execute("PRAGMA user_version = 99")
    database.close()

    with pytest.raises(StoreUnusable, match="another version"):
        RunStore(tmp_path, read_only=True)


def test_nobody_else_can_read_the_file(store, tmp_path):
    assert (tmp_path / FILE).stat().st_mode & 0o077 == 0


def test_readers_and_writers_of_several_processes_share_the_file(store, tmp_path):
    """Threads with connections of their own are to SQLite what processes are."""
    failures: list[Exception] = []

    def write(process: int) -> None:
        try:
            mine = RunStore(tmp_path)
            for number in range(50):
                mine.add([run(process * 1000 + number)])
            mine.close()
        except Exception as failure:  # noqa: BLE001 - reported by the test
            failures.append(failure)

    writers = [threading.Thread(target=write, args=(process,)) for process in range(3)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        reader = RunStore(tmp_path, read_only=True)
        reader.page(RunFilter(), 10)
        reader.close()
    for writer in writers:
        writer.join()

    assert failures == []
    assert len(store.page(RunFilter(), 500)) == 150


@pytest.mark.slow
def test_a_page_of_many_runs_is_quick(store):
    for at in range(0, 60_000, 6000):
        store.add([run(at + number, model=f"m{number % 40}", key=f"k{number % 7}") for number in range(6000)])

    began = time.process_time()
    for _ in range(20):
        assert len(store.page(RunFilter(model="m3"), 50)) == 50
        assert len(store.page(RunFilter(before=run(30_000).began, before_id="z"), 50)) == 50
    assert (time.process_time() - began) / 40 < 0.01


def test_what_was_used_adds_up_by_day_key_and_model(store):
    store.count(
        [KeyUsage("2026-11-17", "alice", "gpt", 1, 0, 2, 10, 5), KeyUsage("2026-11-18", "bob", "gpt", requests=1)]
    )
    store.count([KeyUsage("2026-11-17", "alice", "gpt", 1, 1, 0, 1, 1)])

    assert store.usage("2026-11-17")[0] == KeyUsage("2026-11-17", "alice", "gpt", 2, 1, 2, 11, 6)
    assert [each.key for each in store.usage("2026-11-18")] == ["bob"]


def test_the_file_chooses_by_state_key_and_model_as_memory_does(tmp_path):
    store = RunStore(tmp_path)
    states = ("answered", "handed_back", "failed", "client_left", "turn_limit")
    rows = [
        RunRow(
            f"run_{number}",
            float(number),
            ("gpt", "other")[number % 2],
            key=("alice", "bob", "")[number % 3],
            state=state,
        )
        for number, state in enumerate(states * 12)
    ]
    store.add([PackedRun.of(row, [], {}) for row in rows])
    for model, key, state, odd in itertools.product(
        (None, "gpt"), (None, "bob"), (None, *states, "nosuch"), (False, True)
    ):
        wanted = RunFilter(model, key, state, odd)
        expected = [row.id for row in reversed(rows) if is_wanted(row, wanted)]
        assert [row.id for row in store.page(wanted, 100)] == expected, wanted
    store.close()


def test_a_run_that_is_there_already_stays_as_it_is_beside_new_ones(tmp_path):
    store = RunStore(tmp_path)
    store.add([PackedRun.of(RunRow("run_1", 1.0, "gpt"), [ENDED], {"request": "first"})])
    again = PackedRun.of(RunRow("run_1", 2.0, "other"), [], {"request": "second"})
    store.add([again, PackedRun.of(RunRow("run_2", 3.0, "gpt"), [ENDED], {"request": "new"})])
    first, new = store.get("run_1"), store.get("run_2")
    assert first is not None
    assert new is not None
    assert (first.row.model, first.content, len(first.events)) == ("gpt", {"request": "first"}, 1)
    assert (new.content, len(new.events)) == ({"request": "new"}, 1)
    store.close()


def test_a_file_that_was_made_and_not_written_yet_has_no_runs_and_another_formats_is_named(tmp_path):
    (tmp_path / FILE).touch()
    with contextlib.closing(RunStore(tmp_path, read_only=True)) as store:
        assert (store.page(RunFilter(), 5), store.get("run_1"), store.usage("2026-01-01")) == ([], None, [])
    assert (tmp_path / FILE).stat().st_size == 0
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as database:
        database.execute("CREATE TABLE runs (id TEXT)")
        database.execute("PRAGMA user_version = 99")
    for read_only in (True, False):
        with pytest.raises(StoreUnusable, match=r"another version of Callgate \(format 99\); move it away"):
            RunStore(tmp_path, read_only=read_only)


def test_pruning_goes_on_past_what_is_damaged(store, tmp_path):
    store.add([run(number, content={"request": "x", "wire.0.0": "y"}) for number in range(3)])
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as database, database:
        database.execute("UPDATE runs SET row = x'c1' WHERE seq = 1")
        database.execute("UPDATE content SET body = x'7a00' WHERE seq = 2")
    store.prune(older_than=0.0, most_bytes=store.bytes - 1, wire_older_than=1e10)
    assert store.prune(older_than=0.0, most_bytes=0) == 3
    assert store.bytes == 0
