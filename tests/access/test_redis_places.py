"""`parallel` over several processes, each with its own connection to one real Redis."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import pytest

from callgate.access import leased_places, redis_patience
from callgate.access.leased_places import LeasedSlot
from callgate.access.limits import Amount, Reservation
from callgate.access.redis_limits import RedisLimiter
from callgate.access.redis_patience import PATIENCE
from callgate.access.redis_places import RedisPlaces
from callgate.callers.admission import Admission
from callgate.callers.allowance import Allowance
from callgate.conversation.errors import ChatError
from callgate.tools.concurrency import ConcurrencyLimits, Slots
from tests.harness.needs import needs
from tests.harness.redis import redis_server

ALLOWED = Allowance(requests_per_minute=100)

pytestmark = [pytest.mark.anyio, needs("redis-server", "module:redis")]


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    async with redis_server(tmp_path) as url:
        yield url


def admission(url: str, down: Literal["open", "closed"] = "open") -> Admission:
    return Admission(100, 0.0, RedisPlaces(url, down=down))


async def test_a_key_has_its_places_once_however_many_processes_serve_it(url: str) -> None:
    one, other = admission(url), admission(url)
    held = [await each.request("alice", 3) for each in (one, other, one)]
    for each in (one, other):
        with pytest.raises(ChatError) as refused:
            await each.request("alice", 3)
        assert (refused.value.status, refused.value.code) == (429, "too_many_parallel_requests")
    with await other.request("bob", 1):
        pass
    with held[0]:
        pass
    async with asyncio.timeout(30):
        while True:  # given back in the background
            try:
                with await other.request("alice", 3):
                    break
            except ChatError:
                await asyncio.sleep(0.01)
    for each in (one, other):
        await each.close()


async def test_of_many_that_come_at_once_as_many_get_in_as_may(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_patience, "PATIENCE", 10.0)  # on a busy machine Redis counts as away, and all get in
    processes = [admission(url) for _ in range(4)]
    found = await asyncio.gather(
        *(processes[number % 4].request("alice", 5) for number in range(40)), return_exceptions=True
    )
    assert sum(not isinstance(each, BaseException) for each in found) == 5
    for each in processes:
        await each.close()


async def test_the_slots_of_a_process_that_died_come_free_and_those_of_one_that_lives_are_renewed(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leased_places, "LEASE_SECONDS", 0.5)
    monkeypatch.setattr(leased_places, "RENEW_SECONDS", 0.1)
    dead, alive, asking = (RedisPlaces(url, down="open") for _ in range(3))
    for places in (dead, alive):
        assert isinstance(await places.enter("alice", 2, 0.0), LeasedSlot)
    assert dead._renewing is not None
    dead._renewing.cancel()
    assert await asking.enter("alice", 2, 0.0) is False
    assert isinstance(await asking.enter("alice", 2, 5.0), LeasedSlot), "that of the dead one"
    assert await asking.enter("alice", 2, 1.0) is False, "the other one's is renewed"
    for places in (dead, alive, asking):
        await places.close()


@pytest.mark.parametrize("down", ["open", "closed"])
async def test_while_redis_is_away_each_process_counts_alone_or_refuses(down: Literal["open", "closed"]) -> None:
    alone = admission("redis://127.0.0.1:1", down)
    if down == "closed":
        with pytest.raises(ChatError) as refused:
            await alone.request("alice", 1)
        assert refused.value.code == "limits_unavailable"
    else:
        with await alone.request("alice", 1), pytest.raises(ChatError) as refused:
            await alone.request("alice", 1)
        assert refused.value.code == "too_many_parallel_requests"
    await alone.close()


async def test_a_client_that_leaves_while_it_is_asked_for_leaves_no_slot(url: str) -> None:
    places = RedisPlaces(url, down="open")
    for _ in range(5):
        asking = asyncio.create_task(places.enter("alice", 1, 0.0))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait({asking})
    assert isinstance(await places.enter("alice", 1, 5.0), LeasedSlot)
    await places.close()


async def test_a_model_has_its_places_once_however_many_processes_ask_it(url: str) -> None:
    shared = [RedisPlaces(url, down="open", prefix="callgate:shared:") for _ in range(2)]
    one, other = (Admission(100, 0.0, None, places) for places in shared)
    with await one.model("m", 2), await other.model("m", 2):
        with pytest.raises(ChatError) as refused:
            await other.model("m", 2)
        assert (refused.value.status, refused.value.code) == (503, "model_over_capacity")
        with await other.model("another", 1):
            pass
    for places in shared:
        await places.close()


async def test_a_model_is_counted_here_alone_while_redis_is_away() -> None:
    places = RedisPlaces("redis://127.0.0.1:1", down="open")
    alone = Admission(100, 0.0, None, places)
    with await alone.model("m", 1), pytest.raises(ChatError) as refused:
        await alone.model("m", 1)
    assert refused.value.code == "model_over_capacity"
    with await alone.model("m", 1):
        pass
    await places.close()


async def test_calls_of_a_tool_wait_for_each_other_over_processes_and_one_that_is_given_up_leaves_no_slot(
    url: str,
) -> None:
    shared = [RedisPlaces(url, down="open") for _ in range(2)]
    one, other = (ConcurrencyLimits(shared=places) for places in shared)
    for limits in (one, other):
        limits.limit_tool("tool", 1)
    held, waits, later = (Slots(limits.on_the_way_to("tool", "")) for limits in (one, other, other))
    await held.take()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await waits.take()
    waiting = asyncio.create_task(later.take())
    await asyncio.sleep(0)
    assert not waiting.done()
    held.give_back()
    async with asyncio.timeout(30):
        await waiting
        later.give_back()
        await held.take()
        held.give_back()
    for places in shared:
        await places.close()


async def test_a_program_that_each_process_has_for_itself_is_limited_by_each(url: str) -> None:
    shared = [RedisPlaces(url, down="open") for _ in range(2)]
    taken = []
    for places in shared:
        limits = ConcurrencyLimits(shared=places)
        limits.limit_source("server", 1, is_here=True)
        taken.append(Slots(limits.on_the_way_to("tool", "server")))
        await taken[-1].take()
        assert not taken[-1].are_free
    for places in shared:
        await places.close()


async def test_what_redis_says_while_this_process_stands_still_has_come_in_time(url: str) -> None:
    from redis.asyncio import Redis

    places, limiter = RedisPlaces(url, down="open"), RedisLimiter(url, down="open")
    await places.enter("alice", 2, 0.0)  # so that there is a connection
    await limiter.reserve("alice", ALLOWED, Amount())
    async with Redis.from_url(url) as admin:
        await admin.execute_command("CLIENT", "PAUSE", "200")
    asked = [
        asyncio.create_task(places.enter("alice", 2, 0.0)),
        asyncio.create_task(limiter.reserve("alice", ALLOWED, Amount())),
    ]
    for _ in range(50):
        await asyncio.sleep(0)
    assert not any(each.done() for each in asked)
    time.sleep(3 * PATIENCE)  # noqa: ASYNC251 - that is the point
    slot, reserved = await asyncio.gather(*asked)
    assert isinstance(slot, LeasedSlot)
    assert isinstance(reserved, Reservation)
    assert reserved.local is None
    await places.close()
    await limiter.close()


async def test_a_redis_that_accepts_connections_and_never_answers_is_away() -> None:
    writers: list[asyncio.StreamWriter] = []

    def keep(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    async with await asyncio.start_server(keep, "127.0.0.1", 0) as silent:
        port = silent.sockets[0].getsockname()[1]
        places = RedisPlaces(f"redis://127.0.0.1:{port}", down="open")
        async with asyncio.timeout(8 * PATIENCE):
            assert await places.enter("alice", 1, 0.0) is True
        await places.close()
        for writer in writers:
            writer.close()
            await writer.wait_closed()


async def test_what_is_asked_once_more_is_not_counted_twice(url: str) -> None:
    """Redis does what it is asked, and its answers are lost."""
    places, limiter = RedisPlaces(url, down="open"), RedisLimiter(url, down="open")
    await places.enter("bob", 1, 0.0)
    await limiter.reserve("bob", ALLOWED, Amount())
    lost: list[Any] = []

    def losing(script: Any) -> Any:
        async def ask(**given: Any) -> Any:
            answer = await script(**given)
            if script not in lost:
                lost.append(script)
                await asyncio.Event().wait()
            return answer

        return ask

    places._take = losing(places._take)
    assert isinstance(await places.enter("alice", 1, 0.0), LeasedSlot)
    assert await places.enter("alice", 1, 0.0) is False, "one slot is taken"
    limiter._add = losing(limiter._add)
    reserved = await limiter.reserve("alice", Allowance(requests_per_minute=2), Amount())
    assert len(lost) == 2
    assert reserved.local is None
    assert reserved.headers["x-ratelimit-remaining-requests"] == "1"
    await places.close()
    await limiter.close()
