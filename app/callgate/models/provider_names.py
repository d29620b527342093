"""Checks that an entry names a known provider, so that a misspelt one is an error when the config is read."""

import difflib
from collections.abc import Collection, Mapping
from typing import Any

from callgate.models import litellm_model
from callgate.models.providers import DEMO, PROVIDERS, suggestions
from callgate.models.resolve import ModelConfig, revealed, split_provider

NEAR = 0.6


def why_unknown(entry: ModelConfig, defined: Collection[str] = ()) -> str | None:
    """Return why no provider is found for an entry's model, or None. `defined`: the providers of the config. Loads litellm for a name that is not listed here, because
    a newer litellm may know it."""
    params = revealed(entry.litellm_params)
    model = str(params["model"])
    prefix, slash, model_name = model.partition("/")
    if entry.provider is not None or entry.lane in {"direct", "responses"} or prefix == DEMO:
        return None
    if "*" in prefix or (slash and prefix in PROVIDERS):
        return None
    if split_provider(params)[0] is not None or _litellm_knows(params):
        return None
    if not slash:
        return f"the name {model!r} says no provider: write `openai/{model}`, or `ollama/{model}`, or whose it is"
    similar = difflib.get_close_matches(prefix.lower(), [*defined, *PROVIDERS], 1, NEAR)
    suggestion = suggestions().get(prefix.lower()) or next(iter(similar), None)
    if suggestion:
        hint = f"; did you mean `{suggestion}/{model_name}`?"
    else:
        hint = ""
    if params.get("api_base") or params.get("base_url"):
        hint = f"; for a server with OpenAI's API at `api_base` write `openai/{model}`"
    return f"no provider is called {prefix!r}{hint or '; see https://docs.litellm.ai/docs/providers for their names'}"


def _litellm_knows(params: Mapping[str, Any]) -> bool:
    litellm = litellm_model.loaded_at_once()
    try:
        litellm.get_llm_provider(
            model=params["model"],
            api_base=params.get("api_base") or params.get("base_url"),
            api_key=params.get("api_key"),
        )
    except litellm.exceptions.BadRequestError:
        return False
    return True
