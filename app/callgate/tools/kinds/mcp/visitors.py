"""The sessions with one server of those who are themselves there: one for each, opened by its first call and closed when idle.

Two of them share nothing but the address: no connection, no list of tools, and nothing that the server remembers.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Final

from callgate.tools.kinds.mcp.sender import Visitor
from callgate.tools.kinds.mcp.server import McpSource
from callgate.tools.kinds.mcp.wire import NotSent
from callgate.tools.source_supervisor import OPEN_SECONDS, CannotOpen, MustRenew

MAX_SESSIONS: Final = 64
"""Sessions with one server; the one that was used the longest ago makes room for a new one."""
SHARE_OF_KEY: Final = 0.75
"""What part of the sessions one key may have, with all its users, so that it never shuts out the others."""
IDLE_SECONDS: Final = 300.0


class _Visit:
    """One visitor's session, from its opening to its end."""

    def __init__(self) -> None:
        self.opened: asyncio.Future[McpSource] = asyncio.get_running_loop().create_future()
        self.users = 0
        """Calls that need it at the moment."""
        self.used_at = 0.0
        self.leaving = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


class VisitorSessions:
    """The open sessions with one server."""

    def __init__(
        self,
        source_for: Callable[[Visitor], McpSource],
        *,
        most: int = MAX_SESSIONS,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._source_for = source_for
        self._most = most
        self._idle_seconds = idle_seconds
        self._visits: dict[Visitor, _Visit] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._left: set[_Visit] = set()
        """Those that get no new calls, and end with their last."""
        self._sweep: asyncio.TimerHandle | None = None

    def count(self) -> int:
        return len(self._visits)

    @contextlib.asynccontextmanager
    async def use(self, visitor: Visitor) -> AsyncIterator[McpSource]:
        """Give the server as a visitor sees it, with an open session. Raises `NeedsLogin`, `CannotOpen`, and `NotSent` where there are
        too many."""
        visit = self._visits.get(visitor) or self._begin(visitor)
        visit.users += 1
        try:
            yield await asyncio.shield(visit.opened)
        finally:
            visit.users -= 1
            if visit in self._left and not visit.users:
                self._left.discard(visit)
                visit.leaving.set()
            visit.used_at = asyncio.get_running_loop().time()
            if self._sweep is None and self._visits:
                self._sweep = asyncio.get_running_loop().call_later(self._idle_seconds, self._close_idle)

    def now(self, visitor: Visitor) -> McpSource | None:
        """Return the server as a visitor sees it, if there is an open session."""
        visit = self._visits.get(visitor)
        if visit is None or not visit.opened.done() or visit.opened.exception() is not None:
            return None
        return visit.opened.result()

    def leave(self, visitors: Iterable[Visitor]) -> None:
        """End the sessions of these with the calls that are under way; the next call of each opens another."""
        for visitor in visitors:
            visit = self._visits.get(visitor)
            if visit is None:
                continue
            if not visit.users:
                self._end(visitor)
                continue
            del self._visits[visitor]
            self._left.add(visit)
            self._ends(visit)

    def visitors(self) -> list[Visitor]:
        """Return those who have a session."""
        return list(self._visits)

    async def close(self) -> None:
        """End all sessions."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for visitor in list(self._visits):
            self._end(visitor)
        for visit in self._left:
            visit.leaving.set()
        self._left.clear()
        if self._ending:
            await asyncio.wait(self._ending)

    def _begin(self, visitor: Visitor) -> _Visit:
        key = visitor.identity.key
        of_key = [other for other in self._visits if other.identity.key == key]
        if len(of_key) >= max(1, int(self._most * SHARE_OF_KEY)):
            self._make_room(of_key)
        elif len(self._visits) >= self._most:
            self._make_room(self._visits)
        visit = self._visits[visitor] = _Visit()
        visit.task = asyncio.create_task(self._live(visitor, visit), name="session of a visitor")
        return visit

    def _make_room(self, visitors: Iterable[Visitor]) -> None:
        """End the session among these that was used the longest ago. Raises `NotSent` where all are in use."""
        unused = [visitor for visitor in visitors if not self._visits[visitor].users]
        if not unused:
            raise NotSent("all sessions with it are in use")
        self._end(min(unused, key=lambda visitor: self._visits[visitor].used_at))

    def _end(self, visitor: Visitor) -> None:
        visit = self._visits.pop(visitor)
        visit.leaving.set()
        self._ends(visit)

    def _ends(self, visit: _Visit) -> None:
        if visit.task is not None and not visit.task.done():
            self._ending.add(visit.task)
            visit.task.add_done_callback(self._ending.discard)

    async def _live(self, visitor: Visitor, visit: _Visit) -> None:
        """Open a session, wait until it is lost or not needed any more, and close it."""
        leaving = asyncio.create_task(visit.leaving.wait())
        source = self._source_for(visitor)
        try:
            await _opened(source, leaving)
        except Exception as error:  # noqa: BLE001 - whatever it was, it is for the calls that wait for the session
            self._forget(visitor, visit)
            visit.opened.set_exception(source.needs_login or error)
            visit.opened.exception()  # marks it as retrieved, where nobody waits any more
        else:
            visit.opened.set_result(source)
            await _stay(source, leaving)
            self._forget(visitor, visit)
            await source.close()
        finally:
            leaving.cancel()

    def _forget(self, visitor: Visitor, visit: _Visit) -> None:
        if self._visits.get(visitor) is visit:
            del self._visits[visitor]

    def _close_idle(self) -> None:
        self._sweep = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        next_at = float("inf")
        for visitor, visit in list(self._visits.items()):
            idle_at = visit.used_at + self._idle_seconds
            if visit.users:
                next_at = min(next_at, now + self._idle_seconds)
            elif idle_at <= now:
                self._end(visitor)
            else:
                next_at = min(next_at, idle_at)
        if self._visits:
            self._sweep = loop.call_at(next_at, self._close_idle)


async def _opened(source: McpSource, leaving: asyncio.Task[Any]) -> None:
    """Open a source, unless nobody waits for it any more. Raises `CannotOpen`."""
    opening = asyncio.create_task(source.open())
    await asyncio.wait([opening, leaving], timeout=OPEN_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    if not opening.done():
        opening.cancel()
        await asyncio.wait([opening])
    if opening.cancelled():
        raise CannotOpen("it was not opened in time")
    opening.result()


async def _stay(source: McpSource, leaving: asyncio.Task[Any]) -> None:
    """Wait until a source is lost or left. One whose server has only forgotten the session gets another."""
    while True:
        lost = asyncio.create_task(source.lost())
        await asyncio.wait([lost, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not lost.done():
            lost.cancel()
            return
        if not isinstance(lost.exception(), MustRenew):
            return
        await source.close()
        try:
            await _opened(source, leaving)
        except CannotOpen:
            return
