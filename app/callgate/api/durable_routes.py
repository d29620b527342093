"""Routes of durable runs: `/v1/chat/completions/{id}` returns one, another route cancels it."""

from typing import Any, Final

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response

from callgate.api.chat import in_progress
from callgate.api.durable_runs import DurableRuns, decode_answer, decode_request
from callgate.api.errors import encode, envelope_schema, in_path
from callgate.api.middleware import context_of
from callgate.auth.keys import owner_name
from callgate.runtime.manager import RuntimeManager

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

    def asked(request: Request) -> tuple[str, str, bool]:
        """The id, and who asks for it."""
        context = context_of(request.scope)
        context.route = "runs"
        caller = context.caller
        assert caller is not None, "the middleware requires a caller here"
        id: str = request.path_params["id"]
        run_id = f"run_{id.removeprefix(PREFIX)}" if id.startswith(PREFIX) else id
        return run_id, owner_name(caller), manager.current.may_see_all(caller)

    @router.get(
        "/v1/chat/completions/{id}",  # noqa: FAST003 - read from the request, see `in_path`
        summary="The answer of a run that is kept, or that it is still under way",
        responses=missing,
        openapi_extra=in_path("id"),
    )
    async def retrieve(request: Request) -> Response:
        id, owner, sees_all = asked(request)
        stored = await runs.find(id, owner, sees_all=sees_all)
        if stored.answer is None:
            return Response(
                in_progress(_read_model(decode_request(stored.request).body).model, stored),
                media_type="application/json",
                headers=WAIT,
            )
        answer = decode_answer(stored.answer)
        kept = {b"content-type", b"x-callgate-run", b"x-should-retry"}
        headers = {name.decode(): value.decode("latin-1") for name, value in answer.headers if name in kept}
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
        id, owner, sees_all = asked(request)
        stored = await runs.cancel(id, owner, sees_all=sees_all)
        state = "cancelling" if stored.state == "running" else stored.state
        body = encode({"id": stored.id, "object": "run", "state": state})
        return Response(body, media_type="application/json")

    return router


class _Named(msgspec.Struct):
    model: str = ""


_read_model = msgspec.json.Decoder(_Named).decode
