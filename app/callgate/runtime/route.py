"""The route of a request: the model that answers it, and the offered tools."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal, TypeAlias

from callgate.auth.keys import OfferSetting
from callgate.calls.selection import ApprovalPolicy, ToolOrigin, needs_approval
from callgate.conversation.errors import ChatError
from callgate.runtime.recorded_tools import asking_first, asking_for
from callgate.tools.toolbox import ToolSet
from callgate.upstream.params import SELECTORS
from callgate.upstream.reasoning import Way, way_of
from callgate.upstream.resolve import ModelConfig, lane_of, provider_of
from callgate.upstream.retry import RetryingModel

ClientTools: TypeAlias = Literal["absent", "empty", "some"]
"""Whether a request has `tools`: none at all, an empty list, or some."""
EMPTY_TOOLS_LIST: Final = "empty_tools_list"
"""The warning that none of our tools was offered, because the request has an empty list of tools."""


def may_offer(client_tools: ClientTools, setting: OfferSetting) -> bool:
    """True if our tools may be offered to a request. An empty list says that it wants none; without a list it is perhaps a side
    request of an agent, for a title or a summary."""
    return client_tools == "some" or (client_tools == "absent" and setting == "any")


@dataclass(frozen=True, slots=True)
class Route:
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

    @property
    def thinking(self) -> Way:
        """How its model takes `thinking` parameters."""
        return way_of(self.entry)

    @property
    def speaks_messages(self) -> bool:
        """True if its model has Anthropic's own API, so that a request in that format goes on as it came."""
        return provider_of(self.entry.litellm_params) == "anthropic" and lane_of(self.entry) == "translated"

    def origin_of(self, tool: str) -> ToolOrigin | None:
        """Return where one of our tools is from, by its name for models; None for any other name."""
        registered = self.server_tools.by_name.get(tool) if self.server_tools else None
        return None if registered is None else registered.origin

    def asking_for(self, policies: Sequence[ApprovalPolicy]) -> "Route":
        """Return the route with approval required where the policies ask for it as well."""
        if not policies or self.server_tools is None:
            return self
        return replace(self, server_tools=asking_for(self.server_tools, partial(needs_approval, policies)))

    def asking_first(self) -> "Route":
        """Return the route with approval required for all tools that are not read-only."""
        return self if self.server_tools is None else replace(self, server_tools=asking_first(self.server_tools))


def check_selectors(entry: ModelConfig, fields: Iterable[str]) -> None:
    """Refuse fields that choose another model than the requested one, unless its entry allows them."""
    if entry.provider_selectors or SELECTORS.isdisjoint(fields):
        return
    found = next(name for name in fields if name in SELECTORS)
    message = (
        f"'{found}' would choose among the models and hosts of the provider, which `{entry.model_name}` does not allow."
    )
    raise ChatError(400, message, param=found, code="unsupported_parameter")
