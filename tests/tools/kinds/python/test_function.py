import asyncio
import contextlib
import datetime as dt
import enum
import functools
import inspect
import json
import sys
import threading
import types
from collections.abc import Callable
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field
from structlog.testing import capture_logs

from callgate import Context, ToolError, tool
from callgate.calls.outcome import Failed, FailureKind, Image, Outcome, Returned
from callgate.conversation.ports import ProgressReport
from callgate.tools.executor import CallContext, Policy, Safety, Tool
from callgate.tools.kinds.python.function import NotATool, functions_at, python_tool
from callgate.tools.kinds.python.threads import ThreadPool
from tests.tools.executor_kinds import an_occasion, everything, ready


class Unit(enum.Enum):
    CELSIUS = "c"
    KELVIN = "k"


class Place(BaseModel):
    """Somewhere."""

    lat: float
    lon: float = 0.0


@pytest.fixture
def threads():
    pool = ThreadPool(2)
    yield pool
    pool.close()


async def run_tool(tool: Tool, **arguments: Any) -> Outcome:
    return await tool.executor.execute(ready(tool.name, **arguments), an_occasion())


# What the model is shown --------------------------------------------------------------------------


def test_the_schema_comes_from_hints_and_docstring(threads):
    def forecast(
        city: str,
        when: dt.datetime,
        unit: Unit = Unit.CELSIUS,
        days: Annotated[int, Field(ge=1, le=7, description="how many days")] = 1,
        *,
        detail: Literal["low", "high"] = "low",
        note: str | None = None,
    ) -> str:
        """Forecast the weather.

        Args:
            city: where
            days: not this text
        """
        return ""

    made = python_tool(forecast, threads)
    assert made.name == "forecast"
    assert made.description == "Forecast the weather."
    assert made.source.endswith("forecast")
    assert made.parameters == {
        "type": "object",
        "additionalProperties": False,
        "required": ["city", "when"],
        "properties": {
            "city": {"type": "string", "description": "where"},
            "when": {"type": "string", "format": "date-time"},
            "unit": {"$ref": "#/$defs/Unit", "default": "c"},
            "days": {"type": "integer", "minimum": 1, "maximum": 7, "default": 1, "description": "how many days"},
            "detail": {"type": "string", "enum": ["low", "high"], "default": "low"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        },
        "$defs": {"Unit": {"enum": ["c", "k"], "type": "string"}},
    }


def test_a_function_without_parameters_has_an_empty_object(threads):
    assert python_tool(lambda: "hi", threads, name="hi").parameters == {
        "type": "object",
        "properties": {},
        "additionalProperties": False,
    }


@pytest.mark.anyio
async def test_parameters_may_have_names_that_pydantic_keeps_for_itself(threads):
    async def odd(schema: str, model_config: int, json: bool, _private: str = "p", copy: str = "c") -> Any:
        return [schema, model_config, json, _private, copy]

    made = python_tool(odd, threads)
    assert list(made.parameters["properties"]) == ["schema", "model_config", "json", "_private", "copy"]
    assert await run_tool(made, schema="s", model_config=1, json=True) == Returned('["s",1,true,"p","c"]')


def test_the_decorator_names_describes_and_sets_the_policy(threads):
    @tool(name="look", description="Look it up.", safety="read_only", timeout=3, retries=2)
    def search(q: str) -> str:
        """Not this."""
        return q

    made = python_tool(search, threads, defaults=Policy(timeout=9, concurrency=4))
    assert (made.name, made.description) == ("look", "Look it up.")
    assert made.policy == Policy(timeout=3, concurrency=4, safety=Safety.READ_ONLY, safety_is_given=True, retries=2)
    assert search("still a function") == "still a function"


def test_the_config_overrides_the_decorator(threads):
    @tool(name="look", timeout=3)
    def search(q: str) -> str:
        return q

    made = python_tool(search, threads, name="find", overrides={"timeout": 1.0, "safety": Safety.DESTRUCTIVE})
    assert made.name == "find"
    assert made.policy == Policy(timeout=1.0, safety=Safety.DESTRUCTIVE)


def test_a_misspelt_policy_is_an_error_at_once():
    with pytest.raises(TypeError, match="timeoot"):
        tool(timeoot=3)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="harmless"):
        tool(safety="harmless")


