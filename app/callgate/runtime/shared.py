"""The resources that outlive any one runtime: recorder, ledger, stores, metrics."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from callgate.config.schema.whole import Config
from callgate.models.learnt_thinking import ThinkingNotes
from callgate.parsers.building import parsers_of
from callgate.records.ports import RunRecorder, SpanExport
from callgate.runtime.access_control import AccessControl
from callgate.runtime.approval_notices import ApprovalNotices
from callgate.runtime.limits import processes_of, threads_of
from callgate.runtime.parts import ServerParts
from callgate.runtime.server_logins import ServerLogins
from callgate.runtime.widenings import Widenings
from callgate.state.building import (
    claims_of,
    fleet_of,
    ledger_of,
    open_fleet,
    opened_sealer,
    pins_of,
    warn_of_what_is_not_shared,
)
from callgate.state.entry import Ledger, NoLedger
from callgate.state.ledger import SharedLedger
from callgate.state.sealing import Sealer
from callgate.state.store import KeyValueStore
from callgate.telemetry.metrics import Metrics
from callgate.telemetry.tool_servers import ToolServers
from callgate.tools.approvals.history import ApprovalHistory
from callgate.tools.approvals.queue import ApprovalQueue, PendingApproval, SettledApproval
from callgate.tools.approvals.shared_approvals import SharedApprovals
from callgate.tools.kinds.mcp.ledger_pins import LedgerPins
from callgate.tools.listing import source_facts
from callgate.tools.read_more import ResultStore
from callgate.tools.source_pool import SourcePool
from callgate.tools.source_supervisor import SourceState, SourceStatus

if TYPE_CHECKING:
    from callgate.tools.kinds.http.client import Web

audit = structlog.get_logger("callgate.audit")
log = structlog.get_logger("callgate.store")
log_of_runs = structlog.get_logger("callgate.recorder")

THINKING = "thinking.json"
PINS_SECONDS = 5.0
"""Between two looks at what other processes have accepted, where anything is held."""
RECORDING_SECONDS = 2.0
"""For runs to be written at the end. A file that is locked must not keep the ledger from being closed."""


class SharedResources:
    """The resources that outlive any one runtime: queues, counters and stores stay across a reload."""

    def __init__(
        self,
        config: Config,
        metrics: Metrics,
        recorder: RunRecorder,
        tracing: SpanExport,
        sealer: Sealer,
        shared_ledger: SharedLedger | None,
        control: AccessControl,
        widenings: Widenings,
        parts: ServerParts,
    ) -> None:
        """Made by `open`, of what is open already."""
        self.parts = parts
        self.metrics = metrics
        self.recorder = recorder
        self.widenings = widenings
        self.sealer = sealer
        self.shared_ledger = shared_ledger
        self.ledger: Ledger = NoLedger() if shared_ledger is None else shared_ledger.calls
        self.control = control
        self.servers = ToolServers(metrics)
        self.pins = pins_of(config, self.servers)
        self.thinking = ThinkingNotes(None if config.data_dir is None else Path(config.data_dir) / THINKING)
        self.sources = SourcePool(self._report_source)
        self.kept_results = ResultStore()
        self.tracing = tracing
        self.approval_notices = ApprovalNotices(metrics, recorder, self.web)
        self.approvals = ApprovalQueue(self._approval_settled, on_waiting=self._approval_waits)
        self.decisions = SharedApprovals(self.approvals, sealer)
        self.approval_history = ApprovalHistory()
        self.threads = threads_of(config)
        self.processes = processes_of(config)
        self.parsers = parsers_of(config, self._count_failed_parser)
        self.fleet = fleet_of(config, _warn_of_lost)
        self._web: Web | None = None
        self.logins = ServerLogins(
            config, sealer, None if shared_ledger is None else shared_ledger.database, self.web, self.servers, recorder
        )
        self.logins.on_login = self.sources.hurry
        self.logins.on_another = self.sources.begin_anew

    @classmethod
    @asynccontextmanager
    async def open(
        cls, config: Config, metrics: Metrics, recorder: RunRecorder, parts: ServerParts, store: KeyValueStore
    ) -> "AsyncIterator[SharedResources]":
        """Open files and databases. If that fails the server does not start. At the end all of it is closed in the reverse order."""
        sealer = opened_sealer(config)
        async with AsyncExitStack() as stack:
            tracing = parts.recorder.spans(metrics, recorder)
            stack.push_async_callback(tracing.close)  # last, because the collector may not answer
            ledger = await ledger_of(config, _warn_of_lost)
            if ledger is not None:
                stack.push_async_callback(ledger.close)
            widenings = Widenings(metrics, recorder, claims_of(config, store, ledger))
            stack.push_async_callback(widenings.close)
            control = await stack.enter_async_context(parts.access.open(config, ledger, widenings.by_command, metrics))
            shared = cls(config, metrics, recorder, tracing, sealer, ledger, control, widenings, parts)
            await shared._open(config, stack)
            yield shared

    async def _open(self, config: Config, stack: AsyncExitStack) -> None:
        ledger = self.shared_ledger
        if ledger is not None and config.ledger.url is not None:
            await warn_of_what_is_not_shared(config, ledger, self.sealer)
            pins = LedgerPins(ledger.database, self.pins)
            await pins.open()
            stack.push_async_callback(pins.close)
            read_again = pins.read_again
        else:
            read_again = self.pins.read_again
        following = asyncio.create_task(self._follow_pins(read_again), name="accepted tools")
        stack.push_async_callback(_cancelled, following)
        if self.fleet is not None:
            if ledger is not None:
                await open_fleet(self.fleet, ledger)
            stack.push_async_callback(self.fleet.close)
        self.recorder.open()
        stack.push_async_callback(self._close_recorder)
        stack.callback(self.threads.close)
        stack.push_async_callback(self.processes.close)
        stack.push_async_callback(self.parsers.close)
        stack.push_async_callback(self._close_web)
        stack.push_async_callback(self.logins.close)
        self.decisions.use(ledger)
        stack.push_async_callback(self.decisions.close)
        stack.push_async_callback(self.approval_notices.close)

    def web(self) -> "Web":
        """Return the HTTP clients of tools, made for the first tool that needs one."""
        if self._web is None:
            from callgate.tools.kinds.http.client import Web

            self._web = Web()
        return self._web

    async def _close_web(self) -> None:
        if self._web is not None:
            await self._web.close()

    async def _close_recorder(self) -> None:
        try:
            async with asyncio.timeout(RECORDING_SECONDS):
                await self.recorder.close()
        except TimeoutError:
            reason = f"not written {RECORDING_SECONDS:g} s after the server was to end"
            log_of_runs.error("runs_not_recorded", reason=reason)  # noqa: TRY400 - the reason says all there is

    def _count_failed_parser(self, kind: str, reason: str) -> None:
        self.metrics.parser_failures.of(kind, reason).inc()

    def _approval_waits(self, approval: PendingApproval) -> None:
        self.approval_notices.waiting(approval)
        self.decisions.began(approval)

    def _approval_settled(self, settled: SettledApproval) -> None:
        self.approval_notices.settled(settled)
        self.approval_history.add(settled)
        self.decisions.ended(settled)

    def _report_source(self, status: SourceStatus) -> None:
        match status.state:
            case SourceState.READY:
                self.servers.ready(status.name, status.kind)
            case SourceState.DOWN:
                self.servers.down(status.name, status.kind, status.error)
            case _:
                return
        self.recorder.watchers.publish("server", source_facts(status))

    def report_held(self, server: str) -> None:
        """Have the page look at the tools again."""
        self.recorder.watchers.publish("server", {"name": server, "kind": "mcp", "held": len(self.pins.held(server))})

    async def _follow_pins(self, read_again: Callable[[], Awaitable[None]]) -> None:
        """Take what other processes have accepted, as long as anything is held."""
        while True:
            await asyncio.sleep(PINS_SECONDS)
            if self.pins.held():
                await read_again()


async def _cancelled(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait([task])


def _warn_of_lost(count: int) -> None:
    audit.warning("tool_runs_unfinished", count=count)
