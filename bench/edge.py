"""What our own edge costs: one request through the guarded protocol and through uvicorn's, without sockets.

.venv/bin/python bench/edge.py
"""

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from app.edge import Edge

BODY = b'{"model": "m", "messages": [{"role": "user", "content": "hello"}]}'
HEADERS = {
    "host": "localhost:8000",
    "accept": "application/json",
    "accept-encoding": "gzip, deflate",
    "connection": "keep-alive",
    "authorization": "Bearer cg-0123456789012345678901234567890123456789012",
    "content-type": "application/json",
    "user-agent": "OpenAI/Python 2.54.0",
    "x-stainless-lang": "python",
    "x-stainless-os": "Linux",
    "content-length": str(len(BODY)),
}
REQUEST = (
    "POST /v1/chat/completions HTTP/1.1\r\n"
    + "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items())
    + "\r\n"
).encode() + BODY
ROUNDS = 20_000


class Nowhere(asyncio.Transport):
    """A connection to nobody."""

    def write(self, data: Any) -> None: ...

    def close(self) -> None: ...

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


async def app(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def microseconds(make: Any) -> float:
    config = uvicorn.Config(app, http="httptools", log_config=None, access_log=False)
    config.load()
    state = ServerState()
    protocol = make(config=config, server_state=state, app_state={}, _loop=asyncio.get_running_loop())
    protocol.connection_made(Nowhere())
    began = time.perf_counter()
    for _ in range(ROUNDS):
        protocol.data_received(REQUEST)
        for _ in range(2):  # the task begins, and ends
            await asyncio.sleep(0)
    assert state.total_requests == ROUNDS
    spent = time.perf_counter() - began
    protocol.connection_lost(None)
    return spent / ROUNDS * 1e6


def main() -> None:
    for name, make in {"uvicorn's": HttpToolsProtocol, "guarded": Edge().protocol}.items():
        best = min(uvloop.run(microseconds(make)) for _ in range(3))
        print(f"{name:<10} {best:6.1f} µs a request")


main()
