"""The Responses routes in the OpenAPI document."""

from typing import Any


def response_operation(errors: dict[str, Any]) -> dict[str, Any]:
    """Return the OpenAPI description. `errors`: the descriptions of common errors."""
    body = {
        "type": "object",
        "required": ["model", "input"],
        "additionalProperties": True,
        "properties": {
            "model": {"type": "string", "minLength": 1},
            "input": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]},
            "instructions": {"type": ["string", "null"]},
            "previous_response_id": {"type": ["string", "null"]},
            "stream": {"type": ["boolean", "null"]},
            "store": {"type": ["boolean", "null"]},
            "tools": {"type": ["array", "null"], "items": {"type": "object"}},
        },
    }
    answer = {
        "description": "A response, or the events of one.",
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "text/event-stream": {"schema": {"type": "string"}},
        },
    }
    return {
        "tags": ["chat"],
        "operationId": "create_response",
        "summary": "Answer in the Responses API, running the tools of this server on the way",
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {"200": answer} | errors,
    }
