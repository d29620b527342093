"""Makes the connections of one server, and has their shared state: limits, the order of closing for others, one timer."""

import asyncio
from collections import Counter
from contextvars import Context
from typing import Any, Final

import msgspec
from uvicorn.config import Config
from uvicorn.server import ServerState

from callgate.server import refusals
from callgate.server.connection import ServerConnection
from callgate.server.heads import StandingLines
from callgate.server.limits import (
    EVERYBODY,
    IN_RESERVE,
    KEYLESS_SHARE,
    LARGE_UNREAD,
    LINGERING,
    PLACED,
    PROMPT_SECONDS,
    RESERVE_SECONDS,
    TURNED_AWAY,
    UNREAD_SECONDS,
    ConnectionLimits,
)

SWEEP_SECONDS: Final = 0.5
"""How often the deadlines of all connections are checked, and so their precision. A timer for each connection would be set
and cancelled several times per request."""
SWEEPS_A_LIMIT: Final = 4
"""The least number of checks within a short deadline."""


class UnreadAnswer(msgspec.Struct):
    """What a client has not taken of its answer."""

    size: int
    read_at: float
    """When it was last seen to take some."""


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
        self.keyless: dict[ServerConnection, None] = {}
        """Connections that have not shown a key yet, the oldest first."""
        self.unread: dict[ServerConnection, UnreadAnswer] = {}
        """Connections whose clients do not take their answer at the moment."""
        self.reserve: dict[ServerConnection, None] = {}
        """Connections beyond the limit, which have no place."""
        self.lingering: dict[ServerConnection, None] = {}
        """Connections that were refused and are about to close, the oldest first. They have no place."""
        self._owned: Counter[str] = Counter()
        """How many connections each key has."""
        shortest = min(self.limits.header_seconds, self.limits.body_seconds, self.limits.idle_seconds)
        self._sweep_seconds = min(SWEEP_SECONDS, shortest / SWEEPS_A_LIMIT)
        self._sweeping: asyncio.TimerHandle | None = None
        self.standing_lines = StandingLines()

    def protocol(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> ServerConnection:
        """Make one connection. uvicorn calls this in place of a protocol class."""
        return ServerConnection(self, config, server_state, app_state, _loop or asyncio.get_running_loop())

    # -- places

    def enter(self, connection: ServerConnection, now: float) -> int:
        """Take a new connection in, and return whether it is `PLACED`, `IN_RESERVE` or `TURNED_AWAY`."""
        if self._taken() < self.limits.connections or self.free_a_place(now):
            entrance = PLACED
        elif len(self.reserve) < self.limits.reserve:
            entrance = IN_RESERVE
            self.reserve[connection] = None
        else:
            entrance = TURNED_AWAY
        self.connections.add(connection)
        self.keyless[connection] = None
        self.awaiting_head[connection] = None
        if self._sweeping is None:
            self._sweep_again(connection.loop)
        return entrance

    def leave(self, connection: ServerConnection) -> None:
        self._forget(connection)
        self.connections.discard(connection)
        self.lingering.pop(connection, None)
        if not self.connections and self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None

    def assign(self, connection: ServerConnection, owner: str) -> None:
        """Count a connection in the share of a key, and give it a place if it has none. Raises `RequestRefused`."""
        share = max(1, int(self.limits.connections * self.limits.key_share))
        if owner not in (EVERYBODY, connection.owner) and self._owned[owner] >= share and not self._close_idle(owner):
            raise refusals.too_many_of_one_key(share)
        if connection.in_reserve:
            if self._taken() >= self.limits.connections and not self.free_a_place(connection.loop.time()):
                raise refusals.too_many_connections()
            del self.reserve[connection]
            connection.in_reserve = False
        self.keyless.pop(connection, None)
        self._disown(connection)
        connection.owner = owner
        self._owned[owner] += 1

    def give_up_place(self, connection: ServerConnection) -> None:
        """Let a connection linger that was refused: it has no place, and of many the oldest is cut."""
        self._forget(connection)
        if connection not in self.connections:
            return
        self.lingering[connection] = None
        if len(self.lingering) > LINGERING:
            oldest = next(iter(self.lingering))
            del self.lingering[oldest]
            oldest.cut()

    def free_a_place(self, now: float) -> bool:
        """Close a connection for another if possible: one that does not take its answer, else one without a key where they have
        more than their share, else one that sends its request too slowly, else an idle one, else the next slowest."""
        unread = next((one for one, answer in self.unread.items() if now - answer.read_at >= UNREAD_SECONDS), None)
        if unread is not None:
            self.give_up_place(unread)
            unread.cut()
            return True
        closed = None
        if self._has_too_many_keyless():
            closed = _oldest_placed(self.keyless)
        if closed is None:
            closed = self._slowest(now) or next(iter(self.idle), None)
        if closed is None:
            return False
        closed.give_way()
        return True

    def _slowest(self, now: float) -> ServerConnection | None:
        """Return the connection that has been sending its request for too long."""
        slowest = _oldest_placed(self.awaiting_head)
        patience = PROMPT_SECONDS
        if self.idle:
            patience = RESERVE_SECONDS
        if slowest is not None and now - slowest.connected_since >= patience:
            return slowest
        return None

    def _has_too_many_keyless(self) -> bool:
        share = self.limits.connections * KEYLESS_SHARE
        return len(self.keyless) > share or len(self.reserve) >= self.limits.reserve

    def _close_idle(self, owner: str) -> bool:
        """Close the longest idle connection of a key; return whether there was one."""
        idle = next((one for one in self.idle if one.owner == owner), None)
        if idle is None:
            return False
        idle.give_way()
        return True

    def _taken(self) -> int:
        return len(self.connections) - len(self.lingering) - len(self.reserve)

    def _forget(self, connection: ServerConnection) -> None:
        """Take a connection from all lists but that of all connections."""
        self.idle.pop(connection, None)
        self.awaiting_head.pop(connection, None)
        self.keyless.pop(connection, None)
        self.reserve.pop(connection, None)
        self.unread.pop(connection, None)
        connection.in_reserve = False
        self._disown(connection)

    def _disown(self, connection: ServerConnection) -> None:
        if connection.owner is None:
            return
        self._owned[connection.owner] -= 1
        if not self._owned[connection.owner]:
            del self._owned[connection.owner]
        connection.owner = None

    # -- answers that nobody takes

    def note_unread(self, connection: ServerConnection) -> None:
        """Remember that a client does not take its answer from now on."""
        size = connection.unsent_bytes()
        self.unread[connection] = UnreadAnswer(size, connection.loop.time())
        if size >= LARGE_UNREAD:
            connection.loop.call_soon(self._limit_unread)  # not while a response is being written

    def _look_at_unread(self, now: float) -> None:
        """Note who has taken some of his answer since the last time."""
        for connection, answer in self.unread.items():
            size = connection.unsent_bytes()
            if size < answer.size:
                answer.read_at = now
            answer.size = size
        self._limit_unread()

    def _limit_unread(self) -> None:
        """Cut connections where their unread bytes are more than a key may have, or all: those first that took nothing for the
        longest. An owner's only one is left alone, however large its answer is."""
        total: Counter[str | None] = Counter()
        for connection, answer in self.unread.items():
            total[connection.owner] += answer.size
        for connection, answer in sorted(self.unread.items(), key=lambda entry: entry[1].read_at):
            owner = connection.owner
            is_too_much = total[owner] > self.limits.unread_bytes // 2 or total.total() > self.limits.unread_bytes
            if is_too_much and total[owner] > answer.size:
                total[owner] -= answer.size
                connection.cut()

    # -- deadlines

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        self._sweeping = None
        try:
            for connection in tuple(self.connections):
                if connection.due <= now or connection.stalled <= now:
                    connection.time_is_up(now)
                elif connection.is_holding_back:
                    connection.cut_if_left()
            if self.unread:
                self._look_at_unread(now)
        finally:  # an error at one connection must not stop the timer
            if self.connections:
                self._sweep_again(loop)

    def _sweep_again(self, loop: asyncio.AbstractEventLoop) -> None:
        # In an empty context, because the timer would otherwise keep the context of the request that started it.
        self._sweeping = loop.call_later(self._sweep_seconds, self._sweep, loop, context=Context())


def _oldest_placed(connections: dict[ServerConnection, None]) -> ServerConnection | None:
    """Return the first of these that has a place."""
    return next((one for one in connections if not one.in_reserve), None)
