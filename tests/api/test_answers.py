"""How answers travel: the clocks of a stream."""

import asyncio
import contextlib
import heapq
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from callgate.api import answers
from callgate.api.answers import (
    ALARM_SECONDS,
    LOOK_AFTER_SECONDS,
    STEPS,
    ClientDisconnected,
    EventStream,
    Pulse,
    run_unless_disconnected,
)
from callgate.conversation.errors import ChatError

pytestmark = pytest.mark.anyio

PATIENCE = 30.0
NEVER = 3600.0


class Letters:
    """A writer whose chunks are what it was leave_later."""

    def write(self, data: bytes) -> bytes:
        return data

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

    async def chat(emit: Callable[[Any], Awaitable[None]]) -> None:
        await emit(b"word")
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

    async def chat(emit: Callable[[Any], Awaitable[None]]) -> None:
        await gate.wait()

    stream = EventStream(chat, Letters(), lambda error=None: {}, Pulse(first=0.05, heartbeat=NEVER))
    answering = asyncio.create_task(stream.send(wire.receive, wire.send))
    try:
        assert await wire.until(1) == [b"beat"]
    finally:
        gate.set()
        await answering
    assert wire.bodies == [b"beat", b""]


async def test_before_the_first_content_no_heartbeat_commits_a_status():
    wire, failing = Wire(), asyncio.Event()

    async def chat(emit: Callable[[Any], Awaitable[None]]) -> None:
        asyncio.get_running_loop().call_later(0.05, failing.set)
        await failing.wait()
        raise ChatError(429, "Slow down.", code="rate_limit_exceeded")

    stream = EventStream(chat, Letters(), lambda error=None: {}, Pulse(first=NEVER, heartbeat=0.01))
    error = await stream.send(wire.receive, wire.send)
    assert error is not None
    assert error.status == 429
    assert b"beat" not in wire.bodies


async def test_each_of_several_clients_is_seen_to_leave_whichever_answers_came_before():
    left = [asyncio.Event() for _ in range(3)]

    async def at_once() -> None:
        pass

    async def leave_later(leaving: asyncio.Event) -> dict[str, Any]:
        await leaving.wait()
        return {"type": "http.disconnect"}

    async with asyncio.timeout(PATIENCE):
        await run_unless_disconnected(at_once(), lambda: leave_later(left[0]))
        waiting = [
            asyncio.create_task(run_unless_disconnected(asyncio.sleep(NEVER), partial(leave_later, it))) for it in left
        ]
        await run_unless_disconnected(at_once(), lambda: leave_later(left[0]))
        for leaving, one in zip(reversed(left), reversed(waiting), strict=True):
            leaving.set()
            with pytest.raises(ClientDisconnected):
                await one


async def test_time_that_is_shorter_than_the_moment_before_we_look_is_kept_as_well():
    with pytest.raises(ChatError) as late:
        await run_unless_disconnected(asyncio.sleep(NEVER), Wire().receive, LOOK_AFTER_SECONDS / 10)
    assert late.value.code == "request_timeout"


def test_clients_are_seen_to_leave_in_one_event_loop_after_another():
    async def gone() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def one_leaves() -> None:
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(ClientDisconnected):
                await run_unless_disconnected(asyncio.sleep(NEVER), gone)

    for _ in range(2):
        asyncio.run(one_leaves())


ANSWERS = 300
LONG_SECONDS = LOOK_AFTER_SECONDS * 2


@dataclass(eq=False)
class OwnRequest:
    """A request of our own server, which tells by itself when its client leaves."""

    is_whole: bool = True
    abandoned: bool = False
    when_left: Callable[[], None] | None = None

    async def receive(self) -> dict[str, Any]:
        assert self.abandoned or not self.is_whole, "nobody has to ask"
        return {"type": "http.disconnect"}


async def test_a_server_that_tells_when_a_client_leaves_is_not_asked():
    request = OwnRequest()

    async def leave_and_wait() -> None:
        assert request.when_left is not None
        request.when_left()
        request.when_left()
        await asyncio.sleep(NEVER)

    working = asyncio.create_task(run_unless_disconnected(leave_and_wait(), request.receive, NEVER))
    with pytest.raises(ClientDisconnected):
        await working
    assert request.when_left is None
    assert working.cancelling() == 0


