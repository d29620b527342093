"""The ASGI middleware of all requests: assigns an id, authenticates, limits, and writes the access log.

Every path that is not listed as open needs a valid key. Pure ASGI, because frameworks hide when the client disconnects.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Mapping, Sequence
from itertools import repeat
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from callgate.api.answers import encoded, send_whole, start_message
from callgate.api.cors import METHODS, cors_headers, preflight_headers
from callgate.api.errors import (
    FAILED_AFTER_WRITE,
    Aftermath,
    as_chat_error,
    error_body,
    is_anthropics,
    shutting_down,
    status_at,
)
from callgate.api.large_bodies import LargeBodies
from callgate.auth.admission import Place
from callgate.auth.keys import Caller
from callgate.conversation.errors import ChatError
from callgate.conversation.ids import new_request_id
from callgate.runtime.manager import RuntimeManager
from callgate.runtime.runtime import Runtime
from callgate.telemetry.logs import Log, masked, set_log_ids

OPEN_PATHS = frozenset({"/health/live", "/health/ready", "/health"})
"""Health checks, which need no key."""


def is_page(path: str) -> bool:
    """True if a path is a file of the web page, which needs no key."""
    return path == "/" or path.startswith("/web/")


LIGHT_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that need no place among the running requests, so that a full server can be inspected."""

LIGHT_PATHS = ("/v1/approvals", "/admin/")
"""Paths that need no place, because running requests may be waiting for them."""

MAX_LENGTH_DIGITS = 18
"""Digits of a Content-Length."""

HAS_PLACE = "callgate.has_place"
"""Set in the scope of an inner request that uses the place of another one."""

CLIENT_CLOSED = 499
"""The status in the log for a request whose client disconnected before the answer."""

SAFE_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")

log = Log("callgate.access")


class RequestContext(msgspec.Struct, eq=False):
    """The state of one request in the middleware. Handlers may add notes for its log line."""

    headers: Mapping[str, str]
    path: str = ""
    request_id: str = ""
    ids: dict[str, str] = {}
    """Fields of all its log lines."""
    caller: Caller | None = None
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
    large_bodies: LargeBodies | None = None
    """The counter of its body's bytes, if it is large."""
    held: int = 0
    """The number of counted bytes."""

    @property
    def wrote(self) -> bool:
        """True if a client must not retry the request."""
        return bool(self.aftermath.started)

    def __post_init__(self) -> None:
        given = self.headers.get("x-request-id")
        if given is not None and SAFE_REQUEST_ID.fullmatch(given):
            self.request_id, self.ids["request_id"] = given, masked(given)
        else:
            self.request_id = self.ids["request_id"] = new_request_id()

    def hold(self, size: int, largest: int) -> None:
        """Count bytes of its body, of at most `largest`. Raises `ChatError` 503 where there is no room."""
        if self.large_bodies is None:
            return
        if not self.large_bodies.grow(self._owner, size - self.held, largest):
            raise ChatError(
                503,
                "Too many large requests are under way. Try again in a moment.",
                type="server_error",
                code="over_capacity",
                retry_after=1,
            )
        self.held = size

    def release_body(self) -> None:
        """Release the counted bytes of its body."""
        if self.held and self.large_bodies is not None:
            self.large_bodies.shrink(self._owner, self.held)
            self.held = 0

    @property
    def _owner(self) -> str:
        return "" if self.caller is None else self.caller.name

    def error_body(self, error: ChatError) -> bytes:
        """Encode an error in the format that clients of this path expect."""
        return error_body(error, self.path, self.request_id, self.headers)


