"""The HTTP client of tools: connects to allowed addresses only, and bounds the size of answers.

One `Web` per runtime. Its clients follow no redirects, keep no cookies, and read neither proxies nor credentials from the
environment. Addresses are checked after each name lookup, and exactly the checked address is connected to, so that a name
that changes its address gains nothing; TLS still uses the host name.

httpx2 rather than httpx, because the MCP SDK uses it, so that both kinds of tool share this transport.
"""

import asyncio
import ipaddress
import os
import re
import socket
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import httpcore2
import httpx2

from callgate.calls.outcome import Failed, FailureKind, Image, Returned
from callgate.conversation.readable_content import IMAGE_TYPES
from callgate.tools.kinds.http.addresses import Address, AddressRules, Kind
from callgate.tools.results import decoded, described

Resolver: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host, as text, in the order in which they should be tried."""

CONNECT_TIMEOUT = 10.0
"""The timeout for connecting; the rest is part of the tool's own timeout."""
KEEPALIVE_SECONDS = 20.0
"""Below the idle timeouts of most servers (nginx 75 s, node 5 to 65 s), so that few connections are closed before use."""
MAX_CONNECTIONS = 100
EXCERPT_BYTES = 2_000
"""The limit of an error's body in a message."""

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_LIKE_A_KEY = re.compile(r"(?=[^{}]*\d)(?=[^{}]*[A-Za-z])[A-Za-z0-9_:.~+=-]{16,}")
_PLACE = re.compile(r"\{[A-Za-z_][A-Za-z0-9_.-]*\}")
_TRANSIENT = frozenset({429, 502, 503, 504})


class AddressRefused(Exception):
    """Raised where all addresses of a host are refused."""

    def __init__(self, host: str, kind: Kind) -> None:
        super().__init__(f"{host} has a {kind} address")
        self.host = host
        self.kind = kind


class Web:
    """The HTTP clients of one runtime, closed with it.

    Tools with the same address rules share connections. Others do not, because a tool could otherwise use a connection to a
    private host that another tool has opened.
    """

    def __init__(self, *, resolve: Resolver | None = None, verify: ssl.SSLContext | None = None) -> None:
        self.resolve = resolve or system_resolver
        self._verify = verify
        self._clients: dict[AddressRules, httpx2.AsyncClient] = {}
        self._closed = False

    def client(self, rules: AddressRules) -> httpx2.AsyncClient:
        if self._closed:
            raise RuntimeError("the runtime that this tool belongs to is closed")
        if rules not in self._clients:
            self._clients[rules] = httpx2.AsyncClient(
                transport=self.transport(rules),
                trust_env=False,
                follow_redirects=False,
                cookies=CookieJar(policy=DefaultCookiePolicy(allowed_domains=())),
                timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT, pool=CONNECT_TIMEOUT),
                headers={"User-Agent": "callgate", "Accept-Encoding": "identity"},
            )
        return self._clients[rules]

    @property
    def closed(self) -> bool:
        return self._closed

    def tls(self) -> ssl.SSLContext:
        """Return the TLS context, made once because loading the CA certificates is slow."""
        if self._verify is None:
            self._verify = trusting_context()
        return self._verify

    def transport(self, rules: AddressRules) -> "GuardedTransport":
        """Return a guarded transport with its own connections, for a client that closes it."""
        return GuardedTransport(rules, self.resolve, self.tls())

    async def close(self) -> None:
        self._closed = True
        clients = list(self._clients.values())
        self._clients = {}
        for client in clients:
            await client.aclose()


@dataclass(frozen=True, slots=True)
class Request:
    """A request of a tool. The headers are the operator's, and not the caller's."""

    method: str
    url: httpx2.URL
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None


async def ask(web: Web, rules: AddressRules, request: Request, max_bytes: int) -> Returned | Failed:
    """Send `request` and read the response, up to `max_bytes`. Failures are returned as `Failed`."""
    host = request.url.host
    safe = request.method in _SAFE_METHODS
    if web.closed:
        return Failed("The tool is being shut down.", FailureKind.UNAVAILABLE)
    client = web.client(rules)
    headers = {**request.headers, "Accept-Encoding": "identity"}
    try:
        prepared = client.build_request(request.method, request.url, headers=headers, content=request.content)
        response = await client.send(prepared, stream=True)
        try:
            encoding = response.headers.get("content-encoding", "identity").strip().lower()
            if encoding not in ("", "identity"):
                return Failed(
                    f"The answer came encoded ({encoding[:40]}), which was not asked for.", FailureKind.RAISED
                )
            if response.is_redirect:
                where = shown_address(response.headers.get("location", ""))[:200]
                return Failed(f"HTTP {response.status_code}: a redirect to {where}, not followed.", FailureKind.REFUSED)
            if not response.is_success:
                kind = FailureKind.UNAVAILABLE if response.status_code in _TRANSIENT else FailureKind.RAISED
                body = await read_bounded(response, EXCERPT_BYTES)
                excerpt = _read(response, body).text.strip()
                return Failed(
                    f"HTTP {response.status_code} {response.reason_phrase}".rstrip()
                    + (f": {excerpt}" if excerpt else ""),
                    kind,
                )
            body = await read_bounded(response, max_bytes)
            return _read(response, body)
        finally:
            await response.aclose()
    except (AddressRefused, httpx2.TransportError) as error:
        return failed_request(error, host, is_safe=safe)