@pytest.mark.parametrize("state", [{"is_whole": False}, {"abandoned": True}], ids=str)
async def test_a_server_that_cannot_tell_now_is_asked(state: dict[str, Any]):
    with pytest.raises(ClientDisconnected):
        await run_unless_disconnected(asyncio.sleep(NEVER), OwnRequest(**state).receive)


async def test_hundreds_of_long_answers_that_began_one_after_another_set_few_timers(monkeypatch: pytest.MonkeyPatch):
    loop = asyncio.get_running_loop()
    plain_call_at = loop.call_at
    timers: list[float] = []

    def noting_call_at(when: float, ring: Any, *given: Any, **more: Any) -> asyncio.TimerHandle:
        if ring.__module__ == EventStream.__module__:
            timers.append(when)
        return plain_call_at(when, ring, *given, **more)

    monkeypatch.setattr(loop, "call_at", noting_call_at)
    began = loop.time()
    running = []
    for place in range(ANSWERS):
        answer = run_unless_disconnected(asyncio.sleep(NEVER), OwnRequest().receive, LONG_SECONDS)
        running.append(asyncio.create_task(answer))
        while loop.time() < began + place * LONG_SECONDS / ANSWERS:  # noqa: ASYNC110 - there is no event for a time
            await asyncio.sleep(0)
    ended = await asyncio.gather(*running, return_exceptions=True)
    rings = (loop.time() - began) / ALARM_SECONDS
    assert [getattr(error, "code", error) for error in ended] == ["request_timeout"] * ANSWERS
    assert 0 < len(timers) <= rings + 2  # for the first look at the clients, and for the deadlines


@pytest.mark.parametrize("others", [(), (NEVER,), (LOOK_AFTER_SECONDS / 5, NEVER)], ids=str)
async def test_each_deadline_holds_whichever_others_there_are(others: tuple[float, ...]):
    still = [
        asyncio.create_task(run_unless_disconnected(asyncio.sleep(NEVER), OwnRequest().receive, seconds))
        for seconds in others
    ]
    with pytest.raises(ChatError) as late:
        await run_unless_disconnected(asyncio.sleep(NEVER), OwnRequest().receive, LOOK_AFTER_SECONDS * 1.5)
    assert late.value.code == "request_timeout"
    assert [task.done() for task in still] == [seconds != NEVER for seconds in others]
    for task in still:
        task.cancel()
    await asyncio.gather(*still, return_exceptions=True)


async def test_a_deadline_holds_where_a_server_tells_when_a_client_leaves():
    with pytest.raises(ChatError) as late:
        await run_unless_disconnected(asyncio.sleep(NEVER), OwnRequest().receive, LOOK_AFTER_SECONDS / 10)
    assert late.value.code == "request_timeout"


@pytest.mark.parametrize("receive", [Wire().receive, OwnRequest().receive], ids=["asked", "tells"])
async def test_answers_that_end_at_once_share_one_timer(monkeypatch: pytest.MonkeyPatch, receive: Any) -> None:
    loop = asyncio.get_running_loop()
    timers: list[float] = []
    plain_call_at = loop.call_at

    def noting_call_at(when: float, *given: Any, **more: Any) -> asyncio.TimerHandle:
        timers.append(when)
        return plain_call_at(when, *given, **more)

    monkeypatch.setattr(loop, "call_at", noting_call_at)
    answers = [asyncio.create_task(run_unless_disconnected(asyncio.sleep(0), receive, NEVER)) for _ in range(20)]
    await asyncio.gather(*answers)
    assert len(timers) <= 1


async def test_open_streams_share_their_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    timers: list[float] = []
    plain_call_at = loop.call_at

    def noting_call_at(when: float, ring: Any, *given: Any, **more: Any) -> asyncio.TimerHandle:
        if ring.__module__ == EventStream.__module__:
            timers.append(when)
        return plain_call_at(when, ring, *given, **more)

    gate = asyncio.Event()
    are_watched = asyncio.Event()
    wires = [Wire() for _ in range(20)]
    monkeypatch.setattr(loop, "call_at", noting_call_at)
    streams = [asyncio.create_task(open_stream(wire, gate, Pulse(first=NEVER, heartbeat=NEVER))) for wire in wires]
    for wire in wires:
        await wire.until(1)
    plain_call_at(loop.time() + 2 * LOOK_AFTER_SECONDS, are_watched.set)
    await are_watched.wait()
    assert len(timers) <= 3  # for the first look at the clients, the heartbeats, and the deadlines
    gate.set()
    await asyncio.gather(*streams)


