"""The application as its subjects see it: routes, each with what OpenAPI says of it.

Requests are routed by Starlette. FastAPI makes the document, and is imported when somebody asks for that: it takes seven
megabytes and a sixth of a start.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypedDict, TypeVar, Unpack

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Lifespan

Handler = TypeVar("Handler", bound=Callable[[Request], Awaitable[Response]])
Operations = Callable[[], Mapping[str, dict[str, Any]]]
"""Describes routes that are plain ASGI callables: their operations, by their paths."""

DOCUMENT_PATH: Final = "/openapi.json"


class Description(TypedDict, total=False):
    """What FastAPI is told of a route."""

    summary: str
    responses: dict[int | str, dict[str, Any]]
    openapi_extra: dict[str, Any]
    include_in_schema: bool
    response_class: type[Response]
    status_code: int


class DescribedRoute(Route):
    """A route of one method."""

    def __init__(
        self, path: str, endpoint: Callable[[Request], Awaitable[Response]], method: str, description: dict[str, Any]
    ) -> None:
        super().__init__(path, endpoint, methods=[method])
        self.methods = {method}  # Starlette would answer HEAD where GET is answered
        self.description: Final = description


class Router:
    """Gathers the routes of one subject."""

    def __init__(self, tags: list[str]) -> None:
        self.routes: Final[list[DescribedRoute]] = []
        self._tags = tags

    def get(self, path: str, **description: Unpack[Description]) -> Callable[[Handler], Handler]:
        return self._adding("GET", path, description)

    def post(self, path: str, **description: Unpack[Description]) -> Callable[[Handler], Handler]:
        return self._adding("POST", path, description)

    def patch(self, path: str, **description: Unpack[Description]) -> Callable[[Handler], Handler]:
        return self._adding("PATCH", path, description)

    def delete(self, path: str, **description: Unpack[Description]) -> Callable[[Handler], Handler]:
        return self._adding("DELETE", path, description)

    def include_router(self, router: "Router") -> None:
        self.routes.extend(router.routes)

    def _adding(self, method: str, path: str, description: Description) -> Callable[[Handler], Handler]:
        def add(handler: Handler) -> Handler:
            self.routes.append(DescribedRoute(path, handler, method, {"tags": self._tags, **description}))
            return handler

        return add


class DescribedApp(Starlette):
    """An application that describes itself at `/openapi.json`."""

    def __init__(self, title: str, version: str, description: str, lifespan: Lifespan[Starlette]) -> None:
        super().__init__(lifespan=lifespan)
        self.router.redirect_slashes = False
        self._title = title
        self._version = version
        self._description = description
        self._operations: list[Operations] = []
        self._document: dict[str, Any] | None = None
        self.router.routes.append(Route(DOCUMENT_PATH, self._serve_document, include_in_schema=False))

    def include_router(self, router: Router) -> None:
        self.router.routes.extend(router.routes)

    def describe(self, operations: Operations) -> None:
        """Have routes described that are in no router."""
        self._operations.append(operations)

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document, which is made once."""
        if self._document is None:
            document = self._described_routes()
            for operations in self._operations:
                document["paths"].update(operations())
            self._document = document
        return self._document

    def _described_routes(self) -> dict[str, Any]:
        from fastapi import FastAPI

        described = FastAPI(title=self._title, version=self._version, description=self._description)
        for route in self.routes:
            if isinstance(route, DescribedRoute):
                described.add_api_route(
                    route.path, route.endpoint, methods=sorted(route.methods or ()), **route.description
                )
        return described.openapi()

    async def _serve_document(self, _: Request) -> Response:
        return JSONResponse(await asyncio.to_thread(self.openapi))
