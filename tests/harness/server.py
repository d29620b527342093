"""An app under uvicorn in the event loop of the test, on a loopback port of its own."""

import asyncio
import contextlib
import io
import socket
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Iterator
from typing import Any

import uvicorn

from callgate.server import ProtocolFactory

START_PATIENCE = 40.0
"""Seconds for the lifespan to start: building a runtime imports litellm, which is slow on a busy machine."""
STOP_PATIENCE = 30.0
LOOK_SECONDS = 0.002
"""Between two looks at connections that are to close. uvicorn takes a tenth of a second, and as much twice more on the way
out: minutes, over thousands of tests."""


class NotStarted(Exception):
    """The app's lifespan refused to start; the log of the test says why."""


class ServerInLoop(uvicorn.Server):
    """A uvicorn server that says when it is ready, and leaves the signals of the process alone."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up, self.leaving = asyncio.Event(), asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self.up.set()

    async def run_on(self, listening: socket.socket) -> None:
        """Serves; on a refused start uvicorn leaves the process, which here would take the test run with it."""
        try:
            await self.serve(sockets=[listening])
        except SystemExit as leaving:
            raise NotStarted(f"uvicorn left with code {leaving.code}") from None

    async def main_loop(self) -> None:
        while not self.leaving.is_set():
            await self.on_tick(0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):  # dates change
                    await self.leaving.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while state.connections or state.tasks:  # noqa: ASYNC110 - uvicorn's sets have no event of ours
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            for task in state.tasks:
                task.cancel()
        await self.lifespan.shutdown()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serve(app: Any, *, at_port: int = 0, **uvicorn_options: Any) -> AsyncIterator[str]:
    """Serves an ASGI app behind our own edge, lifespan included, and gives its base URL (without `/v1`)."""
    options = {
        "http": ProtocolFactory().protocol,
        "lifespan": "on",
        "log_config": None,
        "timeout_graceful_shutdown": 5,
        "ws": "none",
        **uvicorn_options,
    }
    server = ServerInLoop(uvicorn.Config(getattr(app, "outermost", app), **options))  # as `serve` does
    with socket.create_server(("127.0.0.1", at_port), backlog=1024) as listening:
        running = asyncio.create_task(server.run_on(listening), name="the app's server")
        try:
            await _started(server, running)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            await _stop(server, running)


async def _started(server: ServerInLoop, running: "asyncio.Task[None]") -> None:
    ready = asyncio.create_task(server.up.wait())
    try:
        await asyncio.wait({ready, running}, timeout=START_PATIENCE, return_when=asyncio.FIRST_COMPLETED)
    finally:
        ready.cancel()
    if running.done():
        await running
    assert server.up.is_set(), f"the app did not start in {START_PATIENCE} s"


async def _stop(server: ServerInLoop, running: "asyncio.Task[None]") -> None:
    server.leaving.set()
    _, late = await asyncio.wait({running}, timeout=STOP_PATIENCE)
    held_by = ""
    if late:
        held_by = _stacks()
        running.cancel()
        await asyncio.wait({running})
    assert not late, f"the app's server did not stop in {STOP_PATIENCE} s; what was under way:\n{held_by}"
    await running


def _stacks() -> str:
    """Where all tasks of the loop and all threads of the process are."""
    written = io.StringIO()
    for task in asyncio.all_tasks():
        task.print_stack(file=written)
    frames = sys._current_frames()
    for thread in threading.enumerate():
        if thread.ident in frames:
            lines = traceback.format_stack(frames[thread.ident])
            written.write(f"Thread {thread.name}:\n{''.join(lines)}")
    return written.getvalue()
