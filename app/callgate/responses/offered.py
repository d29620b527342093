"""Translates the tools of a response and its `tool_choice` into those of a chat."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from callgate.api.field_errors import wrong
from callgate.api.mcp_entries import OWN_LABEL, McpEntry, read_entry, shown_entry
from callgate.calls.legal_names import legal_name
from callgate.calls.selection import OF_REQUESTS, ApprovalPolicy, ToolOrigin, ToolSelection, needs_approval
from callgate.conversation.client_run_items import ClientRunItem, client_run
from callgate.conversation.errors import ChatError
from callgate.hosted.declared import AskStandIns, Declarations, HostedTool, HostedTools, by_name_in
from callgate.hosted.rows import row_of
from callgate.policy.judge import check_left_out
from callgate.responses.input_items import flat_name
from callgate.responses.original import OriginalResponse

if TYPE_CHECKING:
    from callgate.callers.client_mcp import ClientMcp, RequestedServer

MAX_NAME: Final = 64
"""Characters that providers allow for the name of a function."""
IN_FUNCTIONS: Final = ("async", "allowed_callers", "defer_loading", "output_schema")
"""The fields that functions have in this API alone."""
OF_MCP: Final = ("allowed_callers", "defer_loading")
"""The fields of an `mcp` entry that mean nothing of servers of ours."""
UNDERSTOOD: Final = frozenset({"type", "display_width", "display_height"})
LOCAL: Final = {"type": "local"}
"""What a function says too of a tool that the client runs."""
_FORMATS: Final = ("text", "grammar")
_INPUT: Final = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The whole input of the tool, as free text."}},
    "required": ["input"],
    "additionalProperties": False,
}


class ClientTool(msgspec.Struct, frozen=True, gc=False):
    """A client's tool in the Responses API, which is a function with one name in a chat."""

    name: str
    namespace: str | None = None
    custom: bool = False
    own: ClientRunItem | None = None
    """What its calls are, where they have items of their own."""


class Offered(msgspec.Struct):
    """The tools of one request."""

    functions: list[dict[str, Any]] = []
    """In the format of Chat Completions."""
    clients: dict[str, ClientTool] = {}
    """Tools with a namespace, and custom tools, by their names in the chat."""
    names: set[str] = set()
    """The names of all functions."""
    chat_names: dict[tuple[str | None, str], str] = {}
    """The names in the chat of `clients`, by namespace and name."""
    shown: list[dict[str, Any]] = []
    """The tools as the response shows them."""
    selections: list[ToolSelection] | None = None
    """The tools of ours that the request selects, if it does."""
    entries: list[McpEntry] = []
    """About MCP servers."""
    approvals: list[ApprovalPolicy] = []
    elsewhere: list[dict[str, Any]] = []
    """The tools that nobody here has; a provider may."""
    further: dict[str, dict[str, Any]] = {}
    """What functions have beside the fields of a chat's, by their names in the chat."""
    native: dict[str, dict[str, Any]] = {}
    """The tools that the client runs and this API knows, by the names of their functions."""
    unplaced: set[str] = set()
    """The names of what only functions of this API have."""
    original: OriginalResponse | None = None
    """What of the request goes on to a model behind this API, beside the chat; set once it was judged."""
    unheard: set[str] = set()
    """What of the tools no model is told of."""
    decided: dict[str, str] = {}
    """The ids of approval requests, by the calls that were decided."""
    hosted: HostedTools | None = None
    """The tools that tools of ours stand for, if any."""
    hosted_by_name: Mapping[str, HostedTool] = {}
    """The same, by the names of those that stand for them."""

    def label_of(self, source: str | None) -> str:
        """Return the server label of a tool of ours, or of a server that the request names by its address."""
        return (source or OWN_LABEL).removeprefix(OF_REQUESTS)

    def server(self, label: Any) -> "RequestedServer | None":
        """Return the server that the request names by its address, and by this label."""
        servers = (entry.server for entry in self.entries)
        return next((server for server in servers if server is not None and server.label == label), None)

    def asks(self, origin: ToolOrigin | None) -> bool:
        """True if calls of a tool need the client's approval."""
        return needs_approval(self.approvals, origin)


ADDING: Final = frozenset({"additional_tools", "tool_search_output"})
"""Items of the input with tools, which are offered from the first turn on: no prompt has to change in the middle of a chat."""


def _adds_tools(item: Any) -> bool:
    return isinstance(item, dict) and isinstance(kind := item.get("type"), str) and kind in ADDING


