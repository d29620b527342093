"""Finds the tools that items of the input add to those of the request: further ones, and what a search of the client's found."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from callgate.api.field_errors import wrong
from callgate.conversation.response_items import kind_of
from callgate.responses.offered import ADDING

NAMED: Final = frozenset({"function", "custom", "namespace"})


class ListedTools(msgspec.Struct, frozen=True):
    """Tools, and where each of them stands in the request."""

    tools: Sequence[Any]
    places: Sequence[str]


def with_added(tools: Sequence[Any] | None, items: str | Sequence[Any]) -> ListedTools:
    """Return the tools of a request with those that its items add, each once."""
    offered = list(tools or ())
    places = [f"tools[{at}]" for at in range(len(offered))]
    if isinstance(items, str):
        return ListedTools(offered, places)
    names = {_name_of(tool) for tool in offered}
    for place, item in enumerate(items):
        if kind_of(item) not in ADDING:
            continue
        added = item.get("tools")
        where = f"input[{place}].tools"
        if not isinstance(added, list):
            raise wrong(where, f"Invalid type for '{where}': expected an array.", "invalid_type")
        for at, tool in enumerate(added):
            name = _name_of(tool)
            if name is None or name not in names:
                offered.append(tool)
                places.append(f"{where}[{at}]")
                names.add(name)
    return ListedTools(offered, places)


def _name_of(tool: Any) -> tuple[Any, Any] | None:
    """Return what a tool is known by; None for one that may be there more than once."""
    if kind_of(tool) in NAMED and isinstance(tool.get("name"), str):
        return tool["type"], tool["name"]
    return None