class SetClock:
    """An event loop whose time goes on only when it is told to, for what is set by `call_at`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.create_task = loop.create_task
        self.now = 1000.0
        self.calls: list[tuple[float, int, Callable[[], None]]] = []
        self.timers = 0

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, ring: Callable[[], None], context: Any = None) -> None:
        self.timers += 1
        heapq.heappush(self.calls, (when, self.timers, ring))

    async def go_on_to(self, when: float) -> None:
        while self.calls and self.calls[0][0] <= when:
            due, _, ring = heapq.heappop(self.calls)
            self.now = max(self.now, due) + 1e-4  # a timer is always a little late
            ring()
            for _ in range(3):
                await asyncio.sleep(0)
        self.now = max(self.now, when)


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> SetClock:
    clock = SetClock(asyncio.get_running_loop())
    lookout = answers._Lookout(clock)  # type: ignore[arg-type]
    monkeypatch.setattr(answers, "_lookout_here", lambda: lookout)
    monkeypatch.setattr(answers, "watched", lambda receive, seconds: contextlib.nullcontext())  # no client leaves here
    return clock


STREAMS = 300
FIRST, HEARTBEAT = 25.0, 10.0


async def test_streams_whose_status_is_held_back_for_longer_than_a_heartbeat_share_their_timers(clock) -> None:
    began = clock.now
    wires = [Wire() for _ in range(STREAMS)]
    gate = asyncio.Event()

    async def chat(emit: Callable[[Any], Awaitable[None]]) -> None:
        await gate.wait()

    streams = []
    for wire in wires:
        stream = EventStream(chat, Letters(), lambda error=None: {}, Pulse(first=FIRST, heartbeat=HEARTBEAT))
        streams.append(asyncio.create_task(stream.send(wire.receive, wire.send)))
        await asyncio.sleep(0)
        clock.now += 10 * ALARM_SECONDS / STREAMS
    await clock.go_on_to(began + FIRST - ALARM_SECONDS)
    early = sum(len(wire.bodies) for wire in wires)
    timers = clock.timers
    await clock.go_on_to(began + 1 + FIRST + HEARTBEAT / STEPS)
    gate.set()
    await asyncio.gather(*streams)
    assert early == 0
    assert sum(wire.bodies == [b"beat", b""] for wire in wires) == STREAMS
    assert timers < 60  # three waits, each of which rings ten times for all of them


async def test_a_stream_that_begins_late_beats_in_time_whenever_its_status_was_due(clock) -> None:
    wire, gate, word = Wire(), asyncio.Event(), asyncio.Event()

    async def chat(emit: Callable[[Any], Awaitable[None]]) -> None:
        await word.wait()
        await emit(b"word")
        await gate.wait()

    stream = EventStream(chat, Letters(), lambda error=None: {}, Pulse(first=NEVER, heartbeat=HEARTBEAT))
    began = clock.now
    answering = asyncio.create_task(stream.send(wire.receive, wire.send))
    await asyncio.sleep(0)
    await clock.go_on_to(began + 1.1 * HEARTBEAT)
    word.set()
    await wire.until(1)
    await clock.go_on_to(began + 2.2 * HEARTBEAT)
    gate.set()
    await answering
    assert wire.bodies == [b"word", b"beat", b""]


async def test_each_of_several_streams_beats_whichever_began_or_ended_before() -> None:
    gates = [asyncio.Event() for _ in range(4)]
    wires = [Wire() for _ in gates]
    pulse = Pulse(first=NEVER, heartbeat=0.02)
    streams = [asyncio.create_task(open_stream(wire, gate, pulse)) for wire, gate in zip(wires, gates, strict=True)]
    for wire, gate, stream in zip(wires, gates, streams, strict=True):
        assert await wire.until(3) == [b"word", b"beat", b"beat"]
        gate.set()
        await stream
    assert [wire.bodies.count(b"") for wire in wires] == [1, 1, 1, 1]


async def open_stream(wire: Wire, gate: asyncio.Event, pulse: Pulse) -> None:
    async def chat(emit: Callable[[Any], Awaitable[None]]) -> None:
        await emit(b"word")
        await gate.wait()

    await EventStream(chat, Letters(), lambda error=None: {}, pulse, NEVER).send(wire.receive, wire.send)
