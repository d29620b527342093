"""Gathers the MCP servers that a response's request names, with the lists of their tools that its client has by now."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from callgate.api.client_servers import check_together, read_listing
from callgate.api.mcp_entries import McpEntry
from callgate.callers.client_mcp import NamedServers, claimed_name
from callgate.state.responses import StoredResponse
from callgate.untrusted.readers import read_value

if TYPE_CHECKING:
    from callgate.callers.client_mcp import ClientMcp

LISTING: Final = "mcp_list_tools"
WITH_NAMES: Final = ("mcp_call", "mcp_approval_request")


def named_servers(
    entries: Sequence[McpEntry],
    client: "ClientMcp | None",
    choice: Any,
    items: str | Sequence[Any],
    parent: StoredResponse | None,
) -> NamedServers | None:
    """Return the servers that some entries name by their addresses; None where there are none. `items`: the input; `parent`: the previous response, whose lists count too."""
    if all(entry.server is None for entry in entries):
        return None
    listings: dict[Any, Mapping[str, Any]] = {}
    if parent is not None:
        listings |= _listings_in(read_value(parent.response).get("output") or ())
    if not isinstance(items, str):
        listings |= _listings_in(items)
    clients = [
        replace(entry.server, listing=_listing(listings.get(entry.server.label)))
        for entry in entries
        if entry.server is not None
    ]
    check_together(clients, client)
    demanded = ""
    if isinstance(choice, Mapping) and choice.get("type") == "mcp":
        demanded = str(choice.get("server_label") or "")
    return NamedServers(
        clients=clients,
        demanded=demanded,
    )


def under_names_for_models(items: Sequence[Any], labels: Collection[str]) -> Sequence[Any]:
    """Return an input in which tools of servers that requests name by their addresses have the names that models know them by, also
    where this request does not name them: what they said must not pass for words of a tool of ours. `labels`: those of ours."""
    return [_renamed(item) if _is_of_others(item, labels) else item for item in items]


def _is_of_others(item: Any, labels: Collection[str]) -> bool:
    if not isinstance(item, dict) or item.get("type") not in WITH_NAMES:
        return False
    label = item.get("server_label")
    return isinstance(label, str) and label not in labels


def _renamed(item: Any) -> Any:
    name = item.get("name")
    if not isinstance(name, str):
        return item
    return {**item, "name": claimed_name(item["server_label"], name)}


def _listings_in(items: Iterable[Any]) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    for item in items:
        if isinstance(item, dict) and item.get("type") == LISTING and isinstance(item.get("server_label"), str):
            yield item["server_label"], item


def _listing(item: Mapping[str, Any] | None) -> Any:
    if item is None or item.get("error"):
        return None
    return read_listing(item.get("tools"))
