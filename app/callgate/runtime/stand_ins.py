"""Finds the tools of ours that stand for tools which clients declare for a provider to run."""

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Final

from callgate.callers.caller import Caller
from callgate.config.schema.whole import Config
from callgate.hosted.declared import StandIn, StandIns
from callgate.hosted.rows import row_of
from callgate.models.resolve import ModelConfig
from callgate.tools.offered_tools import OfferedTools
from callgate.tools.registry import RegisteredTool
from callgate.tools.tool_filter import names_exactly
from callgate.tools.toolbox import ToolSet

LEFT_TO_PROVIDER: Final = "off"
OWN_KINDS: Final = ("web_search", "web_fetch")
"""Kinds of tools that stand for the family of their name, where the config says nothing and no provider could be asked."""


def stand_ins_of(
    config: Config, offered: OfferedTools, entry: ModelConfig, caller: Caller, *, may_pass: bool
) -> StandIns:
    """Return what stands for which family, for requests of a caller to a model: none that they may not use. `may_pass`: what is
    declared goes on to the provider, which may have it."""
    named = by_family(config.hosted_tools) | by_family(entry.hosted_tools)
    if not may_pass:
        named = {kind: f"kind:{kind}" for kind in OWN_KINDS} | named
    tools = offered.narrowed(entry.tools, caller.tools, None, None)
    stand_ins: dict[str, StandIn] = {}
    for family, tool in _chosen(tools, named):
        parameters = tool.offered.parameters.get("properties")
        stand_ins[family] = StandIn(
            name=tool.name,
            properties=parameters if isinstance(parameters, Mapping) else {},
            beside=partial(_name_beside, tools, tool.address),
        )
    return stand_ins


def _chosen(tools: ToolSet, named: Mapping[str, str]) -> Iterator[tuple[str, RegisteredTool]]:
    for family, name in named.items():
        if name == LEFT_TO_PROVIDER:
            continue
        for tool in tools.by_name.values():
            if name == f"kind:{tool.tool.kind}" or names_exactly(name, tool):
                yield family, tool
                break


def by_family(named: Mapping[str, str]) -> dict[str, str]:
    """Return the setting by the names of families, of which some have a second one."""
    families = {kind: row_of(kind) for kind in named}
    return {row.family: named[kind] for kind, row in families.items() if row is not None}


def _name_beside(tools: ToolSet, address: str, client_names: Collection[str]) -> str:
    """Return the name that a tool has beside those of a client."""
    return next(name for name, tool in tools.apart_from(client_names).by_name.items() if tool.address == address)
