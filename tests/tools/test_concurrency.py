"""How long calls may run, by one timer for all of them, and how many requests there is room for."""

import asyncio
from collections.abc import Coroutine

import pytest

from callgate.tools.concurrency import CallDeadlines, ConcurrencyLimits, Room


class CountingLoop(asyncio.SelectorEventLoop):
    """An event loop that counts the timers it was asked for."""

    timers = 0

    def call_at(self, *args: object, **kwargs: object) -> asyncio.TimerHandle:
        self.timers += 1
        return super().call_at(*args, **kwargs)  # type: ignore[arg-type]


def run_counted(work: Coroutine[None, None, None]) -> int:
    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        runner.run(work)
        loop = runner.get_loop()
        assert isinstance(loop, CountingLoop)
        return loop.timers


def test_calls_of_one_timeout_share_a_timer() -> None:
    deadlines = CallDeadlines()

    async def many_calls() -> None:
        for _ in range(100):
            waiter = deadlines.begin(30.0)
            waiter.set_result(None)
            deadlines.end(waiter)

    assert run_counted(many_calls()) == 1


@pytest.mark.anyio
async def test_each_wait_ends_at_its_own_deadline_whichever_began_first() -> None:
    deadlines = CallDeadlines()
    ended: list[str] = []
    waiters = {"last": deadlines.begin(0.06), "first": deadlines.begin(0.01), "second": deadlines.begin(0.03)}
    for name, waiter in waiters.items():
        waiter.add_done_callback(lambda _, name=name: ended.append(name))  # type: ignore[misc]
    await asyncio.wait(waiters.values(), timeout=30)
    await asyncio.sleep(0)
    assert ended == ["first", "second", "last"]


@pytest.mark.anyio
async def test_a_wait_that_was_ended_is_not_woken_and_does_not_keep_the_others_from_it() -> None:
    deadlines = CallDeadlines()
    over = deadlines.begin(0.01)
    deadlines.end(over)
    async with asyncio.timeout(30):
        await deadlines.begin(0.02)
    assert not over.done()


def test_deadlines_go_on_in_the_next_event_loop() -> None:
    limits = ConcurrencyLimits()

    async def waits_forever() -> None:
        _ = limits.deadlines.begin(0.05)

    async def waits_to_the_end() -> None:
        async with asyncio.timeout(30):
            await limits.deadlines.begin(0.01)

    asyncio.run(waits_forever())
    asyncio.run(waits_to_the_end())


def test_a_call_without_limits_takes_no_place() -> None:
    limits = ConcurrencyLimits()
    assert limits.on_the_way_to("config/a", "config") == []
    limits.limit_tool("config/a", 2)
    [limiter] = limits.on_the_way_to("config/a", "config")
    assert limiter.places == 2
    assert limits.on_the_way_to("config/b", "config") == []


async def enters(room: Room, name: str, entered: list[str]) -> None:
    async with room:
        entered.append(name)
        if name == "first":
            await asyncio.get_running_loop().create_future()


@pytest.mark.anyio
async def test_who_waits_for_room_comes_in_order_and_before_who_comes_later() -> None:
    room = Room(2)
    assert room.take()
    assert room.take()
    entered: list[str] = []
    waiting = [asyncio.create_task(enters(room, name, entered)) for name in ("one", "two", "three")]
    await asyncio.sleep(0)
    assert not room.take()
    room.leave()
    assert not room.take()  # the place is given to who waits already
    await asyncio.wait(waiting, timeout=30)
    assert entered == ["one", "two", "three"]
    assert room.take()


@pytest.mark.anyio
async def test_who_is_cancelled_while_it_waits_takes_and_gives_no_place() -> None:
    room = Room(1)
    assert room.take()
    entered: list[str] = []
    waits, last = (asyncio.create_task(enters(room, name, entered)) for name in ("one", "two"))
    await asyncio.sleep(0)
    waits.cancel()
    await asyncio.wait([waits], timeout=30)
    assert entered == []
    room.leave()  # passes over who does not wait any more
    await asyncio.wait([last], timeout=30)
    assert entered == ["two"]
    assert room.take()
    assert not room.take()


@pytest.mark.anyio
async def test_who_is_cancelled_as_its_turn_comes_gives_its_place_to_the_next() -> None:
    room = Room(1)
    assert room.take()
    entered: list[str] = []
    has_turn, last = (asyncio.create_task(enters(room, name, entered)) for name in ("one", "two"))
    await asyncio.sleep(0)
    room.leave()
    has_turn.cancel()
    await asyncio.wait([has_turn, last], timeout=30)
    assert entered == ["two"]
    assert room.take()


@pytest.mark.anyio
async def test_who_is_cancelled_inside_leaves() -> None:
    room = Room(1)
    inside = asyncio.create_task(enters(room, "first", []))
    await asyncio.sleep(0)
    assert not room.take()
    inside.cancel()
    await asyncio.wait([inside], timeout=30)
    assert room.take()