def test_what_cannot_be_a_tool_says_why(threads):
    def many(*names: str) -> None: ...
    def any_name(**names: str) -> None: ...
    def generates() -> Any:
        yield 1

    def odd(lock: threading.Event) -> None: ...
    def unknown(x: "NoSuchType") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    cases: list[tuple[Callable[..., Any], str]] = [
        (many, "names each"),
        (any_name, "names each"),
        (generates, "generator"),
        (odd, "type"),
        (unknown, "NoSuchType"),
    ]
    for function, why in cases:
        with pytest.raises(NotATool, match=why):
            python_tool(function, threads)


# Where functions are found ------------------------------------------------------------------------


@pytest.fixture
def module(monkeypatch):
    made = types.ModuleType("weather_tools_for_tests")

    def plain() -> str:
        return "plain"

    @tool
    def first() -> str:
        return "first"

    @tool(name="zweite")
    def second() -> str:
        return "second"

    for each in (plain, second, first):
        setattr(made, each.__name__, each)
    made.alias = first  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made


def test_a_module_gives_its_marked_functions_once_each(module):
    assert functions_at("weather_tools_for_tests") == (module.second, module.first)


def test_a_path_gives_any_function_marked_or_not(module):
    assert functions_at("weather_tools_for_tests:plain") == (module.plain,)
    assert functions_at("weather_tools_for_tests:first") == (module.first,)


@pytest.mark.parametrize(
    "path, why",
    [
        ("weather_tools_for_tests:third", "has no third"),
        ("weather_tools_for_tests:__name__", "not a function"),
        ("no_such_module_at_all:f", "no module no_such_module_at_all"),
        ("callgate.tools.registri", r"is it callgate\.tools\.registry\?"),
        ("callgate.calls.legal_names", "no function marked"),
    ],
)
def test_a_path_that_leads_nowhere_is_an_error_with_the_reason(module, path, why):
    with pytest.raises(NotATool, match=why):
        functions_at(path)


def test_a_module_that_fails_to_import_is_reported_with_its_error(tmp_path, monkeypatch):
    (tmp_path / "broken_tools.py").write_text("import no_such_dependency\n")
    (tmp_path / "worse_tools.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(NotATool, match="no_such_dependency"):
        functions_at("broken_tools")
    with pytest.raises(NotATool, match="ZeroDivisionError"):
        functions_at("worse_tools")


# How they run -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("json", "the standard library"),  # loaded long ago
        ("chunk" if "chunk" in sys.stdlib_module_names else "wave", "the standard library"),  # nobody loads it
        ("sys", "the standard library"),
        ("callgate", "Callgate"),
        ("yaml", "PyYAML"),
    ],
)
def test_a_file_with_the_name_of_a_module_that_is_needed_is_refused(tmp_path, monkeypatch, name, owner):
    (tmp_path / f"{name}.py").write_text("raise AssertionError('it was loaded')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(NotATool, match=rf"{name}\.py has the name of a module of {owner}: give the file another name"):
        functions_at(f"{name}:lookup")


def test_a_folder_of_data_called_like_a_package_hides_nothing(tmp_path, monkeypatch):
    (tmp_path / "callgate").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert len(functions_at("callgate.tools.builtin")) == 2


@pytest.mark.anyio
async def test_arguments_become_what_the_hints_say(threads):
    seen: list[Any] = []

    async def takes(when: dt.datetime, unit: Unit, places: list[Place], tags: set[str], n: int = 5) -> None:
        seen.extend([when, unit, places, tags, n])

    await run_tool(
        python_tool(takes, threads), when="2026-01-02T03:04:05Z", unit="k", places=[{"lat": 1}], tags=["a", "a"]
    )
    assert seen == [
        dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC),
        Unit.KELVIN,
        [Place(lat=1)],
        {"a"},
        5,
    ]


@pytest.mark.anyio
async def test_what_only_pydantic_can_see_is_wrong_is_explained_and_not_run(threads):
    async def takes(when: dt.datetime) -> None:
        raise AssertionError("it ran")

    outcome = await run_tool(python_tool(takes, threads), when="tomorrow")
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.NOT_RUN
    assert "/when" in outcome.text


