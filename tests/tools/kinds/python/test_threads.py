import asyncio
import contextvars
import threading

import pytest

from callgate.tools.kinds.python.threads import NoThreadLeft, ThreadPool
from tests.tools.executor_kinds import everything

pytestmark = pytest.mark.anyio


@pytest.fixture
async def pool():
    pool = ThreadPool(2)
    async with asyncio.timeout(30):
        yield pool
        pool.close()
        await everything(lambda: not pool.stuck)


@pytest.fixture
async def gate(pool):
    """Holds threads up until the test, or its end, opens it."""
    gate = threading.Event()
    yield gate
    gate.set()


async def test_it_returns_what_the_function_returns_from_a_thread_of_its_own(pool):
    assert await pool.run(threading.current_thread) is not threading.main_thread()


async def test_it_raises_what_the_function_raises(pool):
    def sits_down() -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        await pool.run(sits_down)
    with pytest.raises(RuntimeError, match="StopIteration"):
        await pool.run(lambda: next(iter(())))


async def test_context_variables_come_along(pool):
    variable = contextvars.ContextVar("variable", default="")
    variable.set("mine")
    assert await pool.run(variable.get) == "mine"


async def test_threads_are_used_again_and_there_are_never_more_than_the_size(pool):
    names = await asyncio.gather(*(pool.run(lambda: threading.current_thread().name) for _ in range(50)))
    assert len(set(names)) <= 2


async def test_a_call_waits_for_a_thread_that_is_only_busy(pool, gate):
    calls = [asyncio.create_task(pool.run(gate.wait)) for _ in range(2)]
    third = asyncio.create_task(pool.run(lambda: "done"))
    await asyncio.sleep(0)
    assert not third.done()
    gate.set()
    assert await third == "done"
    assert await asyncio.gather(*calls) == [True, True]


async def busy(pool, gate):
    """Return the task of a call that a thread has begun."""
    began = threading.Event()

    def work() -> None:
        began.set()
        gate.wait()

    task = asyncio.create_task(pool.run(work))
    await everything(began.is_set)
    return task


async def given_up(pool, gate):
    task = await busy(pool, gate)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_a_thread_given_up_counts_as_stuck_until_it_comes_back(pool, gate):
    await given_up(pool, gate)
    assert pool.stuck == 1
    assert await pool.run(lambda: "another thread") == "another thread"
    gate.set()
    await everything(lambda: pool.stuck == 0)
    assert await pool.run(lambda: "well again") == "well again"


async def test_with_every_thread_stuck_a_call_is_refused_at_once(pool, gate):
    await given_up(pool, gate)
    await given_up(pool, gate)
    with pytest.raises(NoThreadLeft, match="all 2 threads are stuck"):
        await pool.run(lambda: None)


async def test_calls_that_wait_are_refused_when_the_last_thread_gets_stuck(pool, gate):
    await given_up(pool, gate)
    second = await busy(pool, gate)
    waiting = asyncio.create_task(pool.run(lambda: None))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(NoThreadLeft):
        await waiting
    await asyncio.wait([second])


async def test_a_waiting_call_that_is_cancelled_takes_no_thread_along(pool, gate):
    calls = [asyncio.create_task(pool.run(gate.wait)) for _ in range(2)]
    waiting = asyncio.create_task(pool.run(lambda: None))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    gate.set()
    await asyncio.gather(*calls)
    assert pool.stuck == 0
    assert await asyncio.gather(*(pool.run(lambda: 1) for _ in range(4))) == [1] * 4


async def test_a_call_that_is_cancelled_when_it_has_just_answered_leaves_no_thread_stuck(pool, monkeypatch):
    end = pool._end

    def end_and_cancel(*answer: object) -> None:
        end(*answer)
        task.cancel()

    monkeypatch.setattr(pool, "_end", end_and_cancel)
    task = asyncio.create_task(pool.run(lambda: 1))
    await asyncio.wait([task])
    assert task.cancelled()
    assert pool.stuck == 0


async def test_a_closed_pool_runs_nothing(pool):
    assert await pool.run(lambda: 1) == 1
    pool.close()
    with pytest.raises(NoThreadLeft, match="closed"):
        await pool.run(lambda: 1)
