"""Runs calls, one at a time, in a process that is killed when its call is cancelled."""

import asyncio
import contextlib
import ctypes
import os
import secrets
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec
import structlog
import uvloop

from callgate.calls.json_text import ARGUMENTS
from callgate.calls.outcome import Failed, FailureKind, Outcome, encode_outcome
from callgate.calls.states import ReadyCall
from callgate.config.schema.whole import Config
from callgate.conversation.ports import ProgressReport
from callgate.fleet.message import FleetCall, FleetReply, encode_reply, offer_of
from callgate.fleet.redis_link import RedisLink
from callgate.parsers.building import parsers_of
from callgate.runtime.limits import processes_of, threads_of
from callgate.state.cluster.postgres import PostgresDatabase
from callgate.state.database import DatabaseAway
from callgate.state.fleet_calls import FleetLedger
from callgate.telemetry.outages import Outage
from callgate.tools.building import registry_of
from callgate.tools.executor import CallContext, Source
from callgate.tools.registry import RegisteredTool
from callgate.tools.results import bounded, size_of
from callgate.tools.source_supervisor import CLOSE_SECONDS, OPEN_SECONDS, CannotOpen
from callgate.untrusted.doors import open_text
from callgate.untrusted.readers import READ_ERRORS, read_leniently

AGAIN_SECONDS: Final = 0.25
"""The delay before the ledger is asked again, until Celery ends the call at its timeout."""
LONGEST_REPLY: Final = 65_536
"""The largest outcome that is published; longer ones are read from the ledger."""
_PR_SET_PDEATHSIG: Final = 1
_UNSEEN: Final = frozenset({FailureKind.TIMEOUT, FailureKind.UNKNOWN})

log = structlog.get_logger("callgate.worker")
T = TypeVar("T")


