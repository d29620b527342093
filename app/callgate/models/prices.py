"""Looks up the price of a model's tokens: in its config entry, or in litellm's price list."""

from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from callgate.conversation.prices import FREE, Price
from callgate.models.providers import DEMO
from callgate.untrusted.doors import Door, Untrusted
from callgate.untrusted.readers import READ_ERRORS, json_reader

PROMPT: Final = "input_cost_per_token"
COMPLETION: Final = "output_cost_per_token"
CACHED: Final = "cache_read_input_token_cost"
CACHE_WRITTEN: Final = "cache_creation_input_token_cost"
SEARCHES: Final = "search_context_cost_per_query"
USUAL_CONTEXT: Final = "search_context_size_medium"
LIST: Final = "model_prices_and_context_window_backup.json"
"""The file of litellm's package with its price list."""
PRICES: Final = Door(name="litellm's price list", bytes=32 * 1024 * 1024)

log = structlog.get_logger("callgate.models")


def price_of(litellm_params: Mapping[str, Any], model_info: Mapping[str, Any]) -> Price | None:
    """Return the price of a model's tokens; None where it is unknown. Does not load litellm, which takes seconds."""
    for settings in (model_info, litellm_params):
        if PROMPT in settings or COMPLETION in settings:
            searches = settings.get(SEARCHES)
            return Price(
                float(settings.get(PROMPT) or 0),
                float(settings.get(COMPLETION) or 0),
                _number(settings.get(CACHED)),
                _number(settings.get(CACHE_WRITTEN)),
                _of_search(searches),
            )
    model = str(litellm_params.get("model", ""))
    provider, _, name = model.partition("/")
    if provider == DEMO:
        return FREE
    prices = _list()
    return prices.get(model) or prices.get(name)


class ListedModel(msgspec.Struct, gc=False):
    """The fields that are read of one model in litellm's list."""

    max_input_tokens: Any = None
    input_cost_per_token: float | None = None
    output_cost_per_token: float | None = None
    cache_read_input_token_cost: float | None = None
    cache_creation_input_token_cost: float | None = None
    search_context_cost_per_query: Any = None


def _number(value: Any) -> float | None:
    if value is None:
        return None
    return float(value)


def _of_search(costs: Any) -> float | None:
    """Return the price of a search of the usual size; None where it is not listed."""
    cost = costs.get(USUAL_CONTEXT) if isinstance(costs, dict) else None
    return float(cost) if isinstance(cost, int | float) else None


_read_list = json_reader(dict[str, ListedModel])


def listed_models() -> Mapping[str, ListedModel]:
    """Read litellm's list: three megabytes, ten milliseconds. Empty where it cannot be read."""
    package = find_spec("litellm")
    file = Path(str(None if package is None else package.origin)).with_name(LIST)
    try:
        return _read_list(Untrusted(file.read_bytes(), PRICES).open())
    except (OSError, *READ_ERRORS) as error:
        log.error("price_list_unreadable", file=str(file), error=str(error))  # noqa: TRY400 - the reason is all there is
        return {}


@cache
def _list() -> Mapping[str, Price]:
    """Return litellm's price list, read once."""
    return {
        model: Price(
            facts.input_cost_per_token,
            facts.output_cost_per_token or 0.0,
            facts.cache_read_input_token_cost,
            facts.cache_creation_input_token_cost,
            _of_search(facts.search_context_cost_per_query),
        )
        for model, facts in listed_models().items()
        if facts.input_cost_per_token is not None
    }
