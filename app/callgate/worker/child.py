"""Runs calls, one at a time, in a process that is killed when its call is cancelled."""

import asyncio
import ctypes
import json
import os
import secrets
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec
import structlog
import uvloop

from callgate.calls.outcome import Failed, FailureKind, Outcome, encode_outcome
from callgate.calls.states import ReadyCall
from callgate.config.schema import Config
from callgate.fleet.message import FleetCall, FleetReply, encode_reply
from callgate.fleet.redis_link import RedisLink
from callgate.ledger.database import DatabaseAway
from callgate.ledger.fleet_calls import FleetLedger
from callgate.ledger.postgres import PostgresDatabase
from callgate.runtime.builders.limits import processes_of, threads_of
from callgate.runtime.builders.tools import registry_of
from callgate.tools.executor import RunContext
from callgate.tools.registry import RegisteredTool
from callgate.tools.results import bounded, size_of

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
    """Build the tools, to run in this process. Raises `BadEntry`."""
    from callgate.tools.http_client import Web

    registry = registry_of(config, Web, threads_of(config), processes_of(config))
    return {each.name: each for each in registry.tools()}


class ToolProcess:
    """The tools in one process of a worker."""

    def __init__(self, config: Config, worker: str) -> None:
        """`worker`: the name of the worker in the ledger."""
        assert config.ledger.url is not None
        assert config.store.redis_url is not None
        self._config, self._worker = config, worker
        self._postgres = config.ledger.url.get_secret_value()
        self._redis_url = config.store.redis_url.get_secret_value()
        self._tools: Mapping[str, RegisteredTool] = {}
        self._loop: asyncio.AbstractEventLoop
        self._ledger: FleetLedger | None = None
        self._key = b""
        self._redis: RedisLink

    def load(self) -> None:
        """Import the tools and make the event loop, in the process that runs calls, before the first call."""
        self._loop = uvloop.new_event_loop()
        self._redis = RedisLink(self._redis_url)
        self._tools = tools_of(self._config)

    def run(self, sent: Mapping[str, Any]) -> None:
        """Run a call from Redis, if its row in the ledger can be claimed."""
        self._loop.run_until_complete(self._run(msgspec.convert(sent, FleetCall)))

    async def _run(self, sent: FleetCall) -> None:
        if self._ledger is None:
            self._ledger = await self._insist(self._opened)
        ledger = self._ledger
        attempt = secrets.token_hex(8)
        if not await self._insist(lambda: ledger.claim(sent.id, sent.arguments_hash, os.getpid(), attempt)):
            log.warning("fleet_call_ignored", tool=sent.tool, call_id=sent.call_id)
            return
        outcome = await self._outcome(sent)
        if size_of(outcome.text) > sent.max_bytes:  # more is not read of any tool
            outcome = bounded(outcome, sent.max_bytes)
        body = encode_outcome(outcome)
        state = "done"
        if isinstance(outcome, Failed):
            state = "unknown" if outcome.kind in _UNSEEN else "failed"
        if await self._insist(lambda: ledger.end(sent.id, attempt, state, body)):
            await self._reply(
                sent, FleetReply(sent.id, ended=True, outcome=body if len(body) <= LONGEST_REPLY else None)
            )

    async def _outcome(self, sent: FleetCall) -> Outcome:
        found = self._tools.get(sent.tool)
        if found is None:
            return Failed("Not run: the worker has no such tool; it may be of an older config.", FailureKind.NOT_RUN)
        arguments = json.loads(sent.arguments)
        if (wrong := found.tool.check(arguments)) is not None:
            text = f"Not run: the worker's schema of this tool does not allow it: {wrong.pointer} {wrong.expected}"
            return Failed(text.rstrip(), FailureKind.NOT_RUN)

        async def report(message: str, fraction: float | None = None) -> None:
            await self._reply(sent, FleetReply(sent.id, message, fraction))

        call = ReadyCall(sent.call_id, found.name, arguments, sent.text)
        context = RunContext(sent.run_id, sent.turn, sent.key, report, sent.max_bytes)
        try:
            return await found.tool.executor.execute(call, context)
        except Exception:  # a bug of ours; the call gets an end anyway
            log.exception("fleet_executor_raised", tool=sent.tool)
            return Failed("The tool broke down, and not because of the arguments.")

    async def _reply(self, sent: FleetCall, reply: FleetReply) -> None:
        """Publish a reply once; the proxy also finds the end in the ledger."""
        import redis

        try:
            await self._redis.command("PUBLISH", sent.reply, encode_reply(reply, self._key))
        except (redis.RedisError, OSError) as error:
            log.warning("fleet_reply_not_sent", tool=sent.tool, error=type(error).__name__)

    async def _opened(self) -> FleetLedger:
        database = PostgresDatabase(self._postgres, self._config.ledger.namespace, connections=1)
        try:
            await database.open()
            ledger = FleetLedger(database, self._worker, self._config.runs.dead_after_seconds)
            self._key = await ledger.key()
        except BaseException:
            await database.close()
            raise
        return ledger

    async def _insist(self, ask: Callable[[], Awaitable[T]]) -> T:
        waits = False
        while True:
            try:
                return await ask()
            except DatabaseAway as away:
                if not waits:
                    log.warning("fleet_ledger_away", error=str(away))
                waits = True
            await asyncio.sleep(AGAIN_SECONDS)
