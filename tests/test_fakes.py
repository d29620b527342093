"""The fakes keep to the ports they stand for, and the harness looks after what tests leave behind."""

import asyncio
import subprocess
import sys
import threading

import pytest

from callgate.calls.outcome import Failed, FailureKind, Returned
from callgate.conversation.errors import BrokenOff, ChatError
from callgate.conversation.events import CallStarted, ChatEnded, Ending, EndingKind, ModelOutput, TextDelta
from callgate.conversation.ports import Model, ModelRequest, ProgressReport, Toolbox
from callgate.tools.executor import Executor, Source
from tests.fakes import (
    AnsweringTool,
    CountingTool,
    EchoTool,
    FailingTool,
    FakeSource,
    GatedTool,
    HangingTool,
    Listener,
    ReportingTool,
    ScriptedModel,
    ScriptedToolbox,
    after,
    ask_for,
    broken_off,
    calls,
    counter,
    hangs,
    occasion,
    ready,
    says,
    tool,
)
from tests.harness import leftovers
from tests.harness.needs import REQUIRE, demanded, missing
from tests.harness.process import ROOT

pytestmark = pytest.mark.anyio


async def events_from(model: ScriptedModel, request: ModelRequest, listener: Listener | None = None) -> Listener:
    listener = listener or Listener()
    async with model.send(request) as answer:
        async for events in answer:
            await listener(ModelOutput(0, events))
    return listener


async def test_the_fakes_satisfy_the_ports():
    model: Model = ScriptedModel(says("x"))
    toolbox: Toolbox = ScriptedToolbox({"theirs"}, echo=EchoTool())
    executors: list[Executor] = [EchoTool(), HangingTool(), GatedTool(), CountingTool(), FailingTool(), ReportingTool()]
    source: Source = FakeSource(tool("echo", executors[0]))
    assert model.name == "scripted"
    assert set(toolbox.offer) == {"echo", "theirs"}
    assert toolbox.offer["theirs"].check is None
    await source.open()
    assert [one.name for one in source.tools()] == ["echo"]


async def test_a_scripted_model_says_its_turns_and_keeps_what_it_was_asked():
    model = ScriptedModel(calls(("f", {"a": 1}), ("g", '{"half'), text="wait"), says("done", usage={"total_tokens": 3}))
    first = await events_from(model, ask_for("one"))
    second = await events_from(model, ask_for("two"))
    assert (first.text, second.text) == ("wait", "done")
    assert [asking.messages[0]["content"] for asking in model.asked] == ["one", "two"]
    assert [asking.end for asking in model.asked] == ["read", "read"]
    with pytest.raises(AssertionError, match="asked 3 times and has 2 turns"):
        await events_from(model, ask_for())


async def test_a_scripted_model_waits_at_its_gate():
    gate = asyncio.Event()
    model = ScriptedModel(after(gate, says("now")))
    listening = asyncio.create_task(events_from(model, ask_for()))
    await model.wait()
    assert not listening.done()
    gate.set()
    assert (await listening).text == "now"


async def test_a_scripted_model_refuses_or_breaks_off():
    refused = ScriptedModel([ChatError(429, "slow down")])
    with pytest.raises(ChatError):
        await events_from(refused, ask_for())
    broken = ScriptedModel(broken_off(says("x" * 20), BrokenOff("cut", transport_error=True), keep=2))
    listener = Listener()
    with pytest.raises(BrokenOff):
        await events_from(broken, ask_for(), listener)
    assert listener.text == "x" * 16
    assert [refused.asked[0].end, broken.asked[0].end] == ["failed", "failed"]


async def test_a_scripted_model_records_who_left_and_who_was_cancelled():
    model = ScriptedModel(says("x" * 20), hangs())
    async with model.send(ask_for()) as answer:
        async for _ in answer:
            break
    listening = asyncio.create_task(events_from(model, ask_for()))
    await model.wait(2)
    listening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await listening
    assert [asking.end for asking in model.asked] == ["left", "cancelled"]
    assert model.asked[1].closed.is_set()


