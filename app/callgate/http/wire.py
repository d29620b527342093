"""Records the bytes of providers' answers as they come over the wire."""

from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from typing import Final, Protocol, TypeAlias

Take: TypeAlias = Callable[[bytes], None]


class Wire(Protocol):
    """Receives the bytes of providers' answers."""

    def begin(self) -> Take:
        """Another answer begins; what is returned is given each read of its body."""
        ...


WIRE: Final[ContextVar[Wire | None]] = ContextVar("wire", default=None)
"""Who records the answers that are asked for in this context."""


def recorded_on_wire(reads: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The reads of a body, each also given to whoever records."""
    wire = WIRE.get()
    return reads if wire is None else _RecordedReads(reads, wire.begin())


def record_on_wire(body: bytes) -> None:
    """A body that was read in one piece."""
    if (wire := WIRE.get()) is not None:
        wire.begin()(body)


class _RecordedReads:
    """No async generator: a reader that stops half way leaves nothing open."""

    def __init__(self, reads: AsyncIterator[bytes], take: Take) -> None:
        self._reads = reads
        self._take = take

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        data = await self._reads.__anext__()
        self._take(data)
        return data
