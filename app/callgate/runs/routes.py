"""Routes of durable runs: `/v1/chat/completions/{id}` returns one, another route cancels it."""

from typing import Any, Final

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response

from callgate.api.errors import encode, envelope_schema, in_path
from callgate.api.middleware import context_of
from callgate.api.strict_json import PASSED_ON
from callgate.callers.caller import owner_name
from callgate.chat.face import in_progress
from callgate.runs.durable_runs import DurableRuns, answer_of, request_of
from callgate.runtime.manager import RuntimeManager
from callgate.state.runs import StoredRun
from callgate.untrusted.doors import Untrusted
from callgate.untrusted.readers import READ_ERRORS, json_reader
from callgate.untrusted.slices import open_in_slices

PREFIX: Final = "chatcmpl-"
WAIT: Final = {"retry-after": "1", "cache-control": "no-store"}


def durable_routes(manager: RuntimeManager, runs: DurableRuns) -> APIRouter:
    router = APIRouter(tags=["runs"])
    missing: dict[int | str, dict[str, Any]] = {
        404: {
            "description": "No such run is kept, or not for this key.",
            "content": {"application/json": {"schema": envelope_schema()}},
        }
    }

    def _identify(request: Request) -> tuple[str, str, bool]:
        """The id, and who asks for it."""
        context = context_of(request.scope)
        context.route = "runs"
        caller = context.caller
        assert caller is not None, "the middleware requires a caller here"
        id: str = request.path_params["id"]
        if id.startswith(PREFIX):
            run_id = f"run_{id.removeprefix(PREFIX)}"
        else:
            run_id = id
        return run_id, owner_name(caller), manager.current.access.may_see_all(caller)

    @router.get(
        "/v1/chat/completions/{id}",  # noqa: FAST003 - read from the request, see `in_path`
        summary="The answer of a run that is kept, or that it is still under way",
        responses=missing,
        openapi_extra=in_path("id"),
    )
    async def retrieve(request: Request) -> Response:
        id, owner, sees_all = _identify(request)
        row = await runs.find(id, owner, sees_all=sees_all)
        if row.answer is None:
            return Response(
                in_progress(await _model_of(row), row),
                media_type="application/json",
                headers=WAIT,
            )
        answer = answer_of(row)
        passed_headers = {b"content-type", b"x-callgate-run", b"x-should-retry"}
        headers = {name.decode(): value.decode("latin-1") for name, value in answer.headers if name in passed_headers}
        if answer.whole is not None:
            headers["content-type"] = "application/json"
        return Response(answer.whole or answer.body, answer.status, headers)

    @router.post(
        "/v1/runs/{id}/cancel",  # noqa: FAST003
        summary="Stop a run that is kept, wherever it is carried on",
        responses=missing,
        openapi_extra=in_path("id"),
    )
    async def cancel(request: Request) -> Response:
        id, owner, sees_all = _identify(request)
        row = await runs.cancel(id, owner, sees_all=sees_all)
        state = "cancelling" if row.state == "running" else row.state
        body = encode({"id": row.id, "object": "run", "state": state})
        return Response(body, media_type="application/json")

    return router


class _Named(msgspec.Struct):
    model: str = ""


_read_model = json_reader(_Named)


async def _model_of(row: StoredRun) -> str:
    """Return the model that a run's request names; an empty text where the request cannot be read."""
    try:
        return _read_model(await open_in_slices(Untrusted(request_of(row).body, PASSED_ON))).model
    except READ_ERRORS:
        return ""
