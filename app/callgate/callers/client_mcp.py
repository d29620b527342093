"""MCP servers that requests name by their addresses: which of them a key may name, and what a request says of one."""

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final

import msgspec

from callgate.calls.legal_names import RESERVED_PREFIX, hashed_name, legal_name
from callgate.calls.selection import OF_REQUESTS, ToolSelection
from callgate.conversation.events import ToolAsListed

PORTS: Final[Mapping[str, int]] = {"https": 443, "http": 80}
MAX_URL: Final = 2048
MAX_PORT: Final = 65_535
_ADDRESS: Final = re.compile(
    r"(https?)://(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::([0-9]{1,5}))?([/?][!-~]*)?",
    re.IGNORECASE | re.ASCII,
)
_NEVER_IN_PATHS: Final = re.compile(r"[\\#\"<>^`{|}]")
_PATTERN: Final = re.compile(
    r"(?:(https?)://)?(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._*?-]{1,253})(?::([0-9]{1,5}))?", re.IGNORECASE | re.ASCII
)
_LABELS: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*")
_LIKE_A_KEY: Final = re.compile(r"(?=[^/?&=]*[0-9])(?=[^/?&=]*[A-Za-z])[^/?&=]{16,}")
"""Parts of a path or a query that may be secrets."""
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_-]+")
_ENDS_IN_NUMBER: Final = re.compile(r"(?:^|\.)(?:[0-9]+|0x[0-9a-f]*)$")


class NoAddress(ValueError):
    """Raised for what is no address of a server, with the reason in words."""


class ServerAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a server. It is read as strictly as possible, so that nobody behind reads another host in it."""

    scheme: str
    host: str
    """A name in lower case, or an IP address in its usual form, without brackets."""
    port: int
    path: str
    """With the query, which may hold a secret."""

    @classmethod
    def of(cls, url: str) -> "ServerAddress":
        """Read a URL. Raises `NoAddress`, whose words repeat nothing of it."""
        parts = None
        if len(url) <= MAX_URL:
            parts = _ADDRESS.fullmatch(url)
        if parts is None or _NEVER_IN_PATHS.search(parts[4] or ""):
            raise NoAddress("it should be like `https://mcp.example.com/mcp`, without user name or fragment")
        scheme = parts[1].lower()
        path = parts[4] or "/"
        if path.startswith("?"):
            path = f"/{path}"
        return cls(scheme=scheme, host=_host(parts[2]), port=_port(parts[3], scheme), path=path)

    @property
    def origin(self) -> str:
        """What of it may be shown."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        if self.port == PORTS[self.scheme]:
            return f"{self.scheme}://{host}"
        return f"{self.scheme}://{host}:{self.port}"

    @property
    def url(self) -> str:
        return self.origin + self.path

    def __repr__(self) -> str:
        return f"ServerAddress({self.origin})"


def _host(text: str) -> str:
    text = text.lower()
    try:
        if text.startswith("["):
            return str(ipaddress.IPv6Address(text[1:-1]))
        if _ENDS_IN_NUMBER.search(text):
            return str(ipaddress.IPv4Address(text))  # four decimal numbers, and no other form
    except ValueError:
        raise NoAddress("its host is a number, and no IP address in its usual form") from None
    if _LABELS.fullmatch(text) is None:
        raise NoAddress("its host is no name of a host")
    return text


def _port(text: str | None, scheme: str) -> int:
    if text is None:
        return PORTS[scheme]
    if not 0 < int(text) <= MAX_PORT:
        raise NoAddress("its port is none")
    return int(text)


