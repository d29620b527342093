"""Lists the tools of the config's servers that a response's request names, and knows which lists its client has by now."""

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from callgate.api.conversation import Conversation
from callgate.api.endpoint import route_of
from callgate.api.mcp_entries import OWN_LABEL, McpEntry
from callgate.calls.selection import ToolSelection
from callgate.conversation.events import ToolAsListed, ToolsListed
from callgate.responses.output import listed_tool
from callgate.tools.executor import Safety
from callgate.tools.registry import RegisteredTool

LISTING: Final = "mcp_list_tools"
NOT_OPEN: Final = "its tools are not to be had at the moment"
_MARK_BYTES: Final = 12

_encode = msgspec.json.Encoder(order="sorted").encode


def lists_of_ours(conversation: Conversation, entries: Iterable[McpEntry]) -> list[ToolsListed]:
    """Return the lists of the servers that entries name by their labels: what is offered of each, whatever `tool_choice` says of the
    single turn."""
    selections: dict[str, list[ToolSelection]] = {}
    for entry in entries:
        if entry.server is None:
            selections.setdefault(entry.selection.source or "", []).append(entry.selection)
    if not selections:
        return []
    tools = _offered(conversation)
    not_open = {status.name for status in conversation.runtime.registry.sources() if not status.has_tools}
    return [_list_of(source, of_source, tools, not_open) for source, of_source in selections.items()]


def marks_in(items: str | Iterable[Any]) -> dict[str, str]:
    """Return marks of the lists among items, by the labels of their servers."""
    if isinstance(items, str):
        return {}
    return dict(_marks(items))


def is_marked(marks: Mapping[str, str], listed: ToolsListed) -> bool:
    """True if the client has this very list."""
    mark = marks.get(listed.server)
    return mark is not None and not listed.error and mark == _mark_of(list(map(listed_tool, listed.tools)))


def _offered(conversation: Conversation) -> Sequence[RegisteredTool]:
    request = conversation.request
    route = conversation.route
    if request.tools.allowed is not None or request.tools.choice == "none":
        any_tool = replace(request, tools=replace(request.tools, allowed=None, choice=None))
        route = route_of(conversation.runtime, any_tool, conversation.caller, conversation.principal)
    if route.server_tools is None:
        return ()
    return [*route.server_tools.by_name.values()]


def _list_of(
    source: str, selections: Sequence[ToolSelection], tools: Sequence[RegisteredTool], not_open: Collection[str]
) -> ToolsListed:
    label = source or OWN_LABEL
    if source in not_open:
        return ToolsListed(label, error=NOT_OPEN)
    listed = [_as_listed(tool) for tool in tools if any(selection.admits(tool.origin()) for selection in selections)]
    return ToolsListed(label, sorted(listed, key=lambda tool: tool.name))


def _as_listed(tool: RegisteredTool) -> ToolAsListed:
    """Return a tool by its name in calls, with our policy as the protocol's hints, whatever its server says of it."""
    safety = tool.tool.policy.safety
    annotations = {"readOnlyHint": safety is Safety.READ_ONLY, "destructiveHint": safety is Safety.DESTRUCTIVE}
    return ToolAsListed(tool.name, tool.tool.description, tool.offered.parameters, annotations)


def _marks(items: Iterable[Any]) -> Iterator[tuple[str, str]]:
    for item in items:
        if not isinstance(item, dict) or item.get("type") != LISTING or item.get("error"):
            continue
        label = item.get("server_label")
        tools = item.get("tools")
        if isinstance(label, str) and isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools):
            yield label, _mark_of(tools)


def _mark_of(tools: Sequence[Mapping[str, Any]]) -> str:
    """Return what two lists have in common only if they say the same. A client may have added the fields that are null."""
    entries = [
        (tool.get("name"), tool.get("description") or "", tool.get("input_schema"), tool.get("annotations"))
        for tool in tools
    ]
    return hashlib.blake2b(_encode(entries), digest_size=_MARK_BYTES).hexdigest()
