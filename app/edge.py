"""The outermost edge: connections. What uvicorn leaves unbounded is bounded here, before anything of ours is asked.

uvicorn's httptools protocol takes headers of any size, waits for them and for a body for ever, and counts idle
connections as load. `GuardedProtocol` is that protocol with limits, timers and refusals in OpenAI's shape; `Edge` is what
the connections of one server share. Who may come in, and how many requests run, is decided further inside.
"""

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any, Final

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from app.api.door import OPEN_PATHS
from app.api.errors import encode, error_headers
from app.chat.errors import ChatError

ALWAYS_ANSWERED: Final = frozenset(path.encode() for path in OPEN_PATHS)
"""Health: answered at any load, and while the house empties."""

RESERVE: Final = 64
"""Connections beyond the limit that are still read, so that a probe finds an answer; everybody else gets a 503."""
RESERVE_SECONDS: Final = 1.0
"""What a connection of the reserve gets to say who it is."""
LOWEST_RATE: Final = 1024
"""Bytes a second that a body has to make on average. A gap is measured from byte to byte, so drops could fall for ever."""
LINGER_SECONDS: Final = 1.0
"""After a refusal we still listen, because closing on unread bytes resets the connection and takes the refusal along."""
LINGER_BYTES: Final = 1024 * 1024
MAX_PIPELINED: Final = 32
"""Requests sent ahead of their answers. No client of ours does it; one read could bring thousands."""
FRAMING_PER_BYTE: Final = 8
"""Bytes of chunk framing for one of the body: a chunk of one byte has five. What is beyond are extensions and trailers."""


@dataclass(frozen=True, slots=True)
class EdgeRules:
    """What one connection may cost."""

    header_bytes: int = 65_536
    header_seconds: float = 10.0
    """From the connection, or from the first byte of a further request, until the headers are whole."""
    body_seconds: float = 10.0
    """The longest gap while a body comes."""
    idle_seconds: float = 75.0
    """How long a connection is kept between two requests."""
    connections: int = 2000


