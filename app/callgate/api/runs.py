"""`/v1/runs`: what was recorded of the requests that were answered, and `/v1/feed`: what happens now."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec
import structlog
from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from callgate.api.errors import encode, envelope_schema, in_path
from callgate.api.middleware import context_of
from callgate.auth.keys import Caller
from callgate.conversation.errors import ChatError
from callgate.recorder.recorder import Feed, Recorder
from callgate.recorder.row import Recording, RunRow
from callgate.recorder.store import RunFilter, StoreUnusable
from callgate.runtime.manager import RuntimeManager

MOST: Final = 200
"""Runs of one page."""
KEEP_ALIVE_SECONDS: Final = 15.0
"""A feed says something at least this often, so that nobody between takes it for dead."""

audit = structlog.get_logger("callgate.audit")


def run_routes(manager: RuntimeManager) -> APIRouter:
    router = APIRouter(tags=["runs"])
    error = {"content": {"application/json": {"schema": envelope_schema()}}}
    forbidden: dict[int | str, dict[str, Any]] = {403: {"description": "This key may not see runs.", **error}}
    missing: dict[int | str, dict[str, Any]] = {404: {"description": "No such run, or not for this key.", **error}}

    def recorder() -> Recorder:
        return manager.shared.recorder

    def seer(request: Request) -> tuple[Caller, str | None]:
        """Who asks, and whose runs it may see: None for everybody's."""
        context = context_of(request.scope)
        context.route = "runs"
        caller = context.caller
        assert caller is not None, "the middleware lets nobody in without a caller"
        if manager.current.may_see_all(caller):
            return caller, None
        if caller.see == "own":
            return caller, caller.name
        raise ChatError(
            403,
            "This key may not see runs (`see: own` or `see: all`).",
            type="permission_error",
            code="see_not_allowed",
        )

    async def one(request: Request) -> Recording:
        _, only = seer(request)
        id = request.path_params["id"]
        found: Recording | None = await asyncio.to_thread(_usable, recorder().get, id)
        if found is None or only not in (None, found.row.key):
            raise _no_such_run(id)
        return found

    @router.get("/v1/runs", summary="Recorded runs, the newest first", responses=forbidden)
    async def list_runs(request: Request) -> Response:
        _, only = seer(request)
        query = request.query_params
        wanted = RunFilter(
            model=query.get("model"),
            key=only or query.get("key"),
            state=query.get("state"),
            odd=query.get("odd", "") in {"1", "true", "on"},
            since=_number(query.get("since"), "since"),
            until=_number(query.get("until"), "until"),
            **_after(query.get("after")),
        )
        if only is not None and query.get("key") not in (None, only):
            return _json({"object": "list", "data": [], "next": None})
        count = min(int(_number(query.get("limit"), "limit") or 50), MOST)
        rows = await asyncio.to_thread(_usable, recorder().page, wanted, max(count, 1))
        cursor = f"{rows[-1].began!r}~{rows[-1].id}" if len(rows) == count else None
        return _json({"object": "list", "data": [_facts(row) for row in rows], "next": cursor})

    @router.get(
        "/v1/runs/{id}",  # noqa: FAST003 - read from the request, see `in_path`
        summary="One run: its events, and with `content=1` what was said",
        responses=forbidden | missing,
        openapi_extra=in_path("id"),
    )
    async def get_run(request: Request) -> Response:
        found = await one(request)
        if "text/event-stream" in request.headers.get("accept", ""):
            return StreamingResponse(_live(recorder(), found, request), media_type="text/event-stream")
        facts = _facts(found.row) | {"events": found.events}
        if request.query_params.get("content") in {"1", "true", "on"}:
            if found.content:
                caller, _ = seer(request)
                audit.info("run_content_read", by=caller.name, run=found.row.id)
            facts["content"] = found.content
        return _json(facts)

    @router.delete(
        "/v1/runs/{id}",  # noqa: FAST003
        summary="Remove what was recorded of a run",
        status_code=204,
        responses=forbidden | missing,
        openapi_extra=in_path("id"),
    )
    async def delete_run(request: Request) -> Response:
        found = await one(request)
        caller, only = seer(request)
        if only is not None:
            raise ChatError(
                403, "Removing runs needs a key with `see: all`.", type="permission_error", code="see_not_allowed"
            )
        if not await asyncio.to_thread(_usable, recorder().delete, found.row.id):
            raise _no_such_run(found.row.id)
        audit.info("run_deleted", by=caller.name, run=found.row.id)
        return Response(status_code=204)

    @router.get(
        "/v1/feed", summary="What happens now: runs that begin and end, and calls that wait", responses=forbidden
    )
    async def feed(request: Request) -> Response:
        _, only = seer(request)
        watching = recorder().watch()
        if watching is None:
            raise ChatError(503, "Too many are watching already.", code="too_many_watchers", retry_after=10)
        return _FeedResponse(recorder(), watching, only)

    return router


class _FeedResponse(StreamingResponse):
    """Gives the watcher's place back however it ends, also where not one byte of it could be sent."""

    def __init__(self, recorder: Recorder, watching: Feed, only: str | None) -> None:
        super().__init__(_feed(watching, only), media_type="text/event-stream")
        self._recorder = recorder
        self._watching = watching

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._recorder.unwatch(self._watching)


async def _feed(watching: Feed, only: str | None) -> AsyncIterator[bytes]:
    yield b": connected\n\n"
    while True:
        try:
            async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                kind, facts = await watching.get()
        except TimeoutError:
            yield b": still here\n\n"
            continue
        if kind == "end":
            return
        if isinstance(facts, RunRow):
            if only in (None, facts.key):
                yield _event(kind, _facts(facts))
        elif only is None:
            yield _event(kind, facts)


async def _live(recorder: Recorder, found: Recording, request: Request) -> AsyncIterator[bytes]:
    """The events of a run: those that were, and those that come."""
    async for event in recorder.follow(found):
        yield _event("event", event)


def _event(kind: str, value: Any) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + encode(value) + b"\n\n"


def _facts(row: RunRow) -> dict[str, Any]:
    return {"object": "run", **msgspec.structs.asdict(row), "odd": row.is_odd}


def _usable(read: Any, *arguments: Any) -> Any:
    try:
        return read(*arguments)
    except StoreUnusable as failure:
        raise ChatError(503, f"The recorded runs cannot be read: {failure}", code="runs_unusable") from failure


def _after(cursor: str | None) -> dict[str, Any]:
    if not cursor:
        return {}
    began, mark, id = cursor.partition("~")
    if not mark:
        raise ChatError(400, "`after` is not a cursor of this list.", param="after", code="invalid_cursor")
    return {"before": _number(began, "after"), "before_id": id}


def _number(text: str | None, param: str) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if value != value or value in (float("inf"), float("-inf")):  # noqa: PLR0124 - not a number is not itself
        raise ChatError(400, f"`{param}` should be a number.", param=param, code="invalid_number")
    return value


def _no_such_run(id: str) -> ChatError:
    return ChatError(404, f"No run `{id[:64]}` was recorded here.", code="run_not_found")


def _json(value: Any) -> Response:
    return Response(encode(value), media_type="application/json", headers={"cache-control": "no-store"})
