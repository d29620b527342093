"""Clients that ask for a stream and do not read it: the model is made to wait, and little of what it said is held."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.chaos.scale import report, scaled
from tests.harness.configs import as_yaml, config_dict
from tests.harness.process import Child, serving_command

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(300)]

READERS = scaled(16, 200)
MIB_EACH = 1.5
"""Without bounds on what the system takes of an answer, and on what is read of a model at a time, it is 5."""
BLOCKED_SECONDS = 1.0
WITH_TOOLS: list[tuple[tuple[str, ...], int]] = [(("get_time",), 2000)]
"""With our tools, which have the text kept, in pieces that are long."""
MOST_SENT = 64 * 1024 * 1024


class EndlessModel:
    """Says the same for ever; knows which of its answers nobody has taken anything of for a second."""

    def __init__(self, piece: str) -> None:
        delta = {"index": 0, "delta": {"content": piece}, "finish_reason": None}
        chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [delta]}
        event = b"data: %b\n\n" % json.dumps(chunk).encode()
        self._block = event * max(1, 65_536 // len(event))
        self._blocked = 0
        self._news = asyncio.Event()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
            for _ in range(MOST_SENT // len(self._block)):
                writer.write(self._block)
                sending = asyncio.ensure_future(writer.drain())
                done, _ = await asyncio.wait([sending], timeout=BLOCKED_SECONDS)
                if not done:
                    self._blocked += 1
                    self._news.set()
                await sending
        writer.close()

    async def all_blocked(self, count: int) -> None:
        async with asyncio.timeout(60):
            while self._blocked < count:
                self._news.clear()
                await self._news.wait()


@contextlib.asynccontextmanager
async def running(model: EndlessModel) -> AsyncIterator[str]:
    async with await asyncio.start_server(model.answer, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        yield f"http://{host}:{port}"


@pytest.mark.parametrize(("tools", "size"), scaled(WITH_TOOLS, [*WITH_TOOLS, ((), 3), ((), 2000), (("get_time",), 3)]))
async def test_who_does_not_read_makes_the_model_wait_and_holds_little(
    tmp_path: Path, tools: tuple[str, ...], size: int
) -> None:
    model = EndlessModel("x" * size)
    async with running(model) as url:
        config = tmp_path / "config.yaml"
        config.write_text(as_yaml(config_dict(url, tools=tools, logging={"level": "error"})))
        async with serving_command(config, fresh=True) as child:
            (await _asks(child.url)).close()
            before = _mib(child)
            with contextlib.ExitStack() as readers:  # a server that drains would wait for them
                for _ in range(READERS):
                    readers.enter_context(await _asks(child.url))
                await model.all_blocked(READERS)
                each = (_mib(child) - before) / READERS
    report("slow readers", readers=READERS, tools=len(tools), letters=size, mib_each=round(each, 2))
    assert each < MIB_EACH


async def _asks(url: str) -> socket.socket:
    """A connection over which a stream was asked for; its first bytes have come, and no more will be read."""
    loop, to = asyncio.get_running_loop(), urlsplit(url)
    body = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "go on"}]}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
    asking = socket.socket()
    asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    asking.setblocking(False)
    await loop.sock_connect(asking, (to.hostname, to.port))
    await loop.sock_sendall(asking, head.encode() + body)
    assert (await loop.sock_recv(asking, 15)).startswith(b"HTTP/1.1 200")
    return asking


def _mib(child: Child) -> float:
    status = Path(f"/proc/{child.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024
