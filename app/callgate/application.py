"""The ASGI application: the runtime, its routes, and the middleware around them."""

import contextlib
from collections.abc import AsyncIterator

from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from callgate import __version__
from callgate.api.durable_runs import DurableRuns
from callgate.api.middleware import Middleware
from callgate.api.routes import add_routes
from callgate.config.schema import Config
from callgate.runtime.manager import RuntimeManager
from callgate.runtime.reload import ConfigSource
from callgate.runtime.siblings import Siblings


def create_app(config: Config, source: ConfigSource | None = None, siblings: Siblings | None = None) -> "_Callgate":
    """Create the application for one config. `source` reads the config again while the application runs; `siblings` are the
    other workers of the same server."""
    manager = RuntimeManager(config, source, siblings)
    runs = DurableRuns(manager)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with manager, runs:
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
    straight = add_routes(app, manager, runs, page=config.server.page)
    app.state.manager = manager
    app.outermost = Middleware(app.inside, manager, straight)
    return app


class _Callgate(FastAPI):
    """FastAPI with our middleware around even the framework's own."""

    outermost: Middleware

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.outermost(scope, receive, send)

    async def inside(self, scope: Scope, receive: Receive, send: Send) -> None:
        await super().__call__(scope, receive, send)
