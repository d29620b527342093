"""What holds for every test: one event loop library, nothing left running, and skips that say what was missing."""

import asyncio
import gc
import logging
import os
import secrets
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from _pytest.runner import runtestprotocol
from hypothesis import settings

from callgate.config import redaction
from callgate.telemetry import logs
from callgate.tools.concurrency import times_cancelled
from tests.chaos.scale import examples
from tests.harness import environment, handlers, leftovers, sessions, tables
from tests.harness.installed import install_wheel
from tests.harness.needs import demanded, missing, summary
from tests.harness.postgres import PostgresServer, postgres_server
from tests.scripted_upstream import Upstream

# Without it litellm asks the network for its price list as soon as it is imported.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

# A busy machine is no failure.
settings.register_profile("callgate", deadline=None, max_examples=examples(100))
settings.load_profile("callgate")

SETTLING = 10.0
"""Seconds that tasks which are ending get to end."""
ASYNCIO_THREADS = ("asyncio_",)
"""Threads of the event loop's own pool end with the loop, which is after the test."""
ENVIRONMENT = "environment:"
NOT_MADE = pytest.StashKey[dict[str, str]]()
"""Environments that could not be made, and why."""
MAKING = pytest.StashKey["subprocess.Popen[bytes]"]()
"""What makes environments while tests run."""
LACKS = "lacks"
GARBAGE = (10_000, 10, 50)
"""New objects between two collections of the youngest, and those between two of the older. A test makes an application and drops it:
with Python's own figures, a quarter of the processor's time goes to looking through what all tests share."""


def pytest_configure(config: pytest.Config) -> None:
    config.stash[NOT_MADE] = {}
    sessions.watch()
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):  # as in a run in the background, whose children would not receive it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # With a line for each frame and not a picture of it, which takes a tenth of a second.
    structlog.dev.ConsoleRenderer.get_active().exception_formatter = structlog.dev.plain_traceback
    config.addinivalue_line(
        "markers", "needs(*parts): skipped where a command, module:NAME, env:NAME or environment:NAME is missing"
    )
    config.addinivalue_line("markers", "leaves(*threads, why): threads, by how their names start, that may stay")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Reading the tests makes little that is garbage, and collections meanwhile take a quarter of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = tables.left_out(items)
    items[:] = [item for item in items if item not in left_out]
    if left_out:
        config.hook.pytest_deselected(items=[*left_out])
    if hasattr(config, "workerinput"):
        from tests.harness.parallel import in_order

        in_order(items)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Environments are made before the first test, which may take a minute. Where there are several processes, they are made while
    tests run that need none."""
    handlers.read_once()
    gc.collect()
    gc.freeze()  # thousands of tests that stay to the end would be gone through in every collection
    gc.set_threshold(*GARBAGE)
    parts = {part for item in session.items for mark in item.iter_markers("needs") for part in mark.args}
    wanted = {part.removeprefix(ENVIRONMENT) for part in parts if part.startswith(ENVIRONMENT)}
    lacking = sorted(name for name in wanted - environment.ON_DEMAND if not environment.is_made(name))
    if not lacking or session.config.option.collectonly:
        return
    workerinput = getattr(session.config, "workerinput", None)
    if workerinput is None:
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.write_line(f"making the environments {', '.join(lacking)}", yellow=True)
        session.config.stash[NOT_MADE] |= environment.make(lacking)
    elif workerinput["workerid"] == "gw0":
        # A child, whose children are not those of the tests; each process waits for what its own tests need.
        session.config.stash[MAKING] = subprocess.Popen(
            [sys.executable, "-m", "tests.harness.environment", *lacking],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def pytest_sessionfinish(session: pytest.Session) -> None:
    making = session.config.stash.get(MAKING, None)
    if making is not None:
        making.terminate()  # it has ended, where nobody has left early
        making.wait()


def pytest_runtest_setup(item: pytest.Item) -> None:
    parts = [part for mark in item.iter_markers("needs") for part in mark.args]
    lacking = missing(tuple(parts))
    if not lacking:
        return
    not_made = item.config.stash[NOT_MADE]
    wanted = {part.removeprefix(ENVIRONMENT) for part in lacking if part.startswith(ENVIRONMENT)}
    not_made |= environment.make(sorted(wanted - environment.ON_DEMAND - not_made.keys()))
    lacking = missing(tuple(parts))
    if not lacking:
        return
    reasons = [
        f"{part} ({not_made[name]})" if (name := part.removeprefix(ENVIRONMENT)) in not_made else part
        for part in lacking
    ]
    if any(map(demanded, lacking)):
        pytest.fail(f"needs {', '.join(reasons)}, which this run demands", pytrace=False)
    item.user_properties += [(LACKS, part) for part in lacking]
    pytest.skip(f"needs {', '.join(reasons)}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Keeps the reports of set-ups and teardowns that passed from the process that collects those of the others: nobody
    reads them, but for `--durations`, and to send them takes longer than most tests."""
    if not hasattr(item.config, "workerinput") or item.config.option.durations:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Nobody reads what a test that passed has written; thousands of them are hundreds of megabytes."""
    report = yield
    if report.passed:
        report.sections.clear()
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", ())
    if lacking := Counter(part for report in skipped for name, part in report.user_properties if name == LACKS):
        terminalreporter.write_line(summary(lacking), yellow=True)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    from tests.harness.parallel import write_bytecode

    write_bytecode(config)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from tests.harness.parallel import FileByFile

    return FileByFile(config, log)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of a fresh environment with the wheel in it."""
    return install_wheel(tmp_path_factory.mktemp("installed"))