async def test_tools_answer_fail_report_and_count():
    assert await EchoTool().execute(ready(arguments={"a": "é"}), occasion()) == Returned('{"a": "é"}')
    assert await FailingTool("no", FailureKind.REFUSED).execute(ready(), occasion()) == Failed(
        "no", FailureKind.REFUSED
    )
    words: list[tuple[str, float | None]] = []

    async def report(progress: ProgressReport) -> None:
        words.append((progress.message, progress.fraction))

    await ReportingTool("half", "all").execute(ready(), occasion(report))
    assert words == [("half", 0.5), ("all", 1.0)]
    several = AnsweringTool("one", "two")
    assert [(await several.execute(ready(), occasion())).text for _ in range(3)] == ["one", "two", "two"]


async def test_a_counting_tool_records_how_many_ran_at_once():
    gated = GatedTool()
    counting = CountingTool(gated)
    running = [asyncio.create_task(counting.execute(ready(call_id=str(n)), occasion())) for n in range(3)]
    await counting.wait(3)
    assert (counting.running, counting.peak) == (3, 3)
    gated.gate.set()
    await asyncio.gather(*running)
    assert counting.running == 0


async def test_a_hanging_tool_says_that_it_was_cancelled():
    hanging = HangingTool()
    running = asyncio.create_task(hanging.execute(ready(), occasion()))
    await hanging.started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert hanging.cancelled.is_set()


async def test_a_scripted_toolbox_sorts_calls_into_exactly_one_pile():
    toolbox = ScriptedToolbox({"theirs"}, echo=EchoTool())
    plan = toolbox.plan([ready("echo"), ready("theirs")])
    assert ([c.name for c in plan.ours], [c.name for c in plan.theirs], plan.broken) == (["echo"], ["theirs"], ())
    assert await toolbox.run(ready("echo", {"a": 1}), occasion().report) == Returned('{"a": 1}')


async def test_a_listener_can_be_waited_on_and_insists_on_one_end():
    listener = Listener()
    waiting = asyncio.create_task(listener.wait_for(CallStarted))
    await listener(CallStarted(0, ready("f")))
    assert len(await waiting) == 1
    await listener(ChatEnded(Ending(EndingKind.ANSWERED, "stop"), None))
    assert listener.ended.ending.finish_reason == "stop"
    await listener(ModelOutput(0, [TextDelta("late")]))
    with pytest.raises(AssertionError, match="ModelOutput was emitted after the end"):
        _ = listener.ended


def test_a_counter_never_repeats():
    new_id = counter("call")
    assert [new_id(), new_id()] == ["call_1", "call_2"]


# What tests leave behind -------------------------------------------------------------------------


def test_a_thread_that_stays_is_named(monkeypatch):
    monkeypatch.setattr(leftovers, "PATIENCE", 0.05)
    before, gate = leftovers.threads(), threading.Event()
    thread = threading.Thread(target=gate.wait, name="the one that stayed")
    thread.start()
    try:
        assert leftovers.new_threads(before) == ["the one that stayed"]
        assert leftovers.new_threads(before, allowed=["the one"]) == []
    finally:
        gate.set()
        thread.join()
    assert leftovers.new_threads(before) == []


def test_a_process_that_stays_is_named(monkeypatch):
    monkeypatch.setattr(leftovers, "PATIENCE", 0.05)
    before = leftovers.children()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        try:
            [left] = leftovers.new_children(before)
            assert left.startswith(f"{process.pid} ")
        finally:
            process.communicate(b"\n")
    assert leftovers.new_children(before) == []


LEAKING = """
import asyncio, pytest

@pytest.mark.anyio
async def test_leaks():
    keep.append(asyncio.create_task(asyncio.Event().wait(), name="a forgotten task"))

keep = []

@pytest.mark.needs("no-such-command-anywhere")
def test_needs(): pass
"""


def test_a_forgotten_task_fails_its_test_and_a_missing_part_is_counted(tmp_path):
    (tmp_path / "test_leaking.py").write_text(LEAKING, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider", str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    assert "tasks left behind" in run.stdout
    assert "a forgotten task" in run.stdout
    assert "skipped for lack of no-such-command-anywhere (1)" in run.stdout
    assert run.returncode == 1


def test_a_part_that_is_missing_can_be_demanded(monkeypatch):
    assert missing(("module:json", "module:no_such_module", "env:NO_SUCH_VARIABLE_HERE", "no-such-command")) == [
        "module:no_such_module",
        "env:NO_SUCH_VARIABLE_HERE",
        "no-such-command",
    ]
    monkeypatch.setenv(REQUIRE, "node,module:x")
    assert demanded("node")
    assert not demanded("redis-server")
    monkeypatch.setenv(REQUIRE, "all")
    assert demanded("redis-server")
