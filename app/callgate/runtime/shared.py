"""The resources that outlive any one runtime: recorder, ledger, stores, metrics."""

import asyncio
from typing import TYPE_CHECKING

import structlog

from callgate.auth.key_store import KeyStore
from callgate.auth.limits import Limiter, MemoryLimiter
from callgate.auth.sealing import Sealer
from callgate.config.schema import Config
from callgate.ledger.database import Database
from callgate.ledger.entry import Ledger, NoLedger
from callgate.ledger.fleet_calls import FleetLedger
from callgate.ledger.shared import SharedLedger
from callgate.runtime.approval_notices import ApprovalNotices
from callgate.runtime.builders.access import admission_of, key_store_of, limiter_of, shared_places_of
from callgate.runtime.builders.limits import processes_of, threads_of
from callgate.runtime.builders.stores import fleet_of, ledger_of, opened_sealer, pins_of, recorder_of
from callgate.runtime.ledger_pins import LedgerPins
from callgate.runtime.shared_approvals import SharedApprovals
from callgate.runtime.tracing import Tracing
from callgate.telemetry.metrics import Metrics
from callgate.telemetry.tool_servers import ToolServers
from callgate.tools.approvals import ApprovalQueue, PendingApproval, SettledApproval
from callgate.tools.listing import source_facts
from callgate.tools.read_more import ResultStore
from callgate.tools.source_pool import SourcePool
from callgate.tools.source_supervisor import SourceState, SourceStatus

if TYPE_CHECKING:
    from callgate.runtime.ledger_keys import LedgerKeys
    from callgate.tools.http_client import Web

audit = structlog.get_logger("callgate.audit")
log = structlog.get_logger("callgate.store")
log_of_runs = structlog.get_logger("callgate.recorder")

RECORDING_SECONDS = 2.0
"""For runs to be written at the end. A file that is locked must not keep the ledger from being closed."""


class SharedResources:
    """The resources that outlive any one runtime: queues, counters and stores stay across a reload."""

    def __init__(self, config: Config) -> None:
        self.metrics = Metrics()
        self.places = shared_places_of(config)
        self.admission = admission_of(config, self.places)
        self.metrics.in_flight.set_function(lambda: self.admission.all.running)
        self.keys: KeyStore | LedgerKeys | None = None
        self._sealer: Sealer | None = None
        self.ledger: Ledger = NoLedger()
        self.shared_ledger: SharedLedger | None = None
        self.limiter: Limiter = MemoryLimiter()
        self.servers = ToolServers(self.metrics)
        self.pins = pins_of(config, self.servers)
        self._ledger_pins: LedgerPins | None = None
        self.sources = SourcePool(self._report_source)
        self.kept_results = ResultStore()
        self.recorder = recorder_of(config, self.metrics)
        self.tracing = Tracing(self.metrics, self.recorder)
        self.approval_notices = ApprovalNotices(self.metrics, self.recorder, self.web)
        self.approvals = ApprovalQueue(self._approval_settled, on_waiting=self._approval_waits)
        self.decisions = SharedApprovals(self.approvals)
        self._web: Web | None = None
        self.threads = threads_of(config)
        self.processes = processes_of(config)
        self.fleet = fleet_of(config, _warn_of_lost)
        self._config = config

    def web(self) -> "Web":
        """Return the HTTP clients of tools, made for the first tool that needs one."""
        if self._web is None:
            from callgate.tools.http_client import Web

            self._web = Web()
        return self._web

    @property
    def sealer(self) -> Sealer:
        assert self._sealer is not None, "it is not open"
        return self._sealer

    def database(self) -> Database | None:
        """Return the database of the ledger, if it is open."""
        return None if self.shared_ledger is None else self.shared_ledger.database

    async def open(self) -> None:
        """Open files and databases. If that fails the server does not start."""
        self._sealer = opened_sealer(self._config)
        self.shared_ledger = shared = await ledger_of(self._config, _warn_of_lost)
        if shared is not None:
            self.ledger = shared.calls
        if self.fleet is not None and shared is not None:
            from callgate.ledger.postgres import PostgresLedger

            assert isinstance(shared.calls, PostgresLedger), "pools need `ledger.url`"
            ledger = FleetLedger(shared.database, shared.calls.process, shared.presence.dead_after)
            await self.fleet.open(ledger, shared.calls, shared.presence)
        if shared is not None and self._config.ledger.url is not None and (others := await shared.presence.others()):
            if self._config.store.redis_url is None:
                log.warning("store_not_shared", others=others)
            if self._sealer.source != "environment":
                log.warning("secret_not_shared", others=others, todo="give all of them the same CALLGATE_SECRET")
        self.decisions.use(shared)
        if shared is not None and self._config.ledger.url is not None:
            self._ledger_pins = LedgerPins(shared.database, self.pins)
            await self._ledger_pins.open()
        self.recorder.open()
        self.limiter = limiter_of(self._config, shared)
        self.keys = await key_store_of(self._config, shared)

    async def close(self) -> None:
        if self.keys is not None:
            self.keys.close()
        await self.approval_notices.close()
        await self.decisions.close()
        if self._web is not None:
            await self._web.close()
        await self.processes.close()
        self.threads.close()
        try:
            async with asyncio.timeout(RECORDING_SECONDS):
                await self.recorder.close()
        except TimeoutError:
            why = f"not written {RECORDING_SECONDS:g} s after the server was to end"
            log_of_runs.error("runs_not_recorded", reason=why)  # noqa: TRY400 - the reason says all there is
        if self.fleet is not None:
            await self.fleet.close()
        await self.limiter.close()
        await self.admission.close()
        if self.places is not None:
            await self.places.close()
        if self._ledger_pins is not None:
            await self._ledger_pins.close()
        if self.shared_ledger is not None:
            await self.shared_ledger.close()
        await self.tracing.close()  # last, because the collector may not answer

    def _approval_waits(self, asked: PendingApproval) -> None:
        self.approval_notices.waiting(asked)
        self.decisions.began(asked)

    def _approval_settled(self, settled: SettledApproval) -> None:
        self.approval_notices.settled(settled)
        self.decisions.ended(settled)

    def _report_source(self, status: SourceStatus) -> None:
        match status.state:
            case SourceState.READY:
                self.servers.ready(status.name, status.kind)
            case SourceState.DOWN:
                self.servers.down(status.name, status.kind, status.error, status.failures)
            case _:
                return
        self.recorder.publish("server", source_facts(status))


def _warn_of_lost(count: int) -> None:
    audit.warning("tool_runs_unfinished", count=count)
