"""Records runs: the newest in memory, all of them in a file.

A request appends its events to a list. The event loop packs ended runs into bytes, several at a time, and a thread writes them in
batches. Runs with texts are packed by the thread, because masking secrets takes long.
"""

import asyncio
import contextlib
import os
import queue
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from time import monotonic
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import msgspec
import structlog

from callgate.http.trace_context import Trace
from callgate.recorder.last_hour import LastHour
from callgate.recorder.packed import PackedRun
from callgate.recorder.packing import Happened, Mask, PriceOf, packed
from callgate.recorder.recording import RecordPolicy, RunRecording, no_price
from callgate.recorder.row import COUNTED, KeyUsage, Recording, RunEvent, RunRow
from callgate.recorder.store import FILE, RunFilter, RunStore, StoreUnusable, day_of, is_wanted, run_place

log = structlog.get_logger("callgate.recorder")

IN_MEMORY: Final = 200
"""How many runs are kept in memory, with or without a file."""
IN_MEMORY_BYTES: Final = 32 * 1024 * 1024
"""The limit of their events and texts in memory. Beyond it the oldest runs are dropped from memory."""
PACKED_TOGETHER: Final = 64
"""How many runs are packed together: it takes a fifth of a millisecond, half the time of packing them one by one."""
PACKING_SECONDS: Final = 0.002
"""How long the event loop packs without a pause: some runs have long results, or usage with many counts."""
PACKED_AFTER_SECONDS: Final = 0.05
"""How long a run may wait to be packed together with others."""
BATCH_SECONDS: Final = 0.25
"""How long a run may wait to be written. A crash loses the runs of this time."""
BACKLOG_BYTES: Final = 64 * 1024 * 1024
"""The limit of the queue for the file: 32,000 runs without texts. Beyond it runs are dropped and counted; requests never wait."""
PRUNE_SECONDS: Final = 3600.0
COUNT_SECONDS: Final = 5.0
"""How often usage is added up while no run ends."""
SLICE: Final = 500
SCANNED_RUNS: Final = 10_000
"""The most runs that are scanned for one page of a filter without an index."""
WATCHERS: Final = 20
"""The most clients that follow a run or the feed."""
WATCHERS_PER_KEY: Final = 5
"""The most of them for one key that may see only its own runs."""
WATCHERS_OF_ALL_KEYS: Final = 15
"""The most of them for all such keys together. The rest is reserved for operators."""
FEED_BACKLOG: Final = 1000
"""The longest queue of a watcher that reads slowly. Further messages are dropped; the page then loads the list again."""

Found = TypeVar("Found")

NOTHING_COUNTED: Final = (0,) * len(COUNTED)

EndedRun: TypeAlias = PackedRun | RunRecording
"""A run that waits to be written. A `RunRecording` is packed by the thread."""


class CountedUsage(Protocol):
    """The usage of one model by one key since the process began. The counts never decrease."""

    name: str
    """The model's name."""
    key: str
    requests: int
    failed: int
    calls: int
    tokens_in: int
    tokens_out: int
    nano: int
    unpriced: int
    unpriced_elsewhere: int
    priced_in: int
    priced_out: int


