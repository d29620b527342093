"""Makes the principal of a request, of its key, the user that it names, and its headers."""

from collections.abc import Iterator, Mapping
from typing import Final

from callgate.callers.caller import Caller, Principal, owner_name

CREDENTIALS: Final = frozenset({"authorization", "api-key", "x-api-key", "cookie", "proxy-authorization"})
"""Headers that are never sent on."""
LEAST_KEY: Final = 8
"""Characters from which on a key is also looked for inside other headers."""


def principal_of(caller: Caller, user: str, headers: Mapping[str, str]) -> Principal:
    """Return on whose behalf calls are made. `headers`: with names in lower case."""
    keys = frozenset(_keys_in(headers))
    sendable = {name: value for name, value in headers.items() if name not in CREDENTIALS}
    withheld = frozenset(name for name, value in sendable.items() if _has_key(value, keys))
    return Principal(
        owner=owner_name(caller),
        user=user,
        headers={name: value for name, value in sendable.items() if name not in withheld},
        withheld=withheld,
    )


def _keys_in(headers: Mapping[str, str]) -> Iterator[str]:
    """Yield the credentials that a request has, whole and without their scheme."""
    for name in CREDENTIALS:
        value = headers.get(name, "").strip()
        if value:
            yield value
            yield value.rpartition(" ")[2]


def _has_key(value: str, keys: frozenset[str]) -> bool:
    return any(value.strip() == key or (len(key) >= LEAST_KEY and key in value) for key in keys)
