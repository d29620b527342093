"""`/admin`: what only the operator may ask of a running house."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from callgate.api.errors import encode, envelope_schema
from callgate.api.middleware import context_of
from callgate.config.problems import ConfigError
from callgate.conversation.errors import ChatError
from callgate.runtime.manager import RuntimeManager


def admin_routes(house: RuntimeManager) -> APIRouter:
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
        context = context_of(request.scope)
        context.route = "admin"
        assert context.caller is not None, "the door lets nobody in without a caller"
        if not house.current.may_administer(context.caller):
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
