"""Writes the heartbeat of a worker, and ends calls without a living process.

Runs in a thread of the worker's main process with its own event loop, so that a busy tool cannot delay it.
"""

import asyncio
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from typing import Final

import structlog

from callgate import __version__
from callgate.config.schema.whole import Config
from callgate.state.cluster.postgres import PostgresDatabase
from callgate.state.database import DatabaseAway
from callgate.state.fleet_calls import FleetLedger
from callgate.state.presence import BEATS
from callgate.telemetry.outages import Outage

LONGEST_BEAT: Final = 1.0

log = structlog.get_logger("callgate.worker")


class Watch:
    """Writes the heartbeats of one worker."""

    def __init__(self, config: Config, worker: str, pools: Sequence[str]) -> None:
        assert config.ledger.url is not None
        self._config = config
        self._worker = worker
        self._pools = pools
        self._database = PostgresDatabase(config.ledger.url.get_secret_value(), config.ledger.namespace, connections=1)
        self.keys: Mapping[str, bytes] = {}
        """The keys of its pools, once it is open."""
        self._first = threading.Event()
        self._why: DatabaseAway | None = None
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def open(self) -> None:
        """Wait until the worker is in the ledger. Raises `DatabaseAway`."""
        self._thread.start()
        self._first.wait()
        if self._why is not None:
            raise self._why

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._cancel)
        self._thread.join(self._config.runs.dead_after_seconds)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._whole_life())

    async def _whole_life(self) -> None:
        self._task = asyncio.ensure_future(self._watch())
        await asyncio.wait([self._task])
        if not self._task.cancelled() and (error := self._task.exception()) is not None:
            # Without heartbeats this worker would begin calls that are taken for lost.
            log.error("worker_not_seen", exc_info=error)
            self._first.set()
            os.kill(os.getpid(), signal.SIGTERM)

    async def _watch(self) -> None:
        dead_after = self._config.runs.dead_after_seconds
        ledger = FleetLedger(self._database, self._worker, dead_after)
        try:
            await self._database.open()
            self.keys = {pool: await ledger.key(pool) for pool in self._pools}
            await self._beat()
        except DatabaseAway as away:
            self._why = away
            return
        finally:
            self._first.set()
        outage = Outage()
        try:
            while True:
                await asyncio.sleep(min(dead_after / BEATS, LONGEST_BEAT))
                try:
                    await self._beat()
                    if failures := outage.over():
                        log.warning("fleet_ledger_back", failures=failures)
                    for id, child in await ledger.running_here():
                        if not _is_there(child):
                            log.error("fleet_process_lost", pid=child)
                            await ledger.child_gone(id, child)
                except DatabaseAway as away:
                    if failures := outage.failed():
                        log.warning("fleet_ledger_away", error=str(away), failures=failures)
        finally:
            try:
                await self._database.leave(self._worker)
            except DatabaseAway as away:
                log.warning("process_not_signed_off", error=str(away))
            await self._database.close()

    async def _beat(self) -> None:
        await self._database.beat(self._worker, f"worker:{','.join(self._pools)}", __version__)


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
