"""The types of the HTTP client: deadlines, the response, and its failures."""

import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

Which: TypeAlias = Literal["connect", "first_byte", "idle", "total"]


@dataclass(frozen=True, slots=True)
class Deadlines:
    """The timeouts of an upstream request in seconds. Each one bounds something the others do not."""

    connect: float = 10.0
    """Name lookup, TCP and TLS."""
    first_byte: float = 300.0
    """From asking to the first byte of the answer's body: a local model may read a long prompt before it speaks."""
    idle: float = 120.0
    """Between two reads of the body."""
    total: float = 1800.0
    """The whole exchange. A slow drip passes every other limit."""


class Response(Protocol):
    """A response whose body has not been read yet."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Names in lower case."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives, one read at a time. Only one reader."""
        ...

    async def read(self, limit: int) -> bytes:
        """The whole body, or `TooLarge` when it is longer than `limit`."""
        ...

    def settle(self) -> None:
        """Drain the little that may follow what was wanted, so that the connection can be kept."""
        ...


class TransportError(Exception):
    """The exchange failed below HTTP. The text holds no secret."""


class ConnectFailed(TransportError):
    """No connection was made, so nothing was asked."""


class TimedOut(TransportError):
    def __init__(self, which: Which, seconds: float) -> None:
        super().__init__(f"{which} deadline of {seconds:g} s passed")
        self.which: Which = which


class Broken(TransportError):
    """The connection was lost, or what came over it is not HTTP that can be read."""


class TooLarge(TransportError):
    def __init__(self, limit: int) -> None:
        super().__init__(f"body is longer than {limit} bytes")
        self.limit = limit


def reason(error: BaseException) -> str:
    """Return the reason of a failure as a library or the system gives it, for the log."""
    if isinstance(error, ConnectionError) and error.errno:
        return f"{type(error).__name__}: {os.strerror(error.errno)}"
    return f"{type(error).__name__}: {error}"[:300]
