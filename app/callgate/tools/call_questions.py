"""The questions that one call asks of a person while it runs, during which its timeout stands still."""

import asyncio
import contextlib

from callgate.tools.questions import AskPerson, PersonsAnswer, Question


class CallQuestions:
    """Puts the questions of a call, and waits for the call without counting the time in which a person thinks."""

    def __init__(self, ask: AskPerson) -> None:
        self._ask = ask
        self._open = 0
        self._timeout: asyncio.Timeout | None = None
        self._left = 0.0
        """Seconds that the call had left when the first of the open questions was asked."""
        self.asked = 0
        """How many were asked so far."""

    async def ask(self, question: Question) -> PersonsAnswer:
        self.asked += 1
        self._stop_clock()
        self._open += 1
        try:
            return await self._ask(question)
        finally:
            self._open -= 1
            self._start_clock()

    async def wait(self, task: "asyncio.Task[object]", seconds: float) -> None:
        """Wait for a task, like `asyncio.wait`; the time in which a question is open does not count."""
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(seconds, 0.0)) as self._timeout:
                    await asyncio.wait([task])
        finally:
            self._timeout = None

    def _stop_clock(self) -> None:
        timeout = self._timeout
        if self._open or timeout is None or timeout.expired():
            return
        ends = timeout.when()
        assert ends is not None, "the clock runs"
        self._left = ends - asyncio.get_running_loop().time()
        timeout.reschedule(None)

    def _start_clock(self) -> None:
        timeout = self._timeout
        if self._open or timeout is None or timeout.expired():
            return
        timeout.reschedule(asyncio.get_running_loop().time() + self._left)
