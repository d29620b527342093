"""Records the bytes of providers' answers as received."""

from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from typing import Final, Protocol, TypeAlias

Take: TypeAlias = Callable[[bytes], None]


class Wire(Protocol):
    """Receives the bytes of providers' answers."""

    def begin(self) -> Take:
        """Begin the recording of an answer; return the function that takes each read of its body."""
        ...


WIRE: Final[ContextVar[Wire | None]] = ContextVar("wire", default=None)
"""The recorder of answers in this context."""


def recorded_on_wire(reads: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Return the reads of a body, each of which is also recorded."""
    wire = WIRE.get()
    return reads if wire is None else _RecordedReads(reads, wire.begin())


def record_on_wire(body: bytes) -> None:
    """Record a body that was read in one piece."""
    if (wire := WIRE.get()) is not None:
        wire.begin()(body)


class _RecordedReads:
    """An iterator, because an unfinished async generator would stay open."""

    def __init__(self, reads: AsyncIterator[bytes], take: Take) -> None:
        self._reads = reads
        self._take = take

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        data = await self._reads.__anext__()
        self._take(data)
        return data
