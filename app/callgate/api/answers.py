"""The HTTP responses of a conversation: `EventStream` sends it in chunks, `WholeAnswer` in one piece.

Both cancel the chat when the client disconnects, which also closes the model's answer and stops the tools.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import Context
from functools import lru_cache, partial
from threading import get_ident
from types import TracebackType
from typing import Any, Final, Protocol, TypeAlias

import msgspec
from starlette.types import Message, Receive, Send

from callgate.api.choices import ForChoice
from callgate.api.errors import (
    Aftermath,
    ErrorBody,
    as_chat_error,
    encode,
    error_headers,
    in_openais_shape,
    shutting_down,
)
from callgate.callers.allowance import OverLimit
from callgate.callers.metering import RequestMeter
from callgate.conversation.errors import ChatError
from callgate.conversation.events import AnswerPassed, ChatEnded, Passed
from callgate.conversation.listeners import NOTHING

ClientError: TypeAlias = Callable[[ChatError], ChatError]
"""Returns the error that the client is sent for a failure."""
EmitAny: TypeAlias = Callable[[Any], Awaitable[None]]
"""Takes the events that the writer of the answer handles."""
Work: TypeAlias = Callable[[EmitAny], Awaitable[None]]
"""Answers a request, by emitting events to a writer."""
SendPiece: TypeAlias = Callable[[bytes], Awaitable[None]]
"""Sends a piece of a body that goes on."""

LOOK_AFTER_SECONDS = 0.05
"""How long an answer may take before the client's connection is watched."""
STEPS: Final = 8
"""How many times there are in the longest silence of a stream at which it is looked at."""

ALARM_SECONDS: Final = 0.01
"""The shortest time between two rings of an alarm: at hundreds of connections one is due with nearly every request."""

JSON_TYPE = (b"content-type", b"application/json")

IS_MASKED: Final = "is_masked"
"""Says in a message of ASGI that its bytes are a provider's, in which what was sent to it was masked when they were read. To search each chunk
again would take a twentieth of the time of a stream."""

STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


class ClientDisconnected(Exception):
    """Raised where the client has disconnected."""


class Pulse(msgspec.Struct, frozen=True, gc=False):
    """The timing of a stream."""

    first: float = 5.0
    """How long the status is held back until the first content; until then an error can have its own status."""
    heartbeat: float = 10.0
    """The longest silence of an open stream."""


class StreamWriter(Protocol):
    """Turns events into what is sent."""

    def write(self, event: Any, /) -> bytes: ...

    def heartbeat(self) -> bytes:
        """Return bytes that keep a stream alive. They may be the first ones written."""
        ...

    def error(self, error: ChatError) -> bytes:
        """Return the end of a stream that failed after it had begun."""
        ...


class BodyWriter(Protocol):
    """Gathers events into one body."""

    def write(self, event: Any, /) -> None: ...

    def body(self) -> Any: ...


class AnswerKeeper(Protocol):
    """Stores something of an answer."""

    @property
    def copy(self) -> BodyWriter | None:
        """Gathers what is stored: it gets each event before the client's own writer does."""
        ...

    async def store(self, choice: int, ended: ChatEnded) -> None:
        """Store what is kept. Called when a choice has ended, before its end is sent."""
        ...


def stored_before_sent(keepers: Sequence[AnswerKeeper], emit: EmitAny) -> EmitAny:
    """Return `emit`, with what is kept of an answer stored before its end is emitted, by the keepers in their order: the client may
    return at once."""
    copies = [keeper.copy for keeper in keepers if keeper.copy is not None]

    async def store_and_emit(choice: int, ended: ChatEnded, event: Any) -> None:
        for keeper in keepers:
            await keeper.store(choice, ended)
        await emit(event)

    # No coroutine, because every chunk goes through here.
    def emit_stored(event: Any) -> Awaitable[None]:
        for copy in copies:
            copy.write(event)
        kind = type(event)
        if kind is ChatEnded:
            return store_and_emit(0, event, event)
        if kind is ForChoice and type(event.event) is ChatEnded:
            return store_and_emit(event.choice, event.event, event)
        return emit(event)

    return emit_stored


