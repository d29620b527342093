"""`/admin`: what only the operator may ask of a running server."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from callgate.api.errors import encode, envelope_schema
from callgate.api.rights import caller_of, check_admin
from callgate.config.problems import ConfigError
from callgate.conversation.errors import ChatError
from callgate.runtime.manager import RuntimeManager


def admin_routes(manager: RuntimeManager) -> APIRouter:
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
        check_admin(manager.current, caller_of(request, "admin"))
        try:
            moved = await manager.reload()
        except ConfigError as mistakes:
            raise ChatError(422, f"Nothing has changed. {mistakes}", code="config_invalid") from None
        return Response(encode({"object": "reload", **moved.facts()}), media_type="application/json")

    return router
