import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from callgate.calls.outcome import Failed, FailureKind, Outcome, Returned
from callgate.calls.states import BrokenCall, Call, Flaw, ReadyCall
from callgate.conversation.ports import Report
from callgate.tools.approvals.rules import ApprovalRule
from callgate.tools.concurrency import MAX_WAITING, ConcurrencyLimits
from callgate.tools.executor import CallContext, Policy, Safety, Tool
from callgate.tools.registry import Registry
from callgate.tools.toolbox import KEPT_BYTES, STOP_SECONDS, RequestToolbox, ToolSet
from tests.tools.executor_kinds import PARAMETERS, everything, silent

Work = Callable[[ReadyCall, CallContext], Awaitable[Outcome]]


class Does:
    """An executor that does what it was given, and remembers what it was asked."""

    def __init__(self, work: Work | None = None) -> None:
        self.work = work
        self.calls: list[tuple[ReadyCall, CallContext]] = []

    async def execute(self, call: ReadyCall, occasion: CallContext) -> Outcome:
        self.calls.append((call, occasion))
        return await self.work(call, occasion) if self.work else Returned(f"{call.name} was run")


def a_tool(name: str, work: Work | None = None, **policy: Any) -> Tool:
    return Tool(name, f"About {name}.", PARAMETERS, Does(work), policy=Policy(**policy))


def registry_of(*tools: Tool) -> Registry:
    registry = Registry(approval=ApprovalRule(never=("*",)))  # else those that are destructive wait
    registry.add(*tools)
    return registry


def box(registry: Registry, *client: dict[str, Any], **options: Any) -> RequestToolbox:
    raw = [msgspec.Raw(json.dumps(each).encode()) for each in client]
    options = {"delay": lambda failures: 0.0, "limits": registry.limits, **options}
    return RequestToolbox(server_tools=ToolSet(registry.tools()), client_tools=raw, run_id="run_1", **options)


def clients(name: str, **parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}, "extra": 1}


def call(name: str, id: str = "call_1") -> ReadyCall:
    return ReadyCall(id, name, {"city": "Oslo"}, '{"city":"Oslo"}')


def executor(tool: Tool) -> Does:
    assert isinstance(tool.executor, Does)
    return tool.executor


def offered_names(toolbox: RequestToolbox) -> list[str]:
    decoded = [msgspec.json.decode(raw) for raw in toolbox.definitions()]
    return [each[each["type"]]["name"] for each in decoded]


# Whose a name is ----------------------------------------------------------------------------------


def test_the_clients_tools_go_first_byte_for_byte_and_ours_follow():
    registry = registry_of(a_tool("weather"), a_tool("clock"))
    raw = msgspec.Raw(b'{ "type":"function", "function": {"name":"mine", "strict": true} , "future": 1 }')
    toolbox = RequestToolbox(server_tools=ToolSet(registry.tools()), client_tools=[raw], run_id="r")
    assert toolbox.definitions()[0] is raw
    assert offered_names(toolbox) == ["mine", "clock", "weather"]
    assert list(toolbox.offer) == ["mine", "clock", "weather"]
    assert len(toolbox.offer) == 3


def test_the_clients_name_wins_and_ours_is_offered_under_the_prefix():
    toolbox = box(registry_of(a_tool("weather")), clients("weather", type="object"))
    assert offered_names(toolbox) == ["weather", "callgate__weather"]
    assert toolbox.offer["weather"].check is None
    assert toolbox.offer["callgate__weather"].check is not None
    assert toolbox.offer["callgate__weather"].name == "callgate__weather"
    plan = toolbox.plan([call("weather", "a"), call("callgate__weather", "b")])
    assert [each.id for each in plan.theirs] == ["a"]
    assert [each.id for each in plan.ours] == ["b"]
    assert toolbox.is_clients("weather")
    assert not toolbox.is_clients("callgate__weather")


@pytest.mark.anyio
async def test_a_tool_under_another_name_is_run_under_its_own():
    weather = a_tool("weather")
    toolbox = box(registry_of(weather), clients("weather"))
    assert await toolbox.run(call("callgate__weather"), silent) == Returned("weather was run")


