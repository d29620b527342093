"""The limits of a connection: settings and constants."""

from typing import Final

import msgspec

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
LINGER_BYTES: Final = 16 * 1024 * 1024
LINGER_HEAD_BYTES: Final = 256 * 1024
"""The same where the head of a request was refused: no client has much to send behind one."""
LINGERING: Final = 64
"""The most connections that are read like this. The oldest of more are cut."""
UNREAD_SECONDS: Final = 1.0
"""A client that took nothing of its answer for so long is cut where a place is needed."""
LARGE_UNREAD: Final = 262_144
"""Unread bytes of one connection from which on they are added up at once, and not at the next check of deadlines."""
KEYLESS_SHARE: Final = 1 / 4
"""The part of them that may have shown no key yet, before the oldest has to go for a new one."""
EVERYBODY: Final = ""
"""The owner of all connections of a server without keys, which has no share."""
PLACED, IN_RESERVE, TURNED_AWAY = range(3)
"""What becomes of a new connection: it has a place; it is read without one; it is refused."""
MAX_PIPELINED: Final = 32
"""Requests that may be sent before earlier responses. One read could have thousands."""
FRAMING_PER_BYTE: Final = 8
"""Bytes of chunk framing for each byte of the body. A chunk of one byte has five; more are extensions and trailers."""
HELD_BYTES: Final = 65_536
"""Bytes of a body that the application has not read, beyond which reading from the socket is paused."""


class ConnectionLimits(msgspec.Struct, frozen=True):
    """The limits of one connection."""

    header_bytes: int = 65_536
    header_seconds: float = 10.0
    """From the connection, or the first byte of a further request, until the headers are complete."""
    body_seconds: float = 10.0
    """The longest gap between reads of a body."""
    idle_seconds: float = 75.0
    """How long a connection is kept between two requests."""
    connections: int = 2000
    key_share: float = 0.75
    """The part of all connections that one key may have."""
    reserve: int = 256
    """Connections beyond `connections` that are still read: health checks are answered, and a request with a key gets the place
    of a connection without one. All others get a 503."""
    unread_bytes: int = 480_000_000
    """Bytes of answers that clients do not take, of all connections. Half of them for one key."""
