"""A call that asks a person, and its timeout."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from callgate.tools.call_questions import CallQuestions
from callgate.tools.questions import PersonsAnswer, Question

pytestmark = pytest.mark.anyio

QUESTION = Question("s", "Which?", url="https://a.example/")


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


class Clock:
    """The clock of an event loop, which is moved by hand."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.now = loop.time()
        loop.time = lambda: self.now  # type: ignore[method-assign]


@pytest.fixture
async def clock() -> AsyncIterator[Clock]:
    loop = asyncio.get_running_loop()
    yield Clock(loop)
    del loop.time


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_time_in_which_a_person_thinks_does_not_count(clock: Clock) -> None:
    answers: list[asyncio.Future[PersonsAnswer]] = []

    async def ask(question: Question) -> PersonsAnswer:
        answers.append(asyncio.get_running_loop().create_future())
        return await answers[-1]

    questions = CallQuestions(ask)
    running = asyncio.create_task(asyncio.Event().wait())
    waiting = asyncio.create_task(questions.wait(running, 30.0))
    await turns()
    calls = [asyncio.create_task(questions.ask(QUESTION)) for _ in range(3)]
    await turns()
    clock.now += 1_000
    await turns()
    assert not waiting.done(), "a question is open"
    for answer in answers:
        answer.set_result(PersonsAnswer("accept"))
    await asyncio.wait(calls)
    clock.now += 29
    await turns()
    assert not waiting.done(), "it has its thirty seconds still"
    clock.now += 2
    await turns()
    assert waiting.done()
    assert not running.done(), "it is stopped by who waits for it"
    assert questions.asked == 3
    running.cancel()


async def test_a_call_that_ends_is_not_waited_for_any_longer(clock: Clock) -> None:
    async def nobody(question: Question) -> PersonsAnswer:
        raise AssertionError("asks nothing")

    async def returns() -> str:
        return "done"

    task = asyncio.create_task(returns())
    await CallQuestions(nobody).wait(task, 30.0)
    assert task.result() == "done"
