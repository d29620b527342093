"""Publishes calls to workers, and waits for their outcomes.

A call is stored in the ledger as `offered` before it is published, so that it can begin only once, however often it is
published. Its outcome comes over Redis, or from the ledger where that message was lost. A cancelled call is withdrawn if no
worker has begun it; otherwise its process is killed, and its outcome is unknown.
"""

import asyncio
import contextlib
import itertools
import json
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import Any, Final, Protocol, TypeVar

import structlog
from msgspec.structs import replace

from callgate.calls.outcome import Failed, FailureKind, Outcome, decode_outcome
from callgate.calls.states import ReadyCall
from callgate.conversation.ports import ProgressReport, Report
from callgate.fleet.message import (
    KILL_AFTER,
    FleetCall,
    call_of_reply,
    control_channel,
    control_exchange,
    decode_reply,
    message_id,
    queue_of,
    revoke_message,
    task_message,
)
from callgate.fleet.redis_link import PATIENCE, RedisLink
from callgate.state.batches import OnOffered
from callgate.state.database import DatabaseAway
from callgate.state.fleet_calls import FleetCallState, FleetLedger, FleetOffer
from callgate.state.presence import Presence
from callgate.telemetry.outages import Outage
from callgate.tools.executor import CallContext
from callgate.untrusted.readers import READ_ERRORS

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

    def offer(self, offer: FleetOffer, on_offered: OnOffered) -> None:
        """Store a call as offered."""
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
    key: str
    """Its key in the ledger."""
    queue: str
    pool: str
    run_id: str
    may_be_resumed: bool
    """It is of a durable run, which another process may resume."""
    id: str = ""
    """The id of its messages, different for each offer."""
    message: bytes = b""
    """Empty until it is published."""
    signing_key: bytes = b""
    """That of its pool, from its first message on."""
    is_offering: bool = False
    offer: int | DatabaseAway = 0
    """The number of its offer."""
    is_handed_over: bool = False
    """It belongs to another process now."""
    outcome: Outcome | None = None
    progress: deque[tuple[str, float | None]] = field(default_factory=deque)
    """Progress that was not reported yet."""
    offered_at: float = field(default_factory=monotonic)
    published_at: float = -inf
    sent_over: "asyncio.Future[None] | None" = None
    """Done when the connection is lost over which the call was published. None once the message has had time to arrive."""
    _change: "asyncio.Future[None] | None" = None

    def on_offered(self, answer: int | DatabaseAway) -> None:
        self.is_offering = False
        self.offer = answer
        self.notify()

    def notify(self) -> None:
        """Wake the coroutine that waits for a change."""
        if self._change is not None and not self._change.done():
            self._change.set_result(None)

    async def change(self, until: float = inf) -> None:
        """Wait for a change, until a point in time at most. It may return early."""
        loop = asyncio.get_running_loop()
        self._change = loop.create_future()
        if until < inf:
            timer = loop.call_later(until - monotonic(), self.notify)
        else:
            timer = None
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
        self._url = redis_url
        self._prefix = prefix
        self._on_lost = on_lost
        self._underway: dict[str, _PendingCall] = {}
        """The calls that are awaited here, by their keys."""
        self._keys: dict[str, bytes] = {}
        """The keys of pools that have had calls."""
        self._attempts = itertools.count()
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping: set[asyncio.Task[Any]] = set()
        self._outage = Outage()
        self._unread = Outage()
        """Of the channel with the replies."""

    async def open(self, ledger: FleetLedger, offers: FleetOffers, presence: Presence) -> None:
        """Raises `DatabaseAway`."""
        self._ledger = ledger
        self._offers = offers
        self._presence = presence
        self._replies = f"{self._prefix}replies.{ledger.process}"
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
            mine.is_handed_over = mine.is_handed_over or mine.run_id == run_id

    async def run(self, pool: FleetPool, tool: str, call: ReadyCall, context: CallContext, seconds: float) -> Outcome:
        """Run a call on a worker; `seconds` count from its start there."""
        fleet_call = FleetCall(
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
            pool=pool.name,
        )
        # A call of a durable run has an id from its place in the run, so that another process finds it.
        may_be_resumed = context.key.startswith(f"{context.run_id}/")
        queue = queue_of(self._prefix, pool.name)
        mine = _PendingCall(fleet_call.key, queue, pool.name, context.run_id, may_be_resumed)
        self._underway[fleet_call.key] = mine
        try:
            mine.signing_key = await self._key_for(mine)
            number = await self._offer(pool.name, fleet_call, mine)
            mine.id = message_id(fleet_call.key, number)
            signed_call = replace(fleet_call, id=mine.id).signed(mine.signing_key)
            mine.message = task_message(signed_call, mine.queue, seconds + KILL_AFTER)
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
            if not mine.is_handed_over:
                stopping = self._in_background(self._stop(mine))
                await asyncio.wait([stopping], timeout=STOP_PATIENCE)
            raise
        finally:
            del self._underway[fleet_call.key]

    async def _key_for(self, mine: _PendingCall) -> bytes:
        """Return the key of a call's pool, which never changes. Raises `DatabaseAway` where the call certainly has not begun."""
        while mine.pool not in self._keys:
            try:
                self._keys[mine.pool] = await self._ledger.key(mine.pool)
            except DatabaseAway:
                if not mine.may_be_resumed:
                    raise
                await asyncio.sleep(LOOK_SECONDS)
        return self._keys[mine.pool]

    async def _offer(self, pool: str, call: FleetCall, mine: _PendingCall) -> int:
        """Store the call as offered; return the number of its offer. Raises `DatabaseAway` where it certainly has not begun."""
        attempt = f"{self._ledger.process}/{next(self._attempts)}"
        offer = FleetOffer(call.key, self._ledger.process, pool, attempt, call.arguments_hash())
        while True:
            mine.is_offering = True
            self._offers.offer(offer, mine.on_offered)
            while mine.is_offering:
                await mine.change()
            if not isinstance(mine.offer, DatabaseAway):
                if not mine.offer:
                    raise _TakenForDead
                return mine.offer
            # The process that had its run before may have published it, so that it may have run.
            if not mine.may_be_resumed:
                raise mine.offer
            await asyncio.sleep(LOOK_SECONDS)

    async def _end_of(self, mine: _PendingCall, report: Report, queue_seconds: float, seconds: float) -> Outcome:
        look_at = mine.offered_at + min(queue_seconds, seconds)
        while True:
            while mine.progress:
                await report(ProgressReport(*mine.progress.popleft()))
            if mine.outcome is not None:
                return mine.outcome
            if monotonic() < look_at:
                await mine.change(look_at)
                continue
            try:
                [call] = await self._ledger.states([mine.key])
            except DatabaseAway:
                look_at = monotonic() + LOOK_SECONDS
                if monotonic() - mine.offered_at < queue_seconds + seconds + KILL_AFTER:
                    continue
                _ = self._in_background(self._stop(mine))
                return Failed(UNKNOWN, FailureKind.UNKNOWN)
            if (outcome := _outcome_of(call)) is not None:
                return outcome
            if call.state == "started":
                look_at = monotonic() + seconds - call.seconds
                if call.seconds >= seconds:
                    await self._stop(mine)
                    return Failed(TIMED_OUT.format(seconds), FailureKind.TIMEOUT)
            else:
                look_at = mine.offered_at + queue_seconds
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
            state = None
            is_known = True
            try:
                state = await self._ledger.stop(mine.key, "given up")
            except DatabaseAway:
                is_known = False
            if not is_killed and (state == "unknown" or not (is_known or mine.may_be_resumed)):
                is_killed = True
                _ = self._in_background(self._kill(mine))
            if is_known:
                return state
            await asyncio.sleep(LOOK_SECONDS)

    async def _kill(self, mine: _PendingCall) -> None:
        """Ask the workers to kill the process of a call. Without an answer its timeout ends it."""
        if not mine.id:
            return  # nothing of it was published here
        message = revoke_message(mine.id, control_exchange(self._prefix), mine.pool, mine.signing_key)
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
            mine.published_at = monotonic()

    async def _publish_again(self, mine: _PendingCall) -> None:
        """Publish a call whose message seems to be lost, over a new connection, because the old one may be dead as well."""
        await self._redis.renew()
        if await self._command("LPUSH", mine.queue, mine.message):
            mine.published_at = monotonic()

    async def _command(self, *command: str | bytes) -> Any:
        """Send a command to Redis; None where it is away."""
        return await self._reached(self._redis.command(*command))

    async def _reached(self, asking: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of a Redis command; None where Redis is away."""
        import redis

        try:
            result = await asking
        except (redis.RedisError, OSError) as error:
            if failures := self._outage.failed():
                log.error("fleet_redis_away", error=type(error).__name__, failures=failures)  # noqa: TRY400 - the reason is all there is to say
            return None
        if failures := self._outage.over():
            log.warning("fleet_redis_back", failures=failures)
        return result

    async def _keep_listening(self) -> None:
        import redis

        while True:
            try:
                await self._redis.listen(self._replies, self._take, self._note_listening)
            except (redis.RedisError, OSError) as error:
                if failures := self._unread.failed():
                    log.warning("fleet_replies_not_read", error=type(error).__name__, failures=failures)
            await asyncio.sleep(LOOK_SECONDS)

    def _note_listening(self) -> None:
        if failures := self._unread.over():
            log.warning("fleet_replies_read_again", failures=failures)

    def _take(self, data: bytes) -> None:
        try:
            mine = self._underway.get(call_of_reply(data))
            if mine is None or not mine.message:
                return
            reply = decode_reply(data, mine.signing_key)
        except READ_ERRORS as error:
            log.error("fleet_message_ignored", error=str(error))  # noqa: TRY400 - the reason is all there is to say
            return
        if mine.id != reply.id:
            return
        if not reply.ended:
            mine.progress.append((reply.message, reply.fraction))
        elif reply.outcome is not None:
            mine.outcome = _decoded(reply.outcome)
        else:
            _ = self._in_background(self._read_end(mine.key))
        mine.notify()

    async def _read_end(self, key: str) -> None:
        with contextlib.suppress(DatabaseAway):  # `_look` finds it later
            self._settle(await self._ledger.states([key]))

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
        if lost := await self._ledger.sweep(list(self._underway), self._presence.silence()):
            self._on_lost(lost)
        keys = [key for key, mine in self._underway.items() if mine.message and now - mine.offered_at > LOOK_SECONDS]
        if not keys:
            return
        states = await self._ledger.states(keys)
        self._settle(states)
        for call in states:
            mine = self._underway.get(call.id)
            if mine is None or mine.offer != call.offers or call.state != "waiting":
                continue
            is_late = now - max(mine.published_at, mine.offered_at) > AGAIN_SECONDS
            was_cut_off = mine.sent_over is not None and mine.sent_over.done()
            if is_late:
                mine.sent_over = None
            if was_cut_off:
                await self._publish(mine)
            elif is_late and await self._is_empty(mine.queue):
                await self._publish_again(mine)

    def _settle(self, states: list[FleetCallState]) -> None:
        for call in states:
            mine = self._underway.get(call.id)
            outcome = _outcome_of(call)
            if mine is not None and mine.offer == call.offers and outcome is not None:
                mine.outcome = outcome
                mine.notify()

    async def _is_empty(self, queue: str) -> bool:
        import redis

        try:
            return not await self._redis.command("LLEN", queue)
        except (redis.RedisError, OSError):
            return False


def _outcome_of(call: FleetCallState) -> Outcome | None:
    if call.outcome is not None:
        return _decoded(call.outcome)
    if call.state == "unknown":
        return Failed(UNKNOWN, FailureKind.UNKNOWN)
    if call.state == "withdrawn":
        return Failed(WITHDRAWN, FailureKind.REFUSED)
    return None


def _decoded(outcome: bytes) -> Outcome:
    """Decode an outcome. One that a worker of another version has written may be unreadable."""
    try:
        return decode_outcome(outcome)
    except READ_ERRORS as error:
        log.error("fleet_message_ignored", error=f"{type(error).__name__}: {error}")  # noqa: TRY400 - the reason is enough
        return Failed(UNREADABLE, FailureKind.UNKNOWN)
