"""Bodies of our own routes, which are small and of one shape."""

from typing import TypeVar

import msgspec

from callgate.conversation.errors import ChatError

Body = TypeVar("Body")


def read_json_body(body: bytes, shape: type[Body], example: str) -> Body:
    """The body, or a refusal that shows what it should be like."""
    try:
        return msgspec.json.decode(body, type=shape)
    except msgspec.DecodeError as error:
        raise ChatError(400, f"The body should be like {example}: {error}.", code="invalid_body") from None
