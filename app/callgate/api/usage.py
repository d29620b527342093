"""`GET /v1/usage`: requests, tokens, cost and tool calls, by key, model or day."""

import asyncio
import time
from typing import Final, Literal, get_args

from fastapi import APIRouter, Request
from fastapi.responses import Response

from callgate.api.errors import encode, envelope_schema
from callgate.api.rights import caller_of, seen_by
from callgate.conversation.errors import ChatError
from callgate.recorder.row import grouped
from callgate.recorder.store import USAGE_DAYS, StoreUnusable, day_of
from callgate.runtime.manager import RuntimeManager

By = Literal["key", "model", "day"]
USUAL_DAYS: Final = 7


def usage_routes(manager: RuntimeManager) -> APIRouter:
    router = APIRouter(tags=["runs"])
    error = {"content": {"application/json": {"schema": envelope_schema()}}}

    @router.get(
        "/v1/usage",
        summary="What was used: requests, tokens, cost and tool calls",
        responses={403: {"description": "This key may not see what was used.", **error}},
    )
    async def usage(request: Request) -> Response:
        runtime = manager.current
        only = seen_by(runtime, caller_of(request, "usage"), "see what was used")
        by, days = request.query_params.get("by", "key"), request.query_params.get("days", str(USUAL_DAYS))
        if by not in get_args(By):
            raise ChatError(400, "`by` should be one of key, model, day.", param="by", code="invalid_value")
        if not days.isascii() or not days.isdigit() or not 1 <= int(days[:6]) <= USAGE_DAYS:
            raise ChatError(400, f"`days` should be 1 to {USAGE_DAYS}.", param="days", code="invalid_value")
        since = day_of(time.time() - (int(days) - 1) * 86_400)
        try:
            used = await asyncio.to_thread(manager.shared.recorder.usage, since)
        except StoreUnusable as failure:
            raise ChatError(503, f"What was used cannot be read: {failure}", code="usage_unreadable") from failure
        mine = [each for each in used if only in (None, each.key)]
        prices = {model: await runtime.prices.of(model) for model in {each.model for each in mine}}
        return Response(
            encode({"object": "list", "since": since, "by": by, "data": grouped(mine, by, prices)}),
            media_type="application/json",
            headers={"cache-control": "no-store"},
        )

    return router
