"""JSON that is kept as the client's bytes, and parsed only when something has to look inside."""

from typing import Any

import msgspec

from callgate.conversation.errors import ChatError


def read(value: Any) -> Any:
    """A value as an object, whether it came as bytes or was made here. What turns out to be unreadable, such as a number
    that no double holds, is the client's mistake, whenever it is seen."""
    if not isinstance(value, msgspec.Raw):
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ChatError(
            400, f"The body of your request holds a value that cannot be read: {error}.", code="invalid_json"
        ) from None
