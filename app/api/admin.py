"""`/admin`: what only the operator may ask of a running house."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from app.api.door import visit_of
from app.api.errors import encode, envelope_schema
from app.chat.errors import ChatError
from app.config.problems import ConfigError
from app.runtime import House


def admin_routes(house: House) -> APIRouter:
    router = APIRouter(tags=["operating"])
    error = {"content": {"application/json": {"schema": envelope_schema()}}}

    @router.post(
        "/admin/reload",
        summary="Read the config again",
        responses={
            403: {"description": "This key may not.", **error},
            422: {"description": "The config has mistakes; nothing has changed.", **error},
        },
    )
    async def reload(request: Request) -> Response:
        visit = visit_of(request.scope)
        visit.route = "admin"
        assert visit.caller is not None, "the door lets nobody in without a caller"
        if not house.current.may_administer(visit.caller):
            raise ChatError(
                403,
                "This needs a key with `admin: on`.",
                type="permission_error",
                code="admin_not_allowed",
            )
        try:
            moved = await house.reload()
        except ConfigError as mistakes:
            raise ChatError(422, f"Nothing has changed. {mistakes}", code="config_invalid") from None
        return Response(encode({"object": "reload", **moved.facts()}), media_type="application/json")

    return router
