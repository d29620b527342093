"""Masks the credentials of a request in its response, because some servers echo requests."""

from collections.abc import Iterable
from typing import Final

from callgate.config.secret_names import means_secret

MIN_LENGTH: Final = 12
"""Shorter values, and those without a digit (`sk-no-key-required`), are placeholders that may occur in any text."""


def credentials_in(headers: Iterable[tuple[str, str]]) -> tuple[bytes, ...]:
    """Return the credentials in a request's headers, without the scheme before them."""
    found = (value.rpartition(" ")[2] for name, value in headers if means_secret(name))
    return tuple({each.encode("latin-1", "replace") for each in found if is_secret(each)})


def is_secret(value: str) -> bool:
    return len(value) >= MIN_LENGTH and any(map(str.isdigit, value))


class CredentialMask:
    """Replaces the characters of credentials by stars, also where they are split between reads."""

    __slots__ = ("_kept", "_last", "_secrets")

    def __init__(self, secrets: tuple[bytes, ...]) -> None:
        self._secrets = secrets
        self._last = frozenset(b"".join(secret[:-1] for secret in secrets))
        """The characters that a prefix of a credential can end with, for a quick check of the end of a read."""
        self._kept = b""

    def feed(self, data: bytes) -> bytes:
        """Return the data that can be passed on: all but an end that may be the beginning of a credential."""
        if self._kept:
            data = self._kept + data
            self._kept = b""
        for secret in self._secrets:
            if secret in data:
                data = data.replace(secret, b"*" * len(secret))
        if data and data[-1] in self._last and (kept := max(_begun(secret, data) for secret in self._secrets)):
            self._kept = data[-kept:]
            return data[:-kept]
        return data

    def finish(self) -> bytes:
        kept, self._kept = self._kept, b""
        return kept


def _begun(secret: bytes, data: bytes) -> int:
    """Return how much of a credential the data ends with."""
    return next((size for size in range(min(len(secret) - 1, len(data)), 0, -1) if data.endswith(secret[:size])), 0)
