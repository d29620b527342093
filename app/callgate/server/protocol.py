"""Makes the connections of one server, and has their shared state: limits, the order of closing for others, one timer."""

import asyncio
from contextvars import Context
from math import inf
from typing import TYPE_CHECKING, Any, Final

from uvicorn.config import Config
from uvicorn.server import ServerState

from callgate.server.connection import ServerConnection
from callgate.server.limits import PROMPT_SECONDS, RESERVE_SECONDS, ConnectionLimits

if TYPE_CHECKING:
    from collections.abc import Sequence

SWEEP_SECONDS: Final = 0.5
"""How often the deadlines of all connections are checked, and so their precision. A timer for each connection would be set
and cancelled several times per request."""
SWEEPS_A_LIMIT: Final = 4
"""The least number of checks within a short deadline."""


class ProtocolFactory:
    """Makes the connections of one server, and has their shared state."""

    def __init__(self, limits: ConnectionLimits | None = None) -> None:
        self.limits = limits or ConnectionLimits()
        self.draining = False
        """Set when the server drains: only health checks are answered then."""
        self.connections: set[ServerConnection] = set()
        self.idle: dict[ServerConnection, None] = {}
        """Idle connections, the longest idle first; they are closed for new ones if necessary."""
        self.awaiting_head: dict[ServerConnection, None] = {}
        """Connections that have not sent a request yet, the oldest first. They are closed for new ones as well."""
        shortest = min(self.limits.header_seconds, self.limits.body_seconds, self.limits.idle_seconds)
        self._sweep_seconds = min(SWEEP_SECONDS, shortest / SWEEPS_A_LIMIT)
        self._sweeping: asyncio.TimerHandle | None = None
        self._standing_headers: Sequence[tuple[bytes, bytes]] = ()
        self._standing_lines = b""

    def protocol(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> ServerConnection:
        """Make one connection. uvicorn calls this in place of a protocol class."""
        return ServerConnection(self, config, server_state, app_state, _loop or asyncio.get_running_loop())

    def enter(self, connection: ServerConnection) -> None:
        self.connections.add(connection)
        self.awaiting_head[connection] = None
        if self._sweeping is None:
            self._sweep_again(connection.loop)

    def leave(self, connection: ServerConnection) -> None:
        self.connections.discard(connection)
        self.idle.pop(connection, None)
        self.awaiting_head.pop(connection, None)
        if not self.connections and self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None

    def free_a_place(self, now: float) -> bool:
        """Close a connection for a new one if possible: one that sends its request too slowly, else an idle one, else the next
        slowest."""
        slowest = next(iter(self.awaiting_head), None)
        waited = -inf if slowest is None else now - slowest.connected_since
        if slowest is not None and waited >= (RESERVE_SECONDS if self.idle else PROMPT_SECONDS):
            closed = slowest
        elif self.idle:
            closed = next(iter(self.idle))
        else:
            return False
        self.idle.pop(closed, None)
        self.awaiting_head.pop(closed, None)
        closed.give_way()
        return True

    def standing_lines(self, headers: "Sequence[tuple[bytes, bytes]]") -> bytes:
        """Return the header lines of every response, such as the date. uvicorn makes a new list every second."""
        if headers is not self._standing_headers:
            self._standing_headers = headers
            self._standing_lines = b"".join(b"\r\n%b: %b" % header for header in headers)
        return self._standing_lines

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        self._sweeping = None
        try:
            for connection in [one for one in self.connections if one.due <= now or one.stalled <= now]:
                connection.time_is_up(now)
        finally:  # an error at one connection must not stop the timer
            if self.connections:
                self._sweep_again(loop)

    def _sweep_again(self, loop: asyncio.AbstractEventLoop) -> None:
        # In an empty context, because the timer would otherwise keep the context of the request that started it.
        self._sweeping = loop.call_later(self._sweep_seconds, self._sweep, loop, context=Context())
