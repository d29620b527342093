"""Live events as server-sent events: `/v1/feed`, and the events of one run."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from callgate.api.answers import ClientDisconnected, run_unless_disconnected
from callgate.api.errors import encode, envelope_schema
from callgate.api.rights import StandingRights, caller_of, seen_by
from callgate.api.run_facts import facts_of
from callgate.auth.keys import Caller
from callgate.conversation.errors import ChatError
from callgate.recorder.recorder import Feed, Recorder
from callgate.recorder.row import Recording, RunRow
from callgate.runtime.manager import RuntimeManager
from callgate.runtime.run_news import RunNews
from callgate.runtime.runtime import Runtime

KEEP_ALIVE_SECONDS: Final = 15.0
"""The longest silence, so that proxies do not close the connection."""
ELSEWHERE: Final = frozenset({"cross-site", "same-site"})
"""Values of `Sec-Fetch-Site` for requests of other origins; another port is the same site."""
KINDS: Final[Mapping[str, str]] = {"runs": "run", "approvals": "approval", "servers": "server", "config": "config"}
"""The kinds that may be requested, and the names of their events."""


def feed_routes(manager: RuntimeManager) -> APIRouter:
    router = APIRouter(tags=["runs"])
    error = {"content": {"application/json": {"schema": envelope_schema()}}}
    kinds = {
        "name": "kinds",
        "in": "query",
        "schema": {"type": "string"},
        "description": "`runs`, `approvals`, `servers`, `config`, with commas between. All that the key may see where it is left out.",
    }

    @router.get(
        "/v1/feed",
        summary="What happens now: runs that begin and end, calls that wait for approval, servers that come and go",
        responses={
            200: {
                "description": "Server-sent events.",
                "content": {"text/event-stream": {"schema": {"type": "string"}}},
            },
            403: {"description": "This key may see none of it.", **error},
            503: {"description": "Too many are watching.", **error},
        },
        openapi_extra={"parameters": [kinds]},
    )
    async def feed(request: Request) -> Response:
        asked = request.query_params.get("kinds")
        _, only = _wanted(asked, manager.current, caller_of(request, "feed"))
        recorder = manager.shared.recorder
        give_back = take_place(recorder, request.headers, only)
        watching = recorder.watch()
        return WatchResponse(
            _feed(watching, _Rights(manager, request, asked), manager.run_news),
            give_back,
            lambda: recorder.unwatch(watching),
        )

    return router


def take_place(recorder: Recorder, headers: Mapping[str, str], only: str | None) -> Callable[[], None]:
    """Take a watcher's place for the runs of one key or, with None, of all; return the function that releases it."""
    if headers.get("sec-fetch-site") in ELSEWHERE and "origin" not in headers:
        # An image or frame in a foreign page cannot read the response, but a few of them would take all places.
        raise ChatError(403, "This web page may not watch this server.", code="origin_not_allowed")
    if not recorder.reserve_watcher(only):
        message = "Too many are watching already."
        raise ChatError(503, message, type="server_error", code="too_many_watchers", retry_after=10)
    return partial(recorder.release_watcher, only)


def followed(
    recorder: Recorder, run: Recording, rights: StandingRights, headers: Mapping[str, str], only: str | None
) -> "WatchResponse":
    """Return the response with the events of a run so far, those that follow, and its row at the end."""
    return WatchResponse(_run(recorder, run, rights), take_place(recorder, headers, only))


class WatchResponse(StreamingResponse):
    """Releases the watcher's place at the end, also where nothing could be sent."""

    def __init__(self, body: AsyncIterator[bytes], *at_end: Callable[[], None]) -> None:
        super().__init__(body, media_type="text/event-stream", headers={"cache-control": "no-store"})
        self._at_end = at_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            # Starlette's own way would leave a cycle of references for each client that leaves.
            await run_unless_disconnected(self.stream_response(send), receive)
        except ClientDisconnected:
            pass
        finally:
            for end in self._at_end:
                end()


def _wanted(asked: str | None, runtime: Runtime, caller: Caller) -> tuple[frozenset[str], str | None]:
    """Return the kinds of events to send, and the key whose runs are sent, None for all. Raises where no kind is left."""
    names = frozenset(KINDS) if asked is None else frozenset(name.strip() for name in asked.split(","))
    if unknown := names - KINDS.keys():
        raise ChatError(
            400, f"Unknown kind {min(unknown)[:40]!r}; use {', '.join(KINDS)}.", param="kinds", code="invalid_value"
        )
    wanted, only = {KINDS[name] for name in names}, None
    if not runtime.may_approve(caller):
        wanted.discard("approval")
    if not runtime.may_administer(caller):
        wanted -= {"server", "config"}
    if "run" in wanted and (caller.see != "none" or not wanted - {"run"}):
        only = seen_by(runtime, caller)
    elif "run" in wanted and not runtime.may_see_all(caller):
        wanted.discard("run")
    if not wanted:
        raise ChatError(403, "This key may see none of it.", type="permission_error", code="see_not_allowed")
    return frozenset(wanted), only


class _Rights(StandingRights):
    """What of the feed a caller may see."""

    def __init__(self, manager: RuntimeManager, request: Request, asked: str | None) -> None:
        super().__init__(manager, request)
        self._asked = asked

    def now(self) -> tuple[frozenset[str], str | None] | None:
        """Return the kinds of events and the key whose runs are sent; None where it may see nothing any more."""
        caller = self.caller()
        if caller is None:
            return None
        try:
            return _wanted(self._asked, self._manager.current, caller)
        except ChatError:
            return None


async def _feed(watching: Feed, rights: "_Rights", others: RunNews | None) -> AsyncIterator[bytes]:
    """Yield events as long as the caller may see any. `others`: the news of other processes."""
    yield b": connected\n\n"
    count = 0
    while True:
        if others is not None:
            others.watch()
        try:
            async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                kind, facts = await watching.get()
        except TimeoutError:
            if rights.now() is None:
                return
            yield b": still here\n\n"
            continue
        if kind == "end":
            return
        allowed = rights.now()
        if allowed is None:
            return
        wanted, only = allowed
        if kind in wanted and (not isinstance(facts, RunRow) or only in (None, facts.key)):
            count += 1
            yield _event(kind, facts_of(facts) if isinstance(facts, RunRow) else facts, count)


async def _run(recorder: Recorder, run: Recording, rights: StandingRights) -> AsyncIterator[bytes]:
    count = 0
    async for event in recorder.follow(run, KEEP_ALIVE_SECONDS):
        if not _may_see(rights, run):
            return
        if event is None:
            yield b": still here\n\n"
            continue
        count += 1
        yield _event("event", event, count)
    ended = await asyncio.to_thread(recorder.get, run.row.id)
    if ended is not None and _may_see(rights, run):
        yield _event("run", facts_of(ended.row), count + 1)


def _may_see(rights: StandingRights, run: Recording) -> bool:
    may_see, only = rights.seen()
    return may_see and only in (None, run.row.key)


def _event(kind: str, value: Any, id: int) -> bytes:
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (id, kind.encode(), encode(value))
