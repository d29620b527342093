"""Selects the tools for a request, and caches the selection until the tools change."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from callgate.calls.search_setting import SearchPlan
from callgate.calls.selection import ToolSelection
from callgate.tools.listing import clash_facts, prompt_tokens, quarantined_facts, ready_facts, source_facts
from callgate.tools.registry import RegisteredTool, Registry
from callgate.tools.tool_filter import NameFilter, ToolFilter, Unmatched, narrowed, nearest, requested_filter, unmatched
from callgate.tools.toolbox import Searching, ToolSet

if TYPE_CHECKING:  # imported where tools are searched for
    from callgate.tools.tool_search import ToolIndex

REMEMBERED_SELECTIONS = 1024
"""Clients may send any names, so that there has to be a bound."""
REMEMBERED_CHARS = 512
"""The longest list of tools in a request whose selection is cached."""
MAX_UNMATCHED = 5
"""How many unknown tool names of one request are reported to its client and the log."""

Wanted: TypeAlias = str | tuple[ToolSelection, ...] | None
"""The tools of ours that a request wants: patterns with commas, or selections; None is all."""


def is_short(requested: Wanted) -> bool:
    """True if it is short enough to be remembered."""
    if isinstance(requested, tuple):
        size = sum(selection.chars() + 1 for selection in requested)
    else:
        size = len(requested or "")
    return size <= REMEMBERED_CHARS


class OfferedTools:
    """The tools of a registry, narrowed for one request."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._tools: tuple[RegisteredTool, ...] = ()
        self._narrowed: dict[Any, ToolSet] = {}
        self._costs: dict[Any, dict[str, Any]] = {}
        """What each model's tools cost, by who asks."""
        self.names: frozenset[str] = frozenset()
        """The names of all tools at the last call of `all`."""
        self._index: ToolIndex | None = None
        """Made with the first request whose tools are searched."""

    async def close(self) -> None:
        if self._index is not None:
            await self._index.close()

    def all(self) -> tuple[RegisteredTool, ...]:
        """Return all current tools; the same object until they change."""
        tools = self._registry.tools()
        if tools is not self._tools:
            self._tools = tools
            self.names = frozenset(tool.name for tool in tools)
            self._narrowed = {}
            self._costs = {}
        return tools

    def narrowed(
        self,
        by_entry: tuple[str, ...],
        by_key: tuple[str, ...],
        wanted: "Wanted",
        allowed: frozenset[str] | None,
        plan: SearchPlan | None = None,
        demanded: frozenset[str] = frozenset(),
        unlisted: frozenset[str] = frozenset(),
    ) -> ToolSet:
        """Return the tools that the model's entry, the caller's key and the request all allow. `plan`: how they are searched, where
        they are. `demanded`: the tools that the model has to be shown. `unlisted`: those that their servers do not list for the caller."""
        tools = self.all()
        if allowed is not None:
            allowed &= self.names  # a client may send any number of other names
        demanded &= self.names
        cache_key = (by_entry, by_key, wanted, allowed, plan, demanded, unlisted)
        tool_set = self._narrowed.get(cache_key)
        if tool_set is None:
            if len(self._narrowed) >= REMEMBERED_SELECTIONS:
                self._narrowed.clear()
            name_filter = None if allowed is None else NameFilter(allowed)
            filters: list[ToolFilter | NameFilter | None] = [ToolFilter(by_entry), ToolFilter(by_key), name_filter]
            if isinstance(wanted, tuple):
                chosen = tuple(selected(narrowed(tools, filters), wanted))
            else:
                chosen = narrowed(tools, [*filters, requested_filter(wanted)])
            if unlisted:
                chosen = tuple(tool for tool in chosen if tool.name not in unlisted)
            search = None
            if plan is not None and sum(prompt_tokens(tool.definition) for tool in chosen) > plan.over:
                search = self._searching(plan, named_tools(chosen, wanted, allowed, demanded))
            tool_set = ToolSet(chosen, with_read_more=True, search=search)
            if tool_set.search is not None:
                tool_set.search.index.follow(self._tools)
            if is_short(wanted):
                self._narrowed[cache_key] = tool_set
        return tool_set

    def _searching(self, plan: SearchPlan, named: frozenset[str]) -> Searching:
        """Return what makes tools searchable, but for those with these names."""
        from callgate.tools.tool_search import SearchedTools, ToolIndex

        if self._index is None:
            self._index = ToolIndex(self._registry.introductions)
        return partial(SearchedTools, plan=plan, named=named, index=self._index)

    def unmatched(self, by_entry: tuple[str, ...], by_key: tuple[str, ...], wanted: "Wanted") -> tuple[Unmatched, ...]:
        """Return the names in a request that match no tool which its caller may know of."""
        if isinstance(wanted, tuple):
            tools = narrowed(self.all(), [ToolFilter(by_entry), ToolFilter(by_key)])
            return unmatched_names(wanted, tools)[:MAX_UNMATCHED]
        requested = requested_filter(wanted)
        if requested is None or not requested.patterns:
            return ()
        tools = narrowed(self.all(), [ToolFilter(by_entry), ToolFilter(by_key)])
        return unmatched(requested.patterns, tools, by_given_name=True)[:MAX_UNMATCHED]

    def of_key(self, by_key: tuple[str, ...]) -> ToolSet:
        """Return all tools that a key may use."""
        return self.narrowed(("*",), by_key, None, None)

    def cost(
        self, by_entry: tuple[str, ...], by_key: tuple[str, ...], plan: SearchPlan | None, automatic: SearchPlan
    ) -> dict[str, Any]:
        """How many tools are on offer, `read_more` included, and about how many tokens of every prompt they take; how many of them
        are hidden behind searching, and what that saves. `automatic`: how they would be searched with `auto`."""
        self.all()
        place = (by_entry, by_key, plan, automatic)
        if place not in self._costs:
            if len(self._costs) >= REMEMBERED_SELECTIONS:
                self._costs.clear()
            self._costs[place] = self._cost(by_entry, by_key, plan, automatic)
        return self._costs[place]

    def _cost(
        self, by_entry: tuple[str, ...], by_key: tuple[str, ...], plan: SearchPlan | None, automatic: SearchPlan
    ) -> dict[str, Any]:
        whole = self.narrowed(by_entry, by_key, None, None)
        tokens = _prompt_tokens(whole)
        facts: dict[str, Any] = {"tools": len(whole.definitions), "prompt_tokens": tokens}
        counted = plan or automatic
        if tokens <= counted.over:
            return facts
        search = self._searching(counted, frozenset())
        searched = ToolSet(whole.by_name.values(), with_read_more=True, search=search)
        if searched.search is None:
            return facts
        less = tokens - _prompt_tokens(searched)
        if plan is None:
            return {**facts, "search_would_save": less}
        hidden = len(searched.search.hidden)
        return {**facts, "prompt_tokens": tokens - less, "hidden": hidden, "search_saves": less}

    def servers(self) -> list[dict[str, Any]]:
        """Describe the sources of tools and the modules that are started for them, with their states."""
        return list(map(source_facts, (*self._registry.sources(), *self._registry.services())))

    def listed(self, by_key: tuple[str, ...], *, with_quarantined: bool) -> list[dict[str, Any]]:
        """Describe the tools, for a list."""
        facts = ready_facts(narrowed(self._registry.tools(), [ToolFilter(by_key)]))
        if with_quarantined:
            facts += map(quarantined_facts, self._registry.quarantined())
            facts += map(clash_facts, self._registry.clashes())
        return facts


