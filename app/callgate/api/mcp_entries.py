"""Reads the `mcp` entries of a request's tools: a server, which of its tools, and which calls are to be approved. It is one of the
operator's, or one that the client names by its address, if its key may. No address is sent to a provider that would call it."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from callgate.api.field_errors import wrong
from callgate.calls.selection import ApprovalPolicy, ToolSelection
from callgate.conversation.errors import ChatError
from callgate.untrusted.doors import written_here
from callgate.untrusted.readers import EMPTY_LIST, json_reader

if TYPE_CHECKING:  # imported with the first entry that has an address
    from callgate.callers.client_mcp import ClientMcp, NamedServers, RequestedServer

OWN_LABEL: Final = "callgate"
"""The server label of our tools that are from no MCP server."""
OWN_SOURCE: Final = ""
MCP_SCHEME: Final = "callgate:"
"""The scheme of URLs for servers of ours, for clients that require one: `callgate:NAME`."""
CALLED_ELSEWHERE: Final = {
    "connector_id": "OpenAI's connectors are called from OpenAI alone",
    "tunnel_id": "OpenAI's tunnels are reached from OpenAI alone",
    "url": "an address stands in `server_url`",
}
"""Fields that name a server that cannot be called from here."""
CREDENTIALS: Final = ("authorization", "headers")
"""Fields for a server that is named by its address."""
FILTER_KEYS: Final = ("tool_names", "read_only")
MAX_NAMES: Final = 1000


class McpEntry(msgspec.Struct, frozen=True):
    """One entry."""

    selection: ToolSelection
    approval: ApprovalPolicy | None
    server: "RequestedServer | None" = None
    """Set where it names one by its address."""


def read_entry(
    entry: Mapping[str, Any],
    labels: frozenset[str],
    where: str,
    client: "ClientMcp | None" = None,
    *,
    approves_itself: bool = False,
) -> McpEntry:
    """Read an entry. `labels`: the names of the MCP servers; `client`: which others its key may name; `approves_itself`: whether the
    client is asked for approvals by its API. Raises `ChatError`."""
    for name, why in CALLED_ELSEWHERE.items():
        if entry.get(name) is not None:
            message = (
                f"'{where}.{name}' is refused: {why}. Give a 'server_label' of this server's config, or a 'server_url'."
            )
            raise ChatError(400, message, param=f"{where}.{name}", code="unsupported_value")
    address = entry.get("server_url")
    if address is not None and address != f"{MCP_SCHEME}{entry.get('server_label')}":
        return _entry_with_address(entry, labels, where, client, approves_itself=approves_itself)
    label = entry.get("server_label")
    if not isinstance(label, str) or (label != OWN_LABEL and label not in labels):
        raise wrong(f"{where}.server_label", f"Invalid value for '{where}.server_label': no such server.")
    for name in CREDENTIALS:
        if entry.get(name) is not None:
            message = (
                f"'{where}.{name}' is refused: the credentials of this server's own MCP servers stand in its config."
            )
            raise ChatError(400, message, param=f"{where}.{name}", code="unsupported_value")
    source = OWN_SOURCE if label == OWN_LABEL else label
    selection = read_filter(entry.get("allowed_tools"), source, f"{where}.allowed_tools")
    return McpEntry(selection, approval_policy(entry.get("require_approval"), source, f"{where}.require_approval"))


def _entry_with_address(
    entry: Mapping[str, Any],
    labels: frozenset[str],
    where: str,
    client: "ClientMcp | None",
    *,
    approves_itself: bool,
) -> McpEntry:
    from callgate.api.client_servers import ServerEntry, read_server  # few requests have one

    named = ServerEntry(
        label=entry.get("server_label"),
        url=entry["server_url"],
        token=entry.get("authorization"),
        headers=entry.get("headers"),
        places={
            "label": f"{where}.server_label",
            "url": f"{where}.server_url",
            "token": f"{where}.authorization",
            "headers": f"{where}.headers",
        },
    )
    tools = read_filter(entry.get("allowed_tools"), None, f"{where}.allowed_tools")
    wish = entry.get("require_approval")
    server = read_server(named, client, {OWN_LABEL, *labels}, tools, waits=wish is None and not approves_itself)
    if wish is None and approves_itself:
        wish = "always"
    approval = approval_policy(wish, server.source(), f"{where}.require_approval")
    return McpEntry(server.tools, approval, server)


def servers_of(entries: Sequence[McpEntry], client: "ClientMcp | None", demanded: str = "") -> "NamedServers | None":
    """Return the servers that entries name by their addresses; None where there are none. Raises `ChatError` for too many."""
    servers = [entry.server for entry in entries if entry.server is not None]
    if not servers:
        return None
    from callgate.api.client_servers import check_together
    from callgate.callers.client_mcp import NamedServers

    check_together(servers, client)
    return NamedServers(clients=servers, demanded=demanded)


def shown_entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry as an answer repeats it: without credentials, and of an address no more than its host."""
    shown = {name: value for name, value in entry.items() if name not in CREDENTIALS}
    if shown.get("server_url") is not None and not shown["server_url"].startswith(MCP_SCHEME):
        from callgate.callers.client_mcp import ServerAddress

        shown["server_url"] = f"{ServerAddress.of(shown['server_url']).origin}/<redacted>"
    return shown


