"""One connection of the server: reads requests, has them answered one after another, and enforces deadlines."""

import asyncio
import contextlib
import math
import select
import socket
import struct
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import unquote

import httptools
from uvicorn.config import Config
from uvicorn.server import ServerState

from callgate.api.middleware import CONNECTION, TEXT_HEADERS
from callgate.server import refusals
from callgate.server.heads import RepeatedHead
from callgate.server.limits import (
    ALWAYS_ANSWERED,
    FRAMING_PER_BYTE,
    HELD_BYTES,
    IN_RESERVE,
    LINGER_BYTES,
    LINGER_HEAD_BYTES,
    LINGER_SECONDS,
    LOWEST_RATE,
    MAX_PIPELINED,
    RESERVE_SECONDS,
    TURNED_AWAY,
)
from callgate.server.refusals import RequestRefused
from callgate.server.request_cycle import RequestCycle

if TYPE_CHECKING:
    from callgate.server.protocol import ProtocolFactory

NEVER: Final = math.inf
VERSIONS: Final = ("1.1", "1.0")
TUNNEL: Final[dict[str, dict[str, Any]]] = {"callgate.tunnel": {}}
"""The scope extension for an application that may answer 101; the bodies are then bytes of the other protocol."""
ASGI: Final = {"version": "3.0", "spec_version": "2.3"}


HEAD, BODY, ANSWER, IDLE, CLOSING = range(5)
"""The phases of a connection, for its deadline: reading headers; reading a body; answering, which has no deadline here; idle;
closing. Plain numbers, because enum members are ten times as slow."""


_NONE, _REQUESTED, _HEAD_AGAIN, _BODY_AGAIN, _OVER = range(5)
"""The state of a request with `Upgrade`: there is none; its head was read; its framing is fed to another parser; that one
reads the body; it is complete, and what follows is ignored."""
_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding"})
_ONCE: Final = frozenset(
    {b"host", b"authorization", b"content-length", b"x-api-key", b"api-key", b"idempotency-key", b"origin"}
)
_DISCONNECTED: Final = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)
"""What is polled for at a socket that is not read. Only Linux tells of a client that has closed its side while data is unread."""
_OURS: Final = b"x-callgate-"
"""The prefix of our own request headers."""