def failed_request(error: AddressRefused | httpx2.TransportError, host: str, *, is_safe: bool) -> Failed:
    """Return why a request failed, for a model. `is_safe`: it may be sent again."""
    match error:
        case AddressRefused():
            return Failed(f"Not sent: {host} has a {error.kind} address, which is not allowed.", FailureKind.REFUSED)
        case httpx2.ConnectError() | httpx2.ConnectTimeout() | httpx2.PoolTimeout():
            return Failed(f"{host} cannot be reached ({_how(error)}).", FailureKind.UNAVAILABLE)
        case httpx2.UnsupportedProtocol():
            return Failed(f"Not sent: {error}", FailureKind.REFUSED)
        case httpx2.LocalProtocolError():
            # The error's text may quote a header with a password.
            return Failed("Not sent: the request cannot be written.", FailureKind.REFUSED)
        case _ if is_safe:
            return Failed(f"{host} did not answer properly ({_how(error)}).", FailureKind.UNAVAILABLE)
        case _:
            return Failed(
                f"The connection to {host} was lost ({_how(error)}); whether the request took effect is not known.",
                FailureKind.UNKNOWN,
            )


@dataclass(frozen=True, slots=True)
class BoundedBody:
    data: bytes
    missing: int
    """The bytes that were not read; without a Content-Length, those that were received."""


async def read_bounded(response: httpx2.Response, max_bytes: int) -> BoundedBody:
    """Read the body, up to `max_bytes`."""
    data = bytearray()
    received_bytes = 0
    async with aclosing(response.aiter_raw()) as pieces:
        async for piece in pieces:
            received_bytes += len(piece)
            data += piece[: max_bytes - len(data)]
            if received_bytes > max_bytes:
                length = response.headers.get("content-length", "")
                return BoundedBody(
                    bytes(data),
                    max(received_bytes, int(length) if length.isascii() and length.isdigit() else 0) - max_bytes,
                )
    return BoundedBody(bytes(data), 0)


def shown_address(url: str) -> str:
    """Return a URL without credentials, for people, models and logs.

    The user, all values in the query, and parts of the path that look like keys are removed. Placeholders stay.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return "the address"
    path = "/".join("…" if _LIKE_A_KEY.fullmatch(part) else part for part in parts.path.split("/"))
    query = "&".join(
        f"{name}={value if _PLACE.fullmatch(value) else '…'}" if equals else "…"
        for name, equals, value in (pair.partition("=") for pair in parts.query.split("&") if pair)
    )
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{path}{f'?{query}' if query else ''}"


def trusting_context() -> ssl.SSLContext:
    """Build a TLS context that trusts the system's authorities, or in their place those of `SSL_CERT_FILE` and `SSL_CERT_DIR`."""
    if os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR"):
        return ssl.create_default_context()  # as the client for models does it; OpenSSL reads the variables
    return httpx2.create_ssl_context(trust_env=False)


