"""News about runs between the processes that share a Redis: which process has a run, and, while a client watches, the events
of all runs.

Nothing is sent unless a process asks or watches. News is lost while Redis is away.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
import structlog

from callgate.recorder.recorder import Feed, Recorder
from callgate.recorder.row import RunRow
from callgate.recorder.store import StoreUnusable
from callgate.stores.redis_news import LISTENING
from callgate.stores.store import KeyValueStore, StoreError

ASKED, WATCHED, WHO_WATCHES, HAPPENED = "run", "watched", "who_watches", "happened"
ANNOUNCE_SECONDS: Final = 10.0
"""How often this process announces that a client watches here."""
WATCHED_SECONDS: Final = 25.0
"""How long events are published after another process announced that a client watches there."""
ANSWER_SECONDS: Final = 1.0
"""How long to wait for the process that has a run."""
LOOK_SECONDS: Final = 0.05
KEPT_SECONDS: Final = 10.0
FORWARDED: Final = frozenset({"run", "approval"})
RUN_ID: Final = re.compile(r"run_[0-9a-f]{24}")

log = structlog.get_logger("callgate.runs")


class RunPlace(msgspec.Struct, frozen=True):
    """The process that has a run, the run's key and its state."""

    process: str
    key: str
    """The name of the key that it belongs to."""
    state: str


class RunNews:
    """Publishes news of this process's runs, and handles that of the others."""

    def __init__(self, recorder: Recorder, store: KeyValueStore, publish: Callable[[str], Awaitable[bool]]) -> None:
        """`store` is shared with the other processes, and `publish` publishes to all of them."""
        self._recorder, self._store, self._publish = recorder, store, publish
        self._announced_at = self._watched_at = -float("inf")
        self._forwarded: Feed | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    async def place_of(self, id: str) -> RunPlace | None:
        """Find the other process that has a run; None where none answers."""
        if RUN_ID.fullmatch(id) is None or not await self._publish(f"{ASKED} {id}"):
            return None
        ends = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < ends:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                if (found := await self._store.get(_key(id))) is not None:
                    return msgspec.json.decode(found, type=RunPlace)
            except StoreError as error:
                log.warning("run_not_asked_for", run=id, error=str(error))
                return None
        return None

    def watch(self) -> None:
        """Announce that a client watches here."""
        if time.monotonic() - self._announced_at > ANNOUNCE_SECONDS:
            self._announced_at = time.monotonic()
            self._begin(self._publish(WATCHED))

    def on_message(self, what: str) -> None:
        """Handle a message of another process, or the notice that this one is subscribed."""
        kind, _, rest = what.partition(" ")
        if kind == LISTENING:
            self._begin(self._publish(WHO_WATCHES))
        elif kind == WHO_WATCHES:
            if time.monotonic() - self._announced_at < WATCHED_SECONDS:
                self._begin(self._publish(WATCHED))
        elif kind == ASKED:
            self._begin(self._answer(rest))
        elif kind == WATCHED:
            self._watched_at = time.monotonic()
            if self._forwarded is None:
                self._forwarded = self._recorder.watch()
                self._begin(self._forward(self._forwarded))
        elif kind == HAPPENED:
            try:
                name, facts = msgspec.json.decode(rest)
                known = msgspec.convert(facts, RunRow) if name == "run" else facts
            except (msgspec.MsgspecError, ValueError) as error:  # from another version
                log.warning("news_not_understood", error=str(error))
                return
            self._recorder.publish(name, known, besides=self._forwarded)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _answer(self, id: str) -> None:
        try:
            found = await asyncio.to_thread(self._recorder.get, id)
            if found is not None:
                place = RunPlace(self._recorder.process, found.row.key, found.row.state)
                await self._store.put(_key(id), msgspec.json.encode(place), KEPT_SECONDS)
        except (StoreError, StoreUnusable) as error:
            log.warning("run_not_asked_for", run=id, error=str(error))

    async def _forward(self, feed: Feed) -> None:
        try:
            while (left := self._watched_at + WATCHED_SECONDS - time.monotonic()) > 0:
                try:
                    async with asyncio.timeout(left):
                        kind, facts = await feed.get()
                except TimeoutError:
                    continue
                if kind == "end":
                    return
                if kind in FORWARDED:
                    await self._publish(f"{HAPPENED} {msgspec.json.encode((kind, facts)).decode()}")
        finally:
            self._recorder.unwatch(feed)
            self._forwarded = None

    def _begin(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _key(id: str) -> str:
    return f"run_place:{id}"
