"""The ASGI middleware of all requests: assigns an id, authenticates, limits, and writes the access log.

Every path that is not listed as open needs a valid key. Pure ASGI, because frameworks hide when the client disconnects.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from callgate.api.answers import (
    IS_MASKED,
    PieceSender,
    SendPiece,
    WholeSender,
    encoded,
    send_whole,
    start_message,
)
from callgate.api.bodies import LargeBodies
from callgate.api.cors import METHODS, cors_headers, preflight_headers
from callgate.api.errors import (
    ANTHROPIC_VERSION,
    FAILED_AFTER_WRITE,
    MESSAGES,
    Aftermath,
    as_chat_error,
    error_body,
    shutting_down,
    status_at,
)
from callgate.api.protected_resource import challenge_with_metadata, has_metadata
from callgate.callers.admission import Place
from callgate.callers.caller import Caller
from callgate.callers.rights import CallerMemory
from callgate.callers.tokens import KeysWanted, TokenRefused
from callgate.config import redaction
from callgate.config.secret_mask import Needles, SecretMask
from callgate.conversation.errors import ChatError
from callgate.conversation.events import GuardrailJudged
from callgate.conversation.ids import new_request_id
from callgate.runtime.manager import RuntimeManager
from callgate.runtime.runtime import Runtime
from callgate.telemetry.logs import Log, masked, set_log_ids

OPEN_PATHS = frozenset({"/health/live", "/health/ready", "/health"})
"""Health checks, which need no key."""


BROWSER_PATHS = frozenset({"/oauth/callback", "/oauth/client.json", "/oauth/login"})
"""What browsers and authorization servers ask for in the middle of a login. They have no key, and show something else."""


def is_page(path: str) -> bool:
    """True if a path is for a browser without a key: a file of the web page, or a step of a login."""
    return path == "/" or path.startswith("/web/") or path in BROWSER_PATHS


LIGHT_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that need no place among the running requests, so that a full server can be inspected."""

LIGHT_PATHS = ("/v1/approvals", "/admin/")
"""Paths that need no place, because running requests may be waiting for them."""

MAX_LENGTH_DIGITS = 18
"""Digits of a Content-Length."""

CONNECTION_MEMORY = "callgate.connection_memory"
"""Set in the scope of a request that came over a WebSocket."""

CONNECTION = "callgate.connection"
"""The connection of a request in its scope, where it came over the server's own protocol."""

TEXT_HEADERS = "callgate.text_headers"
"""The headers of a request in its scope, as text and by name, where it came over the server's own protocol."""

CALLER_MEMORY = "callgate.caller_memory"
"""The memory of whose key is in a head, in the scope of a request whose connection has sent the head before."""

CLIENT_CLOSED = 499
"""The status in the log for a request whose client disconnected before the answer."""

SLOW_BODY_SECONDS = 1.0
"""A body that takes longer is read under the keys of then: a revoked key works no longer than that."""

SAFE_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")

log = Log("callgate.access")