@pytest.mark.anyio
async def test_sync_functions_run_in_a_thread_and_async_ones_in_the_loop(threads):
    def sync() -> bool:
        return threading.current_thread() is threading.main_thread()

    async def in_loop() -> bool:
        return threading.current_thread() is threading.main_thread()

    assert await run_tool(python_tool(sync, threads)) == Returned("false")
    assert await run_tool(python_tool(in_loop, threads)) == Returned("true")


@pytest.mark.anyio
async def test_callable_objects_partials_and_wrappers_that_return_awaitables_work(threads):
    class Greets:
        async def __call__(self, name: str) -> str:
            return f"hello {name}"

    async def greet(greeting: str, name: str) -> str:
        return f"{greeting} {name}"

    @functools.wraps(greet)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return greet(*args, **kwargs)

    assert await run_tool(python_tool(Greets(), threads), name="you") == Returned("hello you")
    assert await run_tool(python_tool(wrapped, threads), greeting="hi", name="you") == Returned("hi you")
    greeting = functools.partial(greet, "hi")
    assert list(python_tool(greeting, threads, name="g").parameters["properties"]) == ["name"]
    assert await run_tool(python_tool(greeting, threads), name="you") == Returned("hi you")


@pytest.mark.anyio
async def test_the_message_of_a_tool_error_reaches_the_model(threads):
    async def refuses() -> None:
        raise ToolError("Only on weekdays.", FailureKind.REFUSED)

    async def plain() -> None:
        raise ToolError("No such city.")

    assert await run_tool(python_tool(refuses, threads)) == Failed("Only on weekdays.", FailureKind.REFUSED)
    assert await run_tool(python_tool(plain, threads)) == Failed("No such city.", FailureKind.RAISED)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "error, text, kind",
    [
        (ValueError("bad"), "ValueError: bad", FailureKind.RAISED),
        (KeyError(), "KeyError", FailureKind.RAISED),
        (SystemExit(1), "SystemExit: 1", FailureKind.RAISED),
        (asyncio.CancelledError(), "CancelledError", FailureKind.RAISED),
        (StopIteration("x"), None, FailureKind.RAISED),
        (ConnectionResetError("gone"), "ConnectionResetError: gone", FailureKind.UNAVAILABLE),
        (TimeoutError("slow"), "TimeoutError: slow", FailureKind.UNAVAILABLE),
    ],
)
async def test_whatever_is_raised_stays_inside(threads, error, text, kind):
    async def raises_async() -> None:
        raise error

    def raises_sync() -> None:
        raise error

    for function in (raises_async, raises_sync):
        outcome = await run_tool(python_tool(function, threads))
        assert isinstance(outcome, Failed)
        assert outcome.kind is kind
        assert text is None or outcome.text == text
        assert "Traceback" not in outcome.text


@pytest.mark.anyio
async def test_a_tool_that_is_cancelled_inside_fails_also_in_a_task_that_was_cancelled_before(threads):
    async def raises() -> None:
        raise asyncio.CancelledError

    async def survives() -> Outcome:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return await run_tool(python_tool(raises, threads))

    task = asyncio.create_task(survives())
    asyncio.get_running_loop().call_soon(task.cancel)
    outcome = await task
    assert outcome == Failed("CancelledError", FailureKind.RAISED)


@pytest.mark.anyio
async def test_a_result_that_cannot_be_written_is_a_failure(threads):
    async def odd() -> Any:
        loop: list[Any] = []
        loop.append(loop)
        return loop

    outcome = await run_tool(python_tool(odd, threads))
    assert isinstance(outcome, Failed)
    assert "list" in outcome.text


@pytest.mark.anyio
async def test_images_come_as_images(threads):
    async def chart() -> Image:
        return Image(b"png", "image/png")

    assert await run_tool(python_tool(chart, threads)) == Returned("", (Image("cG5n", "image/png"),))


