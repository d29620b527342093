"""Where a request goes, and its head: what of a request is the same whenever a server is asked."""

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias
from urllib.parse import quote, unquote, urlsplit

from callgate.http.interface import ConnectFailed

Where: TypeAlias = tuple[str, int, bool]
"""Host, port and whether TLS is spoken."""

SAFE_IN_TARGET = "/%:@!$&'()*+,;=~-._?"


@lru_cache(maxsize=1024)
def prepared(method: str, url: str, headers: tuple[tuple[str, str], ...]) -> tuple[Where, bytes]:
    """Where a request goes and its head up to the length of the body."""
    address = _address(url)
    lines = [f"{method} {address.target} HTTP/1.1", *_lines(address, headers), "Content-Length: "]
    for line in lines:
        if "\r" in line or "\n" in line or "\0" in line:
            raise ConnectFailed("a header holds a line break")
    try:
        return address.where, "\r\n".join(lines).encode("latin-1")
    except UnicodeEncodeError:
        raise ConnectFailed("a header holds a character that no header can hold") from None


@dataclass(frozen=True, slots=True)
class _Address:
    where: Where
    target: str
    host: str
    authorization: str | None


def _lines(address: _Address, headers: tuple[tuple[str, str], ...]) -> Iterator[str]:
    given = {name.lower() for name, _ in headers}
    if "host" not in given:
        yield f"Host: {address.host}"
    if "user-agent" not in given:
        yield "User-Agent: callgate"
    if "accept" not in given:
        yield "Accept: */*"
    if "accept-encoding" not in given:
        yield "Accept-Encoding: identity"
    if address.authorization is not None and "authorization" not in given:
        yield f"Authorization: {address.authorization}"
    for name, value in headers:
        if name.lower() not in ("content-length", "transfer-encoding", "connection"):
            yield f"{name}: {value}"


def _address(url: str) -> _Address:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConnectFailed(f"not an address: {error}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ConnectFailed("not an http address")
    secure = parts.scheme == "https"
    if not host.isascii():
        try:
            host = host.encode("idna").decode()
        except UnicodeError:
            raise ConnectFailed("not the name of a host") from None
    usual = 443 if secure else 80
    shown = f"[{host}]" if ":" in host else host
    authorization = None
    if parts.username is not None:
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = f"Basic {base64.b64encode(user.encode()).decode()}"
    target = quote(parts.path or "/", safe=SAFE_IN_TARGET) + (
        f"?{quote(parts.query, safe=SAFE_IN_TARGET)}" if parts.query else ""
    )
    return _Address(
        (host, port or usual, secure), target, shown if port in (None, usual) else f"{shown}:{port}", authorization
    )
