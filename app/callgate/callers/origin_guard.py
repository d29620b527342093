"""Checks the Host and Origin headers against DNS rebinding and foreign web pages.

A web page can make a browser send requests to this machine. Without keys only two headers distinguish them from the user's
own requests. Host: a page that points its own name at 127.0.0.1 (DNS rebinding) is same-origin to itself, but its requests
have that name. Origin: browsers add it to all requests to other sites.
"""

import ipaddress
import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

import msgspec

from callgate.conversation.errors import ChatError

_HOST: Final = re.compile(r"(?:\[([0-9a-f:.%]+)\]|([^\[\]:/@?#\s]+))(?::[0-9]{1,5})?")
"""A Host header: an address of IPv6 in brackets, or any other name, then a port."""
_LONGEST_NAME: Final = 262
"""Characters of the longest name there may be, with a port."""
_REMEMBERED: Final = 64
"""Host headers whose name is remembered: nearly all requests have the same."""


class OriginGuard(msgspec.Struct, frozen=True):
    """Decides which Host and Origin headers are accepted, before the caller is identified."""

    keyless: bool
    """No keys are required, so that the headers have to be checked. With keys a foreign page lacks a key."""
    local: bool
    """The server listens on loopback only, so that only loopback addresses are its own."""
    hosts: frozenset[str] = frozenset()
    """Further names of the server, lower case and without a port; `*` is any."""
    origins: frozenset[str] = frozenset()
    """Web pages that may call it (`https://chat.example.com`), or `*`."""

    def refusal(self, headers: Mapping[str, str]) -> ChatError | None:
        """Return the error for a request with these headers, or None."""
        if not self.keyless:
            return None
        host = headers.get("host")
        origin = headers.get("origin")
        name, is_loopback_name = _name_at(host or "")
        if not (is_loopback_name or self._is_ours(name)):
            return ChatError(
                403,
                "The Host header names none of this server's addresses. Without keys only its own are answered; "
                "add the name to `server.allowed_hosts`, or set `server.public_url`, if it goes by another.",
                code="host_not_allowed",
            )
        if origin is not None and not _may_call(origin, host, self.origins):
            return ChatError(
                403,
                "This web page may not call this server. Add its origin to `server.cors_origins` if it should.",
                code="origin_not_allowed",
            )
        return None

    def _is_ours(self, name: str) -> bool:
        """True if a Host is an accepted name, or an IP address, which DNS rebinding cannot fake.

        No other name is trusted to be this machine's: who answers for `x.localhost` and `host.docker.internal` is up to the
        resolver of the network.
        """
        return name in self.hosts or "*" in self.hosts or (not self.local and _is_address(name))


def origin_guard(
    host: str,
    *,
    keyless: bool,
    public_url: str | None = None,
    allowed_hosts: Collection[str] = (),
    cors_origins: Collection[str] = (),
) -> OriginGuard:
    """Make the guard of a server that listens on `host`; `keyless` when no keys are required."""
    public = urlsplit(public_url).hostname if public_url else None
    names = {name.lower().rstrip(".") for name in (*allowed_hosts, host, public or "")} - {""}
    return OriginGuard(
        keyless=keyless,
        local=is_loopback(host),
        hosts=frozenset(name for name in names if not _is_address(name)),
        origins=frozenset(_origin_of(origin) for origin in cors_origins)
        | ({_origin_of(public_url)} if public_url else set()),
    )


def is_loopback(host: str) -> bool:
    """True if only this machine can reach what listens on `host`. A name other than localhost is not trusted to be."""
    bare = host.strip("[]").lower()
    if bare == "localhost":
        return True
    try:
        return ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return False


def _name_at(host: str) -> tuple[str, bool]:
    """Return the name in a Host header, and whether it is loopback's. To read the same address again and again would take 5 % of a
    small request."""
    if len(host) > _LONGEST_NAME:
        return _read_name(host)
    return _remembered_name(host)


@lru_cache(maxsize=_REMEMBERED)
def _remembered_name(host: str) -> tuple[str, bool]:
    return _read_name(host)


def _read_name(host: str) -> tuple[str, bool]:
    name = _name_in(host)
    return name, is_loopback(name)


def _name_in(host: str) -> str:
    """Return the name in a Host header, in lower case and without port and brackets; empty where it is not one name."""
    match = _HOST.fullmatch(host.strip().lower())
    if match is None:
        return ""
    address, name = match.groups()
    if address is not None:
        return address if ":" in address else ""
    bare = name.removesuffix(".")
    if _is_address(bare) and bare != name:
        return ""
    return bare


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _may_call(origin: str, host: str | None, allowed: frozenset[str]) -> bool:
    if "*" in allowed or _origin_of(origin) in allowed:
        return True
    name = (host or "").strip().lower()
    return name != "" and _origin_of(origin).partition("://")[2] == name


def _origin_of(url: str) -> str:
    """Return scheme, host and port. Not by `urlsplit`, which raises for some inputs."""
    scheme, mark, tail = url.strip().lower().partition("://")
    return scheme + mark + tail.partition("/")[0]
