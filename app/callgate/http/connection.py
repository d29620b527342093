"""One connection of the lean client, and the answer that is coming over it; to whoever asked, it is that answer.

Everything that happens to it is one of four things: bytes have come, it was lost, a deadline passed, it was left. Each
changes its state and wakes the one who waits, who looks at the state again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from contextvars import copy_context
from math import inf
from types import coroutine
from typing import Any, Protocol, TypeAlias, cast

import httptools

from callgate.http.interface import (
    COMPRESSED,
    DRAIN_BYTES,
    DRAIN_SECONDS,
    Broken,
    Deadlines,
    TimedOut,
    TransportError,
    Which,
    read_whole,
    reason,
)
from callgate.http.request_head import Where

HEAD_BYTES = 65_536
"""Some gateways send long policy headers; no honest head comes near this."""
HELD_BYTES = 256 * 1024
"""Of a body that nobody reads. Beyond it the server is made to wait."""
JOINED_BYTES = 16_384
"""Up to here one write of head and body together is cheaper than two."""

Each: TypeAlias = Callable[[bytes], Coroutine[Any, Any, bool]]


class Keeper(Protocol):
    """Who has made a connection, and takes it back."""

    def give_back(self, connection: "Connection", /) -> None: ...

    def lost(self, connection: "Connection", /) -> None: ...


class Connection(asyncio.Protocol):
    __slots__ = (
        "_context",
        "_deadlines",
        "_draining",
        "_due",
        "_each",
        "_end",
        "_fault",
        "_head_bytes",
        "_headers",
        "_held",
        "_keep",
        "_keeper",
        "_parser",
        "_parts",
        "_paused",
        "_quiet",
        "_settled",
        "_state",
        "_timer",
        "_timer_at",
        "_transport",
        "_waiter",
        "free_since",
        "is_open",
        "loop",
        "status",
        "where",
    )

    def __init__(self, keeper: Keeper, where: Where, loop: asyncio.AbstractEventLoop) -> None:
        self._keeper = keeper
        self.where = where
        self.loop = loop
        self.is_open = False
        self.free_since = 0.0
        self._state = _FREE
        self._fault: TransportError | None = None
        self._headers: dict[bytes, bytes] = {}
        self._head_bytes = 0
        self._quiet: Which = "first_byte"
        self._waiter: asyncio.Future[bool | Awaitable[bool]] | None = None
        self._parts: list[bytes] = []
        self._held = 0
        self._paused = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf
        self._draining: asyncio.TimerHandle | None = None
        self._each: Each | None = None

    # -- for the exchange

    async def ask(self, head: bytes, body: bytes, deadlines: Deadlines, asked_at: float) -> None:
        """Send a request and wait for the head of its answer. `head` ends where the length of the body belongs."""
        self._begin(deadlines, asked_at)
        if len(body) <= JOINED_BYTES:
            self._transport.write(b"%b%d\r\n\r\n%b" % (head, len(body), body))
        else:
            self._transport.writelines((b"%b%d\r\n\r\n" % (head, len(body)), body))
        while self._state < _BODY and self._fault is None:
            await self._news()
        if self._fault is not None and not self._parts:
            raise self._fault

    def leave(self) -> None:
        """The exchange is over. What was not read to its end is cut off, unless it is only the little after an end mark."""
        if self._fault is None and self._state == _WHOLE:
            self._release()
        elif self._fault is None and self._state == _BODY and self._settled:
            self._drain()
        else:
            self.abort()

    def abort(self) -> None:
        self._state = _FREE
        self._fail(Broken("the connection was given up"))

    # -- as a response

    @property
    def headers(self) -> Mapping[str, str]:
        return {name.decode("latin-1"): value.decode("latin-1") for name, value in self._headers.items()}

    def chunks(self) -> "Connection":
        """Itself, as an iterator and not a generator: one that is left half-way leaves nothing suspended behind."""
        headers = self._headers
        content, transfer = headers.get(b"content-encoding"), headers.get(b"transfer-encoding")
        if content and content.strip().lower() not in (b"", b"identity"):
            raise Broken(COMPRESSED)
        if transfer is not None and transfer.strip().lower() != b"chunked":
            raise Broken(COMPRESSED)
        return self

    def __aiter__(self) -> "Connection":
        return self

    async def __anext__(self) -> bytes:
        while not self._parts:
            if self._fault is not None:
                raise self._fault
            if self._state != _BODY:
                raise StopAsyncIteration
            await self._news()
        return self._taken()

    async def carry(self, each: Each) -> None:
        self.chunks()
        self._context = copy_context()
        enough = False
        while not enough:
            if self._parts:
                enough = await each(self._taken())
            elif self._fault is not None:
                raise self._fault
            elif self._state != _BODY:
                return
            else:
                enough = await self._while_handed_on(each)

    async def _while_handed_on(self, each: Each) -> bool:
        """Sleep until there is something that `each` cannot do where the bytes arrive; whether it has enough."""
        self._each = each
        try:
            said = await self._news()
        finally:
            self._each = None
        return said if isinstance(said, bool) else await said

    async def read(self, limit: int) -> bytes:
        chunks = self.chunks()
        if self._state == _WHOLE and self._fault is None and self._held <= limit:
            return self._taken()  # a short body comes with its head
        return await read_whole(chunks, limit)

    def settle(self) -> None:
        self._settled = True

    # -- the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass of it
        self._parser = httptools.HttpResponseParser(self)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        if self._state == _FREE:
            self.abort()  # nobody asked for it
            return
        if self._state == _ASKED:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if self._state != _WHOLE:
                self._fail(Broken(reason(error)))
            self._keep = False
        if self._state == _ASKED and self._head_bytes > HEAD_BYTES:
            self._fail(_head_too_long())
        if self._each is not None and self._parts:
            self._hand_on(self._each)
        else:
            self._wake()

    def _hand_on(self, each: Each) -> None:
        """Begin `each` with what has come. The task is woken to go on with it, or for what is not its business."""
        waiter = self._waiter
        if waiter is None or waiter.done():
            return  # cancelled, and about to leave
        self._due = self.loop.time() + self._deadlines.idle
        step = each(self._taken())
        try:
            waits_for = self._context.run(step.send, None)
        except StopIteration as done:
            if done.value or self._state != _BODY:
                self._wake(bool(done.value))
        except Exception as error:  # noqa: BLE001 -- not swallowed: it is raised where `each` was given
            waiter.set_exception(error)
        else:
            self._wake(_rest_of(step, waits_for))

    def eof_received(self) -> None:
        """The transport closes itself, and `connection_lost` says how the answer ended."""

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        self._stop_timers()
        if self._state == _BODY and error is None and self._headers.keys().isdisjoint(_SIZED):
            self._state = _WHOLE
            self._keep = False
        elif self._state in (_ASKED, _BODY) and self._fault is None:
            self._fault = Broken(
                "the connection was closed in the middle of the answer" if error is None else reason(error)
            )
        self._keeper.lost(self)
        self._wake()

    # -- the parser's side

    def on_message_begin(self) -> None:
        """A second answer to one question makes the connection worthless."""
        if self._state == _WHOLE:
            self._keep = False
        elif self._state == _FREE:  # since a moment ago: the rest of a settled answer came in this very read
            self.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._state == _ASKED:  # later ones are trailers
            name = name.lower()
            before = self._headers.get(name)
            self._headers[name] = value if before is None else before + b", " + value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < _FINAL_STATUS or self._state != _ASKED:
            return
        self.status = status
        self._state = _BODY
        # Mostly a long read is a body that came along with its head, and what the headers take is still to be counted.
        if self._head_bytes > HEAD_BYTES and sum(map(len, (*self._headers, *self._headers.values()))) > HEAD_BYTES:
            self._fail(_head_too_long())

    def on_body(self, data: bytes) -> None:
        if self._fault is not None:
            return
        if self._state == _BODY:
            self._parts.append(data)
            self._held += len(data)
            if self._held > HELD_BYTES and not self._paused:
                self._paused = True
                self._transport.pause_reading()
        elif self._state == _REST:
            self._held += len(data)
            if self._held > DRAIN_BYTES:
                self.abort()

    def on_message_complete(self) -> None:
        if self._state == _ASKED:
            self._headers.clear()  # an interim answer (100, 103); the real one follows
        elif self._state == _BODY:
            self._state = _WHOLE
            self._keep = self._keep and self._parser.should_keep_alive()
        elif self._state == _REST:
            self._keep = self._keep and self._parser.should_keep_alive()
            self._release()

    # -- waiting

    def _begin(self, deadlines: Deadlines, asked_at: float) -> None:
        self._state = _ASKED
        self._keep = True
        self._settled = False
        self._headers = {}
        self._head_bytes = 0
        self._deadlines = deadlines
        self._quiet = "first_byte"
        self._due = asked_at + deadlines.first_byte
        self._end = asked_at + deadlines.total

    def _news(self) -> "asyncio.Future[bool | Awaitable[bool]]":
        """Done when something has come. The wait counts from here: the time our own side takes is not the upstream's."""
        if self._quiet == "idle":
            self._due = self.loop.time() + self._deadlines.idle
        if self._timer_at > self._due or self._timer_at > self._end:
            self._watch()
        self._waiter = waiter = self.loop.create_future()
        return waiter

    def _wake(self, said: bool | Awaitable[bool] = False) -> None:
        waiter = self._waiter
        if waiter is not None:
            self._waiter = self._each = None
            if not waiter.done():
                waiter.set_result(said)

    def _taken(self) -> bytes:
        """What has come of the body since it was last asked for."""
        self._quiet = "idle"
        parts = self._parts
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        self._forget_parts()
        return data

    def _forget_parts(self) -> None:
        self._parts.clear()
        self._held = 0
        if self._paused:
            self._paused = False
            self._transport.resume_reading()

    # One timer a connection, moved only when it fires or when something is due before it: a request costs none at all
    # as long as an earlier one left its own behind.

    def _watch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = min(self._due, self._end)
        self._timer = self.loop.call_at(self._timer_at, self._look)

    def _look(self) -> None:
        self._timer, self._timer_at = None, inf
        if self._state not in (_ASKED, _BODY):
            return
        now = self.loop.time()
        if now >= self._end:
            self._fail(TimedOut("total", self._deadlines.total))
            return
        if self._waiter is None or self._waiter.done():
            self._due = now + self._deadlines.idle
        elif now >= self._due:
            seconds = self._deadlines.idle if self._quiet == "idle" else self._deadlines.first_byte
            self._fail(TimedOut(self._quiet, seconds))
            return
        self._watch()

    # -- ending

    def _fail(self, fault: TransportError) -> None:
        if self._fault is None:
            self._fault = fault
        self.is_open = False
        self._stop_timers()
        self._transport.abort()
        self._wake()

    def _drain(self) -> None:
        self._state = _REST
        self._forget_parts()
        self._draining = self.loop.call_later(DRAIN_SECONDS, self.abort)

    def _release(self) -> None:
        if self._draining is not None:
            self._draining.cancel()
            self._draining = None
        self._forget_parts()
        # An answer that came before its question had gone out leaves the rest of the question in the buffer.
        if self._keep and self.is_open and not self._transport.get_write_buffer_size():
            self._state = _FREE
            self._keeper.give_back(self)
        else:
            self.abort()

    def _stop_timers(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._timer_at = None, inf
        if self._draining is not None:
            self._draining.cancel()
            self._draining = None


_FREE, _ASKED, _BODY, _REST, _WHOLE = range(5)
"""Where a connection stands: with nobody; asked; answering; giving the rest of what nobody wants; its answer whole."""
_FINAL_STATUS = 200
_SIZED = frozenset({b"content-length", b"transfer-encoding"})
"""With one of these a body that ends with its connection was cut off."""


def _head_too_long() -> Broken:
    return Broken(f"the headers are longer than {HEAD_BYTES} bytes")


@coroutine
def _rest_of(step: Coroutine[Any, Any, bool], waits_for: Any) -> Generator[Any, Any, bool]:
    """What is left of a coroutine that was begun elsewhere and waits for a future."""
    try:
        while True:
            try:
                yield waits_for
            except BaseException as error:  # noqa: BLE001 -- not swallowed: what is thrown in is meant for the step
                waits_for = step.throw(error)
            else:
                waits_for = step.send(None)
    except StopIteration as done:
        return bool(done.value)
