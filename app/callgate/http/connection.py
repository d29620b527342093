"""One connection of the client and, once a request was sent over it, the response.

Four events change its state: bytes come, it is lost, a deadline passes, its user leaves. Each wakes the waiting coroutine,
which checks the state again.
"""

import asyncio
from collections.abc import Mapping
from math import inf
from typing import Any, Protocol, cast

import httptools

from callgate.config.secret_mask import Needles, SecretMask
from callgate.http.interface import (
    Broken,
    Compressed,
    Deadlines,
    TakeRead,
    TimedOut,
    TooLarge,
    TransportError,
    Which,
    reason,
)
from callgate.http.request_head import Origin

HEAD_BYTES = 65_536
"""The limit of a response head. Some gateways send long policy headers."""
HELD_BYTES = 256 * 1024
"""Unread bytes of a body at which reading from the socket is paused."""
TAKEN_BYTES = 65_536
"""Bytes of a body that are read at a time: what is made of them takes many times as much memory, for as long as a slow client
takes."""
JOINED_BYTES = 16_384
"""The largest body that is joined with the head into one write, which is cheaper than two."""
DRAIN_SECONDS = 0.5
DRAIN_BYTES = 65_536
"""What may still come after the end mark, which is only a chunk terminator; beyond it the connection is closed."""


class ConnectionOwner(Protocol):
    """The pool that made a connection and takes it back."""

    def release(self, connection: "ClientConnection", /) -> None: ...

    def discard(self, connection: "ClientConnection", /) -> None: ...

    def distrust(self, origin: Origin, /) -> None:
        """Do not reuse connections to an origin that sent bytes that belong to no request."""


