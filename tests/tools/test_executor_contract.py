"""What every kind of tool does alike, whatever runs behind it. Driven through the toolbox, as in a chat."""

import asyncio
import tracemalloc

import pytest
from msgspec.structs import replace

from callgate.calls.outcome import Failed, FailureKind, Returned
from callgate.tools.executor import Policy, Tool
from callgate.tools.registry import Registry
from callgate.tools.toolbox import STOP_SECONDS, RequestToolbox, ToolSet
from tests.tools.executor_kinds import BINARY, FLOOD_BYTES, KINDS, an_occasion, everything, opened_kind, ready, silent

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("kind", KINDS)]

POLICY = Policy(timeout=20, max_result_bytes=10_000)
ENOUGH_TO_BEGIN = (0.3, 3, 15)
"""Timeouts of a call that has to begin before, the first of which is too short where the machine does other things."""


def toolbox(*tools: Tool) -> RequestToolbox:
    registry = Registry()
    registry.add(*tools)
    return RequestToolbox(server_tools=ToolSet(registry.tools()), run_id="run_1", limits=registry.limits)


async def test_it_answers(kind):
    async with opened_kind(kind) as it, asyncio.timeout(30):
        outcome = await toolbox(it.tool("answers", POLICY)).run(ready("answers", city="Oslo"), silent)
        assert outcome == Returned('{"city":"Oslo","degrees":21}')


async def test_its_schema_refuses_what_does_not_fit(kind):
    async with opened_kind(kind) as it:
        check = toolbox(it.tool("answers", POLICY)).offer["answers"].check
        assert check is not None
        assert check({"city": "Oslo"}) is None
        assert check({"city": 5}) is not None
        assert check({}) is not None
        assert check({"city": "Oslo", "town": "Oslo"}) is not None


async def test_what_it_raises_is_reported_to_the_model(kind):
    async with opened_kind(kind) as it, asyncio.timeout(30):
        outcome = await toolbox(it.tool("raises", POLICY)).run(ready("raises", city="Oslo"), silent)
        assert isinstance(outcome, Failed)
        assert outcome.kind is FailureKind.RAISED
        assert "the thermometer fell off" in outcome.text
        assert "Traceback" not in outcome.text


async def test_one_that_hangs_is_stopped_at_its_timeout(kind):
    async with opened_kind(kind) as it, asyncio.timeout(60):
        begun = asyncio.create_task(it.has_begun())
        for seconds in ENOUGH_TO_BEGIN:
            box = toolbox(it.tool("hangs", replace(POLICY, timeout=seconds)))
            outcome = await box.run(ready("hangs", city="Oslo"), silent)
            assert isinstance(outcome, Failed)
            assert outcome.kind is FailureKind.TIMEOUT
            await asyncio.wait([begun], timeout=1)
            if begun.done():
                break
        await begun
        await it.has_stopped()


async def test_a_flood_is_cut_and_takes_no_memory_beyond_it(kind):
    async with opened_kind(kind) as it, asyncio.timeout(40):
        box = toolbox(it.tool("floods", POLICY))
        tracemalloc.start()
        try:
            outcome = await box.run(ready("floods", city="Oslo"), silent)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert isinstance(outcome, Returned)
        assert len(outcome.text.encode()) <= POLICY.max_result_bytes
        assert f"{outcome.cut_bytes} bytes left out" in outcome.text
        if it.cut_is_exact:
            assert outcome.cut_bytes == FLOOD_BYTES - outcome.text.count("x")
        else:
            assert f"at least {outcome.cut_bytes} bytes" in outcome.text
        assert peak < it.flood_memory


async def test_bytes_are_described_and_not_shown(kind):
    async with opened_kind(kind) as it, asyncio.timeout(30):
        outcome = await toolbox(it.tool("binary", POLICY)).run(ready("binary", city="Oslo"), silent)
        assert outcome == Returned(f"[application/octet-stream, {len(BINARY)} bytes, not shown]")


async def test_one_that_is_cancelled_stops_within_a_second(kind):
    async with opened_kind(kind) as it, asyncio.timeout(30):
        running = asyncio.create_task(toolbox(it.tool("hangs", POLICY)).run(ready("hangs", city="Oslo"), silent))
        await it.has_begun()
        running.cancel()
        _, late = await asyncio.wait([running], timeout=2 * STOP_SECONDS)
        assert not late
        assert running.cancelled()
        await it.has_stopped()


async def test_after_close_a_call_fails_with_the_reason(kind):
    async with opened_kind(kind) as it, asyncio.timeout(30):
        tool = it.tool("answers", POLICY)
        await tool.executor.execute(ready("answers", city="Oslo"), an_occasion())
        await it.shut()
        outcome = await tool.executor.execute(ready("answers", city="Oslo"), an_occasion())
        if kind == "python async":  # lives on nothing that could be closed
            assert isinstance(outcome, Returned)
        else:
            assert isinstance(outcome, Failed)
            assert outcome.kind is FailureKind.UNAVAILABLE


async def test_one_cancelled_before_it_began_leaves_nothing(kind):
    async with opened_kind(kind) as it, asyncio.timeout(30):
        running = asyncio.create_task(toolbox(it.tool("answers", POLICY)).run(ready("answers", city="Oslo"), silent))
        await asyncio.sleep(0)
        running.cancel()
        await everything(running.done)
        assert running.cancelled()
