"""Builds and caches request heads (request line and headers) for each URL."""

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import quote, urlsplit

from callgate.http.credentials import credentials_in
from callgate.http.interface import ConnectFailed
from callgate.http.proxies import USUAL_PORTS, Proxies, Proxy, basic_credentials

Headers: TypeAlias = tuple[tuple[str, str], ...]

SAFE_IN_TARGET: Final = "/%:@!$&'()*+,;=~-._?"
MAX_HEADS: Final = 512
MAX_HEAD_BYTES: Final = 4096
"""The bounds of the cache, two megabytes; clients' text is part of some heads. Longer ones are built for each request."""
FRAMING: Final = frozenset({"content-length", "transfer-encoding", "connection", "proxy-authorization"})
"""Headers that the client sets itself."""


class Origin(NamedTuple):
    """The server that a connection leads to. Connections to the same origin are interchangeable."""

    host: str
    port: int
    secure: bool
    proxy: Proxy | None

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class RequestHead(NamedTuple):
    """The origin of a request, and its head as bytes."""

    origin: Origin
    head: bytes
    """Up to the value of `Content-Length`, which is its last header."""
    credentials: tuple[bytes, ...]
    """Values that are masked in the response."""


_heads: dict[tuple[str, str, Headers, Proxies | None], RequestHead] = {}


def request_head(method: str, url: str, headers: Headers, proxies: Proxies | None) -> RequestHead:
    """Return the head of requests to a URL, from the cache if possible."""
    key = (method, url, headers, proxies)
    found = _heads.get(key)
    if found is None:
        found = _written(method, url, headers, proxies)
        if len(found.head) <= MAX_HEAD_BYTES:
            if len(_heads) >= MAX_HEADS:
                _heads.clear()
            _heads[key] = found
    return found


def with_headers(head: bytes, headers: Mapping[str, str]) -> bytes:
    """Add headers to the head of one request, which are not cached. Headers that it already has take precedence."""
    length, there = b"Content-Length: ", head.lower()
    more = [
        f"{name}: {value}\r\n".encode("latin-1")
        for name, value in headers.items()
        if f"\n{name}:".encode() not in there
    ]
    return head.removesuffix(length) + b"".join(more) + length


def _written(method: str, url: str, headers: Headers, proxies: Proxies | None) -> RequestHead:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConnectFailed(f"not an address: {error}") from None
    if parts.scheme not in USUAL_PORTS or not host:
        raise ConnectFailed("not an http address")
    if not host.isascii():
        try:
            host = host.encode("idna").decode()
        except UnicodeError:
            raise ConnectFailed("not the name of a host") from None
    secure = parts.scheme == "https"
    usual = USUAL_PORTS[parts.scheme]
    port = port or usual
    proxy = None if proxies is None else proxies.proxy_for(host, port, secure=secure)
    origin = Origin(host, port, secure, proxy)
    authority = str(origin).removesuffix(f":{usual}")
    target = quote(parts.path or "/", safe=SAFE_IN_TARGET)
    if parts.query:
        target += f"?{quote(parts.query, safe=SAFE_IN_TARGET)}"
    own: dict[str, str] = {"Host": authority, "User-Agent": "callgate", "Accept": "*/*", "Accept-Encoding": "identity"}
    if parts.username is not None:
        own["Authorization"] = basic_credentials(parts.username, parts.password)
    given = {name.lower(): f"{name}: {value}" for name, value in headers}
    lines = [f"{name}: {value}" for name, value in own.items() if name.lower() not in given]
    lines += [line for name, line in given.items() if name not in FRAMING]
    if proxy is not None and not secure:  # a forward proxy needs the whole URL; through a tunnel it does not see it
        target = f"http://{authority}{target}"
        if proxy.authorization is not None:
            lines.append(f"Proxy-Authorization: {proxy.authorization}")
    lines = [f"{method} {target} HTTP/1.1", *lines, "Content-Length: "]
    if any("\r" in line or "\n" in line or "\0" in line for line in lines):
        raise ConnectFailed("a header holds a line break")
    try:
        head = "\r\n".join(lines).encode("latin-1")
    except UnicodeEncodeError:
        raise ConnectFailed("a header holds a character that no header can hold") from None
    return RequestHead(origin, head, credentials_in(headers))
