"""Every client finds what it would find at OpenAI, while tools run behind it. One table: client by behaviour."""

import pytest

from tests.clients.behaviours import BEHAVIOURS, Behaviour, Scene
from tests.clients.clients import CLIENTS, Client
from tests.clients.driver import Driver
from tests.clients.served import Served
from tests.harness.needs import needs

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


def _client(client: Client) -> object:
    return pytest.param(client, marks=needs(f"environment:{client.environment}"), id=client.name)


COMMANDED = [
    behaviour
    for behaviour in BEHAVIOURS
    if behaviour.name in ("plain", "streamed", "mixed_twice_streamed", "wrong_key", "leaving_while_the_model_speaks")
]
"""What is also played against the command in a child, whose server and edge are not those of the tests."""

DRIVEN = sorted(CLIENTS, key=lambda client: client.script)
"""Those that a driver plays one after another, so that it is started once."""

every_client = pytest.mark.parametrize("driver", [_client(client) for client in DRIVEN], indirect=True)
every_behaviour = pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda behaviour: behaviour.name)


@every_behaviour
@every_client
async def test_client(driver: Driver, behaviour: Behaviour, served: Served) -> None:
    async with served.free() as provider:
        await behaviour.play(Scene(driver, provider, served.url))


@pytest.mark.parametrize("behaviour", COMMANDED, ids=lambda behaviour: behaviour.name)
@every_client
async def test_client_of_the_command(driver: Driver, behaviour: Behaviour, command: Served) -> None:
    async with command.free() as provider:
        await behaviour.play(Scene(driver, provider, command.url))


@every_client
async def test_a_client_has_the_version_that_its_lock_names(driver: Driver) -> None:
    assert (await driver.ask("hello")).versions.items() >= driver.client.versions.items()