def test_a_client_may_even_take_the_prefixed_name():
    long = "w" * 64
    toolbox = box(
        registry_of(a_tool("weather"), a_tool(long)), clients("weather"), clients("callgate__weather"), clients(long)
    )
    ours = offered_names(toolbox)[3:]
    assert len(set(offered_names(toolbox))) == 5
    assert all(len(name) <= 64 and name.startswith("callgate__w") for name in ours)
    assert not any(toolbox.is_clients(name) for name in ours)


def test_a_custom_tool_of_the_client_is_passed_through_and_is_never_ours():
    custom = {"type": "custom", "custom": {"name": "weather", "format": {"type": "grammar"}}}
    toolbox = box(registry_of(a_tool("weather")), custom)
    assert msgspec.json.decode(toolbox.definitions()[0]) == custom
    assert toolbox.is_clients("weather")
    assert toolbox.offer["weather"].parameters == {}
    assert [each.name for each in toolbox.plan([call("weather")]).theirs] == ["weather"]


def test_a_tool_of_the_client_that_cannot_be_read_goes_on_as_it_came():
    raws = [
        msgspec.Raw(text) for text in (b'"odd"', b'{"type":"function","function":{"name":5}}', b'{"type":"x"}', b"{")
    ]
    toolbox = RequestToolbox(server_tools=ToolSet(registry_of(a_tool("clock")).tools()), client_tools=raws, run_id="r")
    assert list(toolbox.definitions()[:4]) == raws
    assert list(toolbox.offer) == ["clock"]


def test_a_schema_of_the_clients_is_decoded_only_when_a_call_asks_for_it():
    raw = msgspec.Raw(b'{"type":"function","function":{"name":"mine","parameters":{"type":"object","x":1}}}')
    toolbox = RequestToolbox(server_tools=ToolSet(()), client_tools=[raw] * 1, run_id="r")
    assert "mine" in toolbox.offer
    assert list(toolbox.offer) == ["mine"]
    assert toolbox.offer._client_tools == {}  # type: ignore[attr-defined]
    assert toolbox.offer["mine"].parameters == {"type": "object", "x": 1}
    assert toolbox.offer["mine"] is toolbox.offer["mine"]
    with pytest.raises(KeyError):
        toolbox.offer["other"]


@pytest.mark.parametrize("parameters", ["null", "[]", "5", '"text"'])
def test_an_invalid_schema_of_a_client_becomes_an_empty_one(parameters):
    raw = msgspec.Raw(f'{{"type":"function","function":{{"name":"mine","parameters":{parameters}}}}}'.encode())
    toolbox = RequestToolbox(server_tools=ToolSet(()), client_tools=[raw], run_id="r")
    assert toolbox.offer["mine"].parameters == {}


# Where calls go -----------------------------------------------------------------------------------


def test_each_call_lands_in_exactly_one_pile():
    toolbox = box(registry_of(a_tool("weather")), clients("mine"))
    broken = BrokenCall("c", "mine", Flaw.TRUNCATED, "{")
    nameless = BrokenCall("d", None, Flaw.MISSING_NAME, "")
    calls: list[Call] = [call("weather", "a"), call("mine", "b"), broken, nameless, call("unheard_of", "e")]
    plan = toolbox.plan(calls)
    assert plan.ours == (calls[0],)
    assert plan.theirs == (calls[1],)
    assert plan.broken[:2] == (broken, nameless)
    assert (plan.broken[2].id, plan.broken[2].flaw) == ("e", Flaw.UNKNOWN_TOOL)


def test_only_read_only_tools_do_not_write():
    toolbox = box(
        registry_of(a_tool("look", safety=Safety.READ_ONLY), a_tool("send"), a_tool("drop", safety=Safety.DESTRUCTIVE))
    )
    assert [toolbox.writes(call(name)) for name in ("look", "send", "drop")] == [False, True, True]


