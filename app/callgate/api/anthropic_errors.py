"""Turns a failure into the body that Anthropic's clients expect."""

from collections.abc import Mapping
from typing import Any, Final

from callgate.conversation.errors import ChatError
from callgate.conversation.messages_api import ERROR_STATUSES

KINDS: Final[Mapping[int, str]] = {status: kind for kind, status in ERROR_STATUSES.items()} | {503: "overloaded_error"}


def kind_of(status: int) -> str:
    """Return Anthropic's error type for a status."""
    return KINDS.get(status) or ("invalid_request_error" if status < 500 else "api_error")


def error_shape(error: ChatError, request_id: str) -> dict[str, Any]:
    """Return the body of an error. `details` has its code."""
    error_fields: dict[str, Any] = {"type": kind_of(error.status), "message": error.message}
    if error.code is not None:
        error_fields["details"] = {"error_code": error.code}
    return {"type": "error", "error": error_fields, "request_id": request_id}
