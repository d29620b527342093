"""Plain runs share rows of the file, and are found, listed and removed as if each had its own."""

import contextlib
import itertools
import random
import sqlite3

import pytest

from callgate.recorder.chunks import CHUNK_RUNS, PERIOD_MS, chunked
from callgate.recorder.packed import Packed, PackedEnd, PackedRun, PackedTurnStart
from callgate.recorder.row import RunRow
from callgate.recorder.store import FILE, RunFilter, RunStore, is_wanted

START = 1_790_000_000.0


def run(seconds: float, *, began: float | None = None, **more: object) -> PackedRun:
    """A run whose id was made so many seconds after the first. It is plain if it can be."""
    made = START + seconds
    id = f"run_{int(made * 1000):011x}{random.Random(seconds).getrandbits(52):013x}"
    row = RunRow(id, made if began is None else began, **{"state": "answered", **more})  # type: ignore[arg-type]
    return (PackedRun.of if row.is_odd or row.replay_of else PackedRun.plain)(row, happened(row))


def happened(row: RunRow) -> list[Packed]:
    return [PackedTurnStart(0.1, 0, 0), PackedEnd(0.5, 0, row.state, "stop", "")]


@pytest.fixture
def store(tmp_path):
    with contextlib.closing(RunStore(tmp_path)) as opened:
        yield opened


def counts(folder, *tables):
    with contextlib.closing(sqlite3.connect(folder / FILE)) as database:
        return [database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables]


def many(number: int, seed: int) -> list[PackedRun]:
    """Runs of some minutes, in no order, and each with what lists are filtered by."""
    chance = random.Random(seed)
    return [
        run(
            chance.uniform(0, 300),
            model=chance.choice(["gpt", "other"]),
            key=chance.choice(["alice", "bob", ""]),
            state=chance.choice(["answered", "answered", "handed_back", "failed"]),
        )
        for _ in range(number)
    ]


def test_runs_that_end_together_share_a_row(store, tmp_path):
    runs = [run(number / 1000) for number in range(CHUNK_RUNS * 2 + 1)]
    store.add(runs)

    assert counts(tmp_path, "runs", "chunks", "chunk_kinds") == [0, 3, 3]
    for each in runs:
        found = store.get(each.id)
        assert found.row == each.whole_row
        assert (found.row.began, found.row.state, found.row.finish_reason) == (each.began, "answered", "stop")
        assert [event.kind for event in found.events] == ["turn_started", "ended"]
    assert store.get(run(0.5).id) is None
    assert store.get("nosuch") is None


def test_pages_over_many_chunks_and_rows_hold_every_run_once_the_newest_first(store):
    runs = many(700, seed=1)
    for at in range(0, 700, 90):
        store.add(runs[at : at + 90])
    seen, wanted = [], RunFilter()
    while page := store.page(wanted, 7):
        seen += [row.id for row in page]
        wanted = RunFilter(before=page[-1].began, before_id=page[-1].id)
    assert seen == [each.id for each in sorted(runs, key=lambda each: (each.began, each.id), reverse=True)]


@pytest.mark.parametrize("batch", [1, 3, 200])
def test_a_filter_chooses_as_memory_does(store, batch):
    runs = many(200, seed=batch)
    for at in range(0, 200, batch):
        store.add(runs[at : at + batch])
    middle = START + 150
    rows = sorted((each.whole_row for each in runs), key=lambda row: (row.began, row.id), reverse=True)
    for model, key, state, odd, since, until, before in itertools.product(
        *((None, "gpt"), (None, "bob"), (None, "answered", "handed_back", "failed", "nosuch"), (False, True)),
        *((None, middle), (None, middle + 60), (None, middle + 30)),
    ):
        wanted = RunFilter(model, key, state, odd, before=before, since=since, until=until)
        expected = [row.id for row in rows if is_wanted(row, wanted)]
        assert [row.id for row in store.page(wanted, 300)] == expected, wanted
        assert [row.id for row in store.page(wanted, 5)] == expected[:5], wanted


