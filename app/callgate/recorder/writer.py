"""Writes ended runs to the file, several at a time.

The event loop encodes them, so that the thread which writes them seldom takes the GIL. Runs with texts are encoded by the thread,
because masking secrets takes long.
"""

import asyncio
import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from time import monotonic
from typing import Final, TypeAlias

import structlog

from callgate.http.trace_context import Trace
from callgate.recorder.ended_run import EndedRun
from callgate.recorder.hours import HourNote
from callgate.recorder.newest_runs import NewestRuns
from callgate.recorder.recording import RunRecording
from callgate.recorder.store import (
    FILE,
    RunStore,
    StoreDamaged,
    StoreUnusable,
    set_aside_damaged,
    set_aside_older,
)
from callgate.recorder.usage_counter import UsageCounter
from callgate.recorder.usage_tables import MemoryTables
from callgate.records.policy import RecordPolicy
from callgate.records.row import RecordedRun, RunRow

log = structlog.get_logger("callgate.recorder")

ENCODED_TOGETHER: Final = 64
"""How many runs are encoded together, which takes half the time of encoding them one by one: less code has to be fetched into the
processor's caches."""
ENCODING_SECONDS: Final = 0.002
"""How long the event loop encodes without a pause: some runs have long results, or usage with many counts."""
ENCODED_AFTER_SECONDS: Final = 0.05
"""How long a run may wait to be encoded together with others."""
BATCH_SECONDS: Final = 0.25
"""How long a run may wait to be written. A crash loses the runs of this time."""
BACKLOG_BYTES: Final = 64 * 1024 * 1024
"""The limit of the queue for the file. Beyond it runs are dropped and counted; requests never wait."""
PRUNE_SECONDS: Final = 3600.0
USAGE_SECONDS: Final = 1.0
"""How often usage is added up and written. It takes as long as to write a hundred runs, however many have ended."""
COUNT_SECONDS: Final = 5.0
"""How often that is done while no run ends."""
Counted: TypeAlias = tuple[RunRow, Sequence[HourNote]]
"""What is counted of a run: its row, and what its events said."""
DAMAGED: Final = "it is damaged"
OF_BEFORE: Final = "it was written by an earlier version of Callgate"


