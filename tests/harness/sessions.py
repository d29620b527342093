"""Sessions of aiohttp, which litellm opens and keeps for ten minutes. Then they are garbage, which complains of itself in whichever
test runs: so they are closed in the test that opened them, while their event loop runs."""

import asyncio
import functools
from typing import Any
from weakref import WeakSet

import aiohttp

_sessions: WeakSet[aiohttp.ClientSession] = WeakSet()


def watch() -> None:
    """Note every session from now on."""
    original = aiohttp.ClientSession.__init__

    @functools.wraps(original)
    def note(session: aiohttp.ClientSession, *arguments: Any, **named: Any) -> None:
        original(session, *arguments, **named)
        _sessions.add(session)

    aiohttp.ClientSession.__init__ = note  # type: ignore[assignment,method-assign]


async def close() -> None:
    """Close those of the event loop that runs."""
    for session in [*_sessions]:
        if session._loop is asyncio.get_running_loop() and not session.closed:
            await session.close()