class RequestContext(msgspec.Struct, eq=False):
    """The state of one request in the middleware. Handlers may add notes for its log line."""

    headers: Mapping[str, str]
    path: str = ""
    large_bodies: LargeBodies | None = None
    """The counter of its body's bytes, if it is large."""
    connection_memory: Any = None
    """The responses that its WebSocket keeps, if it came over one."""
    request_id: str = ""
    ids: dict[str, str] = {}
    """Fields of all its log lines."""
    caller: Caller | None = None
    admitted_by: Runtime | None = None
    """The runtime that has said who its caller is."""
    generation: int = 0
    """That of the keys by which it did."""
    route: str = "other"
    """The route for metrics; never the client's text."""
    model: str = ""
    status: int = 0
    place: Place | None = None
    """Its place among the running requests."""
    aftermath: Aftermath = msgspec.field(default_factory=Aftermath)
    """The calls with side effects that were started."""
    started: float = msgspec.field(default_factory=time.perf_counter)
    notes: dict[str, Any] = {}
    judged: Sequence[GuardrailJudged] = ()
    """What hooks said of its body."""
    blocked: ChatError | None = None
    """The error that it is answered with, because a hook blocked it."""
    held_bytes: int = 0
    """The number of counted bytes."""
    own_ports: tuple[int, ...] = ()
    """The port at which its client found this server, where that matters."""

    @property
    def wrote(self) -> bool:
        """True if a client must not retry the request."""
        return bool(self.aftermath.started)

    def __post_init__(self) -> None:
        client_id = self.headers.get("x-request-id")
        if client_id is not None and SAFE_REQUEST_ID.fullmatch(client_id):
            self.request_id = client_id
            self.ids["request_id"] = masked(client_id)
        else:
            self.request_id = self.ids["request_id"] = new_request_id()

    def admit(self, caller: Caller | None, runtime: Runtime) -> None:
        """Note whose it is, by the keys that were looked at just now. Whatever it waits for afterwards, it is found out where they change."""
        self.caller = caller
        self.admitted_by = runtime
        self.generation = runtime.access.last_generation()

    def is_current(self, runtime: Runtime) -> bool:
        """Return whether nothing is known by which its caller could be refused by now, and nobody has to look."""
        return (
            runtime is self.admitted_by
            and runtime.access.last_generation() == self.generation
            and time.perf_counter() - self.started <= SLOW_BODY_SECONDS
        )

    def hold(self, size: int, largest: int) -> None:
        """Count bytes of its body, of at most `largest`. Raises `ChatError` 503 where there is no room."""
        if self.large_bodies is None:
            return
        if not self.large_bodies.grow(self._owner, size - self.held_bytes, largest):
            raise ChatError(
                503,
                "Too many large requests are under way. Try again in a moment.",
                type="server_error",
                code="over_capacity",
                retry_after=1,
            )
        self.held_bytes = size

    def release_body(self) -> None:
        """Release the counted bytes of its body."""
        if self.held_bytes and self.large_bodies is not None:
            self.large_bodies.shrink(self._owner, self.held_bytes)
            self.held_bytes = 0

    @property
    def _owner(self) -> str:
        if self.caller is None:
            return ""
        return self.caller.name

    def error_body(self, error: ChatError) -> bytes:
        """Encode an error in the format that clients of this path expect."""
        return error_body(error, self.path, self.request_id, self.headers)


