"""Where a request goes: the model that answers it, and the tools it is offered."""

from dataclasses import dataclass

from callgate.tools.toolbox import ToolSet
from callgate.upstream.resolve import ModelEntry
from callgate.upstream.retry import RetryingModel


@dataclass(frozen=True, slots=True)
class Route:
    """Who is asked, and with which of our tools: known before anything is made for one request."""

    name: str
    """What may be counted under: the configured name."""
    entry: ModelEntry
    model: RetryingModel
    server_tools: ToolSet | None
    """Those on offer, if any."""
    places: int | None
    """How many requests the model takes at once; None is any number."""
    warnings: tuple[str, ...] = ()
    """What the caller is to know of its request: names of tools in it that are none. Plain ASCII."""