def tls_failure(error: BaseException) -> ssl.SSLError | None:
    """Return why no encrypted connection came about, if that was the reason."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return cause
        cause = cause.__cause__ or cause.__context__
    return None


async def system_resolver(host: str, port: int) -> Sequence[str]:
    loop = asyncio.get_running_loop()
    results = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in results))


async def allowed_addresses(rules: AddressRules, resolve: Resolver, host: str, port: int) -> list[Address]:
    """Resolve a host and return the allowed addresses. Called for each connection, because DNS may change."""
    try:
        addresses: list[Address] = [ipaddress.ip_address(host)]
    except ValueError:  # a name, then
        addresses = [ipaddress.ip_address(text) for text in await resolve(host, port)]
    judged = [(address, rules.refusal(host, address, port)) for address in addresses]
    allowed = [address for address, refusal in judged if refusal is None]
    if allowed:
        return allowed
    refused = next((refusal for _, refusal in judged if refusal is not None), None)
    if refused is None:
        raise OSError(f"{host} has no address")
    raise AddressRefused(host, refused)


class GuardedTransport(httpx2.AsyncBaseTransport):
    """An httpx2 transport whose pool connects to allowed addresses only."""

    def __init__(self, rules: AddressRules, resolve: Resolver, verify: ssl.SSLContext | None = None) -> None:
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=verify or trusting_context(),
            max_connections=MAX_CONNECTIONS,
            keepalive_expiry=KEEPALIVE_SECONDS,
            network_backend=GuardedBackend(rules, resolve),
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        assert isinstance(request.stream, httpx2.AsyncByteStream)
        raw_request = httpcore2.Request(
            method=request.method,
            url=httpcore2.URL(
                scheme=request.url.raw_scheme,
                host=request.url.raw_host,
                port=request.url.port,
                target=request.url.raw_path,
            ),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        try:
            answer = await self._pool.handle_async_request(raw_request)
        except tuple(_AS_HTTPX) as error:
            raise _as_httpx(error, request) from error
        assert isinstance(answer.stream, AsyncIterable)
        return httpx2.Response(
            status_code=answer.status,
            headers=answer.headers,
            stream=_ResponseStream(answer.stream, request),
            extensions=answer.extensions,
        )

    async def aclose(self) -> None:
        await self._pool.aclose()


class GuardedBackend(httpcore2.AsyncNetworkBackend):
    """Resolves a host, checks its addresses and connects to an allowed one."""

    def __init__(self, rules: AddressRules, resolve: Resolver) -> None:
        self._rules = rules
        self._resolve = resolve
        self._dialler = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        try:
            async with asyncio.timeout(timeout) as limit:
                try:
                    allowed = await allowed_addresses(self._rules, self._resolve, host, port)
                except (OSError, UnicodeError) as failure:
                    raise httpcore2.ConnectError(f"{host} cannot be resolved: {failure}") from failure
                return await self._first(allowed, port, limit.when(), socket_options)
        except TimeoutError as error:
            raise httpcore2.ConnectTimeout(f"no connection to {host} in {timeout} s") from error

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        raise httpcore2.ConnectError("tools do not speak over unix sockets")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _first(
        self,
        addresses: Sequence[Address],
        port: int,
        deadline: float | None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connect to the first address that answers, each with a share of the time."""
        last: Exception | None = None
        for tried, address in enumerate(addresses):
            if deadline is None:
                share = None
            else:
                share = self._share(deadline, len(addresses) - tried)
            try:
                return await self._dialler.connect_tcp(str(address), port, share, None, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                last = error
        assert last is not None
        raise last

    @staticmethod
    def _share(deadline: float, parts: int) -> float:
        return max(0.0, deadline - asyncio.get_running_loop().time()) / parts


class _ResponseStream(httpx2.AsyncByteStream):
    def __init__(self, stream: AsyncIterable[bytes], request: httpx2.Request) -> None:
        self._stream = stream
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._stream:
                yield piece
        except tuple(_AS_HTTPX) as error:
            raise _as_httpx(error, self._request) from error

    async def aclose(self) -> None:
        protocol = _protocol_under(self._stream)
        if protocol is not None and protocol.trailing_data[0]:
            protocol.send_failed()  # its connection is closed: the next request would read them as its answer
        close = getattr(self._stream, "aclose", None)
        if close is not None:
            await close()


def _protocol_under(stream: object) -> Any:
    """Return the state of HTTP/1.1 on the connection that a response came from, which has the bytes behind the response."""
    for name in ("_stream", "_connection", "_h11_state"):
        stream = getattr(stream, name, None)
    return stream


_AS_HTTPX: dict[type[Exception], type[httpx2.TransportError]] = {
    getattr(httpcore2, name): getattr(httpx2, name)
    for name in (
        "ConnectError", "ConnectTimeout", "LocalProtocolError", "NetworkError", "PoolTimeout", "ProtocolError",
        "ReadError", "ReadTimeout", "RemoteProtocolError", "TimeoutException", "UnsupportedProtocol",
        "WriteError", "WriteTimeout",
    )
}  # fmt: skip


def _as_httpx(error: Exception, request: httpx2.Request) -> httpx2.TransportError:
    kind = next(_AS_HTTPX[base] for base in type(error).__mro__ if base in _AS_HTTPX)
    return kind(str(error), request=request)


def _read(response: httpx2.Response, body: BoundedBody) -> Returned:
    mime_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    size = len(body.data) + body.missing
    if mime_type in IMAGE_TYPES:
        if body.missing:
            return Returned(described(mime_type, size, "too large"), cut_bytes=body.missing)
        return Returned("", images=(Image(body.data, mime_type),))
    text = decoded(body.data, response.charset_encoding)
    if text is None and mime_type.startswith("text/"):
        text = decoded(body.data, "cp1252")  # the browsers' default for text without a charset
    if text is None:
        return Returned(described(mime_type, size))
    return Returned(text, cut_bytes=body.missing)


def _how(error: httpx2.TransportError) -> str:
    """Describe the kind of an error, without its text, which may name internal addresses."""
    match error:
        case httpx2.ConnectTimeout():
            return "no connection in time"
        case httpx2.ConnectError():
            match tls_failure(error):
                case None:
                    return "connection failed"
                case ssl.SSLCertVerificationError():
                    return "its certificate is not trusted"
                case _:
                    return "no TLS connection"
        case httpx2.PoolTimeout():
            return "too many requests at once"
        case httpx2.ReadTimeout():
            return "no answer in time"
        case httpx2.RemoteProtocolError():
            return "not a proper HTTP answer"
        case _:
            return "connection lost"
