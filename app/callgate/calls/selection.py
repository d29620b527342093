"""Which of our tools a request speaks of: by their server, their names, and whether they only read."""

from collections.abc import Collection
from typing import Final

import msgspec

OF_REQUESTS: Final = "request/"
"""The beginning of the source of a tool whose server a request named by its address. No server of the config is called so."""


class ToolOrigin(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Where a tool of ours is from, and what it may do."""

    source: str
    """The name of its server; empty for a tool of the config."""
    names: frozenset[str]
    """Its name for models, and its name at its server."""
    read_only: bool


class ToolSelection(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A condition on tools; what is None is any."""

    source: str | None = None
    names: frozenset[str] | None = None
    without: frozenset[str] = frozenset()
    """Names that it does not admit."""
    read_only: bool | None = None

    def admits(self, tool: ToolOrigin) -> bool:
        if self.source is not None and tool.source != self.source:
            return False
        if self.names is not None and self.names.isdisjoint(tool.names):
            return False
        if not self.without.isdisjoint(tool.names):
            return False
        return self.read_only is None or self.read_only == tool.read_only

    def chars(self) -> int:
        """Return the length of its names."""
        return sum(map(len, (*(self.names or ()), *self.without)))


class ApprovalPolicy(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The calls of one server's tools that a request wants to have approved before they run."""

    source: str
    always: ToolSelection | None = None
    """None for all of them that are not in `never`."""
    never: ToolSelection | None = None

    def asks(self, tool: ToolOrigin) -> bool:
        if tool.source != self.source or (self.never is not None and self.never.admits(tool)):
            return False
        return self.always is None or self.always.admits(tool)


def needs_approval(policies: Collection[ApprovalPolicy], tool: ToolOrigin | None) -> bool:
    """True if one of the policies asks for it. For a tool of unknown origin true if there is any."""
    if tool is None:
        return bool(policies)
    return any(policy.asks(tool) for policy in policies)
