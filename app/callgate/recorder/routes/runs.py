"""`/v1/runs`: the recorded requests."""

import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import structlog
from fastapi import APIRouter, Request
from fastapi.responses import Response

from callgate.api.errors import encode, envelope_schema, in_path
from callgate.api.rights import caller_of, check_sees_all, seen_by
from callgate.callers.caller import owner_name, words_for
from callgate.calls.outcome import FailureKind
from callgate.calls.states import Finding, Flaw
from callgate.conversation.errors import ChatError
from callgate.recorder.building import recorder_behind
from callgate.recorder.replayable import NotReplayable
from callgate.recorder.routes.feed import feed_routes, followed
from callgate.recorder.routes.run_facts import facts_of, found_run, no_such_run, not_replayable, read_runs
from callgate.recorder.routes.texts import texts_routes
from callgate.recorder.run_filter import RunFilter
from callgate.recorder.run_search import ORDERS, summed
from callgate.records.row import STATES, Kept, RecordedRun, RunRow, wire_turn
from callgate.runtime.manager import RuntimeManager

MOST: Final = 200
"""Runs of one page."""
SORTED_RUNS: Final = 10_000
"""Runs that are sorted or added up."""
MOST_TEXT: Final = 200
NAMES_HOURS: Final = 30 * 24
YES: Final = frozenset({"1", "true", "on"})
FORMATS: Final = ("json", "curl", "recording", "otlp")

audit = structlog.get_logger("callgate.audit")


def run_routes(manager: RuntimeManager) -> APIRouter:
    router = APIRouter(tags=["runs"])
    runs = _Runs(manager)
    error = {"content": {"application/json": {"schema": envelope_schema()}}}
    forbidden: dict[int | str, dict[str, Any]] = {403: {"description": "This key may not see runs.", **error}}
    missing: dict[int | str, dict[str, Any]] = {404: {"description": "No such run, or not for this key.", **error}}
    filters = {
        "model": "Only runs of this model.",
        "key": "Only runs of this key.",
        "state": "Only runs in this state.",
        "tool": "Only runs that called this tool.",
        "outcome": "Only runs with a call, of `tool` where it is named, that ended so: `returned`, `raised`, `denied`, a flaw, …",
        "provider": "Only runs that this provider answered.",
        "finding": "Only runs with this finding.",
        "odd": "`1`: only runs that did not simply answer.",
        "q": "Only runs with this text in what is kept of them: names, and texts where they are kept.",
        "since": "Only runs that began at this moment (seconds since 1970) or later.",
        "until": "Only runs that began before this moment.",
    }
    router.get(
        "/v1/runs",
        summary="Recorded runs, the newest first",
        responses=forbidden,
        openapi_extra=_in_query(
            **filters,
            sort=f"`newest`, `oldest`, or {', '.join(f'`{order}`' for order in ORDERS)} among the newest {SORTED_RUNS}.",
            limit=f"How many, {MOST} at most.",
            after="The `next` of the page before.",
        ),
    )(runs.list_runs)
    router.get(
        "/v1/runs/totals",
        summary=f"What the newest {SORTED_RUNS} runs of a filter come to",
        responses=forbidden,
        openapi_extra=_in_query(**filters),
    )(runs.sum_runs)
    router.get(
        "/v1/runs/names",
        summary="The names by which runs can be filtered: models, keys, tools and providers of the last 30 days, findings, outcomes",
        responses=forbidden,
    )(runs.list_names)
    router.get(
        "/v1/runs/{id}",
        summary="One run: its events, and with `content=1` its texts; as server-sent events, as they come",
        responses=forbidden | missing,
        openapi_extra=in_path("id"),
    )(runs.get_run)
    router.get(
        "/v1/runs/{id}/wire/{turn}",
        summary="The bodies of a provider's answers in one turn, as they came",
        responses=forbidden | missing,
        openapi_extra={"parameters": [*in_path("id")["parameters"], *in_path("turn")["parameters"]]},
    )(runs.get_wire)
    router.get(
        "/v1/runs/{id}/export",
        summary="A run as JSON, a curl line, a recording that a test plays, or spans for a collector (OTLP in JSON)",
        responses=forbidden | missing | {409: {"description": "Too little of it is kept.", **error}},
        openapi_extra={
            "parameters": [
                *in_path("id")["parameters"],
                {"name": "as", "in": "query", "schema": {"enum": list(FORMATS), "default": "json"}},
            ]
        },
    )(runs.export_run)
    router.delete(
        "/v1/runs/{id}",
        summary="Remove what was recorded of a run",
        status_code=204,
        responses=forbidden | missing,
        openapi_extra=in_path("id"),
    )(runs.delete_run)
    router.include_router(feed_routes(manager))
    router.include_router(texts_routes(manager))
    return router


