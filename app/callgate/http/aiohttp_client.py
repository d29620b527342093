"""The upstream HTTP client on aiohttp: a keep-alive pool, four deadlines, nothing followed, nothing inflated, nothing kept."""

import asyncio
import io
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from callgate.http.interface import (
    COMPRESSED,
    DRAIN_BYTES,
    DRAIN_SECONDS,
    KEEP_ALIVE_SECONDS,
    Broken,
    ConnectFailed,
    Deadlines,
    Response,
    TimedOut,
    TransportError,
    Which,
    read_whole,
    reason,
)

HEADER_BYTES = 32_768
"""Some gateways send long policy headers; aiohttp's 8 KiB is too little for them."""
LARGE_BYTES = 2**20


class AiohttpClient:
    """One per runtime: connections are shared by all models."""

    def __init__(self, *, tls: ssl.SSLContext | None = None, proxies_from_env: bool = False) -> None:
        self._tls = tls
        self._proxies_from_env = proxies_from_env
        self._session: aiohttp.ClientSession | None = None
        self._draining: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def post(
        self, url: str, headers: Mapping[str, str], body: bytes, deadlines: Deadlines
    ) -> AsyncIterator[Response]:
        asked_at = asyncio.get_running_loop().time()
        raw = await self._send(url, headers, body, deadlines)
        response = _AiohttpResponse(raw, deadlines, asked_at)
        try:
            yield response
        finally:
            self._let_go(response)

    async def close(self) -> None:
        for task in self._draining:
            task.cancel()
        await asyncio.gather(*self._draining, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    async def _send(
        self, url: str, headers: Mapping[str, str], body: bytes, deadlines: Deadlines
    ) -> aiohttp.ClientResponse:
        limit = min(deadlines.first_byte, deadlines.total)
        waiting = asyncio.timeout(limit)
        try:
            async with waiting:
                return await self._opened().post(
                    url,
                    # Above a megabyte aiohttp warns of bytes, which it would hand to the socket at once as we want it.
                    data=body if len(body) <= LARGE_BYTES else io.BytesIO(body),
                    headers={"Accept-Encoding": "identity", **headers},
                    allow_redirects=False,
                    timeout=aiohttp.ClientTimeout(total=None, connect=deadlines.connect, sock_read=None),
                )
        except aiohttp.ConnectionTimeoutError:
            raise TimedOut("connect", deadlines.connect) from None
        except TimeoutError:
            if not waiting.expired():
                raise
            raise TimedOut("total" if limit == deadlines.total else "first_byte", limit) from None
        except (aiohttp.ClientConnectorError, aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as error:
            raise ConnectFailed(reason(error)) from error
        except aiohttp.ClientError as error:
            raise Broken(reason(error)) from error

    def _opened(self) -> aiohttp.ClientSession:
        # Made on first use because a session belongs to the loop it was made in.
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=0,  # how many requests run at once is decided at our own door
                    keepalive_timeout=KEEP_ALIVE_SECONDS,
                    ssl=True if self._tls is None else self._tls,
                ),
                cookie_jar=aiohttp.DummyCookieJar(),  # a cookie would carry one caller's state to the next
                auto_decompress=False,
                trust_env=self._proxies_from_env,
                max_line_size=HEADER_BYTES,
                max_field_size=HEADER_BYTES,
                headers={"User-Agent": "callgate"},
            )
        return self._session

    def _let_go(self, response: "_AiohttpResponse") -> None:
        response.watch.cancel()
        if response.settled and not response.raw.content.is_eof():
            task = asyncio.get_running_loop().create_task(_drain(response.raw))
            self._draining.add(task)
            task.add_done_callback(self._draining.discard)
        else:
            response.raw.close()  # after the end of the body this keeps the connection, before it does not


class _AiohttpResponse:
    def __init__(self, raw: aiohttp.ClientResponse, deadlines: Deadlines, asked_at: float) -> None:
        self.raw = raw
        self.status = raw.status
        self.headers = {name.lower(): value for name, value in raw.headers.items()}
        self.watch = _Watch(raw, deadlines, asked_at)
        self.settled = False

    def chunks(self) -> "_Reads":
        if self.headers.get("content-encoding", "identity").lower() != "identity":
            raise Broken(COMPRESSED)
        return _Reads(self)

    async def carry(self, each: Callable[[bytes], Coroutine[Any, Any, bool]]) -> None:
        async for data in self.chunks():
            if await each(data):
                return

    async def read(self, limit: int) -> bytes:
        return await read_whole(self.chunks(), limit)

    def settle(self) -> None:
        self.settled = True


class _Reads:
    """A plain iterator and not a generator: one that is left half-way leaves nothing suspended behind.

    A body without a length that ends in a reset ends here like any other: aiohttp does not tell the two apart. Whether
    an answer is whole is never taken from how its connection ended, so nothing depends on it.
    """

    def __init__(self, response: _AiohttpResponse) -> None:
        self._content = response.raw.content
        self._watch = response.watch

    def __aiter__(self) -> "_Reads":
        return self

    async def __anext__(self) -> bytes:
        self._watch.reading()
        try:
            data = await self._content.readany()
        except TransportError:
            raise
        except (aiohttp.ClientError, OSError) as error:
            raise Broken(reason(error)) from error
        finally:
            self._watch.read()
        if not data:
            raise StopAsyncIteration
        return data


class _Watch:
    """Keeps the deadlines of one body with one timer, moved only when it fires: a chunk costs two assignments."""

    def __init__(self, raw: aiohttp.ClientResponse, deadlines: Deadlines, asked_at: float) -> None:
        self._raw = raw
        self._deadlines = deadlines
        self._loop = asyncio.get_running_loop()
        self._end = asked_at + deadlines.total
        self._quiet: Which = "first_byte"
        self._quiet_end = asked_at + deadlines.first_byte
        self._waiting = True
        self._timer = self._loop.call_at(min(self._end, self._quiet_end), self._look)

    def reading(self) -> None:
        if not self._waiting:
            # The wait counts from here: how long our own side took with the last chunk is not the upstream's fault.
            self._quiet_end = self._loop.time() + self._deadlines.idle
            self._waiting = True

    def read(self) -> None:
        self._waiting = False
        if self._quiet == "first_byte":
            self._quiet = "idle"
            self._timer.cancel()  # it may lie far behind the first idle deadline
            self._look()

    def cancel(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        if now >= self._end:
            self._give_up(TimedOut("total", self._deadlines.total))
        elif self._waiting and now >= self._quiet_end:
            seconds = self._deadlines.idle if self._quiet == "idle" else self._deadlines.first_byte
            self._give_up(TimedOut(self._quiet, seconds))
        else:
            quiet_end = self._quiet_end if self._waiting else now + self._deadlines.idle
            self._timer = self._loop.call_at(min(self._end, quiet_end), self._look)

    def _give_up(self, error: TimedOut) -> None:
        # A fresh exception, set before closing: aiohttp would raise one shared instance, whose traceback only grows.
        self._raw.content.set_exception(error)
        self._raw.close()


async def _drain(raw: aiohttp.ClientResponse) -> None:
    left = DRAIN_BYTES
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            while left > 0 and (data := await raw.content.readany()):
                left -= len(data)
    except (aiohttp.ClientError, OSError, TimeoutError):
        pass  # nobody waits for these bytes; the connection is closed below
    finally:
        raw.close()
