"""What came of each test goes to the table of clients."""

from collections import defaultdict
from collections.abc import AsyncIterator, Generator, Iterator

import pytest

from tests.clients.behaviours import BEHAVIOURS, Behaviour
from tests.clients.clients import CLIENTS, Client
from tests.clients.driver import Driver
from tests.clients.served import Served, commanded, opened
from tests.clients.table import RESULTS, Results
from tests.harness.needs import BY_MAKE_CLIENTS, missing

WHOLE = ("openai-3", "openai-node", "openai-responses", "openai-node-responses", "anthropic", "anthropic-node")
"""The SDKs of those whose APIs they are: whenever tests run, they do all that a client does. Of the others a short form is played."""


AROUND_ANOTHER = ("openai-1", "litellm", "instructor", "langchain-js")
"""They send their requests by an SDK that is played as well, or are an older major of it, and take seconds to start: none of them is
played unless all are."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A case that a client cannot have is none: the table says why. `make clients` plays all that there are."""
    plays_all = not missing(BY_MAKE_CLIENTS.args)
    items[:] = [item for item in items if _is_played(item, plays_all)]


def _is_played(item: pytest.Item, plays_all: bool) -> bool:
    client, behaviour = _case(item)
    if client is None:
        return True
    if client.name in AROUND_ANOTHER and not plays_all:
        return False
    if behaviour is None:
        return True
    return behaviour not in client.cannot and (plays_all or client.name in WHOLE or behaviour in in_short(client))


def in_short(client: Client) -> set[str]:
    """One behaviour of each column: among all clients every one is played by some."""
    columns = defaultdict[str, list[str]](list)
    for behaviour in BEHAVIOURS:
        if behaviour.name not in client.cannot:
            columns[behaviour.column].append(behaviour.name)
    place = CLIENTS.index(client)
    return {names[place % len(names)] for names in columns.values()}


def pytest_collection_finish(session: pytest.Session) -> None:
    session.config.stash[RESULTS] = Results()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    client, behaviour = _case(item)
    if client is not None and behaviour is not None:
        item.config.stash[RESULTS].take(client, behaviour, report)
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


def _case(item: pytest.Item) -> tuple[Client | None, str | None]:
    """The client that a test plays, and the name of the behaviour that it plays."""
    callspec = getattr(item, "callspec", None)
    client, behaviour = (callspec.params.get(name) if callspec else None for name in ("driver", "behaviour"))
    return (
        client if isinstance(client, Client) else None,
        behaviour.name if isinstance(behaviour, Behaviour) else None,
    )
