"""Environments are made before the first test, which may take a minute; what came of each test goes to the table."""

from collections.abc import AsyncIterator, Generator, Iterator

import pytest

from tests.clients import environment
from tests.clients.behaviours import Behaviour
from tests.clients.clients import Client
from tests.clients.driver import Driver
from tests.clients.served import Served, commanded, opened
from tests.clients.table import RESULTS, Results

CLIENT = "client:"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A case that a client cannot have is none: the table says why."""
    items[:] = [item for item in items if not ((case := _case(item)) and case[1] in case[0].cannot)]


def pytest_collection_finish(session: pytest.Session) -> None:
    session.config.stash[RESULTS] = Results()
    wanted = {
        part.removeprefix(CLIENT)
        for item in session.items
        for mark in item.iter_markers("needs")
        for part in mark.args
        if part.startswith(CLIENT)
    }
    lacking = sorted(name for name in wanted if not environment.is_made(name))
    if not lacking or session.config.option.collectonly:
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    _say(reporter, f"making the environments of clients: {', '.join(lacking)}")
    for name, why in sorted(environment.make(lacking).items()):
        _say(reporter, f"the environment {name} could not be made: {why}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if case := _case(item):
        item.config.stash[RESULTS].take(*case, report)
    return report


@pytest.fixture(scope="module")
async def served() -> AsyncIterator[Served]:
    async with opened() as served:
        yield served


@pytest.fixture(scope="module")
async def command(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    async with commanded(tmp_path_factory.mktemp("command")) as served:
        yield served


@pytest.fixture
def _no_task_left() -> None:
    """Stands in for the look after each test: here the server outlives them, with the connections it keeps."""


@pytest.fixture(scope="session")
def driver(request: pytest.FixtureRequest) -> Iterator[Driver]:
    """The running driver of a client; it lives on until a test asks for another client's."""
    driver = Driver(request.param)
    yield driver
    driver.close()


def _case(item: pytest.Item) -> tuple[Client, str] | None:
    callspec = getattr(item, "callspec", None)
    client, behaviour = (callspec.params.get(name) if callspec else None for name in ("driver", "behaviour"))
    return (client, behaviour.name) if isinstance(client, Client) and isinstance(behaviour, Behaviour) else None


def _say(reporter: pytest.TerminalReporter | None, text: str) -> None:
    if reporter is not None:
        reporter.write_line(text, yellow=True)
