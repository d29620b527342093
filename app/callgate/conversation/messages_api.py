"""Constants and fields of Anthropic's Messages API, shared by its face and its lane."""

from collections.abc import Mapping
from typing import Any, Final

ERROR_STATUSES: Final[Mapping[str, int]] = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""Kinds of errors, and the status of each."""

STOP_REASONS: Final[Mapping[str, str]] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
"""Why an answer ended, by the finish reason of a chat."""
STOP_SEQUENCE: Final = "stop_sequence"
"""The reason where a text that the client named ended it; a chat has no word for that."""

BLOCKS: Final = "content_blocks"
"""The field of a chat's assistant message that holds its blocks as Anthropic wrote them. It goes to nobody else."""

SIGNED: Final = "thinking_blocks"
"""The field that holds thinking with its signatures."""


def usage_counts(usage: Mapping[str, Any] | None) -> dict[str, int]:
    """The counts of a chat as Messages has them: what was read from a cache or written into one is no part of the input."""
    counts = usage or {}
    details = counts.get("prompt_tokens_details") or {}
    read = counts.get("cache_read_input_tokens") or details.get("cached_tokens") or 0
    created = counts.get("cache_creation_input_tokens") or details.get("cache_creation_tokens") or 0
    return {
        "input_tokens": max(0, (counts.get("prompt_tokens") or 0) - read - created),
        "output_tokens": counts.get("completion_tokens") or 0,
        "cache_creation_input_tokens": created,
        "cache_read_input_tokens": read,
    }
