import asyncio
from typing import Any

import pytest

from callgate.calls.outcome import Failed, FailureKind, Image, Outcome, ResultFacts, Returned
from callgate.calls.states import ReadyCall
from callgate.config.schema.whole import Config
from callgate.tools.executor import CallContext
from callgate.tools.result_cache import MAX_BYTES_OF_ONE, CachedTool, ResultCache
from tests.fakes import silent

pytestmark = pytest.mark.anyio

DEMO = {"model_name": "m", "litellm_params": {"model": "demo/demo"}}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Counts:
    """Answers with a number that grows, or what it was given; waits where it is told to."""

    def __init__(self, *outcomes: Outcome) -> None:
        self.runs = 0
        self.outcomes = list(outcomes)
        self.gate = asyncio.Event()
        self.gate.set()
        self.entered = asyncio.Event()

    async def execute(self, call: ReadyCall, context: CallContext) -> Outcome:
        self.runs += 1
        self.entered.set()
        number = self.runs
        await self.gate.wait()
        return self.outcomes.pop(0) if self.outcomes else Returned(f"run {number}")


def cached(
    tool: Counts, cache: ResultCache | None = None, *, version: bytes = b"1", shared: bool = False
) -> CachedTool:
    return CachedTool(tool, cache or ResultCache(), version=version, seconds=60, shared=shared)


async def called(tool: CachedTool, *, caller: str = "ann", id: str = "call_1", **arguments: Any) -> Outcome:
    context = CallContext(run_id="r", turn=0, key="k", report=silent, max_bytes=1000, caller=caller)
    return await tool.execute(ReadyCall(id, "t", arguments, "{}"), context)


def facts(outcome: Outcome) -> ResultFacts:
    assert isinstance(outcome, Returned)
    assert outcome.facts is not None
    return outcome.facts


async def test_an_equal_call_gets_the_kept_result_and_says_whose_it_is_and_how_old():
    clock = Clock()
    counts = Counts()
    tool = cached(counts, ResultCache(now=clock))
    first = await called(tool, id="call_1", a=1, b={"x": 1, "y": 2})
    clock.now = 12
    again = await called(tool, id="call_2", b={"y": 2, "x": 1}, a=1)
    assert (first.text, again.text, counts.runs) == ("run 1", "run 1", 1)
    assert (facts(first).cache, facts(first).shown()) == ("miss", {})
    assert facts(again).cache == "hit"
    assert facts(again).shown() == {"cached_of": "call_1", "cached_seconds": 12.0}


async def test_a_result_is_kept_no_longer_than_it_may_be():
    clock = Clock()
    counts = Counts()
    tool = cached(counts, ResultCache(now=clock))
    await called(tool)
    clock.now = 60
    assert (await called(tool)).text == "run 2"


@pytest.mark.parametrize("other", [{"a": 2}, {"a": "1"}, {"a": 1, "b": None}, {}, {"A": 1}])
async def test_other_arguments_are_another_call(other: dict[str, Any]):
    counts = Counts()
    tool = cached(counts)
    await called(tool, a=1)
    await called(tool, **other)
    assert counts.runs == 2


async def test_two_callers_never_share_unless_the_operator_says_so():
    counts = Counts()
    tool = cached(counts)
    assert {(await called(tool, caller=name)).text for name in ("ann", "bob", "")} == {"run 1", "run 2", "run 3"}
    shared = cached(counts, shared=True)
    assert {(await called(shared, caller=name)).text for name in ("ann", "bob")} == {"run 4"}


async def test_a_caller_named_like_the_arguments_of_another_gets_its_own():
    counts = Counts()
    tool = cached(counts)
    await called(tool, caller='ann",{"a":1}]')
    await called(tool, caller="ann", a=1)
    assert counts.runs == 2


async def test_another_version_of_a_tool_begins_anew():
    counts = Counts()
    cache = ResultCache()
    await called(cached(counts, cache, version=b"1"))
    await called(cached(counts, cache, version=b"2"))
    assert counts.runs == 2


