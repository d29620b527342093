"""A proxy on loopback: it forwards what is sent to it in absolute form, opens tunnels, and may want credentials."""

import asyncio
import base64
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass
class ProxyServer:
    url: str
    """With the credentials that it wants."""
    tunnels: list[str] = field(default_factory=list)
    """What `CONNECT` named, the refused ones too."""
    forwarded: list[str] = field(default_factory=list)
    """The addresses that were asked for in absolute form, the refused ones too."""
    refused: int = 0
    connections: int = 0


@asynccontextmanager
async def proxying(
    credentials: str = "", *, refuses: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[ProxyServer]:
    """Serve as a proxy. `credentials` are `user:password`; with `refuses` everything is answered with that status."""
    tasks: set[asyncio.Task[None]] = set()
    wanted = f"Basic {base64.b64encode(credentials.encode()).decode()}" if credentials else None

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        proxy.connections += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            async with contextlib.AsyncExitStack() as stack:
                await converse(reader, writer, stack)
        writer.close()
        tasks.discard(task)

    async def converse(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stack: contextlib.AsyncExitStack
    ) -> None:
        upstream: asyncio.StreamWriter | None = None
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.split("\r\n")[:-2]
            method, target, version = first.split(" ")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            (proxy.tunnels if method == "CONNECT" else proxy.forwarded).append(target)
            status = refuses or (407 if wanted is not None and headers.get("proxy-authorization") != wanted else 0)
            if status:
                proxy.refused += 1
                writer.write(f"{version} {status} No\r\nContent-Length: 6\r\n\r\nno way".encode())
                continue
            where = urlsplit(f"//{target}" if method == "CONNECT" else target)
            if upstream is None:
                assert where.hostname is not None
                answers, upstream = await asyncio.open_connection(where.hostname, where.port)
                stack.callback(upstream.close)
                if method != "CONNECT":
                    pumping = asyncio.ensure_future(_pump(answers, writer))
                    stack.callback(pumping.cancel)
            if method == "CONNECT":
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                await asyncio.gather(_pump(reader, upstream), _pump(answers, writer))
                return
            path = (where.path or "/") + (f"?{where.query}" if where.query else "")
            kept = [line for line in lines if not line.lower().startswith("proxy-")]
            upstream.write("\r\n".join([f"{method} {path} {version}", *kept, "Via: 1.1 test", "\r\n"]).encode() + body)

    listener = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls)
    port = listener.sockets[0].getsockname()[1]
    scheme = "http" if tls is None else "https"
    proxy = ProxyServer(f"{scheme}://{f'{credentials}@' if credentials else ''}127.0.0.1:{port}")
    try:
        yield proxy
    finally:
        listener.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
    else:
        writer.close()