class Headers(Protocol):
    """Returns the headers of a response when it starts; an error may have more of them."""

    def __call__(self, error: ChatError | None = None) -> Mapping[str, str]: ...


class AnswerHeaders(msgspec.Struct, eq=False):
    """The headers of the response that are known by now."""

    run_id: str
    aftermath: Aftermath
    warnings: Sequence[str] = ()
    """Plain ASCII."""
    meter: RequestMeter | None = None
    """Holds the request to the limits of its key, once it has begun."""

    def __call__(self, error: ChatError | None = None) -> Mapping[str, str]:
        headers = {"x-callgate-run": self.run_id}
        if self.meter is not None:
            headers |= self.meter.headers
        if self.warnings:
            headers["x-callgate-warning"] = "; ".join(self.warnings)
        if self.aftermath.started:
            # Clients retry failed requests by themselves, which would repeat a tool's side effects.
            headers["x-should-retry"] = "false"
        return headers


class WholeAnswer(msgspec.Struct, eq=False):
    """Runs a chat to its end and sends one JSON body."""

    work: Work
    new_writer: Callable[[], BodyWriter]
    """Called for the first event, unless the answer is passed on."""
    headers: Headers
    seconds: float | None = None
    """The timeout of the work."""
    error_body: ErrorBody = in_openais_shape
    client_error: ClientError = lambda error: error
    keepers: Sequence[AnswerKeeper] = ()
    """Store something of the answer before it is sent."""
    writer: BodyWriter | None = None
    passed: bytes | None = None
    """The body of an answer that is passed on."""

    async def send(self, receive: Receive, send: Send) -> ChatError | None:
        """Run the chat and send its answer; return its error, if any. Raises `ClientDisconnected` when the client disconnected."""
        error: ChatError | None = None
        try:
            emit: EmitAny = self._emit
            if self.keepers:
                emit = stored_before_sent(self.keepers, emit)
            async with watched(receive, self.seconds):
                await self.work(emit)
        except ClientDisconnected:
            raise
        except Exception as failure:  # noqa: BLE001 - whatever went wrong, the client gets an envelope and we get the log line
            error = _told(failure, self.client_error)
        if error is not None:
            await send_whole(send, error.status, self.error_body(error), self.headers(error), error)
            return error
        body = self.passed
        if body is None:
            body = encode(self.make_writer().body())
        await send_whole(send, 200, body, self.headers())
        return None

    def make_writer(self) -> BodyWriter:
        """Return the writer, which is made by the first call."""
        if self.writer is None:
            self.writer = self.new_writer()
        return self.writer

    def _emit(self, event: Any) -> Awaitable[None]:
        if type(event) is AnswerPassed:
            self.passed = event.data
        else:
            self.make_writer().write(event)
        return NOTHING


