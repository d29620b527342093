"""Runs in memory: those of a server without a ledger. They end with their process, so that nobody takes one over."""

import time
from collections import OrderedDict
from collections.abc import Callable

from msgspec.structs import replace

from callgate.state.runs import NewRun, RunLedger, StoredRun


class MemoryRunLedger(RunLedger):
    """Has the running requests and the newest answers, bounded in entries and bytes. Turns and calls are not stored: only
    a process that takes a run over would read them."""

    def __init__(self, entries: int, bytes: int, clock: Callable[[], float] = time.time) -> None:
        self._entries = entries
        self._bytes = bytes
        self._clock = clock
        self._running: dict[str, StoredRun] = {}
        self._ended: OrderedDict[str, tuple[StoredRun, float]] = OrderedDict()
        """The runs that have ended with the times of their ends, the oldest first."""
        self._ids: dict[tuple[str, str], str] = {}
        """The ids of runs by caller and key."""
        self._keys: dict[str, tuple[str, str]] = {}
        self._size = 0

    async def begin(self, new: NewRun) -> StoredRun:
        if new.key_digest is not None:
            key = (new.caller, new.key_digest)
            if (earlier := self._find(self._ids.get(key, ""))) is not None:
                return earlier
            self._ids[key] = new.id
            self._keys[new.id] = key
        run = StoredRun(
            new.id,
            new.caller,
            new.request_digest,
            new.face,
            new.request,
            state="running",
            background=new.background,
            owner="",
            epoch=1,
            cancel=False,
            created_at=self._clock(),
            answer=None,
        )
        self._running[new.id] = run
        return run

    async def find(self, id: str) -> StoredRun | None:
        return self._find(id)

    async def finish(self, run: StoredRun, state: str, answer: bytes) -> None:
        if self._running.pop(run.id, None) is None:
            return
        self._ended[run.id] = (replace(run, state=state, answer=answer, request=b""), self._clock())
        self._size += len(answer)
        while self._size > self._bytes or len(self._ended) > self._entries:
            self._drop(next(iter(self._ended)))

    async def forget(self, run: StoredRun) -> None:
        self._drop(run.id)

    async def prune(self, seconds: float) -> None:
        for id, (_, ended_at) in list(self._ended.items()):
            if ended_at > self._clock() - seconds:
                return
            self._drop(id)

    async def release(self, run: StoredRun) -> None:
        self._drop(run.id)

    def _find(self, id: str) -> StoredRun | None:
        if id in self._ended:
            return self._ended[id][0]
        return self._running.get(id)

    def _drop(self, id: str) -> None:
        self._running.pop(id, None)
        ended = self._ended.pop(id, None)
        if ended is not None:
            self._size -= len(ended[0].answer or b"")
        key = self._keys.pop(id, None)
        if key is not None:
            del self._ids[key]
