"""`GET /v1/tools`: the tools of the house that this key may use."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from callgate.api.errors import encode
from callgate.api.middleware import context_of
from callgate.runtime.manager import RuntimeManager


def tool_routes(house: RuntimeManager) -> APIRouter:
    router = APIRouter(tags=["tools"])

    @router.get("/v1/tools", summary="The tools of the house that this key may use")
    async def list_tools(request: Request) -> Response:
        context = context_of(request.scope)
        context.route = "tools"
        assert context.caller is not None, "the door lets nobody in without a caller"
        listed = house.current.tool_list(context.caller)
        return Response(encode({"object": "list", "data": listed}), media_type="application/json")

    return router
