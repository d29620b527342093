"""The proxies of the environment: `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY`, in upper or lower case."""

import base64
import ipaddress
import os
import re
from collections.abc import Mapping
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

from callgate.config.unprinted import Unprinted
from callgate.http.interface import ConnectFailed

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

USUAL_PORTS = {"http": 80, "https": 443}
_PORT = re.compile(r":(\d{1,5})$")


class Proxy(Unprinted, frozen=True):
    unprinted = frozenset({"authorization"})

    host: str
    port: int
    secure: bool = False
    """Whether the connection to the proxy itself uses TLS."""
    authorization: str | None = None

    def __str__(self) -> str:
        return f"the proxy {f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


class Proxies(Unprinted, frozen=True):
    """The proxies of the environment. A variable in lower case takes precedence over upper case, even if it is empty."""

    unprinted = frozenset({"http", "https"})

    http: str = ""
    https: str = ""
    no_proxy: str = ""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> "Proxies | None":
        """Read the environment; None where it names no proxy."""

        def value(name: str) -> str:
            return environ.get(name.lower(), environ.get(name.upper(), "")).strip()

        every = value("all_proxy")
        proxies = cls(value("http_proxy") or every, value("https_proxy") or every, value("no_proxy"))
        if proxies.http or proxies.https:
            return proxies
        return None

    def proxy_for(self, host: str, port: int, *, secure: bool) -> Proxy | None:
        address = self.https if secure else self.http
        if not address or self._is_exempt(host.lower().rstrip("."), port):
            return None
        return _proxy_at(address, "HTTPS_PROXY" if secure else "HTTP_PROXY")

    def _is_exempt(self, host: str, port: int) -> bool:
        """True if `NO_PROXY` includes the host: by `*`, its name or a suffix, its address or network, with or without a port."""
        address = _ip(host)
        for entry in re.split(r"[,\s]+", self.no_proxy.lower()):
            name = entry
            if (port_part := _PORT.search(entry)) and _ip(entry) is None:
                if int(port_part[1]) != port:
                    continue
                name = entry[: port_part.start()]
            if name == "*":
                return True
            name = name.strip("[]").removeprefix("*").strip(".")
            if not name:
                continue
            if address is None:
                if host == name or host.endswith(f".{name}"):
                    return True
            elif (network := _network(name)) is not None and address in network:
                return True
        return False


def _proxy_at(address: str, variable: str) -> Proxy:
    """Parse the proxy in a variable. An unusable one fails the request, because a direct connection is not what was configured."""
    try:
        parts = urlsplit(address if "://" in address else f"http://{address}")
        host = parts.hostname
        port = parts.port
    except ValueError:
        raise ConnectFailed(f"{variable} (or ALL_PROXY) is not an address") from None
    if parts.scheme not in USUAL_PORTS or not host:
        raise ConnectFailed(
            f"{variable} (or ALL_PROXY) names a {parts.scheme} proxy, which cannot be used: "
            "name an HTTP proxy, or exempt the host in NO_PROXY"
        )
    if parts.username is None:
        authorization = None
    else:
        authorization = basic_credentials(parts.username, parts.password)
    return Proxy(host, port or USUAL_PORTS[parts.scheme], parts.scheme == "https", authorization)


def basic_credentials(username: str, password: str | None) -> str:
    """Return the credentials of a URL as the value of a header."""
    user = f"{unquote(username)}:{unquote(password or '')}"
    return f"Basic {base64.b64encode(user.encode()).decode()}"


def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _network(text: str) -> Network | None:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None
