"""What a model's tokens cost: as the operator says in its entry, or as litellm's price list has it."""

import os
import sys
from collections.abc import Mapping
from typing import Any, Final

from callgate.conversation.prices import FREE, Price

PROMPT: Final = "input_cost_per_token"
COMPLETION: Final = "output_cost_per_token"
CACHED: Final = "cache_read_input_token_cost"


def price_of(litellm_params: Mapping[str, Any], model_info: Mapping[str, Any]) -> Price | None:
    """None where nobody knows. Asking for a model that the operator did not price loads litellm, which takes seconds: not for
    an event loop."""
    price = _said(litellm_params, model_info)
    return _listed(str(litellm_params.get("model", ""))) if price is None else price


def price_at_hand(litellm_params: Mapping[str, Any], model_info: Mapping[str, Any]) -> Price | None:
    """The same without loading anything."""
    price = _said(litellm_params, model_info)
    if price is not None or "litellm" not in sys.modules:
        return price
    return _listed(str(litellm_params.get("model", "")))


def _said(litellm_params: Mapping[str, Any], model_info: Mapping[str, Any]) -> Price | None:
    for said in (model_info, litellm_params):
        if PROMPT in said or COMPLETION in said:
            return _price(said)
    return FREE if str(litellm_params.get("model", "")).partition("/")[0] == "demo" else None


def _listed(model: str) -> Price | None:
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # or it fetches its list from the network
    import litellm

    prices: Mapping[str, Mapping[str, Any]] = litellm.model_cost
    found = prices.get(model) or prices.get(model.partition("/")[2])
    return _price(found) if found is not None and PROMPT in found else None


def _price(prices: Mapping[str, Any]) -> Price:
    cached = prices.get(CACHED)
    return Price(
        float(prices.get(PROMPT) or 0), float(prices.get(COMPLETION) or 0), None if cached is None else float(cached)
    )
