"""A tool of Callgate's own, which is offered beside those of the config."""

from collections.abc import Container

import msgspec

from callgate.calls.legal_names import RESERVED_PREFIX
from callgate.calls.offer import OfferedTool
from callgate.calls.selection import ToolOrigin

OWN_SOURCE = "callgate"
"""The source of these tools, which is none of the config's."""


class OwnTool(msgspec.Struct, frozen=True, kw_only=True):
    """The tool as it is offered, under one name."""

    name: str
    offered: OfferedTool
    definition: msgspec.Raw


def free_name(name: str, taken_names: Container[str]) -> str:
    """Return the name of one of these tools: another where a tool of the same request has its own."""
    while name in taken_names:
        name = RESERVED_PREFIX + name
    return name


def own_origin(name: str) -> ToolOrigin:
    """Return where one of these tools is from, by its name in a request."""
    return ToolOrigin(source=OWN_SOURCE, names=frozenset((name, name.removeprefix(RESERVED_PREFIX))), read_only=True)
