"""Has calls run by workers, and waits for their ends.

A call is written down as `offered` before it is published, so that it can begin once however often it is published. Its end
comes over Redis, or is read from the ledger where that message was lost. When it is given up it is withdrawn if no worker has
begun it; else its process is killed, and what it came to is unknown.
"""

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import Any, Final

import msgspec
import structlog
from msgspec.structs import replace

from callgate.calls.outcome import Failed, FailureKind, Outcome, decode_outcome
from callgate.calls.states import ReadyCall
from callgate.conversation.ports import Report
from callgate.fleet.message import (
    KILL_AFTER,
    FleetCall,
    control_channel,
    control_exchange,
    decode_reply,
    queue_of,
    revoke_message,
    task_message,
)
from callgate.ledger.database import DatabaseAway
from callgate.ledger.fleet_calls import FleetCallState, FleetLedger, TakenForDead
from callgate.ledger.presence import Presence
from callgate.tools.executor import RunContext

LOOK_SECONDS: Final = 0.5
"""How often it is looked whose worker is gone, and which of our calls have ended unheard."""
AGAIN_SECONDS: Final = 1.0
"""After which a call that nobody has begun is published again, where its queue is empty: its message was lost, be it with the
process that was to begin it."""
PRUNE_SECONDS: Final = 3600.0
LISTEN_SECONDS: Final = 10.0
"""For one message, before it is asked for again."""
PATIENCE: Final = 2.0
"""Seconds for one command of Redis."""
KILL_SECONDS: Final = 60.0
"""For a worker to be there that hears that a call is to be killed."""
STOP_PATIENCE: Final = 0.4
"""For a call to be stopped before whoever gave it up goes on. Less than what a cancelled tool is waited for."""
UNKNOWN: Final = (
    "The worker that ran this was lost before it answered: what it should do may or may not have happened. It is not run again."
    " Look whether it happened before you call it again."
)
NO_PLACE: Final = "Not run: no worker was free to begin it within {:g} s. Try again later."
WITHDRAWN: Final = "Not run: the call was withdrawn before a worker began it. Try again."
NO_LEDGER: Final = "Not run: this server cannot write down what it runs at the moment. Try again later."

TIMED_OUT: Final = "No result after {:g} s; the tool was stopped. What it should do may or may not have happened."

log = structlog.get_logger("callgate.fleet")


@dataclass(frozen=True, slots=True)
class FleetPool:
    """Where a tool's calls wait, and for how long."""

    name: str
    queue_seconds: float


@dataclass(slots=True, eq=False)
class _Underway:
    queue: str
    message: bytes
    run_id: str
    may_be_anothers: bool
    """It is a durable run's: whoever has that now waits for it."""
    is_left: bool = False
    """It is another process's from now on."""
    outcome: Outcome | None = None
    said: deque[tuple[str, float | None]] = field(default_factory=deque)
    """Progress that was not reported yet."""
    news: asyncio.Event = field(default_factory=asyncio.Event)
    offered: float = field(default_factory=monotonic)
    published: float = -inf


