"""Reads the small JSON bodies of our own routes into typed structures."""

from typing import Final, TypeVar

import msgspec

from callgate.api.strict_json import split
from callgate.conversation.errors import ChatError

MOST_LEVELS: Final = 512
"""Deeper than the decoder goes."""

Body = TypeVar("Body")


def read_json_body(body: bytes, shape: type[Body], example: str) -> Body:
    """The body, or a refusal that shows what it should be like. A field that is given twice may mean either."""
    try:
        read = msgspec.json.decode(body, type=shape)
    except msgspec.DecodeError as error:
        raise ChatError(400, f"The body should be like {example}: {error}.", code="invalid_body") from None
    split(body, MOST_LEVELS)
    return read
