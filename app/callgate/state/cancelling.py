"""Ends tasks for good."""

import asyncio
from typing import Any, Final

AGAIN_SECONDS: Final = 0.2
"""After so long a task that goes on is cancelled again."""


async def cancel_until_ended(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel tasks, and wait for their ends. A driver may swallow a cancellation, as redis-py does where it comes while it
    connects: then it is cancelled again."""
    waiting = {task for task in tasks if not task.done()}
    while waiting:
        for task in waiting:
            task.cancel()
        _, waiting = await asyncio.wait(waiting, timeout=AGAIN_SECONDS)
