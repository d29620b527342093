"""A usual run that is kept as what happened reads as any other run."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.recorder.ended_run import decoded_events, encode
from callgate.recorder.events import read_events
from callgate.recorder.recording import RunRecording
from callgate.recorder.usual_run import keep_usual_fast, read_usual
from callgate.untrusted.doors import TooMuch
from tests.recorder.recorded_cases import ANSWER, CASES, NOTHING_KEPT, TOOL_TURN, recording_of

POOL = [event for _, events, _ in CASES.values() for event in events]
USUAL = {"nothing happened", "an answer", "a tool turn", "all facts of a request", "two choices"}


def is_kept(recording: RunRecording) -> bool:
    """Return whether a run is kept as what happened, and compare what is read of it with what is read of any other."""
    plain = read_events(recording, recording.row, recording.happened)
    kept = keep_usual_fast(recording, recording.row, recording.happened)
    if kept is None:
        return False
    usual, notes = kept
    read = read_usual(usual)
    assert msgspec.json.encode(read.row) == msgspec.json.encode(plain.row)
    assert decoded_events(encode(read.events)) == decoded_events(encode(plain.events))
    assert (list(notes), read.outcomes, read.tells_texts) == (plain.hour_notes, plain.outcomes, plain.tells_texts)
    assert read.hour_notes == plain.hour_notes
    return True


@pytest.mark.parametrize("name", CASES)
def test_each_case_reads_alike_and_the_usual_ones_are_kept_as_what_happened(name: str) -> None:
    is_usual = is_kept(recording_of(0, *CASES[name]))
    if name in USUAL:
        assert is_usual


@given(st.lists(st.sampled_from(POOL) | st.sampled_from([*ANSWER, *TOOL_TURN]), max_size=12), st.integers(1, 3))
def test_a_usual_run_reads_as_any_other_whatever_happens_in_which_order(events, choices):
    is_kept(recording_of(1, NOTHING_KEPT, events, {"choices": choices}))


def test_nothing_that_was_said_is_kept_of_a_usual_run() -> None:
    recording = recording_of(0, *CASES["a tool turn"])
    kept = keep_usual_fast(recording, recording.row, recording.happened)
    assert kept is not None
    assert b"planted-secret" not in kept[0]
    assert b"noon" not in kept[0]


@pytest.mark.parametrize("damaged", [b"", b"x", b"\x93\x80\x00\x90"])
def test_a_damaged_run_is_told(damaged: bytes) -> None:
    with pytest.raises((msgspec.DecodeError, TooMuch)):
        read_usual(damaged)