@pytest.fixture(autouse=True)
def _nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves threads, child processes or configured logging behind, or the collector off."""
    if any("postgres" in mark.args for mark in request.node.iter_markers("needs")):
        request.getfixturevalue("postgres")  # stays for the whole run
    allowed = [name for mark in request.node.iter_markers("leaves") for name in mark.args]
    threads, children, configured = leftovers.threads(), leftovers.children(), leftovers.logging_setup()
    if "anyio_backend" in request.fixturenames:
        request.getfixturevalue("_no_task_left")
    yield
    stayed = leftovers.new_threads(threads, [*ASYNCIO_THREADS, *allowed])
    running = leftovers.new_children(children)
    assert not stayed, f"threads left behind: {', '.join(stayed)}"
    assert not running, f"processes left behind: {', '.join(running)}"
    assert leftovers.logging_setup() == configured, "logging left configured: see `logging_as_it_was`"
    was_collecting = gc.isenabled()
    gc.enable()
    assert was_collecting, "the garbage collector left off"


@pytest.fixture
async def _no_task_left() -> AsyncIterator[None]:
    """Fails a test that leaves tasks behind in its event loop. Set up first, so it looks after all other fixtures."""
    before = asyncio.all_tasks()
    cancelled_before = times_cancelled()
    yield
    await sessions.close()
    cancelled = times_cancelled() - cancelled_before
    left = {task for task in asyncio.all_tasks() - before if not _is_the_runners(task)}
    if left:
        _, left = await asyncio.wait(left, timeout=SETTLING)
    names = sorted(f"{task.get_name()}: {task.get_coro()}" for task in left)
    for task in left:
        task.cancel()
    assert not left, "tasks left behind:\n  " + "\n  ".join(names)
    assert not cancelled, f"{cancelled} cancellations of the task that runs all tests were not taken back"


def _is_the_runners(task: "asyncio.Task[object]") -> bool:
    """The anyio plugin runs each fixture and test in a task that waits for it; one of them waits for this check."""
    return "TestRunner." in getattr(task.get_coro(), "__qualname__", "")


@pytest.fixture
def logging_as_it_was() -> Iterator[None]:
    """For a test that configures logging: what came after it would find lines of other loggers that it does not expect."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    config = structlog.get_config()
    fast = logs._fast
    redactor = redaction.current
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)
    structlog.configure(**config)
    structlog.contextvars.clear_contextvars()
    logs._fast = fast
    redaction.use(redactor)


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    """A model provider on a port of its own. What it did not expect fails the test when it closes."""
    async with Upstream() as opened:
        yield opened


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A Postgres server for the whole run; each test takes a schema of its own."""
    with postgres_server() as server:
        yield server


@pytest.fixture
def schema() -> str:
    return f"test_{secrets.token_hex(6)}"
