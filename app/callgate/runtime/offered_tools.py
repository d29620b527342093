"""Which tools a request is offered, remembered until the tools change."""

from typing import Any

from callgate.tools.listing import quarantined_facts, tool_facts
from callgate.tools.registry import RegisteredTool, Registry
from callgate.tools.tool_filter import ToolFilter, allowed_filter, narrowed, tool_filter
from callgate.tools.toolbox import ToolSet

REMEMBERED_SELECTIONS = 1024
"""Clients may ask for any names, so there must be a bound."""


class OfferedTools:
    """The tools of a registry, narrowed for one request."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._tools: tuple[RegisteredTool, ...] = ()
        self._narrowed: dict[Any, ToolSet] = {}
        self.names: frozenset[str] = frozenset()
        """Of all tools, as they were when `all` was last asked."""

    def all(self) -> tuple[RegisteredTool, ...]:
        """All tools as they are now: the very same object until they change."""
        tools = self._registry.tools()
        if tools is not self._tools:
            self._tools = tools
            self.names = frozenset(tool.name for tool in tools)
            self._narrowed = {}
        return tools

    def narrowed(
        self,
        by_entry: tuple[str, ...],
        by_key: tuple[str, ...],
        wanted: str | None,
        allowed: frozenset[str] | None,
    ) -> ToolSet:
        """The tools that the model's entry, the caller's key and the request all leave on offer."""
        tools = self.all()
        asked = (by_entry, by_key, wanted, allowed)
        found = self._narrowed.get(asked)
        if found is None:
            if len(self._narrowed) >= REMEMBERED_SELECTIONS:
                self._narrowed.clear()
            filters = [ToolFilter(by_entry), ToolFilter(by_key), tool_filter(wanted), allowed_filter(allowed)]
            found = self._narrowed[asked] = ToolSet(narrowed(tools, filters))
        return found

    def listed(self, by_key: tuple[str, ...], *, with_quarantined: bool) -> list[dict[str, Any]]:
        """For people: what stands in a list of tools."""
        found = [tool_facts(tool) for tool in narrowed(self._registry.tools(), [ToolFilter(by_key)])]
        if with_quarantined:
            found += map(quarantined_facts, self._registry.quarantined())
        return found
