"""The ways back from a browser to a command: a port of this machine that listens, or an address that a person pastes."""

import asyncio
import hmac
import socket
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final, Self
from urllib.parse import parse_qs, urlsplit

from callgate.tools.kinds.mcp.logins import LoginFailed

LOGIN_SECONDS: Final = 600.0
PATH: Final = "/callback"
MAX_REQUEST: Final = 16 * 1024
READ_SECONDS: Final = 5.0
END_SECONDS: Final = 15.0
"""How long a browser waits for the end of its login."""
HEAD: Final = (
    "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {length}\r\nCache-Control: no-store\r\n"
    "Referrer-Policy: no-referrer\r\nX-Content-Type-Options: nosniff\r\nContent-Security-Policy: default-src 'none'\r\n"
    "Connection: close\r\n\r\n"
)
LOGGED_IN: Final = "Logged in. You can close this window.\n"
NOT_LOGGED_IN: Final = "The login did not succeed. The command says why.\n"
NOTHING_HERE: Final = "Nothing is here.\n"


class LoopbackListener:
    """Listens on a free port of this machine for the browser to come back."""

    def __init__(self) -> None:
        self.redirect_uri = ""
        self._server: asyncio.Server | None = None
        self._state: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._query: asyncio.Future[Mapping[str, str]] = asyncio.get_running_loop().create_future()
        self._end: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0, limit=MAX_REQUEST)
        port = self._server.sockets[0].getsockname()[1]
        self.redirect_uri = f"http://127.0.0.1:{port}{PATH}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.say_end(is_logged_in=False)
        assert self._server is not None, "it was entered"
        self._server.close()
        await self._server.wait_closed()
        await asyncio.sleep(0)

    async def came_back(self, state: str) -> Mapping[str, str]:
        """Wait for the browser with this state; return the query that it came with. Raises `LoginFailed`."""
        if not self._state.done():
            self._state.set_result(state)
        try:
            async with asyncio.timeout(LOGIN_SECONDS):
                return await self._query
        except TimeoutError:
            raise LoginFailed("nobody logged in within ten minutes") from None

    def say_end(self, *, is_logged_in: bool) -> None:
        """Tell the browser what came of it."""
        if not self._end.done():
            self._end.set_result(is_logged_in)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(READ_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            status, text = await self._text_for(head.split(b"\r\n", 1)[0].decode("ascii", "replace"))
            writer.write((HEAD.format(status=status, length=len(text)) + text).encode())
            await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass  # no browser, or one that has gone
        finally:
            writer.close()

    async def _text_for(self, line: str) -> tuple[str, str]:
        """Return the status and the text for a request. Nothing of the request stands in them."""
        method, _, rest = line.partition(" ")
        target = urlsplit(rest.partition(" ")[0])
        query = query_of(target.query)
        if method != "GET" or target.path != PATH or query is None:
            return "404 Not Found", NOTHING_HERE
        state = await self._state
        if self._query.done() or not hmac.compare_digest(query.get("state", "").encode(), state.encode()):
            return "404 Not Found", NOTHING_HERE
        self._query.set_result(query)
        is_logged_in = False
        try:
            async with asyncio.timeout(END_SECONDS):
                is_logged_in = await asyncio.shield(self._end)
        except TimeoutError:
            pass  # the command says what came of it
        return "200 OK", LOGGED_IN if is_logged_in else NOT_LOGGED_IN


class Pasted:
    """Has a person paste the address that the browser was sent to, on machines without one."""

    def __init__(self, read_line: Callable[[], str], redirect_uri: str = "") -> None:
        """`redirect_uri`: where the browser is sent; by default a port of this machine at which nothing listens."""
        self.redirect_uri = redirect_uri
        self._read_line = read_line
        self._port: socket.socket | None = None

    async def __aenter__(self) -> Self:
        if not self.redirect_uri:
            self._port = socket.socket()
            self._port.bind(("127.0.0.1", 0))  # it stays ours, and refuses connections
            self.redirect_uri = f"http://127.0.0.1:{self._port.getsockname()[1]}{PATH}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._port is not None:
            self._port.close()

    async def came_back(self, state: str) -> Mapping[str, str]:
        """Return the query of the address that is pasted. Raises `LoginFailed`."""
        text = (await asyncio.to_thread(self._read_line)).strip()
        if len(text) > MAX_REQUEST or (query := query_of(urlsplit(text).query)) is None or "state" not in query:
            raise LoginFailed(f"what was pasted is no address like {self.redirect_uri}?code=…&state=…")
        if not hmac.compare_digest(query["state"].encode(), state.encode()):
            raise LoginFailed("what was pasted is of another login: begin it again")
        return query

    def say_end(self, *, is_logged_in: bool) -> None:
        """Do nothing: no browser waits."""


def query_of(text: str) -> Mapping[str, str] | None:
    """Return the parameters of a query; None where it has one twice, or cannot be read."""
    try:
        values = parse_qs(text, keep_blank_values=True, max_num_fields=20, errors="strict")
    except ValueError:
        return None
    if any(len(several) > 1 for several in values.values()):
        return None
    return {name: value for name, [value] in values.items()}