class Middleware:
    """Wraps the whole application.

    `routes_fast`: routes by method and path that are called past the framework, whose routing would double the cost of a small
    request. Each answers as it does through the framework, for every request.
    """

    def __init__(
        self, app: ASGIApp, manager: RuntimeManager, routes_fast: Mapping[tuple[str, str], ASGIApp] | None = None
    ) -> None:
        self._app = app
        self._manager = manager
        self._routes_fast = routes_fast or {}
        self._large_bodies = LargeBodies()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method = scope["method"]
        path = scope["path"]
        headers = scope.get(TEXT_HEADERS) or read_headers(scope)
        context = scope["context"] = RequestContext(headers, path, self._large_bodies, scope.get(CONNECTION_MEMORY))
        request_id = context.request_id.encode()
        marks = [(b"x-request-id", request_id)]
        if path.startswith(MESSAGES) or ANTHROPIC_VERSION in headers:
            marks.append((b"request-id", request_id))
        if "origin" in headers:
            marks += encoded(cors_headers(headers, self._origins))
        route_fast = self._routes_fast.get((method, path))
        if route_fast is None and path[-1:] == "/" and path != "/":
            path = scope["path"] = path.rstrip("/") or "/"
            route_fast = self._routes_fast.get((method, path))

        send_marked = masked_send(send, context, marks)
        # Never reset: the server runs each request in a context of its own.
        set_log_ids(context.ids)
        try:
            if route_fast is None and method == "OPTIONS":
                await self._answer_options(context, send_marked)
                return
            if route_fast is None and method == "HEAD":
                method = "GET"
                scope = {**scope, "method": method}  # a HEAD is handled as GET; the server sends only the response head
                route_fast = self._routes_fast.get((method, path))
            runtime = self._manager.current
            _check_length(headers.get("content-length"), runtime.limits.body_bytes)
            inner = route_fast or self._app
            try:
                caller = _caller_fast(runtime, scope, headers) if route_fast else _caller(runtime, path, context)
            except KeysWanted as wanted:
                await wanted.fetch()
                caller = _caller(runtime, path, context)
            context.admit(caller, runtime)
            _count_connection(scope, caller)
            is_light = route_fast is None and (method in LIGHT_METHODS or path.startswith(LIGHT_PATHS))
            if caller is None or is_light:
                await inner(scope, receive, send_marked)
            else:
                parallel = caller.allowance.parallel
                with runtime.admission.place_now(parallel, caller.person) or await runtime.admission.request(
                    caller.name, parallel, caller.person
                ) as context.place:
                    await inner(scope, receive, send_marked)
        except Exception as failure:  # noqa: BLE001 - the last place where a failure can still become an answer
            # Without the frames it went through: one that still names it would be in a cycle with it.
            await self._refuse(as_chat_error(failure).with_traceback(None), context, send_marked, scope)
        except asyncio.CancelledError:
            # Only the server cancels a whole request, at the end of the drain.
            await self._refuse(shutting_down(), context, send_marked, scope)
        finally:
            self._end(scope, context)

    @property
    def _origins(self) -> Sequence[str]:
        return self._manager.current.config.server.cors_origins

    async def _answer_options(self, context: RequestContext, send: Send) -> None:
        """Answer an OPTIONS request, such as a browser's preflight, which has no key."""
        fields = {"allow": METHODS}
        if "access-control-request-method" in context.headers:
            allowed = preflight_headers(context.headers, self._origins)
            if allowed is None:
                message = (
                    "This web page may not call this server. Add its origin to `server.cors_origins` if it should."
                )
                raise ChatError(403, message, type="permission_error", code="origin_not_allowed")
            fields = allowed
        await send(start_message(204, fields))
        await send({"type": "http.response.body", "body": b""})

    async def _refuse(self, error: ChatError, context: RequestContext, send: Send, scope: Scope) -> None:
        error = context.aftermath.client_error(error)
        context.notes.setdefault("error", error.code or error.type)
        if not context.status:
            if error.status == 401:
                headers = {"www-authenticate": self._challenge(error, context, scope)}
            else:
                headers = {}
            if context.wrote:
                headers["x-should-retry"] = "false"
            await send_whole(send, error.status, context.error_body(error), headers, error)

    def _challenge(self, error: ChatError, context: RequestContext, scope: Scope) -> str:
        config = self._manager.current.config
        scheme = scope.get("scheme", "http")
        return challenge_with_metadata(challenge_of(error), config, context.path, context.headers, scheme)

    def _end(self, scope: Scope, context: RequestContext) -> None:
        if context.held_bytes:
            context.release_body()
        seconds = time.perf_counter() - context.started
        status = context.status or CLIENT_CLOSED
        self._manager.metrics.request(context.route, status, context.model, seconds)
        if scope["path"] in OPEN_PATHS:
            return
        notes = context.notes
        error = notes.get("error")
        level = "info"
        # A failed stream has sent 200 before.
        if status >= 500 or (error is not None and (status == 200 or error == FAILED_AFTER_WRITE)):
            level = "warning"
        caller = context.caller
        log.write_usual(
            level,
            "request",
            {
                "method": scope["method"],
                "path": scope["path"],
                "status": status,
                "caller": None if caller is None else caller.name,
            },
            int(seconds * 10_000 + 0.5) / 10,  # `round` costs five times as much
            notes,
        )


def _check_length(length: str | None, most: int) -> None:
    if length is not None and (len(length) > MAX_LENGTH_DIGITS or int(length) > most):
        raise ChatError(413, f"The request body is larger than {most} bytes.", code="request_too_large")


def challenge_of(error: ChatError) -> str:
    """Return what a 401 asks for (RFC 6750)."""
    if isinstance(error, TokenRefused):
        return 'Bearer error="invalid_token"'
    return "Bearer"


