"""What a model's tokens cost: as the operator says in its entry, or as litellm's price list has it."""

from collections.abc import Mapping
from typing import Any, Final

PROMPT: Final = "input_cost_per_token"
COMPLETION: Final = "output_cost_per_token"
CACHED: Final = "cache_read_input_token_cost"


def costs_of(
    litellm_params: Mapping[str, Any], model_info: Mapping[str, Any]
) -> tuple[float, float, float | None] | None:
    """US dollars for a token of the prompt, of the completion, and of a prompt that the provider had kept; None where
    nobody knows. Asking for a model that the operator did not price loads litellm, which takes seconds: not for an event
    loop."""
    for said in (model_info, litellm_params):
        if PROMPT in said or COMPLETION in said:
            return _costs(said)
    model = str(litellm_params.get("model", ""))
    listed = _listed(model) if model.partition("/")[0] != "demo" else {}
    return None if listed is None else _costs(listed)


def _listed(model: str) -> Mapping[str, Any] | None:
    import litellm

    prices: Mapping[str, Mapping[str, Any]] = litellm.model_cost
    found = prices.get(model) or prices.get(model.partition("/")[2])
    return found if found is not None and PROMPT in found else None


def _costs(prices: Mapping[str, Any]) -> tuple[float, float, float | None]:
    cached = prices.get(CACHED)
    return float(prices.get(PROMPT) or 0), float(prices.get(COMPLETION) or 0), None if cached is None else float(cached)
