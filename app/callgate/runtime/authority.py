"""Compares a runtime with the one that is to replace it: what would be allowed that is not.

Settings are compared by `callgate.config.authority`. The config's own tools are compared as they were built, because functions
and general rules also say how safe a tool is, and whether its calls wait. Those of sources are not known before these are
opened; for them the settings count.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from callgate.config.authority import MAX_REMOVED, Widening, widened_since, widenings, with_removed, written
from callgate.config.schema.whole import Config
from callgate.tools.executor import Policy, Safety
from callgate.tools.registry import Registry
from callgate.tools.tool_names import CONFIG

_MILDEST_LAST: Final = (Safety.DESTRUCTIVE, Safety.WRITE, Safety.READ_ONLY)


class KnownAuthority:
    """What the config in use allows, and what the entries allowed that were removed from it since the start."""

    def __init__(self, config: Config, registry: Registry) -> None:
        self._config = config
        self._policies = _own_policies(registry)

    def widened_by(self, config: Config, registry: Registry) -> list[Widening]:
        """Return what a config and its tools allow more."""
        return [*widenings(self._config, config), *_of_tools(self._policies, _own_policies(registry))]

    def written(self) -> dict[str, Any]:
        """Return what the next start has to know, as JSON."""
        tools = {name: [policy.require_approval, str(policy.safety)] for name, policy in self._policies.items()}
        return {"settings": written(self._config), "tools": tools}

    def widened_since(self, values: Mapping[str, Any]) -> list[Widening]:
        """Return what is allowed more than at the start that wrote this."""
        old = {
            name: Policy(require_approval=bool(waits), safety=Safety(safety))
            for name, (waits, safety) in values["tools"].items()
        }
        return [*widened_since(values["settings"], self._config), *_of_tools(old, self._policies)]

    def replace(self, config: Config, registry: Registry) -> None:
        """Take a config that is in use from now on."""
        self._config = with_removed(self._config, config)
        now = _own_policies(registry)
        gone = [(name, policy) for name, policy in self._policies.items() if name not in now]
        self._policies = {**dict(gone[-MAX_REMOVED:]), **now}


def _of_tools(old: Mapping[str, Policy], new: Mapping[str, Policy]) -> Iterator[Widening]:
    for name, now in new.items():
        was = old.get(name)
        if was is None:
            continue
        if was.require_approval and not now.require_approval:
            what = "would not wait for approval any more"
            yield Widening(("tools",), f"tools.{name}.require_approval", what)
        if _MILDEST_LAST.index(now.safety) > _MILDEST_LAST.index(was.safety):
            yield Widening(("tools",), f"tools.{name}.safety", f"was `{was.safety}`, and would be `{now.safety}`")


def _own_policies(registry: Registry) -> dict[str, Policy]:
    return {tool.original: tool.tool.policy for tool in registry.tools() if tool.source == CONFIG}
