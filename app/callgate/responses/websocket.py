"""`GET /v1/responses` as a WebSocket: one response after another over one connection.

Each `response.create` is an inner request through the whole application, with the admission, limits, records and log lines of
a `POST`. Its events are sent as messages. Responses with `store: false` are kept as long as the connection lasts, so that
the next response can continue them.
"""

import asyncio
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from starlette.types import Message, Receive, Scope, Send

from callgate.api.answers import start_message
from callgate.api.errors import in_openais_shape
from callgate.api.middleware import CALLER_MEMORY, CONNECTION_MEMORY, TEXT_HEADERS, context_of
from callgate.api.rights import Capability, anything
from callgate.api.strict_json import LARGE_BODY, Fields, open_body, read_fields
from callgate.callers.caller import owner_name
from callgate.config.schema.limits import Limits
from callgate.conversation.errors import ChatError
from callgate.responses.frames import (
    CLOSE,
    NOT_TEXT,
    PING,
    PONG,
    TEXT,
    TOO_MANY,
    TRY_LATER,
    FrameError,
    FrameReader,
    accept_key,
    close_frame,
    frame,
)
from callgate.responses.socket_limits import SocketLimits
from callgate.responses.stored import ConnectionMemory
from callgate.runtime.manager import RuntimeManager
from callgate.state.local.memory import MemoryStore
from callgate.state.store import Share
from callgate.untrusted.doors import written_here
from callgate.untrusted.readers import NULL, read_value

SECONDS: Final = 3600.0
"""The longest life of a connection."""
GOING_AWAY = 1001
NORMAL = 1000
FORBIDDEN = 1008
SLICE: Final = 8192
"""Bytes of a read that are handled before the event loop runs: a read may have forty thousand frames."""
NOT_SENT: Final = frozenset({b"content-length", b"transfer-encoding", b"upgrade", b"connection", b"expect"})
"""Headers of the handshake that inner requests do not have."""
OF_ONE_REQUEST: Final = frozenset({"context", "extensions", "endpoint", TEXT_HEADERS, CALLER_MEMORY})
"""What is in the scope of the handshake and is not true of inner requests."""
IGNORED: Final = ("type", "stream", "background", "stream_options")

_encode = msgspec.json.Encoder().encode


