"""Makes names that all providers accept out of any text: at most 64 of `[A-Za-z0-9_-]`.

A legal name is kept. Any other gets a suffix with a hash of the whole original, so that different texts have different
names, and the same text has the same name on every machine.
"""

import hashlib
import re

MAX_LENGTH = 64
RESERVED_PREFIX = "callgate__"
"""The prefix of a server tool with the same name as a client's tool."""

_HASH_DIGITS = 8
"""32 bits: among ten thousand tools of one cleaned name the probability of a clash is one in a hundred; the registry resolves
it like any other clash."""
MAX_STEM = MAX_LENGTH - _HASH_DIGITS - 1
"""The longest part of a text before its hash."""
_ILLEGAL = re.compile(r"[^A-Za-z0-9_-]+")


def legal_name(text: str) -> str:
    """Return `text` if it is a legal name, else a cleaned name with a hash of `text`."""
    if is_legal(text):
        return text
    return hashed_name(text, text)


def is_legal(text: str) -> bool:
    return 0 < len(text) <= MAX_LENGTH and not _ILLEGAL.search(text)


def hashed_name(text: str, identity: str, prefix: str = "") -> str:
    """Return a legal name that starts like `text`, with a hash of `identity`.

    It never begins with our own prefix, unless that is the given `prefix`.
    """
    digest = hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_DIGITS]
    stem = _ILLEGAL.sub("_", text).strip("_")
    while stem.startswith(RESERVED_PREFIX):
        stem = stem.removeprefix(RESERVED_PREFIX).strip("_")
    return f"{prefix}{stem[: MAX_LENGTH - len(prefix) - _HASH_DIGITS - 1] or 'tool'}_{digest}"
