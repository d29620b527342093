"""How answers travel: the clocks of a stream."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from app.api.responses import EventStream, Pulse
from app.chat.errors import ChatError

pytestmark = pytest.mark.anyio

PATIENCE = 10.0
NEVER = 3600.0


class Letters:
    """A writer whose chunks are what it was told."""

    def write(self, told: bytes) -> bytes:
        return told

    def heartbeat(self) -> bytes:
        return b"beat"

    def error(self, error: ChatError) -> bytes:
        return b"error"


class Wire:
    """The client's side: what came, and never a word of leaving."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self._news = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.body":
            self.bodies.append(message["body"])
            self._news.set()

    async def until(self, count: int) -> list[bytes]:
        async with asyncio.timeout(PATIENCE):
            while len(self.bodies) < count:
                self._news.clear()
                await self._news.wait()
        return self.bodies[:count]


async def test_an_open_stream_beats_by_its_own_clock_however_long_a_status_may_be_held_back():
    wire, gate = Wire(), asyncio.Event()

    async def chat(tell: Callable[[Any], Awaitable[None]]) -> None:
        await tell(b"word")
        await gate.wait()

    stream = EventStream(chat, Letters(), lambda error=None: {}, Pulse(first=NEVER, heartbeat=0.01))
    answering = asyncio.create_task(stream.send(wire.receive, wire.send))
    try:
        assert await wire.until(3) == [b"word", b"beat", b"beat"]
    finally:
        gate.set()
        await answering


async def test_a_status_is_held_back_for_its_time_and_not_for_that_of_a_heartbeat():
    wire, gate = Wire(), asyncio.Event()

    async def chat(tell: Callable[[Any], Awaitable[None]]) -> None:
        await gate.wait()

    stream = EventStream(chat, Letters(), lambda error=None: {}, Pulse(first=0.05, heartbeat=NEVER))
    answering = asyncio.create_task(stream.send(wire.receive, wire.send))
    try:
        assert await wire.until(1) == [b"beat"]
    finally:
        gate.set()
        await answering
    assert wire.bodies == [b"beat", b""]


async def test_before_the_first_word_no_heartbeat_promises_a_status():
    wire, failing = Wire(), asyncio.Event()

    async def chat(tell: Callable[[Any], Awaitable[None]]) -> None:
        asyncio.get_running_loop().call_later(0.05, failing.set)
        await failing.wait()
        raise ChatError(429, "Slow down.", code="rate_limit_exceeded")

    stream = EventStream(chat, Letters(), lambda error=None: {}, Pulse(first=NEVER, heartbeat=0.01))
    error = await stream.send(wire.receive, wire.send)
    assert error is not None
    assert error.status == 429
    assert b"beat" not in wire.bodies