class ResponsesSocket:
    """Answers the handshake, and serves the connection."""

    def __init__(self, manager: RuntimeManager) -> None:
        self._manager = manager
        self._limits = SocketLimits()
        self._memory: MemoryStore | None = None
        """Of all connections; made for the first, by the config of then."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = context_of(scope)
        context.route = "responses"
        headers = context.headers
        if headers.get("upgrade", "").lower() != "websocket" or "callgate.tunnel" not in scope.get("extensions", ()):
            raise ChatError(405, "Responses are made with POST; GET is for a WebSocket.", code="method_not_supported")
        if headers.get("sec-websocket-version") != "13" or "sec-websocket-key" not in headers:
            raise ChatError(400, "This is no handshake of WebSocket's version 13.", code="invalid_value")
        if "transfer-encoding" in headers or headers.get("content-length", "0") != "0":
            # A proxy in front might not agree where the body ends and the messages begin.
            raise ChatError(400, "A handshake of WebSocket has no body.", code="invalid_value")
        assert context.caller is not None, "the middleware requires a caller here"
        owner = owner_name(context.caller)
        config = self._manager.current.config
        self._limits.enter(owner, config.server.connections)
        try:
            await self._serve(owner, config.limits, scope, receive, send)
        finally:
            self._limits.leave(owner)

    async def _serve(self, owner: str, limits: Limits, scope: Scope, receive: Receive, send: Send) -> None:
        headers = context_of(scope).headers
        fields = {"upgrade": "websocket", "connection": "Upgrade"}
        fields["sec-websocket-accept"] = accept_key(headers["sec-websocket-key"]).decode()
        await send(start_message(101, fields))
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        store = self._manager.current.config.store
        if self._memory is None:
            self._memory = MemoryStore(store.entries, store.bytes)
        memory = ConnectionMemory(self._memory, Share(owner, store.response_bytes), secrets.token_hex(8), SECONDS)

        def hold(size: int) -> bool:
            return self._limits.hold(owner, size, limits.body_bytes)

        capability = Capability.of(self._manager, context_of(scope), anything)
        connection = _Connection(scope, receive, send, limits, hold, memory, capability, self._manager.draining)
        try:
            await connection.serve()
        finally:
            connection.release_held()
            await memory.forget_all()


class _Connection:
    """One connection: its messages are read ahead, and answered one at a time."""

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        limits: Limits,
        hold: Callable[[int], bool],
        memory: ConnectionMemory,
        capability: Capability[None],
        draining: asyncio.Event,
    ) -> None:
        """`hold` counts more held bytes, or fewer with a negative number; false where that is too much."""
        self._scope = scope
        self._receive = receive
        self._send = send
        self.capability = capability
        self.is_over = False
        """Its client may have no more."""
        self._draining = draining
        self._reader = FrameReader(limits.body_bytes)
        self._depth = limits.json_depth
        self._messages: asyncio.Queue[bytes] = asyncio.Queue(maxsize=1)
        self._left = asyncio.Event()
        self._code = NORMAL
        self._memory = memory
        self._hold = hold
        self._held = 0
        self._waiting = 0

    async def serve(self) -> None:
        reading = asyncio.create_task(self._read(), name="reads a WebSocket")
        waiting = asyncio.create_task(self._draining.wait(), name="waits for the end of the server")
        try:
            async with asyncio.timeout(SECONDS):
                while not self.is_over and (message := await self._next(reading, waiting)) is not None:
                    await self._answer(message)
        except TimeoutError:
            self._code = GOING_AWAY
        finally:
            for task in (reading, waiting):
                task.cancel()
            await asyncio.wait({reading, waiting})
        await self._send({"type": "http.response.body", "body": close_frame(self._code), "more_body": False})

    async def _next(self, reading: "asyncio.Task[None]", waiting: "asyncio.Task[bool]") -> bytes | None:
        """Return the next message; None at the end."""
        getting = asyncio.create_task(self._messages.get())
        try:
            await asyncio.wait({getting, reading, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if getting.done():
                self._waiting = 0
                self._note_held()
                return getting.result()
            if waiting.done():
                self._code = GOING_AWAY
            return None
        finally:
            getting.cancel()

    async def _read(self) -> None:
        """Read until the client disconnects, closes, or sends an invalid frame."""
        try:
            while True:
                event = await self._receive()
                if event["type"] == "http.disconnect":
                    return
                body = event["body"]
                for start in range(0, len(body), SLICE):
                    if start:
                        await asyncio.sleep(0)
                    if await self._take(body[start : start + SLICE]):
                        return
                if not self._note_held():
                    raise FrameError(TRY_LATER, "too many large messages are on their way")
        except FrameError as error:
            self._code = error.code
        finally:
            self._left.set()

    async def _take(self, data: bytes) -> bool:
        """Handle received bytes; return whether the client has closed."""
        for kind, payload in self._reader.feed(data):
            if kind == TEXT:
                if self._messages.full():
                    raise FrameError(TOO_MANY, "one response is made at a time")
                self._messages.put_nowait(payload)
                self._waiting = len(payload)
            elif kind == PING:
                await self._put(frame(PONG, payload))
            elif kind == CLOSE:
                return True
        return False

    def _note_held(self) -> bool:
        held_bytes = self._reader.held + self._waiting
        growth = held_bytes - self._held
        self._held = held_bytes
        return self._hold(growth)

    def release_held(self) -> None:
        """Release the held bytes."""
        self._hold(-self._held)

    async def _put(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def _answer(self, message: bytes) -> None:
        """Answer one message by an inner request."""
        try:
            is_large = len(message) > LARGE_BODY
            if is_large:
                fields = await asyncio.to_thread(self._fields, message)
            else:
                fields = self._fields(message)
            kind = read_value(fields.get("type", NULL))
            if kind != "response.create":
                raise ChatError(
                    400, "Messages here are of the type 'response.create'.", param="type", code="invalid_value"
                )
        except ChatError as error:
            await self._put_error(error.status, read_value(written_here(in_openais_shape(error))))
            return
        except UnicodeDecodeError:
            self._code = NOT_TEXT
            self._left.set()
            return
        request_fields: dict[str, Any] = {name: value for name, value in fields.items() if name not in IGNORED}
        parent = read_value(fields.get("previous_response_id", NULL))
        turn = _SocketTurn(self, _encode({**request_fields, "stream": True}))
        await self._scope["app"](self._request(), turn.receive, turn.send)
        if not turn.succeeded and isinstance(parent, str):
            await self._memory.forget(parent)

    def _fields(self, message: bytes) -> Fields:
        return read_fields(open_body(message), self._depth)

    def _request(self) -> Scope:
        passed_headers = [(name, value) for name, value in self._scope["headers"] if name not in NOT_SENT]
        headers = [header for header in passed_headers if not header[0].startswith(b"sec-websocket-")]
        return {
            **{name: value for name, value in self._scope.items() if name not in OF_ONE_REQUEST},
            "method": "POST",
            "headers": [*headers, (b"content-type", b"application/json")],
            CONNECTION_MEMORY: self._memory,
        }

    async def _end(self, error: ChatError) -> None:
        """Tell a client that it may have no more, and end the connection with the response under way."""
        self.is_over = True
        self._code = FORBIDDEN
        self._left.set()
        await self._put_error(error.status, error.envelope())

    async def _put_error(self, status: int, body: Mapping[str, Any]) -> None:
        await self._put(frame(TEXT, _encode({"type": "error", "status": status, **body})))


class _SocketTurn:
    """One inner request in ASGI, whose answer is sent as messages."""

    def __init__(self, connection: _Connection, body: bytes) -> None:
        self._connection = connection
        self._body = body
        self._is_sent = False
        self._status = 0
        self._refusal = b""
        self.succeeded = False

    async def receive(self) -> Message:
        if not self._is_sent:
            self._is_sent = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._connection._left.wait()  # noqa: SLF001 - two halves of one thing
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
        elif self._status != 200:
            self._refusal += message.get("body", b"")
            if not message.get("more_body"):
                await self._connection._put_error(self._status, read_value(written_here(self._refusal)))  # noqa: SLF001
        elif body := message.get("body", b""):
            if self._connection.is_over:
                return
            try:
                self._connection.capability.ask()
            except ChatError as error:
                await self._connection._end(error)  # noqa: SLF001
                return
            # Events are never split: each is written in one piece.
            for event in body.split(b"\n\n"):
                name, _, data = event.partition(b"\ndata: ")
                if data:
                    self.succeeded = self.succeeded or name in _SUCCESSES
                    await self._connection._put(frame(TEXT, data))  # noqa: SLF001


_SUCCESSES: Final = frozenset({b"event: response.completed", b"event: response.incomplete"})
