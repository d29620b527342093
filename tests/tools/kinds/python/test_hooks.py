"""Modules of tools are started before their first call and stopped after the last, once in each process."""

import asyncio
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from structlog.testing import capture_logs

from callgate import start, stop
from callgate.calls.outcome import Failed, FailureKind, Returned
from callgate.config.schema.whole import Config
from callgate.tools.building import registry_of
from callgate.tools.kinds.command.process import CommandProcesses
from callgate.tools.kinds.python.function import NotATool
from callgate.tools.kinds.python.hooks import services_of
from callgate.tools.kinds.python.threads import ThreadPool
from callgate.tools.registry import Registry
from callgate.tools.source_pool import SourcePool
from callgate.tools.source_supervisor import CannotOpen, SourceState, SourceSupervisor
from tests.tools.executor_kinds import an_occasion, everything, ready

pytestmark = pytest.mark.anyio

_count = itertools.count()
CONNECTED = """
from callgate import start, stop, tool
from {journal} import journal

pool = None

@start
{async_}def connect():
    global pool
    journal.append("start")
    pool = "a connection"

@stop
{async_}def disconnect():
    global pool
    journal.append("stop")
    pool = None

@tool(safety="read_only")
def lookup(word: str) -> str:
    return f"{{word}} by {{pool}}"

@tool(safety="read_only")
async def count() -> str:
    return f"counted by {{pool}}"
"""


@pytest.fixture
def threads() -> Iterator[ThreadPool]:
    pool = ThreadPool(4)
    yield pool
    pool.close()


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[str, list[str]]]:
    """Writes a module; returns its name and what its hooks note down."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(text: str, **fields: str) -> tuple[str, list[str]]:
        number = next(_count)
        journal, name = f"journal_of_hooks_{number}", f"module_with_hooks_{number}"
        (tmp_path / f"{journal}.py").write_text("journal = []\n")
        (tmp_path / f"{name}.py").write_text(text.format(journal=journal, **fields))
        import importlib

        importlib.invalidate_caches()
        return name, importlib.import_module(journal).journal

    return write


def registry(threads: ThreadPool, pool: SourcePool | None, *entries: dict[str, Any]) -> Registry:
    config = Config.model_validate(
        {
            "model_list": [{"model_name": "demo", "litellm_params": {"model": "demo/demo"}}],
            "tools": [{"kind": "python", **entry} for entry in entries],
        }
    )
    return registry_of(config, lambda: None, threads, CommandProcesses(), pool=pool)  # type: ignore[arg-type, return-value]


async def called(tools: Registry, name: str, **arguments: Any) -> Any:
    found = tools.find(name)
    assert found is not None
    return await found.tool.executor.execute(ready(name, **arguments), an_occasion())


@pytest.mark.parametrize("async_", ["", "async "], ids=["plain", "async"])
async def test_a_module_is_started_with_the_registry_and_stopped_with_it(written, threads, async_):
    name, journal = written(CONNECTED, async_=async_)
    tools = registry(threads, None, {"module": name})
    assert journal == [], "it is only built"
    await tools.open()
    assert journal == ["start"]
    assert [(status.name, status.kind, status.state) for status in tools.services()] == [
        (f"module {name}", "python", SourceState.READY)
    ]
    assert await called(tools, "lookup", word="oauth") == Returned("oauth by a connection")
    assert await called(tools, "count") == Returned("counted by a connection")
    await tools.close()
    assert journal == ["start", "stop"]


async def test_a_module_named_by_several_entries_is_started_once(written, threads):
    name, journal = written(CONNECTED, async_="async ")
    tools = registry(
        threads,
        None,
        {"function": f"{name}:lookup"},
        {"function": f"{name}:lookup", "name": "again"},
        {"module": "callgate.tools.builtin"},
    )
    await tools.open()
    await tools.close()
    assert journal == ["start", "stop"]


async def test_a_reload_neither_stops_nor_starts_it_and_an_entry_that_goes_stops_it(written, threads):
    name, journal = written(CONNECTED, async_="async ")
    pool = SourcePool()
    first = registry(threads, pool, {"module": name})
    await first.open()
    second = registry(threads, pool, {"function": f"{name}:lookup"})
    await second.open()
    await first.close()
    assert journal == ["start"]
    assert await called(second, "lookup", word="x") == Returned("x by a connection")
    await second.close()
    assert journal == ["start", "stop"]
    again = registry(threads, pool, {"module": name})
    await again.open()
    assert await called(again, "lookup", word="y") == Returned("y by a connection")
    await again.close()
    assert journal == ["start", "stop"] * 2


async def test_two_servers_of_one_process_start_it_once_whichever_ends_first(written, threads):
    name, journal = written(CONNECTED, async_="async ")
    first, second = registry(threads, None, {"module": name}), registry(threads, None, {"module": name})
    await asyncio.gather(first.open(), second.open())
    await first.close()
    assert await called(second, "count") == Returned("counted by a connection")
    await second.close()
    assert journal == ["start", "stop"]


HANGING = """
import asyncio
from callgate import start, stop, tool
from {journal} import journal

