"""One call that no model makes, settled and run as a turn of a chat that is over with it."""

import asyncio
import time
from collections.abc import Callable

from callgate.conversation.events import (
    CallWritten,
    ChatEnded,
    Ending,
    EndingKind,
    Finished,
    ModelEvent,
    ModelOutput,
    StreamEnd,
    TurnAccount,
    TurnEnded,
    TurnStarted,
)
from callgate.conversation.loop import Rules
from callgate.conversation.ports import Emit, Toolbox
from callgate.conversation.turn import TurnBuilder, TurnJudge
from callgate.conversation.turn_calls import run_calls

ONLY = 0
"""The index of the turn."""


async def call_once(
    written: CallWritten,
    toolbox: Toolbox,
    emit: Emit,
    *,
    new_id: Callable[[], str],
    rules: Rules,
    judge: TurnJudge | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Settle a call and run it if it is whole, with the events that a chat has for it. `judge`: judges it before that."""
    began = clock()
    await emit(TurnStarted(ONLY))
    builder = TurnBuilder(offer=toolbox.offer, ids=new_id, argument_bytes=rules.argument_bytes)
    events: list[ModelEvent] = [written, Finished("tool_calls")]
    builder.feed(events)
    await emit(ModelOutput(ONLY, events))
    if builder.is_large():  # parsing its arguments would block the event loop
        turn = await asyncio.to_thread(builder.finish, StreamEnd.DONE)
    else:
        turn = builder.finish(StreamEnd.DONE)
    if judge is not None:
        turn = await judge.settled(turn, toolbox.offer)
    plan = toolbox.plan(turn.calls)
    account = TurnAccount(
        reasons=turn.reasons,
        findings=turn.findings,
        run=plan.ours,
        handed_back=plan.theirs,
        broken=plan.broken,
        usage=None,
        seconds=clock() - began,
        calls=turn.calls,
    )
    await emit(TurnEnded(ONLY, account))
    if plan.ours:
        await run_calls(plan.ours, toolbox, emit, ONLY, most=rules.max_parallel_calls, clock=clock)
    await emit(ChatEnded(Ending(EndingKind.ANSWERED, "stop"), None))
