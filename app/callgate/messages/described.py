"""The Messages routes in the OpenAPI document."""

from typing import Any

from callgate.conversation.messages_api import ERROR_STATUSES


def messages_operation() -> dict[str, Any]:
    content = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]}
    message = {
        "type": "object",
        "required": ["role", "content"],
        "properties": {"role": {"enum": ["user", "assistant", "system"]}, "content": content},
    }
    body = {
        "type": "object",
        "required": ["model", "messages", "max_tokens"],
        "additionalProperties": True,
        "properties": {
            "model": {"type": "string", "minLength": 1},
            "messages": {"type": "array", "items": message, "minItems": 1},
            "max_tokens": {"type": "integer", "minimum": 1},
            "system": content,
            "stream": {"type": ["boolean", "null"]},
            "tools": {"type": ["array", "null"], "items": {"type": "object"}},
        },
    }
    error = {"content": {"application/json": {"schema": _error_schema()}}}
    errors = {str(status): {"description": kind, **error} for kind, status in ERROR_STATUSES.items()}
    answer = {
        "description": "A message, or the events of one.",
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "text/event-stream": {"schema": {"type": "string"}},
        },
    }
    return {
        "tags": ["chat"],
        "operationId": "create_message",
        "summary": "Answer a message of Anthropic's API, running the tools of this server on the way",
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {"200": answer, **errors},
    }


def _error_schema() -> dict[str, Any]:
    error = {
        "type": "object",
        "required": ["type", "message"],
        "properties": {"type": {"enum": list(ERROR_STATUSES)}, "message": {"type": "string"}},
    }
    return {
        "type": "object",
        "required": ["type", "error", "request_id"],
        "properties": {"type": {"const": "error"}, "error": error, "request_id": {"type": "string"}},
    }