# Running ------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_the_context_of_a_call_has_the_run_the_turn_and_a_key_of_its_own():
    weather = a_tool("weather", max_result_bytes=10_000_000)
    toolbox = box(registry_of(weather))
    for _ in range(2):
        toolbox.plan([call("weather")])
        await toolbox.run(call("weather"), silent)
    (_, first), (_, second) = executor(weather).calls
    assert (first.run_id, first.turn, second.turn) == ("run_1", 0, 1)
    assert first.key != second.key
    assert first.max_bytes == 10_000_000 > KEPT_BYTES


@pytest.mark.anyio
async def test_five_calls_of_one_turn_run_at_the_same_time():
    """Each waits for the other four to have begun, so they overlap or nobody ever ends."""
    barrier = asyncio.Barrier(5)

    async def meets(call: ReadyCall, occasion: CallContext) -> Outcome:
        await barrier.wait()
        return Returned("met")

    toolbox = box(registry_of(a_tool("meets", meets)))
    async with asyncio.timeout(30):
        outcomes = await asyncio.gather(*(toolbox.run(call("meets", str(n)), silent) for n in range(5)))
    assert outcomes == [Returned("met")] * 5


class Crowd:
    """Work that can be counted while it goes on."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self.limiter = asyncio.Event()

    async def __call__(self, call: ReadyCall, occasion: CallContext) -> Outcome:
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await self.limiter.wait()
        finally:
            self.inside -= 1
        return Returned("done")


@pytest.mark.anyio
async def test_no_more_calls_of_a_tool_run_than_it_allows_for_all_callers():
    crowd = Crowd()
    registry = registry_of(a_tool("busy", crowd, concurrency=2))
    one, other = box(registry), box(registry)
    async with asyncio.timeout(30):
        running = [asyncio.create_task(toolbox.run(call("busy"), silent)) for toolbox in (one, other) * 3]
        await everything(lambda: crowd.inside == 2)
        for _ in range(10):
            await asyncio.sleep(0)
        assert crowd.inside == 2
        crowd.limiter.set()
        assert await asyncio.gather(*running) == [Returned("done")] * 6
    assert crowd.most == 2


@pytest.mark.anyio
async def test_the_tools_of_a_source_share_its_places_and_all_share_the_houses():
    crowd = Crowd()
    registry = Registry(limits=ConcurrencyLimits(max_running=3))
    registry.add(a_tool("a", crowd), a_tool("b", crowd))
    registry.limits.limit_source("", 2)
    toolbox = box(registry)
    async with asyncio.timeout(30):
        running = [asyncio.create_task(toolbox.run(call(name), silent)) for name in ("a", "b", "a", "b")]
        await everything(lambda: crowd.inside == 2)
        registry.limits.limit_source("", None)
        running += [asyncio.create_task(toolbox.run(call(name), silent)) for name in ("a", "b")]
        await everything(lambda: crowd.inside == 3)
        for _ in range(10):
            await asyncio.sleep(0)
        assert crowd.inside == 3
        crowd.limiter.set()
        await asyncio.gather(*running)


@pytest.mark.anyio
async def test_a_call_that_finds_no_place_in_time_is_refused_and_was_not_run():
    crowd = Crowd()
    busy = a_tool("busy", crowd, concurrency=1)
    toolbox = box(registry_of(busy), queue_seconds=0.05)
    crowd_first = replace(busy, policy=replace(busy.policy, timeout=60))
    holding = asyncio.create_task(box(registry_with_limits(toolbox, crowd_first)).run(call("busy"), silent))
    async with asyncio.timeout(30):
        await everything(lambda: crowd.inside == 1)
        outcome = await toolbox.run(call("busy"), silent)
        crowd.limiter.set()
        await holding
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.REFUSED
    assert len(executor(busy).calls) == 1


def registry_with_limits(toolbox: RequestToolbox, *tools: Tool) -> Registry:
    registry = Registry(limits=toolbox.limits)
    registry.add(*tools)
    return registry


@pytest.mark.anyio
async def test_calls_beyond_what_may_wait_are_turned_away_at_once():
    crowd = Crowd()
    toolbox = box(registry_of(a_tool("busy", crowd, concurrency=1)))
    async with asyncio.timeout(30):
        running = [asyncio.create_task(toolbox.run(call("busy"), silent)) for _ in range(MAX_WAITING + 1)]
        await everything(lambda: toolbox.limits.on_the_way_to("config/busy", "")[0].waiting == MAX_WAITING)
        outcome = await toolbox.run(call("busy"), silent)
        assert isinstance(outcome, Failed)
        assert outcome.kind is FailureKind.REFUSED
        crowd.limiter.set()
        assert set(await asyncio.gather(*running)) == {Returned("done")}


def failing(times: int, kind: FailureKind = FailureKind.UNAVAILABLE) -> Work:
    left = times

    async def work(call: ReadyCall, occasion: CallContext) -> Outcome:
        nonlocal left
        left -= 1
        return Failed("not now", kind) if left >= 0 else Returned("at last")

    return work


@pytest.mark.anyio
async def test_a_read_only_tool_is_tried_again_with_the_same_key():
    look = a_tool("look", failing(2), safety=Safety.READ_ONLY, retries=2)
    assert await box(registry_of(look)).run(call("look"), silent) == Returned("at last")
    assert len({occasion.key for _, occasion in executor(look).calls}) == 1
    assert len(executor(look).calls) == 3


@pytest.mark.anyio
@pytest.mark.parametrize(
    "policy, kind",
    [
        ({"safety": Safety.WRITE, "retries": 5}, FailureKind.UNAVAILABLE),
        ({"safety": Safety.DESTRUCTIVE, "retries": 5}, FailureKind.UNAVAILABLE),
        ({"safety": Safety.READ_ONLY, "retries": 0}, FailureKind.UNAVAILABLE),
        ({"safety": Safety.READ_ONLY, "retries": 5}, FailureKind.RAISED),
        ({"safety": Safety.READ_ONLY, "retries": 5}, FailureKind.REFUSED),
        ({"safety": Safety.READ_ONLY, "retries": 5}, FailureKind.NOT_RUN),
    ],
)
async def test_nothing_else_is_tried_again(policy, kind):
    tool = a_tool("tool", failing(1, kind), **policy)
    assert await box(registry_of(tool)).run(call("tool"), silent) == Failed("not now", kind)
    assert len(executor(tool).calls) == 1


@pytest.mark.anyio
async def test_tries_end_with_the_tools_time():
    look = a_tool("look", failing(99), safety=Safety.READ_ONLY, retries=10, timeout=1.0)
    outcome = await box(registry_of(look), delay=lambda failures: 2.0).run(call("look"), silent)
    assert outcome == Failed("not now", FailureKind.UNAVAILABLE)
    assert len(executor(look).calls) == 1


@pytest.mark.anyio
async def test_a_write_that_timed_out_is_reported_as_possibly_done():
    async def hangs(call: ReadyCall, occasion: CallContext) -> Outcome:
        await asyncio.Event().wait()
        raise AssertionError

    registry = registry_of(
        a_tool("send", hangs, timeout=0.05), a_tool("look", hangs, timeout=0.05, safety=Safety.READ_ONLY)
    )
    sent = await box(registry).run(call("send"), silent)
    looked = await box(registry).run(call("look"), silent)
    assert "may or may not have happened" in sent.text
    assert "may" not in looked.text


@pytest.mark.anyio
async def test_an_executor_that_raises_costs_one_call_and_is_reported():
    async def bug(call: ReadyCall, occasion: CallContext) -> Outcome:
        raise LookupError("our mistake, with a secret")

    seen: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda loop, context: seen.append(context))
    try:
        outcome = await box(registry_of(a_tool("bug", bug))).run(call("bug"), silent)
    finally:
        loop.set_exception_handler(before)
    assert isinstance(outcome, Failed)
    assert "secret" not in outcome.text
    assert isinstance(seen[0]["exception"], LookupError)


@pytest.mark.anyio
async def test_a_tool_cancelled_from_within_is_a_failure_and_not_the_end_of_the_chat():
    async def cancelled(call: ReadyCall, occasion: CallContext) -> Outcome:
        raise asyncio.CancelledError

    outcome = await box(registry_of(a_tool("odd", cancelled))).run(call("odd"), silent)
    assert isinstance(outcome, Failed)


@pytest.mark.anyio
async def test_a_tool_that_does_not_stop_is_let_go_and_keeps_its_place_until_it_ends():
    begun, end = asyncio.Event(), asyncio.Event()

    async def stubborn(call: ReadyCall, occasion: CallContext) -> Outcome:
        begun.set()
        while not end.is_set():
            try:
                await end.wait()
            except asyncio.CancelledError:
                continue
        return Returned("too late")

    toolbox = box(registry_of(a_tool("stubborn", stubborn, concurrency=1, timeout=20)))
    limiter = toolbox.limits.on_the_way_to("config/stubborn", "")[0]
    async with asyncio.timeout(30):
        running = asyncio.create_task(toolbox.run(call("stubborn"), silent))
        await begun.wait()
        running.cancel()
        _, late = await asyncio.wait([running], timeout=2 * STOP_SECONDS)
        assert not late
        try:
            assert limiter._semaphore.locked()
        finally:
            end.set()
        await everything(lambda: not limiter._semaphore.locked())


@pytest.mark.anyio
async def test_cancelling_while_waiting_for_a_place_gives_nothing_away():
    crowd = Crowd()
    toolbox = box(registry_of(a_tool("busy", crowd, concurrency=1)))
    async with asyncio.timeout(30):
        first = asyncio.create_task(toolbox.run(call("busy"), silent))
        await everything(lambda: crowd.inside == 1)
        second = asyncio.create_task(toolbox.run(call("busy"), silent))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait([second])
        crowd.limiter.set()
        assert await first == Returned("done")
        assert await toolbox.run(call("busy"), silent) == Returned("done")


@pytest.mark.anyio
async def test_cancelling_between_two_limiters_gives_the_first_back():
    crowd = Crowd()
    registry = registry_of(a_tool("a", crowd), a_tool("b", crowd, concurrency=1))
    registry.limits.limit_source("", 1)
    toolbox = box(registry)
    async with asyncio.timeout(30):
        first = asyncio.create_task(toolbox.run(call("a"), silent))
        await everything(lambda: crowd.inside == 1)
        second = asyncio.create_task(toolbox.run(call("b"), silent))
        await everything(lambda: registry.limits.on_the_way_to("config/b", "")[1].waiting == 1)
        second.cancel()
        await asyncio.wait([second])
        crowd.limiter.set()
        assert await first == Returned("done")
        assert await toolbox.run(call("b"), silent) == Returned("done")


@pytest.mark.anyio
async def test_a_long_result_is_cut_to_the_policy():
    async def prints(call: ReadyCall, occasion: CallContext) -> Outcome:
        return Returned("é" * 1000)

    outcome = await box(registry_of(a_tool("prints", prints, max_result_bytes=300))).run(call("prints"), silent)
    assert isinstance(outcome, Returned)
    assert len(outcome.text.encode()) <= 300
    assert outcome.cut_bytes == 2000 - 2 * outcome.text.count("é")


# Approval -----------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_tool_that_needs_approval_does_not_run_without_an_approver():
    send = a_tool("send", require_approval=True)
    outcome = await box(registry_of(send)).run(call("send"), silent)
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.REFUSED
    assert executor(send).calls == []


@pytest.mark.anyio
@pytest.mark.parametrize("answer", [None, Failed("Denied by Ann.", FailureKind.REFUSED)])
async def test_approval_is_asked_for_before_the_run_and_decides(answer: Failed | None):
    asked: list[tuple[str, str]] = []

    async def approve(tool: Tool, call: ReadyCall, report: Report, key: str) -> Failed | None:
        asked.append((tool.name, call.id))
        return answer

    send, free = a_tool("send", require_approval=True), a_tool("free")
    toolbox = box(registry_of(send, free), approve=approve)
    assert await toolbox.run(call("send"), silent) == (answer or Returned("send was run"))
    await toolbox.run(call("free"), silent)
    assert asked == [("send", "call_1")]
    assert len(executor(send).calls) == (0 if answer else 1)
