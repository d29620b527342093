"""Constants and fields of Anthropic's Messages API, shared by `api/messages` and `upstream/messages_lane`."""

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
"""The types of errors, and the status of each."""

STOP_REASONS: Final[Mapping[str, str]] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
"""The stop reasons of Messages, by the finish reasons of Chat Completions."""
STOP_SEQUENCE: Final = "stop_sequence"
"""The stop reason for a stop sequence; Chat Completions has none."""

BLOCKS: Final = "content_blocks"
"""The field of an assistant message with its blocks as Anthropic sent them. It is sent to Anthropic only."""

SIGNED: Final = "thinking_blocks"
"""The field of an assistant message with thinking blocks and their signatures."""


def usage_counts(usage: Mapping[str, Any] | None) -> dict[str, int]:
    """Convert token counts to those of Messages, where input tokens do not include tokens read from or written to a cache."""
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
