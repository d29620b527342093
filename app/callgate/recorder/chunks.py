"""Plain runs as they stand in the file: as many as end together are one row, which takes a tenth of the time that a row and its
indexes take for each of them.

All runs of a chunk began in the same period, by their ids and by the clock, so that a run is found without an index of ids.
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import Final

import msgspec

from callgate.recorder.packed import KeptRun, PackedRun

CHUNK_RUNS: Final = 64
"""In one chunk, at most. More would make a row cheaper still, and a list of the runs of a rare key slower."""
PERIOD_MS: Final = 0x10000
"""A minute and a little: the last four digits of the eleven in which an id counts milliseconds."""
PREFIX: Final = "run_"
"""Of an id, before the time."""


class Chunk(msgspec.Struct, gc=False):
    """Plain runs that began in one period, sorted by id."""

    period: str
    first_id: str
    last_id: str
    since: float
    until: float
    """When the first and the last of them began."""
    runs: Sequence[PackedRun]

    @property
    def kinds(self) -> set[tuple[str, str, str]]:
        """Every key, model and state that occur together."""
        return set(map(_kind, self.runs))


_id = attrgetter("id")
_began = attrgetter("began")
_kind = attrgetter("key", "model", "state")


def chunked(runs: Sequence[PackedRun]) -> tuple[list[Chunk], list[PackedRun]]:
    """Plain runs in as few chunks as may be; and those in none, because the clock was set between their ids and their beginning."""
    runs = sorted(runs, key=_id)
    chunks: list[Chunk] = []
    others: list[PackedRun] = []
    at = 0
    while at < len(runs):
        period = period_of_id(runs[at].id)
        end = min(at + CHUNK_RUNS, len(runs))
        while period_of_id(runs[end - 1].id) != period:
            end -= 1
        some = runs[at:end]
        times = list(map(_began, some))
        since, until = min(times), max(times)
        if period_of(since) == period_of(until) == period:
            chunks.append(Chunk(period, some[0].id, some[-1].id, since, until, some))
        else:
            others += some
        at = end
    return chunks, others


def period_of_id(id: str) -> str:
    """The period in which an id was made, which it begins with."""
    return id[: len(PREFIX) + 7]


def period_of(moment: float) -> str:
    return f"{PREFIX}{int(moment * 1000) // PERIOD_MS:07x}"


def end_of_period(moment: float) -> float:
    """The end of the period that a moment is in."""
    return (int(moment * 1000) // PERIOD_MS + 1) * PERIOD_MS / 1000


decode_chunk: Final = msgspec.msgpack.Decoder(list[KeptRun]).decode
