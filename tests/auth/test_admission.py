import asyncio

import pytest

from callgate.auth.admission import Admission, Turnstile
from callgate.conversation.errors import ChatError

pytestmark = pytest.mark.anyio

LONG = 30.0
SHORT = 0.01


async def settle() -> None:
    """Lets everything that is ready run."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_free_place_is_taken_without_waiting() -> None:
    turnstile = Turnstile(1)
    coroutine = turnstile.enter(LONG)
    with pytest.raises(StopIteration) as ended:
        coroutine.send(None)
    assert ended.value.value is True


async def test_whoever_waits_gets_the_place_of_whoever_leaves_in_the_order_of_arrival() -> None:
    turnstile = Turnstile(2)
    assert await turnstile.enter(LONG)
    assert await turnstile.enter(LONG)
    came: list[int] = []

    async def come(number: int) -> None:
        assert await turnstile.enter(LONG)
        came.append(number)

    waiting = [asyncio.create_task(come(number)) for number in range(2)]
    await settle()
    assert (turnstile.running, turnstile.waiting, came) == (2, 2, [])
    turnstile.leave()
    await settle()
    assert came == [0]
    turnstile.leave()
    await asyncio.gather(*waiting)
    assert (came, turnstile.running) == ([0, 1], 2)


async def test_patience_ends_and_the_queue_forgets() -> None:
    turnstile = Turnstile(1)
    await turnstile.enter(0)
    assert not await turnstile.enter(SHORT)
    assert turnstile.waiting == 0
    turnstile.leave()
    assert turnstile.running == 0
    assert await turnstile.enter(0)


async def test_the_queue_is_no_longer_than_there_are_places() -> None:
    turnstile = Turnstile(1)
    await turnstile.enter(0)
    waiting = asyncio.create_task(turnstile.enter(LONG))
    await settle()
    async with asyncio.timeout(1):
        assert not await turnstile.enter(LONG)
    turnstile.leave()
    assert await waiting


async def test_nobody_overtakes_the_queue() -> None:
    turnstile = Turnstile(1)
    await turnstile.enter(0)
    waiting = asyncio.create_task(turnstile.enter(LONG))
    await settle()
    turnstile.leave()
    assert not await turnstile.enter(0), "the place was handed to the one who waited"
    assert await waiting


async def test_a_cancelled_waiter_leaves_the_queue() -> None:
    turnstile = Turnstile(1)
    await turnstile.enter(0)
    waiting = asyncio.create_task(turnstile.enter(LONG))
    await settle()
    waiting.cancel()
    await asyncio.wait([waiting])
    assert turnstile.waiting == 0
    turnstile.leave()
    assert turnstile.running == 0


async def test_a_place_handed_to_one_who_has_just_left_goes_on_to_the_next() -> None:
    turnstile = Turnstile(2)
    await turnstile.enter(0)
    await turnstile.enter(0)
    leaving, staying = (asyncio.create_task(turnstile.enter(LONG)) for _ in range(2))
    await settle()
    turnstile.leave()
    leaving.cancel()  # after the place was handed over, before the task has run again
    await asyncio.wait([leaving])
    assert leaving.cancelled()
    assert await staying
    assert turnstile.running == 2


async def test_more_places_let_the_waiting_in_and_fewer_drive_nobody_out() -> None:
    turnstile = Turnstile(1)
    await turnstile.enter(0)
    waiting = asyncio.create_task(turnstile.enter(LONG))
    await settle()
    turnstile.resize(2)
    assert await waiting
    turnstile.resize(1)
    assert turnstile.running == 2
    turnstile.leave()
    assert not await turnstile.enter(0)


async def test_a_key_with_too_many_requests_gets_a_429_and_a_full_house_a_503() -> None:
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


async def test_one_who_is_cancelled_while_waiting_for_the_house_gives_the_place_of_its_key_back() -> None:
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
