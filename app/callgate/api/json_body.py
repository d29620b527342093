"""Reads the small JSON bodies of our own routes into typed structures."""

from typing import Final, TypeVar

import msgspec

from callgate.api.strict_json import split
from callgate.conversation.errors import ChatError
from callgate.untrusted.doors import Opened
from callgate.untrusted.readers import read_shape

MOST_LEVELS: Final = 512
"""More levels than the decoder takes."""

Body = TypeVar("Body")


def read_json_body(body: Opened, shape: type[Body], example: str) -> Body:
    """Decode a body. Raises `ChatError` with an example, also for a duplicate field."""
    try:
        decoded = read_shape(body, shape)
    except msgspec.DecodeError as error:
        raise ChatError(400, f"The body should be like {example}: {error}.", code="invalid_body") from None
    split(body, MOST_LEVELS)
    return decoded
