"""What is true of uvicorn and starlette and shaped our own edge. Each of these fails when a release changes it: then the
thing named in the comment may be simplified, or has to be looked at again."""

import asyncio
import contextlib
import importlib.metadata
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from starlette.responses import StreamingResponse
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from tests.harness.server import serve
from tests.harness.wire import raw_connection

pytestmark = pytest.mark.anyio

GET = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"


async def test_a_route_that_does_not_stream_runs_to_its_end_though_its_client_left() -> None:
    """`app.api.responses.unless_left`: we race the chat with the client's leaving ourselves."""
    app, began, ended, go = FastAPI(), asyncio.Event(), asyncio.Event(), asyncio.Event()

    @app.get("/")
    async def route() -> str:
        began.set()
        await go.wait()
        ended.set()
        return "nobody hears this"

    async with serve(app, http="httptools") as url, asyncio.timeout(10):
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

    async with serve(app, http="httptools") as url, asyncio.timeout(10):
        async with raw_connection(url) as connection:
            await connection.send(GET)
            await connection.until(b"word")
        await cancelled.wait()


async def test_after_a_client_left_sending_neither_fails_nor_lets_anyone_else_run() -> None:
    """A loop that only sends would spin for ever: whoever sends in a loop has to look for the leaving elsewhere."""
    began, left = asyncio.Event(), asyncio.Event()
    turns: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        began.set()
        while (await receive())["type"] != "http.disconnect":
            pass
        others_ran: list[bool] = []
        asyncio.get_running_loop().call_soon(others_ran.append, True)
        for turn in range(1000):
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            turns.append(turn)
        assert not others_ran
        left.set()

    async with serve(app, http="httptools", lifespan="off") as url, asyncio.timeout(10):
        async with raw_connection(url) as connection:
            await connection.send(GET)
            await began.wait()
        await left.wait()
    assert len(turns) == 1000


async def test_a_server_that_is_told_to_end_does_not_cut_its_streams() -> None:
    """0.43 and 0.44 did; the floor in `pyproject.toml` is for this."""
    assert tuple(map(int, importlib.metadata.version("uvicorn").split(".")[:2])) >= (0, 54)
    began, go = asyncio.Event(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        began.set()
        leaving = asyncio.ensure_future(_disconnected(receive))
        await asyncio.wait([leaving, asyncio.ensure_future(go.wait())], return_when=asyncio.FIRST_COMPLETED)
        told = leaving.done()
        leaving.cancel()
        await send({"type": "http.response.body", "body": b"cut" if told else b"whole", "more_body": False})

    async with contextlib.AsyncExitStack() as stack:
        url = await stack.enter_async_context(serve(app, http="httptools", lifespan="off"))
        connection = await stack.enter_async_context(raw_connection(url))
        await connection.send(GET)
        await began.wait()
        # leaving the block tells the server to end; the stream goes on until it is let
        asyncio.get_running_loop().call_later(0.5, go.set)
        reading = asyncio.create_task(connection.answer())
        stack.push_async_callback(asyncio.wait, [reading])
    assert (await reading).body == b"whole"


async def _disconnected(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def test_the_protocol_itself_takes_headers_of_any_size() -> None:
    """`GuardedProtocol` counts them."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        size = sum(len(value) for _, value in scope["headers"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": str(size).encode()})

    async with serve(app, http="httptools", lifespan="off") as url, raw_connection(url) as connection:
        await connection.send(b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 4_000_000 + b"\r\n\r\n")
        answer = await connection.answer()
    assert int(answer.body) > 4_000_000


async def test_the_protocol_itself_waits_for_ever_for_a_first_request() -> None:
    """`GuardedProtocol` has clocks for that. uvicorn's only one is for the time between two requests."""
    made: list[HttpToolsProtocol] = []

    def protocol(**given: Any) -> HttpToolsProtocol:
        made.append(HttpToolsProtocol(**given))
        return made[-1]

    async def app(scope: Any, receive: Any, send: Any) -> None: ...

    options = {"http": protocol, "lifespan": "off", "timeout_keep_alive": 1}
    async with serve(app, **options) as url, raw_connection(url) as idle, raw_connection(url) as half:
        await half.send(b"GET / HTTP/1.1\r\nhost: loc")
        async with asyncio.timeout(10):
            while len(made) < 2 or made[1].scope is None:  # noqa: ASYNC110 - the protocol has no event of ours
                await asyncio.sleep(0.001)
        assert [each.timeout_keep_alive_task for each in made] == [None, None]
        assert not idle.reader.at_eof()


def test_what_we_build_on_is_where_we_found_it() -> None:
    """`GuardedProtocol` overrides and reads these; a rename must not pass unnoticed."""
    overridden = "connection_made connection_lost data_received on_message_begin on_header on_headers_complete on_body"
    for name in f"{overridden} on_message_complete on_response_complete _unset_keepalive_if_required _start_asgi_task shutdown".split():
        assert callable(getattr(HttpToolsProtocol, name)), name
    read = {
        "response_started",
        "response_complete",
        "disconnected",
        "message_event",
        "waiting_for_100_continue",
        "keep_alive",
    }
    assert read <= set(RequestResponseCycle.__init__.__code__.co_names)
    for name in ("handle_exit", "shutdown"):
        assert callable(getattr(uvicorn.Server, name)), name


async def test_idle_connections_count_as_load_for_the_limit_that_we_do_not_use() -> None:
    """`app.auth.admission` counts requests, and `Edge` counts connections, each with a limit of its own."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"fine"})

    async with (
        serve(app, http="httptools", lifespan="off", limit_concurrency=2) as url,
        raw_connection(url),
        raw_connection(url) as second,
    ):
        await second.send(GET)
        answer = await second.answer()
    assert (answer.status, answer.headers["content-type"]) == (503, "text/plain; charset=utf-8")