class ClientConnection(asyncio.Protocol):
    __slots__ = (
        "_deadlines",
        "_draining",
        "_due",
        "_end",
        "_fault",
        "_head_bytes",
        "_headers",
        "_held",
        "_is_handed",
        "_keep",
        "_mask",
        "_owner",
        "_parser",
        "_parts",
        "_paused",
        "_quiet",
        "_settled",
        "_state",
        "_take",
        "_timer",
        "_timer_at",
        "_transport",
        "_waiter",
        "idle_since",
        "is_open",
        "loop",
        "origin",
        "status",
    )

    def __init__(self, owner: ConnectionOwner, origin: Origin, loop: asyncio.AbstractEventLoop) -> None:
        self._owner = owner
        self.origin = origin
        self.loop = loop
        self.is_open = False
        self.idle_since = -inf
        self._state = _IDLE
        self._fault: TransportError | None = None
        self._headers: dict[bytes, bytes] = {}
        self._head_bytes = 0
        self._quiet: Which = "first_byte"
        self._waiter: asyncio.Future[None] | None = None
        self._parts: list[bytes] = []
        self._held = 0
        self._paused = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf
        self._draining: asyncio.TimerHandle | None = None
        self._mask: SecretMask | None = None
        self._take: TakeRead | None = None
        self._is_handed = False
        """The iteration is woken for what `_take` was handed."""
        self._parser: Any = None
        """There is one while it is connected."""

    # -- for the client

    def begin(
        self, head: bytes, body: bytes, deadlines: Deadlines, began_at: float, needles: Needles | None = None
    ) -> None:
        """Send a request. `head` ends where the length of the body belongs."""
        self._state = _AWAITED
        self._keep = True
        self._settled = False
        self._headers = {}
        self._head_bytes = 0
        self._deadlines = deadlines
        self._quiet = "first_byte"
        self._due = began_at + deadlines.first_byte
        self._end = began_at + deadlines.total
        if self._timer_at > self._end:
            self._watch()
        self._mask = None if needles is None else SecretMask(needles, is_foreign=True)
        if len(body) <= JOINED_BYTES:
            self._transport.write(b"%b%d\r\n\r\n%b" % (head, len(body), body))
        else:
            self._transport.writelines((b"%b%d\r\n\r\n" % (head, len(body)), body))

    def awaits_head(self) -> bool:
        """Return whether the head of the response is still to come. Raises the fault because of which it will not come."""
        if self._fault is None:
            return self._state < _BODY
        if not self._parts:
            raise self._fault
        return False

    def leave(self) -> None:
        """End the exchange. A body that was not read to its end closes the connection, unless only the rest after an end mark
        is missing."""
        self._take = None
        self._is_handed = False
        if self._fault is None and self._state == _COMPLETE:
            self._release()
        elif self._fault is None and self._state == _BODY and self._settled:
            self._state = _DRAINING
            self._forget_parts()
            self._draining = self.loop.call_later(DRAIN_SECONDS, self.abort)
        else:
            self.abort()

    def abort(self) -> None:
        self._state = _IDLE
        self._fail(Broken("the connection was given up"))

    # -- as a response

    def headers(self) -> Mapping[str, str]:
        """Return them by name in lower case."""
        return {name.decode("latin-1"): value.decode("latin-1") for name, value in self._headers.items()}

    def header(self, name: bytes) -> bytes:
        """Return one of them as it came, by its name in lower case; empty where it is absent."""
        return self._headers.get(name, b"")

    def content_type(self) -> bytes:
        """Return the type of the body, as its sender names it; empty where it does not."""
        return self._headers.get(b"content-type", b"")

    def chunks(self) -> "ClientConnection":
        """Return the body as it arrives, one read at a time; for one reader only.

        The object itself as an iterator, because an unfinished generator would stay suspended.
        """
        headers = self._headers
        content = headers.get(b"content-encoding")
        transfer = headers.get(b"transfer-encoding")
        if content and content.strip().lower() not in (b"", b"identity"):
            raise Compressed
        if transfer is not None and transfer.strip().lower() != b"chunked":
            raise Compressed
        return self

    def hand_to(self, take: TakeRead) -> None:
        self._take = take

    def __aiter__(self) -> "ClientConnection":
        return self

    async def __anext__(self) -> bytes:
        while True:
            while not self._parts:
                if self._state != _BODY:
                    if self._mask is not None and (unmasked := self._mask.finish()):
                        return unmasked
                    if self._fault is None:
                        raise StopAsyncIteration
                if self._fault is not None:
                    raise self._fault
                await self.change()
                if self._is_handed:
                    self._is_handed = False
                    return b""
            if data := self._taken():
                return data

    async def read(self, limit: int) -> bytes:
        """Return the whole body. Raises `TooLarge` when it is longer than `limit`."""
        chunks = self.chunks()
        if self._state == _COMPLETE and self._fault is None and self._held <= limit:
            data = b"".join(self._parts)  # a short body comes with its head
            if self._mask is None:
                return data
            return self._mask.feed(data) + self._mask.finish()
        parts: list[bytes] = []
        size = 0
        async for part in chunks:
            size += len(part)
            if size > limit:
                raise TooLarge(limit)
            parts.append(part)
        return b"".join(parts)

    def is_coming(self, most: int) -> bool:
        """Return whether more of the body is to be waited for with `change` before it can be taken with `whole`: not of one that is
        complete, that failed, or of which more than `most` bytes have come, nor of one that begins as no JSON does: a stream of events
        has its own end, and its connection may stay open behind it."""
        if self._state != _BODY or self._fault is not None or self._held > most:
            return False
        if not self._parts:
            return True
        self._quiet = "idle"
        return self._parts[0].lstrip()[:1] in _JSON_BEGINS

    def whole(self) -> bytes | None:
        """Take the whole body, if all of it has come in order. Of any other nothing is taken: `chunks` has it, and its fault."""
        if self._state != _COMPLETE or self._fault is not None or _ENCODING in self._headers:
            return None
        if self._headers.get(_TRANSFER, _CHUNKED) != _CHUNKED:
            return None
        data = b"".join(self._parts)
        self._forget_parts()
        if self._mask is None:
            return data
        return self._mask.feed(data) + self._mask.finish()

    def settle(self) -> None:
        """Drain the rest after an end mark, so that the connection can be reused."""
        self._settled = True

    # -- the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses
        self._parser = httptools.HttpResponseParser(self)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        state = self._state
        if state == _IDLE:
            if self.is_open and data.strip(b"\r\n") and not data.startswith(_IDLE_TIMEOUTS):
                self._owner.distrust(self.origin)
            self.abort()
            return
        if state == _AWAITED:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if self._state == _COMPLETE:
                self._owner.distrust(self.origin)
            else:
                self._fail(Broken(reason(error)))
            self._keep = False
        if self._take is not None and self._state == _BODY:  # as with most of a stream
            self._hand(self._take)
            return
        if self._state == _AWAITED and self._head_bytes > HEAD_BYTES:
            self._fail(_head_too_long())
        self._wake()

    def eof_received(self) -> None:
        """Do nothing: the transport closes itself, and `connection_lost` ends the response."""

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        self._stop_timers()
        if self._state == _BODY and error is None and self._headers.keys().isdisjoint(_SIZED):
            self._state = _COMPLETE
            self._keep = False
        elif self._state in (_AWAITED, _BODY) and self._fault is None:
            self._fault = Broken(
                "the connection was closed in the middle of the answer" if error is None else reason(error)
            )
        self._owner.discard(self)
        self._wake()
        # The parser refers to this connection: in a cycle, what was not read would be kept until a full collection of garbage.
        self._parser = None

    # -- the parser's side

    def on_message_begin(self) -> None:
        if self._state == _COMPLETE:
            self._keep = False
            self._owner.distrust(self.origin)
        elif self._state == _IDLE:  # released during this read, which brought the rest of a settled response
            self._owner.distrust(self.origin)
            self.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._state == _AWAITED:  # later ones are trailers
            name = name.lower()
            if name in self._headers:
                self._headers[name] += b", " + value
            else:
                self._headers[name] = value

    def on_headers_complete(self) -> None:
        status: int = self._parser.get_status_code()
        if status < _FINAL_STATUS or self._state != _AWAITED:
            return
        self.status = status
        self._state = _BODY
        if self._mask is not None:
            self._mask.is_stream = _STREAM in self._headers.get(b"content-type", b"")
        # A long read is mostly a body that came with its head, so that the size of the headers is counted exactly.
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
        elif self._state == _DRAINING:
            self._held += len(data)
            if self._held > DRAIN_BYTES:
                self.abort()

    def on_message_complete(self) -> None:
        if self._state == _AWAITED:
            self._headers.clear()  # an interim response (100, 103); the real one follows
        elif self._state == _BODY:
            self._state = _COMPLETE
            self._keep = self._keep and self._parser.should_keep_alive()
        elif self._state == _DRAINING:
            self._keep = self._keep and self._parser.should_keep_alive()
            self._release()

    # -- waiting

    def change(self) -> "asyncio.Future[None]":
        """Return a future for the next change. The deadline counts from here, without the time that we took ourselves."""
        loop = self.loop
        if self._quiet == "idle":
            self._due = loop.time() + self._deadlines.idle
        if self._timer_at > self._due:
            self._watch()
        self._waiter = waiter = loop.create_future()
        return waiter

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _hand(self, take: TakeRead) -> None:
        """Hand the part of the body that has come to `take`, if it is waited for. The deadline counts from here."""
        waiter = self._waiter
        if waiter is None or waiter.done() or not self._parts:
            return
        data = self._taken()
        if (not data or take(data)) and not self._parts:
            self._due = self.loop.time() + self._deadlines.idle
            return
        self._is_handed = True
        self._wake()

    def _taken(self) -> bytes:
        """Take the part of the body that came since the last call."""
        self._quiet = "idle"
        parts = self._parts
        data = b"".join(parts)
        parts.clear()
        self._held = 0
        if len(data) > TAKEN_BYTES:
            parts.append(data[TAKEN_BYTES:])
            self._held = len(data) - TAKEN_BYTES
            data = data[:TAKEN_BYTES]
        elif self._paused:
            self._forget_parts()
        if self._mask is None:
            return data
        return self._mask.feed(data)

    def _forget_parts(self) -> None:
        self._parts.clear()
        self._held = 0
        if self._paused:
            self._paused = False
            self._transport.resume_reading()

    # One timer per connection, rescheduled only when it fires or an earlier deadline is set, so that most requests need
    # no new timer.

    def _watch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = min(self._due, self._end)
        self._timer = self.loop.call_at(self._timer_at, self._check_deadlines)

    def _check_deadlines(self) -> None:
        self._timer = None
        self._timer_at = inf
        if self._state not in (_AWAITED, _BODY):
            return
        now = self.loop.time()
        if now >= self._end:
            # Who sent nothing at all hangs, whichever time passed.
            self._fail(TimedOut("first_byte" if self._quiet == "first_byte" else "total", self._deadlines.total))
            return
        if self._waiter is None or self._waiter.done():
            self._due = now + self._deadlines.idle
        elif now >= self._due:
            if self._quiet == "idle":
                seconds = self._deadlines.idle
            else:
                seconds = self._deadlines.first_byte
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

    def _release(self) -> None:
        if self._draining is not None:
            self._draining.cancel()
            self._draining = None
        self._forget_parts()
        # After a response that came before its request was sent, the rest of the request is still in the buffer.
        if self._keep and self.is_open and not self._transport.get_write_buffer_size():
            self._state = _IDLE
            self._owner.release(self)
        else:
            self.abort()

    def _stop_timers(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._timer_at = inf
        if self._draining is not None:
            self._draining.cancel()
            self._draining = None


_IDLE, _AWAITED, _BODY, _DRAINING, _COMPLETE = range(5)
"""The state of a connection: in the pool; awaiting a response; reading its body; draining the rest of a body; the response
is complete."""
_FINAL_STATUS = 200
_STREAM = b"text/event-stream"
_JSON_BEGINS = (b"", b"{", b"[")
"""What a body of JSON begins with, behind its white space; nothing while that is all there is."""
_ENCODING = b"content-encoding"
_TRANSFER = b"transfer-encoding"
_CHUNKED = b"chunked"
_IDLE_TIMEOUTS = (b"HTTP/1.1 408", b"HTTP/1.0 408")
"""What HAProxy and others send before they close a connection that was idle for too long."""
_SIZED = frozenset({b"content-length", b"transfer-encoding"})
"""Headers with which a body that ends with its connection was cut off."""


def _head_too_long() -> Broken:
    return Broken(f"the headers are longer than {HEAD_BYTES} bytes")
