"""Groups plain runs that ended together into chunks. A chunk is one row of the file: writing it takes a tenth of the time that
a row and its index entries take for each run.

All runs of a chunk began in the same period, by their ids and by the clock. A run is found by that period, without an index of ids.
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import Final

import msgspec

from callgate.recorder.packed import KeptRun, PackedRun

CHUNK_RUNS: Final = 64
"""The most runs in one chunk. With more, writing is cheaper, and listing the runs of a rare key is slower."""
PERIOD_MS: Final = 0x10000
"""About 65 seconds: the last four of the eleven hexadecimal digits of milliseconds in an id."""
FARTHEST: Final = 1e12
"""Seconds from 1970. Filters by later and earlier moments are taken for this one."""
PREFIX: Final = "run_"
"""The beginning of an id, before the time."""


class Chunk(msgspec.Struct, gc=False):
    """Plain runs that began in one period, sorted by id."""

    period: str
    first_id: str
    last_id: str
    since: float
    until: float
    """When the first and the last of its runs began."""
    runs: Sequence[PackedRun]

    @property
    def kinds(self) -> set[tuple[str, str, str]]:
        """The combinations of key, model and state in its runs."""
        return set(map(_kind, self.runs))


_id = attrgetter("id")
_began = attrgetter("began")
_kind = attrgetter("key", "model", "state")


def chunked(runs: Sequence[PackedRun]) -> tuple[list[Chunk], list[PackedRun]]:
    """Group plain runs into as few chunks as possible. Also return the runs that fit into no chunk, because the clock was
    set between the making of their ids and their beginning."""
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
    """Return the period in which an id was made: the beginning of the id."""
    return id[: len(PREFIX) + 7]


def period_of(moment: float) -> str:
    return f"{PREFIX}{int(moment * 1000) // PERIOD_MS:07x}"


def end_of_period(moment: float) -> float:
    """Return when the period of a moment ends."""
    moment = min(max(moment, -FARTHEST), FARTHEST)
    return (int(moment * 1000) // PERIOD_MS + 1) * PERIOD_MS / 1000


decode_chunk: Final = msgspec.msgpack.Decoder(list[KeptRun]).decode
