"""Selects the tools for a request, and caches the selection until the tools change."""

from typing import Any

from callgate.tools.listing import clash_facts, quarantined_facts, source_facts, tool_facts
from callgate.tools.registry import RegisteredTool, Registry
from callgate.tools.tool_filter import NameFilter, ToolFilter, Unmatched, narrowed, requested_filter, unmatched
from callgate.tools.toolbox import ToolSet

REMEMBERED_SELECTIONS = 1024
"""Clients may ask for any names, so there must be a bound."""
REMEMBERED_CHARS = 512
"""Of the tools that a request names. What is longer is worked out again, and not kept."""
MAX_UNMATCHED = 5
"""Of the names in one request that are no tool's: those that its client and the log are sent."""


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
        if allowed is not None:
            allowed &= self.names  # the client may have made up any number of others
        asked = (by_entry, by_key, wanted, allowed)
        found = self._narrowed.get(asked)
        if found is None:
            if len(self._narrowed) >= REMEMBERED_SELECTIONS:
                self._narrowed.clear()
            named = None if allowed is None else NameFilter(allowed)
            found = ToolSet(
                narrowed(tools, [ToolFilter(by_entry), ToolFilter(by_key), requested_filter(wanted), named])
            )
            if len(wanted or "") <= REMEMBERED_CHARS:
                self._narrowed[asked] = found
        return found

    def unmatched(
        self, by_entry: tuple[str, ...], by_key: tuple[str, ...], wanted: str | None
    ) -> tuple[Unmatched, ...]:
        """The names in a request that are no tool's, of those that its caller may know of."""
        asked = requested_filter(wanted)
        if asked is None or not asked.patterns:
            return ()
        known = narrowed(self.all(), [ToolFilter(by_entry), ToolFilter(by_key)])
        return unmatched(asked.patterns, known, by_given_name=True)[:MAX_UNMATCHED]

    def of_key(self, by_key: tuple[str, ...]) -> ToolSet:
        """All tools that a key may use."""
        return self.narrowed(("*",), by_key, None, None)

    def servers(self) -> list[dict[str, Any]]:
        """For people: how the sources of tools do."""
        return list(map(source_facts, self._registry.sources()))

    def listed(self, by_key: tuple[str, ...], *, with_quarantined: bool) -> list[dict[str, Any]]:
        """For people: what stands in a list of tools."""
        found = [tool_facts(tool) for tool in narrowed(self._registry.tools(), [ToolFilter(by_key)])]
        if with_quarantined:
            found += map(quarantined_facts, self._registry.quarantined())
            found += map(clash_facts, self._registry.clashes())
        return found
