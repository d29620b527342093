"""The calls of one turn: those that change something in the model's order, the others side by side."""

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from callgate.calls.outcome import Failed, FailureKind, Outcome, Returned
from callgate.calls.states import ReadyCall
from callgate.conversation.events import CallEnded, CallStarted
from callgate.conversation.ports import Begin, ProgressReport, Report, begin_at_once
from callgate.conversation.turn_calls import run_calls
from callgate.tools.executor import CallContext
from tests.fakes import Listener, ScriptedToolbox, ready

pytestmark = pytest.mark.anyio

TURNS_OF_THE_LOOP = 20
"""Enough for any call that does not wait for another to begin."""


class Noted:
    """A tool that writes down when its calls begin and end, and gives all others the time to begin in between."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.running = self.peak = 0

    async def execute(self, call: ReadyCall, context: CallContext) -> Outcome:
        self.events.append(f"+{call.id}")
        self.running += 1
        self.peak = max(self.peak, self.running)
        for _ in range(TURNS_OF_THE_LOOP):
            await asyncio.sleep(0)
        self.running -= 1
        self.events.append(f"-{call.id}")
        if call.arguments.get("fails"):
            return Failed("no")
        return Returned(json.dumps(call.arguments))


class Toolbox(ScriptedToolbox):
    """`read` reads, `write` writes, `free` writes and is taken out of the order."""

    def __init__(self, tool: Noted) -> None:
        super().__init__(read=tool, write=tool, free=tool)
        self.before: Callable[[ReadyCall, Report], Awaitable[Failed | None]] | None = None

    def writes(self, call: ReadyCall) -> bool:
        return call.name != "read"

    def is_ordered(self, call: ReadyCall) -> bool:
        return call.name == "write"

    async def run(self, call: ReadyCall, report: Report, begin: Begin = begin_at_once) -> Outcome:
        if self.before is not None and (refusal := await self.before(call, report)) is not None:
            return refusal
        return await super().run(call, report, begin)


def calls_of(names: str, **arguments: Any) -> list[ReadyCall]:
    """Calls with ids `a`, `b`, …: `r` of a reading tool, `w` of a writing one, `f` of one that is taken out of the order."""
    tools = {"r": "read", "w": "write", "f": "free"}
    return [ready(tools[name], arguments, chr(ord("a") + place)) for place, name in enumerate(names)]


async def ran(names: str, most: int = 8) -> tuple[Noted, Listener, dict[str, Outcome]]:
    tool, listener = Noted(), Listener()
    async with asyncio.timeout(30):
        outcomes = await run_calls(calls_of(names), Toolbox(tool), listener, 0, most=most)
    return tool, listener, outcomes


async def test_calls_that_write_run_one_after_the_other_in_the_models_order() -> None:
    tool, _, outcomes = await ran("wwww")
    assert tool.events == ["+a", "-a", "+b", "-b", "+c", "-c", "+d", "-d"]
    assert list(outcomes) == ["a", "b", "c", "d"]


async def test_calls_that_read_run_side_by_side() -> None:
    tool, _, _ = await ran("rrrr")
    assert tool.events[:4] == ["+a", "+b", "+c", "+d"]
    assert tool.peak == 4


@pytest.mark.parametrize("names", ["".join(each) for each in itertools.product("rwf", repeat=4)])
async def test_a_call_that_writes_waits_for_all_before_it_and_holds_all_behind_it(names: str) -> None:
    tool, _, _ = await ran(names)
    at = {event: place for place, event in enumerate(tool.events)}
    for earlier, later in itertools.combinations(range(4), 2):
        ended, began = at[f"-{chr(97 + earlier)}"], at[f"+{chr(97 + later)}"]
        if "w" in (names[earlier], names[later]):
            assert ended < began
        elif "w" not in names[earlier:later]:
            assert began < ended, "nothing keeps these two apart"


async def test_no_more_run_at_once_than_the_rules_allow() -> None:
    tool, _, _ = await ran("rrrrr", most=2)
    assert tool.peak == 2


async def test_calls_behind_a_failed_or_a_refused_one_run() -> None:
    tool = Noted()
    toolbox = Toolbox(tool)

    async def refuse_the_second(call: ReadyCall, report: Report) -> Failed | None:
        return Failed("refused", FailureKind.REFUSED) if call.id == "b" else None

    toolbox.before = refuse_the_second
    calls = [ready("write", {"fails": True}, "a"), *calls_of("www")[1:]]
    outcomes = await run_calls(calls, toolbox, Listener(), 0, most=8)
    assert tool.events == ["+a", "-a", "+c", "-c"]
    assert outcomes["a"] == Failed("no")
    assert outcomes["b"] == Failed("refused", FailureKind.REFUSED)


async def test_a_call_that_was_refused_early_lets_nobody_overtake_those_before_it() -> None:
    tool = Noted()
    toolbox = Toolbox(tool)

    async def refuse_the_second(call: ReadyCall, report: Report) -> Failed | None:
        return Failed("refused", FailureKind.REFUSED) if call.id == "b" else None

    toolbox.before = refuse_the_second
    await run_calls(calls_of("wwr"), toolbox, Listener(), 0, most=8)
    assert tool.events == ["+a", "-a", "+c", "-c"]


async def test_all_approvals_of_a_turn_are_asked_for_while_none_of_them_is_there() -> None:
    tool = Noted()
    toolbox = Toolbox(tool)
    asked: list[str] = []
    all_asked, approved = asyncio.Event(), asyncio.Event()

    async def wait(call: ReadyCall, report: Report) -> Failed | None:
        asked.append(call.id)
        if len(asked) == 3:
            all_asked.set()
        await report(ProgressReport("waiting for approval"))
        await approved.wait()
        return None

    toolbox.before = wait
    listener = Listener()
    running = asyncio.create_task(run_calls(calls_of("wrw"), toolbox, listener, 0, most=1))
    async with asyncio.timeout(30):
        await all_asked.wait()
        assert tool.events == []
        approved.set()
        await running
    assert asked == ["a", "b", "c"]
    assert tool.events == ["+a", "-a", "+b", "-b", "+c", "-c"]
    assert [event.call.id for event in listener.of(CallStarted)] == ["a", "b", "c"], "each is told once"


async def test_the_start_of_a_call_is_told_when_it_begins_and_not_while_it_waits_for_others() -> None:
    _, listener, _ = await ran("ww")
    told = [(type(event), event.call.id) for event in listener.events if isinstance(event, CallStarted | CallEnded)]
    assert told == [(CallStarted, "a"), (CallEnded, "a"), (CallStarted, "b"), (CallEnded, "b")]


async def test_no_call_begins_behind_one_that_ends_the_whole_turn() -> None:
    tool = Noted()
    toolbox = Toolbox(tool)

    async def take_over(call: ReadyCall, report: Report) -> Failed | None:
        if call.id == "a":
            await asyncio.sleep(0)
            raise RuntimeError("another process has this run")
        return None

    toolbox.before = take_over
    running = asyncio.create_task(run_calls(calls_of("www"), toolbox, Listener(), 0, most=8))
    with pytest.raises(RuntimeError, match="another process"):
        await running
    for _ in range(TURNS_OF_THE_LOOP):
        await asyncio.sleep(0)
    assert tool.events == []
