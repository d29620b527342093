"""What is printed of runs stays the same, byte for byte, however they are recorded and whichever format their file has."""

import contextlib
from pathlib import Path

import msgspec
import pytest

from callgate.recorder.routes.run_facts import facts_of
from callgate.recorder.store import RunStore
from tests.recorder.recorded_cases import CASES, RECORDED, printed, recording_of, write_cases


def test_all_that_is_printed_of_runs_is_what_format_4_had(tmp_path: Path) -> None:
    with contextlib.closing(RunStore(tmp_path)) as store:
        write_cases(store)
        assert printed(store) == RECORDED.read_text().splitlines()


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
