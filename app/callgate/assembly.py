"""Assembles the ASGI application: the runtime, its routes, and the middleware around them. The subjects around chat are put in."""

import contextlib
import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Final, Protocol

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from callgate import __version__
from callgate.api.middleware import Middleware
from callgate.api.run_ports import NoRuns, Runs
from callgate.config.entry_errors import BadEntry
from callgate.config.schema.whole import Config
from callgate.routes import add_routes
from callgate.runtime.manager import RuntimeManager
from callgate.runtime.parts import ALONE, ServerParts
from callgate.runtime.reload import ConfigSource
from callgate.runtime.workers import WorkerGroup
from callgate.state.database import DamagedFile, DatabaseAway, NotMigrated

CANNOT_START: Final = (DamagedFile, DatabaseAway, NotMigrated, BadEntry, sqlite3.Error, OSError)
"""What operators mend themselves when a start fails: the reason says all there is, and a traceback nothing more."""


class Subjects(Protocol):
    """What is served beside chat."""

    @property
    def runs(self) -> Runs:
        """The runs that outlive a connection."""
        ...

    def opened(self) -> AbstractAsyncContextManager[object]:
        """Return what is open while the server runs, inside the runtime."""
        ...

    def add_routes(self, app: FastAPI) -> Mapping[tuple[str, str], ASGIApp]:
        """Add the routes; return those that the middleware calls directly."""
        ...


class SubjectsOf(Protocol):
    """Makes what is served beside chat."""

    def __call__(self, config: Config, manager: RuntimeManager) -> Subjects: ...


class ChatAlone:
    """Serves nothing beside chat."""

    def __init__(self, config: Config, manager: RuntimeManager) -> None:
        self.runs: Final = NoRuns()

    def opened(self) -> AbstractAsyncContextManager[object]:
        return contextlib.nullcontext()

    def add_routes(self, app: FastAPI) -> Mapping[tuple[str, str], ASGIApp]:
        return {}


def assembled(
    config: Config,
    source: ConfigSource | None = None,
    workers: WorkerGroup | None = None,
    parts: ServerParts = ALONE,
    subjects_of: SubjectsOf = ChatAlone,
) -> "CallgateApp":
    """Return the application for one config. `source` reads the config again while the application runs; `workers` are the
    other workers of the same server."""
    manager = RuntimeManager(config, source, workers, parts)
    subjects = subjects_of(config, manager)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(manager)
                await stack.enter_async_context(subjects.opened())
            except CANNOT_START as error:
                app.reason = f"cannot start: {error}"
                raise
            yield

    app = CallgateApp(
        title="Callgate",
        version=__version__,
        description="An OpenAI-compatible proxy that runs your tools, and never runs half a call.",
        lifespan=lifespan,
        docs_url=None,  # both pages load their scripts from a public CDN
        redoc_url=None,
        redirect_slashes=False,
    )
    routes_fast = {**add_routes(app, manager, subjects.runs, page=config.server.page), **subjects.add_routes(app)}
    app.state.manager = manager
    app.outermost = Middleware(app.inside, manager, routes_fast)
    return app


class CallgateApp(FastAPI):
    """FastAPI with our middleware around even the framework's own."""

    outermost: Middleware
    reason = ""
    """Why it could not start, in one line; empty where that is not known."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.outermost(scope, receive, send)

    async def inside(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            send = self._in_one_line(send)
        await super().__call__(scope, receive, send)

    def _in_one_line(self, send: Send) -> Send:
        """Return a `send` that gives the reason of a failed start in place of Starlette's traceback."""

        async def send_reason(message: Message) -> None:
            if message["type"] == "lifespan.startup.failed" and self.reason:
                message = {**message, "message": self.reason}
            await send(message)

        return send_reason
