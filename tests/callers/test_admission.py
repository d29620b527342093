import asyncio

import pytest

from callgate.callers.admission import Admission, CapacityLimiter
from callgate.conversation.errors import ChatError

pytestmark = pytest.mark.anyio

LONG = 30.0
SHORT = 0.01


async def settle() -> None:
    """Lets everything that is ready run."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_free_place_is_taken_without_waiting() -> None:
    limiter = CapacityLimiter(1)
    coroutine = limiter.enter(LONG)
    with pytest.raises(StopIteration) as ended:
        coroutine.send(None)
    assert ended.value.value is True


async def test_requests_that_wait_get_freed_places_in_the_order_of_arrival() -> None:
    limiter = CapacityLimiter(2)
    assert await limiter.enter(LONG)
    assert await limiter.enter(LONG)
    came: list[int] = []

    async def come(number: int) -> None:
        assert await limiter.enter(LONG)
        came.append(number)

    waiting = [asyncio.create_task(come(number)) for number in range(2)]
    await settle()
    assert (limiter.running, limiter.waiting, came) == (2, 2, [])
    limiter.leave()
    await settle()
    assert came == [0]
    limiter.leave()
    await asyncio.gather(*waiting)
    assert (came, limiter.running) == ([0, 1], 2)


async def test_patience_ends_and_the_queue_forgets() -> None:
    limiter = CapacityLimiter(1)
    await limiter.enter(0)
    assert not await limiter.enter(SHORT)
    assert limiter.waiting == 0
    limiter.leave()
    assert limiter.running == 0
    assert await limiter.enter(0)


async def test_the_queue_is_no_longer_than_there_are_places() -> None:
    limiter = CapacityLimiter(1)
    await limiter.enter(0)
    waiting = asyncio.create_task(limiter.enter(LONG))
    await settle()
    async with asyncio.timeout(30):
        assert not await limiter.enter(LONG)
    limiter.leave()
    assert await waiting


async def test_the_queue_is_first_come_first_served() -> None:
    limiter = CapacityLimiter(1)
    await limiter.enter(0)
    waiting = asyncio.create_task(limiter.enter(LONG))
    await settle()
    limiter.leave()
    assert not await limiter.enter(0), "the place was handed to the one who waited"
    assert await waiting


async def test_a_cancelled_waiter_leaves_the_queue() -> None:
    limiter = CapacityLimiter(1)
    await limiter.enter(0)
    waiting = asyncio.create_task(limiter.enter(LONG))
    await settle()
    waiting.cancel()
    await asyncio.wait([waiting])
    assert limiter.waiting == 0
    limiter.leave()
    assert limiter.running == 0


async def test_a_place_handed_to_one_who_has_just_left_goes_on_to_the_next() -> None:
    limiter = CapacityLimiter(2)
    await limiter.enter(0)
    await limiter.enter(0)
    leaving, staying = (asyncio.create_task(limiter.enter(LONG)) for _ in range(2))
    await settle()
    limiter.leave()
    leaving.cancel()  # after the place was handed over, before the task has run again
    await asyncio.wait([leaving])
    assert leaving.cancelled()
    assert await staying
    assert limiter.running == 2


async def test_a_higher_limit_admits_the_waiting_and_a_lower_one_ends_no_running_request() -> None:
    limiter = CapacityLimiter(1)
    await limiter.enter(0)
    waiting = asyncio.create_task(limiter.enter(LONG))
    await settle()
    limiter.resize(2)
    assert await waiting
    limiter.resize(1)
    assert limiter.running == 2
    limiter.leave()
    assert not await limiter.enter(0)


async def test_a_key_with_too_many_requests_gets_a_429_and_a_full_server_a_503() -> None:
    admission = Admission(2, SHORT)
    with await admission.request("alice", 1):
        with pytest.raises(ChatError) as refused:
            await admission.request("alice", 1)
        assert (refused.value.status, refused.value.code) == (429, "too_many_parallel_requests")
        with await admission.request("bob", None):
            with pytest.raises(ChatError) as refused:
                await admission.request("carol", 5)
            assert (refused.value.status, refused.value.code) == (503, "over_capacity")
            assert refused.value.retry_after
    assert admission.all.running == 0
    with await admission.request("carol", 1):
        pass
    assert admission.all.running == 0


async def test_a_request_cancelled_in_the_servers_queue_gives_the_place_of_its_key_back() -> None:
    admission = Admission(1, LONG)
    with await admission.request("alice", None):
        waiting = asyncio.create_task(admission.request("bob", 1))
        await settle()
        waiting.cancel()
        await asyncio.wait([waiting])
    with await admission.request("bob", 1):
        pass


async def test_a_model_has_places_of_its_own() -> None:
    admission = Admission(10, SHORT)
    with await admission.model("m", 1), await admission.model("n", None), pytest.raises(ChatError) as refused:
        await admission.model("m", 1)
    assert (refused.value.status, refused.value.code) == (503, "model_over_capacity")
    with await admission.model("m", 1):
        pass


async def test_a_place_is_given_back_once() -> None:
    admission = Admission(1, SHORT)
    place = await admission.request("alice", None)
    with place:
        pass
    with place:
        pass
    assert admission.all.running == 0