async def test_fifty_equal_calls_at_once_are_one_and_each_says_so():
    counts = Counts()
    counts.gate.clear()
    tool = cached(counts)
    calls = [asyncio.create_task(called(tool, id=f"call_{at}")) for at in range(50)]
    await counts.entered.wait()
    counts.gate.set()
    outcomes = await asyncio.gather(*calls)
    assert counts.runs == 1
    assert {outcome.text for outcome in outcomes} == {"run 1"}
    assert [facts(outcome).cache for outcome in outcomes].count("shared") == 49
    assert {facts(outcome).cached_of for outcome in outcomes} == {"", "call_0"}


async def test_when_the_one_is_cancelled_the_next_one_runs():
    counts = Counts()
    counts.gate.clear()
    tool = cached(counts)
    leader = asyncio.create_task(called(tool, id="call_0"))
    await counts.entered.wait()
    others = [asyncio.create_task(called(tool, id=f"call_{at}")) for at in (1, 2)]
    await asyncio.sleep(0)
    counts.entered.clear()
    leader.cancel()
    await counts.entered.wait()
    counts.gate.set()
    assert [(await other).text for other in others] == ["run 2", "run 2"]
    assert counts.runs == 2
    with pytest.raises(asyncio.CancelledError):
        await leader


async def test_a_waiting_call_that_is_cancelled_leaves_the_one_alone():
    counts = Counts()
    counts.gate.clear()
    tool = cached(counts)
    leader = asyncio.create_task(called(tool))
    await counts.entered.wait()
    other = asyncio.create_task(called(tool))
    await asyncio.sleep(0)
    other.cancel()
    await asyncio.wait([other])
    counts.gate.set()
    assert (await leader).text == "run 1"


@pytest.mark.parametrize(
    "outcome",
    [
        Failed("no"),
        Returned("part", cut_bytes=5),
        Returned("x" * MAX_BYTES_OF_ONE),
        Returned("", images=(Image("A" * (MAX_BYTES_OF_ONE + 1), "image/png"),)),
    ],
    ids=["failure", "cut", "large", "large image"],
)
async def test_failures_and_what_is_cut_or_large_is_not_kept(outcome: Outcome):
    counts = Counts(outcome)
    tool = cached(counts)
    await called(tool)
    assert (await called(tool)).text == "run 2"


async def test_the_results_that_were_used_the_longest_ago_go_first():
    cache = ResultCache(max_bytes=2200)
    counts = Counts()
    tool = cached(counts, cache)
    for number in range(5):
        await called(tool, n=number)
        await called(tool, n=0)
    assert cache.size() <= 2200
    runs = counts.runs
    await called(tool, n=0)
    assert counts.runs == runs
    await called(tool, n=1)
    assert counts.runs == runs + 1


async def test_only_an_entry_that_says_that_it_reads_may_keep_results():
    tool = {"kind": "command", "name": "t", "description": "d", "argv": ["ls"], "cache_seconds": 5}
    for safety in (None, "write", "destructive"):
        with pytest.raises(ValueError, match="read_only"):
            Config.model_validate({"model_list": [DEMO], "tools": [{**tool, "safety": safety}]})
    Config.model_validate({"model_list": [DEMO], "tools": [{**tool, "safety": "read_only"}]})
    with pytest.raises(ValueError, match="3600"):
        Config.model_validate({"model_list": [DEMO], "tools": [{**tool, "safety": "read_only", "cache_seconds": 3601}]})


async def test_a_call_that_was_refused_for_its_caller_is_not_the_outcome_of_others():
    counts = Counts(Failed("Not run: the budget of ann is used up.", FailureKind.REFUSED))
    counts.gate.clear()
    tool = cached(counts, shared=True)
    first = asyncio.create_task(called(tool, caller="ann"))
    await counts.entered.wait()
    second = asyncio.create_task(called(tool, caller="bob"))
    await asyncio.sleep(0)
    counts.gate.set()
    assert isinstance(await first, Failed)
    assert (await second).text == "run 2"
