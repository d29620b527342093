"""Limits requests to what litellm can translate cheaply: schemas that stay small when they are expanded."""

from collections.abc import Iterator
from typing import Any

import msgspec

from callgate.conversation import raw_json
from callgate.conversation.errors import ChatError
from callgate.conversation.ports import ModelRequest
from callgate.schemas.expansion import MAX_EXPANDED, SchemaTooLarge, check_expansion

REFERENCE = b"$ref"
LARGE = 64 * 1024
"""A request of more bytes than this is worded in a process of its own, because the libraries traverse it many times."""


def check_schemas(request: ModelRequest) -> None:
    """Refuse schemas, the client's or ours, that become too large when their references are expanded."""
    for param, value in _fields_with_references(request):
        try:
            check_expansion(raw_json.read(value))
        except SchemaTooLarge as error:
            raise ChatError(
                400,
                f"A schema is too large: with its references written out it has more than {MAX_EXPANDED} nodes"
                f" ({param}, at {error.place or '/'}).",
                param=param,
                code="schema_too_large",
            ) from None


def _fields_with_references(request: ModelRequest) -> Iterator[tuple[str, Any]]:
    for at, tool in enumerate(request.tools):
        if REFERENCE in bytes(tool):
            yield f"tools[{at}]", tool
    for name, value in request.params.items():
        if REFERENCE in (bytes(value) if isinstance(value, msgspec.Raw) else repr(value).encode(errors="replace")):
            yield name, value


def is_large(request: ModelRequest) -> bool:
    """True if a request is worded in a process of its own."""
    size = 0
    for part in (*request.messages, *request.tools, *request.params.values()):
        size += len(bytes(part)) if isinstance(part, msgspec.Raw) else len(repr(part))
        if size > LARGE:
            return True
    return False
