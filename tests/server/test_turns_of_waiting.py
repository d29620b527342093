"""Many connections at once: each is answered in its turn, and none is held back while others are answered over and over."""

import asyncio
import contextlib
import gc
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import ClassVar

import pytest
import uvloop

from bench import wire
from bench.works import WORKS, Work
from callgate.application import create_app
from callgate.server.serve import GARBAGE_OBJECTS, accepting_many
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


@asynccontextmanager
async def asked_by(at_once: int, work: Work, model: int) -> AsyncIterator[wire.Clients]:
    """Serve so many connected clients, each of which has been answered once: connections are made, to here and to the model."""
    config = make_config(f"http://127.0.0.1:{model}/v1", models=[work.body["model"]])
    async with asyncio.timeout(PATIENCE), serve(create_app(config)) as url:
        clients = await wire.connected(int(url.rpartition(":")[2]), "no-key", work, at_once)
        await clients.ask(1)
        yield clients
        clients.leave()


async def test_no_connection_waits_while_others_are_answered_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = TurnCounter()
    monkeypatch.setattr(CountingClient, "counter", counter, raising=False)
    monkeypatch.setattr(wire, "Client", CountingClient)
    async with wire.listening(wire.Model) as model, asked_by(AT_ONCE, WORKS[0], model) as clients:
        counter.waits.clear()
        await clients.ask(ROUNDS)
    assert len(counter.waits) == AT_ONCE * ROUNDS
    assert max(counter.waits) < 3 * AT_ONCE


class WaitingModel(wire.Model):
    """Answers no request until all have come."""

    connections: ClassVar[int] = 0
    objects: ClassVar[int] = 0
    """The objects that there were more than before, when the last request had come."""
    _waiting: ClassVar[list[tuple["WaitingModel", bytes]]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        WaitingModel.connections += 1

    def came(self, message: bytes) -> None:
        waiting = self._waiting
        waiting.append((self, message))
        if len(waiting) < AT_ONCE:
            return
        WaitingModel.objects = gc.get_count()[0]
        for model, request in waiting:
            super(WaitingModel, model).came(request)
        waiting.clear()


@contextmanager
def no_collections() -> Iterator[None]:
    """Let the collector count objects that were made and not freed, from zero, and never collect."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def test_requests_under_way_on_many_connections_are_not_searched_for_garbage() -> None:
    async with wire.listening(WaitingModel) as model, asked_by(AT_ONCE, WORKS[0], model) as clients:
        with no_collections():
            await clients.ask(ROUNDS)
    assert 10 * AT_ONCE < WaitingModel.objects < GARBAGE_OBJECTS  # of clients and the model as well


async def test_as_many_connections_to_a_model_are_made_as_there_are_requests_at_once() -> None:
    WaitingModel.connections = 0
    async with wire.listening(WaitingModel) as model, asked_by(AT_ONCE, WORKS[0], model) as clients:
        await clients.ask(ROUNDS)
    assert WaitingModel.connections == AT_ONCE


def test_many_connections_that_come_at_once_are_accepted_in_few_turns() -> None:
    waiting = 64

    async def turns_to_accept() -> int:
        loop = asyncio.get_running_loop()
        accepted: list[asyncio.Protocol] = []

        def accept() -> asyncio.Protocol:
            accepted.append(asyncio.Protocol())
            return accepted[-1]

        with socket.create_server(("127.0.0.1", 0), backlog=waiting) as listening, contextlib.ExitStack() as stack:
            for _ in range(waiting):
                stack.enter_context(socket.create_connection(listening.getsockname()))
            servers = [await loop.create_server(accept, sock=each) for each in accepting_many([listening])]
            turns = 0
            while len(accepted) < waiting:
                await asyncio.sleep(0)
                turns += 1
            for server in servers:
                server.close()
            return turns

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(turns_to_accept()) <= waiting // 2
