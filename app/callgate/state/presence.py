"""Heartbeats of the processes that share a ledger, and the cleanup after dead ones."""

import asyncio
import time
from collections.abc import Callable
from math import inf
from typing import Final

import structlog

from callgate.state.database import Database, DatabaseAway
from callgate.telemetry.outages import Outage

BEATS: Final = 10
"""Heartbeats and checks for dead processes within the time after which a process is taken for dead. A process that died just
after its heartbeat is found one check later, and its calls have to be ended within a second of that time, half of which is
left for the statements."""

NEVER: Final = 1e15
"""Seconds of silence that no process reaches: only processes that left in order are dead."""

_OTHERS: Final = "SELECT name FROM processes WHERE seen_at > {now} - CAST(?1 AS {real}) AND name <> ?2 AND kind = ?3"

log = structlog.get_logger("callgate.ledger")


class Presence:
    """Writes the heartbeats of one process, and ends the calls of dead ones as `unknown`."""

    def __init__(
        self,
        database: Database,
        process: str,
        dead_after: float,
        on_lost: Callable[[int], None],
        version: str = "",
        kind: str = "proxy",
    ) -> None:
        """`on_lost` is called with the number of calls that became unknown, if any."""
        self._database = database
        self.process = process
        self._kind = kind
        self._version = version
        self.dead_after = dead_after
        self._on_lost = on_lost
        self._task: asyncio.Task[None] | None = None
        self.is_away = False
        self._outage = Outage()
        self._reachable_since = self._beat_at = inf, inf
        self._away = NEVER

    def silence(self) -> float:
        """Seconds of silence after which a process is taken for dead.

        While this process cannot write heartbeats no process is, because perhaps none of them can. Afterwards the time is longer
        for a while, by the length of the outage. At the start it is unknown whether there was one."""
        if self._database.sees_deaths:
            return self.dead_after
        if self.is_away or _since(self._beat_at) > self.dead_after / 2:
            return NEVER
        return self.dead_after + self._grace()

    def _grace(self) -> float:
        if _since(self._reachable_since) >= self.dead_after:
            return 0.0
        return self._away

    async def open(self) -> None:
        """Write the first heartbeat, and go on writing them."""
        await self._try_to_look()
        self._task = asyncio.create_task(self._keep_looking(), name="presence")

    async def close(self) -> None:
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait({self._task})
        try:
            await self._database.leave(self.process)
        except DatabaseAway as error:
            log.warning("process_not_signed_off", error=str(error))

    async def others(self) -> int:
        """Return the number of other living processes of this kind."""
        return len(await self._database.fetch(_OTHERS, self.dead_after, self.process, self._kind))

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(self.dead_after / BEATS)
            await self._try_to_look()

    async def _try_to_look(self) -> None:
        try:
            await self._look()
            self.is_away = False
            if failures := self._outage.over():
                log.warning("ledger_back", failures=failures)
        except DatabaseAway as error:
            if failures := self._outage.failed():
                log.error("ledger_away", error=str(error), failures=failures)  # noqa: TRY400 - the reason is all there is to say
            self.is_away = True

    async def _look(self) -> None:
        news = await self._database.beat(self.process, self._kind, self._version)
        now = time.monotonic(), time.time()
        if self._beat_at[0] == inf:
            self._reachable_since = now
        elif self.is_away or _since(self._beat_at) > self.dead_after / 2:
            # Including the last outage, if it is recent.
            self._away = self._grace() + _since(self._beat_at)
            self._reachable_since = now
        self._beat_at = now
        if not news:
            return
        lost = await self._database.mark_lost(self.silence())
        unknown = [state for [state] in lost].count("unknown")
        if unknown:
            self._on_lost(unknown)


def _since(then: tuple[float, float]) -> float:
    """Return the seconds since then, by the clock with the larger result, because one stops while a machine sleeps."""
    return max(time.monotonic() - then[0], time.time() - then[1])
