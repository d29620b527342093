"""What is printed of runs stays the same, byte for byte, however they are recorded and whichever format their file has."""

import contextlib
import sqlite3
from pathlib import Path

import msgspec
import pytest

from callgate.recorder.routes.run_facts import facts_of
from callgate.recorder.run_filter import RunFilter
from callgate.recorder.store import FILE, RunStore, set_aside_older
from tests.recorder.recorded_cases import CASES, NOON, OLD_FILE, RECORDED, printed, recording_of, write_cases


def test_all_that_is_printed_of_runs_is_what_format_4_had(tmp_path: Path) -> None:
    with contextlib.closing(RunStore(tmp_path)) as store:
        write_cases(store)
        assert printed(store) == RECORDED.read_text().splitlines()


def test_a_file_of_format_4_is_read_as_it_is_and_written_to(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as database:
        database.executescript(OLD_FILE.read_text())
    recorded = RECORDED.read_text().splitlines()
    with contextlib.closing(RunStore(tmp_path, read_only=True)) as store:
        assert printed(store) == recorded  # as the command line does where no server has opened it yet
    assert set_aside_older(tmp_path) is None
    with contextlib.closing(RunStore(tmp_path)) as store:
        assert printed(store) == recorded
        bytes = store.bytes()
        new, _ = recording_of(99, *CASES["a tool turn"]).encode()
        store.add([new])
        assert store.bytes() > bytes
        assert [row.id for row in store.page(RunFilter(), 1)] == [new.id]
        assert store.delete(new.id)
        assert store.bytes() == bytes
    for read_only in (True, False):
        with contextlib.closing(RunStore(tmp_path, read_only=read_only)) as store:
            assert printed(store) == recorded
    with contextlib.closing(RunStore(tmp_path)) as store:
        assert store.prune(older_than=NOON + 1000, most_bytes=10**9) == len(CASES)
        assert store.bytes() == 0


@pytest.mark.parametrize("name", CASES)
def test_a_run_is_printed_alike_before_it_is_written(name: str) -> None:
    number = list(CASES).index(name)
    recording = recording_of(number, *CASES[name])
    row_now = recording.row_now()
    now = recording.recorded_now()
    recording.encode()
    assert recording.ended is not None
    ended = recording.ended.recorded()
    lines = [
        msgspec.json.encode([name, facts_of(run.row), run.events, run.content]).decode()
        for run in (now, recording.recorded_now(), ended)
    ]
    assert lines == [RECORDED.read_text().splitlines()[number]] * 3
    if not recording.has_texts:
        assert facts_of(row_now) == facts_of(ended.row)
