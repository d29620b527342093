"""Translates Anthropic's `thinking` parameters into those of other providers.

A field that a provider does not know would fail the request, and one that is left out only costs some reasoning, so a field
is left out unless the provider is known to take it.
"""

import re
from functools import lru_cache
from typing import Literal, TypeAlias

from callgate.models import litellm_model, resolve
from callgate.models.providers import OWN_WIRES, provider_named
from callgate.models.resolve import ModelConfig

Way: TypeAlias = Literal["thinking", "effort", "none"]
"""Anthropic's own field, which litellm translates; OpenAI's `reasoning_effort`; or no field."""

_FAMILIES = re.compile(
    r"""^(?:
      o[1-9](?:-|$) | gpt-5 | gpt-oss | codex | deepseek-(?:r1|reasoner|v3\.[1-9]|v4) | qwen-?3(?!.*instruct) | qwq
    | grok-(?:3-mini|4) | magistral | kimi-k2.*thinking | glm-(?:4\.[5-9]|5) | minimax-m[2-9] | gemini-(?:2\.5|3)
    )""",
    re.VERBOSE,
)


def way_of(entry: ModelConfig) -> Way:
    provider, model = resolve.split_provider(entry.litellm_params)
    name = str(entry.litellm_params.get("model", ""))
    is_listed = litellm_model.listed(name, "supports_reasoning")
    row = entry.provider or provider_named(provider)
    if row is not None and row.wire in OWN_WIRES:
        if is_listed is False:
            return "none"
        return "thinking"
    if by_family(model[-LONGEST:]) if is_listed is None else is_listed:
        return "effort"
    return "none"


LONGEST = 200
"""Characters of a name that are checked: clients may choose names, and results are cached."""


@lru_cache(maxsize=1024)
def by_family(model: str) -> bool:
    """Return what the name implies, without provider and organisation."""
    last = model.lower().rstrip("/").rsplit("/", 1)[-1]
    return _FAMILIES.search(re.sub(r"[\s_:@]+", "-", last)) is not None
