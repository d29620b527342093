"""What is true of uvicorn, httptools and starlette and shaped our own factory. Each of these fails when a release changes it:
then the thing named in the comment may be simplified, or has to be looked at again."""

import asyncio
import contextlib
import importlib.metadata
from typing import Any

import httptools
import pytest
import uvicorn
from fastapi import FastAPI
from starlette.responses import StreamingResponse
from uvicorn.server import ServerState

from tests.harness.server import serve
from tests.harness.wire import raw_connection

pytestmark = pytest.mark.anyio

GET = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"


async def test_a_route_that_does_not_stream_runs_to_its_end_though_its_client_left() -> None:
    """`callgate.api.answers.run_unless_disconnected`: we race the chat with the client's leaving ourselves."""
    app, began, ended, go = FastAPI(), asyncio.Event(), asyncio.Event(), asyncio.Event()

    @app.get("/")
    async def route() -> str:
        began.set()
        await go.wait()
        ended.set()
        return "this is not called"

    async with serve(app) as url, asyncio.timeout(30):
        async with raw_connection(url) as connection:
            await connection.send(GET)
            await began.wait()
        go.set()
        await ended.wait()


async def test_a_streamed_answer_is_cancelled_when_its_client_leaves() -> None:
    app, cancelled = FastAPI(), asyncio.Event()

    @app.get("/")
    async def route() -> StreamingResponse:
        async def words() -> Any:
            try:
                while True:
                    yield b"word "
                    await asyncio.sleep(0.001)
            except (asyncio.CancelledError, GeneratorExit):
                cancelled.set()
                raise

        return StreamingResponse(words())

    async with serve(app) as url, asyncio.timeout(30):
        async with raw_connection(url) as connection:
            await connection.send(GET)
            await connection.until(b"word")
        await cancelled.wait()


async def test_a_server_that_is_asked_to_end_does_not_cut_its_streams() -> None:
    """0.43 and 0.44 did; the floor in `pyproject.toml` is for this."""
    assert tuple(map(int, importlib.metadata.version("uvicorn").split(".")[:2])) >= (0, 54)
    began, go = asyncio.Event(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        began.set()
        leaving = asyncio.ensure_future(_disconnected(receive))
        await asyncio.wait([leaving, asyncio.ensure_future(go.wait())], return_when=asyncio.FIRST_COMPLETED)
        client_left = leaving.done()
        leaving.cancel()
        await send({"type": "http.response.body", "body": b"cut" if client_left else b"whole", "more_body": False})

    async with contextlib.AsyncExitStack() as stack:
        url = await stack.enter_async_context(serve(app, lifespan="off"))
        connection = await stack.enter_async_context(raw_connection(url))
        await connection.send(GET)
        await began.wait()
        # leaving the block asks the server to end; the stream goes on until the gate opens
        asyncio.get_running_loop().call_later(0.5, go.set)
        reading = asyncio.create_task(connection.answer())
        stack.push_async_callback(asyncio.wait, [reading])
    assert (await reading).body == b"whole"


async def _disconnected(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def test_what_uvicorn_asks_of_a_protocol_is_what_ours_gives() -> None:
    """`callgate.server.Connection` is made, asked to end, and counted as here."""
    made: dict[str, Any] = {}

    class Protocol(asyncio.Protocol):
        def __init__(self, **given: Any) -> None:
            made.update(given)
            made["server_state"].connections.add(self)

        def shutdown(self) -> None:
            made["asked to end"] = True
            made["server_state"].connections.clear()

    async def app(scope: Any, receive: Any, send: Any) -> None: ...

    async with serve(app, http=Protocol, lifespan="off") as url, raw_connection(url):
        async with asyncio.timeout(30):
            while not made:  # noqa: ASYNC110 - a protocol has no event of ours
                await asyncio.sleep(0.001)
        state = made["server_state"]
        assert set(made) == {"config", "server_state", "app_state", "_loop"}
        assert isinstance(state, ServerState)
        assert (state.total_requests, state.tasks, made["app_state"]) == (0, set(), {})
        before = state.default_headers
        assert [name for name, _ in before if name == b"date"]
        async with asyncio.timeout(30):
            while state.default_headers is before:  # noqa: ASYNC110 - nor has the list, which is made anew every second
                await asyncio.sleep(0.01)
        assert made["config"].loaded_app is not None
    assert made["asked to end"]


def test_the_server_ends_through_what_we_override() -> None:
    for name in ("handle_exit", "startup", "shutdown", "on_tick"):
        assert callable(getattr(uvicorn.Server, name)), name


def test_the_parser_says_which_of_our_exceptions_stopped_it() -> None:
    """`callgate.server.refusals.RequestRefused` is raised in its callbacks, which wrap it."""

    class Stops:
        def on_url(self, url: bytes) -> None:
            raise KeyError(url)

        def on_headers_complete(self) -> None: ...

    with pytest.raises(httptools.HttpParserError) as raised:
        httptools.HttpRequestParser(Stops()).feed_data(b"GET /a HTTP/1.1\r\n\r\n")
    assert isinstance(raised.value.__context__, KeyError)


def test_the_parser_takes_what_follows_an_upgrade_for_the_other_protocol() -> None:
    """`callgate.server.connection` stops reading there: what comes next would be parsed as another request."""
    bodies: list[bytes] = []

    class Callbacks:
        on_body = staticmethod(bodies.append)

    parser = httptools.HttpRequestParser(Callbacks())
    with pytest.raises(httptools.HttpParserUpgrade):
        parser.feed_data(b"POST / HTTP/1.1\r\nconnection: upgrade\r\nupgrade: h2c\r\ncontent-length: 2\r\n\r\nhi")
    assert bodies == []
