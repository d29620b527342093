"""Has tools ask for an approval where the config does not."""

from collections.abc import Callable

from msgspec.structs import replace

from callgate.calls.selection import ToolOrigin
from callgate.tools.registry import RegisteredTool
from callgate.tools.toolbox import ToolSet


def asking_first(tools: ToolSet) -> ToolSet:
    """Return the tools with approval required for all that are not read-only."""
    return asking_for(tools, lambda origin: not origin.read_only)


def asking_for(tools: ToolSet, asks: Callable[[ToolOrigin], bool]) -> ToolSet:
    """Return the tools with approval required for some of them as well."""
    return tools.replaced(_with_approval(tool) if asks(tool.origin()) else tool for tool in tools.by_name.values())


def _with_approval(tool: RegisteredTool) -> RegisteredTool:
    return replace(tool, tool=replace(tool.tool, policy=replace(tool.tool.policy, require_approval=True)))
