"""Makes the connections of one server, and keeps what they share: limits, the order of giving way, one timer."""

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
"""How often the clocks of all connections are looked at, and so how late one of them may be. A timer for each connection
would be set and cancelled several times a request."""
SWEEPS_A_LIMIT: Final = 4
"""Limits that are short are looked at so often in their time."""


class ProtocolFactory:
    """Makes the connections of one server, and holds what they share."""

    def __init__(self, limits: ConnectionLimits | None = None) -> None:
        self.limits = limits or ConnectionLimits()
        self.draining = False
        """Set when the server drains: from now on only health is answered."""
        self.connections: set[ServerConnection] = set()
        self.idle: dict[ServerConnection, None] = {}
        """Connections between two requests, the longest idle first; they give way when it is needed."""
        self.awaiting_head: dict[ServerConnection, None] = {}
        """Connections that have not yet said what they want, the oldest first. Clients say it at once: of those that take
        longer there is a flood, or something is wrong with them, and they give way as well."""
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
        """One connection; what uvicorn calls where it would call a protocol class."""
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
        """Close a connection that nobody will miss, if there is one: a slow one, else an idle one, else the next slowest."""
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
        """The header lines of every answer, of which the date is one. The server makes the list anew every second."""
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
        finally:  # whatever is wrong with one of them, the clocks of the others go on
            if self.connections:
                self._sweep_again(loop)

    def _sweep_again(self, loop: asyncio.AbstractEventLoop) -> None:
        # A context of its own: a sweep that was begun by a request would remember it for ever.
        self._sweeping = loop.call_later(self._sweep_seconds, self._sweep, loop, context=Context())
