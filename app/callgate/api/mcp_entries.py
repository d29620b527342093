"""Reads the `mcp` entries of a request's tools: a server of the operator's, which of its tools, and which calls are to be
approved. An entry names no address; none from a request is ever called, or sent to a provider that would call it."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from callgate.api.field_errors import wrong
from callgate.calls.selection import ApprovalPolicy, ToolSelection
from callgate.conversation.errors import ChatError
from callgate.untrusted.doors import written_here
from callgate.untrusted.readers import EMPTY_LIST, json_reader

OWN_LABEL: Final = "callgate"
"""The server label of our tools that are from no MCP server."""
OWN_SOURCE: Final = ""
ADDRESSES: Final = ("server_url", "connector_id", "tunnel_id", "url")
"""Fields that name a server of the client's choice."""
CREDENTIALS: Final = frozenset({"authorization", "headers"})
"""Fields for such a server, which nobody here needs."""
FILTER_KEYS: Final = ("tool_names", "read_only")
MAX_NAMES: Final = 1000


class McpEntry(msgspec.Struct, frozen=True):
    """One entry."""

    selection: ToolSelection
    approval: ApprovalPolicy | None


def read_entry(entry: Mapping[str, Any], labels: frozenset[str], where: str) -> McpEntry:
    """Read an entry. `labels`: the names of the MCP servers. Raises `ChatError`."""
    for name in ADDRESSES:
        if entry.get(name) is not None:
            message = f"Addresses of the client's are not called; name one of our servers. '{where}.{name}' is refused."
            raise ChatError(400, message, param=f"{where}.{name}", code="unsupported_value")
    label = entry.get("server_label")
    if not isinstance(label, str) or (label != OWN_LABEL and label not in labels):
        raise wrong(f"{where}.server_label", f"Invalid value for '{where}.server_label': no such server.")
    source = OWN_SOURCE if label == OWN_LABEL else label
    selection = read_filter(entry.get("allowed_tools"), source, f"{where}.allowed_tools")
    return McpEntry(selection, _approval_policy(entry.get("require_approval"), source, f"{where}.require_approval"))


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


def _approval_policy(wish: Any, source: str, where: str) -> ApprovalPolicy | None:
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
