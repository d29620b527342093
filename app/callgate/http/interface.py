"""The types of the HTTP client: deadlines, the response, and its failures."""

import os
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Literal, Protocol, TypeAlias

import msgspec

TakeRead: TypeAlias = Callable[[bytes], bool]
"""Takes a read of a body. False where whoever iterates over the body has to go on."""
Which: TypeAlias = Literal["connect", "first_byte", "idle", "total"]


class Deadlines(msgspec.Struct, frozen=True):
    """The timeouts of an upstream request in seconds."""

    connect: float = 10.0
    """Name lookup, TCP and TLS."""
    first_byte: float = 300.0
    """From the request to the first byte of the response body; a local model may take long to read a long prompt."""
    idle: float = 120.0
    """Between two reads of the body."""
    total: float = 1800.0
    """The whole exchange; a slow stream passes the other timeouts."""


class Response(Protocol):
    """A response whose body has not been read yet."""

    @property
    def status(self) -> int: ...

    def headers(self) -> Mapping[str, str]:
        """Return them by name in lower case."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """Return the body as it arrives, one read at a time; for one reader only."""
        ...

    def hand_to(self, take: TakeRead) -> None:
        """Hand each further read to `take` when it comes, if the iteration waits for it. The iteration sleeps on, which saves all that
        waking it costs; where `take` returns False it goes on with empty bytes, which it gets for nothing else."""
        ...

    async def read(self, limit: int) -> bytes:
        """Return the whole body. Raises `TooLarge` when it is longer than `limit`."""
        ...

    def settle(self) -> None:
        """Drain the rest after an end mark, so that the connection can be reused."""
        ...

    def leave(self) -> None:
        """End the exchange. A body that was not read to its end closes the connection, unless it was settled."""
        ...


class TransportError(Exception):
    """An exchange failed below HTTP. The text contains no secrets."""


class ConnectFailed(TransportError):
    """No connection was made, so nothing was sent."""


class TimedOut(TransportError):
    def __init__(self, which: Which, seconds: float) -> None:
        super().__init__(f"{which} deadline of {seconds:g} s passed")
        self.which: Which = which


class Broken(TransportError):
    """The connection was lost, or the response is not valid HTTP."""


class Compressed(Broken):
    """The body is compressed, although the request said that it must not be."""

    def __init__(self) -> None:
        super().__init__("the body is compressed although that was not asked for")


class TooLarge(TransportError):
    def __init__(self, limit: int) -> None:
        super().__init__(f"body is longer than {limit} bytes")
        self.limit = limit


def reason(error: BaseException) -> str:
    """Return the reason of a failure as a library or the system gives it, for the log."""
    if isinstance(error, ConnectionError) and error.errno:
        return f"{type(error).__name__}: {os.strerror(error.errno)}"
    return f"{type(error).__name__}: {error}"[:300]