begun, gate = asyncio.Event(), asyncio.Event()

@{hook}
async def hang():
    journal.append("{hook}")
    begun.set()
    await gate.wait()
    journal.append("end of {hook}")

@{other}
def other():
    journal.append("{other}")

@tool
async def lookup() -> str:
    return "found"
"""


async def test_a_start_waits_for_the_stop_before_it(written, threads):
    name, journal = written(HANGING, hook="stop", other="start")
    pool = SourcePool()
    first = registry(threads, pool, {"module": name})
    await first.open()
    closing = asyncio.create_task(first.close())
    await sys.modules[name].begun.wait()
    second = registry(threads, pool, {"module": name})
    opening = asyncio.create_task(second.open())
    for _ in range(20):
        await asyncio.sleep(0)
    assert journal == ["start", "stop"]
    sys.modules[name].gate.set()
    await asyncio.gather(closing, opening)
    assert await called(second, "lookup") == Returned("found")
    assert journal == ["start", "stop", "end of stop", "start"]
    await second.close()


FAILING = """
from callgate import start, tool
from {journal} import journal

@start
async def connect():
    journal.append("start")
    if len(journal) < 3:
        raise ConnectionRefusedError("no database at db:5432")

@tool
def lookup() -> str:
    return "found"
"""


async def test_a_start_that_fails_is_told_to_the_model_and_the_operator_and_tried_again(written, threads):
    name, journal = written(FAILING)
    going_on = asyncio.Event()
    came_back = asyncio.Event()

    def note(status: Any) -> None:
        if status.state is SourceState.READY:
            came_back.set()

    def delay(failures: int) -> float:
        return 0.0 if going_on.is_set() else 3600.0

    pool = SourcePool(note, delay=delay)
    tools = registry(threads, pool, {"module": name})
    with capture_logs() as lines:
        await tools.open()
    [line] = lines
    assert (line["event"], line["log_level"], line["module"], line["hook"], line["function"]) == (
        "module_hook_raised", "warning", name, "start", "connect",
    )  # fmt: skip
    assert line["where"].endswith(f"{name}.py:9")
    [status] = tools.services()
    assert status.state is SourceState.DOWN
    assert status.error.startswith("`connect` raised ConnectionRefusedError: no database at db:5432 (")
    outcome = await called(tools, "lookup")
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.UNAVAILABLE
    assert outcome.text == (
        f"Not run: module {name} did not start: ConnectionRefusedError: no database at db:5432. "
        "Try again later, or go on without this tool."
    )
    await tools.close()
    going_on.set()
    tools = registry(threads, pool, {"module": name})
    with capture_logs() as lines:
        await tools.open()
        await came_back.wait()
    assert lines == [], "the same failure again"
    assert await called(tools, "lookup") == Returned("found")
    await tools.close()
    assert journal == ["start"] * 3


async def test_a_call_waits_for_a_start_that_is_under_way(written, threads):
    name, _ = written(HANGING, hook="start", other="stop")
    tools = registry(threads, None, {"module": name})
    await tools.open(wait=0)
    await sys.modules[name].begun.wait()
    asking = asyncio.create_task(called(tools, "lookup"))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not asking.done()
    sys.modules[name].gate.set()
    assert await asking == Returned("found")
    await tools.close()


def module_with(**hooks: Any) -> ModuleType:
    module = ModuleType(f"made_with_hooks_{next(_count)}")
    vars(module).update(hooks)
    for function in hooks.values():
        function.__module__ = module.__name__
    sys.modules[module.__name__] = module
    return module


def supervised(module: ModuleType, threads: ThreadPool, **seconds: float) -> SourceSupervisor:
    [service] = services_of(module, threads)
    return SourceSupervisor(service, lambda status: None, delay=lambda failures: 3600.0, **seconds)


async def test_a_stop_that_hangs_is_abandoned(threads):
    released = threading.Event()

    @stop
    async def hang() -> None:
        await asyncio.Event().wait()

    @stop
    def hang_in_a_thread() -> None:
        released.wait()

    for hook in (hang, hang_in_a_thread):
        supervisor = supervised(module_with(hook=hook), threads, close_seconds=0.01)
        supervisor.start()
        await supervisor.tried()
        with capture_logs() as lines:
            assert await supervisor.stop()
        assert [(line["event"], line["function"]) for line in lines] == [("module_stop_abandoned", hook.__name__)]
    released.set()


async def test_a_stop_that_raises_is_logged_and_ends_nothing_else(threads):
    @stop
    def disconnect() -> None:
        raise SystemExit("no")

    supervisor = supervised(module_with(hook=disconnect), threads)
    supervisor.start()
    await supervisor.tried()
    with capture_logs() as lines:
        assert await supervisor.stop()
    assert [(line["event"], line["hook"]) for line in lines] == [("module_hook_raised", "stop")]


async def test_a_start_in_a_thread_that_takes_too_long_is_not_begun_a_second_time(threads):
    loop = asyncio.get_running_loop()
    has_begun, released = asyncio.Event(), threading.Event()
    begun = []

    @start
    def connect() -> None:
        begun.append(1)
        loop.call_soon_threadsafe(has_begun.set)
        released.wait()

    module = module_with(hook=connect)
    [service] = services_of(module, threads)
    first = asyncio.create_task(service.open())
    await has_begun.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert threads.stuck == 1
    with pytest.raises(CannotOpen, match="still starting: `connect` has not returned"):
        await service.open()
    released.set()
    await everything(lambda: not threads.stuck)
    await service.open()
    assert await service.trouble() == ""
    assert begun == [1]
    await service.close()


async def test_a_start_that_never_got_a_thread_is_begun_by_the_next_attempt(threads):
    begun = []

    @start
    def connect() -> None:
        begun.append(1)

    [service] = services_of(module_with(hook=connect), threads)
    first = asyncio.create_task(service.open())
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await service.open()
    assert begun == [1]
    await service.close()


async def test_hooks_that_are_imported_belong_to_their_own_module(written, threads):
    name, journal = written(CONNECTED, async_="")
    one, _ = written(f"from {name} import connect, disconnect, lookup as found\n")
    two, _ = written(f"from {name} import connect, disconnect, count as counted\n")
    tools = registry(threads, None, {"function": f"{one}:found"}, {"function": f"{two}:counted"})
    await tools.open()
    assert [status.name for status in tools.services()] == [f"module {name}"]
    await tools.close()
    assert journal == ["start", "stop"]


def test_what_cannot_be_a_hook_says_why(threads):
    def needs_one(database: str) -> None: ...
    def generates() -> Iterator[int]:
        yield 1

    for wrong, why in [(needs_one, "takes database"), (generates, "generator"), (len, "above a function")]:
        with pytest.raises(TypeError, match=why):
            start(wrong)  # type: ignore[type-var]

    @start
    def connect(database: str = "here") -> None: ...
    @start
    def connect_again() -> None: ...

    with pytest.raises(NotATool, match="marks both connect and connect_again with @start"):
        services_of(module_with(a=connect, b=connect_again), threads)


def test_a_module_without_hooks_has_its_tools_as_they_are(threads):
    tools = registry(threads, None, {"module": "callgate.tools.builtin"})
    assert [type(tool.tool.executor).__name__ for tool in tools.tools()] == ["PythonFunction", "PythonFunction"]
    assert tools.services() == ()
