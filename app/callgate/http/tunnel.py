"""A tunnel through a proxy: `CONNECT`, and TLS with the server behind it."""

import asyncio
import ssl
from http import HTTPStatus
from typing import cast

import httptools

from callgate.http.interface import ConnectFailed
from callgate.http.proxies import Proxy
from callgate.http.request_head import Origin

REPLY_BYTES = 65_536
"""The limit of the reply to `CONNECT`; proxies send pages of HTML with a refusal."""


class Tunnel(asyncio.Protocol):
    """Opens a tunnel through a proxy. After `open` the transport is connected to the server."""

    def __init__(self, origin: Origin, proxy: Proxy) -> None:
        self._origin = origin
        self._proxy = proxy
        self._parser = httptools.HttpResponseParser(self)
        self._opened: asyncio.Future[asyncio.Transport] = asyncio.get_running_loop().create_future()
        self._seen = 0

    async def open(self) -> asyncio.Transport:
        lines = [f"CONNECT {self._origin} HTTP/1.1", f"Host: {self._origin}", "User-Agent: callgate"]
        if self._proxy.authorization is not None:
            lines.append(f"Proxy-Authorization: {self._proxy.authorization}")
        self._transport.write("\r\n".join((*lines, "\r\n")).encode("latin-1"))
        return await self._opened

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._seen += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # the parser's signal for bytes of the other protocol after the reply
        except httptools.HttpParserError:
            self._refuse(f"{self._proxy} does not answer in HTTP")
        if self._seen > REPLY_BYTES:
            self._refuse(f"{self._proxy} does not answer in HTTP")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if 200 <= status < 300:
            if not self._opened.done():
                self._opened.set_result(self._transport)
        elif status >= 200:
            self._refuse(refused_by(self._proxy, status))

    def connection_lost(self, error: Exception | None) -> None:
        self._refuse(f"{self._proxy} closed the connection")

    def _refuse(self, why: str) -> None:
        if not self._opened.done():
            self._opened.set_exception(ConnectFailed(why))


def refused_by(proxy: Proxy, status: int) -> str:
    """Return the error message for a proxy's refusal."""
    if status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
        if proxy.authorization:
            problem = "takes other credentials"
        else:
            problem = "wants credentials (http://user:password@host)"
        return f"{proxy} {problem} (407)"
    return f"{proxy} refuses the connection ({status})"


async def tls_through(
    transport: asyncio.Transport, protocol: asyncio.Protocol, context: ssl.SSLContext, host: str
) -> None:
    """Start TLS in an open tunnel, for `protocol`."""
    loop = asyncio.get_running_loop()
    secured = await loop.start_tls(transport, protocol, context, server_hostname=host)
    if secured is None:
        raise ConnectFailed("the tunnel was closed during the handshake")
    protocol.connection_made(secured)
