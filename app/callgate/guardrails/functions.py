"""The hook `python`: asks a function of the operator's."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from callgate.guardrails.verdicts import GuardEvent, Verdict
from callgate.tools.kinds.python.function import NotATool, functions_at
from callgate.tools.kinds.python.threads import ThreadPool


class FunctionCheck:
    """A function, or an object with a `check`."""

    def __init__(self, function: Callable[[GuardEvent], Any], threads: ThreadPool) -> None:
        self._function = function
        self._threads = threads
        self._is_async = inspect.iscoroutinefunction(function)

    async def check(self, event: GuardEvent) -> Verdict:
        """Return what the function returns, which nobody has looked at. A function that is not async runs in a thread."""
        if self._is_async:
            verdict = await self._function(event)
        else:
            verdict = await self._threads.run(lambda: self._function(event))
            if asyncio.iscoroutine(verdict):
                verdict = await verdict
        return verdict  # type: ignore[no-any-return]


def function_check(path: str, threads: ThreadPool) -> FunctionCheck:
    """Return the hook at `package.module:function`. Raises `NotAHook`."""
    try:
        (function,) = functions_at(path)
    except NotATool as error:
        raise NotAHook(str(error)) from error
    check = getattr(function, "check", function)
    return FunctionCheck(check, threads)


class NotAHook(ValueError):
    """Raised for what cannot be a hook. For the operator."""
