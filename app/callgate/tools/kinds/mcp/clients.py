"""The two HTTP clients of a session with an MCP server: the SDK's for the session, and ours for calls.

Both check addresses after each name lookup and connect to the checked address; neither follows redirects, keeps cookies, or
reads proxies and credentials from the environment.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx2
import yarl

from callgate.config.secret_mask import Needles, SecretMask, needles_for
from callgate.http.client import AddressInfo, HttpClient
from callgate.http.credentials import credentials_in
from callgate.http.event_stream import EventStreamReader, EventTooLarge, events_in
from callgate.tools.kinds.http.addresses import AddressRules
from callgate.tools.kinds.http.client import (
    CONNECT_TIMEOUT,
    KEEPALIVE_SECONDS,
    AddressRefused,
    Web,
    allowed_addresses,
    shown_address,
    tls_failure,
)
from callgate.tools.kinds.mcp.authorization import NeedsLogin
from callgate.tools.kinds.mcp.sender import CHALLENGE, Sender, is_at, refused_again
from callgate.tools.kinds.mcp.wire import FOR_SDK, MAX_MESSAGE_BYTES, ListBudget
from callgate.untrusted.doors import TooMuch, Untrusted
from callgate.untrusted.slices import open_in_slices
from callgate.untrusted.work import TurnShare

EVENTS = "text/event-stream"
GOODBYE_SECONDS = 1.0
"""The timeout for deleting the session."""


def sdk_client(tap: "Tap", headers: Mapping[str, str]) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        transport=tap,
        trust_env=False,
        follow_redirects=False,
        cookies=CookieJar(policy=DefaultCookiePolicy(allowed_domains=())),
        timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT, pool=CONNECT_TIMEOUT),
        headers={**headers, "User-Agent": "callgate", "Accept-Encoding": "identity"},
    )


def direct_client(web: Web, url: str, rules: AddressRules) -> HttpClient:
    """Return our own client, with a tenth of the cost of httpx2 for a call."""

    async def resolve(host: str, port: int) -> list[AddressInfo]:
        loop = asyncio.get_running_loop()
        infos: list[AddressInfo] = []
        for address in await allowed_addresses(rules, web.resolve, host, port):
            infos += await loop.getaddrinfo(str(address), port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        return infos

    tls = web.tls() if url.lower().startswith("https") else None
    return HttpClient(tls=tls, resolve=resolve, keep_alive=KEEPALIVE_SECONDS)


@dataclass(frozen=True, slots=True)
class TapBounds:
    """What a server may do over a tap."""

    posts_alone: bool = False
    """No GET is sent."""
    most_bytes: int = MAX_MESSAGE_BYTES
    """The longest message."""


NO_BOUNDS = TapBounds()


class Tap(httpx2.AsyncBaseTransport):
    """The SDK's HTTP client: over the guarded transport, without redirects, with bounded answers.

    It also records what the SDK does not expose: the id of the session, why a request was refused, and that the server cannot
    be reached.
    """

    def __init__(
        self,
        web: Web,
        rules: AddressRules,
        lost: Callable[[str], None],
        *,
        stream_is_life: bool = False,
        bounds: TapBounds = NO_BOUNDS,
    ) -> None:
        self._bounds = bounds
        self._transport = web.transport(rules)
        self._lost = lost
        self._stream_is_life = stream_is_life
        self.session_id = ""
        self.status = 0
        """The status of the last response."""
        self.trouble = ""
        self.budget: ListBudget | None = None
        """What may still come of the list that is being read."""
        self.challenges: list[str] = []
        """What the last response wants of whoever asks again."""
        self.needs_login: NeedsLogin | None = None
        """Why the last request was not authorized, if it was not."""
        self._sender: Sender | None = None
        self._server = ""
        self._below = False

    def send_as(self, sender: Sender, server: str, *, below: bool) -> None:
        """Send requests to the server's address as somebody; `below`: also those to what is in its folder."""
        self._sender = sender
        self._server = server
        self._below = below

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if self._bounds.posts_alone and request.method == "GET":
            return httpx2.Response(405, request=request)  # as a server says it that has no such stream
        return await self._answered(request)

    async def _answered(self, request: httpx2.Request) -> httpx2.Response:
        try:
            async with asyncio.timeout(GOODBYE_SECONDS if request.method == "DELETE" else None):
                if self._sender is None or not is_at(str(request.url), self._server, below=self._below):
                    response = await self._transport.handle_async_request(request)
                else:
                    response = await self._sent_as(self._sender, request)
        except NeedsLogin as needs_login:
            self.needs_login = needs_login
            self.trouble = needs_login.words
            return _refusal(self.trouble, request)
        except TimeoutError as error:
            raise httpx2.ReadTimeout("no answer to the goodbye", request=request) from error
        except (httpx2.ConnectError, httpx2.ConnectTimeout, AddressRefused) as error:
            if isinstance(error, AddressRefused):
                self.trouble = str(error)
            else:
                self.trouble = _unreachable(request.url, error)
            if request.method == "GET":
                self._lost(self.trouble)
            raise
        self.status = response.status_code
        self.challenges = response.headers.get_list(CHALLENGE)
        if response.is_redirect or response.status_code >= 400:
            words = f"HTTP {response.status_code} {response.reason_phrase}".strip()
            if response.is_redirect:
                words += f": a redirect to {shown_address(response.headers.get('location', ''))[:200]}, which is not followed"
            self.trouble = words
        elif response.is_success:
            self.trouble = ""
        if response.is_redirect:
            await response.aclose()
            return _refusal(self.trouble, request)
        self.session_id = response.headers.get("mcp-session-id", self.session_id)
        response.stream = _Bounded(
            response,
            self.budget,
            self._bounds.most_bytes,
            partial(self._lost, "the stream ended") if self._stream_is_life and request.method == "GET" else None,
            needles_for(tuple(sorted(credentials_in(request.headers.items())))),
        )
        return response

    async def _sent_as(self, sender: Sender, request: httpx2.Request) -> httpx2.Response:
        """Send a request as somebody; once more where the server refused what authorized it."""
        sent_headers = await sender.headers()
        request.headers.update(sent_headers)
        response = await self._transport.handle_async_request(request)
        challenges = response.headers.get_list(CHALLENGE)
        if not sender.is_refusal(response.status_code, challenges):
            self.needs_login = None
            return response
        await response.aclose()
        request.headers.update(await sender.headers_after(response.status_code, challenges, sent_headers))
        response = await self._transport.handle_async_request(request)
        if sender.is_refusal(response.status_code, response.headers.get_list(CHALLENGE)):
            await response.aclose()
            raise refused_again(sender.server)
        self.needs_login = None
        return response

    async def aclose(self) -> None:
        await self._transport.aclose()