class Fleet:
    """The workers, for one process that wants tools run."""

    def __init__(self, redis_url: str, prefix: str, on_lost: Callable[[int], None]) -> None:
        """`on_lost` is called with the number of calls whose worker is gone."""
        self._url, self._prefix = redis_url, prefix
        self._on_lost = on_lost
        self._underway: dict[str, _Underway] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping: set[asyncio.Task[Any]] = set()
        self._reaching = True

    async def open(self, ledger: FleetLedger, presence: Presence) -> None:
        import redis.asyncio
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        self._ledger, self._presence = ledger, presence
        self._replies = f"{self._prefix}replies.{ledger.process}"
        self._redis = redis.asyncio.Redis.from_url(
            self._url, socket_timeout=PATIENCE, socket_connect_timeout=PATIENCE, retry=Retry(NoBackoff(), 1)
        )
        self._tasks = [
            asyncio.create_task(self._keep_listening(), name="replies of workers"),
            asyncio.create_task(self._keep_looking(), name="calls of workers"),
        ]

    async def close(self) -> None:
        if not self._tasks:
            return
        if self._stopping:
            await asyncio.wait(self._stopping, timeout=PATIENCE)
        for task in (*self._tasks, *self._stopping):
            task.cancel()
        await asyncio.wait({*self._tasks, *self._stopping})
        await self._redis.aclose()

    def leave(self, run_id: str) -> None:
        """The calls of a run are another process's from now on: they are not stopped when they are not waited for any more."""
        for mine in self._underway.values():
            mine.is_left = mine.is_left or mine.run_id == run_id

    async def run(self, pool: FleetPool, tool: str, call: ReadyCall, context: RunContext, seconds: float) -> Outcome:
        """Have a worker run a call; `seconds` count from its beginning there."""
        sent = FleetCall(
            id=context.key,
            tool=tool,
            call_id=call.id,
            arguments=json.dumps(call.arguments),
            text=call.text,
            run_id=context.run_id,
            turn=context.turn,
            key=context.key,
            max_bytes=context.max_bytes,
            reply=self._replies,
        )
        queue = queue_of(self._prefix, pool.name)
        # A call of a durable run is known by its place in the run, wherever that is carried on.
        may_be_anothers = context.key.startswith(f"{context.run_id}/")
        tries = 1
        while True:
            message = task_message(sent, queue, seconds + KILL_AFTER)
            mine = self._underway[sent.id] = _Underway(queue, message, context.run_id, may_be_anothers)
            try:
                if await self._is_offered(pool.name, sent, mine):
                    await self._publish(mine)
                    return await self._end_of(sent.id, mine, context.report, pool.queue_seconds, seconds)
            except DatabaseAway as away:
                log.error("fleet_call_not_offered", tool=tool, error=str(away))  # noqa: TRY400 - the reason is all there is to say
                _ = self._in_background(self._stop(sent.id, may_be_anothers=may_be_anothers))
                return Failed(NO_LEDGER, FailureKind.REFUSED)
            except TakenForDead:
                log.error("fleet_call_not_offered", tool=tool, error="this process was taken for dead")  # noqa: TRY400
                return Failed(WITHDRAWN, FailureKind.REFUSED)
            except asyncio.CancelledError:
                if not mine.is_left:
                    stopping = self._in_background(self._stop(sent.id, may_be_anothers=may_be_anothers))
                    await asyncio.wait([stopping], timeout=STOP_PATIENCE)
                raise
            finally:
                del self._underway[sent.id]
            # We have seen an end of it under this id: each further try has another.
            tries += 1
            sent = replace(sent, id=f"{sent.key}#{tries}")

    async def _is_offered(self, pool: str, call: FleetCall, mine: _Underway) -> bool:
        """False where this process has seen an end of it. Raises `DatabaseAway` where certainly nobody has begun it."""
        while True:
            try:
                return await self._ledger.offer(call.id, pool, call.tool, call.arguments_hash)
            except DatabaseAway:
                # Whoever had its run before may have published it: that it was not run is not ours to say.
                if not mine.may_be_anothers:
                    raise
            await asyncio.sleep(LOOK_SECONDS)

    async def _end_of(self, id: str, mine: _Underway, report: Report, queue_seconds: float, seconds: float) -> Outcome:
        look_at = mine.offered + min(queue_seconds, seconds)
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(look_at - monotonic()):
                    await mine.news.wait()
            mine.news.clear()
            while mine.said:
                await report(*mine.said.popleft())
            if mine.outcome is not None:
                return mine.outcome
            if monotonic() < look_at:
                continue
            try:
                [found] = await self._ledger.states([id])
            except DatabaseAway:
                look_at = monotonic() + LOOK_SECONDS
                if monotonic() - mine.offered < queue_seconds + seconds + KILL_AFTER:
                    continue
                _ = self._in_background(self._stop(id, may_be_anothers=mine.may_be_anothers))
                return Failed(UNKNOWN, FailureKind.UNKNOWN)
            if (outcome := _outcome_of(found)) is not None:
                return outcome
            if found.state == "running":
                look_at = monotonic() + seconds - found.seconds
                if found.seconds >= seconds:
                    await self._stop(id, may_be_anothers=mine.may_be_anothers)
                    return Failed(TIMED_OUT.format(seconds), FailureKind.TIMEOUT)
            else:
                look_at = mine.offered + queue_seconds
                if monotonic() >= look_at:
                    look_at = monotonic() + LOOK_SECONDS
                    if await self._stop(id, may_be_anothers=mine.may_be_anothers) == "withdrawn":
                        await self._send("LREM", mine.queue, "1", mine.message)  # nobody may ever come for it
                        return Failed(NO_PLACE.format(queue_seconds), FailureKind.REFUSED)

    async def _stop(self, id: str, *, may_be_anothers: bool) -> str | None:
        """Withdraw a call that has not begun, kill one that has. Goes on until the ledger knows of it."""
        is_killed = False
        while True:
            state, is_known = None, True
            try:
                state = await self._ledger.stop(id, "given up")
            except DatabaseAway:
                is_known = False
            if not is_killed and (state == "unknown" or not (is_known or may_be_anothers)):
                is_killed = True
                _ = self._in_background(self._kill(id))
            if is_known:
                return state
            await asyncio.sleep(LOOK_SECONDS)

    async def _kill(self, id: str) -> None:
        """Have the process killed that runs a call, as soon as a worker hears it. Some time later its own time ends it."""
        message = revoke_message(id, control_exchange(self._prefix))
        until = monotonic() + KILL_SECONDS
        while not await self._send("PUBLISH", control_channel(self._prefix, self._url), message):
            if monotonic() >= until:
                return
            await asyncio.sleep(LOOK_SECONDS)

    def _in_background(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        task = asyncio.create_task(work)
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)
        return task

    async def _publish(self, mine: _Underway) -> None:
        """What could not be published is published later: it stands in the ledger."""
        if await self._send("LPUSH", mine.queue, mine.message):
            mine.published = monotonic()

    async def _send(self, *command: str | bytes) -> Any:
        """What Redis says, or None where it is away."""
        import redis

        try:
            said = await self._command(*command)
        except (redis.RedisError, OSError) as error:
            if self._reaching:
                log.error("fleet_redis_away", error=type(error).__name__)  # noqa: TRY400 - said once
            self._reaching = False
            return None
        self._reaching = True
        return said

    async def _command(self, *command: str | bytes) -> Any:
        return await self._redis.execute_command(*command)  # type: ignore[no-untyped-call]

    async def _keep_listening(self) -> None:
        import redis

        while True:
            try:
                async with self._redis.pubsub(ignore_subscribe_messages=True) as replies:
                    await replies.subscribe(self._replies)
                    while True:
                        message = await replies.get_message(timeout=LISTEN_SECONDS)
                        if message is not None:
                            await self._take(message["data"])
            except (redis.RedisError, OSError) as error:
                log.warning("fleet_replies_not_read", error=type(error).__name__)
            await asyncio.sleep(LOOK_SECONDS)

    async def _take(self, data: bytes) -> None:
        try:
            reply = decode_reply(data)
        except msgspec.MsgspecError as error:
            log.error("fleet_message_ignored", error=str(error))  # noqa: TRY400 - the reason is all there is to say
            return
        mine = self._underway.get(reply.id)
        if mine is None:
            return
        if not reply.ended:
            mine.said.append((reply.message, reply.fraction))
        elif reply.outcome is not None:
            mine.outcome = decode_outcome(reply.outcome)
        else:
            with contextlib.suppress(DatabaseAway):  # then it is found by looking
                self._settle(await self._ledger.states([reply.id]))
        mine.news.set()

    async def _keep_looking(self) -> None:
        prune_at = -inf
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self._look()
                if monotonic() >= prune_at:
                    prune_at = monotonic() + PRUNE_SECONDS
                    await self._ledger.prune()
            except DatabaseAway:
                pass  # said by whoever keeps this process on the list of those that live

    async def _look(self) -> None:
        now = monotonic()
        if lost := await self._ledger.sweep(list(self._underway), self._presence.silence):
            self._on_lost(lost)
        waiting = [id for id, each in self._underway.items() if now - each.offered > LOOK_SECONDS]
        if not waiting:
            return
        states = await self._ledger.states(waiting)
        self._settle(states)
        for found in states:
            mine = self._underway.get(found.id)
            is_late = mine is not None and now - max(mine.published, mine.offered) > AGAIN_SECONDS
            if mine is not None and is_late and found.state == "offered" and await self._is_empty(mine.queue):
                await self._publish(mine)

    def _settle(self, states: list[FleetCallState]) -> None:
        for found in states:
            mine = self._underway.get(found.id)
            outcome = _outcome_of(found)
            if mine is not None and outcome is not None:
                mine.outcome = outcome
                mine.news.set()

    async def _is_empty(self, queue: str) -> bool:
        import redis

        try:
            return not await self._command("LLEN", queue)
        except (redis.RedisError, OSError):
            return False


def _outcome_of(found: FleetCallState) -> Outcome | None:
    if found.outcome is not None:
        return decode_outcome(found.outcome)
    if found.state == "unknown":
        return Failed(UNKNOWN, FailureKind.UNKNOWN)
    if found.state == "withdrawn":
        return Failed(WITHDRAWN, FailureKind.REFUSED)
    return None
