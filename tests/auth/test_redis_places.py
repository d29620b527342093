"""`parallel` over several processes, each with its own connection to one real Redis."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import pytest

from callgate.auth import redis_places
from callgate.auth.admission import Admission
from callgate.auth.redis_places import RedisPlaces, RedisSlot
from callgate.conversation.errors import ChatError
from tests.harness.needs import needs
from tests.harness.redis import redis_server

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
    async with asyncio.timeout(10):
        while True:  # given back in the background
            try:
                with await other.request("alice", 3):
                    break
            except ChatError:
                await asyncio.sleep(0.01)
    for each in (one, other):
        await each.close()


async def test_of_many_that_come_at_once_as_many_get_in_as_may(url: str) -> None:
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
    monkeypatch.setattr(redis_places, "LEASE_SECONDS", 0.5)
    monkeypatch.setattr(redis_places, "RENEW_SECONDS", 0.1)
    dead, alive, asking = (RedisPlaces(url, down="open") for _ in range(3))
    for places in (dead, alive):
        assert isinstance(await places.enter("alice", 2, 0.0), RedisSlot)
    assert dead._renewing is not None
    dead._renewing.cancel()
    assert await asking.enter("alice", 2, 0.0) is False
    assert isinstance(await asking.enter("alice", 2, 5.0), RedisSlot), "that of the dead one"
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
    assert isinstance(await places.enter("alice", 1, 5.0), RedisSlot)
    await places.close()