class _Bounded(httpx2.AsyncByteStream):
    """A response body whose texts went through their door: it raises where one is too much. A body of events is handed on by
    whole events, any other as a whole."""

    def __init__(
        self,
        response: httpx2.Response,
        budget: ListBudget | None,
        most: int,
        over: Callable[[], None] | None,
        needles: Needles | None,
    ) -> None:
        """`needles`: the credentials of the request, which its server may repeat."""
        self._most = most
        self._stream = response.stream
        self._needles = needles
        self._is_events = EVENTS in response.headers.get("content-type", "")
        self._budget = budget
        self._over = over

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for part in self._events() if self._is_events else self._whole():
                yield part
        except (TooMuch, EventTooLarge) as error:
            raise httpx2.ReadError(str(error)) from error
        finally:
            if self._over is not None:
                self._over()

    async def _whole(self) -> AsyncIterator[bytes]:
        body = bytearray()
        async for piece in self._pieces():
            body += piece
            if len(body) > self._most:
                raise httpx2.ReadError(f"an answer of more than {self._most} bytes")
        yield await self._checked(bytes(body))

    async def _events(self) -> AsyncIterator[bytes]:
        reader = EventStreamReader(self._most)
        share = TurnShare()
        async for piece in self._pieces():
            for event, payload in events_in(reader.whole(piece)):
                if payload is not None:
                    await self._checked(payload.data)
                yield event + b"\n\n"
                share.take(len(event))
                if not share.is_left:
                    await asyncio.sleep(0)
                    share = TurnShare()
        yield reader.rest()

    async def _checked(self, text: bytes) -> bytes:
        opened_text = await open_in_slices(Untrusted(text, FOR_SDK))
        if self._budget is not None:
            self._budget.take(opened_text)
        return opened_text

    async def _pieces(self) -> AsyncIterator[bytes]:
        """Yield what comes, without the credentials with which it was asked for."""
        assert isinstance(self._stream, httpx2.AsyncByteStream)
        if self._needles is None:
            async for piece in self._stream:
                yield piece
            return
        mask = SecretMask(self._needles, is_foreign=True)
        mask.is_stream = self._is_events
        async for piece in self._stream:
            yield mask.feed(piece)
        yield mask.finish()

    async def aclose(self) -> None:
        assert isinstance(self._stream, httpx2.AsyncByteStream)
        await self._stream.aclose()


def host_of(url: str) -> str:
    try:
        host = yarl.URL(url).host
        httpx2.URL(url)  # the SDK parses it as well, which must not fail later
    except (ValueError, httpx2.InvalidURL) as error:
        # The text of the error quotes parts of the URL, which may have a key.
        raise ValueError("not an address that can be used") from error
    if not host:
        raise ValueError("not an address that can be used: it names no host")
    return host


def _refusal(words: str, request: httpx2.Request) -> httpx2.Response:
    """Return a protocol error, which the SDK passes on."""
    body = {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": words}}
    return httpx2.Response(502, json=body, request=request)


def _unreachable(url: httpx2.URL, error: BaseException) -> str:
    """Name host, port and the system's reason, for the operator."""
    port = url.port or (443 if url.scheme == "https" else 80)
    if isinstance(error, httpx2.ConnectTimeout):
        reason = "no connection in time"
    else:
        reason = ""
    if (failure := tls_failure(error)) is not None:  # its errno is none of the system's
        reason = str(failure)
    cause: BaseException | None = error
    while cause is not None and not reason:
        if isinstance(cause, OSError) and cause.errno:
            if cause.errno > 0:
                reason = os.strerror(cause.errno)
            else:
                reason = str(cause.strerror)
        cause = cause.__cause__ or cause.__context__
    return f"{url.host}:{port} cannot be reached" + (f": {reason}" if reason else "")
