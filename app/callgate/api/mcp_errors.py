"""Turns a failure into the JSON-RPC error that clients of MCP expect."""

from typing import Any, Final

from callgate.conversation.errors import ChatError

MCP_PATH: Final = "/mcp"
REFUSED: Final = -32000
INVALID_REQUEST: Final = -32600
INTERNAL_ERROR: Final = -32603
_CODES: Final = {400: INVALID_REQUEST, 413: INVALID_REQUEST, 415: INVALID_REQUEST, 500: INTERNAL_ERROR}


def error_shape(error: ChatError, request_id: str) -> dict[str, Any]:
    """Return the body of an error of a request whose id is not known."""
    return {"jsonrpc": "2.0", "id": None, "error": error_fields(error)}


def error_fields(error: ChatError) -> dict[str, Any]:
    """Return an error as the protocol has it. `data` has our own code for it."""
    code = _CODES.get(error.status, REFUSED)
    return {"code": code, "message": error.message, "data": {"status": error.status, "error_code": error.code}}
