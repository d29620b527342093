"""Records runs: the newest in memory, all of them in a file.

A request appends its events to a list. What has ended is encoded and written by a `RunWriter`, and what happens is shown to
`Watchers`. Lists and single runs are read here, from memory and from the file.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from time import monotonic, time
from typing import Final, TypeVar, get_args

import msgspec

from callgate.http.trace_context import Trace
from callgate.recorder.ended_run import EndedRun
from callgate.recorder.events import Mask
from callgate.recorder.hours import HourPlace, HourTotal, ShownPlace, Subject, Totals, shown_places
from callgate.recorder.newest_runs import NewestRuns
from callgate.recorder.recording import RunRecording
from callgate.recorder.run_filter import RunFilter, run_place
from callgate.recorder.run_search import has_text, names_of, needles_of, searched_of
from callgate.recorder.store import FILE, SHORT_ID, RunStore
from callgate.recorder.trace_writer import TraceWriter
from callgate.recorder.usage import KeyUsage
from callgate.recorder.usage_counter import CountedUsage, UsageCounter
from callgate.recorder.usage_tables import DIMENSIONS, HourSpan, MemoryTables, UsageTables
from callgate.recorder.watchers import Watchers, end_followers
from callgate.recorder.writer import RunWriter
from callgate.records.policy import RecordPolicy
from callgate.records.ports import ChunkStream, PriceOf, Recording, no_price
from callgate.records.row import RecordedRun, RunEvent, RunRow

SLICE: Final = 500
TEXTS_TOGETHER: Final = 50
"""Runs whose texts are in memory at once while they are searched."""
TEXT_SECONDS: Final = 1.0
"""How long texts are searched for one page."""
SCANNED_RUNS: Final = 10_000
"""The most runs that are scanned for one page of a filter without an index."""

Result = TypeVar("Result")


class Recorder:
    """Records the runs of this process."""

    def __init__(
        self,
        mask: Mask,
        folder: Path | None = None,
        on_dropped: Callable[[], None] = lambda: None,
        counted: Callable[[], Iterable[CountedUsage]] = tuple,
        mask_of_now: Callable[[], Mask] | None = None,
    ) -> None:
        """`folder`: the folder of the file; None if runs are kept in memory only. `mask_of_now` returns what masks the secrets of a
        request that begins now, also when it has ended; None where `mask` does."""
        self.process = f"{socket.gethostname()}:{os.getpid()}"
        """The name of this process in the rows of its runs."""
        self.watchers = Watchers()
        self.keeps_texts = False
        """True once an operator has said that texts are kept from now on, where the config says nothing of them."""
        self._mask = mask
        self._mask_of_now = mask_of_now
        self._folder = folder
        self._under_way: dict[str, RunRecording] = {}
        self._newest = NewestRuns()
        self._usage = UsageCounter(counted)
        self._memory: MemoryTables | None = None
        """Where usage is kept if there is no folder."""
        if folder is None:
            self._memory = MemoryTables()
        self.writer = RunWriter(folder, self._newest, self._usage, self._memory, on_dropped, self._show_ended)

    # -- on the event loop

    def begin(
        self, row: RunRow, policy: RecordPolicy, price: PriceOf = no_price, trace: Trace | None = None
    ) -> RunRecording:
        """Begin to record a run. `price` must return without a request to another server. With `runs="off"` the run is recorded
        only for its spans, and is not listed."""
        row.process = self.process
        if trace is not None:
            row.trace_id = trace.trace_id
            if trace.parent is None:
                row.parent_span = ""
            else:
                row.parent_span = trace.parent.span_id
            if not trace.is_exported:
                trace = None
        mask = self._mask
        if self._mask_of_now is not None:
            mask = self._mask_of_now()
        recording = RunRecording(row, policy, mask, price, trace)
        if policy.runs == "off":
            recording.is_listed = False
            return recording
        self.writer.policy = policy
        self._under_way[row.id] = recording
        self._show(row)
        return recording

    def end(self, recording: Recording, *, state: str = "", status: int = 200, error: str = "") -> None:
        """End a run. `state` is used if the chat has no ending of its own."""
        assert isinstance(recording, RunRecording), "it began here"
        row = recording.row
        row.seconds = monotonic() - recording.began
        row.status = status
        row.error = error
        if state:
            row.state = state
        if recording.followers:
            end_followers(recording)
        self.writer.add(recording)  # before it leaves `_under_way`, so that a list finds it in one of them
        self._under_way.pop(row.id, None)

    def traced(self, stream: ChunkStream, run_id: str, price: PriceOf = no_price) -> TraceWriter:
        """Return the stream with the events of its run in it, and the cost of each turn."""
        return TraceWriter(stream, RunRow(run_id, time()), self._mask, price)

    def open(self) -> None:
        """Start to write, so that usage is written even if no run ends."""
        self.writer.open()

    async def close(self) -> None:
        """End all feeds, and write the waiting runs."""
        self.watchers.end()
        await self.writer.close()

    def _show(self, row: RunRow) -> None:
        if self.watchers.feeds:
            self.watchers.publish("run", row)

    def _show_ended(self, runs: Sequence[EndedRun]) -> None:
        if self.watchers.feeds:
            for run in runs:
                self.watchers.publish("run", run.row())

    def follow(
        self, run: RecordedRun, idle_seconds: float | None = None, owner: str = ""
    ) -> AsyncIterator[RunEvent | None]:
        """Return the events of a run until it ends, with None after each `idle_seconds` without one. `owner`: who follows it."""
        recording = self._under_way.get(run.row.id)
        if recording is not None:
            return self.watchers.follow(recording, idle_seconds, owner)
        return self._events_of(run)

    async def _events_of(self, run: RecordedRun) -> AsyncIterator[RunEvent]:
        whole: RecordedRun | None = run
        if run.row.seconds is None:  # it ended after it was read
            whole = await asyncio.to_thread(self.get, run.row.id)
        for event in (whole or run).events:
            yield event

    # -- reading, from any thread

    def page(self, run_filter: RunFilter, count: int, owner: str = "") -> list[RunRow]:
        """Return the newest runs of a filter. Those under way or not written yet come from memory. `owner`: see `get`."""
        rows: dict[str, RunRow] = {}
        ended: dict[str, EndedRun] = {}
        for recording in [*list(self._under_way.values()), *self.writer.waiting()]:
            run = recording.ended
            if run is not None:
                ended[run.id] = run
                continue
            row = recording.row_now()
            if run_filter.matches(row):
                rows[row.id] = row
        if self._folder is None or self.writer.failure:
            ended |= {run.id: run for run in self._newest.all()}
        # What a filter looks for is known of a usual run before it is read, and few of thousands that wait are shown.
        matching = [run for run in ended.values() if run_filter.matches(run.begun)]
        matching.sort(key=lambda run: run_place(run.begun), reverse=not run_filter.oldest_first)
        rows |= {run.id: run.row() for run in matching[:count]}
        for row in self._read(lambda store: store.page(run_filter, count)) or ():
            rows.setdefault(row.id, row)
        page = sorted(rows.values(), key=run_place, reverse=not run_filter.oldest_first)[:count]
        questions = self._private_questions(owner)
        if not questions:
            return page
        return [msgspec.structs.replace(row, question=questions.get(row.id, row.question)) for row in page]

    def question_for(self, row: RunRow, owner: str) -> str:
        """Return the beginning of what was asked in a run, as an owner may see it."""
        run = self._newest.get(row.id)
        if run is None:
            return row.question
        if run.private is not None and owner == run.private_to:
            return run.private.question()
        return run.begun.question

    def _private_questions(self, owner: str) -> dict[str, str]:
        """Return the questions that are kept in memory for an owner alone, by the ids of their runs."""
        ended = [*self._newest.all()]
        ended += [recording.ended for recording in self.writer.waiting() if recording.ended is not None]
        return {run.id: run.private.question() for run in ended if run.private is not None and run.private_to == owner}

    def matching(
        self, run_filter: RunFilter, count: int, text: str = "", owner: str = ""
    ) -> tuple[list[RunRow], RunRow | None]:
        """Return the newest runs of a filter with its names, and with a text in them, and the last scanned run if there may be more.
        The scan is bounded, so that a filter for a rarely called tool does not read the whole file. `owner`: see `get`."""
        matching: list[RunRow] = []
        end = monotonic() + TEXT_SECONDS
        for _ in range(SCANNED_RUNS // SLICE):
            rows = self.page(run_filter, SLICE, owner)
            candidates = [row for row in rows if run_filter.matches_names(row)]
            at = 0
            while at < len(candidates):
                some = candidates[at : at + TEXTS_TOGETHER]
                at += TEXTS_TOGETHER
                for row in self._with_text(some, text, owner):
                    matching.append(row)
                    if len(matching) == count:
                        return matching, row
                if text and monotonic() > end:
                    return matching, some[-1]
            if len(rows) < SLICE:
                return matching, None
            run_filter = run_filter.behind(rows[-1])
        return matching, rows[-1]

    def _with_text(self, rows: Sequence[RunRow], text: str, owner: str) -> Sequence[RunRow]:
        """Return the runs that have a text in their names, or in what is kept of them."""
        if not text:
            return rows
        needles = needles_of(text)
        ids = {row.id for row in rows if not has_text(names_of(row), needles)}
        texts = dict(self._read(lambda store: store.texts(list(ids))) or {})
        texts |= {run.id: run.as_seen_by(owner).recorded().content for run in self._newest.all() if run.id in ids}
        waiting = [recording for recording in self.writer.waiting() if recording.id in ids]
        texts |= {recording.id: recording.recorded_now(owner).content for recording in waiting}
        return [row for row in rows if row.id not in ids or has_text(searched_of(texts.get(row.id, {})), needles)]

    def get(self, id: str, owner: str = "") -> RecordedRun | None:
        """Return a run; None if there is none with this id. `owner`: who asks, and is shown texts that are private to it."""
        if SHORT_ID.fullmatch(id):
            id = self._whole_id(id)
        recording = self._under_way.get(id) or self.writer.get(id)
        if recording is not None:
            if recording.is_deleted:
                return None
            return recording.recorded_now(owner)
        run = self._newest.get(id)
        if run is not None:
            return run.as_seen_by(owner).recorded()
        return self._read(lambda store: store.get(id))

    def _whole_id(self, end: str) -> str:
        """Return the id of the newest run in memory that ends so, as the lines of a terminal have it."""
        in_memory = [*self._under_way, *(recording.id for recording in self.writer.waiting())]
        in_memory += [run.id for run in self._newest.all()]
        newest = max((id for id in in_memory if id.endswith(end)), default=None)
        return end if newest is None else newest

    def replays_of(self, id: str, only: str | None = None) -> list[str]:
        """Return the ids of a run's replays, the newest first; with `only`, those of one key."""
        in_memory = [run.begun for run in self._newest.all()]
        in_memory += [recording.row for recording in (*self._under_way.values(), *self.writer.waiting())]
        replays = {row.id: row for row in in_memory if row.replay_of == id}
        for row in self._read(lambda store: store.replays_of(id)) or ():
            replays.setdefault(row.id, row)
        rows = sorted(replays.values(), key=lambda row: row.began, reverse=True)
        return [row.id for row in rows if only in (None, row.key)]

    def usage(self, since: str) -> list[KeyUsage]:
        """Return the usage from a day on, including what is not yet in the file."""
        return self._usage.since(since, lambda day: self._read_usage(lambda tables: tables.usage(day)) or ())

    def usage_in_hours(self, span: HourSpan, key: str | None = None) -> list[tuple[int, KeyUsage]]:
        """Return the usage of each step of a span, by key and model; with `key`, of this one alone."""
        return self._usage.in_hours(
            span, key, lambda: self._read_usage(lambda tables: tables.usage_in_hours(span, key)) or ()
        )

    def usage_of_models(self, span: HourSpan) -> list[tuple[int, KeyUsage]]:
        """Return the usage of each step of a span, by model."""
        return self._usage.in_hours(
            span, None, lambda: self._read_usage(lambda tables: tables.usage_of_models(span)) or ()
        )

    def totals(
        self, span: HourSpan, by: Sequence[str], subjects: Sequence[str], key: str | None = None
    ) -> list[tuple[int, HourPlace, HourTotal]]:
        """Return what came of runs in each step of a span, by some of `DIMENSIONS`; with `key`, of this one alone. Totals that are not
        written yet have all names."""
        return self._usage.totals(
            span, key, lambda: self._read_usage(lambda tables: tables.totals(span, by, subjects, key)) or ()
        )

    def shown(self, span: HourSpan, key: str | None = None) -> list[tuple[int, ShownPlace, HourTotal]]:
        """Return what the page shows of each step of a span; with `key`, of this one alone."""
        if key is None:
            return self._usage.shown(span, lambda: self._read_usage(lambda tables: tables.shown(span)) or ())
        totals = self.totals(span, DIMENSIONS, get_args(Subject), key)
        return [(step, shown, total) for step, place, total in totals for shown in shown_places(place)]

    def last_minutes(self) -> dict[int, Totals]:
        """Return what came of the runs of this process in each minute of the last hour, since 1970."""
        return self._usage.last_minutes()

    def names_used(self, since: int, key: str | None = None) -> dict[str, list[str]]:
        """Return the names of keys, models, providers and tools that were used since an hour."""
        return self._read_usage(lambda tables: tables.names(since, key)) or {}

    def first_hour(self) -> int | None:
        """Return the first hour of which there is usage, since 1970."""
        return self._read_usage(UsageTables.first_hour)

    @property
    def has_file(self) -> bool:
        """True where usage stays when the process ends."""
        return self._folder is not None

    def last_hour(self) -> list[KeyUsage]:
        """Return the usage of this process in each minute of the last hour."""
        return self._usage.last_hour()

    def delete(self, id: str) -> bool:
        """Delete a run that has ended; False if there is none with this id."""
        return self.writer.delete(id)

    def _read_usage(self, read: Callable[[UsageTables], Result]) -> Result | None:
        """Read usage; None if there is no file yet."""
        if self._memory is not None:
            return self._memory.read(read)
        return self._read(lambda store: store.read_usage(read))

    def _read(self, read: Callable[[RunStore], Result]) -> Result | None:
        """Read from the file; None if it does not exist."""
        if self._folder is None or not (self._folder / FILE).exists():
            return None
        with contextlib.closing(RunStore(self._folder, read_only=True)) as store:
            return read(store)
