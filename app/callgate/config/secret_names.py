"""Recognizes the names of fields, headers and variables that hold secrets. One list for config and logs."""

import re
from functools import lru_cache
from itertools import pairwise

_WORDS = frozenset(
    {
        "apikey", "auth", "authorization", "bearer", "cookie", "credential", "credentials", "jwt", "key",
        "passphrase", "passwd", "password", "pwd", "secret", "secrets", "sig", "signature", "token",
    }
)  # fmt: skip
_PLURAL_HOLDERS = frozenset({"keys", "tokens"})
"""`api_keys` and `access_tokens` hold secrets; `max_tokens` and `total_tokens` count."""
_HELD = frozenset({"access", "api", "auth", "bearer", "id", "private", "refresh", "secret", "session"})

_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+")


LONGEST_REMEMBERED = 64
"""Characters of a name whose result is cached; clients choose some names, and the cache must stay small."""


def means_secret(name: str) -> bool:
    """True if a value of this name is a secret: `api_key`, `X-Api-Key`, `clientSecret`, `DB_PASSWORD`."""
    return _means_secret(name) if len(name) <= LONGEST_REMEMBERED else _means_secret.__wrapped__(name)


@lru_cache(maxsize=1024)
def _means_secret(name: str) -> bool:
    words = [word.lower() for word in _BOUNDARY.split(name) if word]
    if words == ["auth"]:  # a mode, as in `auth: off`
        return False
    if any(word in _WORDS or word.endswith(("apikey", "password", "secret")) for word in words):
        return True
    return any(word in _PLURAL_HOLDERS and before in _HELD for before, word in pairwise(words))
