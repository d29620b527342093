"""Where everybody is introduced to everybody: the application that a server runs."""

import contextlib
from collections.abc import AsyncIterator

from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from callgate import __version__
from callgate.api.middleware import Middleware
from callgate.api.routes import add_routes
from callgate.config.schema import Config
from callgate.runtime.runtime import Reading, RuntimeManager


def create_app(config: Config, reading: Reading | None = None) -> FastAPI:
    """The application for one config; `reading` says how it can be read again while the application runs."""
    house = RuntimeManager(config, reading)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with house:
            yield

    app = _Callgate(
        title="Callgate",
        version=__version__,
        description="An OpenAI-compatible proxy that runs your tools, and never runs half a call.",
        lifespan=lifespan,
        docs_url=None,  # both pages load their scripts from a public CDN
        redoc_url=None,
        redirect_slashes=False,
    )
    straight = add_routes(app, house)
    app.state.house = house
    app.door = Middleware(app.inside, house, straight)
    return app


class _Callgate(FastAPI):
    """FastAPI with the door outside even of the framework's own middleware."""

    door: Middleware

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.door(scope, receive, send)

    async def inside(self, scope: Scope, receive: Receive, send: Send) -> None:
        await super().__call__(scope, receive, send)
