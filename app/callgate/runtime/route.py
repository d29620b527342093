"""The route of a request: the model that answers it, and the offered tools."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from callgate.callers.caller import OfferSetting
from callgate.calls.selection import OF_REQUESTS, ApprovalPolicy, ToolOrigin, needs_approval
from callgate.models.resolve import ModelConfig, has_messages_wire, lane_of
from callgate.models.retry import RetryingModel
from callgate.models.translated.reasoning import Way, way_of
from callgate.tools.approvals.asking import asking_first, asking_for
from callgate.tools.own_tool import own_origin
from callgate.tools.toolbox import ToolSet

ClientTools: TypeAlias = Literal["absent", "empty", "some"]
"""Whether a request has `tools`: none at all, an empty list, or some."""
EMPTY_TOOLS_LIST: Final = "empty_tools_list"
"""The warning that none of our tools was offered, because the request has an empty list of tools."""


def may_offer(client_tools: ClientTools, setting: OfferSetting) -> bool:
    """True if our tools may be offered to a request. An empty list says that it wants none; without a list it is perhaps a side
    request of an agent, for a title or a summary."""
    return client_tools == "some" or (client_tools == "absent" and setting == "any")


class Route(msgspec.Struct, frozen=True):
    """The model and the server tools of a request, chosen before its chat is set up."""

    name: str
    """The configured name, for metrics."""
    entry: ModelConfig
    model: RetryingModel
    server_tools: ToolSet | None
    """The offered ones, if any."""
    places: int | None
    """How many concurrent requests the model takes; None is any number."""
    is_recorded: bool = False
    """Whether its requests are recorded from their beginning."""
    warnings: tuple[str, ...] = ()
    """Warnings for the caller about the tools of its request. Plain ASCII."""
    may_offer_tools: bool = False
    """Tools of ours may be offered, now or once their servers are ready."""
    searched: Mapping[str, int] | None = None
    """How many of our tools are offered, and how many the model is shown; None where it is shown all."""

    is_plainly_read: bool = False
    """Tools are offered, and the first turn depends on nothing else of the model's entry: they are not searched, no results are cleared."""

    def thinking(self) -> Way:
        """How its model takes `thinking` parameters."""
        return way_of(self.entry)

    def speaks_messages(self) -> bool:
        """True if its model has Anthropic's own API, so that a request in that format goes on as it came."""
        return has_messages_wire(self.entry) and lane_of(self.entry) == "translated"

    def offers(self, tool: str) -> bool:
        """True if a tool of ours is offered under this name."""
        return self.origin_of(tool) is not None

    def origin_of(self, tool: str) -> ToolOrigin | None:
        """Return where one of our tools is from, by its name for models; None for any other name."""
        if self.server_tools is None:
            return None
        if tool in self.server_tools.own_names:
            return own_origin(tool)
        registered = self.server_tools.by_name.get(tool)
        if registered is None:
            return None
        return registered.origin()

    def source_of(self, tool: str) -> str | None:
        """Return the MCP server of one of our tools; empty for a tool of the config, None for an unknown name."""
        origin = self.origin_of(tool)
        if origin is None:
            return None
        return origin.source

    def clients_name_of(self, tool: str) -> str:
        """Return the name by which a client knows one of our tools: at its server, where it named that by its address."""
        registered = None if self.server_tools is None else self.server_tools.by_name.get(tool)
        if registered is None or not registered.source.startswith(OF_REQUESTS):
            return tool
        return registered.original

    def asking_for(self, policies: Sequence[ApprovalPolicy]) -> "Route":
        """Return the route with approval required where the policies ask for it as well."""
        if not policies or self.server_tools is None:
            return self
        return replace(self, server_tools=asking_for(self.server_tools, partial(needs_approval, policies)))

    def asking_first(self) -> "Route":
        """Return the route with approval required for all tools that are not read-only."""
        if self.server_tools is None:
            return self
        return replace(self, server_tools=asking_first(self.server_tools))
