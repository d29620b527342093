"""Coroutines that run at the same time."""

import asyncio

import pytest

from callgate.conversation.side_by_side import side_by_side

pytestmark = pytest.mark.anyio


async def test_results_are_in_the_order_of_the_works() -> None:
    async def later(number: int) -> int:
        for _ in range(3 - number):
            await asyncio.sleep(0)
        return number

    assert await side_by_side(later(number) for number in range(3)) == [0, 1, 2]


async def test_the_first_failure_cancels_the_others_and_is_raised() -> None:
    stopped = asyncio.Event()

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    with pytest.raises(ValueError, match="no"):
        await side_by_side([fail(), wait()])
    assert stopped.is_set()


async def test_several_failures_are_a_group_and_none_is_lost() -> None:
    async def fail(text: str) -> None:
        raise ValueError(text)

    with pytest.raises(ExceptionGroup) as failed:
        await side_by_side([fail("a"), fail("b")])
    assert [str(each) for each in failed.value.exceptions] == ["a", "b"]


async def test_who_is_cancelled_cancels_all_of_them() -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    running = asyncio.create_task(side_by_side([wait(), wait()]))
    await begun.wait()
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    assert stopped.is_set()