class Middleware:
    """Wraps the whole application.

    `straight`: routes by method and path that are called directly, because the framework's routing would double the cost of
    a small request.
    """

    def __init__(
        self, app: ASGIApp, manager: RuntimeManager, straight: Mapping[tuple[str, str], ASGIApp] | None = None
    ) -> None:
        self._app, self._manager = app, manager
        self._straight = straight or {}
        self._large_bodies = LargeBodies()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method, path = scope["method"], scope["path"]
        headers = read_headers(scope)
        context = scope["context"] = RequestContext(headers, path, large_bodies=self._large_bodies)
        marks = [(b"x-request-id", context.request_id.encode())]
        if is_anthropics(path, headers):
            marks.append((b"request-id", context.request_id.encode()))
        if "origin" in headers:
            marks += encoded(cors_headers(headers, self._origins))
        straight = self._straight.get((method, path))
        if straight is None and path[-1:] == "/" and path != "/":
            path = scope["path"] = path.rstrip("/") or "/"
            straight = self._straight.get((method, path))

        def send_marked(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                if message["status"] == 503:
                    message["status"] = status_at(context.path, 503)
                context.status = message["status"]
                message["headers"] = [*message.get("headers", ()), *marks]
            return send(message)  # no coroutine, because every chunk of every stream goes through here

        # Never reset: the server runs each request in a context of its own.
        set_log_ids(context.ids)
        try:
            if straight is None and method == "OPTIONS":
                await self._answer_options(context, send_marked)
                return
            if straight is None and method == "HEAD":
                method = "GET"
                scope = {**scope, "method": method}  # a HEAD is handled as GET; the server sends only the response head
                straight = self._straight.get((method, path))
            runtime = self._manager.current
            length = headers.get("content-length")
            if length is not None and (len(length) > MAX_LENGTH_DIGITS or int(length) > runtime.limits.body_bytes):
                raise ChatError(
                    413, f"The request body is larger than {runtime.limits.body_bytes} bytes.", code="request_too_large"
                )
            inner = straight or self._app
            caller = context.caller = runtime.admit(headers) if straight else _caller(runtime, path, context)
            is_light = straight is None and (method in LIGHT_METHODS or path.startswith(LIGHT_PATHS))
            if caller is None or HAS_PLACE in scope or is_light:
                await inner(scope, receive, send_marked)
            else:
                with await runtime.place(caller) as context.place:
                    await inner(scope, receive, send_marked)
        except Exception as failure:  # noqa: BLE001 - the last place where a failure can still become an answer
            await self._refuse(as_chat_error(failure), context, send_marked)
        except asyncio.CancelledError:
            # Only the server cancels a whole request, at the end of the drain.
            await self._refuse(shutting_down(), context, send_marked)
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

    async def _refuse(self, error: ChatError, context: RequestContext, send: Send) -> None:
        error = context.aftermath.client_error(error)
        context.notes.setdefault("error", error.code or error.type)
        if not context.status:
            headers = {"www-authenticate": "Bearer"} if error.status == 401 else {}
            if context.wrote:
                headers["x-should-retry"] = "false"
            await send_whole(send, error.status, context.error_body(error), headers, error)

    def _end(self, scope: Scope, context: RequestContext) -> None:
        if context.held:
            context.release_body()
        seconds = time.perf_counter() - context.started
        status = context.status or CLIENT_CLOSED
        self._manager.metrics.request(context.route, status, context.model, seconds)
        if scope["path"] in OPEN_PATHS:
            return
        error = context.notes.get("error")
        # A failed stream has sent 200 before.
        has_failed = status >= 500 or (error is not None and (status == 200 or error == FAILED_AFTER_WRITE))
        say = log.warning if has_failed else log.info
        say(
            "request",
            method=scope["method"],
            path=scope["path"],
            status=status,
            caller=context.caller.name if context.caller else None,
            ms=round(seconds * 1000, 1),
            **context.notes,
        )


def read_headers(scope: Scope) -> dict[str, str]:
    """Return header values by lower-case name; of a repeated one the last."""
    if not scope["headers"]:
        return {}
    names, values = zip(*scope["headers"], strict=True)
    return dict(zip(map(str, names, _LATIN_1), map(str, values, _LATIN_1), strict=True))


_LATIN_1 = repeat("latin-1")


def _caller(runtime: Runtime, path: str, context: RequestContext) -> Caller | None:
    """Return the caller of a request; None on open routes."""
    if path in OPEN_PATHS:
        return None
    if is_page(path):
        runtime.check_origin(context.headers)
        return None
    return runtime.admit(context.headers)


def context_of(scope: Scope) -> RequestContext:
    context: RequestContext = scope["context"]
    return context
