"""What the house needs of an HTTP client, and the ways it can fail. No library's types appear here.

The interface is small on purpose: one verb, a status, headers, bytes. Another implementation takes a page.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

Which: TypeAlias = Literal["connect", "first_byte", "idle", "total"]


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long an upstream may take, in seconds. Each one bounds something the others do not."""

    connect: float = 10.0
    """Name lookup, TCP and TLS."""
    first_byte: float = 300.0
    """From asking to the first byte of the answer's body: a local model may read a long prompt before it speaks."""
    idle: float = 120.0
    """Between two reads of the body."""
    total: float = 1800.0
    """The whole exchange. A slow drip passes every other limit."""


class Response(Protocol):
    """An answer whose body has not been read yet."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Names in lower case."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives, one read at a time. Only one reader."""
        ...

    async def carry(self, each: Callable[[bytes], Coroutine[Any, Any, bool]]) -> None:
        """Await `each` for one read of the body after the other, to its end or until `each` says that it has enough.

        What `each` does without having to wait for it may be done where the bytes arrive, outside of the task that
        carries: for thousands of small reads, waking that task is most of what they cost.
        """
        ...

    async def read(self, limit: int) -> bytes:
        """The whole body, or `TooLarge` when it is longer than `limit`."""
        ...

    def settle(self) -> None:
        """What was wanted has been read. What little may follow is drained aside, so that the connection can be kept."""
        ...


class Client(Protocol):
    def post(
        self, url: str, headers: Mapping[str, str], body: bytes, deadlines: Deadlines
    ) -> AbstractAsyncContextManager[Response]:
        """Leaving the context before the body's end, or being cancelled anywhere, closes the connection at once."""
        ...

    async def close(self) -> None: ...


class TransportError(Exception):
    """The exchange failed below HTTP. The text is ours and names no secret."""


class ConnectFailed(TransportError):
    """No connection was made, so nothing was asked."""


class TimedOut(TransportError):
    def __init__(self, which: Which, seconds: float) -> None:
        super().__init__(f"{which} deadline of {seconds:g} s passed")
        self.which: Which = which


class Broken(TransportError):
    """The connection was lost, or what came over it was not HTTP that we can read."""


class TooLarge(TransportError):
    def __init__(self, limit: int) -> None:
        super().__init__(f"body is longer than {limit} bytes")


# What every implementation goes by ------------------------------------------------------------------------------------

KEEP_ALIVE_SECONDS = 30.0
"""Less than what servers allow a silent connection: one that they are about to close must not be asked again."""
DRAIN_SECONDS = 0.5
DRAIN_BYTES = 65_536
"""After the end mark a server owes us no more than a chunk terminator; one that lingers loses its connection."""
COMPRESSED = "the body is compressed although that was not asked for"


async def read_whole(chunks: AsyncIterator[bytes], limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in chunks:
        size += len(part)
        if size > limit:
            raise TooLarge(limit)
        parts.append(part)
    return b"".join(parts)


def reason(error: BaseException) -> str:
    """What a library or the system says went wrong, for the log."""
    return f"{type(error).__name__}: {error}"[:300]
