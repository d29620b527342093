"""The route of a request: the model that answers it, and the offered tools."""

from collections.abc import Iterable
from dataclasses import dataclass

from callgate.conversation.errors import ChatError
from callgate.tools.toolbox import ToolSet
from callgate.upstream.params import SELECTORS
from callgate.upstream.reasoning import Way, way_of
from callgate.upstream.resolve import ModelConfig
from callgate.upstream.retry import RetryingModel


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
    """Warnings for the caller about unknown tool names in its request. Plain ASCII."""
    may_offer_tools: bool = False
    """Tools of ours may be offered, now or once their servers are ready."""

    @property
    def thinking(self) -> Way:
        """How its model takes `thinking` parameters."""
        return way_of(self.entry)


def check_selectors(entry: ModelConfig, fields: Iterable[str]) -> None:
    """Refuse fields that choose another model than the requested one, unless its entry allows them."""
    if entry.provider_selectors or SELECTORS.isdisjoint(fields):
        return
    found = next(name for name in fields if name in SELECTORS)
    message = (
        f"'{found}' would choose among the models and hosts of the provider, which `{entry.model_name}` does not allow."
    )
    raise ChatError(400, message, param=found, code="unsupported_parameter")