class ServerConnection(asyncio.Protocol):
    """Reads requests and has the application answer them one after another."""

    __slots__ = (  # noqa: RUF023 - in groups, as they are set below
        # The server: the same for all its connections.
        "_app",
        "_app_state",
        "_limits",
        "_root_path",
        "factory",
        "loop",
        "server_state",
        # This connection.
        "_context",
        "_ignores_input",
        "_parser",
        "_scope",
        "_transport",
        "connected_since",
        "in_reserve",
        "is_holding_back",
        "owner",
        "write",
        # Its requests: being read, waiting for their turn, being answered.
        "_answering",
        "_newest",
        "_tunnel",
        "_waiting",
        # The head that is being read, and what of the last one can be used again.
        "_head_bytes",
        "_headers",
        "_in_head",
        "_repeated",
        "_request_line",
        "_target",
        "_template",
        "_upgrade",
        # The body that is being read.
        "_body_began",
        "_framing_bytes",
        "_in_body",
        "_last_data",
        "_read_bytes",
        "_spent_bytes",
        "body_bytes",
        # Deadlines.
        "_phase",
        "due",
        "stalled",
        # What is written.
        "_unsent_bytes",
        "_wrote_at",
        "full",
        "unsent",
    )

    def __init__(
        self,
        factory: "ProtocolFactory",
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        if not config.loaded:
            config.load()
        # The server: the same for all its connections.
        self.factory = factory
        self.loop = loop
        self.server_state = server_state
        self._limits = factory.limits
        self._app = config.loaded_app
        self._app_state = app_state
        self._root_path = config.root_path

        # This connection.
        self.connected_since = -math.inf
        self.is_holding_back = False
        """Reading from the socket is paused."""
        self._context = copy_context()
        self.in_reserve = False
        """It is one of the few that are accepted beyond the limit, and has no place."""
        self.owner: str | None = None  # whose share it counts in; None until a request of it has shown a key
        self._ignores_input = False

        # Its requests.
        self._newest: RequestCycle | None = None
        """The request that was read last; it may still wait for earlier ones."""
        self._waiting: list[RequestCycle] = []
        self._answering: RequestCycle | None = None
        self._tunnel: RequestCycle | None = None
        """The request that has switched to another protocol: the application reads what comes."""

        # The head that is being read.
        self._in_head = False
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._upgrade = _NONE
        self._request_line = (b"", b"", "")
        """Target, method and version of the last request, from which `_template` was made."""
        self._template: dict[str, Any] = {}
        self._repeated = RepeatedHead()

        # The body that is being read.
        self._in_body = False
        self.body_bytes = self._framing_bytes = 0
        self._read_bytes = 0
        """Bytes of this read from the socket."""
        self._spent_bytes = 0
        """Those of them that belong to requests that are complete."""
        self._body_began = -math.inf
        self._last_data = -math.inf

        # Deadlines.
        self._phase = HEAD
        self.due = NEVER
        """The deadline of the current phase."""
        self.stalled = NEVER
        """The deadline for a client that does not read."""

        # What is written.
        self.full: asyncio.Event | None = None
        """There is one while the client does not read; set when more can be written."""
        self.unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._wrote_at = -math.inf

    # -- the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses
        self.write = self._transport.write
        self._parser = httptools.HttpRequestParser(self)
        # Otherwise the first of several pipelined requests would not be answered when it has `Connection: close`.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._scope: dict[str, Any] = {
            "type": "http",
            "asgi": ASGI,
            "server": _address(transport, "sockname"),
            "client": _address(transport, "peername"),
            "scheme": "https" if transport.get_extra_info("sslcontext") else "http",
            "root_path": self._root_path,
            CONNECTION: self,
        }
        self.server_state.connections.add(self)  # type: ignore[arg-type]  # typed as its own kinds of it
        waits = self._limits.header_seconds
        self.connected_since = now = self.loop.time()
        entrance = self.factory.enter(self, now)
        if entrance == TURNED_AWAY:
            self._refuse(refusals.too_many_connections())
            return
        if entrance == IN_RESERVE:
            self.in_reserve = True
            waits = min(waits, RESERVE_SECONDS)
        self._wait(HEAD, now + waits)

    def connection_lost(self, error: Exception | None) -> None:
        self.factory.leave(self)
        self.server_state.connections.discard(self)
        self._waiting.clear()
        self.unsent.clear()
        if self._answering is not None:
            self._answering.abandon()
        self._make_writable()
        self._ignores_input = True
        # Each of these refers to this connection: in a cycle they would be kept until a full collection of garbage.
        self._answering = self._newest = self._tunnel = None
        self._scope = self._template = {}
        self._repeated = RepeatedHead()
        del self._parser

    def data_received(self, data: bytes) -> None:
        if self._ignores_input:
            self._pass_or_ignore(data)
            return
        if self._phase != IDLE:
            self._parse(data)
            return
        self.factory.idle.pop(self, None)
        if self._begin_fast(data):
            return
        self._parse(data)
        cycle = self._newest
        if cycle is not None and cycle is self._answering and cycle.keep and cycle.is_whole:
            self._repeated.learn(data, cycle.scope, self._target, self.body_bytes)

    def _parse(self, data: bytes) -> None:
        self._read_bytes = len(data)
        self._spent_bytes = 0
        body_before = self.body_bytes
        was_in_body = self._in_body
        try:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as stopped:
                if self._upgrade == _REQUESTED:
                    self._read_plainly(data[stopped.args[0] :])
            else:
                if self._in_body:
                    self._expect_body(body_before if was_in_body else None)
                elif self._in_head:
                    self._expect_head()
        except httptools.HttpParserUpgrade:
            pass  # a further request after the last one
        except httptools.HttpParserError as wrong:
            if self._upgrade == _OVER:
                return  # what follows the last one
            refused = wrong.__context__
            if not isinstance(refused, RequestRefused):
                refused = refusals.not_http()
            self._refuse(refused)
        except RequestRefused as refused:
            self._refuse(refused)

    def _begin_fast(self, data: bytes) -> bool:
        """Begin the request in `data`, if it is a whole one with the head of an earlier one; return whether it was. Equals what the
        parser's callbacks do for it."""
        request = self._repeated.request_fast(data)
        if request is None or self.in_reserve or self.factory.draining:
            return False
        scope, body = request
        self._target = self._repeated.target
        scope["state"] = self._app_state.copy()
        self.body_bytes = len(body)
        # By place: made by names, a struct of many fields takes several times as long.
        # Its connection is kept, all of it has come, and nobody has been told.
        self._newest = cycle = RequestCycle(self, scope, scope["method"], True, True, [body], True)
        self._phase = ANSWER
        self.due = NEVER
        self._start(cycle)
        return True

    def _pass_or_ignore(self, data: bytes) -> None:
        """Take data after the last request: pass it to the application where there is a tunnel, else ignore it."""
        if self._tunnel is None:
            self.body_bytes += len(data)
            if self.body_bytes > LINGER_BYTES:
                self._transport.abort()
            return
        self._tunnel.feed(data)
        if not self._tunnel.has_room:
            self._hold_back()

    def _read_plainly(self, data: bytes) -> None:
        """Read the body of a request with an `Upgrade` that is ignored; Java's clients send one each time.

        The parser takes all that follows for the other protocol, so a new one reads the body, by the request's framing. It is
        the last request of its connection.
        """
        framing = b"".join(b"\r\n%b: %b" % header for header in self._headers if header[0] in _FRAMING)
        head = b"%b / HTTP/1.1\r\nhost: again%b\r\n\r\n" % (self._parser.get_method(), framing)
        self._parser = httptools.HttpRequestParser(self)
        self._upgrade = _HEAD_AGAIN
        self._parser.feed_data(head)
        self._parser.feed_data(data)
        if self._in_body:
            self._expect_body(None)

    def pause_writing(self) -> None:
        """Begin the deadline for a client that does not read."""
        self.full = asyncio.Event()
        self.stalled = self.loop.time() + self._limits.idle_seconds
        self.factory.note_unread(self)

    def resume_writing(self) -> None:
        self._make_writable()

    def _make_writable(self) -> None:
        self.stalled = NEVER
        self.factory.unread.pop(self, None)
        if self.full is not None:
            self.full.set()
            self.full = None

    def shutdown(self) -> None:
        """Close the connection after the running requests. Called by uvicorn when the server ends."""
        running = self._answering
        if running is None or self._newest is None or (running.task is not None and running.task.done()):
            self.close()
        else:
            self._newest.keep = False

    # -- the parser's callbacks

    def on_message_begin(self) -> None:
        if self._upgrade:
            return
        self._in_head = True
        self._target = b""
        self._headers = []
        self._head_bytes = -self._spent_bytes

    def on_url(self, target: bytes) -> None:
        self._target += target

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            self._headers.append((name.lower(), value.rstrip(b" \t")))  # the parser strips leading whitespace only
        # Trailers are ignored: the request has been checked by its headers.

    def on_headers_complete(self) -> None:
        if self._upgrade:
            if self._upgrade == _HEAD_AGAIN:
                self._upgrade = _BODY_AGAIN
            return
        self._in_head = False
        self._in_body = True
        self.body_bytes = self._framing_bytes = 0
        factory = self.factory
        if self._phase == HEAD or self._read_bytes > self._limits.header_bytes:
            factory.awaiting_head.pop(self, None)
            size = len(self._target) + sum(len(name) + len(value) + 4 for name, value in self._headers)
            if size > self._limits.header_bytes:
                raise refusals.head_too_large(self._limits.header_bytes)
        scope = self._described()
        is_current = scope["http_version"] == "1.1"
        keep = is_current and self._parser.should_keep_alive()
        fields = {name.decode("latin-1"): value.decode("latin-1") for name, value in self._headers}
        scope[TEXT_HEADERS] = fields
        if len(fields) < len(self._headers):
            self._check_repeated()
        if "host" not in fields or self._target[:1] != b"/":
            self._check_host(fields.get("host"), is_current)
        if "upgrade" in fields and self._parser.should_upgrade():
            self._upgrade = _REQUESTED
            keep = False
            # Proxies accept a 101 only for such a request.
            scope["extensions"] = TUNNEL if is_current and scope["method"] == "GET" else {}
        if self.in_reserve or factory.draining:
            if factory.draining and scope["path"] not in ALWAYS_ANSWERED:
                raise refusals.closing()
            keep = False
        self._newest = cycle = RequestCycle(self, scope, scope["method"], keep)
        if self._answering is None:
            self._phase = ANSWER
            self.due = NEVER
            self._start(cycle)
        else:
            if len(self._waiting) >= MAX_PIPELINED:
                raise refusals.too_many_pipelined()
            self._hold_back()
            self._waiting.append(cycle)

    def on_body(self, body: bytes) -> None:
        if self._upgrade == _OVER:
            return
        self.body_bytes += len(body)
        assert self._newest is not None
        self._newest.feed(body)

    def on_message_complete(self) -> None:
        if self._upgrade:
            if self._upgrade != _BODY_AGAIN:
                return
            self._upgrade = _OVER
            self._ignores_input = True
        self._in_body = False
        self._spent_bytes = self._read_bytes
        assert self._newest is not None
        self._newest.finish()
        if self._phase != ANSWER:
            if self._answering is None:
                self._become_idle()
            else:
                self._wait(ANSWER, NEVER)

    # -- requests

    def _described(self) -> dict[str, Any]:
        """Return the ASGI scope of the request. The parts of an equal target and method are kept from the second request of a connection on."""
        parser = self._parser
        request_line = (self._target, parser.get_method(), parser.get_http_version())
        if request_line == self._request_line:
            if not self._template:
                self._template = self._taken_apart(*request_line)
            scope = self._template.copy()
        else:
            self._request_line = request_line
            self._template = {}
            scope = self._taken_apart(*request_line)
        scope["headers"] = self._headers
        scope["state"] = self._app_state.copy()
        return scope

    def _taken_apart(self, target: bytes, method: bytes, version: str) -> dict[str, Any]:
        if version not in VERSIONS:
            raise refusals.unknown_version(version)
        if method == b"CONNECT":
            raise refusals.no_tunnel()
        if target[:1] == b"/" and b"#" not in target:
            raw_path, _, query = target.partition(b"?")
        else:  # an absolute URL, as for a proxy, or an invalid target
            url = httptools.parse_url(target)
            raw_path = url.path or b"/"
            query = url.query or b""
        path = raw_path.decode("ascii")
        return {
            **self._scope,
            "http_version": version,
            "method": method.decode("ascii"),
            "path": self._root_path + (unquote(path) if "%" in path else path),
            "raw_path": self._root_path.encode("ascii") + raw_path,
            "query_string": query,
        }

    def _check_repeated(self) -> None:
        """Refuse a request that repeats a header that must be unique: a proxy in front may have used the other one."""
        names: set[bytes] = set()
        for name, _ in self._headers:
            if name in names and (name in _ONCE or name.startswith(_OURS)):
                raise refusals.repeated_header(name.decode("latin-1"))
            names.add(name)

    def _check_host(self, host: str | None, is_current: bool) -> None:
        """Refuse a request without a Host header, or with a whole address of another host as its target: only the header is judged."""
        if host is None:
            if is_current:
                raise refusals.no_host()
            return
        authority = self._target.partition(b"://")[2].partition(b"/")[0].partition(b"?")[0]
        if host.encode("latin-1").lower() != authority.lower():
            raise refusals.other_host()

    def _start(self, cycle: RequestCycle) -> None:
        self._answering = cycle
        # Each request runs in a copy of the same context, so that none sees the variables of another.
        cycle.task = task = self.loop.create_task(cycle.run(self._app), context=self._context.copy())
        self.server_state.tasks.add(task)

    def belong_to(self, owner: str) -> None:
        """Count it in the share of a key from now on. Raises `ChatError` where that has no place left.

        A connection in the reserve gets its place only here, so that those without a key take none from those with one.
        """
        try:
            self.factory.assign(self, owner)
        except RequestRefused as refused:
            if self._answering is not None:
                self._answering.keep = False
            raise refused.error from None

    def open_tunnel(self, cycle: RequestCycle) -> bool:
        """Pass all further data to the application. False where the request did not ask for an upgrade."""
        if self._upgrade != _OVER or cycle is not self._newest:
            return False
        self._tunnel = cycle
        return True

    def answered(self, cycle: RequestCycle) -> None:
        """Continue with the next request after a response was written."""
        self._tunnel = None
        self.server_state.total_requests += 1
        self._answering = None
        if self.unsent:
            self.flush()
        if not cycle.keep:
            if self._in_body:
                self._linger()
            else:
                self.close()
            return
        if self.is_holding_back:
            self.read_on()
        if self._waiting:
            self._start(self._waiting.pop(0))
        elif self._in_head:
            self.factory.awaiting_head[self] = None
        else:
            self._become_idle()

    def break_off(self, cycle: RequestCycle) -> None:
        """End a response that the application has left incomplete."""
        if cycle.ends_with_the_connection:
            # A regular close would mark the response as complete.
            self.unsent.clear()
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()
        else:
            self._refuse(refusals.failed())

    def _become_idle(self) -> None:
        self.factory.idle[self] = None
        self._phase = IDLE
        self.due = self.loop.time() + self._limits.idle_seconds

    # -- flow

    def gather(self, data: bytes) -> None:
        """Send a part of a response, or gather it with others until the end of this iteration of the event loop.

        Each write is a system call, which costs more than all else for a chunk. The first write of an iteration is sent at
        once. `loop.time` is the same during an iteration.
        """
        unsent = self.unsent
        if not unsent:
            now = self.loop.time()
            if now != self._wrote_at:
                self._wrote_at = now
                self.write(data)
                return
            self.loop.call_soon(self.flush)
        unsent.append(data)
        self._unsent_bytes += len(data)
        if self._unsent_bytes > HELD_BYTES:
            self.flush()

    def flush(self) -> None:
        if not self.unsent:
            return
        unsent = self.unsent
        self.unsent = []
        self._unsent_bytes = 0
        self._transport.writelines(unsent)

    def _hold_back(self) -> None:
        if not self.is_holding_back:
            self.is_holding_back = True
            self._transport.pause_reading()

    def read_on(self) -> None:
        if self.is_holding_back:
            self.is_holding_back = False
            self._transport.resume_reading()

    def give_way(self) -> None:
        """Close to make room for another connection, with a 503 if the client may be about to send a request."""
        if self._phase == IDLE:
            self.factory.give_up_place(self)
            self.close()
        else:
            self._refuse(refusals.too_many_connections())

    def close(self) -> None:
        """Close when the client has read what was written, or after a deadline."""
        self.flush()
        self._transport.close()
        self._wait(CLOSING, self.loop.time() + self._limits.idle_seconds)
        if self.full is None and self._transport.get_write_buffer_size():
            self.factory.note_unread(self)

    def cut(self) -> None:
        """Close at once, whatever was not sent."""
        self._transport.abort()

    def cut_if_left(self) -> None:
        """Close if the client has disconnected while it is answered and nothing is read, so that the transport does not see its end."""
        cycle = self._answering
        if cycle is None or not cycle.is_whole:
            return
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), _DISCONNECTED)
        if poll.poll(0):
            self._transport.abort()

    def unsent_bytes(self) -> int:
        """Return how many bytes of answers the client has not taken."""
        return self._transport.get_write_buffer_size()

    def _hang_up(self) -> None:
        """Close with a deadline: the transport alone would wait endlessly for a client that does not read."""
        self.flush()
        if self._transport.get_write_buffer_size():
            self._transport.abort()
        else:
            self._transport.close()

    # -- the clock

    def _wait(self, phase: int, until: float) -> None:
        self._phase = phase
        self.due = until

    def _expect_head(self) -> None:
        """Set the deadline for the headers of a request."""
        self._head_bytes += self._read_bytes
        if self._head_bytes > self._limits.header_bytes:
            raise refusals.head_too_large(self._limits.header_bytes)
        if self._phase == HEAD:
            return
        now = self.loop.time()
        self._wait(HEAD, now + self._limits.header_seconds)
        if self._answering is None:
            self.connected_since = now
            self.factory.awaiting_head[self] = None

    def _expect_body(self, before: int | None) -> None:
        """Set the deadline for the rest of a request's body, and read on only where there is room for it. `before`: its length when this
        read began."""
        if before is not None:
            self._framing_bytes += self._read_bytes - (self.body_bytes - before)
            if self._framing_bytes - FRAMING_PER_BYTE * self.body_bytes > self._limits.header_bytes:
                raise refusals.too_much_framing()
        assert self._newest is not None
        if not self._newest.has_room:  # a body that is complete cannot grow
            self._hold_back()
        self._last_data = now = self.loop.time()
        if self._phase != BODY:
            self._body_began = now
            self._wait(BODY, now + self._limits.body_seconds)

    def time_is_up(self, now: float) -> None:
        if self.stalled <= now:
            self._transport.abort()
        elif self._phase == BODY:
            assert self._newest is not None
            next_due = self._last_data + self._limits.body_seconds
            expected = self._body_began + self._limits.body_seconds + self.body_bytes / LOWEST_RATE
            if self.is_holding_back or self._newest.awaits_continue():
                self._last_data = self._body_began = now  # reading is paused on our side
                self._wait(BODY, now + self._limits.body_seconds)
            elif next_due > now and expected > now:
                self._wait(BODY, min(next_due, expected))
            else:
                self._refuse(refusals.body_timeout())
        elif self._phase != HEAD:
            self._hang_up()
        elif self._answering is not None:
            # Part of a pipelined request is late; the response that is being sent goes on.
            self._wait(HEAD, now + self._limits.header_seconds)
        elif self._in_head:
            self._refuse(refusals.head_timeout())
        else:
            self._hang_up()

    # -- refusing

    def _refuse(self, refused: RequestRefused) -> None:
        """Send an error and close. In the middle of a response just close."""
        cycle = self._answering
        self._answering = None
        if cycle is not None:
            cycle.abandon()
        self.flush()
        if cycle is None or not cycle.is_on_the_wire:
            self.write(refusals.refusal(refused, "" if cycle is None else cycle.method, self._target))
        self._linger(LINGER_BYTES if self._in_body else LINGER_HEAD_BYTES)

    def _linger(self, most: int = LINGER_BYTES) -> None:
        """Close after the last answer, reading on for a moment so that it arrives: a socket that is closed with unread bytes is
        reset, and the client may never see what it was told. It has no place meanwhile."""
        self._ignores_input = True
        self.body_bytes = LINGER_BYTES - most
        self._waiting.clear()
        self.factory.give_up_place(self)
        with contextlib.suppress(OSError):  # the client may have disconnected
            self._transport.write_eof()
        self.read_on()
        self._wait(CLOSING, self.loop.time() + LINGER_SECONDS)


def _address(transport: asyncio.BaseTransport, side: str) -> tuple[str, int] | None:
    """Return an address and a port. A socket for both families has IPv4 addresses mapped to IPv6."""
    where = transport.get_extra_info(side)
    if isinstance(where, tuple):
        return (str(where[0]).removeprefix("::ffff:"), int(where[1]))
    return None
