"""Runs the calls of one turn: in the model's order where they may change something, side by side where they do not."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from callgate.calls.outcome import Outcome
from callgate.calls.states import ReadyCall
from callgate.conversation.events import CallEnded, CallStarted
from callgate.conversation.listeners import NOTHING
from callgate.conversation.ports import Emit, ProgressReport, Toolbox
from callgate.conversation.progress import CallReports
from callgate.conversation.side_by_side import side_by_side


class RunOrder:
    """The order in which the calls of a turn begin.

    A call that is ordered waits for all calls before it, and all behind it wait for it, however it ends. No more than `most`
    run at the same time. Approvals come before the order: they are asked for together.
    """

    def __init__(self, are_ordered: Sequence[bool], most: int) -> None:
        """`are_ordered`: for each call in the model's order, whether it is ordered."""
        self._are_ordered = are_ordered
        self._have_ended = [asyncio.Event() for _ in are_ordered]
        self._places = asyncio.Semaphore(most)
        self._in_place: set[int] = set()

    async def begin(self, at: int) -> None:
        """Wait until the call at this place may begin."""
        for before in range(at):
            if self._are_ordered[at] or self._are_ordered[before]:
                await self._have_ended[before].wait()
        await self._places.acquire()
        self._in_place.add(at)

    def end(self, at: int) -> None:
        """Let the calls go on that wait for this one. Not called where it raised: then the whole turn is stopped, and no call
        behind it may begin in between."""
        if at in self._in_place:
            self._in_place.remove(at)
            self._places.release()
        self._have_ended[at].set()


async def run_calls(
    calls: Sequence[ReadyCall],
    toolbox: Toolbox,
    emit: Emit,
    turn: int,
    *,
    most: int,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Outcome]:
    """Run the calls of a turn, at most `most` at the same time, and return their outcomes by id."""
    if len(calls) == 1:
        only = calls[0]
        return {only.id: await _TurnCall(only, toolbox, emit, turn, clock).outcome()}
    order = RunOrder([toolbox.is_ordered(call) for call in calls], most)
    turn_calls = [_TurnCall(call, toolbox, emit, turn, clock, order, place) for place, call in enumerate(calls)]
    outcomes = await side_by_side(turn_call.outcome() for turn_call in turn_calls)
    return {call.id: outcome for call, outcome in zip(calls, outcomes, strict=True)}


class _TurnCall(msgspec.Struct, eq=False):
    """One call, from its approval to its end."""

    call: ReadyCall
    toolbox: Toolbox
    emit: Emit
    turn: int
    clock: Callable[[], float]
    order: RunOrder | None = None
    """None for the only call of a turn."""
    place: int = 0
    started: float | None = None
    reports: CallReports | None = None

    async def outcome(self) -> Outcome:
        begin = self._start if self.order is None else self._begin_in_order
        outcome = await self.toolbox.run(self.call, self._report, begin)
        if self.started is None:
            await self._start()
        assert self.started is not None, "it has just started"
        await self.emit(CallEnded(self.turn, self.call, outcome, self.clock() - self.started))
        if self.order is not None:
            self.order.end(self.place)
        return outcome

    def _start(self) -> Awaitable[None]:
        """Emit that the call starts, once: when it waits for its approval or begins, and not while it waits for others."""
        if self.started is not None:
            return NOTHING
        emitting = self.emit(CallStarted(self.turn, self.call, self.toolbox.writes(self.call)))
        if emitting is not NOTHING:
            return self._started_once(emitting)
        self.started = self.clock()
        return NOTHING

    async def _started_once(self, emitted: Awaitable[None]) -> None:
        await emitted
        self.started = self.clock()

    async def _begin_in_order(self) -> None:
        assert self.order is not None, "it is one of several"
        await self.order.begin(self.place)
        await self._start()

    async def _report(self, progress: ProgressReport) -> None:
        await self._start()
        if self.reports is None:
            self.reports = CallReports(self.emit, self.turn, self.call, self.clock)
        await self.reports.report(progress)
