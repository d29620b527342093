"""Masks secrets in bytes that are read or written: credentials of a request in its response, because some servers echo requests,
and all secrets of a process in what it writes."""

from collections.abc import Iterable
from typing import Final

from callgate.config import redaction
from callgate.config.secret_names import means_secret

MIN_LENGTH: Final = 12
"""Shorter values, and those without a digit (`sk-no-key-required`), are placeholders that may occur in any text."""


def credentials_in(headers: Iterable[tuple[str, str]]) -> tuple[bytes, ...]:
    """Return the credentials in a request's headers, without the scheme before them."""
    values = (value.rpartition(" ")[2] for name, value in headers if means_secret(name))
    return tuple({secret.encode("latin-1", "replace") for secret in values if is_secret(secret)})


def secrets_in(sent: bytes) -> tuple[bytes, ...]:
    """Return the secrets of this process in what is sent to a server, which could echo them."""
    needles = redaction.current.needles
    if needles is None:
        return ()
    return tuple(secret for secret in needles.secrets if secret in sent)


def is_secret(value: str) -> bool:
    return len(value) >= MIN_LENGTH and any(map(str.isdigit, value))
