"""The route of a request: the model that answers it, and the tools it is offered."""

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
    """The model and the server tools of a request, known before anything is made for it."""

    name: str
    """What may be counted under: the configured name."""
    entry: ModelConfig
    model: RetryingModel
    server_tools: ToolSet | None
    """Those on offer, if any."""
    places: int | None
    """How many requests the model takes at once; None is any number."""
    is_recorded: bool = False
    """Whether its requests are recorded from their beginning."""
    warnings: tuple[str, ...] = ()
    """What the caller is to know of its request: names of tools in it that are none. Plain ASCII."""
    may_offer_tools: bool = False
    """Tools of ours may be on offer, now or once their servers are there."""

    @property
    def thinking(self) -> Way:
        """The parameters with which its model is asked to think."""
        return way_of(self.entry)


def check_selectors(entry: ModelConfig, fields: Iterable[str]) -> None:
    """Refuse fields that choose another model than the one that was asked for, unless its entry lets them pass."""
    if entry.provider_selectors or SELECTORS.isdisjoint(fields):
        return
    found = next(name for name in fields if name in SELECTORS)
    message = (
        f"'{found}' would choose among the models and hosts of the provider, which `{entry.model_name}` does not allow."
    )
    raise ChatError(400, message, param=found, code="unsupported_parameter")
