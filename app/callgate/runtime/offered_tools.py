"""Selects the tools for a request, and caches the selection until the tools change."""

from typing import Any

from callgate.tools.listing import clash_facts, prompt_tokens, quarantined_facts, source_facts, tool_facts
from callgate.tools.registry import RegisteredTool, Registry
from callgate.tools.tool_filter import NameFilter, ToolFilter, Unmatched, narrowed, requested_filter, unmatched
from callgate.tools.toolbox import ToolSet

REMEMBERED_SELECTIONS = 1024
"""Clients may send any names, so that there has to be a bound."""
REMEMBERED_CHARS = 512
"""The longest list of tools in a request whose selection is cached."""
MAX_UNMATCHED = 5
"""How many unknown tool names of one request are reported to its client and the log."""


class OfferedTools:
    """The tools of a registry, narrowed for one request."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._tools: tuple[RegisteredTool, ...] = ()
        self._narrowed: dict[Any, ToolSet] = {}
        self.names: frozenset[str] = frozenset()
        """The names of all tools at the last call of `all`."""

    def all(self) -> tuple[RegisteredTool, ...]:
        """Return all current tools; the same object until they change."""
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
        """Return the tools that the model's entry, the caller's key and the request all allow."""
        tools = self.all()
        if allowed is not None:
            allowed &= self.names  # a client may send any number of other names
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
        """Return the names in a request that match no tool which its caller may know of."""
        asked = requested_filter(wanted)
        if asked is None or not asked.patterns:
            return ()
        known = narrowed(self.all(), [ToolFilter(by_entry), ToolFilter(by_key)])
        return unmatched(asked.patterns, known, by_given_name=True)[:MAX_UNMATCHED]

    def of_key(self, by_key: tuple[str, ...]) -> ToolSet:
        """Return all tools that a key may use."""
        return self.narrowed(("*",), by_key, None, None)

    def cost(self, by_entry: tuple[str, ...], by_key: tuple[str, ...]) -> dict[str, int]:
        """How many tools are on offer, and about how many tokens of every prompt they take."""
        offered = self.narrowed(by_entry, by_key, None, None).by_name.values()
        return {"tools": len(offered), "prompt_tokens": sum(map(prompt_tokens, offered))}

    def servers(self) -> list[dict[str, Any]]:
        """Describe the sources of tools and their states."""
        return list(map(source_facts, self._registry.sources()))

    def listed(self, by_key: tuple[str, ...], *, with_quarantined: bool) -> list[dict[str, Any]]:
        """Describe the tools, for a list."""
        found = [tool_facts(tool) for tool in narrowed(self._registry.tools(), [ToolFilter(by_key)])]
        if with_quarantined:
            found += map(quarantined_facts, self._registry.quarantined())
            found += map(clash_facts, self._registry.clashes())
        return found
