"""One request and its answer, towards the application: ASGI's `receive` and `send`."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from callgate.server.limits import HELD_BYTES
from callgate.server.response_head import STATUS_LINES, header_lines

if TYPE_CHECKING:
    from callgate.server.connection import ServerConnection

log = structlog.get_logger("callgate.server")

Message = MutableMapping[str, Any]
Application = Callable[[Any, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]

JOINED_BYTES: Final = 16_384
"""Up to here one write of a copy is cheaper than several of the parts."""
BODILESS: Final = frozenset({204, 304})


SWITCHING: Final = 101

UNBEGUN, HELD, SENDING, COMPLETE = range(4)
"""How far an answer has come. Once the application has begun it, its head is held until it can go out with the first of
the body."""

EXPECTED: Final = ("http.response.start", "http.response.body", "http.response.body", None)
"""The message that the application may send at each of these."""

COUNTED, CHUNKED, CLOSED, NONE = range(4)
"""How a client learns where the body ends: the head says so; chunks; where the connection ends, for what is older than
HTTP/1.1; or there is none whatever is sent, as in the answer to HEAD."""


class RequestCycle(msgspec.Struct, eq=False):
    """A request as it comes and its answer as it goes. The connection feeds it; the application holds the other end."""

    _connection: "ServerConnection"
    _scope: dict[str, Any]
    method: str
    """The application may change what the scope says."""
    keep: bool
    """Whether the connection may be used again after this."""
    task: asyncio.Task[None] | None = None
    abandoned: bool = False
    """Nobody reads the answer: the client is gone, or has been sent another."""
    is_whole: bool = False
    """The request has come to its end."""
    sent_continue: bool = False
    _parts: list[bytes] = []
    _held: int = 0
    _fresh: bool = False
    _news: asyncio.Event | None = None
    _stage: int = UNBEGUN
    _head: bytes = b""
    _framing: int = COUNTED
    _left: int = -1

    # -- for the connection

    @property
    def is_complete(self) -> bool:
        """The answer has gone out to its end."""
        return self._stage == COMPLETE

    @property
    def is_on_the_wire(self) -> bool:
        return self._stage == SENDING

    @property
    def ends_with_the_connection(self) -> bool:
        return self._stage == SENDING and self._framing == CLOSED

    def feed(self, body: bytes) -> bool:
        """A piece of the request's body. Whether more can be held."""
        if self._stage == COMPLETE:
            return True
        self._parts.append(body)
        self._held += len(body)
        self._fresh = True
        if self._news is not None:
            self._news.set()
        return self._held <= HELD_BYTES

    def finish(self) -> None:
        """The request's body is whole."""
        self.is_whole = self._fresh = True
        if self._news is not None:
            self._news.set()

    def abandon(self) -> None:
        self.abandoned = self._fresh = True
        if self._news is not None:
            self._news.set()

    def awaits_continue(self) -> bool:
        """The client holds its body back until it is asked for it. Looked for only when a body is waited for."""
        if self.is_whole or self.sent_continue or self._connection.body_bytes or self._scope["http_version"] != "1.1":
            return False
        return any(name == b"expect" and value.lower() == b"100-continue" for name, value in self._scope["headers"])

    async def run(self, app: Application) -> None:
        """The application's part. However it ends, no client takes what is not whole for an answer."""
        try:
            await app(self._scope, self.receive, self.send)
        except Exception:
            log.exception("application_failed")
        else:
            if self._stage != COMPLETE and not self.abandoned:
                log.error("application_did_not_answer")
        finally:
            self._connection.released(self)

    # -- for the application

    async def receive(self) -> Message:
        if not self._fresh:
            await self._wait()
        elif self._connection.is_holding_back:
            self._connection.read_on()
        if self.abandoned or self._stage == COMPLETE:
            return {"type": "http.disconnect"}
        self._fresh = False
        self._held = 0
        parts, self._parts = self._parts, []
        return {"type": "http.request", "body": b"".join(parts), "more_body": not self.is_whole}

    async def send(self, message: Message) -> None:
        connection = self._connection
        if connection.full is not None and not self.abandoned:
            await connection.full.wait()
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
        body, more = message.get("body", b""), message.get("more_body", False)
        if more and stage == SENDING and self._framing == CHUNKED and 0 < len(body) <= JOINED_BYTES:
            connection.gather(b"%x\r\n%b\r\n" % (len(body), body))  # what nearly every part of a stream is
        else:
            self._go_on(body, more)

    # -- the request

    async def _wait(self) -> None:
        """Wait for something to give the application."""
        if self.abandoned or self._stage == COMPLETE:
            return
        connection = self._connection
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
        connection = self._connection
        if status == SWITCHING and connection.open_tunnel(self):
            lines, _, _ = header_lines(headers)
            self._framing, self.keep, self.is_whole, self._left = CLOSED, False, False, -1
            self._head = b"HTTP/1.1 101 Switching Protocols%b\r\n\r\n" % lines
            self._stage = HELD
            return
        line = STATUS_LINES.get(status)
        if line is None:
            raise RuntimeError(f"{status} is not the status of an answer.")
        lines, length, ends = header_lines(headers)
        own = b"\r\n\r\n"
        if status in BODILESS:
            self._framing, length = COUNTED, 0
        elif length >= 0:
            self._framing = COUNTED
        elif self._scope["http_version"] != "1.1":
            self._framing = CLOSED
            self.keep = False
        else:
            self._framing = CHUNKED
            own = b"\r\ntransfer-encoding: chunked\r\n\r\n"
        if self.method == "HEAD":
            self._framing = NONE
            own = b"\r\n\r\n"
        if ends or connection.factory.draining or (not self.is_whole and self.awaits_continue()):
            self.keep = False  # whoever was not asked for a body may send it or not, and we could not tell
        if not self.keep and not ends:
            own = b"\r\nconnection: close" + own
        self._left = length
        standing = connection.factory.standing_lines(connection.server_state.default_headers)
        self._head = b"".join((line, standing, lines, own))
        self._stage = HELD

    def _go_on(self, body: bytes, more: bool) -> None:
        framing, connection = self._framing, self._connection
        if framing == COUNTED:
            self._left -= len(body)
            if self._left and (self._left < 0 or not more):
                raise RuntimeError(f"Response content {'longer' if self._left < 0 else 'shorter'} than Content-Length")
            data = body
        elif framing == CHUNKED:
            data = self._chunk(body) if body else b""
            if not more:
                data += b"0\r\n\r\n"
        else:
            data = body if framing == CLOSED else b""
        if self._stage == HELD:
            if len(data) > JOINED_BYTES:
                connection.write(self._head)
            else:
                data = self._head + data
            self._stage = SENDING
        if data and (more or connection.unsent):
            connection.gather(data)
        elif data:
            connection.write(data)
        if not more:
            self._stage = COMPLETE
            if self._news is not None:
                self._news.set()
            connection.answered(self)

    def _chunk(self, body: bytes) -> bytes:
        """A chunk, or the end of one whose beginning has been sent."""
        size = len(body)
        if size <= JOINED_BYTES:
            return b"%x\r\n%b\r\n" % (size, body)
        if self._stage == HELD:
            self._stage = SENDING
            self._connection.gather(self._head)
        self._connection.gather(b"%x\r\n" % size)
        self._connection.gather(body)
        return b"\r\n"
