"""Sends spans to a collector (OTLP over HTTP, protobuf) in the background. Spans that cannot be sent are dropped and
counted."""

import asyncio
import contextlib
import gzip
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, Final, Literal, TypeAlias

import msgspec
import structlog

from callgate.config import redaction
from callgate.http.backoff import full_jitter
from callgate.http.client import HttpClient
from callgate.http.interface import Deadlines, TooLarge, TransportError
from callgate.recorder.otlp import refused_in
from callgate.telemetry.outages import Outage

log = structlog.get_logger("callgate.traces")

BACKLOG_BYTES: Final = 16 * 1024 * 1024
"""The limit of the queue. Beyond it spans are dropped."""
TRIES: Final = 6
LONGEST_WAIT: Final = 60.0
"""The longest wait that a `Retry-After` header can ask for, in seconds."""
FLUSH_SECONDS: Final = 2.0
"""How long queued spans are still sent when the server ends: a part of the time for the whole shutdown."""
MOST_REASONS: Final = 16
"""The limit of reasons that are counted apart: collectors may say anything."""
ANSWER_BYTES: Final = 65_536
RETRIED_STATUSES: Final = frozenset({429, 502, 503, 504})
"""The statuses after which OTLP has a client retry."""

DropReason: TypeAlias = Literal["backlog", "failed", "refused", "stopped"]
retry_delay: Callable[[int], float] = partial(full_jitter, first=1.0, longest=30.0, least=0.2)


class Target(msgspec.Struct, frozen=True):
    """The collector, and the settings of the requests to it."""

    url: str
    headers: Mapping[str, str] = {}
    seconds: float = 10.0
    compressed: bool = False


class SpanBatch(msgspec.Struct, frozen=True):
    """The body of one request, and how many spans are in it."""

    body: bytes
    spans: int


class SpanExporter:
    """Sends batches of spans to a collector, one after another."""

    def __init__(
        self,
        client: HttpClient,
        target: Target,
        on_sent: Callable[[int], None],
        on_dropped: Callable[[int, DropReason], None],
        *,
        delay: Callable[[int], float] = retry_delay,
    ) -> None:
        """Must be called on the event loop that sends."""
        self.target = target
        self._client = client
        self._on_sent = on_sent
        self._on_dropped = on_dropped
        self._delay = delay
        self._loop = asyncio.get_running_loop()
        self._queue: deque[SpanBatch] = deque()
        self._bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._outages: dict[str, Outage] = {}
        """By their reasons."""

    @property
    def is_full(self) -> bool:
        """True if the queue is full. Thread-safe."""
        return self._bytes > BACKLOG_BYTES

    def offer(self, body: bytes, spans: int) -> None:
        """Queue a body for sending. Thread-safe."""
        body = redaction.current.data(body)
        if self.target.compressed:
            body = gzip.compress(body, 1)
        self._loop.call_soon_threadsafe(self._take, SpanBatch(body, spans))

    def drop(self, spans: int, why: DropReason, reason: str) -> None:
        """Count spans that are not sent, and log each reason now and then. Thread-safe."""
        self._on_dropped(spans, why)
        if len(self._outages) >= MOST_REASONS and reason not in self._outages:
            reason = "another reason"
        if failures := self._outages.setdefault(reason, Outage()).failed():
            log.warning("traces_not_exported", reason=reason, spans=spans, failures=failures)

    async def close(self) -> None:
        """Send the queue for up to `FLUSH_SECONDS`, and drop the rest."""
        self._closing.set()
        if (task := self._task) is not None:
            await asyncio.wait([task], timeout=FLUSH_SECONDS)
            task.cancel()
            await asyncio.wait([task])
        if self._queue:
            self.drop(sum(batch.spans for batch in self._queue), "stopped", "the server ended before they were sent")
            self._queue.clear()
        await self._client.close()

    def _take(self, batch: SpanBatch) -> None:
        if self.is_full:
            self.drop(batch.spans, "backlog", "too many wait to be sent")
            return
        self._queue.append(batch)
        self._bytes += len(batch.body)
        if self._task is None:
            self._task = asyncio.create_task(self._send_all(), name="exporting spans")
            self._task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("traces_not_exported", reason="internal error", exc_info=error)

    async def _send_all(self) -> None:
        while self._queue:
            batch = self._queue[0]
            await self._send(batch)
            self._queue.popleft()
            self._bytes -= len(batch.body)

    async def _send(self, batch: SpanBatch) -> None:
        reason = ""
        for tries in range(TRIES):
            if tries and self._closing.is_set():
                break
            wait = self._delay(tries)
            target = self.target
            seconds = target.seconds
            headers = {**target.headers, "Content-Type": "application/x-protobuf"}
            if target.compressed:
                headers["Content-Encoding"] = "gzip"
            try:
                deadlines = Deadlines(connect=seconds, first_byte=seconds, idle=seconds, total=seconds)
                async with self._client.post(target.url, headers, batch.body, deadlines) as response:
                    status = response.status
                    after = response.headers().get("retry-after", "")
                    try:
                        answer = await response.read(ANSWER_BYTES)
                    except TooLarge:
                        answer = b""  # the status is enough
            except TransportError as error:
                reason = str(error)
            else:
                if 200 <= status < 300:
                    self._count_sent(batch, answer)
                    return
                reason = f"HTTP {status} {_PHRASES.get(status, '')}".strip()
                if status not in RETRIED_STATUSES:
                    self.drop(batch.spans, "refused", reason)
                    return
                if after.isdecimal():
                    wait = min(float(after), LONGEST_WAIT)
            if tries + 1 < TRIES and not self._closing.is_set():
                with contextlib.suppress(TimeoutError):  # the end of the server ends the wait
                    async with asyncio.timeout(wait):
                        await self._closing.wait()
        self.drop(batch.spans, "failed", reason)

    def _count_sent(self, batch: SpanBatch, answer: bytes) -> None:
        refused, why = refused_in(answer)
        refused = min(refused, batch.spans)
        self._on_sent(batch.spans - refused)
        if refused:
            self.drop(refused, "refused", f"the collector did not take all of them: {why[:200]}")
        elif failures := sum(outage.over() for outage in self._outages.values()):
            log.info("traces_exported_again", spans=batch.spans, failures=failures)


_PHRASES: Final[Mapping[int, Any]] = {status.value: status.phrase for status in HTTPStatus}
