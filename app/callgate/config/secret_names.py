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


VARIABLE_NAME = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*_(?:API_KEY|TOKEN)")
"""Names of variables, which are written by mistake where a key is meant."""

PUBLISHED = frozenset(
    """
    allowed_hosts cors_origins fallbacks host model_name models name port public_url tools model data_dir level format lane
    api_version aws_region_name vertex_location
    """.split()
)
"""Settings whose values people are told, so that none is a secret wherever it is from."""

_WORD = re.compile(r"[A-Za-z]{1,15}")
_ADDRESS = re.compile(r"https?://[A-Za-z0-9.-]+(?::\d{1,5})?(?:/v\d)?/?")
"""The address of a server, without a path that could be a capability."""


def is_ordinary(value: str) -> bool:
    """True for what may stand in any text: a word (`true`, `localhost`) or a server's address, which a variable may hold too."""
    return _WORD.fullmatch(value) is not None or _ADDRESS.fullmatch(value) is not None


LONGEST_REMEMBERED = 64
"""Characters of a name whose result is cached; clients choose some names, and the cache must stay small."""


def means_secret(name: str) -> bool:
    """True if a value of this name is a secret: `api_key`, `X-Api-Key`, `clientSecret`, `DB_PASSWORD`."""
    if len(name) <= LONGEST_REMEMBERED:
        return _means_secret(name)
    return _means_secret.__wrapped__(name)


@lru_cache(maxsize=1024)
def _means_secret(name: str) -> bool:
    words = [word.lower() for word in _BOUNDARY.split(name) if word]
    if words == ["auth"]:  # a mode, as in `auth: off`
        return False
    if any(word in _WORDS or word.endswith(("apikey", "password", "secret")) for word in words):
        return True
    return any(word in _PLURAL_HOLDERS and before in _HELD for before, word in pairwise(words))


def secrets_in_url(text: str, *, is_foreign: bool = False) -> set[str]:
    """Return the parts of an address that are secrets: its password, and what its query has under the name of one. Of one that is
    `is_foreign`, from a variable or a file, also the user and all of the query: errors may quote any part of it."""
    if "://" not in text or ("@" not in text and "?" not in text):
        return set()
    before, _, query = text.partition("?")
    user, _, password = before.partition("://")[2].rpartition("@")[0].partition(":")
    values = [pair.partition("=") for pair in re.split("[&#]", query)]
    secrets = {password, *(value for name, _, value in values if is_foreign or means_secret(name))}
    if is_foreign:
        secrets |= {user, query}
    return secrets - {""}