class HostPattern(msgspec.Struct, frozen=True, kw_only=True):
    """Hosts that requests may name, as an operator writes them: `mcp.example.com`, `*.example.com:8443`, `http://localhost:9000`."""

    scheme: str
    host: str
    port: int

    @classmethod
    def of(cls, text: str) -> "HostPattern":
        """Read a pattern. Raises `NoAddress`."""
        parts = _PATTERN.fullmatch(text)
        if parts is None:
            raise NoAddress(
                "it should be a host or a glob, with a port where it is another, and `http://` where it is not encrypted"
            )
        scheme = (parts[1] or "https").lower()
        host = parts[2].lower()
        if "*" not in host and "?" not in host:
            host = _host(host)
        return cls(scheme=scheme, host=host, port=_port(parts[3], scheme))

    @property
    def is_written_out(self) -> bool:
        return "*" not in self.host and "?" not in self.host

    def admits(self, address: ServerAddress) -> bool:
        if (self.scheme, self.port) != (address.scheme, address.port):
            return False
        return self.host == address.host or (not self.is_written_out and fnmatchcase(address.host, self.host))


class ClientMcp(msgspec.Struct, frozen=True, kw_only=True):
    """Which servers the requests of a key may name, and what holds for these."""

    hosts: tuple[HostPattern, ...] | None = None
    """None for any that is public, by `https` at its usual port."""
    max_servers: int = 4
    tools: int = 64
    """The limit for all servers of a request together."""
    result_bytes: int | None = None
    timeout: float = 30.0
    trust_annotations: bool = False
    """What a server says of the safety of its tools counts."""

    def patterns_for(self, address: ServerAddress) -> Iterator[HostPattern]:
        """Yield the patterns that admit an address."""
        return (pattern for pattern in self.hosts or () if pattern.admits(address))

    def admits(self, address: ServerAddress) -> bool:
        if self.hosts is None:
            return address.scheme == "https" and address.port == PORTS["https"]
        return any(True for _ in self.patterns_for(address))


class RequestedServer(msgspec.Struct, frozen=True, kw_only=True):
    """A server that a request names by its address."""

    label: str
    address: ServerAddress
    headers: Mapping[str, str]
    """The credentials of the client, for this address alone."""
    tools: ToolSelection
    """Those of its tools that the request wants."""
    listing: tuple[ToolAsListed, ...] | None = None
    """Its tools as an earlier answer listed them, so that it is not asked for them again."""
    waits: bool = False
    """Its calls wait for approval unless a rule of the config says otherwise, because the request does not."""
    where: str = ""
    """The field of the request, for errors."""

    def source(self) -> str:
        """Return the source of its tools."""
        return source_of(self.label)

    def names(self, tools: Iterable[str]) -> Iterator[str]:
        """Yield the names for models that some of its tools get, unless others have them."""
        return (claimed_name(self.label, tool) for tool in tools)

    def secrets(self) -> Iterator[str]:
        """Yield what nobody but that server may be shown."""
        for value in self.headers.values():
            yield value
            yield from value.split(" ")[1:]
        yield from _LIKE_A_KEY.findall(self.address.path)

    def __repr__(self) -> str:
        return f"RequestedServer({self.label})"


class NamedServers(msgspec.Struct, frozen=True, kw_only=True):
    """The servers that a request names by their addresses."""

    clients: Sequence[RequestedServer] = ()
    demanded: str = ""
    """The label of the one that has to be called."""

    @property
    def has_credentials(self) -> bool:
        return any(server.headers for server in self.clients)

    def secrets(self) -> list[str]:
        return [secret for server in self.clients for secret in server.secrets()]


def source_of(label: str) -> str:
    """Return the source of the tools of a server with this label."""
    return OF_REQUESTS + label


def claimed_name(label: str, tool: str) -> str:
    """Return the name that a tool of such a server gets for models, unless another tool has it."""
    prefix = _NOT_IN_NAMES.sub("_", label).strip("_")
    if prefix and not tool.startswith(f"{prefix}_"):
        tool = f"{prefix}_{tool}"
    if tool.startswith(RESERVED_PREFIX):
        return hashed_name(tool, tool)
    return legal_name(tool)


def is_of_request(source: str) -> bool:
    """True for the source of a server that a request named by its address."""
    return source.startswith(OF_REQUESTS)


def label_of(source: str) -> str:
    """Return the label of a source, as a client knows it."""
    return source.removeprefix(OF_REQUESTS)