def offered_tools(
    entries: Sequence[Any],
    stand_ins: AskStandIns,
    labels: Callable[[], frozenset[str]],
    items: str | Sequence[Any] = (),
    client: "ClientMcp | None" = None,
) -> Offered:
    """Read the tools of a request. `labels` returns the names of MCP servers; `items`: the input, which may add tools; `client`: which
    other servers its key may name."""
    places = [f"tools[{at}]" for at in range(len(entries))]
    if not isinstance(items, str) and any(map(_adds_tools, items)):
        from callgate.responses.added_tools import with_added  # few requests have such items

        listed = with_added(entries, items)
        entries = listed.tools
        places = list(listed.places)
    offered = Offered()
    declared: list[tuple[str, dict[str, Any]]] = []
    for where, tool in zip(places, entries, strict=True):
        if not isinstance(tool, dict) or not isinstance(tool.get("type"), str):
            raise wrong(f"{where}.type", f"Missing required parameter: '{where}.type'.", "missing_required_parameter")
        match tool["type"]:
            case "function" | "custom":
                offered.functions.append(_client_tool(offered, tool, None, where))
                if tool["type"] == "function":
                    blank = {"description": None, "parameters": None, "strict": None}
                else:
                    blank = {}
                offered.shown.append({**blank, **tool})
            case "namespace":
                _add_namespace(offered, tool, where)
            case "mcp":
                may_name = client if where.startswith("tools[") else None  # items are stored as they came
                _add_server(offered, tool, read_entry(tool, labels(), where, may_name, approves_itself=True))
            case kind if row_of(kind) is not None:
                declared.append((where, tool))
                offered.shown.append(tool)
            case _ if (own := client_run(tool)) is not None:
                _add_client_run(offered, own, tool, where)
            case _:
                _leave_to_provider(offered, tool, where)
                offered.shown.append(tool)
    _add_declared(offered, declared, stand_ins)
    return offered


def _add_server(offered: Offered, tool: dict[str, Any], entry: McpEntry) -> None:
    """Add an entry about an MCP server."""
    offered.entries.append(entry)
    offered.unheard.update(f"{field} of an mcp entry" for field in OF_MCP if tool.get(field) is not None)
    offered.selections = offered.selections or []
    if entry.server is None:
        offered.selections.append(entry.selection)
    if entry.approval is not None:
        offered.approvals.append(entry.approval)
    offered.shown.append(shown_entry(tool))


def _add_declared(offered: Offered, declared: Sequence[tuple[str, dict[str, Any]]], stand_ins: AskStandIns) -> None:
    """Add tools that providers run, each with its place: those that tools of ours stand for, and the others."""
    if not declared:
        return
    declarations = Declarations(stand_ins)
    for where, tool in declared:
        if declarations.take(tool, where) is None:
            _leave_to_provider(offered, tool, where)
    offered.hosted = declarations.tools(offered.names, comes_back=True)
    offered.hosted_by_name = by_name_in(offered.hosted)


def _leave_to_provider(offered: Offered, tool: dict[str, Any], where: str) -> None:
    """Add a tool that nobody here has."""
    check_left_out(tool, where)
    offered.elsewhere.append(tool)


def _add_namespace(offered: Offered, tool: dict[str, Any], where: str) -> None:
    name = _name(tool, where)
    if not isinstance(inner := tool.get("tools"), list):
        raise wrong(f"{where}.tools", f"Invalid type for '{where}.tools': expected an array.", "invalid_type")
    if tool.get("description"):
        offered.unheard.add("description of a namespace")
    for at, function in enumerate(inner):
        offered.functions.append(_client_tool(offered, function, name, f"{where}.tools[{at}]"))
    offered.shown.append(tool)


def _add_client_run(offered: Offered, own: ClientRunItem, tool: dict[str, Any], where: str) -> None:
    if own.name in offered.names:
        raise wrong(f"{where}.type", f"Invalid value for '{where}.type': another tool is called '{own.name}'.")
    offered.names.add(own.name)
    offered.clients[own.name] = ClientTool(own.name, own=own)
    offered.native[own.name] = native = own.native(tool)
    offered.unplaced.update(f"tools.{name}" for name in native.keys() - UNDERSTOOD if native[name] != LOCAL)
    function = own.function()
    if sizes := [str(native[name]) for name in ("display_width", "display_height") if name in native]:
        function["description"] += f" The display has {' by '.join(sizes)} pixels."
    offered.functions.append({"type": "function", "function": function})
    offered.shown.append(tool)