class _Runs:
    """Answers requests about recorded runs. Parameters of the path are read from the request, see `in_path`."""

    def __init__(self, manager: RuntimeManager) -> None:
        self._manager = manager
        self._recorder = recorder_behind(manager.recorder)

    async def list_runs(self, request: Request) -> Response:
        asked_filter, text, owner = self._filter(request)
        query = request.query_params
        count = max(min(int(_number(query.get("limit"), "limit") or 50), MOST), 1)
        order = query.get("sort", "newest")
        if order not in ("newest", "oldest", *ORDERS):
            orders = ", ".join(("newest", "oldest", *ORDERS))
            raise ChatError(400, f"`sort` should be one of {orders}.", param="sort", code="invalid_value")
        if asked_filter is None:
            return _page([], None)
        if order in ORDERS:
            offset = int(_number(query.get("after"), "after") or 0)
            rows, _ = await read_runs(self._recorder.matching, asked_filter, SORTED_RUNS, text, owner)
            rows = sorted(rows, key=ORDERS[order], reverse=True)[max(offset, 0) :]
            _note_questions_read(request, rows[:count])
            return _page(rows[:count], str(offset + count) if len(rows) > count else None)
        run_filter = msgspec.structs.replace(asked_filter, oldest_first=order == "oldest", **_after(query.get("after")))
        if not (run_filter.has_names or text):
            rows = await read_runs(self._recorder.page, run_filter, count, owner)
            last = rows[-1] if len(rows) == count else None
        else:
            rows, last = await read_runs(self._recorder.matching, run_filter, count, text, owner)
        _note_questions_read(request, rows)
        return _page(rows, None if last is None else f"{last.began!r}~{last.id}")

    async def sum_runs(self, request: Request) -> Response:
        run_filter, text, owner = self._filter(request)
        rows: list[RunRow] = []
        last: RunRow | None = None
        if run_filter is not None:
            rows, last = await read_runs(self._recorder.matching, run_filter, SORTED_RUNS, text, owner)
        return _json({"object": "run_totals", **summed(rows), "more": last is not None})

    async def list_names(self, request: Request) -> Response:
        only = self._only(request)
        names = await read_runs(self._recorder.names_used, int(time.time() // 3600) - NAMES_HOURS, only)
        outcomes = ["returned", *map(str, FailureKind), "denied", "expired", *map(str, Flaw), "handed_back"]
        return _json(
            {
                "object": "run_names",
                **{kind: names.get(kind, []) for kind in ("model", "key", "tool", "provider")},
                "finding": [str(finding) for finding in Finding],
                "outcome": list(dict.fromkeys(outcomes)),
                "state": list(STATES),
            }
        )

    def _filter(self, request: Request) -> tuple[RunFilter | None, str, str]:
        """Return the filter of a request, None where nothing can match, the text that is searched, and who asks."""
        only = self._only(request)
        caller = caller_of(request, "runs")
        query = request.query_params
        text = query.get("q", "").strip()
        if len(text) > MOST_TEXT:
            raise ChatError(400, f"`q` should have at most {MOST_TEXT} characters.", param="q", code="invalid_value")
        if text:
            audit.info("runs_searched", by=words_for(caller))
        run_filter = RunFilter(
            model=query.get("model"),
            key=only or query.get("key"),
            state=query.get("state"),
            odd=query.get("odd") in YES,
            tool=query.get("tool"),
            finding=query.get("finding"),
            outcome=query.get("outcome"),
            provider=query.get("provider"),
            since=_number(query.get("since"), "since"),
            until=_number(query.get("until"), "until"),
        )
        if only is not None and query.get("key") not in (None, only):
            return None, text, owner_name(caller)
        return run_filter, text, owner_name(caller)

    async def get_run(self, request: Request) -> Response:
        run = await self._run(request)
        only = self._only(request)
        if "text/event-stream" in request.headers.get("accept", ""):
            return followed(self._recorder, run, request, self._manager)
        facts = facts_of(run.row) | {"events": run.events}
        facts["replays"] = await read_runs(self._recorder.replays_of, run.row.id, only)
        if request.query_params.get("content") in YES:
            _note_content_read(request, run, "shown")
            facts["content"] = run.content
        return _json(facts)

    async def get_wire(self, request: Request) -> Response:
        run = await self._run(request)
        turn = request.path_params["turn"]
        bodies = [text for part, text in run.content.items() if wire_turn(part) == turn]
        if not bodies:
            raise ChatError(
                404,
                f"No body of turn {turn[:20]} is kept (`record.wire`, `record.wire_keep`; the demo model and answers that litellm reads have none).",
                code="wire_not_kept",
            )
        _note_content_read(request, run, "wire")
        return _json({"object": "list", "run": run.row.id, "turn": turn, "data": bodies})

    async def export_run(self, request: Request) -> Response:
        run = await self._run(request)
        form = request.query_params.get("as", "json")
        if form != "otlp":  # which has no contents
            _note_content_read(request, run, f"export {form}")
        base = self._manager.current.config.server.public_url or str(request.base_url)
        return _exported(run, form, base)

    async def delete_run(self, request: Request) -> Response:
        caller = caller_of(request, "runs")
        id = request.path_params["id"]
        if not self._manager.current.access.may_see_all(caller):
            await self._run(request)
            check_sees_all(self._manager.current, caller, "Removing runs")
        if not await read_runs(self._recorder.delete, id):  # which does not read it: one that is damaged goes too
            await self._run(request)
            raise no_such_run(id)
        audit.info("run_deleted", by=words_for(caller), run=id)
        return Response(status_code=204)

    def _only(self, request: Request) -> str | None:
        """Return the key whose runs the caller may see, None for all."""
        return seen_by(self._manager.current, caller_of(request, "runs"))

    async def _run(self, request: Request) -> RecordedRun:
        return await found_run(self._manager, request.path_params["id"], caller_of(request, "runs"))


def _note_questions_read(request: Request, rows: Sequence[RunRow]) -> None:
    amount = len([row for row in rows if row.question and row.kept in (Kept.CONTENT, Kept.CUT)])
    if amount:  # those that are kept in memory are the caller's own
        audit.info("run_questions_read", by=caller_of(request, "runs").name, runs=amount)


def _note_content_read(request: Request, run: RecordedRun, how: str) -> None:
    if run.content and run.row.kept != Kept.MEMORY:  # or they are the caller's own
        audit.info("run_content_read", by=caller_of(request, "runs").name, run=run.row.id, how=how)


def _exported(run: RecordedRun, form: str, base: str) -> Response:
    """Return a run in an export format. `base`: the server's URL, for a curl line."""
    from callgate.recorder.export import as_curl, as_facts, as_recording
    from callgate.recorder.spans import as_otlp

    try:
        match form:
            case "json":
                return _json(as_facts(run))
            case "recording":
                return _json(as_recording(run))
            case "otlp":
                return _json(as_otlp(run))
            case "curl":
                return Response(as_curl(run, base), media_type="text/plain", headers={"cache-control": "no-store"})
    except NotReplayable as why:
        raise not_replayable(run, why) from None
    raise ChatError(400, f"`as` should be one of {', '.join(FORMATS)}.", param="as", code="invalid_value")


def _in_query(**parameters: str) -> dict[str, Any]:
    described = [
        {"name": name, "in": "query", "schema": {"type": "string"}, "description": text}
        for name, text in parameters.items()
    ]
    return {"parameters": described}


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


def _page(rows: Sequence[RunRow], cursor: str | None) -> Response:
    return _json({"object": "list", "data": [facts_of(row) for row in rows], "next": cursor})


def _json(value: Any) -> Response:
    return Response(encode(value), media_type="application/json", headers={"cache-control": "no-store"})
