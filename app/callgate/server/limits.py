"""The limits of a connection: settings and constants."""

from dataclasses import dataclass
from typing import Final

from callgate.api.middleware import OPEN_PATHS

ALWAYS_ANSWERED: Final = OPEN_PATHS
"""Paths for health checks, which are answered at any load, and while the server drains."""

RESERVE_SECONDS: Final = 1.0
"""How long a connection of the reserve may take for the head of its request."""
PROMPT_SECONDS: Final = 0.25
"""When a connection without a request may be closed for a new one. Clients send their request at once; a shorter time would
let a burst of clients close each other's connections."""
LOWEST_RATE: Final = 1024
"""The lowest average rate of a body in bytes per second, because the gap between reads alone allows an endless slow body."""
LINGER_SECONDS: Final = 1.0
"""How long and how much is read after an error: closing with unread bytes resets the connection, and the error is lost."""
LINGER_BYTES: Final = 1024 * 1024
MAX_PIPELINED: Final = 32
"""Requests that may be sent before earlier responses. One read could have thousands."""
FRAMING_PER_BYTE: Final = 8
"""Bytes of chunk framing for each byte of the body. A chunk of one byte has five; more are extensions and trailers."""
HELD_BYTES: Final = 65_536
"""Bytes of a body that the application has not read, beyond which reading from the socket is paused."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits of one connection."""

    header_bytes: int = 65_536
    header_seconds: float = 10.0
    """From the connection, or the first byte of a further request, until the headers are complete."""
    body_seconds: float = 10.0
    """The longest gap between reads of a body."""
    idle_seconds: float = 75.0
    """How long a connection is kept between two requests."""
    connections: int = 2000
    reserve: int = 256
    """Connections beyond `connections` that are still read, to answer health checks; all other requests get a 503."""