@pytest.mark.anyio
async def test_with_all_threads_stuck_a_call_is_refused_as_unavailable(threads):
    release, begun = threading.Event(), []

    def hangs() -> None:
        begun.append(1)
        release.wait()

    made = python_tool(hangs, threads)
    tasks = [asyncio.create_task(run_tool(made)) for _ in range(2)]
    async with asyncio.timeout(30):
        await everything(lambda: len(begun) == 2)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        outcome = await run_tool(made)
        release.set()
        await everything(lambda: threads.stuck == 0)
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.UNAVAILABLE
    assert "all 2 threads are stuck" in outcome.text


@pytest.mark.anyio
@pytest.mark.parametrize("sync", [True, False])
async def test_a_context_has_ids_and_passes_progress_on_in_order(threads, sync):
    reported: list[tuple[str, float | None]] = []

    async def report(progress: ProgressReport) -> None:
        reported.append((progress.message, progress.fraction))

    def works(n: int, context: Context) -> list[Any]:
        for step in range(n):
            context.progress(f"step {step}", step / n)
        return [context.run_id, context.turn, context.call_id, context.idempotency_key]

    async def works_async(n: int, context: Context) -> list[Any]:
        return works(n, context)

    made = python_tool(works if sync else works_async, threads)
    assert list(made.parameters["properties"]) == ["n"]
    occasion = CallContext("run_9", 3, "key_9", report, 1000)
    outcome = await made.executor.execute(ready(made.name, n=4), occasion)
    assert outcome == Returned('["run_9",3,"call_1","key_9"]')
    assert reported == [("step 0", 0.0), ("step 1", 0.25), ("step 2", 0.5), ("step 3", 0.75)]


@pytest.mark.anyio
async def test_progress_is_reported_while_the_tool_still_runs(threads):
    reported = asyncio.Event()

    async def report(progress: ProgressReport) -> None:
        reported.set()

    async def works(context: Context) -> str:
        context.progress("on it")
        await reported.wait()
        return "done"

    made = python_tool(works, threads)
    async with asyncio.timeout(30):
        outcome = await made.executor.execute(ready("works"), CallContext("r", 0, "k", report, 1000))
    assert outcome == Returned("done")


@pytest.mark.anyio
async def test_progress_is_text_that_can_be_sent_whatever_a_tool_says(threads):
    reported: list[str] = []

    async def report(progress: ProgressReport) -> None:
        reported.append(progress.message)

    def works(context: Context) -> None:
        context.progress("half \ud800")
        context.progress(3)  # type: ignore[arg-type]
        context.progress(fraction=0.5)

    await python_tool(works, threads).executor.execute(ready("works"), CallContext("r", 0, "k", report, 1000))
    assert reported == ["half \ufffd", "3", ""]


@pytest.mark.anyio
async def test_progress_after_the_end_is_dropped(threads):
    kept: list[Context] = []
    reported: list[str] = []

    async def report(progress: ProgressReport) -> None:
        reported.append(progress.message)

    async def works(context: Context) -> None:
        kept.append(context)

    made = python_tool(works, threads)
    await made.executor.execute(ready("works"), CallContext("r", 0, "k", report, 1000))
    kept[0].progress("too late")
    await asyncio.sleep(0)
    assert reported == []


@pytest.mark.anyio
@pytest.mark.parametrize("is_async", [True, False])
async def test_what_a_tool_raises_is_logged_with_the_line_of_the_tool_and_not_of_a_library(threads, is_async):
    def fails(text: str) -> None:
        json.loads(text)  # this line

    async def fails_too(text: str) -> None:
        fails(text)

    found = python_tool(fails_too if is_async else fails, threads)
    with capture_logs() as lines:
        outcome = await found.executor.execute(ready(found.name, text="s3cret"), an_occasion())
    assert isinstance(outcome, Failed)
    [line] = lines
    assert (line["event"], line["log_level"], line["tool"]) == ("tool_raised", "warning", found.name)
    assert line["where"] == f"{__file__}:{inspect.getsourcelines(fails)[1] + 1}"
    assert isinstance(line["exc_info"], json.JSONDecodeError)
    assert "s3cret" not in str(line["where"])


@pytest.mark.anyio
async def test_what_a_tool_says_on_purpose_is_not_logged(threads):
    def refuses() -> None:
        raise ToolError("Not today.")

    with capture_logs() as lines:
        await python_tool(refuses, threads).executor.execute(ready("refuses"), an_occasion())
    assert lines == []
