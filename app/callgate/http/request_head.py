"""Builds request heads: the request line and headers."""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import quote, urlsplit

from callgate.config.secret_mask import Needles, needles_for
from callgate.http.credentials import credentials_in, secrets_in
from callgate.http.interface import ConnectFailed
from callgate.http.proxies import USUAL_PORTS, Proxies, Proxy, basic_credentials

Headers: TypeAlias = tuple[tuple[str, str], ...]

SAFE_IN_TARGET: Final = "/%:@!$&'()*+,;=~-._?"
FRAMING: Final = frozenset({"content-length", "transfer-encoding", "connection", "proxy-authorization"})
"""Headers that the client sets itself."""


class Origin(NamedTuple):
    """The server that a connection leads to. Connections to the same origin are interchangeable."""

    host: str
    port: int
    secure: bool
    proxy: Proxy | None

    def __str__(self) -> str:
        if ":" in self.host:
            return f"[{self.host}]:{self.port}"
        return f"{self.host}:{self.port}"


class RequestHead(NamedTuple):
    """The origin of a request, and its head as bytes."""

    origin: Origin
    head: bytes
    """Up to the value of `Content-Length`, which is its last header."""
    needles: Needles | None
    """Finds what is masked in the response; None where nothing is."""


def request_head(
    method: str, url: str, headers: Headers, proxies: Proxies | None, in_bodies: Iterable[bytes] = ()
) -> RequestHead:
    """Return the head of requests to a URL. `in_bodies`: secrets that their bodies have."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
        port = parts.port
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
    if proxies is None:
        proxy = None
    else:
        proxy = proxies.proxy_for(host, port, secure=secure)
    origin = Origin(host, port, secure, proxy)
    authority = str(origin).removesuffix(f":{usual}")
    target = quote(parts.path or "/", safe=SAFE_IN_TARGET)
    if parts.query:
        target += f"?{quote(parts.query, safe=SAFE_IN_TARGET)}"
    own: dict[str, str] = {"Host": authority, "User-Agent": "callgate", "Accept": "*/*", "Accept-Encoding": "identity"}
    if parts.username is not None:
        own["Authorization"] = basic_credentials(parts.username, parts.password)
    own_lines = {name.lower(): f"{name}: {value}" for name, value in headers}
    lines = [f"{name}: {value}" for name, value in own.items() if name.lower() not in own_lines]
    lines += [line for name, line in own_lines.items() if name not in FRAMING]
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
    secrets = {*credentials_in(headers), *secrets_in(head), *in_bodies}
    return RequestHead(origin, head, needles_for(tuple(sorted(secrets))))


def with_headers(head: bytes, headers: Mapping[str, str]) -> bytes:
    """Add headers to the head of one request, which are not cached. Headers that it already has take precedence."""
    length = b"Content-Length: "
    lower_head = head.lower()
    lines = [
        f"{name}: {value}\r\n".encode("latin-1")
        for name, value in headers.items()
        if f"\n{name}:".encode() not in lower_head
    ]
    return head.removesuffix(length) + b"".join(lines) + length