def test_one_of_a_chunk_is_deleted_and_then_the_others(store, tmp_path):
    runs = [run(number / 1000) for number in range(3)]
    store.add(runs)
    whole = store.bytes

    assert store.delete(runs[1].id)
    assert not store.delete(runs[1].id)
    assert [row.id for row in store.page(RunFilter(), 5)] == [runs[2].id, runs[0].id]
    assert store.get(runs[1].id) is None
    assert 0 < store.bytes < whole
    assert store.delete(runs[0].id)
    assert store.delete(runs[2].id)
    assert (store.bytes, counts(tmp_path, "chunks", "chunk_kinds")) == (0, [0, 0])


def test_pruning_removes_chunks_and_rows_by_age_and_then_by_size(store, tmp_path):
    period = PERIOD_MS / 1000
    plain = [run(number * period) for number in range(40)]
    odd = [run(number * period + 1, state="failed") for number in range(40)]
    store.add([*plain, *odd])

    assert store.prune(older_than=START + 10 * period, most_bytes=10**9) == 20
    assert {row.id for row in store.page(RunFilter(), 100)} == {each.id for each in (*plain[10:], *odd[10:])}
    store.prune(older_than=0.0, most_bytes=store.bytes // 2)
    left = {row.id for row in store.page(RunFilter(), 100)}
    assert plain[-1].id in left
    assert odd[-1].id in left
    assert plain[10].id not in left
    assert odd[10].id not in left
    assert store.prune(older_than=0.0, most_bytes=0) == len(left)
    assert (store.bytes, counts(tmp_path, "runs", "chunks", "chunk_kinds")) == (0, [0, 0, 0])


def test_a_run_whose_clock_was_set_after_its_id_was_made_has_a_row_of_its_own(store, tmp_path):
    runs = [run(0.001), run(0.002, began=START + 3600), run(0.003)]
    chunks, others = chunked(runs)
    assert (chunks, others) == ([], runs)
    store.add(runs)
    assert counts(tmp_path, "runs", "chunks") == [3, 0]
    assert store.page(RunFilter(), 1)[0].id == runs[1].id


def test_what_an_index_has_to_know_of_a_run_keeps_it_out_of_chunks(store, tmp_path):
    row = RunRow(run(1).id, START + 1, state="answered")
    store.add(
        [
            run(0, state="failed"),
            run(2, replay_of="run_1"),
            PackedRun.of(row, happened(row), {"request": "{}"}),
        ]
    )
    assert counts(tmp_path, "runs", "chunks") == [3, 0]


def test_a_file_of_format_2_that_is_only_read_has_no_chunks(tmp_path):
    with contextlib.closing(RunStore(tmp_path)) as store:
        store.add([run(0, state="failed")])
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as database:
        database.executescript("DROP TABLE chunk_kinds; DROP TABLE chunks; PRAGMA user_version = 2")
    with contextlib.closing(RunStore(tmp_path, read_only=True)) as reader:
        [found] = reader.page(RunFilter(), 5)
        assert (found.id, reader.get(run(1).id)) == (run(0).id, None)
        assert reader.page(RunFilter(key="alice"), 5) == []
    with contextlib.closing(RunStore(tmp_path)) as store:
        store.add([run(1)])
        assert [row.id for row in store.page(RunFilter(), 5)] == [run(1).id, run(0).id]


def test_a_run_that_two_processes_recorded_is_listed_once_on_full_pages_and_deleted_everywhere(store):
    runs = [run(number) for number in range(6)]
    store.add(runs[:4])
    store.add(runs[2:])
    wanted, seen = RunFilter(), []
    for _ in range(3):
        page = store.page(wanted, 2)
        seen += [row.id for row in page]
        wanted = RunFilter(before=page[-1].began, before_id=page[-1].id)
    assert seen == [each.id for each in reversed(runs)]
    assert store.delete(runs[3].id)
    assert store.get(runs[3].id) is None
    assert runs[3].id not in {row.id for row in store.page(RunFilter(), 10)}


@pytest.mark.parametrize("moment", [1e308, -1e308])
def test_a_moment_that_no_run_can_have_is_a_filter_as_any_other(store, moment):
    store.add([run(0)])
    assert len(store.page(RunFilter(until=moment), 5)) == (moment > 0)
    assert len(store.page(RunFilter(since=moment), 5)) == (moment < 0)
    assert len(store.page(RunFilter(before=moment), 5)) == (moment > 0)
