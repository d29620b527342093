"""The limits of a connection: those that are settings, and those that are not."""

from dataclasses import dataclass
from typing import Final

from callgate.api.middleware import OPEN_PATHS

ALWAYS_ANSWERED: Final = OPEN_PATHS
"""Health: answered at any load, and while the server drains."""

RESERVE_SECONDS: Final = 1.0
"""How long a connection of the reserve may take for the head of its request."""
PROMPT_SECONDS: Final = 0.25
"""Clients send their request with the connection. One that has not by then gives way to a new connection; before, a burst
of honest clients would push each other out."""
LOWEST_RATE: Final = 1024
"""Bytes a second that a body has to make on average. A gap is measured from byte to byte, so drops could fall for ever."""
LINGER_SECONDS: Final = 1.0
"""After a refusal we still listen, because closing on unread bytes resets the connection and takes the refusal along."""
LINGER_BYTES: Final = 1024 * 1024
MAX_PIPELINED: Final = 32
"""Requests sent ahead of their answers. No client of ours does it; one read could bring thousands."""
FRAMING_PER_BYTE: Final = 8
"""Bytes of chunk framing for one of the body: a chunk of one byte has five. What is beyond are extensions and trailers."""
HELD_BYTES: Final = 65_536
"""Of a body that the application has not asked for. Beyond it the client is made to wait."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits of one connection."""

    header_bytes: int = 65_536
    header_seconds: float = 10.0
    """From the connection, or from the first byte of a further request, until the headers are whole."""
    body_seconds: float = 10.0
    """The longest gap while a body comes."""
    idle_seconds: float = 75.0
    """How long a connection is kept between two requests."""
    connections: int = 2000
    reserve: int = 256
    """Connections beyond that which are still read, so that a probe finds an answer; everybody else gets a 503."""
