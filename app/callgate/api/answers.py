"""How an answer travels: `EventStream` chunk by chunk, `WholeAnswer` in one piece. The only fork on a request's way.

Both run the chat under a race with the client's leaving, from the moment the body is read. Whoever leaves stops
everything that the chat had begun, because cancelling the chat cancels the model's answer and the tools.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextvars import Context
from dataclasses import dataclass
from threading import get_ident
from typing import Any, Protocol, TypeAlias

from starlette.types import Receive, Send

from callgate.api.errors import as_chat_error, encode, error_headers
from callgate.conversation.errors import ChatError

Chat: TypeAlias = Callable[[Callable[[Any], Awaitable[None]]], Awaitable[None]]
"""A chat that is ready to go, told where to tell what its writer understands."""

LOOK_AFTER_SECONDS = 0.05
"""How long an answer may take before we look whether its client is still there."""

JSON_TYPE = (b"content-type", b"application/json")

STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


class ClientLeft(Exception):
    """Nobody is there any more to answer to."""


@dataclass(frozen=True, slots=True)
class Pulse:
    """The two clocks of a stream."""

    first: float = 5.0
    """How long the status is held back for the first word; until then an error can still be a status."""
    heartbeat: float = 10.0
    """The longest silence of an open stream."""


class StreamWriter(Protocol):
    """Turns what it is told into what is sent."""

    def write(self, told: Any, /) -> bytes: ...

    def heartbeat(self) -> bytes: ...

    def error(self, error: ChatError) -> bytes: ...


class BodyWriter(Protocol):
    """Gathers what it is told into one body."""

    def write(self, told: Any, /) -> None: ...

    def body(self) -> Any: ...


class Headers(Protocol):
    """The headers of an answer, asked for when it starts; an error may need one more than a success."""

    def __call__(self, error: ChatError | None = None) -> Mapping[str, str]: ...


class WholeAnswer:
    """Runs a chat to its end and sends one JSON body."""

    def __init__(self, chat: Chat, writer: BodyWriter, headers: Headers, seconds: float | None = None) -> None:
        """`seconds`: how long the chat may take."""
        self._chat, self._writer, self._headers, self._seconds = chat, writer, headers, seconds

    async def send(self, receive: Receive, send: Send) -> ChatError | None:
        """The error it ended with, if any. Raises `ClientLeft` when the client did not wait for it."""
        error: ChatError | None = None
        try:
            await unless_left(self._chat(self._emit), receive, self._seconds)
        except ClientLeft:
            raise
        except Exception as failure:  # noqa: BLE001 - whatever went wrong, the client gets an envelope and we get the log line
            error = as_chat_error(failure)
        body = error.envelope() if error else self._writer.body()
        await send_whole(send, error.status if error else 200, encode(body), self._headers(error), error)
        return error

    async def _emit(self, event: Any) -> None:
        self._writer.write(event)


class EventStream:
    """Runs a chat and sends each chunk as it comes; commits to a status as late as it can."""

    def __init__(
        self, chat: Chat, writer: StreamWriter, headers: Headers, pulse: Pulse, seconds: float | None = None
    ) -> None:
        """`seconds`: how long the chat may take."""
        self._chat, self._writer, self._headers = chat, writer, headers
        self._pulse, self._seconds = pulse, seconds
        self._started = False
        self._began = 0.0
        self._quiet_since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._beat: asyncio.Task[None] | None = None

    async def send(self, receive: Receive, send: Send) -> ChatError | None:
        """The error it ended with, if any. Raises `ClientLeft` when the client did not wait for the end."""
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        soonest = min(self._pulse.first, self._pulse.heartbeat)
        self._timer = self._loop.call_at(self._began + soonest, self._start_beat)
        try:
            await unless_left(self._run(), receive, self._seconds)
            error = None
        except ClientLeft:
            raise
        except Exception as failure:  # noqa: BLE001 - whatever went wrong, the client gets an envelope and we get the log line
            error = as_chat_error(failure)
        finally:
            await self._stop_beating()
        if error is not None and not self._started:
            await send_whole(send, error.status, encode(error.envelope()), self._headers(error), error)
            return error
        if error is not None:
            await self._pass(self._writer.error(error))
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return error

    async def _run(self) -> None:
        write = self._writer.write

        # No coroutine, because every chunk goes through here; whoever tells waits for the server itself.
        def emit(event: Any) -> Awaitable[None]:
            data = write(event)
            return self._pass(data) if data else _nothing()

        await self._chat(emit)

    def _pass(self, data: bytes) -> Awaitable[None]:
        if not self._started:
            return self._start(data)
        self._quiet_since = self._loop.time()
        return self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def _start(self, data: bytes) -> None:
        self._started = True
        await self._send(start_message(200, {**STREAM_HEADERS, **self._headers(None)}))
        await self._pass(data)

    # Heartbeats run on a bare timer: nearly every answer ends before the first is due, and a timer costs
    # next to nothing while a task per request would not.

    def _start_beat(self) -> None:
        now = self._loop.time()
        due = self._quiet_since + self._pulse.heartbeat if self._started else self._began + self._pulse.first
        if due <= now:
            self._beat = self._loop.create_task(self._send_beat())
            due = now + self._pulse.heartbeat
        self._timer = self._loop.call_at(due, self._start_beat)

    async def _send_beat(self) -> None:
        await self._pass(self._writer.heartbeat())

    async def _stop_beating(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._beat is not None and not self._beat.done():
            self._beat.cancel()
            await asyncio.wait({self._beat})


async def _nothing() -> None:
    pass


async def unless_left(work: Awaitable[None], receive: Receive, seconds: float | None = None) -> None:
    """Do the work, unless the client leaves first: then it is cancelled, and `ClientLeft` raised when it has ended. Nor may
    it take longer than so many seconds."""
    lookout = _lookout_here()
    watch = _Watch(lookout.loop, receive, seconds)
    if seconds is not None and seconds < LOOK_AFTER_SECONDS:
        watch.begin()
    else:
        lookout.await_turn(watch)
    try:
        await work
    except asyncio.CancelledError:
        watch.explain()
        raise
    finally:
        if watch.looking is None:
            del lookout.waiting[watch]
        else:
            await watch.end()


class _Watch:
    """Looks out for the client's leaving and for the end of the time there is, and cancels the task that answers.

    It begins to look after a moment: most answers that are not streamed are gone by then, and have cost no task.
    """

    looking: asyncio.Task[None] | None = None
    _timer: asyncio.TimerHandle | None = None
    _left = _due = False

    def __init__(self, loop: asyncio.AbstractEventLoop, receive: Receive, seconds: float | None) -> None:
        task = asyncio.current_task(loop)
        assert task is not None
        self._task: asyncio.Task[Any] = task
        self._cancelled_before = task.cancelling()
        self._loop, self._receive, self._seconds = loop, receive, seconds
        self.since = loop.time()

    def explain(self) -> None:
        """The error that a cancellation of ours means; nothing where the server has cancelled as well."""
        for ours in (self._left, self._due):
            if ours:
                self._task.uncancel()
        if self._task.cancelling() > self._cancelled_before:
            return
        if self._left:
            raise ClientLeft from None
        if self._due:
            raise ChatError(
                504,
                f"The request took longer than {self._seconds:g} seconds.",
                type="server_error",
                code="request_timeout",
            ) from None

    def begin(self) -> None:
        self.looking = self._loop.create_task(self._look())
        if self._seconds is not None:
            self._timer = self._loop.call_at(self.since + self._seconds, self._time_is_up)

    async def end(self) -> None:
        """Idempotency it has begun."""
        if self._timer is not None:
            self._timer.cancel()
        if self.looking is not None:
            self.looking.cancel()
            await asyncio.wait({self.looking})

    async def _look(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._left = True
        self._task.cancel()

    def _time_is_up(self) -> None:
        self._due = True
        self._task.cancel()


class _Lookout:
    """The watches of one event loop that are still to begin, and one timer for all of them: setting and cancelling one
    for each would cost as much as all else that a watch does."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.thread = get_ident()
        self.waiting: dict[_Watch, None] = {}
        """The oldest first. Whose answer has ended takes its watch out."""
        self._is_set = False

    def await_turn(self, watch: _Watch) -> None:
        self.waiting[watch] = None
        if not self._is_set:
            self._set(watch)

    def _set(self, next_one: _Watch) -> None:
        # A context of its own: a timer that was set by a request would remember it for as long as there are others.
        self.loop.call_at(next_one.since + LOOK_AFTER_SECONDS, self._begin, context=Context())
        self._is_set = True

    def _begin(self) -> None:
        self._is_set = False
        now = self.loop.time()
        for watch in [*self.waiting]:
            if watch.since + LOOK_AFTER_SECONDS > now:
                self._set(watch)
                return
            del self.waiting[watch]
            watch.begin()


_lookout: _Lookout | None = None


def _lookout_here() -> _Lookout:
    """That of the running loop. A server has one loop; where there are several in turn, each begins with its own.

    A loop that runs in this thread is the running one. To ask which that is costs a system call each time.
    """
    global _lookout  # noqa: PLW0603 - asking the loop itself would need a place in it that it does not have
    if _lookout is None or _lookout.thread != get_ident() or not _lookout.loop.is_running():
        _lookout = _Lookout(asyncio.get_running_loop())
    return _lookout


async def send_whole(
    send: Send, status: int, body: bytes, headers: Mapping[str, str], error: ChatError | None = None
) -> None:
    fields = headers if error is None else {**headers, **error_headers(error)}
    start = start_message(status, fields)
    start["headers"] += (JSON_TYPE, (b"content-length", b"%d" % len(body)))
    await send(start)
    await send({"type": "http.response.body", "body": body})


def start_message(status: int, headers: Mapping[str, str]) -> dict[str, Any]:
    fields = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    return {"type": "http.response.start", "status": status, "headers": fields}
