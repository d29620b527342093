"""Publishes calls to workers, and waits for their outcomes.

A call is stored in the ledger as `offered` before it is published, so that it can begin only once, however often it is
published. Its outcome comes over Redis, or from the ledger where that message was lost. A cancelled call is withdrawn if no
worker has begun it; otherwise its process is killed, and its outcome is unknown.
"""

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import Any, Final, Protocol, TypeVar

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
from callgate.fleet.redis_link import PATIENCE, RedisLink
from callgate.ledger.database import DatabaseAway
from callgate.ledger.fleet_calls import FleetCallState, FleetLedger, FleetOffer
from callgate.ledger.presence import Presence
from callgate.tools.executor import RunContext

LOOK_SECONDS: Final = 0.5
"""How often the ledger is checked for calls whose worker is gone, and for outcomes that were not received."""
AGAIN_SECONDS: Final = 1.0
"""When a call that has not begun is published again if its queue is empty: its message was lost, or the worker that took it."""
PRUNE_SECONDS: Final = 3600.0
KILL_SECONDS: Final = 60.0
"""How long a request to kill a call waits for a worker."""
STOP_PATIENCE: Final = 0.4
"""How long a cancelled caller waits until its call is stopped. Less than the wait for any cancelled tool."""
UNKNOWN: Final = (
    "The worker that ran this was lost before it answered: what it should do may or may not have happened. It is not run again."
    " Look whether it happened before you call it again."
)
UNREADABLE: Final = (
    "The worker ran this, and its result cannot be read: what it should do may or may not have happened. It is not run again."
    " Look whether it happened before you call it again."
)
NO_PLACE: Final = "Not run: no worker was free to begin it within {:g} s. Try again later."
WITHDRAWN: Final = "Not run: the call was withdrawn before a worker began it. Try again."
NO_LEDGER: Final = "Not run: this server cannot write down what it runs at the moment. Try again later."

TIMED_OUT: Final = "No result after {:g} s; the tool was stopped. What it should do may or may not have happened."

log = structlog.get_logger("callgate.fleet")
T = TypeVar("T")


class FleetOffers(Protocol):
    """Where calls are offered."""

    def offer(self, offer: FleetOffer, on_written: Callable[[bool | DatabaseAway], None]) -> None:
        """Store a call as offered. `on_written` is called with True once it is stored; with False where it has already ended in
        this process or belongs to another; with `DatabaseAway` where it is unknown whether it was stored."""
        ...


class _TakenForDead(Exception):
    """Raised where other processes took this one for dead, so that its calls belong to others."""


@dataclass(frozen=True, slots=True)
class FleetPool:
    """The queue of a tool's calls, and how long they may wait in it."""

    name: str
    queue_seconds: float


@dataclass(slots=True, eq=False)
class _PendingCall:
    id: str
    queue: str
    message: bytes
    run_id: str
    may_be_resumed: bool
    """It is of a durable run, which another process may resume."""
    is_offering: bool = False
    was_offered: bool | DatabaseAway = False
    is_left: bool = False
    """It belongs to another process now."""
    outcome: Outcome | None = None
    progress: deque[tuple[str, float | None]] = field(default_factory=deque)
    """Progress that was not reported yet."""
    offered: float = field(default_factory=monotonic)
    published: float = -inf
    sent_over: "asyncio.Future[None] | None" = None
    """Done when the connection is lost over which the call was published. None once the message has had time to arrive."""
    _change: "asyncio.Future[None] | None" = None

    def on_offered(self, answer: bool | DatabaseAway) -> None:
        self.is_offering, self.was_offered = False, answer
        self.notify()

    def notify(self) -> None:
        """Wake the coroutine that waits for a change."""
        if self._change is not None and not self._change.done():
            self._change.set_result(None)

    async def change(self, until: float = inf) -> None:
        """Wait for a change, until a point in time at most. It may return early."""
        loop = asyncio.get_running_loop()
        self._change = loop.create_future()
        timer = loop.call_later(until - monotonic(), self.notify) if until < inf else None
        try:
            await self._change
        finally:
            self._change = None
            if timer is not None:
                timer.cancel()


