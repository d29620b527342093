"""`GET /v1/usage`: requests, tokens, cost and tool calls, by key, model or day, or by minute of the last hour."""

import asyncio
import re
import time
from typing import Final, Literal, get_args

from fastapi import APIRouter, Request
from fastapi.responses import Response

from callgate.api.errors import encode, envelope_schema
from callgate.api.rights import caller_of, seen_by
from callgate.conversation.errors import ChatError
from callgate.recorder.building import recorder_behind
from callgate.recorder.last_hour import MINUTES, minute_of
from callgate.recorder.store import USAGE_DAYS, StoreUnusable, day_of
from callgate.recorder.usage import grouped
from callgate.runtime.manager import RuntimeManager

By = Literal["key", "model", "day", "minute"]
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
        by = request.query_params.get("by", "key")
        days = request.query_params.get("days", str(USUAL_DAYS))
        if by not in get_args(By):
            raise ChatError(400, f"`by` should be one of {', '.join(get_args(By))}.", param="by", code="invalid_value")
        if not re.fullmatch("[0-9]{1,3}", days) or not 1 <= int(days) <= USAGE_DAYS:
            raise ChatError(400, f"`days` should be 1 to {USAGE_DAYS}.", param="days", code="invalid_value")
        recorder = recorder_behind(manager.recorder)
        if by == "minute":
            # In a thread: what is being written at this moment is waited for, and a file may be locked for seconds.
            used = await asyncio.to_thread(recorder.last_hour)
            since = minute_of(time.time() - (MINUTES - 1) * 60)
        else:
            since = day_of(time.time() - (int(days) - 1) * 86_400)
            try:
                used = await asyncio.to_thread(recorder.usage, since)
            except StoreUnusable as failure:
                message = f"What was used cannot be read: {failure}"
                raise ChatError(503, message, type="server_error", code="usage_unreadable") from failure
        mine = [usage_of_key for usage_of_key in used if only in (None, usage_of_key.key)]
        prices = {model: runtime.prices.of(model) for model in {usage_of_key.model for usage_of_key in mine}}
        return Response(
            encode(
                {
                    "object": "list",
                    "since": since,
                    "by": by,
                    "data": grouped(mine, "day" if by == "minute" else by, prices),
                }
            ),
            media_type="application/json",
            headers={"cache-control": "no-store"},
        )

    return router
