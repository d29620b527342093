"""Reads entries about MCP servers that a request names by their addresses."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from callgate.api.field_errors import wrong
from callgate.callers.client_mcp import ClientMcp, NoAddress, RequestedServer, ServerAddress, source_of
from callgate.calls.selection import ToolSelection
from callgate.conversation.errors import ChatError
from callgate.conversation.events import ToolAsListed

MAX_HEADERS: Final = 16
MAX_HEADER_BYTES: Final = 8192
"""All headers of a server together."""
MAX_LISTED: Final = 2000
"""Tools of a list that came back."""
NOT_SENT: Final = frozenset(
    """
    accept accept-encoding connection cookie cookie2 expect forwarded host keep-alive last-event-id origin te trailer transfer-encoding
    upgrade user-agent via
    """.split()
)
"""Headers that are the protocol's, or mean something to whoever stands in between."""
_NEVER_SENT: Final = ("content-", "mcp-", "proxy-", "sec-", "x-forwarded-")
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}", re.ASCII)
_VALUE: Final = re.compile(r"[\t -~]*", re.ASCII)
_TOKEN: Final = re.compile(r"[!-~]+", re.ASCII)
_LABEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_. -]{0,63}", re.ASCII)


class ServerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What an entry of any API says of a server."""

    label: Any
    url: Any
    token: Any = None
    headers: Any = None
    refusal: str = "unsupported_value"
    """The code of the error for an address that may not be named."""
    places: Mapping[str, str] = {}
    """The names that its fields have in errors."""

    def place(self, field: str) -> str:
        return self.places.get(field, field)


def read_server(
    entry: ServerEntry, client: ClientMcp | None, labels: Iterable[str], tools: ToolSelection, *, waits: bool
) -> RequestedServer:
    """Read an entry with an address. `client`: what its key allows; `labels`: those of servers of ours. Raises `ChatError`, which
    repeats nothing of an address or a credential."""
    where = entry.place("url")
    if client is None:
        message = f"'{where}' is refused: this key may not name servers by their addresses (`client_mcp`). Name one of this server's config."
        raise ChatError(400, message, param=where, code=entry.refusal)
    label = read_label(entry, labels)
    if not isinstance(entry.url, str):
        raise wrong(where, f"Invalid type for '{where}': expected a string.", "invalid_type")
    try:
        address = ServerAddress.of(entry.url)
    except NoAddress as problem:
        raise wrong(where, f"Invalid value for '{where}': {problem}.") from None
    if not client.admits(address):
        message = f"'{where}' is refused: this key may not name that host, or not so (`client_mcp.hosts`)."
        raise ChatError(400, message, param=where, code=entry.refusal)
    return RequestedServer(
        label=label,
        address=address,
        headers=_credentials(entry),
        tools=msgspec.structs.replace(tools, source=source_of(label)),
        waits=waits,
        where=where,
    )


def read_label(entry: ServerEntry, labels: Iterable[str]) -> str:
    where = entry.place("label")
    label = entry.label
    if not isinstance(label, str) or _LABEL.fullmatch(label) is None:
        message = f"Invalid value for '{where}': expected 1 to 64 letters, digits, '_', '-', '.' or spaces."
        raise wrong(where, message)
    if label in labels:
        message = f"Invalid value for '{where}': a server of this server's config is called that. Choose another for an address."
        raise wrong(where, message)
    return label


def check_together(servers: Sequence[RequestedServer], client: ClientMcp | None) -> None:
    """Refuse too many servers, and two of one name."""
    if client is None:
        return
    if len(servers) > client.max_servers:
        where = servers[client.max_servers].where
        message = f"'{where}' is one too many: this key may name {client.max_servers} servers in a request."
        raise ChatError(400, message, param=where, code="too_many_tool_names")
    sources = set[str]()
    for server in servers:
        if server.source() in sources:
            raise wrong(server.where, f"Invalid value for '{server.where}': two servers are called '{server.label}'.")
        sources.add(server.source())


def read_listing(tools: Any) -> tuple[ToolAsListed, ...] | None:
    """Return the tools of a list that came back; None where it is not understood, so that the server is asked again. What it says of
    their safety is the client's word, and is left out."""
    if not isinstance(tools, list) or len(tools) > MAX_LISTED:
        return None
    listed: list[ToolAsListed] = []
    for tool in tools:
        if not isinstance(tool, dict):
            return None
        name = tool.get("name")
        schema = tool.get("input_schema")
        description = tool.get("description")
        if not isinstance(name, str) or not name or not isinstance(schema, dict):
            return None
        listed.append(ToolAsListed(name, description if isinstance(description, str) else "", schema))
    return tuple(listed)


def _credentials(entry: ServerEntry) -> dict[str, str]:
    """Return the headers with which the client authorizes requests to its server."""
    headers: dict[str, str] = {}
    where = entry.place("headers")
    given = entry.headers
    if given is not None:
        if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
            raise wrong(where, f"Invalid type for '{where}': expected an object of strings.", "invalid_type")
        headers = {name: value.strip() for name, value in given.items()}
    names = [name.lower() for name in headers]
    if len(set(names)) != len(names):
        raise wrong(where, f"Invalid value for '{where}': a header is named twice.")
    for name, value in headers.items():
        lower = name.lower()
        if _HEADER.fullmatch(name) is None or _VALUE.fullmatch(value) is None:
            raise wrong(where, f"Invalid value for '{where}': one of them cannot be sent as a header.")
        if lower in NOT_SENT or lower.startswith(_NEVER_SENT):
            raise wrong(where, f"Invalid value for '{where}': '{lower[:40]}' is not taken from a request.")
    token = entry.token
    if token is not None:
        where = entry.place("token")
        if not isinstance(token, str):
            raise wrong(where, f"Invalid type for '{where}': expected a string.", "invalid_type")
        scheme, _, rest = token.partition(" ")
        if scheme.lower() == "bearer":
            token = rest.strip()
        if _TOKEN.fullmatch(token) is None:
            raise wrong(where, f"Invalid value for '{where}': expected an access token.")
        if "authorization" in names:
            raise wrong(where, f"'{where}' cannot be given beside a header `Authorization`.")
        headers["Authorization"] = f"Bearer {token}"
    if len(headers) > MAX_HEADERS or sum(len(name) + len(value) for name, value in headers.items()) > MAX_HEADER_BYTES:
        where = entry.place("headers")
        message = f"Too much in '{where}': at most {MAX_HEADERS} headers of {MAX_HEADER_BYTES} bytes together are sent."
        raise wrong(where, message)
    return headers
