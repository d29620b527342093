"""Live events as server-sent events: `/v1/feed`, and the events of one run."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any, Final

import structlog
from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from callgate.api.answers import ClientDisconnected, run_unless_disconnected
from callgate.api.errors import encode, envelope_schema
from callgate.api.middleware import context_of
from callgate.api.rights import Capability, caller_of, seen_by, send_while_allowed
from callgate.callers.caller import Caller
from callgate.conversation.errors import ChatError
from callgate.recorder.backlog import FellBehind
from callgate.recorder.building import recorder_behind
from callgate.recorder.recorder import Recorder
from callgate.recorder.routes.run_facts import facts_of
from callgate.recorder.watchers import Feed
from callgate.records.ports import SharedNews
from callgate.records.row import RecordedRun, RunRow
from callgate.runtime.manager import RuntimeManager
from callgate.runtime.runtime import Runtime

KEEP_ALIVE_SECONDS: Final = 15.0
"""The longest silence, so that proxies do not close the connection."""
ELSEWHERE: Final = frozenset({"cross-site", "same-site"})
"""Values of `Sec-Fetch-Site` for requests of other origins; another port is the same site."""
KINDS: Final[Mapping[str, str]] = {"runs": "run", "approvals": "approval", "servers": "server", "config": "config"}
"""The kinds that may be requested, and the names of their events."""

audit = structlog.get_logger("callgate.audit")


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
        name = caller_of(request, "feed").name
        check = partial(_allowed_kinds, request.query_params.get("kinds"))
        capability = Capability.of(manager, context_of(request.scope), check)
        _, only = capability.ask()
        recorder = recorder_behind(manager.recorder)
        give_back = take_place(recorder, request.headers, only)
        watching = recorder.watchers.watch(capability.owner())
        return WatchResponse(
            _feed(recorder, name, watching, capability, manager.run_news),
            capability,
            give_back,
            lambda: recorder.watchers.unwatch(watching),
        )

    return router


def take_place(recorder: Recorder, headers: Mapping[str, str], only: str | None) -> Callable[[], None]:
    """Take a watcher's place for the runs of one key or, with None, of all; return the function that releases it."""
    if headers.get("sec-fetch-site") in ELSEWHERE and "origin" not in headers:
        # An image or frame in a foreign page cannot read the response, but a few of them would take all places.
        raise ChatError(403, "This web page may not watch this server.", code="origin_not_allowed")
    if not recorder.watchers.reserve(only):
        message = "Too many are watching already."
        raise ChatError(503, message, type="server_error", code="too_many_watchers", retry_after=10)
    return partial(recorder.watchers.release, only)


def followed(recorder: Recorder, run: RecordedRun, request: Request, manager: RuntimeManager) -> "WatchResponse":
    """Return the response with the events of a run so far, those that follow, and its row at the end."""

    def check(runtime: Runtime, caller: Caller) -> str | None:
        only = seen_by(runtime, caller)
        if only not in (None, run.row.key):
            raise ChatError(403, "This key may not see this run.", type="permission_error", code="see_not_allowed")
        return only

    capability = Capability.of(manager, context_of(request.scope), check)
    return WatchResponse(
        _run(recorder, run, capability.owner()), capability, take_place(recorder, request.headers, capability.ask())
    )


class WatchResponse(StreamingResponse):
    """Sends events as long as its caller may see them. Releases the watcher's place at the end, also where nothing could be
    sent."""

    def __init__(self, body: AsyncIterator[bytes], capability: Capability[Any], *at_end: Callable[[], None]) -> None:
        super().__init__(body, media_type="text/event-stream", headers={"cache-control": "no-store"})
        self._capability = capability
        self._at_end = at_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def answer(send: Send) -> None:
            # Starlette's own way would leave a cycle of references for each client that leaves.
            await run_unless_disconnected(self.stream_response(send), receive)

        try:
            await send_while_allowed(answer, send, self._capability, _end)
        except ClientDisconnected:
            pass
        finally:
            for end in self._at_end:
                end()


def _end(error: ChatError, _: bytes) -> bytes:
    """Return the last event for a watcher who may see nothing any more."""
    return b"event: error\ndata: %b\n\n" % encode(error.envelope())


def _allowed_kinds(kinds: str | None, runtime: Runtime, caller: Caller) -> tuple[frozenset[str], str | None]:
    """Return the kinds of events to send, and the key whose runs are sent, None for all. Raises where no kind is left."""
    if kinds is None:
        names = frozenset(KINDS)
    else:
        names = frozenset(name.strip() for name in kinds.split(","))
    if unknown := names - KINDS.keys():
        raise ChatError(
            400, f"Unknown kind {min(unknown)[:40]!r}; use {', '.join(KINDS)}.", param="kinds", code="invalid_value"
        )
    kinds_wanted = {KINDS[name] for name in names}
    only = None
    if not runtime.access.may_approve(caller):
        kinds_wanted.discard("approval")
    if not runtime.access.may_administer(caller):
        kinds_wanted -= {"server", "config"}
    if "run" in kinds_wanted and (caller.see != "none" or not kinds_wanted - {"run"}):
        only = seen_by(runtime, caller)
    elif "run" in kinds_wanted and not runtime.access.may_see_all(caller):
        kinds_wanted.discard("run")
    if not kinds_wanted:
        raise ChatError(403, "This key may see none of it.", type="permission_error", code="see_not_allowed")
    return frozenset(kinds_wanted), only


async def _feed(
    recorder: Recorder,
    name: str,
    watching: Feed,
    capability: Capability[tuple[frozenset[str], str | None]],
    others: SharedNews | None,
) -> AsyncIterator[bytes]:
    """Yield what the caller may see. `name`: of its key; `others`: the news of other processes."""
    yield b": connected\n\n"
    count = 0
    has_told_questions = False
    while True:
        if others is not None:
            others.watch()
        try:
            async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                kind, facts = await watching.get()
        except TimeoutError:
            yield b": still here\n\n"
            continue
        except FellBehind:
            raise _fell_behind() from None
        if kind == "end":
            return
        kinds_wanted, only = capability.ask()
        if kind in kinds_wanted and (not isinstance(facts, RunRow) or only in (None, facts.key)):
            count += 1
            if isinstance(facts, RunRow):
                if facts.question and not has_told_questions:
                    has_told_questions = True
                    audit.info("run_questions_read", by=name, runs=None)
                facts = facts_of(facts) | {"question": recorder.question_for(facts, capability.owner())}
            yield _event(kind, facts, count)


async def _run(recorder: Recorder, run: RecordedRun, owner: str) -> AsyncIterator[bytes]:
    count = 0
    try:
        async for event in recorder.follow(run, KEEP_ALIVE_SECONDS, owner):
            if event is None:
                yield b": still here\n\n"
                continue
            count += 1
            yield _event("event", event, count)
    except FellBehind:
        raise _fell_behind() from None
    ended = await asyncio.to_thread(recorder.get, run.row.id)
    if ended is not None:
        yield _event("run", facts_of(ended.row), count + 1)


def _fell_behind() -> ChatError:
    """Return the last event for a watcher that has read too slowly."""
    message = "More happened than this client has read, and what waited for it was dropped. Load the list again, and watch again."
    return ChatError(408, message, type="server_error", code="fell_behind")


def _event(kind: str, value: Any, id: int) -> bytes:
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (id, kind.encode(), encode(value))
