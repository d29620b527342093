"""`GET /v1/tools`: the tools of the house that this key may use."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from app.api.door import visit_of
from app.api.errors import encode
from app.runtime import House


def tool_routes(house: House) -> APIRouter:
    router = APIRouter(tags=["tools"])

    @router.get("/v1/tools", summary="The tools of the house that this key may use")
    async def list_tools(request: Request) -> Response:
        visit = visit_of(request.scope)
        visit.route = "tools"
        assert visit.caller is not None, "the door lets nobody in without a caller"
        listed = house.current.tool_list(visit.caller)
        return Response(encode({"object": "list", "data": listed}), media_type="application/json")

    return router
