"""Sends clients what happens now: everything in a feed, or the events of one run."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from callgate.recorder.backlog import Backlog, BacklogShare
from callgate.recorder.events import run_events
from callgate.recorder.recording import RunRecording, weight_of
from callgate.records.row import RunEvent

WATCHERS: Final = 20
"""The most clients that follow a run or the feed."""
WATCHERS_PER_KEY: Final = 5
"""The most of them for one key that may see only its own runs."""
WATCHERS_OF_ALL_KEYS: Final = 15
"""The most of them for all such keys together. The rest is reserved for operators."""


class Feed:
    """Live messages about runs for one watcher."""

    __slots__ = ("_backlog", "_loop")

    def __init__(self, share: BacklogShare) -> None:
        self._loop = asyncio.get_running_loop()
        self._backlog = Backlog(share)

    def put(self, kind: str, facts: Any, size: int) -> None:
        """Add a message of about `size` bytes. Thread-safe."""
        self._soon(self._backlog.put, (kind, facts), size)

    def end(self) -> None:
        """Add the last message, of the kind `end`. Thread-safe."""
        self._soon(self._backlog.finish, ("end", None))

    async def get(self) -> tuple[str, Any]:
        """Return the next message. Raises `FellBehind`."""
        kind, facts = await self._backlog.get()
        return kind, facts

    def close(self) -> None:
        self._backlog.close()

    def _soon(self, work: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(work, *arguments)


class Watchers:
    """The clients that watch this process. Used on the event loop, except for `publish`."""

    def __init__(self) -> None:
        self.feeds: list[Feed] = []
        self._followed: list[Backlog] = []
        self._shares: dict[str, BacklogShare] = {}
        """What waits for the watchers of each key, by its owner's name."""
        self._places: Counter[str | None] = Counter()
        self._has_ended = False

    # -- places

    def reserve(self, key: str | None = None) -> bool:
        """Reserve a place for a watcher of a run or the feed; False if none is free. Release it with `release`. `key`: the
        caller's key, if it may see only its own runs."""
        if self._places.total() >= WATCHERS:
            return False
        if key is not None and (
            self._places[key] >= WATCHERS_PER_KEY or self._places.total() - self._places[None] >= WATCHERS_OF_ALL_KEYS
        ):
            return False
        self._places[key] += 1
        return True

    def release(self, key: str | None = None) -> None:
        self._places[key] -= 1
        if not self._places[key]:
            del self._places[key]

    # -- feeds

    def watch(self, owner: str) -> Feed:
        """Return a feed of everything that is published from now on. Close it with `unwatch`. `owner`: whose it is."""
        feed = Feed(self._share(owner))
        self.feeds.append(feed)
        if self._has_ended:
            feed.end()
        return feed

    def unwatch(self, feed: Feed) -> None:
        self.feeds.remove(feed)
        feed.close()
        self._forget_unused_shares()

    def publish(self, kind: str, facts: Any = None, *, besides: Feed | None = None) -> None:
        """Send a message to all feeds but `besides`. Thread-safe."""
        feeds = list(self.feeds)
        if feeds:
            size = len(repr(facts))
        for feed in feeds:
            if feed is not besides:
                feed.put(kind, facts, size)

    def end(self) -> None:
        """End all feeds and followers, present and later ones: a server that shuts down does not wait for watchers."""
        self._has_ended = True
        for feed in list(self.feeds):
            feed.end()
        for backlog in self._followed:
            backlog.finish(None)

    # -- followers of one run

    async def follow(
        self, recording: RunRecording, idle_seconds: float | None, owner: str
    ) -> AsyncIterator[RunEvent | None]:
        """Yield the events of a run under way until it ends, and None after each `idle_seconds` without one. Raises `FellBehind`.
        `owner`: who follows it."""
        earlier = [(happened, weight_of(happened)) for happened in recording.happened]
        backlog = Backlog(self._share(owner), earlier)
        recording.followers.append(backlog)
        self._followed.append(backlog)
        if self._has_ended or recording.row.seconds is not None:
            backlog.finish(None)
        try:
            while True:
                try:
                    async with asyncio.timeout(idle_seconds):
                        following = await backlog.get()
                except TimeoutError:
                    yield None
                    continue
                if following is None:
                    return
                yield run_events(recording, [following])[0]
        finally:
            recording.followers.remove(backlog)
            self._followed.remove(backlog)
            backlog.close()
            self._forget_unused_shares()

    def _share(self, owner: str) -> BacklogShare:
        return self._shares.setdefault(owner, BacklogShare())

    def _forget_unused_shares(self) -> None:
        self._shares = {owner: share for owner, share in self._shares.items() if share.backlogs}


def end_followers(recording: RunRecording) -> None:
    """Tell the clients that follow a run that it has ended."""
    for backlog in recording.followers:
        backlog.finish(None)
