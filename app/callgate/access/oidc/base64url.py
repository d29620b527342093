"""Base64url as JOSE has it (RFC 7515): without padding, and one text for one value."""

import base64
import binascii
import re
from typing import Any, Final

_ALPHABET: Final = re.compile(r"[A-Za-z0-9_-]*", re.ASCII)


class NotBase64Url(ValueError):
    """Raised for what is no base64url."""


def from_base64url(text: Any) -> bytes:
    """Decode a text. Raises `NotBase64Url`, also where another text would be the same."""
    if not isinstance(text, str) or _ALPHABET.fullmatch(text) is None:
        raise NotBase64Url
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error:
        raise NotBase64Url from None
    if base64.urlsafe_b64encode(data).rstrip(b"=") != text.encode():
        raise NotBase64Url
    return data