class RunWriter:
    """Takes ended runs, and writes them in a thread."""

    def __init__(
        self,
        folder: Path | None,
        newest: NewestRuns,
        usage: UsageCounter,
        memory: MemoryTables | None,
        on_dropped: Callable[[], None],
        on_ended: Callable[[Sequence[EndedRun]], None],
    ) -> None:
        """`folder`: the folder of the file; None if runs are kept in memory only, and usage in `memory`. `on_ended` is called with runs
        that are kept, in the thread or on the event loop."""
        self.policy = RecordPolicy()
        """Decides how long runs stay in the file."""
        self.export: Callable[[Sequence[tuple[RecordedRun, Trace]]], None] | None = None
        """Exports runs with a trace. Called in the thread."""
        self.failure = ""
        """Why the file cannot be written now; empty if it can."""
        self._folder = folder
        self._newest = newest
        self._usage = usage
        self._memory = memory
        self._on_dropped = on_dropped
        self._on_ended = on_ended
        # On the event loop.
        self._unencoded: deque[RunRecording] = deque()
        self._encoding: asyncio.TimerHandle | None = None
        self._thread: threading.Thread | None = None
        # Of all threads.
        self._lock = threading.Lock()
        """Guards the runs that wait, and their weight. It is never held while the file is used."""
        self._waiting: dict[str, RunRecording] = {}
        self._bytes = 0
        self._queue: queue.SimpleQueue[list[RunRecording] | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        # In the thread.
        self._store: RunStore | None = None
        self._unwritten: list[RunRecording] = []
        self._counted_at = -USAGE_SECONDS
        self._pruned_at = -PRUNE_SECONDS

    # -- on the event loop

    def add(self, recording: RunRecording) -> None:
        """Write an ended run soon."""
        if recording.is_listed:
            self._waiting[recording.row.id] = recording
        self._unencoded.append(recording)
        if len(self._unencoded) >= ENCODED_TOGETHER:
            self.encode_waiting()
        elif self._encoding is None:
            self._encoding = asyncio.get_running_loop().call_later(ENCODED_AFTER_SECONDS, self.encode_waiting)

    def encode_waiting(self) -> None:
        """Encode the runs that have ended since the last call, and queue them for the thread."""
        if self._encoding is not None:
            self._encoding.cancel()
            self._encoding = None
        batch: list[RunRecording] = []
        in_memory: list[EndedRun] = []
        counted: list[Counted] = []
        weight = 0
        end = monotonic() + ENCODING_SECONDS
        while self._unencoded:
            if monotonic() > end:
                self._encoding = asyncio.get_running_loop().call_later(0, self.encode_waiting)
                break
            recording = self._unencoded.popleft()
            if self._bytes + weight > BACKLOG_BYTES:
                self._on_dropped()
                self._forget(recording)
            elif recording.is_encoded_quickly():
                if not self._encode(recording, counted) or not self._keeps(recording):
                    continue
                if self._folder is None and recording.ended is not None:
                    in_memory.append(recording.ended)
                else:
                    weight += recording.weigh()
                    batch.append(recording)
            else:
                weight += recording.weigh()
                batch.append(recording)
        self._usage.add_runs(counted)
        if in_memory:
            self._keep_in_memory(in_memory)
        if batch:
            with self._lock:
                self._bytes += weight
            self.open()
            self._queue.put(batch)

    def _keep_in_memory(self, runs: Sequence[EndedRun]) -> None:
        """Keep runs where there is no file: nothing is left for the thread to do."""
        self._newest.add(runs)
        with self._lock:
            for run in runs:
                self._waiting.pop(run.id, None)
        self._on_ended(runs)

    @property
    def has_waiting(self) -> bool:
        """True if an ended run is not written yet."""
        return bool(self._waiting)

    def open(self) -> None:
        """Start the thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="recorder", daemon=True)
            self._thread.start()

    async def close(self) -> None:
        """Write the waiting runs, and stop the thread."""
        while self._unencoded or self._thread is not None:
            while self._unencoded:
                self.encode_waiting()
            if self._thread is not None:
                self._closing.set()
                self._queue.put(None)
                await asyncio.to_thread(self._thread.join)
                self._closing.clear()
                self._thread = None
                if self._waiting and not self._queue.empty():  # runs that ended meanwhile
                    self.open()

    # -- from any thread

    def waiting(self) -> list[RunRecording]:
        """Return the ended runs that are not written yet."""
        with self._lock:
            return [recording for recording in self._waiting.values() if not recording.is_deleted]

    def get(self, id: str) -> RunRecording | None:
        """Return an ended run that is not written yet."""
        with self._lock:
            return self._waiting.get(id)

    def delete(self, id: str) -> bool:
        """Delete an ended run, written or not; False if there is none with this id."""
        with self._lock:
            recording = self._waiting.get(id)
            if recording is not None:
                recording.is_deleted = True
        was_in_memory = self._newest.remove(id)
        if recording is not None:
            return True  # the thread removes what it has written of it
        if self._folder is None or not (self._folder / FILE).exists():
            return was_in_memory
        with contextlib.closing(RunStore(self._folder)) as store:
            return store.delete(id) or was_in_memory

    def _encode(self, recording: RunRecording, counted: list[Counted]) -> bool:
        """Encode a run; False if it was deleted or cannot be encoded. What is counted of it is added to `counted`."""
        if recording.is_deleted:
            self._forget(recording)
            return False
        try:
            ended, hour_notes = recording.encode()
        except Exception as error:  # noqa: BLE001 - a bug must not lose the other runs
            self._drop(recording, error)
            return False
        if recording.is_listed:
            counted.append((ended.begun, hour_notes))
        return True

    def _keeps(self, recording: RunRecording) -> bool:
        """Return whether an encoded run is written."""
        ended = recording.ended
        if ended is not None and (recording.policy.runs == "all" or recording.policy.keeps(ended.row())):
            return True
        self._forget(recording)
        return False

    def _forget(self, recording: RunRecording) -> None:
        with self._lock:
            self._waiting.pop(recording.id, None)

    def _drop(self, recording: RunRecording, error: Exception) -> None:
        """Log and count a run that cannot be written, so that the others still are."""
        self._forget(recording)
        self._on_dropped()
        log.error("run_not_written", run=recording.id, exc_info=error)

    # -- in the thread

    def _work(self) -> None:
        self._open_file()
        is_open = True
        while is_open:
            batch, is_open = self._next_batch()
            fresh = self._encoded(batch)
            self._newest.add(_ended(fresh))
            self._unwritten += fresh
            is_counted = not is_open or monotonic() - self._counted_at > USAGE_SECONDS
            if is_counted:
                self._counted_at = monotonic()
                self._usage.add_up()
            written = self._write(with_usage=is_counted)
            if not is_open:
                written += self._give_up()
            for id in self._finish(written):
                self._remove(id)
            self._on_ended(_ended(fresh))
            if self._store is not None and monotonic() - self._pruned_at > PRUNE_SECONDS:
                self._pruned_at = monotonic()
                self._prune(self._store)
        self._close_store()

    def _next_batch(self) -> tuple[list[RunRecording], bool]:
        """Wait for a run, then a moment for more, and return them all, with False if the writer is closing."""
        seconds = COUNT_SECONDS
        if self._usage.has_unwritten:
            seconds = max(self._counted_at + USAGE_SECONDS - monotonic(), 0.0) + BATCH_SECONDS
        try:
            first = self._queue.get(timeout=seconds)
        except queue.Empty:
            return [], True
        if first is None:
            return [], False
        # Waking up for each run would cost more than writing it.
        self._closing.wait(BATCH_SECONDS)
        batch = first
        with contextlib.suppress(queue.Empty):
            while (following := self._queue.get_nowait()) is not None:
                batch += following
            return batch, False
        return batch, True

    def _encoded(self, batch: Sequence[RunRecording]) -> list[RunRecording]:
        """Encode the runs that are not encoded yet, export those with a trace, and return those that are kept."""
        kept_runs: list[RunRecording] = []
        traced: list[tuple[RecordedRun, Trace]] = []
        counted: list[Counted] = []
        for recording in batch:
            # What the event loop has encoded is kept, or it would not be here.
            if recording.ended is not None or self._encode_slowly(recording, traced, counted):
                kept_runs.append(recording)
        if counted:
            self._usage.add_runs(counted)
        try:
            if self.export is not None and traced:
                self.export(traced)
        except Exception:
            log.exception("traces_not_encoded", runs=len(traced))
        return kept_runs

    def _encode_slowly(
        self, recording: RunRecording, traced: list[tuple[RecordedRun, Trace]], counted: list[Counted]
    ) -> bool:
        """Encode a run that takes too long for the event loop, and return whether it is kept. One with a trace is added to
        `traced`."""
        weight = recording.weighed
        is_encoded = self._encode(recording, counted)
        if is_encoded and recording.ended is not None and recording.trace is not None:
            traced.append((recording.ended.recorded(), recording.trace))
        is_kept = is_encoded and self._keeps(recording)
        if is_kept:
            weight -= recording.weigh()
        with self._lock:
            self._bytes -= weight
        return is_kept

    def _write(self, *, with_usage: bool) -> list[RunRecording]:
        """Write runs, and usage where it is due, and return the runs that are written. What cannot be written now is written
        later."""
        written: list[RunRecording] = []
        if not self._usage.has_unwritten:
            with_usage = False
        if self._folder is None:
            written += self._unwritten
            if self._memory is not None and with_usage:
                self._usage.write(self._memory)
        elif self._unwritten or with_usage:
            try:
                try:
                    self._write_to_file(self._folder, written, with_usage=with_usage)
                except StoreDamaged:
                    inode = None if self._store is None else self._store.inode
                    self._close_store()
                    self._note_set_aside(self._folder, set_aside_damaged(self._folder, inode), DAMAGED)
                    written.clear()
                    self._write_to_file(self._folder, written, with_usage=with_usage)
            except StoreUnusable as failure:
                self._note_failure(failure)
                self._close_store()
            else:
                if self.failure:
                    self.failure = ""
                    log.warning("runs_recorded_again", runs=len(self._unwritten))
        del self._unwritten[: len(written)]
        return written

    def _write_to_file(self, folder: Path, written: list[RunRecording], *, with_usage: bool) -> None:
        self._store = self._opened_store(folder)
        self._add(self._store, self._unwritten, written)
        if with_usage:
            self._usage.write(self._store)

    def _opened_store(self, folder: Path) -> RunStore:
        if self._store is not None and not self._store.is_in_place():
            log.warning("runs_file_gone", path=str(self._store.path))
            self._close_store()
        if self._store is not None:
            return self._store
        self._note_set_aside(folder, set_aside_older(folder), OF_BEFORE)
        return RunStore(folder)

    def _open_file(self) -> None:
        """Open a file that is there at the start: what is wrong with it is said then, and lists do not meet an older or a damaged
        one."""
        if self._folder is None or not (self._folder / FILE).exists():
            return
        try:
            self._note_set_aside(self._folder, set_aside_damaged(self._folder), DAMAGED)
            if (self._folder / FILE).exists():
                self._store = self._opened_store(self._folder)
        except StoreUnusable as failure:
            self._note_failure(failure)

    def _note_set_aside(self, folder: Path, aside: Path | None, reason: str) -> None:
        if aside is not None:
            log.warning("runs_file_set_aside", path=str(folder / FILE), renamed_to=str(aside), reason=reason)

    def _note_failure(self, failure: StoreUnusable) -> None:
        """Log why the file cannot be used, once for each reason."""
        if str(failure) != self.failure:
            self.failure = str(failure)
            log.error("runs_not_recorded", reason=str(failure))

    def _add(self, store: RunStore, runs: Sequence[RunRecording], written: list[RunRecording]) -> None:
        if not runs:
            return
        try:
            store.add([recording.ended for recording in runs if recording.ended is not None])
        except (ValueError, OverflowError, RecursionError) as error:  # one of them has a value that cannot be written
            if len(runs) > 1:
                middle = len(runs) // 2
                self._add(store, runs[:middle], written)
                self._add(store, runs[middle:], written)
                return
            self._drop(runs[0], error)
        written += runs

    def _give_up(self) -> list[RunRecording]:
        """Drop and count the runs that could not be written until the end, and return them."""
        dropped = self._unwritten
        self._unwritten = []
        for _ in dropped:
            self._on_dropped()
        return dropped

    def _finish(self, written: Sequence[RunRecording]) -> list[str]:
        """Have runs wait no longer. Returns the ids of those that were deleted meanwhile."""
        with self._lock:
            for recording in written:
                self._waiting.pop(recording.id, None)
                self._bytes -= recording.weighed
            return [recording.id for recording in written if recording.is_deleted]

    def _remove(self, id: str) -> None:
        try:
            self.delete(id)
        except StoreUnusable as failure:
            log.warning("run_not_removed", run=id, reason=str(failure))

    def _prune(self, store: RunStore) -> None:
        policy = self.policy
        now = time.time()
        try:
            store.prune(
                older_than=now - policy.keep_days * 86_400,
                most_bytes=policy.keep_bytes,
                wire_older_than=now - policy.wire_days * 86_400,
            )
        except StoreUnusable as failure:
            log.warning("runs_not_pruned", reason=str(failure))

    def _close_store(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None


def _ended(recordings: Iterable[RunRecording]) -> list[EndedRun]:
    """Return the runs that are not deleted."""
    return [recording.ended for recording in recordings if recording.ended is not None and not recording.is_deleted]
