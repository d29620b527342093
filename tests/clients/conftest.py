"""What came of each test goes to the table of clients."""

from collections.abc import AsyncIterator, Generator, Iterator

import pytest

from tests.clients.behaviours import Behaviour
from tests.clients.clients import Client
from tests.clients.driver import Driver
from tests.clients.served import Served, commanded, opened
from tests.clients.table import RESULTS, Results


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A case that a client cannot have is none: the table says why."""
    items[:] = [item for item in items if not ((case := _case(item)) and case[1] in case[0].cannot)]


def pytest_collection_finish(session: pytest.Session) -> None:
    session.config.stash[RESULTS] = Results()


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
def started() -> Iterator[list[Driver]]:
    """The driver that is running, if one is."""
    running: list[Driver] = []
    yield running
    for driver in running:
        driver.close()


@pytest.fixture(scope="session")
def driver(request: pytest.FixtureRequest, started: list[Driver]) -> Driver:
    """The running driver of a client; it lives on until a test asks for a client that it does not play."""
    if started and not started[0].plays(request.param):
        started.pop().close()
    if not started:
        started.append(Driver(request.param))
    started[0].client = request.param
    return started[0]


def _case(item: pytest.Item) -> tuple[Client, str] | None:
    callspec = getattr(item, "callspec", None)
    client, behaviour = (callspec.params.get(name) if callspec else None for name in ("driver", "behaviour"))
    return (client, behaviour.name) if isinstance(client, Client) and isinstance(behaviour, Behaviour) else None