class Edge:
    """What the connections of one server share."""

    def __init__(self, rules: EdgeRules | None = None) -> None:
        self.rules = rules or EdgeRules()
        self.draining = False
        """Set when the house empties: from now on only health is answered."""
        self.idle: dict[GuardedProtocol, None] = {}
        """Connections between two requests, the longest idle first; they make room when it is needed."""
        self.unheard: dict[GuardedProtocol, None] = {}
        """Connections that have not yet said what they want, the oldest first. Clients say it at once: of those that take
        longer there is a flood, or something is wrong with them, and they make room as well."""

    def protocol(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> "GuardedProtocol":
        """One connection; what uvicorn calls where it would call a protocol class."""
        return GuardedProtocol(self, config, server_state, app_state, _loop)


class Refused(Exception):
    """This connection gets no further; raised inside the parser's callbacks, which wrap it."""

    def __init__(self, status: int, message: str, code: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        kind = "server_error" if status >= 500 else "invalid_request_error"
        self.error = ChatError(status, message, type=kind, code=code, retry_after=retry_after)


class GuardedProtocol(HttpToolsProtocol):
    """One connection, with an end to everything it can do."""

    def __init__(
        self,
        edge: Edge,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, loop)
        self._edge, self._rules = edge, edge.rules
        self.timeout_keep_alive = edge.rules.idle_seconds  # type: ignore[assignment] # call_later takes any number
        self._timer: asyncio.TimerHandle | None = None
        self._in_head = False
        self._in_body = False
        self._in_reserve = False
        self._refused = False
        self._head_bytes = 0
        self._body_bytes = 0
        self._framing_bytes = 0
        self._body_began = 0.0
        self._last_data = 0.0
        self.unheard_since = 0.0
        self._stalled: asyncio.TimerHandle | None = None
        self._running: RequestResponseCycle | None = None
        """The request that is being answered. `cycle` is the newest, which may still wait for its turn."""

    # -- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        waits = self._rules.header_seconds
        self.unheard_since = self.loop.time()
        over = len(self.connections) - self._rules.connections
        room = over <= 0 or self._make_room()
        self._edge.unheard[self] = None
        if not room:
            if over > RESERVE:
                self._refuse(_too_many_connections().error)
                return
            self._in_reserve, waits = True, min(waits, RESERVE_SECONDS)
        self._wait_until(self.unheard_since + waits)

    def _make_room(self) -> bool:
        """Close a connection that nobody will miss, if there is one: a slow one, else an idle one, else the next slowest."""
        idle, unheard = self._edge.idle, self._edge.unheard
        slowest = next(iter(unheard), None)
        if idle and (slowest is None or self.unheard_since - slowest.unheard_since < RESERVE_SECONDS):
            closed = next(iter(idle))
        elif slowest is not None:
            closed = slowest
        else:
            return False
        idle.pop(closed, None)
        unheard.pop(closed, None)
        closed.transport.close()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._edge.idle.pop(self, None)
        self._edge.unheard.pop(self, None)
        self._stop_waiting()
        self._stalls_no_more()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            self._body_bytes += len(data)
            if self._body_bytes > LINGER_BYTES:
                self.transport.abort()
            return
        self._edge.idle.pop(self, None)
        self._unset_keepalive_if_required()
        body_before, was_in_body = self._body_bytes, self._in_body
        try:
            self.parser.feed_data(data)
            if was_in_body and self._in_body:
                self._count_framing(len(data) - (self._body_bytes - body_before))
        except httptools.HttpParserUpgrade:
            pass  # there is nothing to upgrade to; the request is answered as the plain one it also is
        except httptools.HttpParserError as wrong:
            refused = wrong.__context__
            self._refuse(refused.error if isinstance(refused, Refused) else _not_http().error)
        except Refused as refused:
            self._refuse(refused.error)
        else:
            self._watch(len(data))

    def _watch(self, size: int) -> None:
        """Set the clock for what is still to come of the request at hand."""
        if self._in_head:
            self._head_bytes += size
            if self._head_bytes > self._rules.header_bytes:
                self._refuse(_head_too_large(self._rules.header_bytes).error)
            elif self._timer is None:
                self._wait_until(self.loop.time() + self._rules.header_seconds)
        elif self._in_body:
            now = self._last_data = self.loop.time()
            if self._timer is None:
                self._body_began = now
                self._wait_until(now + self._rules.body_seconds)

    # -- the parser's callbacks

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._head_bytes = 0
        if self._unanswered() is None and self not in self._edge.unheard:
            self.unheard_since = self.loop.time()
            self._edge.unheard[self] = None

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            super().on_header(name, value)
        # else a trailer: it would join the headers of a request that was judged by them already

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._in_body = True
        self._edge.unheard.pop(self, None)
        self._body_bytes = self._framing_bytes = 0
        self._stop_waiting()
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self._rules.header_bytes:
            raise _head_too_large(self._rules.header_bytes)
        if (self._in_reserve or self._edge.draining) and self.url.partition(b"?")[0] not in ALWAYS_ANSWERED:
            raise _closing() if self._edge.draining else _too_many_connections()
        if len(self.pipeline) >= MAX_PIPELINED:
            raise Refused(400, "Too many requests were sent ahead of their answers.", "too_many_pipelined")
        super().on_headers_complete()
        if self._in_reserve or self._edge.draining:
            self.cycle.keep_alive = False

    def pause_writing(self) -> None:
        """The client does not take what it is sent. It gets the time that it may also be idle for."""
        super().pause_writing()
        if self._stalled is None:
            self._stalled = self.loop.call_later(self._rules.idle_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        self._stalls_no_more()
        super().resume_writing()

    def _stalls_no_more(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def timeout_keep_alive_handler(self) -> None:
        self._hang_up()

    def _hang_up(self) -> None:
        """Closing alone would wait for ever for a client that does not take the end of its answer."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body = False
        self._stop_waiting()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._wait_until(self.loop.time() + self._rules.idle_seconds)
            return
        if self._in_body:
            # Answered without having been heard to the end (401, 413). The rest may come, but not for ever.
            self._unset_keepalive_if_required()
            self._wait_until(self.loop.time() + self._rules.body_seconds)
        elif not self.pipeline and not self._in_head and self.cycle.response_complete:
            self._edge.idle[self] = None

    def _count_framing(self, size: int) -> None:
        self._framing_bytes += size
        if self._framing_bytes - FRAMING_PER_BYTE * self._body_bytes > self._rules.header_bytes:
            raise Refused(400, "The request's chunks hold more framing than body.", "invalid_http_request")

    # -- the clock

    def _wait_until(self, when: float) -> None:
        self._stop_waiting()
        self._timer = self.loop.call_at(when, self._time_is_up)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_is_up(self) -> None:
        self._timer = None
        cycle = self._unanswered()
        if self.transport.is_closing():
            self._hang_up()
        elif self._in_body:
            self._judge_body(cycle)
        elif cycle is not None:
            # Part of a next request came ahead; it must not cost the client the answer it is getting.
            self._wait_until(self.loop.time() + self._rules.header_seconds)
        elif self._in_head:
            self._refuse(Refused(408, "The request's headers did not come in time.", "request_timeout").error)
        else:
            self._hang_up()

    def _unanswered(self) -> RequestResponseCycle | None:
        """The request that is being answered, if one is."""
        running = self._running
        return None if running is None or running.response_complete else running

    def _judge_body(self, cycle: RequestResponseCycle | None) -> None:
        if cycle is None:
            self._hang_up()
            return
        now = self.loop.time()
        next_due = self._last_data + self._rules.body_seconds
        expected = self._body_began + self._rules.body_seconds + self._body_bytes / LOWEST_RATE
        if self.flow.read_paused or self.cycle.waiting_for_100_continue:
            self._last_data = self._body_began = now  # it is we who are not reading
            self._wait_until(now + self._rules.body_seconds)
        elif next_due > now and expected > now:
            self._wait_until(min(next_due, expected))
        else:
            self._refuse(Refused(408, "The request's body did not come in time.", "request_timeout").error)

    # -- refusing

    def _refuse(self, error: ChatError) -> None:
        """Say why and close, reading on for a moment so that the word arrives. In the middle of an answer just close."""
        self._refused = True
        self._edge.unheard.pop(self, None)
        self._body_bytes = 0
        self._stop_waiting()
        self.pipeline.clear()
        cycle = self._unanswered()
        if cycle is not None:
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started:
                self.transport.close()
                return
        self.transport.write(_refusal(error))
        with contextlib.suppress(OSError):  # the client may be gone already
            self.transport.write_eof()
        self.flow.resume_reading()
        self._timer = self.loop.call_later(LINGER_SECONDS, self._hang_up)


def _refusal(error: ChatError) -> bytes:
    body = encode(error.envelope())
    headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
        **error_headers(error),
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return b"".join((STATUS_LINE[error.status], lines.encode("latin-1"), b"\r\n", body))


def _not_http() -> Refused:
    return Refused(400, "Invalid HTTP request received.", "invalid_http_request")


def _head_too_large(limit: int) -> Refused:
    return Refused(431, f"The request's headers are larger than {limit} bytes.", "headers_too_large")


def _too_many_connections() -> Refused:
    return Refused(503, "Too many connections. Try again in a moment.", "over_capacity", retry_after=1)


def _closing() -> Refused:
    return Refused(503, "The server is shutting down. Try again in a moment.", "shutting_down", retry_after=1)
