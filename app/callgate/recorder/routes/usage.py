"""`GET /v1/usage` and `GET /v1/stats`: what was used and what came of it, for programs and for the page's Overview."""

import asyncio
import re
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar, get_args

from fastapi import APIRouter, Request
from fastapi.responses import Response

from callgate.api.errors import encode, envelope_schema
from callgate.api.rights import caller_of, seen_by
from callgate.conversation.errors import ChatError
from callgate.recorder.building import recorder_behind
from callgate.recorder.overview import Overview
from callgate.recorder.recorder import Recorder
from callgate.recorder.store import StoreUnusable
from callgate.recorder.usage import day_of
from callgate.recorder.usage_report import (
    MOST_ROWS,
    USUAL_DAYS,
    Dimension,
    PriceOfModel,
    UsageReport,
    most_days,
    usage_dimensions,
)
from callgate.recorder.usage_tables import DAY_HOURS, HOUR_DAYS, USAGE_DAYS, HourSpan
from callgate.runtime.manager import RuntimeManager
from callgate.runtime.runtime import Runtime

SHORT_DAYS: Final = 8
"""Up to so many days the Overview has four bars a day."""


def usage_routes(manager: RuntimeManager) -> APIRouter:
    router = APIRouter(tags=["runs"])
    error = {"content": {"application/json": {"schema": envelope_schema()}}}
    forbidden: dict[int | str, dict[str, Any]] = {403: {"description": "This key may not see what was used.", **error}}
    usage = _UsageAnswers(manager)
    router.get(
        "/v1/usage",
        summary="What was used and what came of it: requests, tokens, cost, calls, durations",
        responses=forbidden,
        openapi_extra=_in_query(
            by=f"What is added up: {', '.join(get_args(Dimension))}, several with commas between. `day` and `minute` are `interval`.",
            interval="`day`, `hour`, or `minute` of the last hour: a row for each. The whole time where it is left out.",
            days=f"How many days, today included: 1 to {USAGE_DAYS}; {HOUR_DAYS} at most for hours, tools, providers and flaws.",
        ),
    )(usage.list_usage)
    router.get(
        "/v1/stats",
        summary="The figures of the page's Overview: requests, models, keys, tools, providers and broken calls, in bars",
        responses=forbidden,
        openapi_extra=_in_query(days=f"How many days, 1 to {HOUR_DAYS}. 1: the last 24 hours."),
    )(usage.stats)
    return router


def _in_query(**parameters: str) -> dict[str, Any]:
    described = [
        {"name": name, "in": "query", "schema": {"type": "string"}, "description": text}
        for name, text in parameters.items()
    ]
    return {"parameters": described}


Result = TypeVar("Result")


class _UsageAnswers:
    """Answers requests about usage."""

    def __init__(self, manager: RuntimeManager) -> None:
        self._manager = manager
        self._recorder = recorder_behind(manager.recorder)

    async def list_usage(self, request: Request) -> Response:
        runtime = self._manager.current
        key = seen_by(runtime, caller_of(request, "usage"), "see what was used")
        query = request.query_params
        by, interval = usage_dimensions(query.get("by"), query.get("interval"))
        days = _days(query.get("days"), most_days(by, interval))
        report = UsageReport(self._recorder, by, interval, days)
        self._recorder.writer.encode_waiting()
        rows = await _read(report.rows, key, runtime.prices.of)
        if len(rows) > MOST_ROWS:
            message = f"That has {len(rows)} rows, {MOST_ROWS} are the most: ask for fewer days, or for less in `by`."
            raise ChatError(400, message, param="days", code="invalid_value")
        facts = {"since": report.since, "by": query.get("by", ",".join(by)), "interval": interval}
        return _json({"object": "list", **facts, "data": rows})

    async def stats(self, request: Request) -> Response:
        runtime = self._manager.current
        key = seen_by(runtime, caller_of(request, "usage"), "see what was used")
        span = overview_span(_days(request.query_params.get("days", "1"), HOUR_DAYS), time.time())
        self._recorder.writer.encode_waiting()
        facts = await _read(_overview, self._recorder, span, key, runtime.prices.of)
        cooling = [] if key is not None else _cooling(runtime)
        return _json({"object": "stats", "key": key, **facts, "cooling": cooling})


async def _read(read: Callable[..., Result], *arguments: Any) -> Result:
    """Read usage in a thread: a file may be locked for seconds."""
    try:
        return await asyncio.to_thread(read, *arguments)
    except StoreUnusable as failure:
        message = f"What was used cannot be read: {failure}"
        raise ChatError(503, message, type="server_error", code="usage_unreadable") from failure


def _days(text: str | None, most: int) -> int:
    days = str(USUAL_DAYS) if text is None else text
    if not re.fullmatch("[0-9]{1,3}", days) or not 1 <= int(days) <= most:
        raise ChatError(400, f"`days` should be 1 to {most}.", param="days", code="invalid_value")
    return int(days)


def overview_span(days: int, now: float) -> HourSpan:
    """Return the hours of the Overview, and how many of them a bar has."""
    hour = int(now // 3600)
    if days == 1:
        return HourSpan(hour - DAY_HOURS + 1, hour + 1)
    first = (int(now // 86_400) - days + 1) * DAY_HOURS
    if days <= SHORT_DAYS:
        return HourSpan(first, hour + 1, DAY_HOURS // 4)
    return HourSpan(first, hour + 1, DAY_HOURS)


def _overview(recorder: Recorder, span: HourSpan, key: str | None, price_of: PriceOfModel) -> dict[str, Any]:
    if key is None:
        used = recorder.usage_of_models(span)
    else:
        used = recorder.usage_in_hours(span, key)
    if span.step == 1:
        whole = HourSpan(span.since, span.until, span.until - span.since)
        of_keys = [usage for _, usage in recorder.usage_in_hours(whole, key)]
    else:
        of_keys = [usage for usage in recorder.usage(day_of(span.since * 3600)) if key in (None, usage.key)]
    first = recorder.first_hour()
    return {
        "since": span.since * 3600,
        "until": span.until * 3600,
        "step": span.step * 3600,
        "counted_since": None if first is None else first * 3600,
        "kept": "file" if recorder.has_file else "memory",
        **Overview(span, used, of_keys, recorder.shown(span, key), price_of).facts(),
    }


def _cooling(runtime: Runtime) -> list[dict[str, Any]]:
    """Return the deployments that are not asked for a while."""
    rows: list[dict[str, Any]] = []
    for deployment in runtime.catalogue.known_deployments():
        seconds = deployment.seconds_left()
        if seconds > 0:
            by = deployment.responder
            rows.append({"model": by.model, "deployment": by.deployment, "seconds": round(seconds, 1)})
    return rows


def _json(value: Any) -> Response:
    return Response(encode(value), media_type="application/json", headers={"cache-control": "no-store"})