def without_credentials(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name not in CREDENTIALS}


def read_filter(filter: Any, source: str | None, where: str) -> ToolSelection:
    """Read a filter of tools: a list of names, or an object with `tool_names` and `read_only`."""
    if filter is None:
        return ToolSelection(source=source)
    if isinstance(filter, list):
        filter = {"tool_names": filter}
    if not isinstance(filter, dict):
        raise wrong(where, f"Invalid type for '{where}': expected names of tools or a filter.", "invalid_type")
    for key in filter:
        if key not in FILTER_KEYS:
            message = f"Unknown key in '{where}': a filter has {' and '.join(f'`{name}`' for name in FILTER_KEYS)}."
            raise wrong(f"{where}.{key[:64]}", message, "unknown_parameter")
    names = filter.get("tool_names")
    read_only = filter.get("read_only")
    if read_only is not None and not isinstance(read_only, bool):
        raise wrong(f"{where}.read_only", f"Invalid type for '{where}.read_only': expected a boolean.", "invalid_type")
    if names is None:
        return ToolSelection(source=source, read_only=read_only)
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise wrong(where, f"Invalid value for '{where}': expected names of tools.")
    if len(names) > MAX_NAMES:
        raise wrong(where, f"Too many tools are named in '{where}': at most {MAX_NAMES}.", "too_many_tool_names")
    return ToolSelection(source=source, names=frozenset(names), read_only=read_only)


def approval_policy(wish: Any, source: str, where: str) -> ApprovalPolicy | None:
    if wish in (None, "never"):
        return None  # then the rules of the config count
    if wish == "always":
        return ApprovalPolicy(source=source)
    if not isinstance(wish, dict) or not wish or wish.keys() - {"always", "never"}:
        raise wrong(where, f"Invalid value for '{where}': expected 'always', 'never' or filters of tools under them.")
    filters = {word: _approval_filter(wish[word], source, f"{where}.{word}") for word in wish}
    return ApprovalPolicy(source=source, **filters)


def _approval_filter(filter: Any, source: str, where: str) -> ToolSelection:
    if filter is None:
        return ToolSelection(source=source, names=frozenset())
    if not isinstance(filter, dict) or not filter:
        raise wrong(where, f"Invalid value for '{where}': expected a filter with `tool_names` or `read_only`.")
    return read_filter(filter, source, where)


def without_stored_credentials(body: bytes) -> bytes:
    """Return the body of a request without the credentials of its `mcp` entries, for storing it. The same body where there are
    none."""
    may_be_escaped = b"\\u00" in body
    if not may_be_escaped and not (b'"mcp"' in body and any(f'"{name}"'.encode() in body for name in CREDENTIALS)):
        return body
    try:
        fields: dict[str, msgspec.Raw] = _fields(written_here(body))  # counted when it came in
        tools: Sequence[Any] = _tools(fields.get("tools", EMPTY_LIST))
    except (msgspec.DecodeError, RecursionError):
        return body  # refused when it is read
    cleaned = [without_credentials(tool) if _is_mcp(tool) else tool for tool in tools]
    if cleaned != tools:
        return msgspec.json.encode({**fields, "tools": cleaned})
    return body


def _is_mcp(tool: Any) -> bool:
    return isinstance(tool, dict) and tool.get("type") == "mcp"


_fields = json_reader(dict[str, msgspec.Raw])
_tools = json_reader(list[Any])