class EventStream:
    """Runs a chat and streams its answer; the status is sent with the first content."""

    __slots__ = (
        "_alarms",
        "_beat",
        "_began",
        "_client_error",
        "_error_body",
        "_headers",
        "_keepers",
        "_lookout",
        "_pulse",
        "_quiet_since",
        "_seconds",
        "_send",
        "_send_piece",
        "_started",
        "_when_drained",
        "_work",
        "_writer",
    )

    def __init__(
        self,
        work: Work,
        writer: StreamWriter,
        headers: Headers,
        pulse: Pulse,
        seconds: float | None = None,
        error_body: ErrorBody = in_openais_shape,
        when_drained: ChatError | None = None,
        client_error: ClientError = lambda error: error,
        keepers: Sequence[AnswerKeeper] = (),
    ) -> None:
        """`seconds`: the timeout of the work. `error_body` encodes an error before the status was sent. `when_drained` ends a
        stream that the server cuts off, where that is not the end of its run. `keepers` store something of the answer before its end is
        sent."""
        self._work = work
        self._writer = writer
        self._headers = headers
        self._pulse = pulse
        self._seconds = seconds
        self._error_body = error_body
        self._when_drained = when_drained
        self._client_error = client_error
        self._keepers = keepers
        self._started = False
        self._began = 0.0
        self._quiet_since = 0.0
        self._beat: asyncio.Task[None] | None = None

    async def send(self, receive: Receive, send: Send) -> ChatError | None:
        """Run the chat and send its answer; return its error, if any. Raises `ClientDisconnected` when the client disconnected."""
        self._send = send
        self._lookout = lookout = _lookout_here()
        self._began = lookout.loop.time()
        self._wait(min(self._pulse.first, self._pulse.heartbeat), self._began)
        try:
            emit: EmitAny = self._emit
            if self._keepers:
                emit = stored_before_sent(self._keepers, emit)
            async with watched(receive, self._seconds):
                await self._work(emit)
            error = None
        except ClientDisconnected:
            raise
        except Exception as failure:  # noqa: BLE001 - whatever went wrong, the client gets an envelope and we get the log line
            error = _told(failure, self._client_error)
        except asyncio.CancelledError:
            # Only the server cancels a whole request, at the end of the drain.
            await self._stop_beating()
            if self._started:
                await self._end(self._when_drained or self._client_error(shutting_down()))
            raise
        finally:
            await self._stop_beating()
        if error is not None and not self._started:
            await send_whole(send, error.status, self._error_body(error), self._headers(error), error)
            return error
        await self._end(error)
        return error

    async def _end(self, error: ChatError | None) -> None:
        if error is not None:
            await self._pass(self._writer.error(error))
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    def _emit(self, event: Any) -> Awaitable[None]:
        # No coroutine, because every chunk goes through here; the caller awaits `send`.
        data = self._writer.write(event)
        if not data:
            return NOTHING
        if not self._started:
            return self._start(data, is_masked=type(event) is Passed)  # then all are but an error
        self._quiet_since = self._lookout.loop.time()
        return self._send_piece(data)

    def _pass(self, data: bytes) -> Awaitable[None]:
        if not self._started:
            return self._start(data)
        self._quiet_since = self._lookout.loop.time()
        return self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def _start(self, data: bytes, *, is_masked: bool = False) -> None:
        self._started = True
        await self._send(start_message(200, {**STREAM_HEADERS, **self._headers(None)}))
        self._quiet_since = self._lookout.loop.time()
        self._send_piece = piece_sender(self._send, is_masked=is_masked)
        await self._send_piece(data)

    def _wait(self, seconds: float, since: float) -> None:
        """Have the clock rung."""
        self._alarms = alarms = self._lookout.alarms_after(seconds, EventStream._ring)
        alarms.add(self, since)

    def _ring(self) -> None:
        """Begin a heartbeat if one is due, and wait for the next. One may come a little early, and a status a little late, so that streams
        wait for the same times."""
        now = self._lookout.loop.time()
        heartbeat = self._pulse.heartbeat
        step = heartbeat / STEPS
        if self._started:
            remaining = self._quiet_since + heartbeat - now
            is_due = remaining < step
        else:
            remaining = self._began + self._pulse.first - now
            is_due = remaining <= 0
        if is_due:
            self._beat = self._lookout.loop.create_task(self._send_beat())
            remaining = heartbeat
        # No longer than a heartbeat: a stream may begin meanwhile, and be silent then.
        self._wait(min(max(remaining // step, 1) * step, heartbeat), now)

    async def _send_beat(self) -> None:
        await self._pass(self._writer.heartbeat())

    async def _stop_beating(self) -> None:
        self._alarms.discard(self)
        if self._beat is not None and not self._beat.done():
            self._beat.cancel()
            await asyncio.wait({self._beat})


def _told(failure: Exception, client_error: ClientError) -> ChatError:
    # With its traceback it would be in a cycle: it is returned by a frame that the traceback has.
    error = as_chat_error(failure).with_traceback(None)
    if isinstance(error, OverLimit):
        return error  # raised before the chat begins; the error of a budget forbids retries by itself
    return client_error(error)


class TellingRequest(Protocol):
    """A request of our own server, which tells when its client disconnects."""

    is_whole: bool
    abandoned: bool
    """Its client has disconnected already."""
    when_left: Callable[[], None] | None


async def run_unless_disconnected(work: Awaitable[None], receive: Receive, seconds: float | None = None) -> None:
    """Run the work. It is cancelled when the client disconnects, which raises `ClientDisconnected`, or after `seconds`."""
    async with watched(receive, seconds):
        await work


def watched(receive: Receive, seconds: float | None = None) -> "_Watch":
    """Return the context manager of work that is done only while the client waits: see `run_unless_disconnected`. Its watch begins here."""
    lookout = _lookout_here()
    loop = lookout.loop
    task = asyncio.current_task(loop)
    assert task is not None
    request: TellingRequest | None = getattr(receive, "__self__", None)
    if not hasattr(request, "when_left"):
        request = None
    watch = _Watch(lookout, task, task.cancelling(), receive, request, seconds, loop.time())
    if request is not None and request.is_whole and not request.abandoned:
        request.when_left = watch.client_left
        watch.is_told = True
    if seconds is not None and seconds < LOOK_AFTER_SECONDS:
        watch.begin()
    elif seconds is not None or not watch.is_told:
        lookout.looks.add(watch, watch.since)
    return watch


class _Watch(msgspec.Struct, eq=False):
    """Cancels the task of an answer when the client disconnects, or at the deadline.

    Our own server calls when the client disconnects. Any other connection is watched by a task. That and the wait for the deadline begin
    only after a moment, because most whole answers have ended by then.
    """

    lookout: "_Lookout"
    task: asyncio.Task[Any]
    cancelled_before: int
    receive: Receive
    request: TellingRequest | None
    seconds: float | None
    since: float
    is_told: bool = False
    """Our own server calls when the client disconnects."""
    deadlines: "_Alarms | None" = None
    """Where it waits for its deadline."""
    looking: asyncio.Task[None] | None = None
    has_left: bool = False
    is_due: bool = False

    # No coroutines, because there is nothing to wait for at the end of most work.

    def __aenter__(self) -> Awaitable[None]:
        return NOTHING

    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Awaitable[None]:
        if self.request is not None:
            self.request.when_left = None
        self.lookout.looks.discard(self)
        if self.deadlines is not None:
            self.deadlines.discard(self)
        if self.looking is not None:
            return self._end(self.looking, error)
        if isinstance(error, asyncio.CancelledError):
            self._explain()
        return NOTHING

    def _explain(self) -> None:
        """Raise the error for our own cancellation; nothing where the server has cancelled the task as well."""
        for ours in (self.has_left, self.is_due):
            if ours:
                self.task.uncancel()
        if self.task.cancelling() > self.cancelled_before:
            return
        if self.has_left:
            raise ClientDisconnected from None
        if self.is_due:
            raise ChatError(
                504,
                f"The request took longer than {self.seconds:g} seconds.",
                type="server_error",
                code="request_timeout",
            ) from None

    def client_left(self) -> None:
        if not self.has_left:
            self.has_left = True
            self.task.cancel()

    def time_is_up(self) -> None:
        self.is_due = True
        self.task.cancel()

    def begin(self) -> None:
        if not self.is_told:
            self.looking = self.lookout.loop.create_task(self._look())
        if self.seconds is not None:
            self.deadlines = self.lookout.alarms_after(self.seconds, _Watch.time_is_up)
            self.deadlines.add(self, self.since)

    async def _end(self, looking: asyncio.Task[None], error: BaseException | None) -> None:
        try:
            if isinstance(error, asyncio.CancelledError):
                self._explain()
        finally:
            looking.cancel()
            await asyncio.wait({looking})

    async def _look(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        self.client_left()


class _Alarms:
    """Rings for what waits for the same time, the oldest first, with one timer of the event loop for all of it: to set and cancel one for
    each request costs as much as all else about a watch, and it takes most of a kilobyte while the request is open."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, ring: Callable[[Any], None]) -> None:
        self._loop = loop
        self._seconds = seconds
        self._ring = ring
        self._waiting: dict[Any, float] = {}
        """Since when each of them waits."""
        self._is_set = False

    @property
    def is_used(self) -> bool:
        return self._is_set or bool(self._waiting)

    def add(self, waiting: Any, since: float) -> None:
        """`since` is not before that of those which were added before."""
        self._waiting[waiting] = since
        if not self._is_set:
            self._set(since)

    def discard(self, waiting: Any) -> None:
        self._waiting.pop(waiting, None)

    def _set(self, since: float) -> None:
        self._is_set = True
        # In an empty context, because the timer would otherwise keep the context of the request that started it.
        self._loop.call_at(since + self._seconds, self._ring_for_oldest, context=Context())

    def _ring_for_oldest(self) -> None:
        """Ring for those that have waited long enough, and set the timer for the next."""
        self._is_set = False
        now = self._loop.time()
        due = []
        for waiting, since in self._waiting.items():
            if since + self._seconds > now:
                self._set(max(since, now + ALARM_SECONDS - self._seconds))
                break
            due.append(waiting)
        for waiting in due:
            del self._waiting[waiting]
        for waiting in due:
            self._ring(waiting)


class _Lookout:
    """The alarms of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.thread = get_ident()
        self.looks = _Alarms(loop, LOOK_AFTER_SECONDS, _Watch.begin)
        """For the watches that have not begun."""
        self._others: dict[tuple[float, Callable[[Any], None]], _Alarms] = {}

    def alarms_after(self, seconds: float, ring: Callable[[Any], None]) -> _Alarms:
        """Return the alarms that ring so many seconds after what waits for them began to."""
        alarms = self._others.get((seconds, ring))
        if alarms is None:
            self._others = {key: others for key, others in self._others.items() if others.is_used}
            alarms = self._others[seconds, ring] = _Alarms(self.loop, seconds, ring)
        return alarms


_lookout: _Lookout | None = None


def _lookout_here() -> _Lookout:
    """Return the lookout of the running event loop. A loop that runs in this thread is the running one: to ask asyncio is a system
    call each time."""
    global _lookout  # noqa: PLW0603 - the event loop has no place for it
    if _lookout is None or _lookout.thread != get_ident() or not _lookout.loop.is_running():
        _lookout = _Lookout(asyncio.get_running_loop())
    return _lookout


class PieceSender(Protocol):
    """Sends pieces of a body without a message of ASGI for each of them."""

    def piece_sender(self, *, is_masked: bool) -> SendPiece | None:
        """Return what sends the pieces of a body that has begun; None where that takes messages."""
        ...


def piece_sender(send: Send, *, is_masked: bool) -> SendPiece:
    """Return what sends the pieces of a body that has begun. Each equals a message of ASGI with `more_body`, which is made only for
    who takes nothing else. `is_masked`: see `IS_MASKED`."""
    sender: PieceSender | None = getattr(send, "__self__", None)
    send_piece: SendPiece | None = None
    if sender is not None and hasattr(sender, "piece_sender"):
        send_piece = sender.piece_sender(is_masked=is_masked)
    return send_piece or partial(_send_message, send, is_masked)


def _send_message(send: Send, is_masked: bool, data: bytes) -> Awaitable[None]:
    return send({"type": "http.response.body", "body": data, "more_body": True, IS_MASKED: is_masked})


class WholeSender(Protocol):
    """Takes a response whose body is whole at once, and sends what it would send for the two messages of ASGI."""

    def send_whole(self, start: Message, body: bytes) -> Awaitable[None]: ...


def send_whole(
    send: Send, status: int, body: bytes, headers: Mapping[str, str], error: ChatError | None = None
) -> Awaitable[None]:
    """Send a response whose body is whole."""
    # No coroutine, because our own server waits for nothing with most of them.
    fields = encoded(headers if error is None else {**headers, **error_headers(error)})
    fields += (JSON_TYPE, (b"content-length", b"%d" % len(body)))
    start = {"type": "http.response.start", "status": status, "headers": fields}
    sender: WholeSender | None = getattr(send, "__self__", None)
    if sender is not None and hasattr(sender, "send_whole"):
        return sender.send_whole(start, body)
    return _send_both(send, start, body)


async def _send_both(send: Send, start: Message, body: bytes) -> None:
    await send(start)
    await send({"type": "http.response.body", "body": body})


def start_message(status: int, headers: Mapping[str, str]) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": encoded(headers)}


def encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(_name(name), value.encode("latin-1")) for name, value in headers.items()]


@lru_cache(maxsize=256)
def _name(name: str) -> bytes:
    """Return the same bytes for the same name: the server finds them by their hash, which is remembered."""
    return name.encode("latin-1")
