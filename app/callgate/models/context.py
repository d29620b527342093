"""How many tokens a model takes, and from how many on its tools are searched for."""

from collections.abc import Mapping
from functools import cache

from callgate.calls.search_setting import SearchPlan, SearchSetting
from callgate.models.prices import listed_models
from callgate.models.resolve import ModelConfig


def context_of(entry: ModelConfig) -> int | None:
    """Return the tokens that a model takes: by its entry, else by litellm's list; None where nobody says."""
    if entry.max_input_tokens is not None:
        return entry.max_input_tokens
    model = str(entry.litellm_params.get("model", ""))
    contexts = _contexts()
    return contexts.get(model) or contexts.get(model.partition("/")[2])


def search_plan(setting: SearchSetting, entry: ModelConfig) -> SearchPlan:
    """Return how the tools of requests to a model are searched."""
    context = context_of(entry) if setting.mode == "auto" else None
    return SearchPlan(
        over=setting.over(context),
        pins=setting.pins,
        reveals=setting.way == "reveal",
        may_be_native=setting.way == "auto",
        result_tokens=setting.result_tokens,
    )


def load_contexts() -> None:
    """Read litellm's list, so that no request waits for it."""
    _contexts()


@cache
def _contexts() -> Mapping[str, int]:
    listed = {model: facts.max_input_tokens for model, facts in listed_models().items()}
    return {model: tokens for model, tokens in listed.items() if type(tokens) is int and tokens > 0}
