"""Selects the tools for a request, and caches the selection until the tools change."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from callgate.calls.selection import ToolSelection
from callgate.tools.listing import clash_facts, prompt_tokens, quarantined_facts, source_facts, tool_facts
from callgate.tools.registry import RegisteredTool, Registry
from callgate.tools.tool_filter import NameFilter, ToolFilter, Unmatched, narrowed, nearest, requested_filter, unmatched
from callgate.tools.toolbox import ToolSet

REMEMBERED_SELECTIONS = 1024
"""Clients may send any names, so that there has to be a bound."""
REMEMBERED_CHARS = 512
"""The longest list of tools in a request whose selection is cached."""
MAX_UNMATCHED = 5
"""How many unknown tool names of one request are reported to its client and the log."""

Wanted: TypeAlias = str | tuple[ToolSelection, ...] | None
"""The tools of ours that a request wants: patterns with commas, or selections; None is all."""


def is_short(wanted: Wanted) -> bool:
    """True if it is short enough to be remembered."""
    size = sum(each.chars + 1 for each in wanted) if isinstance(wanted, tuple) else len(wanted or "")
    return size <= REMEMBERED_CHARS


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
        wanted: "Wanted",
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
            filters: list[ToolFilter | NameFilter | None] = [ToolFilter(by_entry), ToolFilter(by_key), named]
            if isinstance(wanted, tuple):
                found = ToolSet(selected(narrowed(tools, filters), wanted))
            else:
                found = ToolSet(narrowed(tools, [*filters, requested_filter(wanted)]))
            if is_short(wanted):
                self._narrowed[asked] = found
        return found

    def unmatched(self, by_entry: tuple[str, ...], by_key: tuple[str, ...], wanted: "Wanted") -> tuple[Unmatched, ...]:
        """Return the names in a request that match no tool which its caller may know of."""
        if isinstance(wanted, tuple):
            known = narrowed(self.all(), [ToolFilter(by_entry), ToolFilter(by_key)])
            return unmatched_names(wanted, known)[:MAX_UNMATCHED]
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


def selected(tools: Iterable[RegisteredTool], wanted: Sequence[ToolSelection]) -> list[RegisteredTool]:
    return [tool for tool in tools if any(selection.admits(tool.origin) for selection in wanted)]


def unmatched_names(wanted: Sequence[ToolSelection], known: Sequence[RegisteredTool]) -> tuple[Unmatched, ...]:
    """Return the names in selections that no tool has."""
    missing: dict[str, str] = {}
    for selection in wanted:
        names = [name for tool in known if selection.source in (None, tool.source) for name in tool.origin.names]
        for name in sorted((selection.names or frozenset()).difference(names)):
            missing.setdefault(name, nearest(name, names) if len(missing) < MAX_UNMATCHED else "")
    return tuple(Unmatched(name, near) for name, near in missing.items())
