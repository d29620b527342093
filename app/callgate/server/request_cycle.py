"""One request and its response in ASGI: `receive` and `send`."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from callgate.conversation.listeners import NOTHING
from callgate.server.heads import STATUS_LINES, header_lines
from callgate.server.limits import HELD_BYTES

if TYPE_CHECKING:
    from callgate.server.connection import ServerConnection

log = structlog.get_logger("callgate.server")

Message = MutableMapping[str, Any]
Application = Callable[[Any, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]

JOINED_BYTES: Final = 16_384
"""The largest body that is joined with others into one write."""
BODILESS: Final = frozenset({204, 304})
WITH_BODY: Final = {status: line for status, line in STATUS_LINES.items() if status not in BODILESS}
"""The status lines of responses that have a body."""


SWITCHING: Final = 101

UNBEGUN, HELD, SENDING, COMPLETE = range(4)
"""The state of a response. After the application has begun it, its head is held until it can be sent with the first part of
the body."""

EXPECTED: Final = ("http.response.start", "http.response.body", "http.response.body", None)
"""The message that the application may send in each state."""

COUNTED, CHUNKED, CLOSED, NONE = range(4)
"""How the end of the body is marked: by a content length; by chunks; by the end of the connection, before HTTP/1.1; or there
is no body, as in the response to HEAD."""


class ReceivedRequest(msgspec.Struct, eq=False):
    """What a connection has read of a request."""

    connection: "ServerConnection"
    scope: dict[str, Any]
    method: str
    """A copy, because the application may change the scope."""
    keep: bool
    """Whether the connection may be reused after this."""
    is_whole: bool = False
    """The request has been received completely."""
    parts: list[bytes] = []
    """The part of its body that the application has not taken."""
    is_news: bool = False
    """Something has come, or changed, that the application has not been told."""


class RequestCycle(ReceivedRequest, eq=False, kw_only=True):
    """One request and its response, between a connection and the application."""

    task: asyncio.Task[None] | None = None
    abandoned: bool = False
    """The response is not sent: the client has disconnected, or was sent an error."""
    when_left: Callable[[], None] | None = None
    """Called when the client disconnects, or the response is not to be sent."""
    sent_continue: bool = False
    _held: int = 0
    _news: asyncio.Event | None = None
    _stage: int = UNBEGUN
    _head: bytes = b""
    _framing: int = COUNTED
    _takes_chunks: bool = False
    """Chunks are being sent, and have somebody to be sent to."""
    _left: int = -1

    # -- for the connection

    @property
    def is_on_the_wire(self) -> bool:
        return self._stage == SENDING

    @property
    def ends_with_the_connection(self) -> bool:
        return self._stage == SENDING and self._framing == CLOSED

    @property
    def has_room(self) -> bool:
        """Whether more of the request body can be held."""
        return self._held <= HELD_BYTES or self._stage == COMPLETE

    def feed(self, body: bytes) -> None:
        """Take a piece of the request body."""
        if self._stage == COMPLETE:
            return
        self.parts.append(body)
        self._held += len(body)
        self.is_news = True
        if self._news is not None:
            self._news.set()

    def finish(self) -> None:
        """Note that the request body is complete."""
        self.is_whole = self.is_news = True
        if self._news is not None:
            self._news.set()

    def abandon(self) -> None:
        self.abandoned = self.is_news = True
        self._takes_chunks = False
        if self._news is not None:
            self._news.set()
        if self.when_left is not None:
            self.when_left()

    def awaits_continue(self) -> bool:
        """True if the client waits for 100 Continue. Only read when the application waits for the body."""
        if self.is_whole or self.sent_continue or self.connection.body_bytes or self.scope["http_version"] != "1.1":
            return False
        return any(name == b"expect" and value.lower() == b"100-continue" for name, value in self.scope["headers"])

    async def run(self, app: Application) -> None:
        """Run the application. If it fails, the client is sent an error, or an incomplete response."""
        try:
            await app(self.scope, self.receive, self.send)
        except Exception:
            log.exception("application_failed")
        else:
            if self._stage != COMPLETE and not self.abandoned:
                log.error("application_did_not_answer")
        finally:
            self.connection.server_state.tasks.discard(self.task)
            if self._stage != COMPLETE and not self.abandoned:
                self.connection.break_off(self)

    # -- for the application

    async def receive(self) -> Message:
        if not self.is_news:
            await self._wait()
        elif self.connection.is_holding_back:
            self.connection.read_on()
        if self.abandoned or self._stage == COMPLETE:
            return {"type": "http.disconnect"}
        self.is_news = False
        self._held = 0
        parts = self.parts
        self.parts = []
        return {"type": "http.request", "body": b"".join(parts), "more_body": not self.is_whole}

    def whole_body_fast(self, most: int) -> bytes | None:
        """Take a body of at most so many bytes that has come with its head. Equals what `receive` gives, or returns None and takes
        nothing."""
        parts = self.parts
        if not (self.is_whole and self.is_news) or len(parts) != 1 or self.abandoned or self._stage == COMPLETE:
            return None
        body = parts[0]
        if len(body) > most or self.connection.is_holding_back:
            return None
        self.is_news = False
        self._held = 0
        self.parts = []
        return body

    def send(self, message: Message) -> Awaitable[None]:
        connection = self.connection
        if connection.full is not None and not self.abandoned:
            return self._send_later(connection.full, message)
        self._send(message)
        return NOTHING

    def piece_sender(self, *, is_masked: bool) -> Callable[[bytes], Awaitable[None]]:
        """Return what sends the pieces of a body. `is_masked` is nothing to a server."""
        return self._send_piece

    def _send_piece(self, data: bytes) -> Awaitable[None]:
        """Send a piece of a body that goes on. Equals a message of ASGI that says so; most are one write."""
        # No coroutine, because every chunk of every stream goes through here.
        connection = self.connection
        size = len(data)
        if self._takes_chunks and 0 < size <= JOINED_BYTES and connection.full is None:
            connection.gather(b"%x\r\n%b\r\n" % (size, data))
            return NOTHING
        return self.send({"type": "http.response.body", "body": data, "more_body": True})

    def send_whole(self, start: Message, body: bytes) -> Awaitable[None]:
        """Send a response whose body is whole. Equals the two messages of ASGI; most are one write, without the states between."""
        if not self._send_whole_fast(start["status"], start["headers"], body):
            return self._send_both(start, body)
        return NOTHING

    def _send_whole_fast(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> bool:
        """Write a response at once; return whether that could be done. Equals `_begin` and `_go_on` where nothing is special: all of
        the request has come, the client reads, and the connection goes on."""
        connection = self.connection
        if self._stage != UNBEGUN or self.abandoned or not (self.is_whole and self.keep) or connection.full is not None:
            return False
        line = WITH_BODY.get(status)
        if line is None or self.method == "HEAD" or len(body) > JOINED_BYTES:
            return False
        lines, length, ends = header_lines(headers)
        if ends or length != len(body) or connection.factory.draining:
            return False
        standing = connection.factory.standing_lines.of(connection.server_state.default_headers)
        connection.write(b"".join((line, standing, lines, b"\r\n\r\n", body)))
        self._stage = COMPLETE
        if self._news is not None:
            self._news.set()
        connection.answered(self)
        return True

    async def _send_both(self, start: Message, body: bytes) -> None:
        await self.send(start)
        await self.send({"type": "http.response.body", "body": body})

    async def _send_later(self, full: asyncio.Event, message: Message) -> None:
        """Wait until the client reads again, and send a message then."""
        await full.wait()
        self._send(message)

    def _send(self, message: Message) -> None:
        if self.abandoned:
            return
        stage = self._stage
        if message["type"] != EXPECTED[stage]:
            kind = message["type"]
            if stage == COMPLETE:
                raise RuntimeError(f"Unexpected ASGI message '{kind}' sent, after response already completed.")
            raise RuntimeError(f"Expected ASGI message '{EXPECTED[stage]}', but got '{kind}'.")
        if stage == UNBEGUN:
            self._begin(message["status"], message.get("headers", ()))
            return
        self._go_on(message.get("body", b""), message.get("more_body", False))

    # -- the request

    async def _wait(self) -> None:
        """Wait for a piece of the body or the end of the request."""
        if self.abandoned or self._stage == COMPLETE:
            return
        connection = self.connection
        if self._stage == UNBEGUN and self.awaits_continue():
            self.sent_continue = True
            connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if connection.is_holding_back:
            connection.read_on()
        if self._news is None:
            self._news = asyncio.Event()
        self._news.clear()
        await self._news.wait()

    # -- the answer

    def _begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        connection = self.connection
        if status == SWITCHING and connection.open_tunnel(self):
            lines, _, _ = header_lines(headers)
            self._framing = CLOSED
            self.keep = False
            self.is_whole = False
            self._left = -1
            self._head = b"HTTP/1.1 101 Switching Protocols%b\r\n\r\n" % lines
            self._stage = HELD
            return
        line = STATUS_LINES.get(status)
        if line is None:
            raise RuntimeError(f"{status} is not the status of an answer.")
        lines, length, ends = header_lines(headers)
        own = b"\r\n\r\n"
        if status in BODILESS:
            self._framing = COUNTED
            length = 0
        elif length >= 0:
            self._framing = COUNTED
        elif self.scope["http_version"] != "1.1":
            self._framing = CLOSED
            self.keep = False
        else:
            self._framing = CHUNKED
            own = b"\r\ntransfer-encoding: chunked\r\n\r\n"
        if self.method == "HEAD":
            self._framing = NONE
            own = b"\r\n\r\n"
        if ends or connection.factory.draining or not self.is_whole:
            self.keep = False  # an answer before the end of the body is a refusal, and the rest is not waited for
        if not self.keep and not ends:
            own = b"\r\nconnection: close" + own
        self._left = length
        standing = connection.factory.standing_lines.of(connection.server_state.default_headers)
        self._head = b"".join((line, standing, lines, own))
        self._stage = HELD

    def _go_on(self, body: bytes, more_body: bool) -> None:
        framing = self._framing
        connection = self.connection
        if framing == COUNTED:
            self._left -= len(body)
            if self._left and (self._left < 0 or not more_body):
                raise RuntimeError(f"Response content {'longer' if self._left < 0 else 'shorter'} than Content-Length")
            data = body
        elif framing == CHUNKED:
            self._takes_chunks = more_body
            data = self._chunk(body) if body else b""
            if not more_body:
                data += b"0\r\n\r\n"
        else:
            data = body if framing == CLOSED else b""
        if self._stage == HELD:
            if len(data) > JOINED_BYTES:
                connection.write(self._head)
            else:
                data = self._head + data
            self._head = b""  # a stream may be open for hours
            self._stage = SENDING
        if data and (more_body or connection.unsent):
            connection.gather(data)
        elif data:
            connection.write(data)
        if not more_body:
            self._stage = COMPLETE
            if self._news is not None:
                self._news.set()
            connection.answered(self)

    def _chunk(self, body: bytes) -> bytes:
        """Return a part of the body in the framing of the response."""
        size = len(body)
        if size <= JOINED_BYTES:
            return b"%x\r\n%b\r\n" % (size, body)
        if self._stage == HELD:
            self._stage = SENDING
            self.connection.gather(self._head)
        self.connection.gather(b"%x\r\n" % size)
        self.connection.gather(body)
        return b"\r\n"