def selected(tools: Iterable[RegisteredTool], selections: Sequence[ToolSelection]) -> list[RegisteredTool]:
    return [tool for tool in tools if any(selection.admits(tool.origin()) for selection in selections)]


def unmatched_names(selections: Sequence[ToolSelection], tools: Sequence[RegisteredTool]) -> tuple[Unmatched, ...]:
    """Return the names in selections that no tool has."""
    missing: dict[str, str] = {}
    for selection in selections:
        names = [name for tool in tools if selection.source in (None, tool.source) for name in tool.origin().names]
        for name in sorted((selection.names or frozenset()).difference(names)):
            missing.setdefault(name, nearest(name, names) if len(missing) < MAX_UNMATCHED else "")
    return tuple(Unmatched(name, near) for name, near in missing.items())


def named_tools(
    tools: Sequence[RegisteredTool], wanted: Wanted, allowed: frozenset[str] | None, demanded: frozenset[str]
) -> frozenset[str]:
    """Return the tools that a request names one by one."""
    names = {*(allowed or ()), *demanded}
    if isinstance(wanted, str):
        names |= {name.strip() for name in wanted.split(",")}
    for selection in wanted if isinstance(wanted, tuple) else ():
        if selection.names is not None:
            names |= {tool.name for tool in tools if selection.admits(tool.origin())}
    return frozenset(tool.name for tool in tools if tool.name in names or tool.address in names)


def _prompt_tokens(tools: ToolSet) -> int:
    return sum(map(prompt_tokens, tools.definitions))
