"""`/v1/approvals`: lists the calls that wait for a person's approval or answer, and takes decisions."""

from typing import Any, Literal

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response

from callgate.api.bodies import read_counted
from callgate.api.errors import encode, envelope_schema, in_path
from callgate.api.json_body import read_json_body
from callgate.api.middleware import context_of
from callgate.api.rights import caller_after_body, caller_of, check_decider
from callgate.callers.caller import words_for
from callgate.runtime.manager import RuntimeManager
from callgate.tools.approvals.queue import DECISIONS, INPUT

BODY_BYTES = 65_536
EXAMPLE = '{"decision": "approve"}, {"decision": "deny", "reason": "…"}, or {"decision": "answer", "content": {…}}'


class Decision(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a decision."""

    decision: Literal["approve", "deny", "answer", "decline", "cancel"]
    reason: str = ""
    """Sent to the model when the call is denied."""
    content: dict[str, Any] | None = None
    """What is filled into the form of a question."""
    hash: str | None = None
    """The hash of the call's arguments, as listed."""


def approval_routes(manager: RuntimeManager) -> APIRouter:
    router = APIRouter(tags=["approvals"])
    error = {"content": {"application/json": {"schema": envelope_schema()}}}
    wrong: dict[int | str, dict[str, Any]] = {
        403: {"description": "This key may not decide about calls.", **error},
        404: {"description": "No call waits under this id.", **error},
        409: {"description": "It was decided already, or the hash is of other arguments.", **error},
    }

    @router.get("/v1/approvals", summary="The calls that wait for approval", responses={403: wrong[403]})
    async def list_waiting(request: Request) -> Response:
        owner = check_decider(manager.current, caller_of(request, "approvals"))
        waiting = await manager.shared.decisions.waiting()
        if owner is not None:
            waiting = [facts for facts in waiting if facts["kind"] == INPUT and facts["owner"] == owner]
        return _json({"object": "list", "data": waiting})

    @router.get(
        "/v1/approvals/history",
        summary="What became of the newest calls that waited in this process: who decided, when, and why",
        responses={403: wrong[403]},
    )
    async def history(request: Request) -> Response:
        check_decider(manager.current, caller_of(request, "approvals"))
        return _json({"object": "list", "data": manager.shared.approval_history.newest()})

    @router.post(
        "/v1/approvals/{id}",  # noqa: FAST003 - read from the request, see `in_path`
        summary="Approve or deny one call, or answer what it asks",
        responses=wrong,
        openapi_extra=in_path("id"),
    )
    async def decide(request: Request) -> Response:
        caller = caller_of(request, "approvals")
        check_decider(manager.current, caller)
        body = await read_counted(request.receive, BODY_BYTES)
        caller = caller_after_body(manager, context_of(request.scope))
        owner = check_decider(manager.current, caller)
        decision = read_json_body(body, Decision, EXAMPLE)
        decided = await manager.shared.decisions.decide(
            request.path_params["id"],
            DECISIONS[decision.decision],
            by=words_for(caller),
            reason=decision.reason,
            content=decision.content,
            hash=decision.hash,
            demand_hash=manager.current.config.approvals.demand_hash,
            owner=owner,
        )
        return _json(decided)

    return router


def _json(value: Any) -> Response:
    return Response(encode(value), media_type="application/json")
