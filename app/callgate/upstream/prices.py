"""Looks up the price of a model's tokens: in its config entry, or in litellm's price list."""

from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from callgate.conversation.prices import FREE, Price

PROMPT: Final = "input_cost_per_token"
COMPLETION: Final = "output_cost_per_token"
CACHED: Final = "cache_read_input_token_cost"
LIST: Final = "model_prices_and_context_window_backup.json"
"""The file of litellm's package with its price list."""

log = structlog.get_logger("callgate.models")


def price_of(litellm_params: Mapping[str, Any], model_info: Mapping[str, Any]) -> Price | None:
    """Return the price of a model's tokens; None where it is unknown. Does not load litellm, which takes seconds."""
    for settings in (model_info, litellm_params):
        if PROMPT in settings or COMPLETION in settings:
            cached = settings.get(CACHED)
            return Price(
                float(settings.get(PROMPT) or 0),
                float(settings.get(COMPLETION) or 0),
                None if cached is None else float(cached),
            )
    model = str(litellm_params.get("model", ""))
    provider, _, name = model.partition("/")
    if provider == "demo":
        return FREE
    prices = _list()
    return prices.get(model) or prices.get(name)


class _Listed(msgspec.Struct, gc=False):
    """The fields that are read of one model in litellm's list."""

    input_cost_per_token: float | None = None
    output_cost_per_token: float | None = None
    cache_read_input_token_cost: float | None = None


@cache
def _list() -> Mapping[str, Price]:
    """Return litellm's price list, read once: three megabytes, ten milliseconds."""
    package = find_spec("litellm")
    file = Path(str(package and package.origin)).with_name(LIST)
    try:
        found = msgspec.json.decode(file.read_bytes(), type=dict[str, _Listed])
    except (OSError, msgspec.MsgspecError) as error:
        log.error("price_list_unreadable", file=str(file), error=str(error))  # noqa: TRY400 - the reason is all there is
        return {}
    return {
        model: Price(each.input_cost_per_token, each.output_cost_per_token or 0.0, each.cache_read_input_token_cost)
        for model, each in found.items()
        if each.input_cost_per_token is not None
    }