def chat_choice(choice: Any, offered: Offered) -> Any:
    """Return the tool choice in the format of Chat Completions, or None where there is none."""
    if choice is None or isinstance(choice, str):
        if choice not in (None, "auto", "none", "required"):
            raise _bad_choice()
        return choice
    if not isinstance(choice, dict):
        raise _bad_choice()
    match choice.get("type"):
        case "allowed_tools":
            mode = choice.get("mode", "auto")
            tools = choice.get("tools")
            if mode not in ("auto", "required") or not isinstance(tools, list):
                raise _bad_choice()
            named = [name for tool in tools for name in _chosen_names(tool, offered)]
            allowed = {"mode": mode, "tools": [_function(name) for name in named]}
            return {"type": "allowed_tools", "allowed_tools": allowed}
        case "mcp" if not choice.get("name"):
            return "required"
        case "mcp" if (server := offered.server(choice.get("server_label"))) is not None:
            return _function(*server.names((str(choice["name"]),)))
        case _:
            return _function(*_chosen_names(choice, offered))


def _chosen_names(choice: Any, offered: Offered) -> Iterator[str]:
    if not isinstance(choice, dict) or not isinstance(kind := choice.get("type"), str):
        raise _bad_choice()
    if kind in ("function", "custom", "mcp"):
        if not isinstance(name := choice.get("name"), str) or not name:
            raise _bad_choice()
        # The name in the chat, which may be shortened for a namespace.
        namespace = choice.get("namespace")
        if isinstance(namespace, str | None):
            chat_name = offered.chat_names.get((namespace, name))
        else:
            chat_name = None
        yield (chat_name or legal_name(flat_name(namespace, name)))
    elif (hosted := _hosted_name(kind, offered)) is not None:
        yield hosted
    elif kind in offered.native:
        yield kind
    else:
        message = f"No '{kind[:64]}' tool is to be had here, so that it cannot be demanded. 'tool_choice' is refused."
        raise ChatError(400, message, param="tool_choice", code="unsupported_value")


def _hosted_name(kind: str, offered: Offered) -> str | None:
    """Return the name of the tool of ours that stands for one of this type."""
    tools = offered.hosted_by_name.values()
    row = row_of(kind)
    return next((tool.name for tool in tools if tool.kind == kind or tool.row is row), None)


def _function(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def _bad_choice() -> ChatError:
    return wrong("tool_choice", "Invalid value for 'tool_choice': expected 'none', 'auto', 'required' or an object.")


def _client_tool(offered: Offered, tool: Any, namespace: str | None, where: str) -> dict[str, Any]:
    if not isinstance(tool, dict) or tool.get("type") not in ("function", "custom"):
        raise wrong(f"{where}.type", f"Invalid value for '{where}.type': expected 'function' or 'custom'.")
    name = _name(tool, where)
    custom = tool["type"] == "custom"
    flat = legal_name(flat_name(namespace, name))
    if (namespace is None and len(name) > MAX_NAME) or flat in offered.names:
        raise wrong(f"{where}.name", f"Invalid value for '{where}.name': too long, or another tool is called that.")
    offered.names.add(flat)
    if custom or flat != name:
        offered.clients[flat] = ClientTool(name, namespace, custom)
        offered.chat_names.setdefault((namespace, name), flat)
    if further := {field: tool[field] for field in IN_FUNCTIONS if tool.get(field) is not None}:
        offered.further[flat] = further
        offered.unplaced.update(f"tools.{field}" for field in further)
    function: dict[str, Any] = {"name": flat}
    description = tool.get("description")
    if description is not None and not isinstance(description, str):
        raise wrong(
            f"{where}.description", f"Invalid type for '{where}.description': expected a string.", "invalid_type"
        )
    if custom:
        function |= {"description": _with_format(description, tool.get("format"), where), "parameters": _INPUT}
        return {"type": "function", "function": function}
    parameters = tool.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise wrong(
            f"{where}.parameters", f"Invalid type for '{where}.parameters': expected an object.", "invalid_type"
        )
    function |= {} if description is None else {"description": description}
    function |= {"parameters": parameters or {"type": "object", "properties": {}}}
    if tool.get("strict") is not None:
        if not isinstance(tool["strict"], bool):
            raise wrong(f"{where}.strict", f"Invalid type for '{where}.strict': expected a boolean.", "invalid_type")
        function["strict"] = tool["strict"]
    return {"type": "function", "function": function}


def _with_format(description: str | None, format: Any, where: str) -> str:
    """Return the description of a custom tool with the grammar of its input, which a function cannot enforce."""
    if format is None:
        return description or ""
    if not isinstance(format, dict) or format.get("type") not in _FORMATS:
        raise wrong(f"{where}.format", f"Invalid value for '{where}.format': expected a text or a grammar.")
    if format["type"] == "text":
        return description or ""
    return f"{description or ''}\n\nThe input follows this {format.get('syntax')} grammar:\n{format.get('definition')}"


def _name(tool: Mapping[str, Any], where: str) -> str:
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise wrong(f"{where}.name", f"Missing required parameter: '{where}.name'.", "missing_required_parameter")
    return name
