"""Selects the fields of a judged request that a lane sends on to a provider.

In the direct lane the request only becomes a body, so all of them may be in it. litellm takes its own settings as keyword
arguments beside the model's, so only listed names become arguments and the rest goes into `extra_body`.
"""

import re
from collections.abc import Mapping
from typing import Any

from callgate.conversation.ports import ModelRequest

NOT_IN_CHATS = ("stream_options", "reasoning_summary")
"""Fields that a lane writes itself, or that only the Responses API has."""

NAMED = frozenset(
    """
    functions function_call temperature top_p n stop max_tokens max_completion_tokens modalities prediction audio
    presence_penalty frequency_penalty logit_bias user response_format seed parallel_tool_calls logprobs
    top_logprobs reasoning_effort verbosity safety_identifier service_tier store prompt_cache_key thinking
    web_search_options
    """.split()
)
"""Named parameters of `acompletion`, which it translates for every provider."""


COUNTS_COMPLETIONS = re.compile(r"(?:o[1-9]|gpt-[5-9]|codex)(?![a-z\d])")
"""Prefixes of OpenAI's models that refuse `max_tokens` and require `max_completion_tokens`, which includes reasoning."""


def with_completion_limit(fields: dict[str, Any]) -> dict[str, Any]:
    """Rename the token limit as OpenAI's newer models require."""
    limit = fields.pop("max_tokens", None)
    if limit is not None:
        fields.setdefault("max_completion_tokens", limit)
    return fields


def for_body(request: ModelRequest, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the body: the request's, and the operator's defaults."""
    fields = _fitting(request, {**defaults, **request.params})
    for name in NOT_IN_CHATS:
        fields.pop(name, None)
    return fields


def for_litellm(request: ModelRequest) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the request's fields as arguments for litellm, and those for `extra_body`."""
    named: dict[str, Any] = {}
    beside: dict[str, Any] = {}
    for name, value in _fitting(request, dict(request.params)).items():
        if name in NOT_IN_CHATS or name == "metadata":  # a setting of litellm's
            continue
        (named if name in NAMED else beside)[name] = value
    return named, beside


def _fitting(request: ModelRequest, fields: dict[str, Any]) -> dict[str, Any]:
    # OpenAI refuses these two without tools, and the last turn of a loop has none.
    if request.tools or "functions" in fields:
        return fields
    return {name: value for name, value in fields.items() if name not in {"parallel_tool_calls", "function_call"}}
