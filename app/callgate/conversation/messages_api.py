"""Constants and fields of Anthropic's Messages API, shared by `api/messages` and `upstream/messages_lane`."""

from collections.abc import Mapping
from typing import Final

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

COMPACTED: Final = "compaction"
"""The stop reason of an answer that ends with a summary of the conversation."""
CONTEXT: Final = "context_management"
"""The field of an answer that says what of its context its provider edited."""

BLOCKS: Final = "content_blocks"
"""The field of an assistant message with its blocks as Anthropic sent them. It is sent to Anthropic only."""

SIGNED: Final = "thinking_blocks"
"""The field of an assistant message with thinking blocks and their signatures."""