class Fleet:
    """The connection of one process to the workers."""

    def __init__(self, redis_url: str, prefix: str, on_lost: Callable[[int], None]) -> None:
        """`on_lost` is called with the number of calls whose worker is gone."""
        self._url, self._prefix = redis_url, prefix
        self._on_lost = on_lost
        self._underway: dict[str, _PendingCall] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping: set[asyncio.Task[Any]] = set()
        self._reaching = True

    async def open(self, ledger: FleetLedger, offers: FleetOffers, presence: Presence) -> None:
        """Raises `DatabaseAway`."""
        self._ledger, self._offers, self._presence = ledger, offers, presence
        self._replies = f"{self._prefix}replies.{ledger.process}"
        self._key = await ledger.key()
        self._redis = RedisLink(self._url)
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
        await self._redis.close()

    def leave(self, run_id: str) -> None:
        """Leave the calls of a run to another process: they are not stopped when they are cancelled here."""
        for mine in self._underway.values():
            mine.is_left = mine.is_left or mine.run_id == run_id

    async def run(self, pool: FleetPool, tool: str, call: ReadyCall, context: RunContext, seconds: float) -> Outcome:
        """Run a call on a worker; `seconds` count from its start there."""
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
        # A call of a durable run has an id from its place in the run, so that another process finds it.
        may_be_resumed = context.key.startswith(f"{context.run_id}/")
        tries = 1
        while True:
            message = task_message(sent, queue, seconds + KILL_AFTER)
            mine = self._underway[sent.id] = _PendingCall(sent.id, queue, message, context.run_id, may_be_resumed)
            try:
                if await self._is_offered(pool.name, sent, mine):
                    await self._publish(mine)
                    return await self._end_of(mine, context.report, pool.queue_seconds, seconds)
            except DatabaseAway as away:
                log.error("fleet_call_not_offered", tool=tool, error=str(away))  # noqa: TRY400 - the reason is all there is to say
                _ = self._in_background(self._stop(mine))
                return Failed(NO_LEDGER, FailureKind.REFUSED)
            except _TakenForDead:
                log.error("fleet_call_not_offered", tool=tool, error="this process was taken for dead")  # noqa: TRY400
                return Failed(WITHDRAWN, FailureKind.REFUSED)
            except asyncio.CancelledError:
                if not mine.is_left:
                    stopping = self._in_background(self._stop(mine))
                    await asyncio.wait([stopping], timeout=STOP_PATIENCE)
                raise
            finally:
                del self._underway[sent.id]
            # Under this id it has ended here before: each further attempt gets another.
            tries += 1
            sent = replace(sent, id=f"{sent.key}#{tries}")

    async def _is_offered(self, pool: str, call: FleetCall, mine: _PendingCall) -> bool:
        """Store the call as offered; False where it had already ended in this process. Raises `DatabaseAway` where it
        certainly has not begun."""
        may_be_stored = False
        offer = FleetOffer(call.id, self._ledger.process, pool, call.tool, call.arguments_hash)
        while True:
            mine.is_offering = True
            self._offers.offer(offer, mine.on_offered)
            while mine.is_offering:
                await mine.change()
            if mine.was_offered is True:
                return True
            try:
                if isinstance(mine.was_offered, DatabaseAway):
                    raise mine.was_offered
                if await self._ledger.belongs_to_another(call.id):
                    raise _TakenForDead
            except DatabaseAway:
                # The process that had its run before may have published it, so that it may have run.
                if not mine.may_be_resumed:
                    raise
                may_be_stored = True
            else:
                # An offer whose answer was lost may be the one that has ended.
                return may_be_stored
            await asyncio.sleep(LOOK_SECONDS)

    async def _end_of(self, mine: _PendingCall, report: Report, queue_seconds: float, seconds: float) -> Outcome:
        look_at = mine.offered + min(queue_seconds, seconds)
        while True:
            while mine.progress:
                await report(*mine.progress.popleft())
            if mine.outcome is not None:
                return mine.outcome
            if monotonic() < look_at:
                await mine.change(look_at)
                continue
            try:
                [found] = await self._ledger.states([mine.id])
            except DatabaseAway:
                look_at = monotonic() + LOOK_SECONDS
                if monotonic() - mine.offered < queue_seconds + seconds + KILL_AFTER:
                    continue
                _ = self._in_background(self._stop(mine))
                return Failed(UNKNOWN, FailureKind.UNKNOWN)
            if (outcome := _outcome_of(found)) is not None:
                return outcome
            if found.state == "running":
                look_at = monotonic() + seconds - found.seconds
                if found.seconds >= seconds:
                    await self._stop(mine)
                    return Failed(TIMED_OUT.format(seconds), FailureKind.TIMEOUT)
            else:
                look_at = mine.offered + queue_seconds
                if monotonic() >= look_at:
                    look_at = monotonic() + LOOK_SECONDS
                    if await self._stop(mine) == "withdrawn":
                        await self._command("LREM", mine.queue, "0", mine.message)  # no worker may ever take it
                        return Failed(NO_PLACE.format(queue_seconds), FailureKind.REFUSED)

    async def _stop(self, mine: _PendingCall) -> str | None:
        """Withdraw a call that has not begun, kill one that has. Repeats until the ledger has stored it."""
        while mine.is_offering:
            await mine.change()  # or it may be stored afterwards
        is_killed = False
        while True:
            state, is_known = None, True
            try:
                state = await self._ledger.stop(mine.id, "given up")
            except DatabaseAway:
                is_known = False
            if not is_killed and (state == "unknown" or not (is_known or mine.may_be_resumed)):
                is_killed = True
                _ = self._in_background(self._kill(mine.id))
            if is_known:
                return state
            await asyncio.sleep(LOOK_SECONDS)

    async def _kill(self, id: str) -> None:
        """Ask the workers to kill the process of a call. Without an answer its timeout ends it."""
        message = revoke_message(id, control_exchange(self._prefix), self._key)
        until = monotonic() + KILL_SECONDS
        while not await self._command("PUBLISH", control_channel(self._prefix, self._url), message):
            if monotonic() >= until:
                return
            await asyncio.sleep(LOOK_SECONDS)

    def _in_background(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        task = asyncio.create_task(work)
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)
        return task

    async def _publish(self, mine: _PendingCall) -> None:
        """Publish a call. One that could not be published, or did not arrive, is published later: it is in the ledger."""
        mine.sent_over = await self._reached(self._redis.send("LPUSH", mine.queue, mine.message))
        if mine.sent_over is not None:
            mine.published = monotonic()

    async def _publish_again(self, mine: _PendingCall) -> None:
        """Publish a call whose message seems to be lost, over a new connection, because the old one may be dead as well."""
        await self._redis.renew()
        if await self._command("LPUSH", mine.queue, mine.message):
            mine.published = monotonic()

    async def _command(self, *command: str | bytes) -> Any:
        """Send a command to Redis; None where it is away."""
        return await self._reached(self._redis.command(*command))

    async def _reached(self, asking: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of a Redis command; None where Redis is away."""
        import redis

        try:
            result = await asking
        except (redis.RedisError, OSError) as error:
            if self._reaching:
                log.error("fleet_redis_away", error=type(error).__name__)  # noqa: TRY400 - logged once
            self._reaching = False
            return None
        self._reaching = True
        return result

    async def _keep_listening(self) -> None:
        import redis

        while True:
            try:
                await self._redis.listen(self._replies, self._take)
            except (redis.RedisError, OSError) as error:
                log.warning("fleet_replies_not_read", error=type(error).__name__)
            await asyncio.sleep(LOOK_SECONDS)

    def _take(self, data: bytes) -> None:
        try:
            reply = decode_reply(data, self._key)
        except msgspec.MsgspecError as error:
            log.error("fleet_message_ignored", error=str(error))  # noqa: TRY400 - the reason is all there is to say
            return
        mine = self._underway.get(reply.id)
        if mine is None:
            return
        if not reply.ended:
            mine.progress.append((reply.message, reply.fraction))
        elif reply.outcome is not None:
            mine.outcome = _decoded(reply.outcome)
        else:
            _ = self._in_background(self._read_end(reply.id))
        mine.notify()

    async def _read_end(self, id: str) -> None:
        with contextlib.suppress(DatabaseAway):  # `_look` finds it later
            self._settle(await self._ledger.states([id]))

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
                pass  # logged by the ledger's presence

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
            if mine is None or found.state != "offered":
                continue
            is_late = now - max(mine.published, mine.offered) > AGAIN_SECONDS
            was_cut_off = mine.sent_over is not None and mine.sent_over.done()
            if is_late:
                mine.sent_over = None
            if was_cut_off:
                await self._publish(mine)
            elif is_late and await self._is_empty(mine.queue):
                await self._publish_again(mine)

    def _settle(self, states: list[FleetCallState]) -> None:
        for found in states:
            mine = self._underway.get(found.id)
            outcome = _outcome_of(found)
            if mine is not None and outcome is not None:
                mine.outcome = outcome
                mine.notify()

    async def _is_empty(self, queue: str) -> bool:
        import redis

        try:
            return not await self._redis.command("LLEN", queue)
        except (redis.RedisError, OSError):
            return False


def _outcome_of(found: FleetCallState) -> Outcome | None:
    if found.outcome is not None:
        return _decoded(found.outcome)
    if found.state == "unknown":
        return Failed(UNKNOWN, FailureKind.UNKNOWN)
    if found.state == "withdrawn":
        return Failed(WITHDRAWN, FailureKind.REFUSED)
    return None


def _decoded(outcome: bytes) -> Outcome:
    """Decode an outcome. One that a worker of another version has written may be unreadable."""
    try:
        return decode_outcome(outcome)
    except (msgspec.MsgspecError, ValueError, TypeError, KeyError) as error:
        log.error("fleet_message_ignored", error=f"{type(error).__name__}: {error}")  # noqa: TRY400 - the reason is enough
        return Failed(UNREADABLE, FailureKind.UNKNOWN)
