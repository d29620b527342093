"""Sends the events of all runs between the processes that share a Redis, while a client watches at one of them.

News is lost while Redis is away.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
import structlog

from callgate.recorder.backlog import FellBehind
from callgate.recorder.recorder import Recorder
from callgate.recorder.watchers import Feed
from callgate.records.row import RunRow
from callgate.state.cluster.redis_news import LISTENING
from callgate.untrusted.doors import Door, open_text
from callgate.untrusted.readers import read_value

WATCHED = "watched"
WHO_WATCHES = "who_watches"
HAPPENED = "happened"
ANNOUNCE_SECONDS: Final = 10.0
"""How often this process announces that a client watches here."""
WATCHED_SECONDS: Final = 25.0
"""How long events are published after another process announced that a client watches there."""
NEWS: Final = Door(name="news of another process's runs", bytes=1024 * 1024, values=100_000)
OTHER_PROCESSES: Final = "other processes"
"""Who watches for them; no owner's name."""
FORWARDED: Final = frozenset({"run", "approval"})

log = structlog.get_logger("callgate.runs")


class RunNews:
    """Publishes news of this process's runs, and handles that of the others."""

    def __init__(self, recorder: Recorder, publish: Callable[[str], Awaitable[bool]]) -> None:
        """`publish` sends a message to the other processes."""
        self._recorder = recorder
        self._publish = publish
        self._announced_at = -float("inf")
        self._watched_at = -float("inf")
        self._forwarded: Feed | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    def watch(self) -> None:
        """Announce that a client watches here."""
        if time.monotonic() - self._announced_at > ANNOUNCE_SECONDS:
            self._announced_at = time.monotonic()
            self._begin(self._publish(WATCHED))

    def on_message(self, what: str) -> None:
        """Handle a message of another process, or the notice that this one is subscribed."""
        kind, _, content = what.partition(" ")
        if kind == LISTENING:
            self._begin(self._publish(WHO_WATCHES))
        elif kind == WHO_WATCHES:
            if time.monotonic() - self._announced_at < WATCHED_SECONDS:
                self._begin(self._publish(WATCHED))
        elif kind == WATCHED:
            self._watched_at = time.monotonic()
            if self._forwarded is None:
                self._forwarded = self._recorder.watchers.watch(OTHER_PROCESSES)
                self._begin(self._forward(self._forwarded))
        elif kind == HAPPENED:
            try:
                name, facts = read_value(open_text(content, NEWS))
                if name == "run":
                    message = msgspec.convert(facts, RunRow)
                else:
                    message = facts
            except (msgspec.MsgspecError, ValueError) as error:  # from another version
                log.warning("news_not_understood", error=str(error))
                return
            self._recorder.watchers.publish(name, message, besides=self._forwarded)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _forward(self, feed: Feed) -> None:
        try:
            while (seconds_left := self._watched_at + WATCHED_SECONDS - time.monotonic()) > 0:
                try:
                    async with asyncio.timeout(seconds_left):
                        kind, facts = await feed.get()
                except TimeoutError:
                    continue
                except FellBehind:
                    log.warning("run_news_lost", reason="Redis takes the news of runs more slowly than they happen")
                    return
                if kind == "end":
                    return
                if kind in FORWARDED:
                    await self._publish(f"{HAPPENED} {msgspec.json.encode((kind, facts)).decode()}")
        finally:
            self._recorder.watchers.unwatch(feed)
            self._forwarded = None

    def _begin(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
