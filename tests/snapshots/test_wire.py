"""Every recorded conversation, in each API and mode, has the bodies on the wire that it had."""

import pytest

from tests.recordings import Recording, load_all
from tests.snapshots import compare, wire

RECORDINGS = load_all()


@pytest.mark.anyio
@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda recording: recording.name)
async def test_the_bodies_on_the_wire_are_those_taken_down(recording: Recording) -> None:
    now = wire.snapshot(await wire.exchanges_of(recording))
    compare(wire.FOLDER / f"{recording.name}.txt", now, f"print {recording.name} [WAY]")


def test_there_is_one_file_for_each_recording() -> None:
    assert {file.stem for file in wire.FOLDER.iterdir()} == {recording.name for recording in RECORDINGS}


@pytest.mark.parametrize("other", ['{"id":"2"}', '{"id": "1"}', '{"id":"1"}\n'])
def test_what_the_lines_leave_out_is_in_the_digest(other: str) -> None:
    exchanges = {"a": wire.Exchange('{"id":"1"}', ()), "b": wire.Exchange('{"id":"1"}', ())}
    assert wire.snapshot(exchanges) != wire.snapshot(exchanges | {"b": wire.Exchange(other, ())})
