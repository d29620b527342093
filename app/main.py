"""Where everybody is introduced to everybody: the application that a server runs."""

import contextlib
from collections.abc import AsyncIterator

from fastapi import FastAPI

from app import __version__
from app.api.door import Door
from app.api.routes import add_routes
from app.config.schema import Config
from app.runtime import House


def create_app(config: Config) -> FastAPI:
    """The application for one config."""
    house = House(config)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with house:
            yield

    app = FastAPI(
        title="Callgate",
        version=__version__,
        description="An OpenAI-compatible proxy that runs your tools, and never runs half a call.",
        lifespan=lifespan,
        docs_url=None,  # both pages load their scripts from a public CDN
        redoc_url=None,
        redirect_slashes=False,
    )
    add_routes(app, house)
    app.add_middleware(Door, house=house)
    app.state.house = house
    return app