class Feed:
    """A queue of live messages about runs for one watcher."""

    __slots__ = ("_loop", "_queue")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()

    def put(self, kind: str, facts: Any = None) -> None:
        """Queue a message; the kind `end` is the last. Thread-safe."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._offer, kind, facts)

    def _offer(self, kind: str, facts: Any) -> None:
        if self._queue.qsize() < FEED_BACKLOG or kind == "end":
            self._queue.put_nowait((kind, facts))

    async def get(self) -> tuple[str, Any]:
        return await self._queue.get()


class Recorder:
    """Records the runs of this process."""

    def __init__(
        self,
        mask: Mask,
        folder: Path | None = None,
        on_dropped: Callable[[], None] = lambda: None,
        counted: Callable[[], Iterable[CountedUsage]] = tuple,
    ) -> None:
        """`folder`: the folder of the file; None if runs are kept in memory only."""
        self._mask = mask
        self._folder = folder
        self._on_dropped = on_dropped
        self.process = f"{socket.gethostname()}:{os.getpid()}"
        """The name of this process in the rows of its runs."""
        self._under_way: dict[str, RunRecording] = {}
        self._waiting: dict[str, EndedRun] = {}
        # Only the event loop writes the first count, and only the thread the second.
        self._bytes_in = self._bytes_out = 0
        self._newest: deque[PackedRun] = deque(maxlen=IN_MEMORY)
        self._newest_lock = threading.Lock()
        self._lock = threading.Lock()
        """Guards deletion and the usage. The thread holds it while it writes, which may take seconds where the file is locked."""
        self._unpacked: list[RunRecording] = []
        self._packing: asyncio.TimerHandle | None = None
        self._ended: queue.SimpleQueue[list[EndedRun] | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._feeds: list[Feed] = []
        self._watchers: Counter[str | None] = Counter()
        self._feeds_ended = False
        self._policy = RecordPolicy()
        self._thread: threading.Thread | None = None
        self._failure = ""
        self._counted = counted
        self._added: dict[tuple[str, str], tuple[int, ...]] = {}
        self.export: Callable[[Sequence[tuple[Recording, Trace]]], None] | None = None
        """Exports runs with a trace. Called in the thread."""
        self._usage: dict[tuple[str, str, str], KeyUsage] = {}
        self._hour = LastHour()

    # -- on the event loop

    def begin(
        self, row: RunRow, policy: RecordPolicy, price: PriceOf = no_price, trace: Trace | None = None
    ) -> RunRecording:
        """Begin to record a run. `price` must return without a request to another server. With `runs="off"` the run is recorded
        only for its spans, and is not listed."""
        row.process = self.process
        if trace is not None:
            row.trace_id = trace.trace_id
            row.parent_span = "" if trace.parent is None else trace.parent.span_id
            if not trace.is_exported:
                trace = None
        recording = RunRecording(row, policy, self._mask, price, trace)
        if policy.runs == "off":
            recording.is_listed = False
            return recording
        self._policy = policy
        self._under_way[row.id] = recording
        if self._feeds:
            self.publish("run", row)
        return recording

    def end(self, recording: RunRecording, *, state: str = "", status: int = 200, error: str = "") -> None:
        """End a run. `state` is used if the chat has no ending of its own."""
        row = recording.row
        row.seconds, row.status, row.error = monotonic() - recording.began, status, error
        if state:
            row.state = state
        if recording.watchers:
            for watcher in recording.watchers:
                watcher.put_nowait(None)
        if recording.is_listed:
            self._waiting[row.id] = recording  # before it leaves `_under_way`, so that a list finds it in one of them
        self._under_way.pop(row.id, None)
        self._unpacked.append(recording)
        if len(self._unpacked) >= PACKED_TOGETHER:
            self._pack()
        elif self._packing is None:
            self._packing = asyncio.get_running_loop().call_later(PACKED_AFTER_SECONDS, self._pack)

    def _pack(self) -> None:
        """Pack the runs that have ended since the last call, and queue them for the thread."""
        if self._packing is not None:
            self._packing.cancel()
            self._packing = None
        batch: list[EndedRun] = []
        unpacked, self._unpacked = self._unpacked, []
        ends = monotonic() + PACKING_SECONDS
        for recording in unpacked:
            if monotonic() > ends:
                self._unpacked = unpacked[unpacked.index(recording) :]
                self._packing = asyncio.get_running_loop().call_later(0, self._pack)
                break
            ended: EndedRun | None = None
            try:
                if self._bytes_in - self._bytes_out > BACKLOG_BYTES:
                    self._on_dropped()
                elif not recording.is_deleted:
                    ended = recording.to_write()
            except Exception as error:  # noqa: BLE001 - a bug must not lose the other runs
                self._drop(recording.id, error)
            if ended is None:
                self._waiting.pop(recording.id, None)
                continue
            if recording.is_listed:
                self._waiting[recording.id] = ended
                if recording.is_deleted:  # meanwhile, by a thread
                    ended.is_deleted = True
            self._bytes_in += ended.weight
            batch.append(ended)
        if batch:
            if self._thread is None:
                self._start()
            self._ended.put(batch)

    @property
    def has_waiting(self) -> bool:
        """True if an ended run is not written yet."""
        return bool(self._waiting)

    def open(self) -> None:
        """Start the thread, so that usage is written even if no run ends."""
        if self._thread is None:
            self._start()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._work, name="recorder", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """End all feeds, write the waiting runs, and stop the thread."""
        self.end_feeds()
        while self._unpacked or self._thread is not None:
            while self._unpacked:
                self._pack()
            if self._thread is not None:
                self._closing.set()
                self._ended.put(None)
                await asyncio.to_thread(self._thread.join)
                self._closing.clear()
                self._thread = None
                if self._waiting and not self._ended.empty():  # runs that ended meanwhile
                    self._start()

    def reserve_watcher(self, key: str | None = None) -> bool:
        """Reserve a place for a watcher of a run or the feed; False if none is free. Release it with `release_watcher`. `key`: the
        caller's key, if it may see only its own runs."""
        if self._watchers.total() >= WATCHERS:
            return False
        if key is not None and (
            self._watchers[key] >= WATCHERS_PER_KEY
            or self._watchers.total() - self._watchers[None] >= WATCHERS_OF_ALL_KEYS
        ):
            return False
        self._watchers[key] += 1
        return True

    def release_watcher(self, key: str | None = None) -> None:
        self._watchers[key] -= 1
        if not self._watchers[key]:
            del self._watchers[key]

    def watch(self) -> Feed:
        """Return a feed of everything that is published from now on. Close it with `unwatch`."""
        feed = Feed()
        self._feeds.append(feed)
        if self._feeds_ended:
            feed.put("end")
        return feed

    def unwatch(self, feed: Feed) -> None:
        self._feeds.remove(feed)

    def publish(self, kind: str, facts: Any = None, *, besides: Feed | None = None) -> None:
        """Send a message to all feeds but `besides`. Thread-safe."""
        for feed in list(self._feeds):
            if feed is not besides:
                feed.put(kind, facts)

    def end_feeds(self) -> None:
        """End all feeds, present and later ones: a server that shuts down does not wait for watchers."""
        self._feeds_ended = True
        self.publish("end")
        for recording in self._under_way.values():
            for watcher in recording.watchers:
                watcher.put_nowait(None)

    # -- reading, from any thread

    def page(self, wanted: RunFilter, count: int) -> list[RunRow]:
        """Return the newest runs of a filter. Those under way or not written yet come from memory."""
        here = [recording.row_now() for recording in list(self._under_way.values())]
        for ended in list(self._waiting.values()):
            if ended.is_deleted:
                continue
            if isinstance(ended, PackedRun):
                here.append(ended.whole_row)
            elif ended.is_kept:
                here.append(ended.row_now())
        if self._folder is None or self._failure:
            with self._newest_lock:
                here += [run.whole_row for run in self._newest if not run.is_deleted]
        found = {row.id: row for row in here if is_wanted(row, wanted)}
        for row in self._stored(lambda store: store.page(wanted, count)) or ():
            found.setdefault(row.id, row)
        return sorted(found.values(), key=run_place, reverse=True)[:count]

    def matching(self, wanted: RunFilter, count: int) -> tuple[list[RunRow], RunRow | None]:
        """Return the newest runs of a filter with a tool or a finding, and the last scanned run if there may be more. The scan is
        bounded, so that a filter for a rarely called tool does not read the whole file."""
        found: list[RunRow] = []
        for _ in range(SCANNED_RUNS // SLICE):
            rows = self.page(wanted, SLICE)
            for row in rows:
                if (wanted.tool is None or wanted.tool in row.tools) and (
                    wanted.finding is None or wanted.finding in row.findings
                ):
                    found.append(row)
                    if len(found) == count:
                        return found, row
            if len(rows) < SLICE:
                return found, None
            wanted = msgspec.structs.replace(wanted, before=rows[-1].began, before_id=rows[-1].id)
        return found, rows[-1]

    def get(self, id: str) -> Recording | None:
        if (recording := self._under_way.get(id)) is not None:
            return recording.packed().recording()
        if (ended := self._waiting.get(id)) is not None:
            if ended.is_deleted:
                return None
            return (ended if isinstance(ended, PackedRun) else ended.packed()).recording()
        with self._newest_lock:
            known = next((known for known in self._newest if known.id == id), None)
        if known is not None:
            return known.recording()
        return self._stored(lambda store: store.get(id))

    def replays_of(self, id: str, only: str | None = None) -> list[str]:
        """Return the ids of a run's replays, the newest first; with `only`, those of one key."""
        with self._newest_lock:
            here: list[PackedRun | RunRow] = list(self._newest)
        here += [each.row for each in list(self._under_way.values())]
        here += [each if isinstance(each, PackedRun) else each.row for each in list(self._waiting.values())]
        found = {row.id: row for row in here if row.replay_of == id}
        for row in self._stored(lambda store: store.replays_of(id)) or ():
            found.setdefault(row.id, row)
        rows = sorted(found.values(), key=lambda row: row.began, reverse=True)
        return [row.id for row in rows if only in (None, row.key)]

    def usage(self, since: str) -> list[KeyUsage]:
        """Return the usage from a day on, including what is not yet in the file."""
        with self._lock:  # usage that is being written is counted once: from the file or from memory
            found = {_of(each): each for each in self._stored(lambda store: store.usage(since)) or ()}
            recent = [*self._usage.values(), *self._uncounted(forget=False)]
        for each in recent:
            if each.day >= since:
                found.setdefault(_of(each), KeyUsage(*_of(each))).add(each)
        return sorted(found.values(), key=_of)

    def last_hour(self) -> list[KeyUsage]:
        """Return the usage of this process in each minute of the last hour."""
        with self._lock:
            return self._hour.used(self._uncounted(forget=False), time.time())

    def _stored(self, read: Callable[[RunStore], Found]) -> Found | None:
        """Read from the file; None if it does not exist."""
        if self._folder is None or not (self._folder / FILE).exists():
            return None
        store = RunStore(self._folder, read_only=True)
        try:
            return read(store)
        finally:
            store.close()

    def delete(self, id: str) -> bool:
        """Delete a run that has ended; False if there is none with this id."""
        with self._lock:
            if (waiting := self._waiting.get(id)) is not None:
                waiting.is_deleted = True
                if (packed_run := self._waiting.get(id)) is not None:  # the event loop packs without the lock
                    packed_run.is_deleted = True
                return True
        with self._newest_lock:
            known = next((known for known in self._newest if known.id == id), None)
            if found := known is not None:
                self._newest.remove(known)
        if self._folder is not None and (self._folder / FILE).exists():
            store = RunStore(self._folder)
            try:
                found = store.delete(id) or found
            finally:
                store.close()
        return found

    async def follow(self, recording: Recording, idle_seconds: float | None = None) -> AsyncIterator[RunEvent | None]:
        """Yield the events of a run until it ends, and None after each `idle_seconds` without one."""
        live = self._under_way.get(recording.row.id)
        if live is None:
            if recording.row.seconds is None:  # it ended after it was read
                found = await asyncio.to_thread(self.get, recording.row.id)
                recording = recording if found is None else found
            for event in recording.events:
                yield event
            return
        queue: asyncio.Queue[Happened | None] = asyncio.Queue()
        for happened in live.happened:
            queue.put_nowait(happened)
        live.watchers.append(queue)
        if self._feeds_ended:
            queue.put_nowait(None)
        try:
            while True:
                try:
                    async with asyncio.timeout(idle_seconds):
                        following = await queue.get()
                except TimeoutError:
                    yield None
                    continue
                if following is None:
                    return
                yield packed(live, [following])[0].event()
        finally:
            live.watchers.remove(queue)

    # -- in the thread

    def _work(self) -> None:
        store: RunStore | None = None
        pruned = -PRUNE_SECONDS
        is_open = True
        unwritten: list[PackedRun] = []
        while is_open:
            batch, is_open = self._next_batch()
            fresh = self._packed_batch(batch)
            self._remember(fresh)
            unwritten += fresh
            done: list[PackedRun] = []
            with self._lock:
                self._count()
                if self._folder is None:
                    done += unwritten
                elif unwritten or self._usage:
                    store = self._write(store, unwritten, done)
                del unwritten[: len(done)]
                if not is_open:
                    for _ in unwritten:
                        self._on_dropped()
                    done += unwritten
                forget = self._waiting.pop
                for run in done:
                    forget(run.id, None)
                self._bytes_out += sum(map(_weight, done))
                deleted = [run.id for run in done if run.is_deleted]
            for id in deleted:  # deleted while they were packed or written
                self._remove(id)
            for run in fresh if self._feeds else ():
                if not run.is_deleted:
                    self.publish("run", run.whole_row)
            if store is not None and monotonic() - pruned > PRUNE_SECONDS:
                pruned = monotonic()
                self._prune(store)
        if store is not None:
            store.close()

    def _count(self) -> None:
        """Add up the usage since the last call."""
        counted = list(self._uncounted(forget=True))
        self._hour.add(counted, time.time())
        for used in counted:
            self._usage.setdefault(_of(used), KeyUsage(*_of(used))).add(used)

    def _packed_batch(self, batch: Sequence[EndedRun]) -> list[PackedRun]:
        """Pack the runs that are not packed yet, and omit those that are not kept."""
        packed_runs: list[PackedRun] = []
        traced: list[tuple[Recording, Trace]] = []
        for ended in batch:
            if type(ended) is PackedRun and not ended.is_deleted:
                packed_runs.append(ended)
                continue
            run = None if isinstance(ended, PackedRun) else self._packed_here(ended, traced)
            if run is None:
                self._waiting.pop(ended.id, None)
                self._bytes_out += ended.weight
                continue
            packed_runs.append(run)
            self._bytes_out += ended.weight - run.weight
            with self._lock:
                self._waiting[run.id] = run
                run.is_deleted = ended.is_deleted
        self._export(traced)
        return packed_runs

    def _prune(self, store: RunStore) -> None:
        policy, now = self._policy, time.time()
        try:
            store.prune(
                older_than=now - policy.keep_days * 86_400,
                most_bytes=policy.keep_bytes,
                wire_older_than=now - policy.wire_days * 86_400,
            )
        except StoreUnusable as failure:
            log.warning("runs_not_pruned", reason=str(failure))

    def _packed_here(self, recording: RunRecording, traced: list[tuple[Recording, Trace]]) -> PackedRun | None:
        """Pack a run, and add it to `traced` if it is exported; None if it is not kept."""
        if recording.is_deleted:
            return None
        try:
            run = recording.packed()
            if recording.trace is not None:
                traced.append((run.recording(), recording.trace))
        except Exception as error:  # noqa: BLE001 - a bug must not lose the other runs
            self._drop(recording.id, error)
            return None
        recording.is_kept = recording.policy.keeps(run)
        return run if recording.is_kept else None

    def _export(self, traced: Sequence[tuple[Recording, Trace]]) -> None:
        try:
            if self.export is not None and traced:
                self.export(traced)
        except Exception:
            log.exception("traces_not_encoded", runs=len(traced))

    def _remember(self, kept: Sequence[PackedRun]) -> None:
        """Keep the newest runs in memory, as many as fit."""
        with self._newest_lock:
            newest = self._newest
            newest.extend(kept[-IN_MEMORY:])
            while sum(map(_weight, newest)) > IN_MEMORY_BYTES:
                newest.popleft()

    def _uncounted(self, *, forget: bool) -> Iterator[KeyUsage]:
        """Return the usage that is not added up yet."""
        day = day_of(time.time())
        for counted in self._counted():
            place = counted.key, counted.name
            now = tuple(getattr(counted, name) for name in COUNTED)
            before = self._added.get(place, NOTHING_COUNTED)
            if now != before:
                yield KeyUsage(day, *place, *(new - old for new, old in zip(now, before, strict=True)))
                if forget:
                    self._added[place] = now

    def _next_batch(self) -> tuple[list[EndedRun], bool]:
        """Wait for a run, then a moment for more, and return them all, with False if the recorder is closing."""
        try:
            first = self._ended.get(timeout=COUNT_SECONDS)
        except queue.Empty:
            return [], True
        if first is None:
            return [], False
        # Waking up for each run would cost more than writing it.
        self._closing.wait(BATCH_SECONDS)
        batch = first
        with contextlib.suppress(queue.Empty):
            while (following := self._ended.get_nowait()) is not None:
                batch += following
            return batch, False
        return batch, True

    def _write(self, store: RunStore | None, kept: Sequence[PackedRun], written: list[PackedRun]) -> RunStore | None:
        """Write runs and usage; None if the file cannot be written now: what is not in `written` is written later."""
        assert self._folder is not None
        try:
            if store is not None and not store.is_in_place:
                log.warning("runs_file_gone", path=str(store.path))
                store.close()
                store = None
            store = store or RunStore(self._folder)
            if kept:
                self._add(store, kept, written)
            if self._usage:
                store.count(self._usage.values())
                self._usage = {}
        except StoreUnusable as failure:
            if str(failure) != self._failure:
                self._failure = str(failure)
                log.error("runs_not_recorded", reason=str(failure))  # noqa: TRY400 - the reason is enough
            if store is not None:
                store.close()
            return None
        if self._failure:
            self._failure = ""
            log.warning("runs_recorded_again", runs=len(kept))
        return store

    def _add(self, store: RunStore, kept: Sequence[PackedRun], written: list[PackedRun]) -> None:
        try:
            store.add(kept)
        except (ValueError, OverflowError, RecursionError) as error:  # one of them has a value that cannot be written
            if len(kept) > 1:
                middle = len(kept) // 2
                self._add(store, kept[:middle], written)
                self._add(store, kept[middle:], written)
                return
            self._drop(kept[0].id, error)
        written += kept

    def _drop(self, id: str, error: Exception) -> None:
        """Log and count a run that cannot be written, so that the others still are."""
        self._on_dropped()
        log.error("run_not_written", run=id, exc_info=error)

    def _remove(self, id: str) -> None:
        try:
            self.delete(id)
        except StoreUnusable as failure:
            log.warning("run_not_removed", run=id, reason=str(failure))


_weight = attrgetter("weight")


def _of(used: KeyUsage) -> tuple[str, str, str]:
    return used.day, used.key, used.model