def die_with(parent: int) -> None:
    """End this process when the worker ends, because its call would not be seen any more."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def tools_of(config: Config) -> Mapping[str, RegisteredTool]:
    """Build the tools, to run in this process. Raises `BadEntry`. What they need is not opened."""
    from callgate.tools.kinds.http.client import Web

    registry = registry_of(
        config, Web, threads_of(config), processes_of(config), parsers=parsers_of(config), shapes_results=False
    )
    return {tool.name: tool for tool in registry.tools()}


class ToolProcess:
    """The tools in one process of a worker."""

    def __init__(self, config: Config, worker: str, pools: Sequence[str]) -> None:
        """`worker`: the name of the worker in the ledger."""
        assert config.ledger.url is not None
        assert config.store.redis_url is not None
        self._config = config
        self._worker = worker
        self._pools = pools
        self._postgres = config.ledger.url.get_secret_value()
        self._redis_url = config.store.redis_url.get_secret_value()
        self._tools: Mapping[str, RegisteredTool] = {}
        self._loop: asyncio.AbstractEventLoop
        self._ledger: FleetLedger | None = None
        self._keys: Mapping[str, bytes] = {}
        """By pool."""
        self._redis: RedisLink
        self._outage = Outage()
        """Of the ledger."""
        self._services: dict[str, Source] = {}
        """What the tools need, and is open."""

    def load(self) -> None:
        """Import the tools and make the event loop, in the process that runs calls, before the first call."""
        self._loop = uvloop.new_event_loop()
        self._redis = RedisLink(self._redis_url)
        self._tools = tools_of(self._config)
        self._loop.run_until_complete(self._open_services(self._tools.values()))

    def close(self) -> None:
        """Close what the tools have open, when the process ends in order."""
        self._loop.run_until_complete(self._close_services())

    def run(self, fields: Mapping[str, Any]) -> None:
        """Run a call from Redis, if its row in the ledger can be claimed."""
        self._loop.run_until_complete(self._run(msgspec.convert(fields, FleetCall)))

    async def _run(self, fleet_call: FleetCall) -> None:
        if self._ledger is None:
            self._ledger = await self._insist(self._open_ledger)
        ledger = self._ledger
        attempt = secrets.token_hex(8)
        if fleet_call.pool not in self._keys or not fleet_call.is_signed(self._keys[fleet_call.pool]):
            log.error("fleet_message_ignored", error="the call is not signed with the key of its pool")
            return
        if not await self._insist(
            lambda: ledger.claim(
                fleet_call.key,
                offer_of(fleet_call.id),
                fleet_call.arguments_hash(),
                fleet_call.pool,
                os.getpid(),
                attempt,
            )
        ):
            log.warning("fleet_call_ignored", tool=fleet_call.tool, call_id=fleet_call.call_id)
            return
        outcome = await self._outcome(fleet_call)
        if size_of(outcome.text) > fleet_call.max_bytes:  # more is not read of any tool
            outcome = bounded(outcome, fleet_call.max_bytes)
        body = encode_outcome(outcome)
        state = "done"
        if isinstance(outcome, Failed):
            state = "unknown" if outcome.kind in _UNSEEN else "failed"
        if await self._insist(lambda: ledger.end(fleet_call.key, attempt, state, body)):
            await self._reply(
                fleet_call, FleetReply(fleet_call.id, ended=True, outcome=body if len(body) <= LONGEST_REPLY else None)
            )

    async def _outcome(self, fleet_call: FleetCall) -> Outcome:
        registered_tool = self._tools.get(fleet_call.tool)
        if registered_tool is None:
            return Failed("Not run: the worker has no such tool; it may be of an older config.", FailureKind.NOT_RUN)
        try:
            arguments = read_leniently(open_text(fleet_call.arguments, ARGUMENTS))
        except READ_ERRORS as error:
            return Failed(f"Not run: the worker cannot read its arguments: {error}", FailureKind.NOT_RUN)
        if (wrong := registered_tool.tool.check(arguments)) is not None:
            text = f"Not run: the worker's schema of this tool does not allow it: {wrong.pointer} {wrong.expected}"
            return Failed(text.rstrip(), FailureKind.NOT_RUN)

        async def report(progress: ProgressReport) -> None:
            await self._reply(fleet_call, FleetReply(fleet_call.id, progress.message, progress.fraction))

        await self._open_services((registered_tool,))
        call = ReadyCall(fleet_call.call_id, registered_tool.name, arguments, fleet_call.text)
        context = CallContext(fleet_call.run_id, fleet_call.turn, fleet_call.key, report, fleet_call.max_bytes)
        try:
            return await registered_tool.tool.executor.execute(call, context)
        except Exception:  # a bug of ours; the call gets an end anyway
            log.exception("fleet_executor_raised", tool=fleet_call.tool)
            return Failed("The tool broke down, and not because of the arguments.")

    async def _open_services(self, tools: Iterable[RegisteredTool]) -> None:
        """Open what the tools need and is not open. What cannot be opened is tried again by the next call that needs it, which
        says so where it fails."""
        services = {service.name: service for tool in tools for service in tool.tool.services}
        for name, service in services.items():
            if name in self._services:
                continue
            try:
                async with asyncio.timeout(OPEN_SECONDS):
                    await service.open()
            except (CannotOpen, TimeoutError) as error:
                log.warning(
                    "tool_server_down",
                    server=name,
                    kind=service.kind,
                    error=str(error) or "it takes too long",
                    failures=1,
                )
            else:
                self._services[name] = service

    async def _close_services(self) -> None:
        for service in self._services.values():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await service.close()

    async def _reply(self, fleet_call: FleetCall, reply: FleetReply) -> None:
        """Publish a reply once; the proxy also finds the end in the ledger."""
        import redis

        try:
            await self._redis.command("PUBLISH", fleet_call.reply, encode_reply(reply, self._keys[fleet_call.pool]))
        except (redis.RedisError, OSError) as error:
            log.warning("fleet_reply_not_sent", tool=fleet_call.tool, error=type(error).__name__)

    async def _open_ledger(self) -> FleetLedger:
        database = PostgresDatabase(self._postgres, self._config.ledger.namespace, connections=1)
        try:
            await database.open()
            ledger = FleetLedger(database, self._worker, self._config.runs.dead_after_seconds)
            self._keys = {pool: await ledger.key(pool) for pool in self._pools}
        except BaseException:
            await database.close()
            raise
        return ledger

    async def _insist(self, ask: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                result = await ask()
            except DatabaseAway as away:
                if failures := self._outage.failed():
                    log.warning("fleet_ledger_away", error=str(away), failures=failures)
            else:
                if failures := self._outage.over():
                    log.warning("fleet_ledger_back", failures=failures)
                return result
            await asyncio.sleep(AGAIN_SECONDS)
