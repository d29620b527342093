"""Many connections at once: each is answered in its turn, and none is held back while others are answered over and over."""

import asyncio

import pytest

from bench import wire
from bench.works import WORKS
from callgate.application import create_app
from tests.harness.configs import make_config
from tests.harness.server import serve

pytestmark = pytest.mark.anyio

AT_ONCE = 300
"""More than the 200 up to which the longest waits had been level."""
ROUNDS = 2
PATIENCE = 60.0


class TurnCounter:
    """Counts the answers of all connections, as the clock of this test."""

    def __init__(self) -> None:
        self.answers = 0
        self.waits: list[int] = []
        """For each answer: how many others came between its request and it."""


class CountingClient(wire.Client):
    """Asks again as soon as it is answered."""

    counter: TurnCounter
    asked_at = 0

    def came(self, message: bytes) -> None:
        counter = self.counter
        counter.waits.append(counter.answers - self.asked_at)
        counter.answers += 1
        self.asked_at = counter.answers
        super().came(message)


async def test_no_connection_waits_while_others_are_answered_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = TurnCounter()
    monkeypatch.setattr(CountingClient, "counter", counter, raising=False)
    monkeypatch.setattr(wire, "Client", CountingClient)
    small = WORKS[0]
    async with asyncio.timeout(PATIENCE), wire.listening(wire.Model) as model:
        config = make_config(f"http://127.0.0.1:{model}/v1", models=[small.body["model"]])
        async with serve(create_app(config)) as url:
            clients = await wire.connected(int(url.rpartition(":")[2]), "no-key", small, AT_ONCE)
            await clients.ask(1)  # connections are made, to here and to the model
            counter.waits.clear()
            await clients.ask(ROUNDS)
            clients.leave()
    assert len(counter.waits) == AT_ONCE * ROUNDS
    assert max(counter.waits) < 3 * AT_ONCE
