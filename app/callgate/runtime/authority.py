"""Compares a runtime with the one that is to replace it: what would be allowed that is not.

Settings are compared by `callgate.config.authority`. The config's own tools are compared as they were built, because functions
and general rules also say how safe a tool is, and whether its calls wait. Those of sources are not known before these are
opened; for them the settings count.
"""

from collections.abc import Iterator
from typing import Final

from callgate.config.authority import MAX_REMOVED, Widening, widenings, with_removed
from callgate.config.schema import Config
from callgate.tools.executor import Policy, Safety
from callgate.tools.registry import CONFIG, Registry

_MILDEST_LAST: Final = (Safety.DESTRUCTIVE, Safety.WRITE, Safety.READ_ONLY)


class KnownAuthority:
    """What the config in use allows, and what the entries allowed that were removed from it since the start."""

    def __init__(self, config: Config, registry: Registry) -> None:
        self._config = config
        self._policies = _own_policies(registry)

    def widened_by(self, config: Config, registry: Registry) -> list[Widening]:
        """Return what a config and its tools allow more."""
        return [*widenings(self._config, config), *self._of_tools(registry)]

    def replace(self, config: Config, registry: Registry) -> None:
        """Take a config that is in use from now on."""
        self._config = with_removed(self._config, config)
        now = _own_policies(registry)
        gone = [(name, policy) for name, policy in self._policies.items() if name not in now]
        self._policies = {**dict(gone[-MAX_REMOVED:]), **now}

    def _of_tools(self, registry: Registry) -> Iterator[Widening]:
        for name, now in _own_policies(registry).items():
            was = self._policies.get(name)
            if was is None:
                continue
            if was.require_approval and not now.require_approval:
                what = "would not wait for approval any more"
                yield Widening(("tools",), f"tools.{name}.require_approval", what)
            if _MILDEST_LAST.index(now.safety) > _MILDEST_LAST.index(was.safety):
                yield Widening(("tools",), f"tools.{name}.safety", f"was `{was.safety}`, and would be `{now.safety}`")


def _own_policies(registry: Registry) -> dict[str, Policy]:
    return {tool.original: tool.tool.policy for tool in registry.tools() if tool.source == CONFIG}
