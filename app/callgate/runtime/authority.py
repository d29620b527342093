"""Compares a runtime with the one that is to replace it: what would be allowed that is not.

Settings are compared by `callgate.config.authority`. The config's own tools are compared as they were built, because functions
and general rules also say how safe a tool is, and whether its calls wait. Those of sources are not known before these are
opened; for them the settings count.
"""

from collections.abc import Iterator

from callgate.config.authority import Widening, widenings
from callgate.config.schema import Config
from callgate.tools.executor import Safety
from callgate.tools.registry import CONFIG, RegisteredTool, Registry

_MILDEST_LAST = (Safety.DESTRUCTIVE, Safety.WRITE, Safety.READ_ONLY)


def widened(old: Config, old_tools: Registry, new: Config, new_tools: Registry) -> list[Widening]:
    """Return what the new config and its tools allow more than the old ones."""
    return [*widenings(old, new), *_of_tools(old_tools, new_tools)]


def _of_tools(old: Registry, new: Registry) -> Iterator[Widening]:
    before = _own_tools(old)
    for name, tool in _own_tools(new).items():
        earlier = before.get(name)
        if earlier is None:
            continue
        was, now = earlier.tool.policy, tool.tool.policy
        if was.require_approval and not now.require_approval:
            what = "would not wait for approval any more"
            yield Widening(("tools",), f"tools.{name}.require_approval", what)
        if _MILDEST_LAST.index(now.safety) > _MILDEST_LAST.index(was.safety):
            yield Widening(("tools",), f"tools.{name}.safety", f"was `{was.safety}`, and would be `{now.safety}`")


def _own_tools(registry: Registry) -> dict[str, RegisteredTool]:
    return {tool.original: tool for tool in registry.tools() if tool.source == CONFIG}
