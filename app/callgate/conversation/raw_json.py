"""JSON that is kept as the client's bytes, and parsed only where its content is needed."""

from typing import Any

import msgspec

from callgate.conversation.errors import ChatError
from callgate.untrusted.readers import read_value


def read(value: Any) -> Any:
    """Return a value, decoded if it is raw bytes. What cannot be decoded, such as a number that no double holds, is a client
    error, whenever it is found."""
    if not isinstance(value, msgspec.Raw):
        return value
    try:
        return read_value(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ChatError(
            400, f"The body of your request holds a value that cannot be read: {error}.", code="invalid_json"
        ) from None
