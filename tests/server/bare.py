"""Bare applications behind the factory, and what a client of them sees."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from uvicorn.server import ServerState

from callgate.server import ConnectionLimits, ProtocolFactory
from tests.harness.server import serve
from tests.harness.wire import RawConnection, raw_connection

GET = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nhost: localhost\r\n"

App = Callable[[Any, Any, Any], Awaitable[None]]


@dataclass(slots=True)
class Bare:
    """An factory with an application of the test behind it."""

    url: str
    factory: ProtocolFactory
    states: list[ServerState] = field(default_factory=list)

    @property
    def state(self) -> ServerState:
        """What uvicorn's server knows of its connections and tasks. It is there once somebody has connected."""
        return self.states[0]


@contextlib.asynccontextmanager
async def behind_the_edge(app: App, **rules: Any) -> AsyncIterator[Bare]:
    factory = ProtocolFactory(ConnectionLimits(**rules))
    bare = Bare("", factory)

    def protocol(**given: Any) -> Any:
        bare.states.append(given["server_state"])
        return factory.protocol(**given)

    async with serve(app, http=protocol, lifespan="off", timeout_graceful_shutdown=1) as bare.url:
        async with asyncio.timeout(30):
            yield bare


@contextlib.asynccontextmanager
async def connected(app: App, **rules: Any) -> AsyncIterator[RawConnection]:
    async with behind_the_edge(app, **rules) as bare, raw_connection(bare.url) as connection:
        yield connection


async def read_body(receive: Any) -> bytes:
    body = b""
    while True:
        message: dict[str, Any] = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError("the client left")
        body += bytes(message["body"])
        if not message["more_body"]:
            return body


async def answer(send: Any, body: bytes = b"ok", status: int = 200, headers: Any = ()) -> None:
    fields = [(b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})


async def begin(send: Any, status: int = 200, headers: Any = ()) -> None:
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})


async def part(send: Any, body: bytes, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def gone(connection: RawConnection) -> bytes:
    """What comes until the server closes."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while piece := await connection.reader.read(65536):
            data += piece
    return data