class MarkedSend(msgspec.Struct, eq=False):
    """Adds headers to the response of a request, and notes its status. All that goes through it is masked."""

    to: Send
    context: RequestContext | None
    """Where the status is noted; None where nothing is added."""
    marks: Sequence[tuple[bytes, bytes]]
    needles: Needles | None
    mask: SecretMask | None
    """There is one if there are needles."""

    def send(self, message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            self._begin(message)
        elif self.mask is not None and not message.get(IS_MASKED):
            body = self.mask.feed(message.get("body", b""))
            if not message.get("more_body"):
                body += self.mask.finish()
            message["body"] = body
        return self.to(message)

    def _begin(self, message: Message) -> None:
        context = self.context
        if context is not None:
            if message["status"] == 503:
                message["status"] = status_at(context.path, 503)
            context.status = message["status"]
            message["headers"] = [*message.get("headers", ()), *self.marks]
        if self.mask is None or self.needles is None:
            return
        headers = message.get("headers", ())
        values = b"\n".join(map(itemgetter(1), headers))
        self.mask.is_stream = b"text/event-stream" in values
        if self.needles.suspicion(values) is not None:
            message["headers"] = [(name, self.needles.starred(value)) for name, value in headers]

    def piece_sender(self, *, is_masked: bool) -> SendPiece | None:
        """Return what sends the pieces of a body to our own server: past the mask, where they are masked already."""
        request: PieceSender | None = getattr(self.to, "__self__", None)
        if request is None or not hasattr(request, "piece_sender"):
            return None
        send_piece = request.piece_sender(is_masked=is_masked)
        if self.mask is None or is_masked or send_piece is None:
            return send_piece
        return partial(_send_masked, self.mask, send_piece)

    def send_whole(self, start: Message, body: bytes) -> Awaitable[None]:
        """Send a response whose body is whole, as the two messages of ASGI would. Our own server takes both at once."""
        request: WholeSender | None = getattr(self.to, "__self__", None)
        if request is None or not hasattr(request, "send_whole"):
            return self._send_both(start, body)
        self._begin(start)
        if self.mask is not None:
            body = self.mask.feed(body) + self.mask.finish()
        return request.send_whole(start, body)

    async def _send_both(self, start: Message, body: bytes) -> None:
        await self.send(start)
        await self.send({"type": "http.response.body", "body": body})


def _send_masked(mask: SecretMask, send_piece: SendPiece, data: bytes) -> Awaitable[None]:
    return send_piece(mask.feed(data))


def masked_send(send: Send, context: RequestContext | None = None, marks: Sequence[tuple[bytes, bytes]] = ()) -> Send:
    """Return a `send` that masks the secrets in all that it is given. It adds `marks` to the headers, and notes the status."""
    needles = redaction.current.needles
    mask = None if needles is None else SecretMask(needles)
    return MarkedSend(send, context, marks, needles, mask).send


def read_headers(scope: Scope) -> dict[str, str]:
    """Return header values by lower-case name; of a repeated one the last."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def _caller_fast(runtime: Runtime, scope: Scope, headers: Mapping[str, str]) -> Caller:
    """Return the caller of a request for a route that is not open. Equals what `access.admit` returns or raises."""
    memory: CallerMemory | None = scope.get(CALLER_MEMORY)
    if memory is None:
        return runtime.access.admit(headers)
    return memory.admit_fast(runtime.access, headers)


def _caller(runtime: Runtime, path: str, context: RequestContext) -> Caller | None:
    """Return the caller of a request; None on open routes."""
    if path in OPEN_PATHS or has_metadata(runtime.config, path):
        return None
    if is_page(path):
        runtime.access.check_origin(context.headers)
        return None
    return runtime.access.admit(context.headers)


def _count_connection(scope: Scope, caller: Caller | None) -> None:
    """Count the connection of a request in the share of its key."""
    connection = scope.get(CONNECTION)
    if connection is None or caller is None:
        return
    owner = "" if caller.anonymous else caller.name
    if owner != connection.owner or connection.in_reserve:
        connection.belong_to(owner)


def context_of(scope: Scope) -> RequestContext:
    context: RequestContext = scope["context"]
    return context
